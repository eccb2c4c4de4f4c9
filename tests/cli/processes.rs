//! Runs of several processes: the same files as a run of one process, and what happens if one of
//! them ends.
#![cfg(target_os = "linux")]

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use r1::process_group::{ProcessGroup, Rendezvous};
use serde_json::Value;

use super::cold_start::{COLD_START, ROWS};
use super::killed::{killed_at, library, printing};
use super::recipe::{HELD_OUT, THIRDS, TWO_STEPS, recipe};
use super::run_contents::{assert_same, left};
use super::run_files::{metrics, read_json, training_steps};
use super::running::Running;
use super::{directory, fail, r1, shown, succeed};
use crate::fork_server::{R1, compiled};

/// Runs a recipe with 1, 2 and 4 processes and compares what the runs leave.
fn same_with_more_processes(verb: &str, recipe: &str, settings: &[&str]) {
    let dir = directory(&[("a.lua", recipe), ("train.jsonl", ROWS)], true);
    let run = |count: &str| {
        let mut args = vec![verb, "a.lua", "-q", "--threads", "1", "--nproc", count, "--name", count];
        args.extend(["trainer.gradient_shards=4", "seed=4"]);
        args.extend(settings);
        succeed(dir.path(), &args);
        dir.path().join("runs").join(count)
    };
    let one = left(&run("1"));
    let file = if settings.iter().any(|setting| setting.contains("max_shard_mb")) {
        "/model-00002"
    } else {
        "model.safetensors"
    };
    assert!(one.keys().any(|name| name.contains(file)), "{:?}", one.keys());
    for count in ["2", "4"] {
        assert_same(&one, &run(count), count);
    }
}

/// Groups that are refilled, two steps for each trajectory, an evaluation, and rewards of a script
/// that prints.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn grpo_has_the_same_bits_with_more_processes() {
    let trainer = "r1.grpo { steps = 3, group_size = 4, groups_per_step = 4, lr = 1e-3, mini_batches = 2, epochs = 2,
        kl = { coef = 0.1 }, filter = { uniform = true, refills = 2 } }";
    let reward = format!(
        "(function() local thirds = {THIRDS} return function(state, outcome) print(outcome.text) return \
         thirds(state, outcome) end end)()"
    );
    let recipe = recipe(&[
        ("env", TWO_STEPS),
        ("reward", &reward),
        ("data", HELD_OUT),
        ("trainer", trainer),
        ("eval", "{ every = 2 }"),
        ("checkpoint", "{ every = 1, keep = 0 }"),
    ]);
    same_with_more_processes("run", &recipe, &[]);
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn ppo_has_the_same_bits_with_more_processes() {
    for shared in ["true", "false"] {
        let recipe = recipe(&[
            ("env", TWO_STEPS),
            ("reward", THIRDS),
            ("trainer", "r1.ppo { steps = 2, group_size = 2, groups_per_step = 4, lr = 1e-3, mini_batches = 2 }"),
            ("checkpoint", "{ every = 1, keep = 0 }"),
        ]);
        same_with_more_processes("run", &recipe, &[&format!("trainer.critic.shared={shared}")]);
    }
}

/// Each stage of ZeRO, with several micro-batches in a shard and a bucket for each layer. Weights
/// and files are those of one process, which divides nothing.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn what_processes_divide_has_the_same_bits() {
    let trainer = "r1.ppo { steps = 2, group_size = 2, groups_per_step = 4, lr = 1e-3, mini_batches = 2,
        weight_decay = 0.1 }";
    let recipe = recipe(&[("env", TWO_STEPS), ("trainer", trainer), ("checkpoint", "{ every = 1, keep = 0 }")]);
    for stage in ["0", "1", "2", "3"] {
        let zero = format!("trainer.zero_stage={stage}");
        let small = ["trainer.bucket_cap_mb=0.001", "trainer.tokens_per_batch=40", "checkpoint.max_shard_mb=0.02"];
        same_with_more_processes("run", &recipe, &[&[zero.as_str()][..], &small].concat());
    }
}

