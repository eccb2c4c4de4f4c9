//! A conversation: questions, streamed replies, and the tools of a recipe; operations on it: undo,
//! retry, save, load.
//!
//! Replies come from a [`Backend`]: a model in this process, or one behind a server.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

pub(super) use super::answer::{AnswerEvent, ChatStats, ModelReply, QuestionAnswer, ShowAnswer};
pub(super) use super::backend::Backend;
use super::recipe::{Beginning, Begun, ChatRecipe, begin, failed, messages_of, replace_system, shown, wait};
use crate::cli::generation::serve;
use crate::error::{Error, Kind, Result, Subject};
use crate::mdp::{Action, Limit, Message, Observation, Role};
use crate::script::{Record, Split, State, TrajectoryOutcome, Worker};
use crate::telemetry::{Interrupt, signed};
use crate::text::Renderer;

pub(super) struct Chat {
    backend: Backend,
    seed: u64,
    system: Option<String>,
    interrupt: Interrupt,
    recipe: Option<ChatRecipe>,
    /// The conversation if there is no recipe; with a recipe it is in the env's state.
    messages: Vec<Message>,
    /// Each question with the state before it.
    questions: Vec<(String, Memory)>,
    /// The last question that was stopped and undone, for `/retry`.
    stopped: Option<String>,
    /// The conversation was loaded from a file, so earlier states of the env are unknown.
    loaded: bool,
    pub(super) stats: ChatStats,
}

/// The input of a turn: a typed question, or a task of the recipe.
enum Input<'a> {
    Question(&'a str),
    Task(Value),
}

impl Input<'_> {
    fn text(&self) -> String {
        match self {
            Self::Question(question) => (*question).to_owned(),
            Self::Task(task) => task.to_string(),
        }
    }
}

/// A conversation as plain data.
#[derive(Clone, Default)]
struct Memory {
    messages: Vec<Message>,
    state: Option<Value>,
}

impl Chat {
    pub(super) fn new(
        backend: Backend,
        seed: u64,
        system: Option<String>,
        recipe: Option<ChatRecipe>,
        interrupt: Interrupt,
    ) -> Self {
        let mut chat = Self {
            backend,
            seed,
            system,
            interrupt,
            recipe,
            messages: Vec::new(),
            questions: Vec::new(),
            stopped: None,
            loaded: false,
            stats: ChatStats::default(),
        };
        chat.reset();
        chat
    }

    /// A short description of the model.
    pub(super) fn title(&self) -> String {
        match &self.backend {
            Backend::Local(local) => local.title(),
            Backend::Remote(remote) => remote.title(),
        }
    }

    /// Maximum tokens of prompt plus reply; `None` if only the server has the limit.
    pub(super) fn max_context(&self) -> Option<usize> {
        match &self.backend {
            Backend::Local(local) => Some(local.max_context()),
            Backend::Remote(_) => None,
        }
    }

    /// The schemas of the recipe's tools.
    pub(super) fn tools(&self) -> &[Value] {
        self.recipe.as_ref().map_or(&[], |recipe| recipe.worker.tools())
    }

    /// The error if there is no question to undo.
    pub(super) fn no_question(&self) -> Error {
        if self.loaded {
            return Error::new(Kind::Usage, "no question since /load, and the env's earlier states are unknown");
        }
        Error::new(Kind::Usage, "no question yet")
    }

    pub(super) fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Clears the conversation.
    pub(super) fn reset(&mut self) {
        self.messages = self.system.iter().map(|text| Message::system(text.as_str())).collect();
        self.questions.clear();
        self.stopped = None;
        self.loaded = false;
        self.stats.context = None;
        if let Some(recipe) = &mut self.recipe {
            recipe.state = None;
        }
    }

    /// Changes the system prompt for later questions.
    pub(super) fn set_system(&mut self, text: &str) -> Result<()> {
        self.system = Some(text.to_owned());
        self.apply_system()
    }

    fn apply_system(&mut self) -> Result<()> {
        let Some(system) = self.system.as_deref() else { return Ok(()) };
        let first = |role: Option<&Message>| role.is_some_and(|message| message.role == Role::System);
        if first(self.messages.first()) {
            self.messages.remove(0);
        }
        self.messages.insert(0, Message::system(system));
        if let Some(recipe) = &mut self.recipe
            && let Some(state) = &recipe.state
        {
            let mut snapshot = state.snapshot()?;
            replace_system(messages_of(&mut snapshot)?, system);
            recipe.state = Some(recipe.worker.resume(state, &snapshot)?);
        }
        Ok(())
    }

