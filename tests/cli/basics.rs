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
    threads 1
    cpu [cpu]
    instruction set [set]
    ");
}

/// OpenMP's threads wait for milliseconds by default, which blocks other processes and themselves.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn threads_wait_shortly_unless_the_user_decides() {
    let spins = |set: &[(&str, &str)]| {
        let mut command = super::r1(std::path::Path::new("."), &["version"]);
        command.env_remove("GOMP_SPINCOUNT").env_remove("OMP_WAIT_POLICY").env("OMP_DISPLAY_ENV", "verbose");
        let output = command.envs(set.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{set:?}: {output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        let line = text.lines().find(|line| line.contains("GOMP_SPINCOUNT")).expect(&text);
        line.split('\'').nth(1).unwrap().to_owned()
    };
    assert_eq!(spins(&[]), "1000");
    assert_eq!(spins(&[("GOMP_SPINCOUNT", "7")]), "7");
    assert_eq!(spins(&[("OMP_WAIT_POLICY", "passive")]), "0");
}

/// As in a container: two threads on one core would wait for each other.
#[cfg(target_os = "linux")]
#[test]
fn threads_are_limited_by_the_cores_of_the_process() {
    use std::os::unix::process::CommandExt;
    let mut command = super::r1(std::path::Path::new("."), &["version"]);
    command.env_remove("OMP_NUM_THREADS").env_remove("MKL_NUM_THREADS");
    // SAFETY: one system call with a set of CPUs on the stack, the first one that is allowed.
    unsafe {
        command.pre_exec(|| {
            let mut allowed: libc::cpu_set_t = std::mem::zeroed();
            let size = size_of::<libc::cpu_set_t>();
            libc::sched_getaffinity(0, size, &raw mut allowed);
            let first = (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, &allowed)).unwrap_or(0);
            libc::CPU_ZERO(&mut allowed);
            libc::CPU_SET(first, &mut allowed);
            libc::sched_setaffinity(0, size, &raw const allowed);
            Ok(())
        });
    }
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\nthreads 1\n"), "{text}");
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
      plan         Predict memory and time of a training step on a device, by parts
      eval         Evaluate one model or several on the held-out tasks of a recipe
      compare      Compare the metrics of runs: curves and final figures, in the terminal and as a
                   picture
      view         Show runs in a browser: curves, trajectories token by token, evaluations
      check        Test a recipe with scripted replies: report errors with their places and remedies
      infer        Chat with a model, or get one reply
      lua          Run a Lua program with access to tokenizers, templates, models and files
      repl         Debug a script interactively: reply as the policy, inspect states, tokens and
                   rewards, undo steps, set breakpoints
      replay       Replay stored trajectories with their recorded calls and compare observations,
                   rewards and statuses
      mcp          Serve the tools of a recipe to MCP clients, over standard input and output or HTTP
      new          Write a script from a template, and a test for it
      rerun        Repeat steps of a stored run from a checkpoint and report the first number that
                   differs
      rescore      Compute the rewards of stored trajectories with a changed script and compare them
                   with the old ones
      test         Run tests written in Lua
      traj         List, search, compare, export and check the stored trajectories of a run
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
      r1 infer --model runs/retool                 talk to what was trained, with its tools
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