/// The weights of an adapter's model are divided, too. A part of the processes may have no
/// micro-batch.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn divided_layers_have_the_same_bits_in_other_loops() {
    let sft = format!("return {COLD_START}");
    for stage in ["trainer.zero_stage=2", "trainer.zero_stage=3"] {
        same_with_more_processes("sft", &sft, &[stage]);
    }
    let of_critic = recipe(&[
        ("policy", "{ model = 'model', lora = { rank = 4, alpha = 64 } }"),
        ("trainer", "r1.ppo { steps = 2, group_size = 2, groups_per_step = 2, lr = 1e-2, zero_stage = 3 }"),
    ]);
    for shared in ["trainer.critic.shared=true", "trainer.critic.shared=false"] {
        same_with_more_processes("run", &of_critic, &[shared]);
    }
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn an_adapter_has_the_same_bits_with_more_processes() {
    let recipe = recipe(&[
        ("policy", "{ model = 'model', lora = { rank = 4, alpha = 64 } }"),
        ("trainer", "r1.grpo { steps = 2, group_size = 4, groups_per_step = 4, lr = 1e-2, kl = { coef = 0.1 } }"),
        ("checkpoint", "{ merge = true }"),
    ]);
    same_with_more_processes("run", &recipe, &[]);
}

/// Also one with a cold start, a function of the recipe as the estimator, and averaged weights.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn sft_has_the_same_bits_with_more_processes() {
    let alone =
        format!("return {}", COLD_START.replacen("r1.recipe {", "r1.recipe { policy = { model = 'model' },", 1));
    let alone = alone.replace("batch_size = 2", "batch_size = 5");
    same_with_more_processes("sft", &alone, &[]);
    let with_rollouts = printing(&[("cold_start", COLD_START), ("eval", "{ every = 2 }")]);
    same_with_more_processes("run", &with_rollouts, &["cold_start.trainer.gradient_shards=4"]);
}

/// A loop that uses trajectories of an earlier step, and advantages of its own.
const LOOP: &str = r#"
local t = r1.training("a.lua", { name = arg[1], settings = { ["trainer.gradient_shards"] = 2 } })
local first
while t.step < t.steps do
  local batch = t:rollout()
  first = first or batch
  local advantages = {}
  for i, one in ipairs(batch) do advantages[i] = #one.steps[1].text % 3 - 1 end
  t:update(batch, { advantages = advantages })
  if t.step == 1 then t:update(first) end
  print(t.step, #t:logprobs(first), #t:values(batch), next(t:evaluate()) ~= nil)
  t:next_step()
end
return t:save()
"#;

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_loop_of_a_program_has_the_same_bits_with_more_processes() {
    let recipe = recipe(&[
        ("env", TWO_STEPS),
        ("reward", THIRDS),
        ("data", HELD_OUT),
        ("trainer", "r1.ppo { steps = 3, group_size = 2, groups_per_step = 4, lr = 1e-3, zero_stage = 1 }"),
    ]);
    let dir = directory(&[("a.lua", &recipe), ("loop.lua", LOOP)], true);
    let run = |count: &str| {
        let output = succeed(dir.path(), &["lua", "--threads", "1", "--nproc", count, "loop.lua", count]);
        (output.replace(&format!("runs/{count}"), "runs/N"), left(&dir.path().join("runs").join(count)))
    };
    let (printed, one) = run("1");
    assert!(
        printed.starts_with("0\t8\t8\ttrue\n1\t") && printed.contains("runs/N/checkpoints/step-000003"),
        "{printed}"
    );
    let (again, _) = run("2");
    assert_eq!(printed, again);
    assert_same(&one, &dir.path().join("runs/2"), "2");
}

/// A program that makes other calls on another process, or has an error there.
#[test]
fn programs_that_differ_between_processes_are_refused() {
    let other = r#"local t = r1.training("a.lua", { name = "a" })
local batch = t:rollout()
if os.getenv("RANK") then CALL end
t:update(batch)"#;
    let dir = directory(&[("a.lua", &recipe(&[]))], true);
    for (call, expected) in [
        ("t:next_step()", "rank 1 has another call than rank 0: t:next_step instead of t:update"),
        ("t:update(batch, { lr = 0 })", "rank 1 has another checksum of the arguments than rank 0"),
        ("error('no such file')", "no such file"),
    ] {
        fs::write(dir.path().join("b.lua"), other.replace("CALL", call)).unwrap();
        let error = fail(dir.path(), &["lua", "--nproc", "2", "--rank-timeout", "60", "b.lua"]);
        assert!(error.contains(expected), "{error}");
        fs::remove_dir_all(dir.path().join("runs")).unwrap();
    }
    let error = fail(dir.path(), &["lua", "--nproc", "2", "-"]);
    assert!(error.contains("several processes can't read a program from standard input"), "{error}");
    // Processes that torchrun has started can't read it, either.
    let mut command = r1(dir.path(), &["lua", "-"]);
    command.env("RANK", "0").env("WORLD_SIZE", "2").env("MASTER_ADDR", "127.0.0.1");
    let output = command.output().unwrap();
    let error = shown(dir.path(), &output);
    assert!(error.contains("several processes can't read a program from standard input"), "{error}");
}

pub(super) fn without_seconds(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !name.contains("second"));
            fields.values_mut().for_each(without_seconds);
        }
        Value::Array(all) => all.iter_mut().for_each(without_seconds),
        _ => {}
    }
}

