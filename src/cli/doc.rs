//! `r1 doc`: functions and types of scripts, modules, and settings of recipes.

use std::process::ExitCode;

use serde_json::json;

use super::args::{DocArgs, DocFormat, OutputArgs};
use super::print;
use crate::config::algorithms;
use crate::error::{Error, Kind, Result, nearest};
use crate::rl::advantages::Estimator;
use crate::rl::objective::PolicyLoss;
use crate::rl::reference::ReferenceRow;
use crate::script::docs;

pub(super) fn run(args: &DocArgs, output: OutputArgs) -> Result<ExitCode> {
    match args.format {
        DocFormat::Text => {}
        DocFormat::Luau => print(docs::luau())?,
        DocFormat::Luacats => print(&docs::luacats())?,
        DocFormat::Markdown => print(&docs::markdown())?,
    }
    if args.format != DocFormat::Text {
        return Ok(ExitCode::SUCCESS);
    }
    let Some(name) = &args.name else {
        if output.json {
            let functions: Vec<_> = docs::all().collect();
            let all = json!({ "functions": functions, "types": docs::named_types(), "modules": docs::modules() });
            print(&format!("{all}\n"))?;
        } else {
            print(&docs::list(docs::all()))?;
            print(&format!("\nModules: require(NAME), r1 doc NAME\n\n{}", docs::list_of_modules()))?;
            print(
                "\nSettings: r1 doc SECTION (policy, data, sampling, env, rollout, trainer, eval, checkpoint, limits)\n",
            )?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    // `trainer`, `data` and others are both functions and sections of settings.
    let section = docs::find_settings(name).into_iter().filter(|setting| setting.is_below(name)).collect::<Vec<_>>();
    let also = match section.as_slice() {
        [] => String::new(),
        section => format!("\nsettings\n\n{}", docs::settings_page(section)),
    };
    let module_page = |module: &docs::Module| if output.json { format!("{}\n", json!(module)) } else { module.page() };
    // The function that a module returns has the module's name.
    if let Some(module) = docs::module(name).filter(|_| name.starts_with('@')) {
        print(&module_page(module))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(entry) = docs::find(name) {
        // `grpo` and `ppo` are functions and algorithms.
        let file = crate::algorithms::find(name).map(|file| format!("\nalgorithm\n\n{}", file.source));
        let page = || format!("{}{also}{}", entry.page(), file.unwrap_or_default());
        print(&if output.json { format!("{}\n", json!(entry)) } else { page() })?;
        return Ok(ExitCode::SUCCESS);
    }
    let below = docs::below(name);
    if !below.is_empty() {
        print(&if output.json { format!("{}\n", json!(below)) } else { format!("{}{also}", docs::list(below)) })?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(page) = docs::type_page(name).filter(|_| !output.json) {
        print(&page)?;
        return Ok(ExitCode::SUCCESS);
    }
    let settings = docs::find_settings(name);
    if !settings.is_empty() {
        let page = || format!("{}{}", docs::settings_page(&settings), values(name));
        print(&if output.json { format!("{}\n", json!(settings)) } else { page() })?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(module) = docs::module(name) {
        print(&module_page(module))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(file) = crate::algorithms::find(name) {
        let page = json!({ "algorithm": name, "paper": file.paper, "source": file.source });
        print(&if output.json { format!("{page}\n") } else { file.source.to_owned() })?;
        return Ok(ExitCode::SUCCESS);
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

/// The values of a setting that is the name of another declaration: algorithms, estimators and
/// losses.
fn values(setting: &str) -> String {
    let rows: Vec<(&str, String)> = match setting {
        "trainer.algorithm" => algorithms::papers().map(|(name, paper)| (name, paper.to_owned())).collect(),
        "trainer.estimator" => Estimator::reference().map(described).collect(),
        "trainer.loss" => PolicyLoss::reference().map(described).collect(),
        _ => return String::new(),
    };
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<String> = rows.iter().map(|(name, about)| format!("  {name:width$}  {about}\n")).collect();
    format!("\n{}\nTables with options: docs/reference/algorithms.md\n", lines.concat())
}

fn described(ReferenceRow { name, paper, about, .. }: ReferenceRow) -> (&'static str, String) {
    (name, format!("{} ({paper})", about.replace('`', "")))
}
