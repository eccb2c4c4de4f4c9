//! Tests of context policies: the observations of the policy, decoded from the ids of its prompts.

use std::path::Path;
use std::sync::{Arc, Mutex};

use insta::assert_snapshot;

use super::*;
use crate::mdp::{Scripted, Status, Trajectory};
use crate::rollout::{Spec, drive};
use crate::text::Renderer;

fn renderer() -> Arc<Renderer> {
    let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/r1-nano");
    Arc::new(Renderer::load(&nano, "hermes").unwrap())
}

/// Runs one trajectory whose replies are "r1", "r2" …; returns it and its prompts, with one line
/// per message.
fn rollout(source: &str, overrides: &[&str]) -> (Trajectory, Vec<String>) {
    let bench = Bench::new(source);
    let script = bench.load(overrides).unwrap();
    let renderer = renderer();
    let worker = Worker::new(&script, Some(renderer.clone())).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (shared_renderer, prompts) = (renderer.clone(), seen.clone());
    let policy = Scripted::new(move |request| {
        let mut prompts = prompts.lock().unwrap();
        prompts.push(request.prompt_ids.clone());
        shared_renderer.tokenizer().encode(&format!("r{}<|im_end|>", prompts.len())).unwrap()
    });
    let spec = Spec::new(Split::Train, 0, &script.settings);
    let mut trajectory = run(drive(&worker, &renderer, &policy, &spec)).unwrap();
    trajectory.error = trajectory.error.map(|error| crate::mdp::ErrorRecord::of_text(bench.show(error)));
    let prompts = seen.lock().unwrap().iter().map(|ids| flat(&renderer.tokenizer().decode(ids, false))).collect();
    (trajectory, prompts)
}

/// `<|im_start|>user\nhello<|im_end|>\n…` as `user: hello | …`
fn flat(prompt: &str) -> String {
    let messages = prompt.split("<|im_start|>").skip(1).map(|message| {
        let (role, content) = message.split_once('\n').unwrap();
        format!("{role}: {}", content.trim_end().trim_end_matches("<|im_end|>").replace('\n', "/"))
    });
    messages.collect::<Vec<_>>().join(" | ")
}