/// Two models, and an evaluation that is continued with another number of processes.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn an_evaluation_has_the_same_report_with_more_processes() {
    let recipe = recipe(&[("env", TWO_STEPS), ("reward", THIRDS), ("data", HELD_OUT)]);
    let dir = directory(&[("a.lua", &recipe)], true);
    let eval = |count: &str, args: &[&str]| {
        succeed(dir.path(), &[&["eval", "a.lua", "-q", "--threads", "1", "--nproc", count][..], args].concat());
    };
    let report = |name: &str| {
        let mut report = read_json(dir.path().join("runs").join(name).join("report.json"));
        without_seconds(&mut report);
        report
    };
    for count in ["1", "2"] {
        eval(count, &["--name", count, "n=3", "-m", "model", "-m", "r1-nano"]);
    }
    assert!(report("1").to_string().contains("r1-nano"), "{}", report("1"));
    assert_eq!(report("1"), report("2"));
    // Nothing is left to sample; the processes read what there is.
    eval("2", &["--resume", "1"]);
    assert_eq!(report("1"), report("2"));
    let error = fail(dir.path(), &["eval", "a.lua", "-q", "--nproc", "2", "-m", "http://127.0.0.1:9/v1#x"]);
    assert!(error.contains("several processes do not divide the requests to a server"), "{error}");
}

/// A run of 2 processes is stopped, and continues with 1 and with 4.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_run_resumes_with_another_number_of_processes() {
    let recipe = printing(&[("eval", "{ every = 2 }")]);
    let dir = directory(&[("a.lua", &recipe)], true);
    let common = ["run", "a.lua", "-q", "--no-reload", "--threads", "1"];
    let run = |args: &[&str]| succeed(dir.path(), &[&common[..], args].concat());
    run(&["--name", "whole", "--nproc", "1", "trainer.gradient_shards=4"]);
    let whole = left(&dir.path().join("runs/whole"));
    for count in ["1", "4"] {
        run(&["--name", count, "--nproc", "2", "trainer.gradient_shards=4", "trainer.steps=2"]);
        let name = format!("runs/{count}");
        run(&["--resume", &name, "--yes", "--nproc", count, "trainer.steps=3"]);
        let run = dir.path().join(&name);
        assert_eq!(training_steps(&run).len(), 3);
        // The evaluation after step 2 was the last one of the stopped run.
        let mut files = left(&run);
        let mut expected = whole.clone();
        for all in [&mut files, &mut expected] {
            all.retain(|name, _| name.contains("checkpoints/step-000003") || name.contains("trajectories/step-000003"));
        }
        assert!(files.len() > 3 && files == expected, "{count}: {:?}", files.keys());
    }
}

fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

/// A command with the variables of `torchrun`.
fn of_rank(dir: &Path, rank: usize, size: usize, port: &str, args: &[&str]) -> R1 {
    let mut command = r1(dir, args);
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port);
    command
}

