//! Ctrl-C, SIGTERM and SIGHUP during a run; a limit on file sizes.
#![cfg(unix)]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::{directory, r1, shown};

/// A run whose first step is quick; later steps wait `seconds` in every trajectory.
fn recipe(seconds: &str) -> String {
    format!(
        r#"
local count = 0
return r1.recipe {{
  env = r1.env {{
    format = "retool",
    reset = function(task)
      count = count + 1
      if count > 4 then r1.sleep({seconds}) end
      return {{ messages = {{ r1.user(task.prompt) }} }}
    end,
  }},
  reward = function(state, outcome) return #outcome.text % 2 end,
  policy = {{ model = "model" }},
  data = {{ train = r1.data.generate {{ count = 8, row = function(index) return {{ prompt = "Say " .. index }} end }} }},
  sampling = {{ max_new_tokens = 4 }},
  rollout = {{ workers = 1 }},
  trainer = r1.grpo {{ steps = 1000, group_size = 2, groups_per_step = 2, lr = 1e-3 }},
}}
"#
    )
}

fn start(dir: &Path, args: &[&str]) -> Child {
    r1(dir, args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for the first step's line.
fn first_step(run: &Path) {
    let begun = Instant::now();
    while fs::read_to_string(run.join("metrics.jsonl")).map_or(0, |text| text.lines().count()) < 1 {
        assert!(begun.elapsed() < Duration::from_mins(5), "the run does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn send(child: &Child, signal: libc::c_int) {
    // SAFETY: the child is ours and has not been waited for.
    unsafe { libc::kill(i32::try_from(child.id()).unwrap(), signal) };
}

/// Reads stderr up to a line with these words.
fn read_until(child: &mut Child, expected: &str) -> String {
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut received = String::new();
    while !received.contains(expected) {
        assert!(stderr.read_line(&mut received).unwrap() > 0, "`{expected}` was not reported: {received}");
    }
    child.stderr = Some(stderr.into_inner());
    received
}

fn end(mut child: Child) -> Output {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_end(&mut err).unwrap();
    Output { status: child.wait().unwrap(), stdout: out, stderr: err }
}

/// After the second signal unfinished trajectories are dropped, and the steps trained before are
/// saved.
#[test]
fn a_second_ctrl_c_saves_a_checkpoint_and_exits() {
    let dir = directory(&[("a.lua", &recipe("50"))], true);
    let mut child = start(dir.path(), &["run", "a.lua", "-q"]);
    let run = dir.path().join("runs/a");
    first_step(&run);
    let sent = Instant::now();
    send(&child, libc::SIGINT);
    read_until(&mut child, "stopping after this step; press Ctrl-C again to stop at once");
    send(&child, libc::SIGINT);
    read_until(&mut child, "stopping at once: writing a checkpoint of step 1");
    let output = end(child);
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
        fs::write(dir.path().join("my scripts/a b.lua"), recipe("2")).unwrap();
        let args =
            ["run", "my scripts/a b.lua", "trainer.steps=3", "trainer.lr=2e-3", "--threads", "1", "--out", "last one"];
        let mut child = start(dir.path(), &args);
        let run = dir.path().join("runs/a b");
        first_step(&run);
        send(&child, signal);
        // The step may have ended by now; then it stops when the checkpoint is written.
        read_until(&mut child, "stopping ");
        let output = end(child);
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
    let dir = directory(&[("a.lua", &recipe("1")), ("loop.lua", program)], true);
    let mut child = start(dir.path(), &["lua", "loop.lua"]);
    let run = dir.path().join("runs/loop");
    first_step(&run);
    send(&child, libc::SIGINT);
    read_until(&mut child, "stopping after this step; press Ctrl-C again to stop at once");
    let output = end(child);
    let reported = shown(dir.path(), &output);
    assert_eq!(output.status.code(), Some(130), "{reported}");
    let (step, _) = r1::store::latest_checkpoint(&run).unwrap().unwrap();
    let continues = format!("step-{step:06}; continue with r1.training(…, {{ resume = \"runs/loop\" }})");
    assert!(reported.contains(&continues), "{reported}");
    let output = end(start(dir.path(), &["lua", "loop.lua", "runs/loop"]));
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{step}\n"), "{}", shown(dir.path(), &output));
}

/// The system would end the process without a message.
#[test]
fn a_limit_of_file_sizes_is_named() {
    let dir = directory(&[("a.lua", &recipe("0"))], true);
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
