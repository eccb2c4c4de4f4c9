//! `r1 check`: violations of a recipe's contract are found with their line; a correct recipe
//! passes.

use std::path::Path;

use serde_json::Value;

use super::hub::server::Response;
use super::infer::serving;
use super::run_files::read_json;
use super::{cli_snapshot, directory, printed, r1, ran, shown, succeed};

/// The findings for a recipe, as `level rule place: message`.
fn findings(source: &str) -> Vec<String> {
    let dir = directory(&[("x.lua", source)], false);
    let output = r1(dir.path(), &["check", "x.lua", "--json"]).output().unwrap();
    let text = shown(dir.path(), &output);
    let lines: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let findings: Vec<String> = lines
        .iter()
        .filter(|line| line["event"] == "finding")
        .map(|line| {
            let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
            format!("{} {} {}: {}", text("level"), text("rule"), text("place"), text("message"))
        })
        .collect();
    assert!(lines.last().is_some_and(|line| line["event"] == "check"), "{text}");
    let broken = findings.iter().any(|line| line.starts_with("error"));
    assert_eq!(output.status.code(), Some(if broken { 6 } else { 0 }), "{text}");
    findings
}

/// A recipe with some parts replaced.
fn recipe(parts: &[(&str, &str)]) -> String {
    let sound = [
        ("LOCALS", ""),
        ("TOOLS", ""),
        ("RESET", "return { n = task.n, messages = { r1.user('Say ' .. task.n) } }"),
        ("STEP", "r1.push(state.messages, r1.assistant(action)) return { done = true }"),
        ("REWARD", "return #outcome.text % 2"),
        ("ROW", "return { n = index }"),
        ("MORE", ""),
    ];
    let mut text = "LOCALS\n\
        local env = r1.env { max_steps = 3, TOOLS\n\
        reset = function(task) RESET end,\n\
        step = function(state, action) STEP end }\n\
        return r1.recipe { env = env, reward = function(state, outcome) REWARD end, MORE\n\
        data = { train = r1.data.generate { count = 9, row = function(index) ROW end } },\n\
        sampling = { max_new_tokens = 8 }, trainer = r1.grpo { group_size = 2 } }"
        .to_owned();
    for (name, default_value) in sound {
        let replacement = parts
            .iter()
            .find(|(replacement, _)| *replacement == name)
            .map_or(default_value, |(_, replacement)| replacement);
        text = text.replace(name, replacement);
    }
    text
}

#[test]
fn check_passes_for_a_correct_recipe() {
    assert_eq!(findings(&recipe(&[])), Vec::<String>::new());
}

#[test]
fn a_server_that_is_not_there_is_the_only_error_of_a_check() {
    let reset = "local answer, why = r1.http.get('http://127.0.0.1:1/') if not answer then error(why, 0) end return {}";
    let lines = findings(&recipe(&[("RESET", reset), ("MORE", "needs = { 'http://127.0.0.1:1/' },")]));
    assert_eq!(lines, ["error reset x.lua:3: connection refused"]);
}

