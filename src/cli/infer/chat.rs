//! A conversation: questions, streamed replies, and the tools of a recipe; operations on it: undo,
//! retry, save, load.
//!
//! A conversation is an [`Attempt`] at the recipe's env, or at the env of lua/chat.lua, which has a
//! user and a model. Replies come from a [`Backend`].

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

pub(super) use super::answer::{AnswerEvent, ChatStats, ModelReply, QuestionAnswer, ShowAnswer};
pub(super) use super::backend::Backend;
use super::images::AskedQuestion;
use super::recipe::{Beginning, Begun, begin, failed, messages_of, replace_system, shown, wait};
use crate::cli::generation::serve;
use crate::error::{Error, Kind, Result, Subject};
use crate::mdp::{Completion, Message, Part, Request, Role, Status};
use crate::rollout::{Attempt, Spec, Stage, Stop};
use crate::script::{Record, Split, State, Worker};
use crate::telemetry::{Interrupt, signed};
use crate::text::Renderer;

/// The env of a conversation.
pub(super) struct ChatScript {
    pub(super) worker: Worker,
    pub(super) renderer: Arc<Renderer>,
    /// A recipe of the user; otherwise the model is alone.
    pub(super) is_recipe: bool,
    /// The task of a stored trajectory, for a machine without the dataset.
    pub(super) recorded: Option<Value>,
}

pub(super) struct Chat {
    backend: RefCell<Backend>,
    pub(super) script: ChatScript,
    /// Seeds, sampling settings and limits.
    spec: Spec,
    runtime: Runtime,
    pub(super) system: Option<String>,
    interrupt: Interrupt,
    /// Messages after the system prompt, before the first question.
    pub(super) first: Vec<Message>,
    /// The conversation so far; `None` before the first question, and if each question begins a
    /// new task.
    attempt: Option<Attempt>,
    questions: Vec<AskedQuestion>,
    /// The images and videos that the next question shows.
    pub(super) images: Vec<Part>,
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

/// An attempt at the beginning of a turn.
struct BegunTurn {
    attempt: Attempt,
    /// Later questions continue the conversation. Otherwise each question begins a new task.
    continues: bool,
    /// The env shows its own task and not the question.
    own_task: bool,
}

impl Chat {
    pub(super) fn new(
        backend: Backend,
        script: ChatScript,
        spec: Spec,
        system: Option<String>,
        interrupt: Interrupt,
    ) -> Result<Self> {
        Ok(Self {
            backend: RefCell::new(backend),
            script,
            spec,
            runtime: Worker::runtime()?,
            system,
            interrupt,
            first: Vec::new(),
            attempt: None,
            questions: Vec::new(),
            images: Vec::new(),
            stopped: None,
            loaded: false,
            stats: ChatStats::default(),
        })
    }

    fn stage(&self) -> Stage<'_> {
        Stage { worker: &self.script.worker, renderer: &self.script.renderer }
    }

    /// A short description of the model.
    pub(super) fn title(&self) -> String {
        self.backend.borrow().title()
    }

    /// Maximum tokens of prompt plus reply; `None` if only the server has the limit.
    pub(super) fn max_context(&self) -> Option<usize> {
        Some(self.spec.max_context).filter(|_| !self.spec.served)
    }

    /// The error if there is no question to undo.
    pub(super) fn no_question(&self) -> Error {
        if self.loaded {
            return Error::new(Kind::Usage, "no question since /load, and the env's earlier states are unknown");
        }
        Error::new(Kind::Usage, "no question yet")
    }

    /// Clears the conversation.
    pub(super) fn reset(&mut self) {
        self.first.clear();
        self.attempt = None;
        self.questions.clear();
        self.images.clear();
        self.stopped = None;
        self.loaded = false;
        self.stats.context = None;
    }

    /// Changes the system prompt for later questions.
    pub(super) fn set_system(&mut self, text: &str) -> Result<()> {
        self.system = Some(text.to_owned());
        self.apply_system()
    }

    fn apply_system(&mut self) -> Result<()> {
        let (Some(system), Some(attempt)) = (self.system.as_deref(), &mut self.attempt) else { return Ok(()) };
        change(&self.script.worker, attempt, |messages| replace_system(messages, system))
    }

    /// Undoes the last question and returns it.
    pub(super) fn undo(&mut self) -> Result<Option<String>> {
        Ok(self.undone()?.map(|question| question.text))
    }