/// Each rank has a directory of its own for its output.
fn ranks(size: usize, args: impl Fn(usize) -> Vec<String>, recipe: &str) -> (tempfile::TempDir, Vec<Running>) {
    let dir = directory(&[("a.lua", recipe)], true);
    let port = free_port();
    let start = |rank: usize| {
        let output = dir.path().join(format!("rank-{rank}"));
        fs::create_dir(&output).unwrap();
        let args = args(rank);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Running::of(of_rank(dir.path(), rank, size, &port, &args), &output)
    };
    let all = (0..size).map(start).collect();
    (dir, all)
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn processes_that_torchrun_starts_are_one_run() {
    let (dir, all) = ranks(2, |_| words("run a.lua --threads 1"), &recipe(&[]));
    let outputs: Vec<_> = all.into_iter().map(Running::end).collect();
    assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
    // One process prints.
    let printed = |rank: usize| fs::read_to_string(dir.path().join(format!("rank-{rank}/stdout"))).unwrap();
    assert!(printed(0).contains("2 steps in") && printed(1).is_empty(), "{}\n{}", printed(0), printed(1));
    assert_eq!(fs::read_dir(dir.path().join("runs")).unwrap().count(), 1);
}

#[test]
fn ranks_with_other_settings_are_refused() {
    let settings = |rank: usize| words(&format!("run a.lua -q trainer.lr={}e-3", rank + 1));
    let (dir, all) = ranks(2, settings, &recipe(&[]));
    for rank in all {
        let text = shown(dir.path(), &rank.end());
        assert!(text.contains("rank 1 has another trainer.lr than rank 0: 0.002 instead of 0.001"), "{text}");
    }
    assert!(!dir.path().join("runs").exists());
}

/// The test is rank 1 here, of another version.
#[test]
fn a_rank_of_another_version_is_refused() {
    let (dir, port) = (directory(&[("a.lua", &recipe(&[]))], true), free_port());
    let output = dir.path().join("rank-0");
    fs::create_dir(&output).unwrap();
    let first = Running::of(of_rank(dir.path(), 0, 2, &port, &["run", "a.lua", "-q"]), &output);
    let rendezvous = Rendezvous {
        host: "127.0.0.1".to_owned(),
        port: port.parse().unwrap(),
        rank: 1,
        size: 2,
        runs_store: true,
        address: Some("127.0.0.1".to_owned()),
        timeout: Duration::from_mins(1),
    };
    let refused = ProcessGroup::connect(&rendezvous, None, &[("version of r1", "0.0.1")]).unwrap_err();
    let text = shown(dir.path(), &first.end());
    for text in [refused.message, text] {
        assert!(text.contains("rank 1 has another version of r1 than rank 0: 0.0.1 instead of"), "{text}");
    }
    assert!(!dir.path().join("runs").exists());
}

/// The clock of rank 1 is a day ahead, and that of rank 2 an hour behind.
#[test]
fn ranks_with_different_clocks_are_one_run() {
    let dir = directory(&[("a.lua", &recipe(&[("trainer", "r1.grpo { steps = 3, lr = 1e-3 }")]))], true);
    let (library, port) = (compiled(dir.path(), "clock"), free_port());
    let start = |(rank, offset): (usize, i64)| {
        let output = dir.path().join(format!("rank-{rank}"));
        fs::create_dir(&output).unwrap();
        let args = ["run", "a.lua", "-q", "--threads", "1", "--rank-timeout", "60", "trainer.zero_stage=1"];
        let mut command = of_rank(dir.path(), rank, 3, &port, &args);
        command.env("LD_PRELOAD", &library).env("CLOCK_OFFSET", offset.to_string());
        Running::of(command, &output)
    };
    let all: Vec<_> = [0, 86_400, -3_600].into_iter().enumerate().map(start).collect();
    for rank in all {
        let output = rank.end();
        assert!(output.status.success(), "{}", shown(dir.path(), &output));
    }
    let run = fs::read_dir(dir.path().join("runs")).unwrap().next().unwrap().unwrap();
    assert!(run.path().join("checkpoints/step-000003/trainer_state/optimizer-00003-of-00003.safetensors").is_file());
}

#[test]
fn a_rank_that_does_not_start_is_named() {
    let dir = directory(&[("a.lua", &recipe(&[]))], true);
    let mut first = of_rank(dir.path(), 0, 3, &free_port(), &["run", "a.lua", "-q", "--rank-timeout", "1"]);
    let text = shown(dir.path(), &first.output().unwrap());
    assert!(text.contains("ranks 1, 2 of 3 did not start within 1 s"), "{text}");
    let error = fail(dir.path(), &["run", "a.lua", "-q", "--nproc", "2", "trainer.gradient_shards=3"]);
    assert!(error.contains("3 gradient shards can't be divided among 2 processes"), "{error}");
}

/// The process with the number `rank` among those that `first` started.
fn child(first: u32, rank: usize) -> Option<i32> {
    let is_rank = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == format!("RANK={rank}").as_bytes())
    };
    let children = fs::read_to_string(format!("/proc/{first}/task/{first}/children")).ok()?;
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_rank)
}

