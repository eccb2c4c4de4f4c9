//! Ctrl-C, SIGTERM and SIGHUP during a run; a limit on file sizes.
#![cfg(unix)]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::recipe::recipe;
use super::running::Running;
use super::{directory, shown, succeed};

/// A run whose first step is quick; later steps wait `seconds` in every trajectory.
fn waiting(seconds: &str) -> String {
    let reset = format!(
        "function(task)
      count = count + 1
      if count > 4 then r1.sleep({seconds}) end
      return {{ messages = {{ r1.user(task.prompt) }} }}
    end"
    );
    let fields = recipe(&[
        ("env", &format!("r1.env {{ format = 'retool', reset = {reset} }}")),
        ("rollout", "{ workers = 1 }"),
        ("trainer", "r1.grpo { steps = 1000, group_size = 2, groups_per_step = 2, lr = 1e-3 }"),
    ]);
    format!("local count = 0\n{fields}")
}

/// Starts a command and waits for the line of the first step.
fn after_a_step(dir: &Path, args: &[&str], run: &Path) -> Running {
    let running = Running::start(dir, args);
    running.until_lines(&run.join("metrics.jsonl"), 1);
    running
}

/// After the second signal unfinished trajectories are dropped, and the steps trained before are
/// saved.
#[test]
fn a_second_ctrl_c_saves_a_checkpoint_and_exits() {
    let dir = directory(&[("a.lua", &waiting("50"))], true);
    let run = dir.path().join("runs/a");
    let (running, sent) = loop {
        let running = after_a_step(dir.path(), &["run", "a.lua", "-q"], &run);
        let sent = Instant::now();
        running.send(libc::SIGINT);
        running.until_reported("stopping ");
        if running.stderr().contains("stopping after this step; press Ctrl-C again to stop at once") {
            break (running, sent);
        }
        // The signal came before the next step began.
        drop(running);
        fs::remove_dir_all(&run).unwrap();
    };
    running.send(libc::SIGINT);
    let output = running.end();
    let reported = String::from_utf8_lossy(&output.stderr);
    assert!(reported.contains("stopping at once: writing a checkpoint of step 1"), "{reported}");
    assert!(sent.elapsed() < Duration::from_secs(40), "it waited for the trajectories");
    assert_eq!(output.status.code(), Some(130), "{}", shown(dir.path(), &output));
    let (step, checkpoint) = r1::store::latest_checkpoint(&run).unwrap().unwrap();
    assert_eq!((step, r1::store::RunProgress::load(&checkpoint).unwrap().step), (1, 1));
}

/// SIGTERM and SIGHUP end a run after its step; the printed command resumes it.
#[test]
fn a_signal_ends_a_run_after_its_step_and_the_printed_command_resumes() {
    for signal in [libc::SIGTERM, libc::SIGHUP] {
        let dir = directory(&[], true);
        fs::create_dir(dir.path().join("my scripts")).unwrap();
        fs::write(dir.path().join("my scripts/a b.lua"), waiting("1")).unwrap();
        let args =
            ["run", "my scripts/a b.lua", "trainer.steps=3", "trainer.lr=2e-3", "--threads", "1", "--out", "last one"];
        let run = dir.path().join("runs/a b");
        let running = after_a_step(dir.path(), &args, &run);
        running.send(signal);
        let output = running.end();
        // The step may have ended by now; then it stops when the checkpoint is written.
        assert!(shown(dir.path(), &output).contains("stopping "), "{}", shown(dir.path(), &output));
        assert_eq!(output.status.code(), Some(130), "{}", shown(dir.path(), &output));
        let (step, _) = r1::store::latest_checkpoint(&run).unwrap().unwrap();
        assert!((1..3).contains(&step), "{step}");
        let reported = String::from_utf8(output.stdout).unwrap();
        let command = reported.lines().map(str::trim).find(|line| line.starts_with("r1 run")).unwrap();
        assert_eq!(command, "r1 run 'my scripts/a b.lua' --resume 'runs/a b' --out 'last one' --threads 1");
        // As a shell parses it.
        let path = Path::new(env!("CARGO_BIN_EXE_r1")).parent().unwrap();
        let path = format!("{}:{}", path.display(), std::env::var("PATH").unwrap());
        let output = Command::new("sh")
            .args(["-c", command])
            .current_dir(dir.path())
            .env("PATH", path)
            .env("OMP_NUM_THREADS", "1")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", shown(dir.path(), &output));
        let reported = String::from_utf8_lossy(&output.stderr);
        assert!(reported.contains(&format!("resuming runs/a b from step {step} (")), "{reported}");
        let left = format!("training {} of 3 steps of 2 groups of 2 trajectories, lr 0.002", 3 - step);
        assert!(reported.contains(&left), "{reported}");
        assert!(
            run.join("checkpoints/step-000003").is_dir() && dir.path().join("last one/model.safetensors").is_file()
        );
    }
}

/// A loop in Lua ends as a run does: after its step, with a checkpoint, which another program
/// continues.
#[test]
fn ctrl_c_ends_a_loop_in_lua_after_its_step() {
    let program = r#"
local t = r1.training("a.lua", { name = "loop", resume = arg[1] })
if arg[1] then print(t.step) return end
while true do t:update(t:rollout()) t:next_step() end
"#;
    let dir = directory(&[("a.lua", &waiting("1")), ("loop.lua", program)], true);
    let run = dir.path().join("runs/loop");
    let running = after_a_step(dir.path(), &["lua", "loop.lua"], &run);
    running.send(libc::SIGINT);
    let output = running.end();
    let reported = shown(dir.path(), &output);
    assert_eq!(output.status.code(), Some(130), "{reported}");
    // Which one depends on what the loop does at this moment.
    let messages = ["stopping after this step; press Ctrl-C again to stop at once", "stopping when the checkpoint"];
    assert!(messages.iter().any(|message| reported.contains(message)), "{reported}");
    let (step, _) = r1::store::latest_checkpoint(&run).unwrap().unwrap();
    let continues = format!("step-{step:06}; continue with r1.training(…, {{ resume = \"runs/loop\" }})");
    assert!(reported.contains(&continues), "{reported}");
    assert_eq!(succeed(dir.path(), &["lua", "loop.lua", "runs/loop"]), format!("{step}\n"));
}

/// The system would end the process without a message.
#[test]
fn a_limit_of_file_sizes_is_named() {
    let dir = directory(&[("a.lua", &waiting("0"))], true);
    let run = format!("ulimit -f 20 && exec '{}' run a.lua -q trainer.steps=1", env!("CARGO_BIN_EXE_r1"));
    let output = Command::new("sh")
        .args(["-c", &run])
        .current_dir(dir.path())
        .env("OMP_NUM_THREADS", "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(8), "{}", shown(dir.path(), &output));
    let reported = String::from_utf8_lossy(&output.stderr);
    assert!(reported.contains("file too large") && reported.contains("ulimit -f"), "{reported}");
}
