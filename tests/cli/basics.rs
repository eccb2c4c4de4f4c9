//! Help, version, and lines that can't be parsed.

use super::cli_snapshot;

#[test]
fn version() {
    cli_snapshot!(["--version"], @"
    exit: 0
    --- stdout
    r1 [version] (libtorch [version])
    ");
    cli_snapshot!(["version"], @"
    exit: 0
    --- stdout
    r1 [version] (libtorch [version])
    device [device]
    ");
}

#[test]
fn help() {
    cli_snapshot!(["--help"], @r#"
    exit: 0
    --- stdout
    Train and run LLM agents with reinforcement learning, scripted in Lua

    Usage: r1 [OPTIONS] <COMMAND>

    Commands:
      run          Train a policy with reinforcement learning, as a recipe says
      sft          Fine-tune a policy on conversations, as a recipe says
      check        Try a recipe out with scripted replies: what breaks its contract, where, and what to
                   do
      infer        Talk to a model, or ask it one question
      lua          Run a Lua program in the host: tokenizers, templates, models, files
      repl         Try a script by hand: be the policy, look at states, tokens and rewards, take steps
                   back, stop at lines
      replay       Run stored trajectories again, against their record: observations, rewards and
                   statuses must be the same
      new          Write a script to begin with, and a test for it
      rescore      Give stored trajectories the rewards of a changed script, beside the old ones
      test         Run tests written in Lua
      doc          Show what scripts can call: a function, a namespace, or all of them
      completions  Print the script that completes commands, flags, files and settings in a shell
      man          Print the manual page of r1 or of a command, or write all pages
      version      Print the versions of r1 and libtorch, and the device
      help         Print this message or the help of the given subcommand(s)

    Options:
      -h, --help     Print help
      -V, --version  Print version

    Output:
      -q, --quiet     Print warnings and errors only
          --json      Print one JSON object a line on stdout, for programs
          --no-color  Print without colour (NO_COLOR does the same)

    Examples:
      r1 run scripts/retool.lua                    train the embedded model to use a tool
      r1 run scripts/retool.lua trainer.lr=2e-6    the same with another learning rate
      r1 infer --model runs/retool                 talk to what was trained
    "#);
}

#[test]
fn unknown_subcommand() {
    cli_snapshot!(["rnu"], @"
    exit: 2
    --- stderr
    error: unrecognized subcommand 'rnu'

    Usage: r1 [OPTIONS] <COMMAND>

    For more information, try '--help'.
    ");
}

#[test]
fn unknown_flag_as_json() {
    cli_snapshot!(["version", "--json", "--colour"], @r#"
    exit: 2
    --- stdout
    {"event":"error","kind":"usage","exit_code":2,"message":"unexpected argument '--colour' found","subject":null,"place":null,"hint":null}
    "#);
}
