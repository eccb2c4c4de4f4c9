//! The samples of one model of an evaluation.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::evaluate::{EvalTasks, eval_sampling};
use super::parts::SampleFiles;
use super::policy::EvalPolicy;
use crate::error::{Error, Kind, Result};
use crate::eval::{Sequential, betting};
use crate::mdp::{ServerReply, Split, Status, Step, Trajectory, failing_tools};
use crate::rollout::{Spec, no_progress};
use crate::script::Script;
use crate::store::{RunDir, read_trajectories};
use crate::telemetry::{Reporter, counted};
use crate::train::ranks::Ranks;
use crate::train::watch::failures::{Failures, replay_command};

/// Trajectories are sampled in chunks of this many rounds of `rollout.concurrency`; smaller ones
/// would leave more of the engine's slots empty at their ends.
const ROUNDS: usize = 8;
/// The file of the evaluation is written after the first chunk that ends this long after the last
/// time. Until then its trajectories are in [`SampleFiles`].
const WRITE_EVERY: Duration = Duration::from_secs(30);

/// The step of the stored trajectories.
pub(crate) const STEP: u64 = 0;

pub(crate) struct ModelEvaluation {
    pub(crate) run: RunDir,
    pub(crate) policy: EvalPolicy,
    failures: Failures,
    pub(crate) trajectories: Vec<Trajectory>,
    /// Wall time of sampling.
    pub(crate) seconds: f64,
    /// The test against the first model, with `eval.early_stop`.
    pub(crate) sequential: Option<Sequential>,
    ranks: Ranks,
}

/// Calls after which a tool that never works is reported.
const CALLS: usize = 2;

/// What makes the figures of an evaluation doubtful: tools that never work, and empty replies of a
/// server that counts no tokens for them.
fn doubts(trajectories: &[Trajectory]) -> Vec<String> {
    let steps = || trajectories.iter().flat_map(|one| &one.steps);
    let failing = failing_tools(steps().flat_map(|step| &step.tools), CALLS);
    let mut doubts: Vec<String> = failing.iter().map(ToString::to_string).collect();
    let served = || steps().filter_map(|step| Some((step, step.server.as_deref()?)));
    let is_empty = |step: &Step, reply: &ServerReply| {
        step.text.trim().is_empty()
            && reply.tool_calls.is_empty()
            && reply.errors.is_empty()
            && reply.reasoning.is_none()
            && reply.usage.response_tokens == 0
    };
    let empty = served().filter(|(step, reply)| is_empty(step, reply)).count();
    if empty > 0 {
        doubts.push(format!(
            "{empty} of {} replies of the server are empty, and it counts no tokens for them: its content filter \
             stopped them, or it fails without an error",
            served().count()
        ));
    }
    doubts
}

impl ModelEvaluation {
    pub(crate) fn new(run: RunDir, policy: EvalPolicy, seconds: f64) -> Self {
        let (failures, trajectories, ranks) = (Failures::default(), Vec::new(), policy.ranks());
        Self { run, policy, failures, trajectories, seconds, sequential: None, ranks }
    }