    fn undone(&mut self) -> Result<Option<AskedQuestion>> {
        self.stopped = None;
        let Some(mut question) = self.questions.pop() else { return Ok(None) };
        self.recall(question.before.take());
        self.apply_system()?;
        Ok(Some(question))
    }

    /// The last question, which is undone unless that happened when it was stopped.
    pub(super) fn again(&mut self) -> Result<Option<String>> {
        match self.stopped.take() {
            Some(question) => Ok(Some(question)),
            None => Ok(self.undone()?.map(|question| {
                self.images = question.images;
                question.text
            })),
        }
    }

    /// The conversation so far.
    pub(super) fn messages(&self) -> Vec<Message> {
        match &self.attempt {
            Some(attempt) => self.script.worker.messages(attempt.state()),
            None if self.script.is_recipe => Vec::new(),
            None => self.opening(),
        }
    }

    /// The messages before the first question, in a chat with a model alone.
    fn opening(&self) -> Vec<Message> {
        let system = self.system.iter().map(|text| Message::system(text.as_str()));
        system.chain(self.first.iter().cloned()).collect()
    }

    /// Writes the conversation to a file; gives the number of messages.
    pub(super) fn save(&self, path: &Path) -> Result<usize> {
        let messages = self.messages();
        let mut file = json!({ "messages": messages });
        if let Some(attempt) = self.attempt.as_ref().filter(|_| self.script.is_recipe) {
            file["state"] = attempt.state().snapshot()?;
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
        let is_recipe = self.script.is_recipe;
        self.script.renderer.check_images(&messages).map_err(|error| bad(error.message))?;
        let attempt = match file.get("state") {
            Some(state) if is_recipe => {
                Some(self.attempt_at(self.script.worker.restore(state).map_err(|e| bad(e.message))?))
            }
            None if is_recipe => {
                return Err(bad("it was saved without a script, and has no state for this one's env".into()));
            }
            _ => self.conversation(&messages)?,
        };
        let questions = if is_recipe { Vec::new() } else { self.questions_of(&messages)? };
        let system = messages.first().filter(|message| message.role == Role::System);
        self.system = system.map(|message| message.content.text());
        self.recall(attempt);
        (self.questions, self.loaded, self.stopped) = (questions, is_recipe, None);
        Ok(messages.len())
    }

    /// The questions of a conversation, each with the conversation before it.
    fn questions_of(&self, messages: &[Message]) -> Result<Vec<AskedQuestion>> {
        let questions = messages.iter().enumerate().filter(|(_, message)| message.role == Role::User);
        let asked = |(at, message): (usize, &Message)| {
            let (text, images) = (message.content.text(), message.content.media());
            Ok(AskedQuestion { text, images, before: self.conversation(&messages[..at])? })
        };
        questions.map(asked).collect()
    }

    /// A conversation with a model alone; `None` if it has a system prompt at most.
    fn conversation(&self, messages: &[Message]) -> Result<Option<Attempt>> {
        if messages.iter().all(|message| message.role == Role::System) {
            return Ok(None);
        }
        let record = Record::live();
        let task = json!({ "messages": messages });
        let begun = Attempt::begin(self.stage(), self.spec.clone(), task, &record);
        self.run(&record, begun)?.map(Some).map_err(failed)
    }

    fn attempt_at(&self, state: State) -> Attempt {
        Attempt::of_state(self.stage(), self.spec.clone(), Value::Null, state)
    }

    /// A copy of the conversation, for undo.
    fn copy(&self) -> Result<Option<Attempt>> {
        self.attempt.as_ref().map(|attempt| attempt.fork(attempt.spec().clone())).transpose()
    }

    fn recall(&mut self, before: Option<Attempt>) {
        (self.attempt, self.stats.context) = (before, None);
    }

    /// Begins a conversation for a row of a file, whose replies depend on no other row.
    pub(super) fn begin_row(&mut self, seed: u64) {
        self.reset();
        (self.spec.env_seed, self.spec.seed.seed) = (seed, seed);
        self.stats = ChatStats::default();
    }

    /// Runs a part of the recipe's script until Ctrl-C, and answers its requests to the policy.
    fn run<T>(&self, record: &Record, future: impl Future<Output = T>) -> Result<T> {
        let (renderer, spec) = (&self.script.renderer, &self.spec);
        let answer = |request| self.backend.borrow_mut().answer(renderer, spec, request, self.interrupt);
        wait(&self.runtime, self.interrupt, serve(&mut record.listen(), answer, future))
    }

    /// Whether the recipe's env shows a text of a row, as its task.
    pub(super) fn shows(&mut self, row: &Value) -> Result<bool> {
        if !self.script.is_recipe {
            return Ok(false);
        }
        let (worker, record, seed) = (&self.script.worker, Record::live(), self.spec.env_seed);
        let looked = async {
            let state = worker.reset_within(Split::Eval, row, seed, &record, usize::MAX).await.ok()?;
            worker.observe(&state, usize::MAX).await.ok()
        };
        let Some(observation) = self.run(&record, looked)? else { return Ok(false) };
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
        let started = Instant::now();
        let before = self.copy()?;
        self.stopped = None;
        let mut answer = QuestionAnswer::default();
        match self.turn(input, &mut answer, show) {
            Ok(()) => {}
            Err(error) if error.kind == Kind::Interrupted => (answer.stopped, answer.undone) = (true, true),
            Err(error) => {
                self.recall(before);
                self.stopped = Some(input.text());
                return Err(error);
            }
        }
        if answer.undone {
            self.recall(before);
            self.stopped = Some(input.text());
        } else {
            let images = std::mem::take(&mut self.images);
            self.questions.push(AskedQuestion { text: input.text(), images, before });
        }
        answer.seconds = started.elapsed().as_secs_f64();
        self.stats.questions += 1;
        self.stats.tool_calls += answer.tool_calls.len();
        Ok(answer)
    }

    /// The attempt with the question, or at the task.
    fn begin_turn(&mut self, input: &Input<'_>) -> Result<BegunTurn> {
        let continuing = |attempt| BegunTurn { attempt, continues: true, own_task: false };
        match (self.attempt.take(), input) {
            (_, Input::Task(task)) => {
                let record = Record::live();
                let begun = Attempt::begin(self.stage(), self.spec.clone(), task.clone(), &record);
                let attempt = self.run(&record, begun)?.map_err(failed)?;
                Ok(BegunTurn { attempt, continues: false, own_task: false })
            }
            (Some(mut attempt), Input::Question(question)) => {
                let message = json!({ "role": "user", "content": self.with_images(question) });
                change(&self.script.worker, &mut attempt, |messages| messages.push(message))?;
                Ok(continuing(attempt))
            }
            (None, Input::Question(question)) if !self.script.is_recipe => {
                let question = Some(Message::user(self.with_images(question))).filter(|_| !question.is_empty());
                let messages: Vec<Message> = self.opening().into_iter().chain(question).collect();
                let empty = || Error::new(Kind::Data, "there is no question");
                self.conversation(&messages)?.map(continuing).ok_or_else(empty)
            }
            (None, Input::Question(question)) => {
                let beginning = Beginning {
                    question,
                    system: self.system.as_deref(),
                    seed: self.spec.env_seed,
                    budget: self.spec.budget(),
                    earlier: self.stats.questions,
                    recorded: self.script.recorded.as_ref(),
                };
                let record = Record::live();
                let begun = self.run(&record, begin(&self.script.worker, &beginning, &record))??;
                let Begun { state, continues, own_task } = begun;
                Ok(BegunTurn { attempt: self.attempt_at(state), continues, own_task })
            }
        }
    }

    /// Steps the env until it is done.
    fn turn(&mut self, input: &Input<'_>, answer: &mut QuestionAnswer, show: &mut ShowAnswer<'_>) -> Result<()> {
        let BegunTurn { mut attempt, continues, own_task } = self.begin_turn(input)?;
        if own_task {
            show(AnswerEvent::Log("this recipe has tasks of its own: the question is not shown to the policy"));
        }
        let record = attempt.state().record().clone();
        let (mut before, mut has_ended) = (String::new(), false);
        while attempt.over().is_none() {
            let request = self.run(&record, attempt.request(self.stage()))?.map_err(|stop| self.stopped_by(stop))?;
            let Some(request) = request else { return Err(self.no_room()) };
            if own_task {
                let observed = self.run(&record, attempt.observe(self.stage()))?;
                let prompt = observed.map_err(|stop| self.stopped_by(stop))?;
                let now = prompt.map(|prompt| shown(&prompt.observation)).unwrap_or_default();
                let news = now.strip_prefix(before.as_str()).unwrap_or(&now).trim_end();
                if !news.is_empty() {
                    show(AnswerEvent::Result { name: "env", text: news });
                }
                before = now;
            }
            let completion = self.reply(&attempt, request, answer, show)?;
            if answer.stopped {
                // The calls of an incomplete reply are not executed.
                let text = attempt.keep_reply(self.stage(), &completion);
                self.keep_reply(&mut attempt, &text, continues)?;
                break;
            }
            let seen = self.script.worker.messages(attempt.state()).len();
            let acted = self.run(&record, attempt.act(self.stage(), completion))?;
            for line in self.script.worker.take_log() {
                show(AnswerEvent::Log(&format!("{}: {}", line.place, line.text)));
            }
            if let Err(stop) = acted {
                let error = self.stopped_by(stop);
                // A typed question has no reference that the reply could be compared with.
                if own_task || error.subject.as_deref() != Some(&Subject::Reference) {
                    return Err(error);
                }
                let text = attempt.trajectory().steps.last().map(|step| step.text.clone()).unwrap_or_default();
                self.keep_reply(&mut attempt, &text, continues)?;
                break;
            }
            has_ended = true;
            let calls = attempt.trajectory().steps.last().into_iter().flat_map(|step| &step.tools);
            answer.tool_calls.extend(calls.filter(|tool| !tool.hidden).cloned());
            if attempt.over().is_none() {
                show(AnswerEvent::Turn { text: &answer.text, reasoning: answer.reasoning.as_deref() });
            }
            let messages = self.script.worker.messages(attempt.state());
            for message in messages.iter().skip(seen).filter(|message| message.role == Role::Tool) {
                let name = message.name.as_deref().unwrap_or("tool");
                show(AnswerEvent::Result { name, text: &message.content.text() });
            }
        }
        if has_ended && own_task && !answer.stopped {
            let reward = self.run(&record, attempt.reward(self.stage()))?.map_err(failed)?;
            let is_done = attempt.over() == Some(Status::Terminated);
            let ending = if is_done { "the task is done" } else { "the task is not done" };
            show(AnswerEvent::Log(&format!("{ending}; outcome reward {}", signed(reward.total))));
        }
        self.attempt = continues.then_some(attempt);
        Ok(())
    }

    /// Adds a reply that the env did not take to a conversation that continues.
    fn keep_reply(&self, attempt: &mut Attempt, text: &str, continues: bool) -> Result<()> {
        if !continues {
            return Ok(());
        }
        let message = json!({ "role": "assistant", "content": text });
        change(&self.script.worker, attempt, |messages| messages.push(message))
    }

    fn stopped_by(&self, stop: Stop) -> Error {
        match stop {
            Stop::Failed(failure) if failure.status == Status::ContextOverflow => self.no_room(),
            Stop::Failed(failure) => failure.error,
            Stop::Fatal(error) => error,
        }
    }

    fn no_room(&self) -> Error {
        let limit = self.spec.max_context;
        let message = format!("the conversation leaves no room for a reply in a context of {limit} tokens");
        Error::new(Kind::Env, message)
            .hint("shorten the question; in a chat, /undo undoes a question and /reset clears the conversation")
    }

    fn reply(
        &mut self,
        attempt: &Attempt,
        mut request: Request,
        answer: &mut QuestionAnswer,
        show: &mut ShowAnswer<'_>,
    ) -> Result<Completion> {
        let started = Instant::now();
        request.seed.step = self.stats.replies;
        let stage = self.stage();
        let reply = self.backend.borrow_mut().reply((stage, attempt), request, self.interrupt, show)?;
        let ModelReply { completion, content, reasoning, prompt, stopped } = reply;
        show(AnswerEvent::End);
        let tokens = completion.tokens();
        if stopped {
            self.interrupt.clear();
            answer.undone = tokens == 0 && attempt.text(stage, &completion).is_empty();
        }
        let seconds = started.elapsed().as_secs_f64();
        answer.tokens += tokens;
        answer.sampling_seconds += seconds;
        (answer.text, answer.reasoning, answer.stopped) = (content, reasoning, stopped);
        answer.finish = Some(completion.finish_reason);
        self.stats.replies += 1;
        self.stats.tokens += tokens;
        self.stats.sampling_seconds += seconds;
        self.stats.context = prompt.map(|prompt| prompt + tokens);
        Ok(completion)
    }
}

/// Changes `state.messages` of a conversation, which continues with the changed state.
fn change(worker: &Worker, attempt: &mut Attempt, change: impl FnOnce(&mut Vec<Value>)) -> Result<()> {
    let mut snapshot = attempt.state().snapshot()?;
    change(messages_of(&mut snapshot)?);
    let state = worker.resume(attempt.state(), &snapshot)?;
    attempt.resume(state);
    Ok(())
}