    /// Undoes the last question and returns it.
    pub(super) fn undo(&mut self) -> Result<Option<String>> {
        self.stopped = None;
        let Some((question, before)) = self.questions.pop() else { return Ok(None) };
        self.recall(&before)?;
        self.apply_system()?;
        Ok(Some(question))
    }

    /// The last question, which is undone unless that happened when it was stopped.
    pub(super) fn again(&mut self) -> Result<Option<String>> {
        match self.stopped.take() {
            Some(question) => Ok(Some(question)),
            None => self.undo(),
        }
    }

    /// The conversation so far.
    pub(super) fn messages(&self) -> Vec<Message> {
        match &self.recipe {
            Some(ChatRecipe { worker, state: Some(state), .. }) => worker.messages(state),
            Some(_) => Vec::new(),
            None => self.messages.clone(),
        }
    }

    /// Writes the conversation to a file; gives the number of messages.
    pub(super) fn save(&self, path: &Path) -> Result<usize> {
        let messages = self.messages();
        let mut file = json!({ "messages": messages });
        if let Some(state) = self.memory()?.state {
            file["state"] = state;
        }
        std::fs::write(path, format!("{file:#}\n")).map_err(|e| Error::io(Kind::Store, "write", path, &e))?;
        Ok(messages.len())
    }

    /// Continues a conversation from a file; returns the number of messages.
    pub(super) fn load(&mut self, path: &Path) -> Result<usize> {
        let bytes = std::fs::read(path).map_err(|e| Error::io(Kind::Data, "read", path, &e))?;
        let bad = |why: String| {
            Error::new(Kind::Data, format!("not a saved conversation: {why}"))
                .at_path(path)
                .hint("/save writes such files")
        };
        let mut file: Value = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
        let messages: Vec<Message> =
            serde_json::from_value(file["messages"].take()).map_err(|e| bad(format!("`messages`: {e}")))?;
        let state = file.get_mut("state").map(Value::take);
        match (&self.recipe, &state) {
            (Some(_), None) => {
                return Err(bad("it was saved without a script, and has no state for this one's env".into()));
            }
            (Some(recipe), Some(state)) => drop(recipe.worker.restore(state).map_err(|e| bad(e.message))?),
            (None, _) => {}
        }
        let count = messages.len();
        self.recall(&Memory { messages, state })?;
        let system = self.messages.first().filter(|message| message.role == Role::System);
        self.system = system.map(|message| message.content.text());
        self.questions = if self.recipe.is_some() { Vec::new() } else { questions(&self.messages) };
        self.loaded = self.recipe.is_some();
        self.stopped = None;
        Ok(count)
    }

    fn memory(&self) -> Result<Memory> {
        let state = self.recipe.as_ref().and_then(|recipe| recipe.state.as_ref());
        Ok(Memory { messages: self.messages.clone(), state: state.map(State::snapshot).transpose()? })
    }

    fn recall(&mut self, memory: &Memory) -> Result<()> {
        self.messages.clone_from(&memory.messages);
        self.stats.context = None;
        if let Some(recipe) = &mut self.recipe {
            recipe.state = memory.state.as_ref().map(|state| recipe.worker.restore(state)).transpose()?;
        }
        Ok(())
    }

    /// Begins a conversation for a row of a file, whose replies depend on no other row.
    pub(super) fn begin_row(&mut self, seed: u64) {
        self.reset();
        self.seed = seed;
        self.stats = ChatStats::default();
    }

    /// The first messages of a conversation without a recipe.
    pub(super) fn begin_with(&mut self, messages: Vec<Message>) {
        self.messages.extend(messages);
    }

    pub(super) fn has_recipe(&self) -> bool {
        self.recipe.is_some()
    }

    /// Whether the recipe's env shows a text of a row, as its task.
    pub(super) fn shows(&mut self, row: &Value) -> Result<bool> {
        let Some(recipe) = &self.recipe else { return Ok(false) };
        let (worker, record, seed) = (&recipe.worker, Record::live(), self.seed);
        let mut requests = record.listen();
        let looked = async {
            let state = worker.reset_within(Split::Eval, row, seed, &record, usize::MAX).await.ok()?;
            worker.observe(&state, usize::MAX).await.ok()
        };
        let interrupt = self.interrupt;
        let looked = serve(&mut requests, |request| self.backend.answer(request, interrupt), looked);
        let Some(observation) = wait(&recipe.runtime, interrupt, looked)? else { return Ok(false) };
        let shown = shown(&observation);
        let texts = row.as_object().into_iter().flat_map(|row| row.values()).filter_map(Value::as_str);
        Ok(texts.into_iter().any(|text| !text.is_empty() && shown.contains(text)))
    }

