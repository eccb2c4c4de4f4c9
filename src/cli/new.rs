//! `r1 new`: writes a script from a template, and a test for it.

use std::path::{Component, Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::json;

use super::args::OutputArgs;
use super::completers::algorithm_files;
use super::editor::{self, put};
use super::{print, print_json};
use crate::algorithms;
use crate::error::{Error, Kind, Result, suggest};

/// Write a script from a template, and a test for it
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 new adder                            adder.lua and adder_test.lua
  r1 new scripts/maze --template game
  r1 new my_loss --algorithm gspo         my_loss.lua, a copy of GSPO to change")]
pub(super) struct NewArgs {
    /// Name or path of the script
    pub(super) name: PathBuf,
    /// The template
    #[arg(long, short, value_enum, default_value = "tool")]
    pub(super) template: NewTemplate,
    /// Write a copy of an algorithm of r1 instead, for `r1.trainer { algorithm = require("NAME") }`
    #[arg(long, value_name = "ALGORITHM", conflicts_with = "template", add = algorithm_files())]
    pub(super) algorithm: Option<String>,
    /// Do not write files for editors: types of r1, settings of luau-lsp, lua-language-server and
    /// stylua
    #[arg(long)]
    pub(super) no_editor_files: bool,
}

/// The templates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum NewTemplate {
    /// A tool in Lua, the default env, exact-match rewards
    Tool,
    /// A custom env: state, step, rewards per step
    Env,
    /// A board game
    Game,
    /// Questions for a policy with a search tool
    Search,
    /// Programs graded by hidden tests
    Code,
}

impl NewTemplate {
    /// A data file of the script: the suffix of its name, and its text.
    fn data(self) -> Option<(&'static str, &'static str)> {
        (self == Self::Search).then_some(("_pages.jsonl", include_str!("../../lua/templates/search_pages.jsonl")))
    }

    /// The script and its test.
    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Tool => {
                (include_str!("../../lua/templates/tool.lua"), include_str!("../../lua/templates/tool_test.lua"))
            }
            Self::Env => {
                (include_str!("../../lua/templates/env.lua"), include_str!("../../lua/templates/env_test.lua"))
            }
            Self::Game => {
                (include_str!("../../lua/templates/game.lua"), include_str!("../../lua/templates/game_test.lua"))
            }
            Self::Search => {
                (include_str!("../../lua/templates/search.lua"), include_str!("../../lua/templates/search_test.lua"))
            }
            Self::Code => {
                (include_str!("../../lua/templates/code.lua"), include_str!("../../lua/templates/code_test.lua"))
            }
        }
    }
}

pub(super) fn run(args: &NewArgs, output: OutputArgs) -> Result<()> {
    let stem = args.name.with_extension("");
    let name = stem.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if name.is_empty() || name.starts_with('.') {
        return Err(Error::new(Kind::Usage, format!("`{}` can't be the name of a script", args.name.display())));
    }
    let script = stem.with_file_name(format!("{name}.lua"));
    if let Some(algorithm) = &args.algorithm {
        return copy_algorithm(algorithm, &script, output);
    }
    let test = stem.with_file_name(format!("{name}_test.lua"));
    let (template, checks) = args.template.texts();
    let fill = |text: &str| {
        text.replace("{{name}}", &name)
            .replace("{{file}}", &script.display().to_string())
            .replace("{{test}}", &test.display().to_string())
            .replace("{{script}}", &format!("{name}.lua"))
    };
    let data = args.template.data().map(|(end, text)| (stem.with_file_name(format!("{name}{end}")), text));
    let files: Vec<&PathBuf> = [&script, &test].into_iter().chain(data.as_ref().map(|(path, _)| path)).collect();
    for path in &files {
        refuse_existing(path)?;
    }
    put(&script, &fill(template))?;
    put(&test, &fill(checks))?;
    if let Some((path, text)) = &data {
        put(path, text)?;
    }
    let editor = if args.no_editor_files { Vec::new() } else { editor::write(&root_of(&script))? };
    if output.json {
        return print_json(json!({ "event": "new", "files": files, "editor_files": editor }));
    }
    let list: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    let names: Vec<String> = editor.iter().map(|path| path.display().to_string()).collect();
    let for_editors = if names.is_empty() { String::new() } else { format!("for editors: {}\n", names.join(", ")) };
    let (list, script, test) = (list.join("\n"), script.display(), test.display());
    print(&format!(
        "{list}\n{for_editors}next\n  r1 check {script}\n  r1 test {test}\n  r1 repl {script}\n  r1 run {script}\n"
    ))
}

/// Writes the file of an algorithm of r1.
fn copy_algorithm(name: &str, script: &Path, output: OutputArgs) -> Result<()> {
    let Some(file) = algorithms::find(name) else {
        let algorithm_names = algorithms::all().iter().map(|file| file.name);
        let error = Error::new(Kind::Usage, format!("there is no algorithm `{name}`"));
        return Err(error.hint(suggest(name, algorithm_names.collect::<Vec<_>>())));
    };
    refuse_existing(script)?;
    put(script, file.source)?;
    if output.json {
        return print_json(json!({ "event": "new", "files": [script] }));
    }
    let module = script.file_stem().unwrap_or_default().to_string_lossy();
    print(&format!(
        "{}\nin a recipe next to it\n  trainer = r1.trainer {{ algorithm = require(\"{module}\") }}\n",
        script.display()
    ))
}

/// Refuses to write over a file.
pub(super) fn refuse_existing(path: &Path) -> Result<()> {
    if path.exists() {
        return Err(Error::new(Kind::Usage, "the file exists already").at_path(path).hint("give another name"));
    }
    Ok(())
}

/// The folder of the editor's project: the current directory, or the script's own if it is outside.
fn root_of(script: &Path) -> PathBuf {
    let below = script.is_relative() && script.components().all(|part| part != Component::ParentDir);
    let parent = script.parent().map(Path::to_owned).unwrap_or_default();
    if below { PathBuf::new() } else { parent }
}
