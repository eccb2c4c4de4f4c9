//! Tests of flows: equality with an environment of the same steps; limits, failures, forks and
//! conversations.

use super::*;
use crate::mdp::{Limit, Sampling};

/// Tools, random numbers, the clock and a state, once as an environment and once as a flow.
const LOOK: &str = r#"
local look = r1.tool { name = "look", description = "Looks", parameters = {}, run = function(_, call)
  return "seen " .. call.state.draws[#call.state.draws], 0.125
end }
local function settings(own)
  own.max_steps, own.max_tokens, own.tools, own.format = 4, 40, { look }, "hermes"
  return own
end
local function reward(state, outcome)
  return { last = state.draws[#state.draws] / 1000, cut = outcome.truncated and 1 or 0 }
end
local data = { train = r1.data.generate { count = 4, row = function(n) return { n = n } end } }
"#;

const ENV: &str = r#"
return r1.recipe {
  env = r1.env(settings {
    reset = function(task) return { task = task, draws = { math.random(1000) }, messages = { r1.user("go") } } end,
    step = function(state, action)
      r1.push(state.messages, r1.assistant(action))
      r1.push(state.draws, math.random(1000))
      for _, result in ipairs(r1.call_tools(action.tool_calls, { state = state })) do
        r1.push(state.messages, r1.observation(result))
      end
      r1.push(state.messages, r1.user("draw " .. state.draws[#state.draws] .. " at " .. r1.clock() // 1e9))
      if action.text:find("boom") then error("boom") end
      if action.text:find("cut") then return { truncated = true, reward = 2 } end
      return { done = action.text:find("stop") ~= nil, reward = #action.text }
    end,
  }),
  reward = reward, data = data,
}
"#;

const FLOW: &str = r#"
return r1.recipe {
  env = r1.env(settings {
    flow = function(task, policy)
      local state = policy.state
      state.draws = { math.random(1000) }
      local messages = { r1.user("go") }
      while true do
        local action = policy:generate(messages)
        r1.push(messages, r1.assistant(action))
        r1.push(state.draws, math.random(1000))
        for _, result in ipairs(r1.call_tools(action.tool_calls, { state = state })) do
          r1.push(messages, r1.observation(result))
        end
        r1.push(messages, r1.user("draw " .. state.draws[#state.draws] .. " at " .. r1.clock() // 1e9))
        if action.text:find("boom") then error("boom") end
        if action.text:find("cut") then return { truncated = true, reward = 2 } end
        if action.text:find("stop") then return #action.text end
        policy:reward(#action.text)
      end
    end,
  }),
  reward = reward, data = data,
}
"#;

struct Flows {
    script: Script,
    renderer: Arc<Renderer>,
    dir: tempfile::TempDir,
}

impl Flows {
    fn new(source: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lua");
        std::fs::write(&path, source).unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let renderer = Arc::new(Renderer::load(&root.join("models/r1-nano"), "hermes").unwrap());
        Self { script: Script::load(&path, &[]).unwrap(), renderer, dir }
    }

    /// A recipe with only a flow.
    fn of(body: &str) -> Self {
        Self::new(&format!(
            "return r1.recipe {{ flow = function(task, policy)\n{body}\nend,\n\
             data = {{ train = {{ {{ prompt = 'go' }} }} }} }}"
        ))
    }

    fn spec(&self, row: u64) -> Spec {
        Spec { next_prompt: true, ..Spec::new(Split::Train, row, &self.script.settings) }
    }

    /// A trajectory with these replies, repeated, and the requests that it made.
    fn play(&self, spec: Spec, replies: &[&str]) -> (Trajectory, Vec<Request>) {
        let replies: Vec<String> = replies.iter().map(|word| (*word).to_owned()).collect();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let say = move |request: &Request| {
            lock(&log).push(request.clone());
            (replies[request.seed.step as usize % replies.len()].clone(), -0.5)
        };
        let policy: Arc<dyn Policy> =
            Arc::new(ScriptedPolicy { renderer: Arc::clone(&self.renderer), say, log: Mutex::default() });
        let options = PoolOptions { workers: 1, concurrency: 1, retries: 0 };
        let pool = Pool::new(&self.script, &self.renderer, &options).unwrap();
        let trajectory = pool.start(&policy, vec![spec.clone()], &no_progress()).unwrap().finish().unwrap().remove(0);
        self.replays(&trajectory, spec);
        let requests = std::mem::take(&mut *lock(&seen));
        (trajectory, requests)
    }

    fn replays(&self, trajectory: &Trajectory, spec: Spec) {
        let worker = Worker::new(&self.script, Some(Arc::clone(&self.renderer))).unwrap();
        let stage = Stage { worker: &worker, renderer: &self.renderer };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let replayed = runtime.block_on(replay(stage, trajectory, spec, Strictness::Exact)).unwrap();
        assert_eq!(first_difference(&self.renderer, trajectory, &replayed), None);
        assert!(!replayed.unfinished);
    }

    fn decode(&self, ids: &[u32]) -> String {
        self.renderer.tokenizer().decode(ids, false)
    }

    /// Status and message of a failure, without the directory.
    fn failure(&self, replies: &[&str]) -> String {
        let (trajectory, _) = self.play(self.spec(0), replies);
        assert!(trajectory.status.is_failure(), "{trajectory:?}");
        let error = trajectory.error_text().unwrap_or_default();
        format!("{}: {error}", trajectory.status.name()).replace(&format!("{}/", self.dir.path().display()), "")
    }
}

/// Without fields that depend on the text of the script and on time, and without the state.
fn comparable(mut trajectory: Trajectory) -> Trajectory {
    trajectory.script_hash.clear();
    trajectory.seconds = 0.0;
    trajectory.initial_state = None;
    trajectory.error = trajectory.error.map(|_| crate::mdp::ErrorRecord::of_text(""));
    for step in &mut trajectory.steps {
        (step.seconds, step.state) = Default::default();
        step.tools.iter_mut().for_each(|tool| tool.seconds = 0.0);
    }
    trajectory
}

#[test]
fn a_flow_equals_the_environment_with_the_same_steps() {
    let (env, flow) = (Flows::new(&[LOOK, ENV].concat()), Flows::new(&[LOOK, FLOW].concat()));
    let call = "<tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n</tool_call>";
    let plays: [&[&str]; 7] =
        [&["a", "b", "stop"], &["stop"], &["a"], &[call, "bb", "stop"], &["a", "boom"], &["cut"], &["a long reply"]];
    for (row, replies) in plays.iter().enumerate() {
        let row = row as u64 % 4;
        let (one, requests) = env.play(env.spec(row), replies);
        let (two, requests_of_flow) = flow.play(flow.spec(row), replies);
        let (mut one, mut two) = (comparable(one), comparable(two));
        if one.truncated_by == Some(Limit::Env) {
            // A flow that has returned has no next observation.
            let last = two.steps.last_mut().unwrap();
            assert_eq!(last.next_prompt_ids, [last.prompt_ids.clone(), last.response_ids.clone()].concat());
            last.next_prompt_ids.clone_from(&one.steps.last().unwrap().next_prompt_ids);
        }
        one.record.retain(|exchange| exchange.kind != "clock");
        two.record.retain(|exchange| exchange.kind != "clock");
        assert_eq!(one, two, "{replies:?}");
        assert_eq!(format!("{requests:?}"), format!("{requests_of_flow:?}"), "{replies:?}");
    }
}

#[test]
fn conversations_of_a_flow_keep_the_sampled_ids() {
    // Two conversations, turn by turn. The sampled ids differ from the tokenizer's ids of their
    // text.
    let flows = Flows::of(
        "local a, b = { r1.user('first') }, { r1.user('second') }\n\
         for _ = 1, 2 do\n\
           for _, chat in { a, b } do\n\
             r1.push(chat, r1.assistant(policy:generate(chat)))\n\
             r1.push(chat, r1.user('and?'))\n\
           end\n\
         end\n\
         return 1",
    );
    let odd: Vec<u32> =
        "What".bytes().flat_map(|b| flows.renderer.tokenizer().encode(&char::from(b).to_string()).unwrap()).collect();
    assert_ne!(odd, flows.renderer.tokenizer().encode("What").unwrap());
    let stop = flows.renderer.stop_ids()[0];
    let reply = [odd, vec![stop]].concat();
    let reply_ids = reply.clone();
    let policy: Arc<dyn Policy> = Arc::new(crate::mdp::Scripted::new(move |_| reply_ids.clone()));
    let pool = Pool::new(&flows.script, &flows.renderer, &PoolOptions::default()).unwrap();
    let trajectory = pool.start(&policy, vec![flows.spec(0)], &no_progress()).unwrap().finish().unwrap().remove(0);
    assert_eq!((trajectory.status, trajectory.steps.len()), (Status::Terminated, 4), "{:?}", trajectory.error);
    for (first, later) in [(0, 2), (1, 3)] {
        let whole = [trajectory.steps[first].prompt_ids.clone(), reply.clone()].concat();
        assert!(
            trajectory.steps[later].prompt_ids.starts_with(&whole),
            "{}",
            flows.decode(&trajectory.steps[later].prompt_ids)
        );
        assert!(trajectory.steps[later].prompt_ids.len() > whole.len());
    }
    // Steps of the two conversations alternate.
    assert!(trajectory.steps.iter().all(|step| step.new_row));
    flows.replays(&trajectory, flows.spec(0));
}

#[test]
fn a_limit_ends_a_flow_which_may_still_return_a_reward() {
    let ignorant = Flows::of("local m = { r1.user('x') } while true do policy:generate(m) policy:reward(0.5) end");
    let (ended, _) = ignorant.play(ignorant.spec(0), &["a"]);
    assert_eq!((ended.status, ended.truncated_by, ended.steps.len()), (Status::Truncated, Some(Limit::MaxSteps), 8));
    assert_eq!(ended.total_reward(), 4.0);
    // The next observation is kept for the critic.
    assert_eq!(ended.steps[7].next_prompt_ids, ended.steps[0].prompt_ids);

    let careful = "local m, n = { r1.user('x') }, 0\n\
                   while true do\n\
                     local ok, reply = pcall(policy.generate, policy, m)\n\
                     if not ok then r1.log(reply) return { reward = n, parts = { cut = 1 } } end\n\
                     n = n + 1\n\
                   end";
    let careful = Flows::of(careful);
    let spec = Spec { max_steps: Some(3), ..careful.spec(0) };
    let (ended, _) = careful.play(spec, &["a"]);
    assert_eq!((ended.status, ended.truncated_by, ended.steps.len()), (Status::Truncated, Some(Limit::MaxSteps), 3));
    assert_eq!((ended.total_reward(), ended.reward_parts["cut"]), (3.0, 1.0));

    // A full context is a limit too; before the first reply it is a failure.
    let growing = Flows::of(
        "local m = { r1.user('x') } while true do policy:generate(m) r1.push(m, r1.user(('y '):rep(50))) end",
    );
    let spec = Spec { max_context: 200, ..growing.spec(0) };
    let (ended, _) = growing.play(spec, &["a"]);
    assert_eq!((ended.status, ended.truncated_by), (Status::Truncated, Some(Limit::ContextOverflow)));
    let full = Flows::of("policy:generate({ r1.user(('y '):rep(9000)) })");
    let (ended, _) = full.play(full.spec(0), &["a"]);
    assert_eq!((ended.status, ended.steps.len()), (Status::ContextOverflow, 0));
}

#[test]
fn a_flow_sets_tools_stop_strings_and_length_of_a_reply() {
    let source = "local tool = r1.tool { name = 'look', description = 'L', parameters = {}, run = function() return 'x' end }\n\
                  return r1.recipe { env = r1.env { tools = { tool }, format = 'hermes', flow = function(task, policy)\n\
                    policy:generate({ r1.user('a') })\n\
                    policy:generate({ r1.user('a') }, { tools = {}, max_new_tokens = 5, stop = 'END' })\n\
                    local reply = policy:generate('plain', { max_new_tokens = 1000000 })\n\
                    policy:reward(policy.steps) policy:reward(10, 1) policy:reward(policy.budget.tokens * 0, 2)\n\
                  end }, data = { train = { { prompt = 'go' } } } }";
    let flows = Flows::new(source);
    let (ended, requests) = flows.play(flows.spec(0), &["a", "b"]);
    assert_eq!((ended.status, ended.steps.len()), (Status::Terminated, 3), "{:?}", ended.error);
    assert_eq!(ended.steps.iter().map(|step| step.reward).collect::<Vec<_>>(), [10.0, 0.0, 3.0]);
    let shown: Vec<String> = requests.iter().map(|request| flows.decode(&request.prompt_ids)).collect();
    assert!(shown[0].contains("\"look\"") && !shown[1].contains("look"), "{shown:?}");
    assert_eq!(shown[2], "plain");
    let defaults = Sampling::default();
    let limits: Vec<(usize, bool)> = requests
        .iter()
        .map(|request| (request.sampling.max_new_tokens, request.sampling.stop.contains(&"END".to_owned())))
        .collect();
    assert_eq!(limits, [(defaults.max_new_tokens, false), (5, true), (defaults.max_new_tokens, false)]);
}

#[test]
fn failures_of_a_flow_have_their_line() {
    let reported = |body: &str| Flows::of(body).failure(&["a"]);
    let starts = |body: &str, wanted: &str| {
        let reported = reported(body);
        assert!(reported.starts_with(wanted), "{reported}");
    };
    starts("return 1", "env_error: the flow returned before it called policy:generate");
    starts(
        "policy:generate()",
        "env_error: policy:generate: takes messages, text or { token_ids = { … } }, got nothing\n  --> x.lua:2",
    );
    starts(
        "policy:generate({ r1.user('x') }, { temperature = 2 })",
        "env_error: policy:generate: `temperature` is a setting of the whole run",
    );
    starts("policy:generate({ r1.user('x') }, { tool = {} })", "env_error: policy:generate: unknown field `tool`");
    starts(
        "policy:generate({ r1.user('x') }, { tools = { 'look' } })",
        "env_error: policy:generate: `tools` names `look`, which is not a tool of the environment",
    );
    starts(
        "policy:generate('x', { stop = { 'a', '' } })",
        "env_error: policy:generate: `stop` has an empty text\n  --> x.lua:2",
    );
    starts("policy:reward(1)", "env_error: policy:reward: there is no response yet to reward");
    starts(
        "policy:generate('x')\npolicy:reward(1, 2)",
        "env_error: policy:reward: `step` is one of 1 to 1, got 2\n  --> x.lua:3",
    );
    starts("policy:generate('x')\npolicy:reward(0/0)", "env_error: policy:reward: takes a finite number");
    starts("policy:generate('x')\nreturn { done = false }", "env_error: the flow returned with done = false");
    starts("policy:generate('x')\nreturn { rewrd = 1 }", "env_error: flow returned the unknown field `rewrd`");
    starts(
        "policy:generate('x')\nreturn 'good'",
        "env_error: the flow returned the text \"good\"; it must return a number",
    );
    starts("policy:generat('x')", "env_error: `policy.generat` does not exist\n  --> x.lua:2");
    starts("policy:generate('x')\nerror('broken')", "env_error: broken\n  --> x.lua:3");
    starts(
        "r1.join { function() policy:generate('x') end }",
        "env_error: policy:generate: responses of a flow are sequential",
    );
    starts("policy:generate('x')\npolicy.state.f = function() end", "env_error: state.f is a function");
    starts("policy:generate('x')\nwhile true do end", "script_limit: flow used more than");
    starts(
        "policy:generate('x')\nlocal t = {} while true do t[#t + 1] = string.rep('x', 1e6) .. #t end",
        "script_limit: flow needs more memory",
    );
}

/// Nobody answers a request to the policy of a trajectory that is over, or that another call runs.
#[test]
fn a_flow_can_not_use_the_policy_of_another_trajectory() {
    let flow = Flows::new(
        "local kept\n\
         return r1.recipe { flow = function(task, policy)\n\
           kept = kept or policy\n\
           policy:generate('x')\n\
           kept:generate('y')\n\
         end, data = { train = { { prompt = 'a' }, { prompt = 'b' } } } }",
    );
    let worker = Worker::new(&flow.script, Some(Arc::clone(&flow.renderer))).unwrap();
    let policy = ScriptedPolicy {
        renderer: Arc::clone(&flow.renderer),
        say: |_: &Request| ("a".to_owned(), -0.5),
        log: Mutex::default(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ended = [0, 1].map(|group| {
        let spec = Spec { max_steps: Some(2), ..flow.spec(group) };
        runtime.block_on(drive(&worker, &flow.renderer, &policy, &spec)).unwrap()
    });
    assert_ne!(ended[0].status, Status::EnvError, "{:?}", ended[0].error);
    assert_eq!(ended[1].status, Status::EnvError);
    let text = ended[1].error_text().unwrap_or_default();
    assert!(text.contains("policy:generate: can only be called by the flow that received this `policy`"), "{text}");
}

#[test]
fn a_tree_branches_off_flows() {
    let flow = Flows::new(&[LOOK, FLOW].concat());
    let spec = |sample: u32| {
        let mut spec = Spec { sample, id: format!("1-0-{sample}"), ..flow.spec(0) };
        spec.seed.trajectory = u64::from(sample);
        spec
    };
    let tree = || Tree {
        root: spec(0),
        branches: vec![spec(1), spec(2)],
        at: BranchAt::Steps(vec![1, 2]),
        width: 1,
        rounds: 1,
    };
    let say = |request: &Request| (format!("{} {}", request.seed.trajectory, request.seed.step), -0.5);
    let policy: Arc<dyn Policy> =
        Arc::new(ScriptedPolicy { renderer: Arc::clone(&flow.renderer), say, log: Mutex::default() });
    let pool = Pool::new(&flow.script, &flow.renderer, &PoolOptions::default()).unwrap();
    let trajectories = pool.start(&policy, vec![tree()], &no_progress()).unwrap().finish().unwrap();
    assert_eq!(trajectories.len(), 3);
    for (branch, shared) in trajectories[1..].iter().zip([1, 2]) {
        assert_eq!(branch.fork, Some(Fork { parent: "1-0-0".to_owned(), step: shared }), "{:?}", branch.error);
        assert_eq!(branch.steps[..shared as usize], trajectories[0].steps[..shared as usize]);
        assert_eq!(branch.status, Status::Truncated, "{:?}", branch.error);
        assert!(branch.steps.len() > shared as usize);
        flow.replays(branch, spec(branch.sample));
    }
}

#[test]
fn a_fork_of_a_nondeterministic_flow_fails() {
    let flow = Flows::new(
        "local runs = 0\n\
         return r1.recipe { flow = function(task, policy)\n\
           runs = runs + 1\n\
           policy:generate({ r1.user('run ' .. runs) })\n\
           policy:generate({ r1.user('more') })\n\
         end, data = { train = { { prompt = 'go' } } } }",
    );
    let worker = Worker::new(&flow.script, Some(Arc::clone(&flow.renderer))).unwrap();
    let stage = Stage { worker: &worker, renderer: &flow.renderer };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let failed = runtime.block_on(async {
        let spec = flow.spec(0);
        let task = worker.row(Split::Train, 0).unwrap();
        let attempt = Attempt::begin(stage, spec.clone(), task, &crate::script::Record::live()).await.unwrap();
        let mut fork = attempt.fork(spec).unwrap();
        let reply = typed(stage, &fork, "a", FinishReason::Stop).unwrap();
        fork.act(stage, reply).await.unwrap_err()
    });
    let Stop::Failed(failure) = failed else { panic!() };
    assert!(
        failure.error.message.contains("the flow is not deterministic: on a repeated run it passed another prompt"),
        "{failure}"
    );
}
