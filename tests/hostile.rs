//! Scripts that try to hang, fill, crash or change the host, each next to well-behaved trajectories
//! in one worker: checks how they end, and that the others are not affected. The scripts are in
//! `tests/lua/hostile`; docs/guide/containment.md is the table of results.
//!
//! The first lines of a script describe it and give the expected status (several if any of them is
//! correct; `refused` for a script that must not load), a part of the message, and the number of
//! attempts; `-- here` marks the line that the message must name. The script returns its hostile
//! functions; the others are well-behaved.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use r1::mdp::{Policy, Scripted, StreamSeed, Trajectory};
use r1::rollout::{Pool, PoolOptions, Spec, no_progress};
use r1::script::{Script, Split};
use r1::text::Renderer;

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
  limits = { cpu = 0.1, wait = 0.5, memory = 256, trajectory = 32, text = 1 },
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
    /// The line marked with `-- here`.
    line: Option<usize>,
    source: String,
}

impl Case {
    fn read(path: &Path) -> Self {
        let source = std::fs::read_to_string(path).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let field = |name: &str| {
            let line = source.lines().take(4).find_map(|line| line.strip_prefix(&format!("-- {name}:")));
            line.map(|line| line.trim().to_owned())
        };
        let expect = field("expect").unwrap_or_else(|| panic!("{name}: no `-- expect:`"));
        Self {
            what: source.lines().next().unwrap().trim_start_matches("-- ").to_owned(),
            expect: expect.split('|').map(|status| status.trim().to_owned()).collect(),
            message: field("message").unwrap_or_else(|| panic!("{name}: no `-- message:`")),
            times: field("times").map_or(1, |times| times.parse().unwrap()),
            line: source.lines().position(|line| line.trim_end().ends_with("-- here")).map(|index| index + 1),
            name,
            source,
        }
    }

    /// Runs it. Returns the status and the first line of the message.
    fn run(&self, renderer: &Arc<Renderer>) -> (String, String) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("main.lua"), MAIN.replace("NAME", &self.name)).unwrap();
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
            let untimed = |trajectory: Trajectory| Trajectory { seconds: 0.0, ..trajectory };
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

/// The comment before the table that `calls_end_at_their_limit` (tests/calls.rs) writes.
pub(crate) const CALLS: &str = "<!-- The table is made by `R1_UPDATE=1 cargo nextest run --release calls_end`. -->";

/// The part of the page with that table.
pub(crate) fn section(page: &str) -> String {
    let start = page.find(CALLS).unwrap_or(page.len());
    let end = page.find("\n## Hostile scripts").unwrap_or(page.len());
    page.get(start..end).unwrap_or_default().to_owned()
}

fn page(rows: &[(String, String, String, String)], calls: &str) -> String {
    let mut page = String::from(
        "# Containment\n\n\
         <!-- Made from tests/lua/hostile by `R1_UPDATE=1 cargo nextest run --release hostile_scripts`. -->\n\n",
    );
    page.push_str(HEAD);
    page.push_str(calls);
    page.push_str("\n## Hostile scripts\n");
    page.push_str("\n| script | attack | status | message |\n|---|---|---|---|\n");
    for (name, what, status, message) in rows {
        let message = message.replace('|', "\\|").replace('<', "&lt;");
        let message: String = message.chars().take(110).collect();
        let _ = writeln!(page, "| `{name}` | {what} | `{status}` | {message} |");
    }
    page
}

const HEAD: &str = "\
Each script below runs in one worker next to well-behaved trajectories. The well-behaved ones have
the same result as without it, bit for bit, the worker continues, and its memory stays bounded. The
status of the hostile trajectory is recorded: a failure is retried once in a fresh environment with
the same seed (`rollout.retries`) and then excluded from the advantages.

