//! Runs that are killed at random moments, many times each. A resumed run has the same files as one
//! that was never killed: weights, optimiser, trajectories, metrics, TensorBoard events and logs;
//! `r1 traj account` finds every task once.
//!
//! The moments are system calls on files (tests/fixtures/kill.cpp), with a random delay after half
//! of them, and times. `just torture 500` kills more often. A failure names the seed and the
//! moments; `R1_TORTURE_SEED` and `R1_TORTURE_CASE` repeat it. Runs of several processes lose one
//! of them, or all, and continue with another number of processes.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use super::killed::{killed_at, library};
use super::recipe::{HELD_OUT, THIRDS, recipe};
use super::run_contents::{difference, left};
use super::run_files::json_lines;
use super::running::Running;
use super::{directory, r1, shown, succeed};
use crate::fork_server::R1;

/// Number of kills in the test run, of runs of one process and of several.
const KILLS: usize = 36;
const KILLS_OF_RANKS: usize = 36;
/// Kills of one run, at most.
const KILLS_OF_A_RUN: usize = 6;

/// A recipe of the tiny model, and settings.
struct Case {
    name: &'static str,
    trainer: &'static str,
    fields: &'static [(&'static str, &'static str)],
    /// The script is edited again and again. Its functions stay the same.
    edited: bool,
    /// The numbers of processes, one of which each start has; the last one is that of the run that
    /// is not killed. Empty: one process.
    processes: &'static [&'static str],
    /// A resumed run has the same tasks and files, but other trajectories: those that had begun
    /// under earlier weights begin again under newer ones (docs/guide/async.md).
    samples_ahead: bool,
}

const OF_RANKS: &[&str] = &["2", "2", "4", "1"];

const CASES: &[Case] = &[
    Case {
        name: "grpo",
        trainer: "r1.grpo { steps = 4, group_size = 2, groups_per_step = 2, lr = 1e-3, ema = 0.5,
            kl = { coef = 0.1, target = 0.01 } }",
        fields: &[("rollout", "{ workers = 2 }")],
        edited: false,
        processes: &[],
        samples_ahead: false,
    },
    Case {
        name: "ppo",
        trainer: "r1.ppo { steps = 3, group_size = 2, groups_per_step = 2, lr = 1e-3, critic = { lr = 1e-3 }, mini_batches = 2 }",
        fields: &[],
        edited: false,
        processes: &[],
        samples_ahead: false,
    },
    Case {
        name: "lora",
        trainer: "r1.grpo { steps = 3, group_size = 2, groups_per_step = 2, lr = 1e-2, kl = { coef = 0.1 } }",
        fields: &[("policy", "{ model = 'model', lora = { rank = 2 } }")],
        edited: false,
        processes: &[],
        samples_ahead: false,
    },
    Case {
        name: "tree",
        trainer: "r1.grpo { steps = 3, group_size = 4, groups_per_step = 2, lr = 1e-3, estimator = 'tree',
            branch = { roots = 2, at = 'entropy' } }",
        fields: &[],
        edited: false,
        processes: &[],
        samples_ahead: false,
    },
    Case {
        name: "refill",
        trainer: "r1.grpo { steps = 4, group_size = 2, groups_per_step = 2, lr = 1e-3, filter = { uniform = true, refills = 3 } }",
        fields: &[("rollout", "{ workers = 2, concurrency = 3 }")],
        edited: false,
        processes: &[],
        samples_ahead: false,
    },
    Case {
        name: "reload",
        trainer: "r1.grpo { steps = 6, group_size = 2, groups_per_step = 2, lr = 1e-3 }",
        fields: &[],
        edited: true,
        processes: &[],
        samples_ahead: false,
    },
    Case {
        name: "grpo of ranks",
        trainer: "r1.grpo { steps = 4, group_size = 2, groups_per_step = 4, lr = 1e-3, ema = 0.5, mini_batches = 2,
            kl = { coef = 0.1, target = 0.01 }, filter = { uniform = true, refills = 2 } }",
        fields: &[("rollout", "{ workers = 2 }")],
        edited: false,
        processes: OF_RANKS,
        samples_ahead: false,
    },
    Case {
        name: "ppo of ranks",
        trainer: "r1.ppo { steps = 3, group_size = 2, groups_per_step = 4, lr = 1e-3, critic = { lr = 1e-3 },
            zero_stage = 3 }",
        fields: &[],
        edited: false,
        processes: OF_RANKS,
        samples_ahead: false,
    },
    Case {
        name: "reload of ranks",
        trainer: "r1.grpo { steps = 6, group_size = 2, groups_per_step = 4, lr = 1e-3 }",
        fields: &[],
        edited: true,
        processes: OF_RANKS,
        samples_ahead: false,
    },
    Case {
        name: "samplers",
        trainer: "r1.grpo { steps = 4, group_size = 2, groups_per_step = 4, lr = 1e-3, zero_stage = 2 }",
        fields: &[("rollout", "{ workers = 2, async = { staleness = 1, on_update = 'finish', ranks = 1 } }")],
        edited: false,
        processes: &["3", "2"],
        samples_ahead: true,
    },
];