fn kill(pid: i32, signal: libc::c_int) {
    // SAFETY: no pointers.
    #[allow(unsafe_code)]
    let sent = unsafe { libc::kill(pid, signal) };
    assert_eq!(sent, 0);
}

/// Long enough to be stopped in the middle.
pub(super) fn long() -> String {
    recipe(&[
        ("trainer", "r1.grpo { steps = 100000, group_size = 2, groups_per_step = 2, lr = 1e-4 }"),
        ("checkpoint", "{ every = 1, keep = 1 }"),
    ])
}

/// The others end at once, with a checkpoint, and the run continues.
#[test]
fn a_killed_rank_ends_the_run_which_resumes() {
    let dir = directory(&[("a.lua", &long())], true);
    let running = Running::start(dir.path(), &["run", "a.lua", "-q", "--nproc", "3", "--threads", "1", "--name", "k"]);
    let log = dir.path().join("runs/k/metrics.jsonl");
    running.until_lines(&log, 2);
    let second = child(running.pid(), 2).unwrap();
    kill(second, libc::SIGKILL);
    let others: Vec<i32> = child(running.pid(), 1).into_iter().collect();
    let output = running.end();
    let text = shown(dir.path(), &output);
    assert!(text.contains("rank 2 was ended by signal 9"), "{text}");
    assert_eq!(output.status.code(), Some(10), "{text}");
    assert!(others.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()), "{others:?}");
    let done = metrics(&dir.path().join("runs/k")).len();
    let steps = format!("trainer.steps={}", done + 1);
    succeed(dir.path(), &["run", "a.lua", "-q", "--resume", "runs/k", "--nproc", "2", "--threads", "1", &steps]);
    let steps: Vec<u64> = metrics(&dir.path().join("runs/k")).iter().filter_map(|line| line["step"].as_u64()).collect();
    assert!(steps.iter().zip(1..).all(|(step, number)| *step == number) && steps.len() == done + 1, "{steps:?}");
}

/// A process that no longer computes, such as on a machine that hangs.
#[test]
fn a_rank_that_does_not_answer_ends_the_run_after_the_time_limit() {
    let dir = directory(&[("a.lua", &long())], true);
    let args = ["run", "a.lua", "-q", "--nproc", "2", "--threads", "1", "--name", "k", "--rank-timeout", "2"];
    let running = Running::start(dir.path(), &args);
    running.until_lines(&dir.path().join("runs/k/metrics.jsonl"), 2);
    let stopped = child(running.pid(), 1).unwrap();
    kill(stopped, libc::SIGSTOP);
    let began = Instant::now();
    let output = running.end();
    let text = shown(dir.path(), &output);
    assert_eq!(output.status.code(), Some(10), "{text}");
    assert!(text.contains("another process of the run has ended or does not answer"), "{text}");
    assert!(began.elapsed() < Duration::from_mins(1), "{:?}", began.elapsed());
    // The system ends it after the process that started it, and removes it a moment later.
    let there = || Path::new(&format!("/proc/{stopped}")).exists();
    while there() && began.elapsed() < Duration::from_mins(1) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!there());
}

