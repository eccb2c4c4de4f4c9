//! Scripts that try to hang, fill, crash or change the host, each next to well-behaved trajectories
//! in one worker: checks how they end, and that the others are not affected. The scripts are in
//! `tests/lua/hostile`; docs/guide/containment.md has the table of results.
//!
//! The first lines of a script describe it and give the expected status (several if any of them is
//! correct; `refused` for a script that must not load), a part of the message, and the number of
//! attempts; `-- here` marks the line that the message must name. The script returns its hostile
//! functions; the others are well-behaved. `cpu` is its `limits.cpu`, for a script that must reach
//! another limit first on a slow machine too.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use r1::mdp::{Policy, Scripted, StepSeconds, StreamSeed, Trajectory};
use r1::rollout::{Pool, PoolOptions, Spec, no_progress};
use r1::script::{Script, Split};
use r1::text::Renderer;

use crate::reference_data::parts_up_to_date;

/// A recipe that counts to three, and passes every second row to the module `hostile`.
const MAIN: &str = r#"
local hostile = require("NAME")

local function good_reset(task)
  local state = { task = task, n = 0, drawn = {}, messages = { r1.user("Count " .. task.n) } }
  state.sorted = { 3, 1, 2 }
  table.sort(state.sorted)
  return state
end

local function good_step(state, action)
  state.n = state.n + 1
  state.drawn[state.n] = math.random(1000000)
  r1.push(state.messages, r1.assistant(action))
  r1.push(state.messages, r1.user(string.rep("go on ", state.n)))
  return { reward = state.drawn[state.n] / 1000000, done = state.n == 3, parts = { n = state.n } }
end

local function is_hostile(state)
  local task = rawget(state, "task")
  return task == nil or task.hostile == true
end

return r1.recipe {
  env = r1.env {
    tools = hostile.tools,
    max_steps = 5,
    reset = function(task)
      if task.hostile and hostile.reset then return hostile.reset(task, good_reset) end
      return good_reset(task)
    end,
    step = function(state, action)
      if is_hostile(state) and hostile.step then return hostile.step(state, action, good_step) end
      return good_step(state, action)
    end,
  },
  context = function(state, budget)
    if is_hostile(state) and hostile.context then return hostile.context(state, budget) end
    return r1.context(state.messages):keep_first(1):drop_oldest_until(budget.tokens)
  end,
  reward = function(state, outcome)
    if is_hostile(state) and hostile.reward then return hostile.reward(state, outcome) end
    return { right = r1.math_equal("1/2", "0.5") and 1 or 0, steps = { value = outcome.steps, weight = 0 } }
  end,
  data = { train = r1.data.generate { count = 64, row = function(index)
    return { n = index, hostile = index % 2 == 0 }
  end } },
  limits = { cpu = CPU, wait = 0.5, memory = 256, trajectory = 32, text = 1 },
  trainer = r1.grpo {},
}
"#;

/// The description in a script's first lines.
struct Case {
    name: String,
    what: String,
    expect: Vec<String>,
    message: String,
    times: u64,
    /// `limits.cpu`, seconds.
    cpu: String,
    /// The line marked with `-- here`.
    line: Option<usize>,
    source: String,
}

impl Case {
    fn read(path: &Path) -> Self {
        let source = std::fs::read_to_string(path).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let field = |name: &str| {
            let line = source.lines().take(5).find_map(|line| line.strip_prefix(&format!("-- {name}:")));
            line.map(|line| line.trim().to_owned())
        };
        let expect = field("expect").unwrap_or_else(|| panic!("{name}: no `-- expect:`"));
        Self {
            what: source.lines().next().unwrap().trim_start_matches("-- ").to_owned(),
            expect: expect.split('|').map(|status| status.trim().to_owned()).collect(),
            message: field("message").unwrap_or_else(|| panic!("{name}: no `-- message:`")),
            times: field("times").map_or(1, |times| times.parse().unwrap()),
            cpu: field("cpu").unwrap_or_else(|| "0.1".to_owned()),
            line: source.lines().position(|line| line.trim_end().ends_with("-- here")).map(|index| index + 1),
            name,
            source,
        }
    }