#[test]
fn check_finds_each_contract_violation_with_its_line() {
    let answer = "for _, result in ipairs(r1.call_tools(action.tool_calls)) do r1.push(state.messages, r1.observation(result)) end";
    let add = "tools = { r1.tool { name = 'add', description = 'Adds', parameters = { a = 'integer' }, run = function(x) return tostring(x.a) end } },";
    let answered = format!(
        "r1.push(state.messages, r1.assistant(action)) if #action.tool_calls == 0 then return {{ done = true }} end {answer} return {{}}"
    );
    let cases: Vec<(Vec<(&str, &str)>, &str)> = vec![
        // Rows.
        (
            vec![("LOCALS", "local seen = 0"), ("ROW", "seen = seen + 1 return { n = seen }")],
            "error data x.lua:6: row 0 of data.train is not the same every time",
        ),
        (vec![("ROW", "return { n = index.x }")], "error data x.lua:6: attempt to index number with 'x'"),
        // Resets.
        (
            vec![
                ("LOCALS", "local count = 0"),
                ("RESET", "count = count + 1 return { n = count, messages = { r1.user 'x' } }"),
            ],
            "error reset x.lua:3: reset gives another state for the same task and seed: state.n is ",
        ),
        (
            vec![("RESET", "return { n = task.m + 1, messages = {} }")],
            "error reset x.lua:3: attempt to perform arithmetic (add) on nil and number",
        ),
        // States.
        (
            vec![("RESET", "return { f = function() end, messages = { r1.user 'x' } }")],
            "error reset x.lua:3: state.f is a function",
        ),
        // Steps.
        (
            vec![("LOCALS", "local total = 0"), ("STEP", "total = total + 1 return { reward = total, done = true }")],
            "error step x.lua:4: the same responses have another result in another worker: step 1, reward was ",
        ),
        (vec![("STEP", "return { done = tonumber(action.text) > 3 }")], "error replies x.lua:4: "),
        (
            vec![("STEP", "while true do end"), ("MORE", "limits = { cpu = 0.4 },")],
            "error limits x.lua:4: an empty reply runs into a limit: step used more than 0.2 s of CPU time (half of limits.cpu, for a check); nothing else was tried",
        ),
        // Rewards.
        (vec![("REWARD", "return 1")], "warning reward x.lua: all 63 trajectories have the reward 1"),
        (vec![("REWARD", "return 0 / 0")], "error replies x.lua:5: "),
        // Tools.
        (vec![("TOOLS", add)], "warning tools x.lua:4: a call of `add` reached no tool"),
        (
            vec![("TOOLS", add)],
            "warning replies x.lua: a truncated call ends the task: the policy can't learn to correct it",
        ),
        (
            vec![
                ("TOOLS", "tools = { r1.tool { name = 'add', parameters = {}, run = function() return 'x' end } },"),
                ("STEP", &answered),
            ],
            "warning tools x.lua: the tool `add` has no description",
        ),
        (
            vec![
                (
                    "TOOLS",
                    "tools = { r1.tool { name = 'find', description = 'Finds', run = function() return nil, 'the server is down' end } },",
                ),
                ("STEP", &answered),
            ],
            "note tools x.lua: all 3 calls of `find` failed: the server is down",
        ),
        // Prompts.
        (
            vec![("RESET", "return { messages = { r1.user(string.rep('many words ', 900)) } }")],
            "error context : the prompt has ",
        ),
        (
            vec![(
                "STEP",
                "r1.push(state.messages, r1.assistant(action)) r1.push(state.messages, r1.user(string.rep('much ', 400))) return {}",
            )],
            "warning context : ",
        ),
    ];
    for (parts, wanted) in cases {
        let source = recipe(&parts);
        let lines = findings(&source);
        assert!(lines.iter().any(|line| line.starts_with(wanted)), "{wanted}\n{lines:#?}\n{source}");
    }
    // With tools that are executed, there are no findings.
    let sound = findings(&recipe(&[("TOOLS", add), ("STEP", &answered)]));
    assert_eq!(sound, Vec::<String>::new());
}

