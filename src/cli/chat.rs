//! A conversation with a policy: questions in, replies streamed out, the tools of a recipe live in between.
//!
//! Prompts continue token in, token out, as in a rollout, so that the key-value cache of the conversation holds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::engine::Engine;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Action, Completion, Message, Observation, Request, Role, Sampling, StreamSeed};
use crate::script::{Failure, Split, State, Worker};
use crate::telemetry::Interrupt;
use crate::text::{Extension, Renderer};

/// Something to show while an answer is made.
pub(super) enum Piece<'a> {
    /// More of the policy's reply.
    Reply(&'a str),
    /// A reply is complete.
    End,
    /// What a tool answered.
    Tool(&'a str),
}

/// What came of a question.
#[derive(Default)]
pub(super) struct Answer {
    /// The policy's last reply.
    pub(super) text: String,
    pub(super) tool_calls: usize,
    pub(super) tokens: usize,
    pub(super) seconds: f64,
    /// Stopped by Ctrl-C.
    pub(super) stopped: bool,
}

/// One conversation.
pub(super) struct Chat {
    engine: Engine,
    renderer: Arc<Renderer>,
    sampling: Arc<Sampling>,
    /// Longest prompt plus reply, tokens.
    max_context: usize,
    seed: u64,
    system: Option<String>,
    interrupt: Interrupt,
    recipe: Option<Recipe>,
    /// The conversation where there is no recipe; with one, the env's state has it.
    messages: Vec<Message>,
    replies: u32,
    last: Option<Last>,
}

/// A recipe whose env is spoken to.
pub(super) struct Recipe {
    pub(super) worker: Worker,
    pub(super) max_steps: usize,
    runtime: Runtime,
    state: Option<State>,
}

impl Recipe {
    pub(super) fn new(worker: Worker, max_steps: usize) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Error::new(Kind::Internal, format!("can't start the runtime of the tools: {e}")))?;
        Ok(Self { worker, max_steps, runtime, state: None })
    }
}

/// The last prompt and reply, which the next prompt continues where that is exact.
struct Last {
    shown: Vec<Message>,
    prompt: Vec<u32>,
    reply: Vec<u32>,
    text: String,
}

impl Chat {
    pub(super) fn new(
        engine: Engine,
        renderer: Arc<Renderer>,
        sampling: Sampling,
        seed: u64,
        system: Option<String>,
        recipe: Option<Recipe>,
        interrupt: Interrupt,
    ) -> Self {
        let max_context = engine.capacity();
        let mut chat = Self {
            engine,
            renderer,
            sampling: Arc::new(sampling),
            max_context,
            seed,
            system,
            interrupt,
            recipe,
            messages: Vec::new(),
            replies: 0,
            last: None,
        };
        chat.clear();
        chat
    }

    /// Forgets the conversation.
    pub(super) fn clear(&mut self) {
        self.messages = self.system.iter().map(|text| Message::system(text.as_str())).collect();
        self.last = None;
        if let Some(recipe) = &mut self.recipe {
            recipe.state = None;
        }
    }