impl Case {
    /// Two replies for each trajectory, a call of a tool between them; its functions print, so that
    /// the process can be killed there.
    fn script(&self) -> String {
        let env = r#"r1.env {
    format = "hermes",
    max_steps = 2,
    tools = { count },
    reset = function(task) return { messages = { r1.user(task.prompt) } } end,
    step = function(state, action)
      r1.push(state.messages, r1.assistant(action))
      local results = r1.call_tools({ { name = "count", arguments = { text = action.text } } }, { hidden = true })
      r1.push(state.messages, r1.user(results[1].content))
      return { reward = #action.text % 2 }
    end,
  }"#;
        let tool = r#"print("loaded")
local count = r1.tool {
  name = "count", description = "Counts.", parameters = { text = "string" }, hidden = true,
  run = function(arguments) print("tool " .. arguments.text) return "" .. #arguments.text end,
}
"#;
        let reward = THIRDS.replacen("return", "print(\"reward\") return", 1);
        let all = [
            ("env", env),
            ("reward", &reward),
            ("trainer", self.trainer),
            ("data", HELD_OUT),
            ("sampling", "{ max_new_tokens = 4 }"),
            ("eval", "{ every = 2 }"),
            ("checkpoint", "{ every = 1, keep = 2 }"),
            ("seed", "4"),
        ];
        format!("{tool}{}", recipe(&[&all[..], self.fields].concat()))
    }

    /// What a run leaves. Edits of the script are at other steps each time.
    fn left(&self, run: &Path) -> BTreeMap<String, Vec<u8>> {
        let mut files = left(run);
        if self.samples_ahead {
            files.values_mut().for_each(Vec::clear);
        }
        if !self.edited {
            return files;
        }
        files.retain(|name, _| !name.starts_with("scripts/") && name != "recipe.lua");
        for (name, bytes) in &mut files {
            let text = String::from_utf8_lossy(bytes);
            *bytes = match name.as_str() {
                "metrics.jsonl" => {
                    let mut lines = json_lines(&text);
                    for line in &mut lines {
                        line.as_object_mut().unwrap().retain(|name, _| !name.starts_with("script/"));
                    }
                    lines.iter().map(|line| format!("{line}\n")).collect::<Vec<_>>().concat().into_bytes()
                }
                "log.jsonl" | "tb" => {
                    let kept = text.lines().filter(|line| !line.contains("loaded") && !line.starts_with("script/"));
                    kept.map(|line| format!("{line}\n")).collect::<Vec<_>>().concat().into_bytes()
                }
                _ => continue,
            };
        }
        files
    }
}

/// Kinds of moments, as patterns of system calls; each is chosen equally often.
const MOMENTS: &[(&str, &str)] = &[
    ("sampling", "write 2 *reward*"),
    ("tool call", "write 2 *tool*"),
    ("trajectories", "* *k/trajectories/*"),
    ("metrics", "write *k/metrics.jsonl"),
    ("log", "write *k/log.jsonl"),
    ("TensorBoard", "write *k/tb/*"),
    ("checkpoint", "* *k/checkpoints/*"),
    ("evaluation", "* *k/evaluations/*"),
    ("rename", "rename *"),
    ("best", "* *k/.best*"),
    ("any call", "*"),
    ("time", ""),
];
/// Of a script that is edited.
const RELOAD: [(&str, &str); 2] = [("reload", "* *k/scripts/*"), ("reload", "* *k/.config.json*")];

