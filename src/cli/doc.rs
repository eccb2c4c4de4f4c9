//! `r1 doc`: functions and types of scripts, modules, and settings of recipes.

use serde_json::{Value, json};

use super::args::{DocArgs, DocFormat, OutputArgs};
use super::{print, print_json, print_report};
use crate::config::algorithms;
use crate::error::{Error, Kind, Result, nearest};
use crate::rl::advantages::Estimator;
use crate::rl::objective::PolicyLoss;
use crate::rl::reference::ReferenceRow;
use crate::schema::Setting;
use crate::script::docs;
use crate::telemetry::ReportStyle;

pub(super) fn run(args: &DocArgs, output: OutputArgs) -> Result<()> {
    match args.format {
        DocFormat::Text => {}
        DocFormat::Luau => return print(docs::luau()),
        DocFormat::Luacats => return print(&docs::luacats()),
        DocFormat::Markdown => return print(&docs::markdown()),
    }
    let shown = |result: Value, text: Value| if output.json { print_json(result) } else { page(&text) };
    let Some(name) = &args.name else {
        let functions: Vec<_> = docs::all().collect();
        let all = json!({ "functions": functions, "types": docs::named_types(), "modules": docs::modules() });
        let module = |module: &docs::Module| json!({ "name": module.name, "summary": module.summary() });
        let modules: Vec<Value> = docs::modules().iter().map(module).collect();
        let functions: Vec<Value> = docs::all().map(entry).collect();
        return shown(all, json!({ "everything": { "functions": functions, "modules": modules } }));
    };
    // The function that a module returns has the module's name.
    if let Some(module) = docs::module(name).filter(|_| name.starts_with('@')) {
        return shown(json!(module), module_page(module));
    }
    // `trainer`, `data` and others are both functions and sections of settings.
    let section: Vec<_> = docs::find_settings(name).into_iter().filter(|setting| setting.is_below(name)).collect();
    let also = Some(settings_page(&section)).filter(|_| !section.is_empty());
    if let Some(function) = docs::find(name) {
        // `grpo` and `ppo` are functions and algorithms.
        let file = crate::algorithms::find(name).map(|file| &file.source);
        return shown(json!(function), json!({ "entry": entry(function), "also": also, "algorithm": file }));
    }
    let below = docs::below(name);
    if !below.is_empty() {
        let list: Vec<Value> = below.iter().copied().map(entry).collect();
        return shown(json!(below), json!({ "list": list, "also": also }));
    }
    if let Some(named) = docs::find_type(name).filter(|_| !output.json) {
        return shown(Value::Null, json!({ "type": named }));
    }
    let settings = docs::find_settings(name);
    if !settings.is_empty() {
        return shown(json!(settings), json!({ "settings": settings_page(&settings), "values": values(name) }));
    }
    if let Some(module) = docs::module(name) {
        return shown(json!(module), module_page(module));
    }
    if let Some(file) = crate::algorithms::find(name) {
        return if output.json {
            print_json(json!({ "algorithm": name, "paper": file.paper, "source": file.source }))
        } else {
            print(file.source)
        };
    }
    let error = Error::new(Kind::Usage, format!("there is no function, type, module or setting `{name}`"));
    if let Some(hint) = docs::settings_hint(name) {
        return Err(error.hint(hint));
    }
    let near = nearest(name, crate::algorithms::all().iter().map(|file| file.name));
    let names = docs::like(name).into_iter().take(3).chain(near);
    let like: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    Err(match like.as_slice() {
        [] => error.hint("`r1 doc` lists them all"),
        like => error.hint(format!("did you mean {}?", like.join(" or "))),
    })
}

fn page(result: &Value) -> Result<()> {
    print_report(include_str!("../../lua/reports/doc.lua"), result, ReportStyle::default())
}

fn entry(entry: &docs::Entry) -> Value {
    let mut shown = json!(entry);
    shown["signature"] = entry.signature().into();
    shown["space"] = entry.space().into();
    shown["summary"] = entry.summary().into();
    shown
}

fn module_page(module: &docs::Module) -> Value {
    let entries: Vec<Value> = module.entries.iter().map(entry).collect();
    let all: Vec<Value> = module.all().map(entry).collect();
    json!({ "module": { "name": module.name, "doc": module.doc, "entries": entries, "all": all } })
}

fn settings_page(settings: &[&Setting]) -> Value {
    let shown = settings.iter().map(|setting| {
        let mut shown = json!(setting);
        shown["needed"] = setting.needed().into();
        shown["changes"] = setting.reload.words().into();
        shown
    });
    shown.collect()
}

/// The values of a setting that is the name of another declaration: algorithms, estimators and
/// losses.
fn values(setting: &str) -> Option<Vec<(&'static str, String)>> {
    match setting {
        "trainer.algorithm" => Some(algorithms::papers().map(|(name, paper)| (name, paper.to_owned())).collect()),
        "trainer.estimator" => Some(Estimator::reference().map(described).collect()),
        "trainer.loss" => Some(PolicyLoss::reference().map(described).collect()),
        _ => None,
    }
}

fn described(ReferenceRow { name, paper, about, .. }: ReferenceRow) -> (&'static str, String) {
    (name, format!("{} ({paper})", about.replace('`', "")))
}