    /// Samples what is not stored yet, and gives the number of trajectories that are left after
    /// Ctrl-C. With `eval.early_stop`, sampling ends when the difference from `baseline` is
    /// settled.
    pub(crate) fn sample(
        &mut self,
        script: &Script,
        baseline: Option<&[Trajectory]>,
        reporter: &Reporter,
    ) -> Result<usize> {
        let file = self.run.trajectories_path(Split::Eval, STEP);
        let mut parts = SampleFiles::beside(&file);
        let unmerged = parts.read()?;
        let mut goes_on = file.is_file() || !unmerged.is_empty();
        if goes_on {
            self.trajectories = if file.is_file() { read_trajectories(&file)? } else { Vec::new() };
            let sampled: HashSet<String> = self.trajectories.iter().map(|one| one.id.clone()).collect();
            self.trajectories.extend(unmerged.into_iter().filter(|one| !sampled.contains(&one.id)));
            // They were cut off when the evaluation was stopped, or had no reply of a server.
            self.trajectories.retain(|one| !matches!(one.status, Status::Aborted | Status::PolicyError));
            if !self.trajectories.is_empty() {
                self.policy.has_replied_before();
            }
        }
        // Rank 0 has the stored trajectories.
        let stored = self.ranks.all_trajectories(Ok((std::mem::take(&mut self.trajectories), goes_on)))?;
        (self.trajectories, goes_on) = stored.into_iter().next().unwrap_or_default();
        self.policy.log().open(self.run.path(), Some(if goes_on { STEP + 1 } else { 0 }), None)?;
        self.policy.log().top_level(&script.logged, goes_on);
        self.policy.log().flush()?;
        let (order, all) = self.tasks(script)?;
        let settings = self.policy.settings();
        let (total, samples, level) = (all.len(), settings.eval.samples, settings.eval.early_stop);
        let rounds = if level > 0.0 { 1 } else { ROUNDS };
        let size = (rounds * settings.rollout.concurrency).next_multiple_of(samples);
        let stored: HashSet<&str> = self.trajectories.iter().map(|one| one.id.as_str()).collect();
        let specs: Vec<Spec> = all.into_iter().filter(|spec| !stored.contains(spec.id.as_str())).collect();
        let model = &script.settings.policy;
        let at = if model.api_base.is_empty() { String::new() } else { format!(" at {}", model.api_base) };
        reporter.info(&format!("model    {}{at}", model.model));
        reporter.info(&format!(
            "data     {}, {} each",
            counted(total / samples, "held-out task", "held-out tasks"),
            counted(samples, "sample", "samples")
        ));
        if goes_on {
            reporter.info(&format!("stored   {} of {total} trajectories", self.trajectories.len()));
        }
        let compared = baseline.filter(|_| level > 0.0);
        let mut written = Instant::now();
        for chunk in specs.chunks(size) {
            if let Some(baseline) = compared
                && self.is_settled(script, baseline, &order, level)?
            {
                break;
            }
            let (started, done) = (Instant::now(), self.trajectories.len());
            let label = if total > size { format!("evaluating ({done} of {total})") } else { "evaluating".to_owned() };
            let writer = parts.write()?;
            self.policy.set_finished(writer.progress());
            let (trajectories, ended) = self.policy.rollout(chunk.to_vec(), reporter, &label);
            self.policy.set_finished(no_progress());
            writer.finish(&mut parts)?;
            self.trajectories.extend(trajectories);
            self.seconds += started.elapsed().as_secs_f64();
            if let Err(error) = ended {
                // Those that a model in this process had ended.
                let sampled: HashSet<String> = self.trajectories.iter().map(|one| one.id.clone()).collect();
                let ended = parts.read()?.into_iter();
                self.trajectories
                    .extend(ended.filter(|one| one.status != Status::Aborted && !sampled.contains(&one.id)));
                self.write(&mut parts)?;
                let left = total.saturating_sub(self.trajectories.len());
                return if error.kind == Kind::Interrupted { Ok(left) } else { Err(error) };
            }
            if written.elapsed() >= WRITE_EVERY {
                self.write(&mut parts)?;
                written = Instant::now();
            }
        }
        self.write(&mut parts)?;
        if let Some(baseline) = compared {
            self.is_settled(script, baseline, &order, level)?;
            self.report_settled(total / samples, reporter);
        }
        let (path, run) = (&script.path, self.run.path());
        let again = |one: &Trajectory| Some(replay_command(path, run, one));
        self.failures.report(reporter, "the evaluation", &self.trajectories, again);
        self.failures.sum_up(reporter);
        for doubt in doubts(&self.trajectories) {
            reporter.warn(&doubt);
        }
        Ok(0)
    }

    /// The tasks in the order of sampling, and the specifications of their trajectories. With
    /// `eval.early_stop` the order is random, the same one for all models: the first tasks of a
    /// file need not be like the others.
    fn tasks(&self, script: &Script) -> Result<(Vec<u64>, Vec<Spec>)> {
        let settings = self.policy.settings();
        let sampling = self.policy.with_stop(eval_sampling(settings)).into();
        let tasks = EvalTasks { settings, max_context: self.policy.max_context(), served: self.policy.is_server() };
        let Some(rows) = self.policy.rows().eval.as_ref() else { return Err(no_tasks(script)) };
        let mut specs = tasks.specs(rows, &sampling, STEP);
        let mut order: Vec<u64> = specs.iter().map(|spec| spec.task_index).collect();
        order.dedup();
        if settings.eval.early_stop > 0.0 {
            shuffle(&mut order, settings.seed);
            let mut places = vec![0; order.iter().max().map_or(0, |limit| *limit as usize + 1)];
            order.iter().enumerate().for_each(|(position, index)| places[*index as usize] = position);
            specs.sort_by_key(|spec| (places[spec.task_index as usize], spec.sample));
        }
        Ok((order, specs))
    }