/// A process that is slow for a while delays the others, and changes nothing.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_slow_rank_changes_nothing() {
    let fields = ("trainer", "r1.grpo { steps = 6, group_size = 2, groups_per_step = 4, lr = 1e-3, zero_stage = 2 }");
    let dir = directory(&[("a.lua", &recipe(&[fields]))], true);
    let args = |name| ["run", "a.lua", "-q", "--nproc", "2", "--threads", "1", "--rank-timeout", "30", "--name", name];
    succeed(dir.path(), &args("whole"));
    let running = Running::start(dir.path(), &args("slow"));
    for lines in [1, 3] {
        running.until_lines(&dir.path().join("runs/slow/metrics.jsonl"), lines);
        if let Some(rank) = child(running.pid(), 1) {
            kill(rank, libc::SIGSTOP);
            std::thread::sleep(Duration::from_millis(700));
            kill(rank, libc::SIGCONT);
        }
    }
    let output = running.end();
    assert!(output.status.success(), "{}", shown(dir.path(), &output));
    assert_same(&left(&dir.path().join("runs/whole")), &dir.path().join("runs/slow"), "slow");
}

/// The error of the rank is the error of the run.
#[test]
fn a_full_disk_of_one_rank_ends_the_run() {
    let dir = directory(&[("a.lua", &long())], true);
    library(dir.path());
    let args = ["run", "a.lua", "-q", "--nproc", "2", "--threads", "1", "--name", "k"];
    let mut command = killed_at(dir.path(), &args, "write *r1-rank-*/metrics.jsonl", 3);
    let output = command.env("FAIL_WITH", libc::ENOSPC.to_string()).output().unwrap();
    let text = shown(dir.path(), &output);
    assert!(text.contains("rank 1 ended with exit code 8") && text.contains("no space left on device"), "{text}");
    assert!(dir.path().join("runs/k/checkpoints/latest").exists());
}

#[test]
fn a_signal_ends_all_processes_after_the_step() {
    let dir = directory(&[("a.lua", &long())], true);
    let running = Running::start(dir.path(), &["run", "a.lua", "--nproc", "2", "--threads", "1", "--name", "k"]);
    running.until_lines(&dir.path().join("runs/k/metrics.jsonl"), 2);
    let other = child(running.pid(), 1).unwrap();
    running.send(libc::SIGINT);
    let output = running.end();
    let text = shown(dir.path(), &output);
    assert_eq!(output.status.code(), Some(130), "{text}");
    assert!(text.contains("stopping after this step") && text.contains("--resume runs/k"), "{text}");
    assert!(!Path::new(&format!("/proc/{other}")).exists());
    // No step is trained twice, and the checkpoint is that of the last one.
    let steps = metrics(&dir.path().join("runs/k")).len();
    assert!(dir.path().join(format!("runs/k/checkpoints/step-{steps:06}")).is_dir(), "{steps}");
}

/// Both processes use the new version from the same step on.
#[test]
fn a_reload_reaches_all_processes_at_the_same_step() {
    let recipe = long();
    let dir = directory(&[("a.lua", &recipe)], true);
    let running = Running::start(dir.path(), &["run", "a.lua", "--nproc", "2", "--threads", "1", "--name", "k"]);
    let run = dir.path().join("runs/k");
    running.until_lines(&run.join("metrics.jsonl"), 2);
    fs::write(dir.path().join("a.lua"), recipe.replace("% 2 end", "% 2 + 1 end")).unwrap();
    running.until_reported("reloaded");
    let reported = metrics(&run).len();
    running.until_lines(&run.join("metrics.jsonl"), reported + 3);
    running.send(libc::SIGINT);
    running.end();
    let mut versions = Vec::new();
    for step in 1..=metrics(&run).len() as u64 {
        let all = super::run_files::stored(dir.path(), "k", step);
        let hashes: Vec<String> = all.into_iter().map(|trajectory| trajectory.script_hash).collect();
        assert!(hashes.len() == 4 && hashes.iter().all(|hash| *hash == hashes[0]), "step {step}: {hashes:?}");
        versions.push(hashes[0].clone());
    }
    versions.dedup();
    assert_eq!(versions.len(), 2);
}