/// The setting with which the number of processes does not change the bits.
const SHARDS: &str = "trainer.gradient_shards=4";

/// SplitMix64.
struct Random(u64);

impl Random {
    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }
}

/// Number of lines that a pattern matches, as in kill.cpp.
fn matching(calls: &str, pattern: &str) -> u64 {
    let pattern = CString::new(pattern).unwrap();
    let matches = |line: &&str| {
        let line = CString::new(*line).unwrap();
        // SAFETY: both are strings with an end.
        unsafe { libc::fnmatch(pattern.as_ptr(), line.as_ptr(), 0) == 0 }
    };
    calls.lines().filter(matches).count() as u64
}

#[derive(Default)]
struct Counts {
    kills: usize,
    resumes: usize,
    runs: usize,
    /// By kind of moment.
    moments: BTreeMap<&'static str, usize>,
    differences: Vec<String>,
}

/// A case with its uninterrupted run.
struct Torture {
    case: &'static Case,
    dir: tempfile::TempDir,
    whole: BTreeMap<String, Vec<u8>>,
    calls: String,
    time: Duration,
    edits: usize,
}

impl Torture {
    fn new(case: &'static Case) -> Self {
        let dir = directory(&[("a.lua", &case.script())], true);
        let at = dir.path();
        library(at);
        let list = at.join("calls");
        let began = Instant::now();
        let mut arguments = vec!["run", "a.lua", "--name", "k"];
        if let Some(processes) = case.processes.last() {
            arguments.extend([SHARDS, "--threads", "1", "--nproc", processes]);
        }
        let output = killed_at(at, &arguments, "none", 1).env("KILL_CALLS", &list).output().unwrap();
        assert!(output.status.success(), "{}: {}", case.name, shown(at, &output));
        let time = began.elapsed();
        let whole = case.left(&at.join("runs/k"));
        // Lines of output may have any bytes.
        let calls = String::from_utf8_lossy(&fs::read(list).unwrap()).into_owned();
        Self { case, whole, calls, time, dir, edits: 0 }
    }

    fn run(&self) -> PathBuf {
        self.dir.path().join("runs/k")
    }

