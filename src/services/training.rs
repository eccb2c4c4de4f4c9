//! `r1.training`: runs with a training loop in Lua, on the thread that owns the tensors.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value as Json;

use crate::error::{Error, Kind, Result, Subject};
use crate::script::Script;
use crate::script::services::request::Reply;
use crate::script::services::training::{AtStep, OpenTraining, OpenedTraining, TrainingCall};
use crate::telemetry::Reporter;
use crate::train::{RunOptions, Training};

/// The open runs.
#[derive(Default)]
pub(super) struct Trainings {
    open: BTreeMap<u64, Training>,
    next: u64,
}

impl Trainings {
    pub(super) fn answer(&mut self, call: TrainingCall) {
        use TrainingCall as Call;
        match call {
            Call::OpenTraining(request, reply) => reply.send(self.open(request)),
            Call::CloseTraining(request, reply) => {
                if let Some(run) = self.open.remove(&request.training) {
                    run.sum_up_failures();
                }
                reply.send(Ok(()));
            }
            Call::SampleTrajectories(request, reply) => {
                self.run(request.training, reply, |run| {
                    let ids = run.rollout(&request.options)?;
                    run.trajectories(&ids)
                });
            }
            Call::TrajectoryAdvantages(request, reply) => {
                self.run(request.training, reply, |run| run.advantages(&request.ids, request.estimator));
            }
            Call::UpdateWeights(request, reply) => {
                self.run(request.training, reply, |run| run.update(&request.ids, &request.options));
            }
            Call::SupervisedStep(request, reply) => {
                self.run(request.training, reply, |run| run.supervised(&request.examples, &request.options));
            }
            Call::TrajectoryLogprobs(request, reply) => {
                self.run(request.training, reply, |run| run.logprobs(&request.ids, request.model));
            }
            Call::TrajectoryValues(request, reply) => {
                self.run(request.training, reply, |run| run.values(&request.ids));
            }
            Call::RenewReference(request, reply) => self.run(request.training, reply, Training::renew_reference),
            Call::Evaluate(request, reply) => {
                self.run(request.training, reply, |run| run.evaluate("held out", false));
            }
            Call::LogMetrics(request, reply) => self.run(request.training, reply, |run| {
                run.log(&request.values);
                Ok(())
            }),
            Call::NextStep(request, reply) => self.run(request.training, reply, Training::next_step),
            Call::SaveCheckpoint(request, reply) => {
                self.run(request.training, reply, |run| run.save_between_steps(request.out.as_deref()));
            }
        }
    }

    fn open(&mut self, request: OpenTraining) -> Result<OpenedTraining> {
        let in_directory = request.directory.join(&request.path);
        let script = if request.path.exists() || !in_directory.exists() { request.path } else { in_directory };
        if let Some(recipe) = &request.recipe {
            same(&script, recipe)?;
        }
        let options = RunOptions {
            script,
            overrides: request.overrides,
            runs_dir: request.runs.unwrap_or_else(|| "runs".into()),
            name: request.name,
            resume: request.resume,
            no_reload: request.reload == Some(false),
            profile: request.profile,
            ..RunOptions::default()
        };
        // Output is up to the program; only warnings are printed here.
        let run = Training::for_program(&options, &Reporter::new(true, false, false))?;
        let about = run.about();
        self.next += 1;
        self.open.insert(self.next, run);
        Ok(OpenedTraining { training: self.next, about })
    }

    /// Calls an open run.
    fn run<T>(&mut self, training: u64, reply: Reply<AtStep<T>>, call: impl FnOnce(&mut Training) -> Result<T>) {
        let not_open = || Error::new(Kind::Internal, "the training is not open");
        let result = self.open.get_mut(&training).ok_or_else(not_open).and_then(|run| {
            let result = call(run).map_err(with_place)?;
            let (step, steps) = run.progress();
            Ok(AtStep { result, step, steps })
        });
        reply.send(result);
    }
}

/// Moves the place of an error into its message: its place is the line of the program, which the
/// caller adds.
fn with_place(error: Error) -> Error {
    match (error.subject.as_deref(), &error.place) {
        (Some(Subject::Trajectories { .. } | Subject::Example { .. }), Some(place)) => {
            Error { message: format!("{place}: {}", error.message), place: None, ..error }
        }
        _ => error,
    }
}

/// Refuses a recipe that differs when script workers load the program again.
fn same(script: &Path, recipe: &Json) -> Result<()> {
    let (here, hint) = (script.display(), "put the recipe into a separate file and pass its path");
    if !script.is_file() {
        let message = "r1.training: a recipe as a table requires a program file, which script workers load again";
        return Err(Error::new(Kind::Usage, message).hint(hint));
    }
    let loaded = Script::load(script, &[]).map_err(|error| Error {
        message: format!("each script worker loads the file again, up to r1.training: {}", error.message),
        ..error
    })?;
    if recipe == loaded.recipe_settings() {
        return Ok(());
    }
    let message = format!("r1.training: {here} returns another recipe when a script worker loads it again");
    Err(Error::new(Kind::Script, message)
        .hint("use one recipe per file that does not depend on arguments; pass what varies in the option `settings`"))
}