    /// Steps the recipe's env on the task of a data row.
    pub(super) fn ask_task(&mut self, task: Value) -> Result<QuestionAnswer> {
        self.answer(&Input::Task(task), &mut |_| ())
    }

    /// Samples a reply to a question and shows it as it is sampled. A question is undone if it
    /// fails, or if it is stopped before the reply begins or during a tool call.
    pub(super) fn ask(&mut self, question: &str, show: &mut ShowAnswer<'_>) -> Result<QuestionAnswer> {
        self.answer(&Input::Question(question), show)
    }

    fn answer(&mut self, input: &Input<'_>, show: &mut ShowAnswer<'_>) -> Result<QuestionAnswer> {
        let question = input.text();
        let started = Instant::now();
        let before = self.memory()?;
        self.stopped = None;
        let mut answer = QuestionAnswer::default();
        let result = match self.recipe.take() {
            Some(mut recipe) => {
                let result = self.ask_env(&mut recipe, input, &mut answer, show);
                self.recipe = Some(recipe);
                result
            }
            None => self.ask_plainly(&question, &mut answer, show),
        };
        match result {
            Ok(()) => {}
            Err(error) if error.kind == Kind::Interrupted => (answer.stopped, answer.undone) = (true, true),
            Err(error) => {
                self.recall(&before)?;
                return Err(error);
            }
        }
        if answer.undone {
            self.recall(&before)?;
            self.stopped = Some(question);
        } else {
            self.questions.push((question, before));
        }
        answer.seconds = started.elapsed().as_secs_f64();
        self.stats.questions += 1;
        self.stats.tool_calls += answer.tool_calls.len();
        Ok(answer)
    }

    fn ask_plainly(&mut self, question: &str, answer: &mut QuestionAnswer, show: &mut ShowAnswer<'_>) -> Result<()> {
        if !question.is_empty() {
            self.messages.push(Message::user(question));
        }
        let shown = Observation::Messages(self.messages.clone());
        let action = self.reply(&shown, (&[], None), answer, show)?;
        self.messages.push(Message::assistant(action.text));
        Ok(())
    }

