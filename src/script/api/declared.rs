//! Tests that the fields read by functions are those declared in `script::docs`, with their
//! defaults.

#![allow(clippy::unwrap_used)]

use std::any::Any;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use super::argument::{ANY, Bytes, Mebibytes, NonNegative, Whole};
use super::arguments::Arguments;
use super::*;
use crate::algorithms::FIELDS;
use crate::script::docs;
use crate::script::docs::defaults::meanings;
use crate::script::runtime::resource as resource_files;
use crate::search;
use crate::tools::table::TableOptions;
use crate::tools::{PythonOptions, RhaiOptions};

/// A function with named arguments.
struct DeclaredFunction {
    name: &'static str,
    /// The names that it reads.
    names: Vec<&'static str>,
    defaults: Vec<(&'static str, Box<dyn Any>)>,
}

fn of<A: Arguments>(name: &'static str) -> DeclaredFunction {
    DeclaredFunction { name, names: A::names(), defaults: A::defaults() }
}

/// The functions with named arguments.
fn read() -> Vec<DeclaredFunction> {
    vec![
        of::<recipe::RecipeArguments>("r1.recipe"),
        of::<env::EnvArguments>("r1.env"),
        DeclaredFunction { name: "r1.algorithm", names: FIELDS.to_vec(), defaults: Vec::new() },
        of::<format::FormatArguments>("r1.format"),
        of::<resource::ResourceArguments>("r1.resource"),
        of::<data::FileArguments>("r1.data.jsonl"),
        of::<data::FileArguments>("r1.data.csv"),
        of::<data::FileArguments>("r1.data.parquet"),
        of::<data::HubOptions>("r1.data.hf"),
        of::<data::GenerateArguments>("r1.data.generate"),
        of::<tools::lua::LuaToolArguments>("r1.tool"),
        of::<tools::python::PythonArguments>("r1.tools.python"),
        of::<tools::search::SearchArguments>("r1.tools.search"),
        of::<search_index::IndexSearchOptions>("Index:search"),
        of::<tools::table::ToolTableArguments>("r1.tools.table"),
        of::<table::OpenOptions>("r1.table.open"),
        of::<tools::rhai_programs::RhaiArguments>("r1.tools.rhai"),
        of::<tools::mcp::McpArguments>("r1.tools.mcp"),
        of::<call::CallOptions>("r1.call_tools"),
        of::<policy::ReplyOptions>("Policy:generate"),
        of::<generate::GenerateArguments>("r1.generate"),
        of::<logprobs::LogprobsArguments>("r1.logprobs"),
        of::<reward_model::RewardModelArguments>("r1.reward_model"),
        of::<answers::ReferenceOptions>("r1.reference"),
        of::<connection::ConnectionArguments>("r1.connection"),
        of::<connection::MessageOptions>("Connection:request"),
        of::<http::RequestOptions>("r1.http.get"),
        of::<http::RequestOptions>("r1.http.post"),
        of::<http::RequestArguments>("r1.http.request"),
        of::<process::RunOptions>("r1.process.run"),
        of::<fs::WriteOptions>("r1.fs.write"),
        DeclaredFunction {
            name: "r1.image",
            names: [&image::FIELDS[..], &image::ImageOptions::names()].concat(),
            defaults: Vec::new(),
        },
        of::<index::IndexOptions>("r1.text.index"),
        of::<text::ParseOptions>("r1.text.parse_tool_calls"),
        of::<template::TemplateOptions>("r1.text.template"),
        of::<tokenizer::EncodeOptions>("Tokenizer:encode"),
        of::<tokenizer::DecodeOptions>("Tokenizer:decode"),
        of::<model_options::OpenOptions>("r1.model"),
        of::<model_options::SampleOptions>("Model:generate"),
        of::<model_options::LogprobsOptions>("Model:logprobs"),
        of::<store::StepsOptions>("r1.store.steps"),
        of::<store::TrajectoriesOptions>("r1.store.trajectories"),
        of::<store::WriteOptions>("r1.store.write"),
    ]
}

/// Functions of `lua/`, which read their named arguments there (`script::tests::docs` compares
/// them); the options of a template, which may have any name; and those that `programs` reads.
const ELSEWHERE: [&str; 17] = [
    "r1.rl.value_loss",
    "Context:drop_images",
    "Context:drop_tool_results",
    "Context:shorten_tool_results",
    "Context:recall",
    "Context:summarize",
    "Template:render",
    "Template:encode",
    "r1.script",
    "Script:reset",
    "Attempt:step",
    "r1.rollout",
    "r1.training",
    "Training:rollout",
    "Training:update",
    "Training:sft",
    "Training:logprobs",
];

/// Names that a function accepts and that are not declared: `memory_mb` is written `memory`.
const INTERNAL: [(&str, &[&str]); 2] =
    [("r1.tools.python", &["memory_mb", "disk_mb"]), ("r1.tools.table", &["memory_mb"])];

#[test]
fn fields_of_host_functions_and_their_declarations_agree() {
    for DeclaredFunction { name: function, names, .. } in read() {
        let entry = docs::find(function).unwrap_or_else(|| panic!("{function} is not declared"));
        let internal = INTERNAL.iter().find(|(of, _)| *of == function).map_or(&[][..], |(_, names)| names);
        let read: BTreeSet<&str> = names.into_iter().filter(|name| !internal.contains(name)).collect();
        let declared: BTreeSet<&str> = entry.field_names().into_iter().collect();
        assert_eq!(read, declared, "fields of {function}: read, and declared in lua/types/r1.d.luau");
    }
}

#[test]
fn every_function_with_declared_fields_is_compared() {
    let compared: Vec<&str> = read().into_iter().map(|function| function.name).collect();
    let with_fields = docs::all().filter(|entry| !entry.field_names().is_empty()).map(|entry| entry.name.as_str());
    let missing: Vec<&str> = with_fields.filter(|name| !compared.contains(name) && !ELSEWHERE.contains(name)).collect();
    assert!(missing.is_empty(), "add the names that they read to `read`: {missing:?}");
}

/// Defaults that the code fills in where the argument is used.
fn filled_in() -> Vec<(&'static str, &'static str, String)> {
    let seconds = |time: Duration| time.as_secs_f64().to_string();
    vec![
        ("r1.resource", "max_size", format!("{} MiB", resource_files::MOST)),
        ("r1.connection", "start_timeout", seconds(connection::SOCKET_START)),
        ("r1.connection", "restarts", connection::USUAL_RESTARTS.to_string()),
        ("r1.connection", "processes", 1.to_string()),
        ("r1.tools.search", "ef", search::CANDIDATES.to_string()),
        ("r1.tools.search", "rerank", search::RERANKED.to_string()),
        ("Index:search", "ef", search::CANDIDATES.to_string()),
        ("Index:search", "rerank", search::RERANKED.to_string()),
        ("r1.text.index", "column", "text".to_owned()),
        ("r1.tools.mcp", "scope", "run".to_owned()),
        ("r1.tools.python", "name", "python".to_owned()),
        ("r1.tools.python", "timeout", PythonOptions::default().timeout.to_string()),
        ("r1.tools.python", "memory", format!("{} MiB", PythonOptions::default().memory_mb)),
        ("r1.tools.python", "disk", format!("{} MiB", PythonOptions::default().disk_mb)),
        ("r1.tools.rhai", "name", "rhai".to_owned()),
        ("r1.tools.rhai", "timeout", RhaiOptions::default().timeout.to_string()),
        ("r1.tools.search", "name", "search".to_owned()),
        ("r1.tools.table", "name", "sql".to_owned()),
        ("r1.tools.table", "timeout", TableOptions::default().timeout.to_string()),
        ("r1.tools.table", "memory", format!("{} MiB", TableOptions::default().memory_mb)),
        ("r1.re.find", "from", 1.to_string()),
        ("TextIndex:search", "k", index::MOST.to_string()),
        ("Tables:describe", "preview", 0.to_string()),
        ("r1.rl.entropy", "temperature", 1.to_string()),
        ("LossBatch:draw", "seed", 0.to_string()),
        ("LossBatch:seq_mean", "unit", "trajectory".to_owned()),
        ("LossBatch:aggregate", "unit", "trajectory".to_owned()),
        ("r1.training", "runs", "runs".to_owned()),
        // `Some(false)` turns it off.
        ("r1.training", "reload", true.to_string()),
        ("Context:drop_images", "text", "[image removed]".to_owned()),
        ("r1.store.steps", "split", "train".to_owned()),
        ("r1.store.trajectories", "split", "train".to_owned()),
    ]
}

/// A default of a struct as text; `None` for types whose defaults are described in words.
fn shown(default: &dyn Any) -> Option<String> {
    fn as_text<T: 'static>(default: &dyn Any, show: impl Fn(&T) -> String) -> Option<String> {
        default.downcast_ref().map(show)
    }
    fn whole<const MIN: u64, const MAX: u64>(default: &dyn Any) -> Option<String> {
        as_text(default, |Whole(number): &Whole<MIN, MAX>| number.to_string())
    }
    fn bytes<const MAX: u64>(default: &dyn Any) -> Option<String> {
        as_text(default, |Bytes(number): &Bytes<MAX>| number.to_string())
    }
    as_text(default, bool::to_string)
        .or_else(|| as_text(default, usize::to_string))
        .or_else(|| as_text(default, f64::to_string))
        .or_else(|| as_text(default, String::clone))
        .or_else(|| as_text(default, |time: &Duration| time.as_secs_f64().to_string()))
        .or_else(|| as_text(default, |size: &Mebibytes| format!("{} MiB", size.0)))
        .or_else(|| as_text(default, |number: &NonNegative| number.0.to_string()))
        .or_else(|| as_text(default, |share: &index::Share| share.0.to_string()))
        .or_else(|| as_text(default, |temperature: &logprobs::Temperature| temperature.0.to_string()))
        .or_else(|| as_text(default, |retries: &tools::limits::Retries| retries.times.0.to_string()))
        .or_else(|| as_text(default, |cache: &tools::limits::CacheOption| cache.0.is_some().to_string()))
        .or_else(|| whole::<0, 10>(default))
        .or_else(|| whole::<1, ANY>(default))
        .or_else(|| whole::<0, { connection::RESTARTS }>(default))
        .or_else(|| whole::<1, { search::MOST_HITS as u64 }>(default))
        .or_else(|| bytes::<{ http::MOST_BYTES }>(default))
        .or_else(|| bytes::<{ process::MOST_OUTPUT }>(default))
}