    /// Runs it. Returns the status and the first line of the message.
    fn run(&self, renderer: &Arc<Renderer>) -> (String, String) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("main.lua"), MAIN.replace("NAME", &self.name).replace("CPU", &self.cpu))
            .unwrap();
        std::fs::write(dir.path().join(format!("{}.lua", self.name)), &self.source).unwrap();
        let shown = |text: &str| text.replace(&format!("{}/", dir.path().display()), "");
        let name = &self.name;
        let script = match Script::load(&dir.path().join("main.lua"), &[]) {
            Ok(script) => script,
            Err(error) => {
                let text = shown(&error.to_string());
                self.check("refused", &text, &error.to_string());
                return ("refused".to_owned(), text.lines().next().unwrap_or_default().to_owned());
            }
        };
        let options = PoolOptions { workers: 1, concurrency: 16, retries: 0 };
        let reply = renderer.tokenizer().encode("one more<|im_end|>").unwrap();
        let policy: Arc<dyn Policy> = Arc::new(Scripted::new(move |_| reply.clone()));
        let drive = |pool: &Pool, rows: &[u64]| -> BTreeMap<u64, Trajectory> {
            let specs = rows.iter().map(|row| spec(*row, &script)).collect();
            let trajectories = pool.start(&policy, specs, &no_progress()).unwrap().finish();
            let trajectories = trajectories.unwrap_or_else(|error| panic!("{name} ends the run: {error}"));
            // Trajectories are compared; the time of each differs.
            let untimed = |mut trajectory: Trajectory| {
                trajectory.seconds = 0.0;
                trajectory.steps.iter_mut().for_each(|step| step.seconds = StepSeconds::default());
                trajectory
            };
            trajectories.into_iter().map(|trajectory| (trajectory.task_index, untimed(trajectory))).collect()
        };

        let good = [0, 2, 4];
        let pool = Pool::new(&script, renderer, &options).unwrap();
        let alone = drive(&pool, &good);
        assert!(alone.values().all(|t| t.status.name() == "terminated" && t.steps.len() == 3), "{name}: {alone:?}");
        let hostile: Vec<u64> = (0..self.times).map(|time| 2 * time + 1).collect();
        let rows: Vec<u64> = [&good[..1], &hostile, &good[1..]].concat();

        let pool = Pool::new(&script, renderer, &options).unwrap();
        let started = Instant::now();
        let together = drive(&pool, &rows);
        let seconds = started.elapsed();
        assert!(seconds < Duration::from_mins(1) * u32::try_from(self.times).unwrap(), "{name} took {seconds:?}");
        for row in good {
            assert_eq!(together[&row], alone[&row], "{name} changes a good trajectory");
        }
        // The worker continues.
        assert_eq!(drive(&pool, &good), alone, "{name} leaves something behind");
        assert!(pool.memory() < 256.0, "{name} leaves {} MiB behind", pool.memory());

        let mut outcome = (String::new(), String::new());
        for row in hostile {
            let trajectory = &together[&row];
            let error = trajectory.error_text().unwrap_or_default();
            self.check(trajectory.status.name(), &shown(&error), &error);
            outcome =
                (trajectory.status.name().to_owned(), shown(&error).lines().next().unwrap_or_default().to_owned());
        }
        outcome
    }

    fn check(&self, status: &str, text: &str, raw: &str) {
        let Self { name, expect, message, line, .. } = self;
        assert!(expect.iter().any(|expected| expected == status), "{name} ended as {status}: {text}");
        assert!(text.contains(message.as_str()), "{name} has no `{message}` in its message: {text}");
        if let Some(line) = line {
            assert!(
                text.contains(&format!("--> {name}.lua:{line}\n")) || text.ends_with(&format!("--> {name}.lua:{line}")),
                "{name} does not name line {line}: {text}"
            );
        }
        assert!(raw.len() < 8000, "{name}: a message of {} bytes", raw.len());
    }
}

fn spec(row: u64, script: &Script) -> Spec {
    Spec {
        max_context: 256,
        seed: StreamSeed { seed: 1, trajectory: row, step: 0 },
        env_seed: row,
        ..Spec::new(Split::Train, row, &script.settings)
    }
}

/// The rows of docs/guide/containment.md: name, attack, status and message of each script.
fn table(rows: &[(String, String, String, String)]) -> String {
    let mut table = String::from("| script | attack | status | message |\n|---|---|---|---|\n");
    for (name, what, status, message) in rows {
        let message = message.replace('|', "\\|").replace('<', "&lt;");
        let message: String = message.chars().take(110).collect();
        let _ = writeln!(table, "| `{name}` | {what} | `{status}` | {message} |");
    }
    table
}

#[test]
fn hostile_scripts_are_contained() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let renderer = Arc::new(Renderer::load(&root.join("models/r1-nano"), "retool").unwrap());
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(root.join("tests/lua/hostile")).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let only = std::env::var("R1_HOSTILE").unwrap_or_default();
    let cases: Vec<Case> = paths.iter().map(|path| Case::read(path)).filter(|case| case.name.contains(&only)).collect();
    let mut rows = Vec::new();
    let mut problems = Vec::new();
    for case in &cases {
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case.run(&renderer))) {
            // If two statuses are correct, the table does not have which came first.
            Ok((_, _)) if case.expect.len() > 1 => {
                rows.push((case.name.clone(), case.what.clone(), case.expect.join("` or `"), String::new()));
            }
            Ok((status, message)) => rows.push((case.name.clone(), case.what.clone(), status, message)),
            Err(_) => problems.push(case.name.clone()),
        }
    }
    assert!(problems.is_empty(), "{} of {} scripts are not contained: {problems:?}", problems.len(), cases.len());
    assert!(resident() < 1500, "{} MiB are resident after all of them", resident());
    if !only.is_empty() {
        return;
    }
    assert!(cases.len() >= 60);
    parts_up_to_date("docs/guide/containment.md", &[("hostile scripts", table(&rows))]);
}

/// Resident memory of this process in MiB; 0 if unknown.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next())
        .and_then(|kib| kib.parse::<usize>().ok())
        .map_or(0, |kib| kib >> 10)
}