/// A recipe whose env answers every reply with a result, `steps` times, and whose context is
/// `context`.
fn conversation(steps: usize, context: &str) -> String {
    format!(
        r#"
        return r1.recipe {{
          env = r1.env {{
            max_steps = {steps},
            reset = function() return {{ notes = {{}}, messages = {{ r1.system("sys"), r1.user("task") }} }} end,
            step = function(state, action)
              r1.push(state.messages, r1.assistant(action))
              r1.push(state.messages, r1.observation("seen " .. #state.messages .. " " .. string.rep("x", 40)))
              r1.push(state.notes, "after " .. action.text .. " the box was " .. ({{ "red", "blue", "green" }})[#state.notes % 3 + 1])
              return {{ reward = 0 }}
            end,
          }},
          context = {context},
          reward = function() return 0 end,
          data = {{ train = r1.data.generate {{ count = 1, row = function() return {{}} end }} }},
        }}
        "#
    )
}

fn last_prompt(steps: usize, context: &str) -> String {
    let (trajectory, prompts) = rollout(&conversation(steps, context), &[]);
    assert_eq!((trajectory.status, prompts.len()), (Status::Truncated, steps), "{:?}", trajectory.error);
    prompts.last().unwrap().clone()
}

fn view(chain: &str) -> String {
    format!("function(state, budget) return r1.context(state.messages){chain} end")
}

#[test]
fn without_a_policy_everything_is_appended() {
    let (trajectory, prompts) = rollout(&conversation(3, "nil"), &[]);
    assert!(prompts.windows(2).all(|pair| pair[1].starts_with(pair[0].trim_end_matches("assistant: "))), "{prompts:?}");
    assert_eq!(trajectory.steps.iter().map(|step| step.new_row).collect::<Vec<_>>(), [true, false, false]);
    assert_snapshot!(prompts[1], @"system: sys | user: task | assistant: r1 | user: <tool_response>/seen 3 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/</tool_response> | assistant:");
}

#[test]
fn a_context_window_by_turns() {
    assert_snapshot!(last_prompt(4, &view(":last_turns(1)")), @"system: sys | user: task | assistant: r3 | user: <tool_response>/seen 7 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/</tool_response> | assistant:");
    assert_snapshot!(last_prompt(4, &view(":keep_first(1):last_turns(2)")), @"system: sys | assistant: r2 | user: <tool_response>/seen 5 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/</tool_response> | assistant: r3 | user: <tool_response>/seen 7 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/</tool_response> | assistant:");
    assert_snapshot!(last_prompt(4, &view(":last_turns(0)")), @"system: sys | user: task | assistant: r3 | user: <tool_response>/seen 7 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/</tool_response> | assistant:");
}

#[test]
fn a_context_window_by_tokens_drops_whole_exchanges() {
    let source = conversation(6, &view(":drop_oldest_until(240)"));
    let (trajectory, prompts) = rollout(&source, &[]);
    assert_eq!(trajectory.status, Status::Truncated, "{:?}", trajectory.error);
    let sizes: Vec<usize> = trajectory.steps.iter().map(|step| step.prompt_ids.len()).collect();
    assert!(sizes.iter().all(|size| *size <= 240), "{sizes:?}");
    assert!(sizes[5] > 160, "only as many as necessary are dropped: {sizes:?}");
    assert_snapshot!(prompts.last().unwrap(), @"system: sys | user: task | assistant: r3 | user: <tool_response>/seen 7 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/</tool_response> | assistant: r4 | user: <tool_response>/seen 9 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/</tool_response> | assistant: r5 | user: <tool_response>/seen 11 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/</tool_response> | assistant:");
}

#[test]
fn context_drops_user_messages_with_their_replies() {
    let chat = |context: &str| {
        conversation(5, context).replace("r1.push(state.messages, r1.observation(", "r1.push(state.messages, r1.user(")
    };
    let last = |context: &str| {
        rollout(&chat(context), &[]).1.pop().unwrap().replace(" xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "")
    };
    assert_snapshot!(last(&view(":last_turns(1)")), @"system: sys | user: task | user: seen 7 | assistant: r4 | user: seen 9 | assistant:");
    assert_snapshot!(last(&view(":last_turns(2)")), @"system: sys | user: task | user: seen 5 | assistant: r3 | user: seen 7 | assistant: r4 | user: seen 9 | assistant:");
    assert_snapshot!(last(&view(":last_turns(0)")), @"system: sys | user: task | user: seen 9 | assistant:");
    assert_snapshot!(last(&view(":drop_oldest_until(150)")), @"system: sys | user: task | user: seen 7 | assistant: r4 | user: seen 9 | assistant:");
    assert_snapshot!(last(&view(":keep_first(1):drop_oldest_until(100)")), @"system: sys | user: seen 9 | assistant:");
}

#[test]
fn context_drops_or_shortens_old_tool_results() {
    assert_snapshot!(last_prompt(3, &view(":drop_tool_results { keep = 1 }")), @"system: sys | user: task | assistant: r1 | user: <tool_response>/(result left out)/</tool_response> | assistant: r2 | user: <tool_response>/seen 5 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/</tool_response> | assistant:");
    assert_snapshot!(last_prompt(3, &view(":shorten_tool_results { keep = 0, head = 6, tail = 2 }")), @"system: sys | user: task | assistant: r1 | user: <tool_response>/seen 3/… (39 more characters)/xx/</tool_response> | assistant: r2 | user: <tool_response>/seen 5/… (39 more characters)/xx/</tool_response> | assistant:");
    // Only as many as needed, oldest first.
    assert_snapshot!(last_prompt(4, &view(":drop_tool_results { text = '-', over = 120 }")), @"system: sys | user: task | assistant: r1 | user: <tool_response>/-/</tool_response> | assistant: r2 | user: <tool_response>/-/</tool_response> | assistant: r3 | user: <tool_response>/seen 7 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/</tool_response> | assistant:");
    // Short results stay unchanged.
    let same = last_prompt(3, &view(":shorten_tool_results { keep = 0, head = 60 }"));
    assert_eq!(same, last_prompt(3, "nil"));
}

#[test]
fn context_recall_inserts_notes_within_the_budget() {
    let chain = ":last_turns(1):recall { notes = state.notes, query = 'which was blue?', most = 1 }";
    assert_snapshot!(last_prompt(4, &view(chain)), @"system: sys | user: task//Notes:/- after r2 the box was blue | assistant: r3 | user: <tool_response>/seen 7 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/</tool_response> | assistant:");
    let chain = ":last_turns(1):recall { notes = state.notes, query = 'box', title = 'Seen:', most = 9, over = 120, at = 'last' }";
    let prompt = last_prompt(5, &view(chain));
    assert_snapshot!(prompt, @"system: sys | user: task | assistant: r4 | user: <tool_response>/seen 9 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx//Seen:/- after r1 the box was red/</tool_response> | assistant:");
    assert!(renderer().tokenizer().encode(&prompt).unwrap().len() <= 140);
}

#[test]
fn a_summary_replaces_the_oldest_messages_of_a_context() {
    let context = r#"function(state, budget)
      return r1.context(state.messages):summarize {
        over = 300, to = 180, memory = state,
        write = function(messages, earlier)
          state.written = (state.written or 0) + 1
          return (earlier and earlier .. "; " or "") .. #messages .. " messages up to " .. messages[#messages].content:sub(1, 7)
        end,
      }
    end"#;
    let (trajectory, prompts) = rollout(&conversation(8, context), &[]);
    assert_eq!(trajectory.status, Status::Truncated, "{:?}", trajectory.error);
    let sizes: Vec<usize> = trajectory.steps.iter().map(|step| step.prompt_ids.len()).collect();
    assert!(sizes.iter().all(|size| *size <= 300), "{sizes:?}");
    // Between two summaries each step extends the previous one: they are trained as one row.
    let rows: Vec<bool> = trajectory.steps.iter().map(|step| step.new_row).collect();
    assert_snapshot!(format!("{rows:?}"), @"[true, false, false, false, true, false, false, true]");
    assert_snapshot!(prompts.last().unwrap(), @"system: sys | user: task//Summary of what came before:/6 messages up to seen 7 ; 6 messages up to seen 13 | assistant: r7 | user: <tool_response>/seen 15 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/</tool_response> | assistant:");
}

#[test]
fn context_summaries_are_written_by_the_policy() {
    let context = r#"function(state, budget)
      return r1.context(state.messages):summarize { over = 300, to = 180, memory = state, max_new_tokens = 20, train = true }
    end"#;
    let (trajectory, prompts) = rollout(&conversation(6, context), &["sampling.max_new_tokens=40"]);
    assert_eq!(trajectory.status, Status::Truncated, "{:?}", trajectory.error);
    assert_snapshot!(prompts[4], @"user: Sum up this part of a conversation for the one who goes on with it: what was asked, what was done and found, what is left to do. Be brief.//assistant: r1/tool: seen 3 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/assistant: r2/tool: seen 5 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/assistant: r3/tool: seen 7 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx | assistant:");
    assert_snapshot!(prompts[5], @"system: sys | user: task//Summary of what came before:/r5 | assistant: r4 | user: <tool_response>/seen 9 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/</tool_response> | assistant:");
    // The summary is not a step; its tokens are in the record, for training.
    assert_eq!((trajectory.steps.len(), prompts.len(), trajectory.record.len()), (6, 7, 1));
    let call = serde_json::to_value(&trajectory.record[0]).unwrap();
    assert_eq!(
        (&call["step"], &call["kind"], &call["request"]["train"]),
        (&4.into(), &"generate".into(), &true.into())
    );
    let renderer = renderer();
    let ids = |name: &str| -> Vec<u32> { serde_json::from_value(call["answer"]["ok"][name].clone()).unwrap() };
    assert_eq!(renderer.tokenizer().decode(&ids("token_ids"), false), "r5<|im_end|>");
    assert_eq!(flat(&renderer.tokenizer().decode(&ids("prompt_ids"), false)), prompts[4]);
}

#[test]
fn generate_samples_from_the_policy() {
    let with = |call: &str| {
        let source = format!(
            r#"return r1.recipe {{
              env = r1.env {{
                max_steps = 1,
                reset = function() return {{ messages = {{ r1.user("task") }} }} end,
                step = function(state, action)
                  local text, facts = {call}
                  r1.push(state.messages, r1.user(tostring(text) .. " " .. (type(facts) == "table" and facts.finish_reason .. facts.tokens or facts)))
                  return {{ done = true }}
                end,
              }},
              reward = function() return 0 end,
              data = {{ train = r1.data.generate {{ count = 1, row = function() return {{}} end }} }},
            }}"#
        );
        let (trajectory, prompts) = rollout(&source, &["policy.max_context=400"]);
        let last = trajectory.messages.last().map(|message| message.content.text()).unwrap_or_default();
        (trajectory.error_text().unwrap_or(last), prompts)
    };
    let (reported, prompts) = with("r1.generate('Judge this')");
    assert_eq!((reported.as_str(), prompts[1].as_str()), ("r2 stop3", "user: Judge this | assistant: "));
    let (reported, prompts) = with("r1.generate({ r1.system('s'), r1.user('u') }, { max_new_tokens = 1 })");
    assert_eq!((reported.as_str(), prompts[1].as_str()), ("r length1", "system: s | user: u | assistant: "));
    let (reported, _) = with("r1.generate(string.rep('word ', 1000))");
    assert_snapshot!(reported, @"nil the prompt has 4016 tokens and the context holds 400");
    let (reported, prompts) =
        with("r1.join { function() return (r1.generate('a')) end, function() return (r1.generate('b')) end }");
    assert_eq!((reported.as_str(), prompts.len()), ("r2 r3", 3));
    assert_snapshot!(with("r1.generate(3)").0, @r#"
    r1.generate: takes messages or text, got the number 3
      --> x.lua:6
         6 |                   local text, facts = r1.generate(3)
    "#);
    assert_snapshot!(with("r1.generate('x', { tran = true })").0, @r#"
    r1.generate: unknown field `tran`
      --> x.lua:6
         6 |                   local text, facts = r1.generate('x', { tran = true })
      hint: did you mean `train`?
    "#);
    assert_snapshot!(with("r1.generate('x', { train = true, temperature = 0 })").0, @r#"
    r1.generate: with `train` the policy uses the recipe's `sampling`: leave out temperature, top_k, top_p, min_p
      --> x.lua:6
         6 |                   local text, facts = r1.generate('x', { train = true, temperature = 0 })
    "#);
    assert_snapshot!(with("r1.generate('x', { train = true, model = 'r1-nano' })").0, @r#"
    r1.generate: `train` is for text of the policy, and `model` is another model
      --> x.lua:6
         6 |                   local text, facts = r1.generate('x', { train = true, model = 'r1-nano' })
    "#);
    assert_snapshot!(with("r1.generate('x', { max_new_tokens = 1.5 })").0, @r#"
    r1.generate: `max_new_tokens` must be a whole number, 0 or more, got the number 1.5
      --> x.lua:6
         6 |                   local text, facts = r1.generate('x', { max_new_tokens = 1.5 })
    "#);
}

#[test]
fn generate_without_a_policy_is_an_error() {
    let bench = Bench::new(&recipe("local env = r1.env { reset = function() return { it = r1.generate('x') } end }"));
    assert_snapshot!(bench.show(run(bench.worker().reset(&Json::Null, 0)).unwrap_err()), @r#"
    r1.generate: there is no policy here
      --> x.lua:1
      hint: r1 repl and r1 infer have one; a test gives the texts: script:reset { generate = { "text" } }
    "#);
}

#[test]
fn policies_compose_and_custom_ones_map() {
    let chain = ":shorten_tool_results { keep = 1, head = 4 }:last_turns(2):map(function(message, k, count) \
                 if message.role == 'system' then return nil end \
                 if k == count then message.content = message.content .. ' (' .. count .. ')' end return message end)";
    assert_snapshot!(last_prompt(4, &view(chain)), @"user: task | assistant: r2 | user: <tool_response>/seen/… (43 more characters)/</tool_response> | assistant: r3 | user: <tool_response>/seen 7 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx (6)/</tool_response> | assistant:");
    let custom = "function(state, budget) local c = r1.context(state.messages):last_turns(1) \
               return { r1.user('you have ' .. budget.tokens - c:tokens() .. ' left of ' .. budget.tokens) } end";
    assert_snapshot!(last_prompt(2, custom), @"user: you have 3742 left of 3840 | assistant:");
}

#[test]
fn the_state_keeps_messages_that_the_context_drops() {
    let chain = ":drop_tool_results { keep = 0 }:map(function(m) m.content = 'x' return m end):last_turns(1)";
    let (trajectory, _) = rollout(&conversation(3, &view(chain)), &[]);
    assert_eq!(trajectory.messages.len(), 8);
    assert!(trajectory.messages[7].content.text().starts_with("seen 7 xxxx"));
}

#[test]
fn a_context_over_its_budget_is_an_error_with_sizes() {
    let small = ["policy.max_context=200", "sampling.max_new_tokens=40", "env.on_overflow=fail"];
    let reported = |context: &str| {
        let (trajectory, _) = rollout(&conversation(9, context), &small);
        format!("{}: {}", trajectory.status.name(), trajectory.error_text().unwrap_or_default())
    };
    assert_snapshot!(reported("function(state) return state.messages end"), @"
    env_error: context returned 167 tokens and its budget is 160: messages[1] system 2, messages[2] user 3, messages[3] assistant 2, messages[4] tool 46, messages[5] assistant 2, messages[6] tool 46, template and tools 66
      --> x.lua:13
        13 |           context = function(state) return state.messages end,
      hint: r1.context(state.messages):drop_oldest_until(budget.tokens) drops the oldest messages
    ");
    assert_snapshot!(reported("function(state) return string.rep('word ', 400) end"), @"
    env_error: context returned 1601 tokens and its budget is 160: its text 1601
      --> x.lua:13
        13 |           context = function(state) return string.rep('word ', 400) end,
      hint: r1.context(state.messages):drop_oldest_until(budget.tokens) drops the oldest messages
    ");
    // The messages that must be kept exceed the budget.
    let long = ":keep_first(1):keep_last(9):drop_oldest_until(budget.tokens)";
    assert_snapshot!(reported(&view(long)), @"
    context_overflow: the messages that the context keeps have 167 tokens and the budget is 160: messages[1] system 2, messages[2] user 3, messages[3] assistant 2, messages[4] tool 46, messages[5] assistant 2, messages[6] tool 46, template and tools 66
      --> x.lua:13
        13 |           context = function(state, budget) return r1.context(state.messages):keep_first(1):keep_last(9):drop_oldest_until(budget.tokens) end,
      hint: keep fewer messages (keep_first, keep_last), shorten tool results, or raise policy.max_context if the model allows it
    ");
    // Without a context policy the maximum length of a reply shrinks until no room is left.
    assert_snapshot!(reported("nil"), @r#"
    context_overflow: the prompt has 236 tokens and the context holds 200: messages[1] system 2, messages[2] user 3, messages[3] assistant 2, messages[4] tool 46, messages[5] assistant 2, messages[6] tool 46, messages[7] assistant 2, messages[8] tool 46, template and tools 87
      hint: shorten it in the recipe's context function, or raise policy.max_context if the model allows it
    "#);
    // A context that respects its budget never ends this way.
    let (trajectory, _) = rollout(&conversation(9, &view(":drop_oldest_until(budget.tokens)")), &small);
    assert_eq!(trajectory.status, Status::Truncated, "{:?}", trajectory.error);
}

#[test]
fn misuse_is_reported_at_its_line() {
    let mut text = String::new();
    for chain in [
        ":keep_first(-1)",
        ":keep_last('x')",
        ":last_turn(3)",
        ":drop_oldest_until(0/0)",
        ":map(3)",
        ":drop_tool_results { keeps = 1 }",
        ":shorten_tool_results { head = -1 }",
        ":recall {}",
        ":recall { notes = { 3 } }",
        ":recall { notes = {}, at = 'middle' }",
        ":summarize { over = 100, write = tostring }",
        ":summarize { over = 100, memory = state, write = tostring, train = true }",
        ":last_turns(0):summarize { over = 10, memory = state, write = tostring }",
        ":summarize { over = 10, memory = state, write = function() end }",
        ":map(function() return 'x' end)",
        ":map(function() return nil end)",
    ] {
        let (trajectory, _) = rollout(&conversation(4, &format!("\n{}", view(chain))), &[]);
        text.push_str(&format!(
            "{chain}\n    {}\n",
            trajectory.error_text().unwrap_or_default().replace('\n', "\n    ")
        ));
    }
    assert_snapshot!(text, @r#"
    :keep_first(-1)
        keep_first: takes a whole number, 0 or more, got -1
          --> x.lua:14
            14 | function(state, budget) return r1.context(state.messages):keep_first(-1) end,
    :keep_last('x')
        keep_last: takes a whole number, 0 or more, got x
          --> x.lua:14
            14 | function(state, budget) return r1.context(state.messages):keep_last('x') end,
    :last_turn(3)
        `context.last_turn` does not exist
          --> x.lua:14
            14 | function(state, budget) return r1.context(state.messages):last_turn(3) end,
          hint: did you mean `last_turns`?
    :drop_oldest_until(0/0)
        drop_oldest_until: takes a whole number, 0 or more, got nan
          --> x.lua:14
            14 | function(state, budget) return r1.context(state.messages):drop_oldest_until(0/0) end,
    :map(3)
        map: takes a function of a message, got a number
          --> x.lua:14
            14 | function(state, budget) return r1.context(state.messages):map(3) end,
    :drop_tool_results { keeps = 1 }
        drop_tool_results: unknown option `keeps`; it takes keep, over, text
          --> x.lua:14
            14 | function(state, budget) return r1.context(state.messages):drop_tool_results { keeps = 1 } end,
    :shorten_tool_results { head = -1 }
        shorten_tool_results: `head`: takes a whole number, 0 or more, got -1
          --> x.lua:14
            14 | function(state, budget) return r1.context(state.messages):shorten_tool_results { head = -1 } end,
    :recall {}
        recall: needs `notes`, a list of texts: a field of the state
          --> x.lua:14
            14 | function(state, budget) return r1.context(state.messages):recall {} end,
    :recall { notes = { 3 } }
        recall: note 1 is neither text nor a table with `text`
          --> x.lua:14
            14 | function(state, budget) return r1.context(state.messages):recall { notes = { 3 } } end,
    :recall { notes = {}, at = 'middle' }
        recall: `at` is "first" or "last"
          --> x.lua:14
            14 | function(state, budget) return r1.context(state.messages):recall { notes = {}, at = 'middle' } end,
    :summarize { over = 100, write = tostring }
        summarize: needs `memory`
          --> x.lua:14
            14 | function(state, budget) return r1.context(state.messages):summarize { over = 100, write = tostring } end,
    :summarize { over = 100, memory = state, write = tostring, train = true }
        summarize: `train` has no effect with `write`
          --> x.lua:14
            14 | function(state, budget) return r1.context(state.messages):summarize { over = 100, memory = state, write = tostring, train = true } end,
    :last_turns(0):summarize { over = 10, memory = state, write = tostring }
        summarize: comes first, before messages are dropped or changed
          --> x.lua:14
            14 | function(state, budget) return r1.context(state.messages):last_turns(0):summarize { over = 10, memory = state, write = tostring } end,
    :summarize { over = 10, memory = state, write = function() end }
        summarize: `write` gave a nil; it must give text
          --> x.lua:14
            14 | function(state, budget) return r1.context(state.messages):summarize { over = 10, memory = state, write = function() end } end,
    :map(function() return 'x' end)
        messages[1] is the text "x"; a message is a table with `role` and `content`
          --> x.lua:14
            14 | function(state, budget) return r1.context(state.messages):map(function() return 'x' end) end,
    :map(function() return nil end)
        `messages` is empty
          --> x.lua:14
            14 | function(state, budget) return r1.context(state.messages):map(function() return nil end) end,
    "#);
}

#[test]
fn tools_reach_the_state_through_their_call() {
    let source = r#"
      local note = r1.tool { name = "note", parameters = { text = "string" },
        run = function(args, call) r1.push(call.state.notes, args.text) return "noted" end }
      local env = r1.env { tools = { note }, reset = function() return { notes = {}, messages = { r1.user("?") } } end }
    "#;
    let worker = Bench::new(&recipe(source)).worker();
    run(async {
        let state = worker.reset(&Json::Null, 1).await.unwrap();
        let mut act = action("");
        act.tool_calls.push(call("note", serde_json::json!({"text": "the key is red"})));
        worker.step(&state, &act).await.unwrap();
        assert_eq!(state.snapshot().unwrap()["state"]["notes"], serde_json::json!(["the key is red"]));
    });
}
