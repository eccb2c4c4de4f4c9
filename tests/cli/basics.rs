//! Help, version, and command lines that can't be parsed.

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
      run          Train a policy with reinforcement learning from a recipe
      sft          Fine-tune a policy on conversations from a recipe
      eval         Evaluate one model or several on the held-out tasks of a recipe
      compare      Compare the metrics of runs: curves and final figures, in the terminal and as a
                   picture
      check        Test a recipe with scripted replies: report errors with their places and remedies
      infer        Chat with a model, or get one reply
      lua          Run a Lua program with access to tokenizers, templates, models and files
      repl         Debug a script interactively: reply as the policy, inspect states, tokens and
                   rewards, undo steps, set breakpoints
      replay       Replay stored trajectories with their recorded calls and compare observations,
                   rewards and statuses
      mcp          Serve the tools of a recipe to MCP clients, over standard input and output or HTTP
      new          Write a script from a template, and a test for it
      rescore      Compute the rewards of stored trajectories with a changed script and compare them
                   with the old ones
      test         Run tests written in Lua
      index        Build and search an index of passages
      data         Download, convert, inspect, split and clean datasets
      doc          Show the Lua functions of r1: one function, a namespace, or all
      completions  Print a shell's completion script for commands, flags, files and settings
      man          Print the manual page of r1 or of a command, or write all pages
      version      Print the versions of r1 and libtorch, and the device
      help         Print this message or the help of the given subcommand(s)

    Options:
      -h, --help     Print help
      -V, --version  Print version

    Output:
      -q, --quiet     Print warnings and errors only
          --json      Print one JSON object per line on stdout, for programs
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
fn an_unknown_flag_is_a_json_error() {
    cli_snapshot!(["version", "--json", "--colour"], @r#"
    exit: 2
    --- stdout
    {"event":"error","kind":"usage","exit_code":2,"message":"unexpected argument '--colour' found","subject":{"argument":"--colour"},"place":null,"hint":null}
    "#);
}