#[test]
fn check_runs_an_estimator_on_synthetic_groups() {
    let with = |algorithm: &str, body: &str| {
        let with_advantage =
            format!("advantage = function(group) {body} end, trainer = r1.{algorithm} {{ estimator = 'custom',");
        findings(&recipe(&[]).replace("trainer = r1.grpo {", &with_advantage).replace("sampling =", "\n sampling ="))
    };
    let list = "local list = {} for i, one in ipairs(group) do list[i] =";
    for (body, wanted) in [
        ("", "for a group with rewards that differ: advantage must return advantages as a list"),
        ("return { 1 }", "for a group with rewards that differ: advantage returned 1 advantages for 2 trajectories"),
        ("return { 0 / 0, 1 }", "for a group with rewards that differ: an advantage is NaN"),
        ("return group[1].mean.x", "for a group with rewards that differ: attempt to index nil with 'x'"),
        ("while true do end", "for a group with rewards that differ: advantage used more than 0.5 s of CPU time"),
        (&format!("{list} {{ 1, 2, 3 }} end return list"), "as advantages of trajectory 1, which has 1 steps"),
        // Divided by the standard deviation of a uniform group.
        (
            &format!(
                "local sum, squares = 0, 0 for _, one in ipairs(group) do sum = sum + one.total / #group end
                 for _, one in ipairs(group) do squares = squares + (one.total - sum) ^ 2 end
                 {list} (one.total - sum) / math.sqrt(squares) end return list"
            ),
            "for a group with equal rewards: an advantage is NaN",
        ),
        (
            &format!("local two = group[2] {list} one.total - two.total end return list"),
            "for a group with a single trajectory: attempt to index nil",
        ),
    ] {
        let lines = with("grpo", body);
        let broken = lines.iter().find(|line| line.starts_with("error advantage x.lua:"));
        assert!(broken.is_some_and(|line| line.contains(wanted)), "{wanted}: {lines:#?}");
    }
    let sound = format!("{list} one.total end return list");
    assert_eq!(with("grpo", &sound), Vec::<String>::new());
    let lines = with("ppo", &sound);
    assert!(lines[0].contains("advantage must return a second list"), "{lines:#?}");
    let values = format!("{list} one.values[1] + (one.truncated and one.next_value or 0) end return list, list");
    assert_eq!(with("ppo", &values), Vec::<String>::new());
}

/// A row that breaks `reset` is found although it is neither the first, the middle nor the last.
#[test]
fn check_also_tests_rows_between() {
    let broken = recipe(&[
        ("ROW", "return { n = index == 2 and 'two' or index }"),
        ("RESET", "return { n = task.n + 1, messages = { r1.user('Say ' .. task.n) } }"),
    ]);
    let lines = findings(&broken);
    assert!(
        lines.iter().any(|line| line.starts_with("error reset x.lua:3: attempt to perform arithmetic")),
        "{lines:#?}"
    );
}

/// Rows of a file beyond those that every rule is tested on: one without a column that `reset`
/// needs, one without a reference, one that a run does not draw.
#[test]
fn check_tries_the_rows_of_files_as_many_as_fit() {
    let recipe = "local env = r1.env { max_steps = 1,\n\
        reset = function(task) return { task = task, messages = { r1.user('Say ' .. task.n) } } end,\n\
        step = function(state, action) return { done = true } end }\n\
        return r1.recipe { env = env, data = { train = 'rows.jsonl' }, sampling = { max_new_tokens = 8 },\n\
        reward = function(state, outcome) return #outcome.text % 2 + #r1.reference(state.task.answer) end,\n\
        trainer = r1.grpo { group_size = 2 } }";
    let rows = |broken: &str| {
        let row =
            |index: u32| if index == 78 { broken.to_owned() } else { format!("{{\"n\": {index}, \"answer\": \"a\"}}") };
        (0..90).map(|index| row(index) + "\n").collect::<String>()
    };
    let check = |broken: &str, arguments: &[&str]| {
        let dir = directory(&[("x.lua", recipe), ("rows.jsonl", &rows(broken))], false);
        let output = r1(dir.path(), &[&["check", "x.lua"], arguments].concat()).output().unwrap();
        (output.status.code(), shown(dir.path(), &output))
    };
    let (code, text) = check("{\"n\": 78, \"answer\": \"a\"}", &[]);
    assert!(code == Some(0) && text.contains("90 of 90 rows of data.train began a trajectory\n"), "{text}");
    let (code, text) = check("{\"answer\": \"a\"}", &["--rows", "all"]);
    assert!(code == Some(6) && text.contains("error (reset): attempt to concatenate"), "{text}");
    assert!(text.contains("the first is row 78 of data.train: rows.jsonl:79"), "{text}");
    let (code, text) = check("{\"n\": 78}", &[]);
    assert!(code == Some(4) && text.contains("rows.jsonl:79"), "{text}");
    let (code, text) = check("{\"n\": 78}", &["--rows", "30"]);
    assert!(code == Some(0) && text.contains("30 of 90 rows of data.train began a trajectory; --rows all"), "{text}");
    let (code, text) = check("", &["--rows", "some"]);
    assert!(code == Some(2) && text.contains("must be a whole number, or all"), "{text}");
}

