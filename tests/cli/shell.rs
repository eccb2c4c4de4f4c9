//! `r1 completions` and `r1 man`.

use std::process::Command;

use super::{cli_snapshot, directory, fail, succeed};

/// The completions that bash offers for the last of `words`, with the script printed by r1.
fn offered(line: &[&str]) -> Vec<String> {
    let dir = directory(&[("a.lua", ""), ("b.txt", "")], false);
    std::fs::create_dir_all(dir.path().join("runs/retool")).unwrap();
    std::fs::write(dir.path().join("runs/retool/recipe.lua"), "").unwrap();
    let last = line.last().unwrap();
    let code = format!(
        "source <({} completions bash); COMP_WORDS=({}); COMP_CWORD={}; COMP_LINE='{}'; COMP_POINT=${{#COMP_LINE}}; \
         COMP_WORDBREAKS=$' \\t\\n\"\\'><=;|&(:'; $(complete -p r1 | sed 's/.*-F \\([^ ]*\\).*/\\1/') r1 \"$1\" x; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        env!("CARGO_BIN_EXE_r1"),
        line.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        line.len() - 1,
        line.join(" ").replace(" = ", "="),
    );
    let output = Command::new("bash")
        .args(["-c", &code, "bash", last.trim_start_matches('=')])
        .current_dir(dir.path())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_shell_completes_commands_flags_files_and_settings() {
    assert_eq!(offered(&["r1", "rep"]), ["repl", "replay"]);
    assert_eq!(offered(&["r1", "run", "--res"]), ["--resume", "--resume-from"]);
    let files = offered(&["r1", "run", ""]);
    assert!(files.contains(&"a.lua".to_owned()) && !files.contains(&"b.txt".to_owned()), "{files:?}");
    assert_eq!(offered(&["r1", "run", "a.lua", "policy.lora.rank_"]), ["policy.lora.rank_stabilized="]);
    assert_eq!(offered(&["r1", "new", "x", "--template", "g"]), ["game"]);
    assert_eq!(offered(&["r1", "infer", "--model", "r1-"]), ["r1-nano"]);
    assert_eq!(offered(&["r1", "replay", "ret"]), ["retool"]);
    assert_eq!(offered(&["r1", "doc", "r1.math_e"]), ["r1.math_equal"]);
    assert_eq!(offered(&["r1", "doc", "@r1/vo"]), ["@r1/vote", "@r1/vote.majority", "@r1/vote.flow"]);
}

#[test]
fn commands_of_other_tools_name_those_of_r1() {
    for (typed, instead) in [
        ("chat", "r1 infer --model RUN"),
        ("train", "r1 run SCRIPT"),
        ("show", "r1 compare RUN"),
        ("serve", "vllm serve"),
        ("dpo", "there is no preference training"),
    ] {
        let dir = directory(&[], false);
        let error = fail(dir.path(), &[typed, "runs/x"]);
        assert!(error.contains(&format!("there is no command `{typed}`")) && error.contains(instead), "{error}");
    }
}

/// Bash breaks words at `=`, and inserts completions after it.
#[test]
fn a_shell_completes_values_behind_their_key() {
    assert_eq!(offered(&["r1", "run", "a.lua", "policy.dtype", "=", ""]), ["auto", "bf16", "f32"]);
    assert_eq!(offered(&["r1", "run", "a.lua", "seed=3", "policy.dtype", "=", "b"]), ["bf16"]);
    assert_eq!(offered(&["r1", "new", "x", "--template", "=", "g"]), ["game"]);
    assert_eq!(offered(&["r1", "run", "a.lua", "trainer.lr", "=", ""]), [""]);
}

#[test]
fn shell_completions_exist_for_known_shells() {
    let dir = directory(&[], false);
    for (shell, begin) in [("zsh", "#compdef r1"), ("fish", "complete --keep-order"), ("elvish", "")] {
        let script = succeed(dir.path(), &["completions", shell]);
        assert!(script.starts_with(begin) && script.contains("R1_COMPLETE"), "{shell}: {script}");
    }
    let error = fail(dir.path(), &["completions", "tcsh"]);
    assert!(error.contains("[possible values: bash, elvish, fish, powershell, zsh]"), "{error}");
}

#[test]
fn manual_pages_match_the_commands() {
    let dir = directory(&[], false);
    let page = succeed(dir.path(), &["man"]);
    assert!(page.contains(".TH r1 1") && page.contains("r1\\-run(1)"), "{page}");
    let page = succeed(dir.path(), &["man", "run"]);
    assert!(page.contains(".TH r1-run 1") && page.contains("\\-\\-resume"), "{page}");
    succeed(dir.path(), &["man", "--dir", "man1"]);
    for name in ["r1.1", "r1-run.1", "r1-infer.1"] {
        assert!(dir.path().join("man1").join(name).is_file(), "{name}");
    }
    cli_snapshot!(["man", "rum"], @"
    exit: 2
    --- stderr
    error: there is no command `rum`
      hint: did you mean `run`?
    ");
}