    /// Whether the difference from the first model is settled; updates [`Self::sequential`].
    fn is_settled(&mut self, script: &Script, baseline: &[Trajectory], order: &[u64], level: f64) -> Result<bool> {
        let eval = &self.policy.settings().eval;
        let pair = (baseline, self.trajectories.as_slice());
        let Some(test) = betting(pair, order, eval.samples, &eval.accuracy) else {
            let message = format!("eval.early_stop needs scores from 0 to 1, and `{}` has others", eval.accuracy);
            return Err(Error::new(Kind::Usage, message)
                .at(script.place_of("eval.early_stop"))
                .hint("set eval.early_stop=0, or eval.accuracy to another part of the reward"));
        };
        let stopped = test.p() <= level;
        self.sequential = Some(Sequential { p: test.p(), tasks: test.tasks(), level, stopped });
        Ok(stopped)
    }

    fn report_settled(&mut self, tasks: usize, reporter: &Reporter) {
        let Some(test) = &mut self.sequential else { return };
        // The test may be settled by the very last task.
        test.stopped &= test.tasks < tasks;
        if test.stopped {
            let Sequential { p, tasks: used, level, .. } = test;
            reporter.info(&format!(
                "settled  after {used} of {tasks} tasks: p = {p:.4} at any number of tasks, eval.early_stop is {level}"
            ));
        }
    }

    /// Writes the trajectories so far, in the order of tasks and samples.
    fn write(&mut self, parts: &mut SampleFiles) -> Result<()> {
        self.trajectories.sort_by_key(|one| (one.task_index, one.sample));
        if self.ranks.is_first() {
            self.run.write_evaluation(STEP, 0, &self.trajectories)?;
        }
        parts.remove()
    }
}

/// The error of a recipe without held-out tasks.
pub(crate) fn no_tasks(script: &Script) -> Error {
    Error::new(Kind::Data, "the recipe has no held-out tasks")
        .at_path(&script.path)
        .hint("give `data = { eval = … }` in the recipe, or data.eval=FILE.jsonl on the command line")
}

/// Shuffles in place (Fisher and Yates).
fn shuffle(list: &mut [u64], seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    for last in (1..list.len()).rev() {
        let draw = (u64::from(random.next_u32()) * (last as u64 + 1)) >> 32;
        list.swap(last, draw as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mdp::{ToolRecord, Usage, testing};

    #[test]
    fn a_shuffled_list_has_the_same_tasks_in_another_order() {
        let mut list: Vec<u64> = (0..100).collect();
        shuffle(&mut list, 3);
        assert_ne!(list, (0..100).collect::<Vec<_>>());
        list.sort_unstable();
        assert_eq!(list, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn empty_replies_of_a_server_are_reported() {
        let reply = |text: &str, tokens: u64| {
            let mut step = testing::step(&[], &[]);
            text.clone_into(&mut step.text);
            let usage = Usage { prompt_tokens: 0, response_tokens: tokens };
            step.server = Some(Box::new(ServerReply { usage, ..ServerReply::default() }));
            step
        };
        let steps = vec![reply("hello", 0), reply("", 5), testing::step(&[], &[])];
        assert!(doubts(&[testing::trajectory(steps)]).is_empty());
        let messages = doubts(&[testing::trajectory(vec![reply("", 0), reply("hello", 0)])]);
        assert!(
            messages.len() == 1 && messages[0].starts_with("1 of 2 replies of the server are empty"),
            "{messages:?}"
        );
        let call = ToolRecord { name: "search".to_owned(), output: "Error: down".to_owned(), ..ToolRecord::default() };
        let mut step = reply("hello", 1);
        step.tools = vec![call.clone(), call];
        assert_eq!(doubts(&[testing::trajectory(vec![step])]), ["all 2 calls of `search` failed: Error: down"]);
    }
}