/// Whether a text names the default: at its start, up to the next part of a sentence.
fn is_literal(named: &str) -> bool {
    named.starts_with(|letter: char| letter.is_ascii_digit() || letter == '"') || ["true", "false"].contains(&named)
}

/// The modules of `lua/` as one text without blanks.
fn modules() -> String {
    fn read(folder: &Path, text: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read(&path, text);
            } else if path.extension().is_some_and(|end| end == "lua") && !path.starts_with(folder.join("types")) {
                text.extend(std::fs::read_to_string(&path).unwrap().split_whitespace());
            }
        }
    }
    let mut text = String::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("lua"), &mut text);
    text
}

#[test]
fn defaults_in_the_declarations_are_those_of_the_code() {
    let (functions, filled_in, modules) = (read(), filled_in(), modules());
    let (mut compared, mut wrong) = (0, Vec::new());
    for entry in docs::all() {
        let function = functions.iter().find(|function| function.name == entry.name);
        for field in entry.params.iter().flat_map(|param| std::iter::once(param).chain(&param.fields)) {
            let name = field.bare();
            for named in field.doc.split("efault: ").skip(1) {
                let end = named.find([',', ';', ')']).unwrap_or(named.len());
                let named = named[..end].split(". ").next().unwrap_or_default();
                if !is_literal(named) {
                    continue;
                }
                compared += 1;
                let declared = function.and_then(|key| key.defaults.iter().find(|(key, _)| *key == name));
                let declared = declared.and_then(|(_, default)| shown(default.as_ref()));
                let elsewhere = filled_in.iter().find(|(of, key, _)| *of == entry.name && *key == name);
                match declared.or_else(|| elsewhere.map(|(.., default)| default.clone())) {
                    Some(declared) if meanings(named).iter().any(|named| meanings(&declared).contains(named)) => {}
                    None if ELSEWHERE.contains(&entry.name.as_str())
                        && modules.contains(&format!("{name}or{named}")) => {}
                    declared => wrong.push(format!("{}: `{name}` is said to be {named}: {declared:?}", entry.name)),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 40, "{compared}");
}
