//! Runs the commands of README.md and docs/reference/commands.md in order, in a directory with the
//! repository's scripts, with settings that shorten them. src/cli/documented.rs checks the commands
//! of all pages with the parser.

use std::collections::BTreeSet;
use std::path::Path;

use super::{r1, shown};

/// Commands that access other hosts, wait for clients, read files that are not there, or write into
/// the repository: only the parser checks them.
const OUTSIDE: [&str; 10] = [
    "--hf ",
    "--api-base ",
    "Qwen/",
    "r1 index ",
    "r1 mcp ",
    "r1 view ",
    " train.jsonl",
    "r1 data show",
    "--resume",
    "--out models/",
];

/// Prefixes of commands, and the settings that shorten them.
const SHORT: [(&str, &[&str]); 4] = [
    (
        "r1 run",
        &[
            "-q",
            "--threads=1",
            "trainer.steps=1",
            "trainer.groups_per_step=2",
            "trainer.group_size=2",
            "trainer.branch.roots=0",
            "eval.before=false",
            "eval.after=false",
            "sampling.max_new_tokens=8",
        ],
    ),
    (
        "r1 sft",
        &["-q", "--threads=1", "trainer.steps=1", "trainer.batch_size=2", "eval.before=false", "eval.after=false"],
    ),
    ("r1 check --masks", &["sampling.max_new_tokens=8"]),
    ("r1 infer", &["--max-new-tokens=4"]),
];

/// The `r1` commands in the fenced blocks of shell commands of both pages, without their comments.
fn commands() -> Vec<String> {
    let pages = [include_str!("../../README.md"), include_str!("../../docs/reference/commands.md")];
    let mut commands: Vec<String> = Vec::new();
    let (mut fenced, mut shell, mut open) = (false, false, false);
    for line in pages.into_iter().flat_map(str::lines) {
        if let Some(language) = line.strip_prefix("```") {
            fenced = !fenced;
            shell = fenced && ["", "sh", "bash"].contains(&language);
        } else if shell && (line.starts_with("r1 ") || open) {
            let text = line.split("  #").next().unwrap_or_default().trim().to_owned();
            if open {
                commands.last_mut().unwrap().push_str(&text);
            } else {
                commands.push(text);
            }
            open = line.ends_with('\\');
        }
    }
    let mut seen = BTreeSet::new();
    commands.retain(|command| seen.insert(command.clone()));
    commands
}

#[cfg(unix)]
#[test]
fn the_commands_of_the_readme_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().unwrap();
    for folder in ["scripts", "models"] {
        std::os::unix::fs::symlink(root.join(folder), dir.path().join(folder)).unwrap();
    }
    // Modules are searched next to the script, without following links.
    std::fs::create_dir(dir.path().join("lib")).unwrap();
    std::fs::copy(root.join("scripts/lib/problems.lua"), dir.path().join("lib/problems.lua")).unwrap();
    std::fs::copy(root.join("scripts/retool.lua"), dir.path().join("new.lua")).unwrap();
    let mut ran = 0;
    for command in commands() {
        if OUTSIDE.iter().any(|outside| command.contains(outside)) {
            continue;
        }
        // README's run is longer than the one here.
        let typed = command.replace("12-3-0", "1-0-0").replace("retool@40", "retool@1");
        let typed = typed.replace("--resume-from 40", "--resume-from 1");
        let mut arguments: Vec<String> = Vec::new();
        for (index, part) in typed.split(['"', '\'']).enumerate() {
            // Quotes are not nested there, except in the program of `r1 lua`.
            if typed.starts_with("r1 lua") {
                arguments = vec!["lua".into(), "-e".into(), "return r1.model(\"r1-nano\"):config()".into()];
                break;
            }
            if index % 2 == 1 {
                arguments.push(part.to_owned());
            } else {
                arguments.extend(part.split_whitespace().map(str::to_owned));
            }
        }
        arguments.retain(|word| word != "r1");
        let short = SHORT.iter().find(|(begin, _)| typed.starts_with(begin)).map_or(&[][..], |(_, more)| more);
        // Shortened sizes take precedence over README's settings of sizes, but not of algorithms.
        arguments.extend(short.iter().map(|word| (*word).to_owned()));
        let is_script = |word: &&String| Path::new(word).extension().is_some_and(|extension| extension == "lua");
        let script = arguments.iter().find(is_script).map(|word| dir.path().join(word));
        let text = script.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        if typed.starts_with("r1 run") && text.contains("cold_start = {") {
            arguments.push("cold_start.trainer.steps=1".to_owned());
        }
        if typed.starts_with("r1 infer") && !typed.contains(" -p ") {
            arguments.extend(["-p", "What is 2 + 2?"].map(str::to_owned));
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = r1(dir.path(), &arguments).output().unwrap();
        assert!(output.status.success(), "{command}\n{arguments:?}\n{}", shown(dir.path(), &output));
        ran += 1;
    }
    assert!(ran > 20, "only {ran} commands ran");
    assert!(dir.path().join("runs/retool/metrics.jsonl").is_file() && dir.path().join("my_game.lua").is_file());
}