    /// Steps the recipe's env until it is done.
    fn ask_env(
        &mut self,
        recipe: &mut ChatRecipe,
        input: &Input<'_>,
        answer: &mut QuestionAnswer,
        show: &mut ShowAnswer<'_>,
    ) -> Result<()> {
        let interrupt = self.interrupt;
        let worker = &recipe.worker;
        let budget = match &self.backend {
            Backend::Local(local) => local.prompt_budget(),
            Backend::Remote(remote) => remote.prompt_budget(),
        };
        let Begun { mut state, continues, own_task } = match (recipe.state.take(), input) {
            (_, Input::Task(task)) => {
                let record = Record::live();
                let mut requests = record.listen();
                let begun = worker.reset_within(Split::Eval, task, self.seed, &record, budget);
                let begun = serve(&mut requests, |request| self.backend.answer(request, interrupt), begun);
                let state = wait(&recipe.runtime, interrupt, begun)?.map_err(failed)?;
                Begun { state, continues: false, own_task: false }
            }
            (None, Input::Question(question)) => {
                let (system, seed, earlier) = (self.system.as_deref(), self.seed, self.stats.questions);
                let recorded = recipe.recorded.as_ref();
                let beginning = Beginning { question, system, seed, budget, earlier, recorded };
                let record = Record::live();
                let mut requests = record.listen();
                let begun = begin(worker, &beginning, &record);
                wait(
                    &recipe.runtime,
                    interrupt,
                    serve(&mut requests, |request| self.backend.answer(request, interrupt), begun),
                )??
            }
            (Some(state), Input::Question(question)) => {
                let mut snapshot = state.snapshot()?;
                messages_of(&mut snapshot)?.push(json!({ "role": "user", "content": question }));
                Begun { state: worker.resume(&state, &snapshot)?, continues: true, own_task: false }
            }
        };
        if own_task {
            show(AnswerEvent::Log("this recipe has tasks of its own: the question is not shown to the policy"));
        }
        let (mut before, mut ended) = (String::new(), None);
        let mut requests = state.record().listen();
        let mut token_ids = Vec::new();
        for step in 1..=state.max_steps() {
            let observed =
                serve(&mut requests, |request| self.backend.answer(request, interrupt), worker.observe(&state, budget));
            let observation = wait(&recipe.runtime, interrupt, observed)?.map_err(failed)?;
            if own_task {
                let now = shown(&observation);
                let news = now.strip_prefix(before.as_str()).unwrap_or(&now).trim_end();
                if !news.is_empty() {
                    show(AnswerEvent::Result { name: "env", text: news });
                }
                before = now;
            }
            let action = self.reply(&observation, (&state.tools(), state.renderer()), answer, show)?;
            if answer.stopped {
                // The calls of an incomplete reply are not executed.
                if continues {
                    state = with_reply(worker, &state, &action.text)?;
                }
                break;
            }
            let seen = worker.messages(&state).len();
            let stepped =
                serve(&mut requests, |request| self.backend.answer(request, interrupt), worker.step(&state, &action));
            let stepped = wait(&recipe.runtime, interrupt, stepped)?;
            for line in worker.take_log() {
                show(AnswerEvent::Log(&format!("{}: {}", line.place, line.text)));
            }
            let stepped = match stepped {
                // A typed question has no reference that the reply could be compared with.
                Err(failure) if !own_task && failure.error.subject.as_deref() == Some(&Subject::Reference) => {
                    if continues {
                        state = with_reply(worker, &state, &action.text)?;
                    }
                    break;
                }
                stepped => stepped.map_err(failed)?,
            };
            let over = stepped.done || stepped.truncated;
            answer.tool_calls.extend(stepped.tools.into_iter().filter(|tool| !tool.hidden));
            if !over && step < state.max_steps() {
                show(AnswerEvent::Turn { text: &answer.text, reasoning: answer.reasoning.as_deref() });
            }
            for message in worker.messages(&state).iter().skip(seen).filter(|message| message.role == Role::Tool) {
                let name = message.name.as_deref().unwrap_or("tool");
                show(AnswerEvent::Result { name, text: &message.content.text() });
            }
            token_ids.extend(action.token_ids);
            ended = Some(TrajectoryOutcome {
                text: action.text,
                token_ids: token_ids.clone(),
                steps: step,
                calls: answer.tool_calls.len(),
                terminated: stepped.done,
                truncated: !stepped.done,
                truncated_by: (!stepped.done).then_some(Limit::MaxSteps),
            });
            if over {
                break;
            }
        }
        if let Some(outcome) = ended.filter(|_| own_task && !answer.stopped) {
            let reward = serve(
                &mut requests,
                |request| self.backend.answer(request, interrupt),
                worker.reward(&state, &outcome),
            );
            let reward = wait(&recipe.runtime, interrupt, reward)?.map_err(failed)?;
            let ending = if outcome.terminated { "the task is done" } else { "the task is not done" };
            show(AnswerEvent::Log(&format!("{ending}; outcome reward {}", signed(reward.total))));
        }
        recipe.state = continues.then_some(state);
        Ok(())
    }

    fn reply(
        &mut self,
        observation: &Observation,
        (tools, renderer): (&[Value], Option<&Arc<Renderer>>),
        answer: &mut QuestionAnswer,
        show: &mut ShowAnswer<'_>,
    ) -> Result<Action> {
        let started = Instant::now();
        let reply = match &mut self.backend {
            Backend::Local(local) => {
                local.reply(observation, (tools, renderer), (self.seed, self.stats.replies), self.interrupt, show)?
            }
            Backend::Remote(remote) => remote.reply(observation, tools, self.interrupt, show)?,
        };
        show(AnswerEvent::End);
        if reply.stopped {
            self.interrupt.clear();
            answer.undone = reply.tokens == 0 && reply.action.text.is_empty();
        }
        let seconds = started.elapsed().as_secs_f64();
        answer.tokens += reply.tokens;
        answer.sampling_seconds += seconds;
        answer.text = reply.content;
        answer.reasoning = reply.reasoning;
        answer.stopped = reply.stopped;
        answer.finish = Some(reply.action.finish_reason);
        self.stats.replies += 1;
        self.stats.tokens += reply.tokens;
        self.stats.sampling_seconds += seconds;
        self.stats.context = reply.prompt.map(|prompt| prompt + reply.tokens);
        Ok(reply.action)
    }
}

/// The state with a reply that the env did not take.
fn with_reply(worker: &Worker, state: &State, text: &str) -> Result<State> {
    let mut snapshot = state.snapshot()?;
    messages_of(&mut snapshot)?.push(json!({ "role": "assistant", "content": text }));
    worker.resume(state, &snapshot)
}

/// The questions of a conversation, each with the messages before it.
fn questions(messages: &[Message]) -> Vec<(String, Memory)> {
    let question = |(index, message): (usize, &Message)| {
        let before = Memory { messages: messages[..index].to_vec(), state: None };
        (message.role == Role::User).then(|| (message.content.text(), before))
    };
    messages.iter().enumerate().filter_map(question).collect()
}