    /// Asks a question and shows the answer as it is made.
    pub(super) fn ask(&mut self, question: &str, show: &mut dyn FnMut(Piece<'_>)) -> Result<Answer> {
        let started = Instant::now();
        let mut answer = Answer::default();
        if let Some(mut recipe) = self.recipe.take() {
            let asked = self.ask_env(&mut recipe, question, &mut answer, show);
            self.recipe = Some(recipe);
            asked?;
        } else {
            self.messages.push(Message::user(question));
            let shown = self.messages.clone();
            let replied = self.reply(&Observation::Messages(shown), &[], &mut answer, show);
            match replied {
                Ok(_) => self.messages.push(Message::assistant(answer.text.as_str())),
                // The question is as if it had not been asked.
                Err(_) => drop(self.messages.pop()),
            }
            replied?;
        }
        answer.seconds = started.elapsed().as_secs_f64();
        Ok(answer)
    }

    /// Steps the recipe's env until it is done.
    fn ask_env(
        &mut self,
        recipe: &mut Recipe,
        question: &str,
        answer: &mut Answer,
        show: &mut dyn FnMut(Piece<'_>),
    ) -> Result<()> {
        let interrupt = self.interrupt;
        let worker = &recipe.worker;
        let state = match recipe.state.take() {
            None => {
                let begun = begin(worker, question, self.system.as_deref(), self.seed);
                wait(&recipe.runtime, interrupt, begun)??
            }
            Some(state) => {
                let mut snapshot = state.snapshot()?;
                messages_of(&mut snapshot)?.push(json!({ "role": "user", "content": question }));
                worker.restore(&snapshot)?
            }
        };
        let room = self.sampling.max_new_tokens.min(self.max_context / 2);
        for _ in 0..recipe.max_steps {
            let observed = worker.observe(&state, self.max_context - room);
            let observation = wait(&recipe.runtime, interrupt, observed)?.map_err(failed)?;
            let action = self.reply(&observation, worker.tools(), answer, show)?;
            let seen = worker.messages(&state).len();
            let stepped = wait(&recipe.runtime, interrupt, worker.step(&state, &action))?.map_err(failed)?;
            answer.tool_calls += stepped.tools.len();
            for message in worker.messages(&state).iter().skip(seen).filter(|message| message.role == Role::Tool) {
                show(Piece::Tool(&message.content.text()));
            }
            if stepped.done || answer.stopped {
                break;
            }
        }
        recipe.state = Some(state);
        Ok(())
    }

    /// One reply of the policy.
    fn reply(
        &mut self,
        observation: &Observation,
        tools: &[Value],
        answer: &mut Answer,
        show: &mut dyn FnMut(Piece<'_>),
    ) -> Result<Action> {
        let prompt = self.prompt(observation, tools)?;
        let room = self.max_context.saturating_sub(prompt.len());
        let sampling = Sampling { max_new_tokens: self.sampling.max_new_tokens.min(room), ..(*self.sampling).clone() };
        let stop_ids = self.renderer.stop_ids();
        let request = Request {
            prompt_ids: prompt.clone(),
            sampling: Arc::new(sampling),
            stop_ids: Arc::clone(&stop_ids),
            seed: StreamSeed { seed: self.seed, trajectory: 0, step: self.replies },
            conversation: 0,
        };
        self.replies += 1;
        let (renderer, interrupt) = (Arc::clone(&self.renderer), self.interrupt);
        let (mut ids, mut printed) = (Vec::new(), 0);
        let completion = self.engine.generate(request, &mut |id| {
            if !stop_ids.contains(&id) {
                ids.push(id);
                let text = renderer.tokenizer().decode(&ids, false);
                // A character that is not complete yet waits for its other bytes.
                if !text.ends_with('\u{fffd}')
                    && let Some(more) = text.get(printed..)
                {
                    show(Piece::Reply(more));
                    printed = text.len();
                }
            }
            !interrupt.is_set()
        })?;
        if interrupt.is_set() {
            interrupt.clear();
            answer.stopped = true;
        }
        let Completion { token_ids, finish_reason, .. } = completion;
        let own = match token_ids.split_last() {
            Some((last, rest)) if stop_ids.contains(last) => rest,
            _ => &token_ids,
        };
        let text = self.renderer.tokenizer().decode(own, false);
        // The reply may end inside a character.
        if let Some(rest) = text.get(printed..).filter(|rest| !rest.is_empty()) {
            show(Piece::Reply(rest));
        }
        show(Piece::End);
        let parsed = self.renderer.parse(&text, tools);
        answer.tokens += token_ids.len();
        answer.text.clone_from(&text);
        self.last = match observation {
            Observation::Messages(shown) => {
                Some(Last { shown: shown.clone(), prompt, reply: token_ids.clone(), text: text.clone() })
            }
            Observation::Text(_) | Observation::TokenIds(_) => None,
        };
        Ok(Action { text, token_ids, tool_calls: parsed.tool_calls, errors: parsed.errors, finish_reason })
    }

    fn prompt(&self, observation: &Observation, tools: &[Value]) -> Result<Vec<u32>> {
        let messages = match observation {
            Observation::Messages(messages) => messages,
            Observation::Text(text) => return self.renderer.tokenizer().encode(text),
            Observation::TokenIds(ids) => return Ok(ids.clone()),
        };
        if let Some(last) = &self.last
            && let Extension::Appends(added) =
                self.renderer.extend(&last.shown, &last.reply, &last.text, messages, tools)?
        {
            return Ok([last.prompt.as_slice(), &last.reply, &added].concat());
        }
        self.renderer.prompt(messages, tools)
    }
}

/// The state of an env that is asked `question`.
///
/// A recipe's `reset` wants a task of its dataset. The first row stands in for it, with the question in the column
/// whose text the env shows to the policy; where no column is shown, the question replaces the user's message.
async fn begin(worker: &Worker, question: &str, system: Option<&str>, seed: u64) -> Result<State> {
    let mut task = json!({});
    for split in [Split::Eval, Split::Train] {
        if worker.rows(split)?.is_some_and(|rows| rows > 0) {
            task = worker.row(split, 0)?;
            break;
        }
    }
    let mut state = worker.reset(&task, seed).await.map_err(failed)?;
    let messages = worker.messages(&state);
    let asked = messages.iter().rev().find(|message| message.role == Role::User).map(|message| message.content.text());
    let asked = asked.ok_or_else(|| {
        Error::new(Kind::Script, "this recipe's env can't be chatted with: it shows the policy no user message")
            .hint("leave out --script to chat without tools")
    })?;
    let column = task.as_object_mut().and_then(|columns| {
        columns
            .values_mut()
            .filter(|value| value.as_str().is_some_and(|text| !text.is_empty() && asked.contains(text)))
            .max_by_key(|value| value.as_str().map(str::len))
    });
    let replaced = column.is_some();
    if let Some(column) = column {
        *column = Value::from(question);
        state = worker.reset(&task, seed).await.map_err(failed)?;
    }
    if replaced && system.is_none() {
        return Ok(state);
    }
    let mut snapshot = state.snapshot()?;
    let messages = messages_of(&mut snapshot)?;
    if !replaced && let Some(message) = messages.iter_mut().rev().find(|message| message["role"] == "user") {
        message["content"] = Value::from(question);
    }
    if let Some(system) = system {
        messages.retain(|message| message["role"] != "system");
        messages.insert(0, json!({ "role": "system", "content": system }));
    }
    worker.restore(&snapshot)
}

/// `state.messages` in a snapshot.
fn messages_of(snapshot: &mut Value) -> Result<&mut Vec<Value>> {
    snapshot["state"]["messages"].as_array_mut().ok_or_else(|| {
        Error::new(Kind::Script, "this recipe's env can't be chatted with: its state has no `messages`")
            .hint("leave out --script to chat without tools")
    })
}

fn failed(failure: Failure) -> Error {
    failure.error
}

/// Waits for the script, but not past Ctrl-C.
fn wait<T>(runtime: &Runtime, interrupt: Interrupt, future: impl Future<Output = T>) -> Result<T> {
    runtime.block_on(async {
        let stopped = async {
            while !interrupt.is_set() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            done = future => Ok(done),
            () = stopped => {
                interrupt.clear();
                Err(Error::new(Kind::Interrupted, "stopped"))
            }
        }
    })
}