[settings.md](../reference/settings.md#limits) has the limits of calls, of workers and of
trajectories (`limits`). `limits.trajectory` counts the state of a trajectory, the memory that a
call adds, and the memory held while it waits.

Fixed limits: tables nested 100 deep in plain data; 2^22 values encoded at once; 16 nested calls of
`r1.call_tools`, 1024 calls in one; 64 named components of a reward; 4 KiB per line of the log; 1000
characters of a message. A VM whose functions keep more than a quarter of `limits.memory` finishes
its trajectories, and the next ones get a fresh VM.

## Programs of the policy

`r1.tools.python` runs each program in a confined process. With namespaces (Linux, allowed on most
machines; root needs no more, other users need a user namespace), each program is limited as
follows:

- Its scratch directory is a separate file system with `disk` bytes and 4096 files. Deleted and
  unnamed files count too.
- It has 64 threads and a separate scheduling group (Linux 5.14 or later with user namespaces
  within namespaces; on other machines all programs of a tool share one limit on threads). Its CPU
  time is limited to `timeout` over all its threads.
- Its memory is limited by `memory` (address space). Buffers of socket pairs and pipes are
  not included: at most 64 descriptors, about 14 MiB.
- A program that cannot be confined, or that was killed from outside, is a failure of the tool: it
  ends the trajectory with `env_error`, is retried and counted like other failures, and the policy
  receives no result.

Without namespaces (in a container that forbids them) the scratch directory is in the host's
directory for temporary files. Its size is then checked ten times per second; deleted files that are
still open are not counted, and are limited by 64 descriptors of `disk` bytes. Stricter limits on a
program's share of the processors or its kernel memory need a cgroup, which unprivileged users
can't create.

With `keep_files` or `plots`, the files that a program wrote are read by its own process after it
has ended, without following links, and sent to the host with the report: at most `files_bytes` of
content and 64 files. As with the rest of the report, the program can falsify them.

### SQL of the policy

Queries of `r1.tools.table` run in the process of r1, in SQLite, each on a new thread. They can
only read: an authorizer refuses everything but SELECT, files can't be attached, and extensions
can't be loaded. Time, memory, values and statements are limited per query (docs/guide/tables.md).
SQLite checks the time between its instructions. Functions that could take minutes in one
instruction (`instr`, `replace`, `trim`, LIKE, GLOB) are r1's own: they take linear time or check
the time. `json_patch` is refused. A query that has not ended half a second after its time is left
to its thread, and the policy gets the error.

### How to grade programs

A program shares its process with the code that runs after it. `result.ok` is as CPython's exit
code: `sys.exit(0)`, `exit()` and `quit()` are a success wherever they are, other codes and
exceptions are not. It is false as well for a prelude that exits before its last statement, because
the program after it has not run, and for a program that ends its own process (`os._exit`) or writes
to the descriptors of the tool. But no interpreter is protected from the code that it runs: a
program with `ctypes` can replace the driver. Therefore do not let the process decide whether the
program is correct:

- Keep the expected values in the recipe. Run the program as the `prelude` of a call
  (`r1.call_tools(calls, { prelude = program })`), whose output is discarded, let the call print a
  value, and compare that value in Lua, as `r1 new code` does. An `assert` after the program
  depends on objects that the program created.
- Run each hidden test in a separate call. Calls share nothing; a session shares everything.
- Count calls with `result.ok == false` as wrong, with any output.

## Data files

`r1.fs` reads only what `needs` declares. Data files have separate rules, because datasets are often
outside the script's directory:

- The files of `data`, of `r1.resource`, of tables and of `files` of the Python tool are named
  during loading; functions of an environment can't read others. They must be regular files: pipes,
  devices and folders of the system (`/proc`, `/sys`, `/dev`) are refused.
- A file outside the script's directory must have the extension of a data file: `.jsonl`, `.json`,
  `.csv`, `.tsv`, `.parquet`, `.arrow` (for resources also `.txt`, `.md`), compressed or not. Links
  count as their targets. So keys and passwords are not read as data. A file on the command line
  (`data.train=FILE`) may have any name.
- `r1 check` and the first lines of `r1 run` name every file outside the script's directory and
  the current one. `config.json` records all files with their size, resources
  with their SHA-256.

A request to a host that is neither public nor in `needs` is an error of the recipe (`env_error`,
not retried), for an address (`127.0.0.1`) as for a name that resolves to one. A redirect to such a
host is an expected failure of the call, because the server chooses redirects.

A row of a dataset may have 64 MiB, and 4 million values in Parquet and Arrow; a row group of
Parquet may have 2 GiB after decompression. A larger one is an error of the dataset, with its place.

## Limits of every call, and Ctrl-C

A call ends at its limit, and other trajectories of the worker go on meanwhile. A call that can't be
interrupted (a search, a query, a program) runs in a separate thread or process, which is left
behind at the limit. Its CPU time counts as the script's.

In `r1 run` the first Ctrl-C lets the step go on, so each call can still take its limit. The second
one ends the run during any of these calls: a checkpoint is written if weights have changed, and the
calls are left behind. In `r1 eval` the first one ends the evaluation. Other commands exit at the
second one at the latest.

";

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
    let path = root.join("docs/guide/containment.md");
    let calls = section(&std::fs::read_to_string(&path).unwrap_or_default());
    if std::env::var_os("R1_UPDATE").is_some() {
        std::fs::write(&path, page(&rows, &calls)).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page(&rows, &calls), "docs/guide/containment.md is out of date; R1_UPDATE=1 writes it");
}

/// Resident memory of this process in MiB; 0 if unknown.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next())
        .and_then(|kib| kib.parse::<usize>().ok())
        .map_or(0, |kib| kib >> 10)
}