    /// The next command of the run; a run that was killed before it began is started again.
    fn arguments(&self, random: &mut Random) -> Vec<&'static str> {
        let resumes = self.run().join("config.json").is_file();
        let last = if resumes { "--resume" } else { "--name" };
        let mut arguments = vec!["run", "a.lua", last, "k", if self.case.edited { "--yes" } else { "--no-reload" }];
        let all = self.case.processes;
        if !all.is_empty() {
            let processes = all[random.below(all.len() as u64) as usize];
            arguments.extend([SHARDS, "--threads", "1", "--nproc", processes]);
        }
        arguments
    }

    /// Whether the run was killed, or one of its processes.
    fn is_killed(&self, output: &Output) -> bool {
        let lost = || String::from_utf8_lossy(&output.stderr).contains("was ended by signal 9");
        output.status.signal() == Some(libc::SIGKILL) || (!self.case.processes.is_empty() && lost())
    }

    /// Runs a command to its end, or kills it after a time.
    fn end(&mut self, mut command: R1, after: Option<Duration>) -> Output {
        // Killed processes leave the directories of other ranks there.
        command.env("TMPDIR", self.dir.path());
        let running = Running::of(command, self.dir.path());
        let began = Instant::now();
        let mut edited = began;
        while running.is_running() {
            if after.is_some_and(|after| began.elapsed() >= after) {
                running.send(libc::SIGKILL);
                break;
            }
            if self.case.edited && edited.elapsed() > Duration::from_millis(70) {
                edited = Instant::now();
                self.edits += 1;
                let text = format!("{}-- Edit {}.\n", self.case.script(), self.edits);
                fs::write(self.dir.path().join("new"), text).unwrap();
                fs::rename(self.dir.path().join("new"), self.dir.path().join("a.lua")).unwrap();
            }
            assert!(began.elapsed() < Duration::from_mins(5), "the run does not end: {}", running.stderr());
            std::thread::sleep(Duration::from_millis(2));
        }
        running.end()
    }

    /// Kills one run up to `kills` times, and lets it end. Returns the moments.
    fn one(&mut self, random: &mut Random, kills: usize, counts: &mut Counts) {
        let _ = fs::remove_dir_all(self.dir.path().join("runs"));
        fs::write(self.dir.path().join("a.lua"), self.case.script()).unwrap();
        let mut history = String::new();
        let moments: Vec<_> = MOMENTS.iter().chain(RELOAD.iter().filter(|_| self.case.edited)).collect();
        let mut killed = 0;
        loop {
            let arguments = self.arguments(random);
            counts.resumes += usize::from(arguments.contains(&"--resume"));
            if killed == kills {
                succeed(self.dir.path(), &arguments);
                break;
            }
            let &&(kind, pattern) = &moments[random.below(moments.len() as u64) as usize];
            let (output, moment) = if pattern.is_empty() {
                let after = Duration::from_micros(random.below(self.time.as_micros() as u64 * 6 / 5));
                (self.end(r1(self.dir.path(), &arguments), Some(after)), format!("{} ms", after.as_millis()))
            } else {
                let limit = matching(&self.calls, pattern).max(3);
                // Early calls, too, because a resumed run has fewer of them.
                let end = random.below(limit) + 1;
                let count = random.below(end) as u32 + 1;
                let mut command = killed_at(self.dir.path(), &arguments, pattern, count);
                let delay = if random.below(2) == 0 { random.below(25) } else { 0 };
                if delay > 0 {
                    command.env("KILL_AFTER_MS", delay.to_string());
                }
                (self.end(command, None), format!("call {count} of `{pattern}` + {delay} ms"))
            };
            if self.is_killed(&output) {
                killed += 1;
                counts.kills += 1;
                *counts.moments.entry(kind).or_default() += 1;
                writeln!(history, "    {kind}: {moment}").unwrap();
            } else if output.status.success() {
                break;
            } else {
                counts.differences.push(format!(
                    "{} fails\n{history}{}",
                    self.case.name,
                    shown(self.dir.path(), &output)
                ));
                return;
            }
        }
        counts.runs += 1;
        let account = r1(self.dir.path(), &["traj", "account", "k"]).output().unwrap();
        if !account.status.success() {
            let text = shown(self.dir.path(), &account);
            counts.differences.push(format!("{}: tasks are lost or there twice\n{history}{text}", self.case.name));
        }
        let files = self.case.left(&self.run());
        if let Some(difference) = difference(&self.whole, &files) {
            counts.differences.push(format!("{}\n{history}    {difference}", self.case.name));
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_run_killed_at_random_moments_resumes_to_the_same_files() {
    torture(false, KILLS);
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn ranks_killed_at_random_moments_resume_to_the_same_files() {
    torture(true, KILLS_OF_RANKS);
}

fn torture(ranks: bool, kills: usize) {
    let kills = number("R1_TORTURE").map_or(kills, |kills| kills as usize);
    let seed = number("R1_TORTURE_SEED").unwrap_or(1);
    let wanted = std::env::var("R1_TORTURE_CASE").ok();
    let cases: Vec<_> = CASES
        .iter()
        .filter(|case| case.processes.is_empty() != ranks && wanted.as_ref().is_none_or(|name| name == case.name))
        .collect();
    let mut table = "case             kills  resumes  runs  differences  moments\n".to_owned();
    eprint!("{table}");
    let mut differences = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let mut torture = Torture::new(case);
        // Each case has moments of its own, so that one case can be repeated alone.
        let mut random =
            Random(case.name.bytes().fold(seed, |sum, byte| sum.wrapping_mul(131).wrapping_add(byte.into())));
        let share = kills * (index + 1) / cases.len() - kills * index / cases.len();
        let mut counts = Counts::default();
        while counts.kills < share && counts.differences.len() < 5 {
            let limit = (share - counts.kills).min(KILLS_OF_A_RUN);
            torture.one(&mut random, limit, &mut counts);
        }
        let Counts { kills, resumes, runs, moments, .. } = &counts;
        let moments: Vec<String> = moments.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        let row = format!(
            "{:<16} {kills:>5}  {resumes:>7}  {runs:>4}  {:>11}  {}\n",
            case.name,
            counts.differences.len(),
            moments.join(", ")
        );
        eprint!("{row}");
        table.push_str(&row);
        differences.append(&mut counts.differences);
    }
    assert!(differences.is_empty(), "R1_TORTURE_SEED={seed}\n{table}\n{}", differences.join("\n"));
}
