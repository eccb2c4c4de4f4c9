//! Tests that the fields read by functions are those declared in `script::docs`.

use std::collections::BTreeSet;

use super::arguments::Arguments;
use super::*;
use crate::script::docs;

/// The functions with named arguments, and the names that they read.
fn read() -> Vec<(&'static str, Vec<&'static str>)> {
    vec![
        ("r1.recipe", recipe::RecipeArguments::names()),
        ("r1.env", env::EnvArguments::names()),
        ("r1.format", format::FormatArguments::names()),
        ("r1.resource", resource::ResourceArguments::names()),
        ("r1.data.jsonl", data::FileArguments::names()),
        ("r1.data.csv", data::FileArguments::names()),
        ("r1.data.parquet", data::FileArguments::names()),
        ("r1.data.hf", data::HubOptions::names()),
        ("r1.data.generate", data::GenerateArguments::names()),
        ("r1.tool", tool::LuaToolArguments::names()),
        ("r1.tools.python", tool::PythonArguments::names()),
        ("r1.tools.search", search_tool::SearchArguments::names()),
        ("Index:search", search_index::IndexSearchOptions::names()),
        ("r1.tools.table", table::ToolTableArguments::names()),
        ("r1.table.open", table::OpenOptions::names()),
        ("r1.tools.rhai", tool::RhaiArguments::names()),
        ("r1.tools.mcp", mcp::McpArguments::names()),
        ("r1.call_tools", call::CallOptions::names()),
        ("Policy:generate", policy::ReplyOptions::names()),
        ("r1.generate", generate::GenerateArguments::names()),
        ("r1.logprobs", logprobs::LogprobsArguments::names()),
        ("r1.reward_model", reward_model::RewardModelArguments::names()),
        ("r1.connection", connection::ConnectionArguments::names()),
        ("Connection:request", connection::MessageOptions::names()),
        ("r1.http.get", http::RequestOptions::names()),
        ("r1.http.post", http::RequestOptions::names()),
        ("r1.http.request", http::RequestArguments::names()),
        ("r1.process.run", process::RunOptions::names()),
        ("r1.fs.write", fs::WriteOptions::names()),
        ("r1.text.index", index::IndexOptions::names()),
        ("r1.text.parse_tool_calls", text::ParseOptions::names()),
        ("r1.text.template", template::TemplateOptions::names()),
        ("Tokenizer:encode", tokenizer::EncodeOptions::names()),
        ("Tokenizer:decode", tokenizer::DecodeOptions::names()),
        ("r1.model", model::OpenOptions::names()),
        ("Model:generate", model::SampleOptions::names()),
        ("Model:logprobs", model::LogprobsOptions::names()),
        ("r1.store.steps", store::StepsOptions::names()),
        ("r1.store.trajectories", store::TrajectoriesOptions::names()),
        ("r1.store.write", store::WriteOptions::names()),
    ]
}

/// Functions of `lua/`, which read their named arguments there, and the options of a template,
/// which may have any name.
const ELSEWHERE: [&str; 15] = [
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
    for (function, names) in read() {
        let entry = docs::find(function).unwrap_or_else(|| panic!("{function} is not declared"));
        let internal = INTERNAL.iter().find(|(of, _)| *of == function).map_or(&[][..], |(_, names)| names);
        let read: BTreeSet<&str> = names.into_iter().filter(|name| !internal.contains(name)).collect();
        let declared: BTreeSet<&str> = entry.field_names().into_iter().collect();
        assert_eq!(read, declared, "fields of {function}: read, and declared in src/script/docs");
    }
}

#[test]
fn every_function_with_declared_fields_is_compared() {
    let compared: Vec<&str> = read().into_iter().map(|(function, _)| function).collect();
    let with_fields = docs::all().filter(|entry| !entry.field_names().is_empty()).map(|entry| entry.name);
    let missing: Vec<&str> = with_fields.filter(|name| !compared.contains(name) && !ELSEWHERE.contains(name)).collect();
    assert!(missing.is_empty(), "add the names that they read to `read`: {missing:?}");
}