/// A server may give every reset another session; a local that counts is still found.
#[test]
fn check_compares_resets_with_the_same_external_answers() {
    let server = serving(|_, before| Response::new(200, before.to_string()));
    let counting = |session: &str| {
        let reset = format!(
            "local answer = r1.http.get('{}/session') count += 1\n\
             return {{ session = {session}, messages = {{ r1.user('Say ' .. task.n) }} }}",
            server.url
        );
        let needs = format!("needs = {{ 'http:{}' }},", server.url.trim_start_matches("http://"));
        findings(&recipe(&[("LOCALS", "local count = 0"), ("RESET", &reset), ("MORE", &needs)]))
    };
    assert_eq!(counting("answer.body"), Vec::<String>::new());
    let lines = counting("count");
    assert!(lines.iter().any(|line| line.contains("reset gives another state for the same task")), "{lines:#?}");
}

/// Each endless loop would otherwise reach its limit for every reply, task and machine.
#[test]
fn check_runs_an_endless_loop_only_once() {
    for part in ["RESET", "STEP", "REWARD"] {
        let source = recipe(&[(part, "while true do end"), ("MORE", "limits = { cpu = 0.4 },")]);
        let dir = directory(&[("x.lua", &source)], true);
        let output = r1(dir.path(), &["check", "--json", "x.lua", "policy.model=model"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text.matches("used more than 0.2 s of CPU time").count(), 1, "{text}");
        assert!(text.contains("\"trajectories\":1,"), "{text}");
    }
}

#[test]
fn check_findings_name_the_command_to_reproduce_them() {
    let source = recipe(&[("STEP", "return { done = tonumber(action.text) > 3 }")]);
    cli_snapshot!(model, { "x.lua" => source }, ["check", "x.lua", "policy.model=model"], @r#"
    exit: 6
    --- stdout
    x.lua: estimator grpo, loss ppo: no contradicting settings
    63 trajectories of 9 of 9 tasks with scripted replies, 71 steps, in [time]; rewards from 1 to 1; longest prompt 22 tokens, budget 120

    error (replies): an empty reply and 4 other kinds of reply make the env fail: attempt to compare number < nil
      --> x.lua:4
      hint: any response must lead to an observation or a reward, not to an error
      to see it: r1 repl x.lua
        :reset 0 seed=0
        :step """"""

    warning (reward): all 13 trajectories have the reward 1
      --> x.lua
      hint: a group with equal rewards gives no gradient; if the right replies are just not among those tried, all is well: r1 check --model tries the model's

    1 error, 1 warning
    "#);
}

#[test]
fn every_script_of_this_repository_passes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for entry in std::fs::read_dir(root.join("scripts")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.extension().is_none_or(|ending| ending != "lua") || name.ends_with("_test.lua") {
            continue;
        }
        // It needs the Python package gymnasium: tests/worlds checks it.
        if name == "gym.lua" {
            continue;
        }
        count += 1;
        let script = format!("scripts/{name}");
        let mut args = vec!["check", &script];
        // Its dataset is on the Hub; a few rows in the same format are used here.
        if name == "retool_sft.lua" {
            args.push("data.train=tests/golden/sft/retool.jsonl");
        }
        let text = ran(root, &args);
        assert!(passes(&text), "{text}");
    }
    assert!(count >= 2);
}

/// Tools that look something up refuse made-up arguments, which is a note.
fn passes(text: &str) -> bool {
    text.ends_with("no problems found") || text.ends_with("no problems found, apart from what the notes say")
}

#[test]
fn new_scripts_pass_their_check_and_their_tests() {
    let dir = directory(&[], false);
    for template in ["tool", "env", "game", "search", "code"] {
        let name = format!("made/my_{template}");
        succeed(dir.path(), &["new", &name, "--template", template]);
        let text = ran(dir.path(), &["check", &format!("{name}.lua")]);
        assert!(passes(&text), "{template}: {text}");
    }
    let output = r1(dir.path(), &["test", "made"]).output().unwrap();
    assert!(output.status.success(), "{}", shown(dir.path(), &output));
    let again = r1(dir.path(), &["new", "made/my_tool"]).output().unwrap();
    assert!(shown(dir.path(), &again).contains("the file exists already"), "{}", shown(dir.path(), &again));
    // Files for editors are written once, in the current directory, and existing files are not
    // overwritten.
    let types = std::fs::read_to_string(dir.path().join(".r1/types/r1.d.luau")).unwrap();
    assert!(types == r1::script::docs::luau() && !dir.path().join("made/.luaurc").exists());
    let luarc = read_json(dir.path().join(".luarc.json"));
    assert_eq!(luarc["workspace.library"][0], ".r1/types");
    std::fs::write(dir.path().join("stylua.toml"), "mine").unwrap();
    std::fs::remove_file(dir.path().join(".luaurc")).unwrap();
    let text = printed(dir.path(), &["new", "second"]);
    assert!(text.contains("for editors: .luaurc\n"), "{text}");
    assert_eq!(std::fs::read_to_string(dir.path().join("stylua.toml")).unwrap(), "mine");
    let text = printed(dir.path(), &["new", "far/third", "--no-editor-files"]);
    assert!(text.starts_with("exit: 0\n--- stdout\nfar/third.lua\nfar/third_test.lua\nnext"), "{text}");
    let output = r1(dir.path(), &["new", "x", "--template", "gane"]).output().unwrap();
    assert!(shown(dir.path(), &output).contains("'game'"), "{}", shown(dir.path(), &output));
}

#[test]
fn check_tests_the_evaluation_environment() {
    let script = r#"
return r1.recipe {
  env = r1.env { format = "retool" },
  reward = function(state, outcome) return #outcome.text % 2 end,
  data = {
    train = r1.data.generate { count = 4, row = function(index) return { prompt = "Say " .. index } end },
    eval = r1.data.generate { count = 3, row = function(index) return { prompt = "Say " .. index } end },
  },
  trainer = r1.grpo { group_size = 2, groups_per_step = 2, steps = 30 },
  eval = { env = r1.env {
    format = "retool",
    step = function(state, action) return { reward = #action.missing, done = true } end,
  } },
}
"#;
    let dir = directory(&[("x.lua", script)], false);
    let text = printed(dir.path(), &["check", "x.lua"]);
    assert!(!text.starts_with("exit: 0") && text.contains("of 4 of 4 tasks and 3 of data.eval with"), "{text}");
    assert!(text.contains("error (replies): ") && text.contains("--> x.lua:12"), "{text}");
    assert!(text.contains(":reset eval 0 seed="), "{text}");
    let fixed = directory(&[("x.lua", &script.replace("#action.missing", "1"))], false);
    succeed(fixed.path(), &["check", "x.lua"]);
}

#[test]
fn check_rolls_out_the_model_with_the_flag() {
    let dir = directory(&[("x.lua", &recipe(&[("REWARD", "return 1")]))], true);
    let text = printed(dir.path(), &["check", "x.lua", "--model", "policy.model=model"]);
    assert!(text.starts_with("exit: 0") && text.contains("the model, 1-0-1: "), "{text}");
    assert!(text.contains("warning (model): all 2 replies of the model to the first task have the reward 1"), "{text}");
}

const WITH_A_TOOL: &str = r#"
local add = r1.tool { name = "add", description = "Adds.", parameters = { a = "number", b = "number" },
  run = function(arguments) return arguments.a + arguments.b end }
return r1.recipe {
  env = r1.env { tools = { add } },
  reward = function(state, outcome) return #outcome.text % 2 end,
  policy = { model = "model" },
  data = { train = r1.data.generate { count = 8, row = function(index) return { question = "1 + " .. index, answer = "1" } end } },
  sampling = { max_new_tokens = 4 },
  trainer = r1.grpo { steps = 1, group_size = 2, groups_per_step = 2 },
}
"#;

/// Rows for supervised fine-tuning with a tool.
const ROWS_WITH_A_TOOL: &str = r#"
local add = r1.tool { name = "add", description = "Adds.", parameters = { a = "number", b = "number" }, run = function() return "" end }
local row = { messages = { r1.user "1 + 1", r1.assistant "2" }, tools = { add.schema } }
return r1.recipe { policy = { model = "model" }, data = { train = { row } }, trainer = r1.sft { steps = 1, batch_size = 1 } }
"#;

/// Without the names and arguments in its prompt, a policy cannot call tools.
#[test]
fn a_chat_template_that_prints_no_tools_is_reported_before_a_run() {
    let message = "the model's chat template does not print tools: the policy does not see `add`";
    let dir = directory(&[("a.lua", WITH_A_TOOL), ("s.lua", ROWS_WITH_A_TOOL)], false);
    super::copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("models/r1-nano"), &dir.path().join("model"));
    let reported = |args: &[&str]| {
        let text = ran(dir.path(), args);
        text.contains(message)
    };
    assert!(!reported(&["check", "a.lua"]) && !reported(&["run", "a.lua"]));
    let path = dir.path().join("model/tokenizer_config.json");
    let mut config = read_json(&path);
    config["chat_template"] =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                               {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
            .into();
    std::fs::write(&path, config.to_string()).unwrap();
    // The host describes the tools, unless it must not.
    assert!(!reported(&["check", "a.lua"]) && !reported(&["check", "s.lua"]));
    for (script, described) in [("a.lua", "auto"), ("a.lua", "never"), ("s.lua", "auto"), ("s.lua", "never")] {
        let setting = format!("env.describe_tools={described}");
        let text = printed(dir.path(), &["check", "--masks", script, &setting]);
        assert!(text.starts_with("exit: 0"), "{text}");
        assert_eq!(text.contains("To call one, write a JSON object"), described == "auto", "{text}");
    }
    let never = "env.describe_tools=never";
    assert!(reported(&["check", "a.lua", never]) && reported(&["run", "a.lua", "--name", "b", never]));
    assert!(reported(&["check", "s.lua", never]) && reported(&["sft", "s.lua", never]));
    // In this format the tools are an environment's own matter.
    assert!(!reported(&["check", "a.lua", "env.format=answer"]));
}

#[test]
fn a_declared_program_that_is_not_installed_is_found_before_a_run() {
    let source = recipe(&[("MORE", "\nneeds = { 'process:sort', 'process:no-such-program' },")]);
    let why = "`needs` declares \"process:no-such-program\": there is no program `no-such-program`";
    assert_eq!(findings(&source), [format!("error tools x.lua:6: {why}")]);
    let dir = directory(&[("x.lua", &source)], true);
    let shown = printed(dir.path(), &["run", "x.lua", "policy.model=model"]);
    let hint = "hint: install it, or take it out of `needs`; programs are looked for in /usr/local/bin:/usr/bin:/bin";
    assert!(shown.contains(&format!("error: {why}\n  --> x.lua:6\n  {hint}")), "{shown}");
}

#[test]
fn missing_interpreters_and_packages_are_reported_at_the_line_of_their_tool() {
    for (options, why) in [
        ("interpreter = 'no-such-python'", "can't run the Python interpreter no-such-python: No such file"),
        ("packages = { 'no_such_package' }", "the Python package `no_such_package` is not installed for Python 3."),
    ] {
        let local = format!("\nlocal python = r1.tools.python {{ {options} }}");
        let lines = findings(&recipe(&[("LOCALS", &local), ("TOOLS", "tools = { python },")]));
        assert!(lines[0].starts_with(&format!("error tools x.lua:2: tool `python`: {why}")), "{lines:?}");
    }
}
