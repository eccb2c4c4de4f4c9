//! Data of a run for TensorBoard in addition to its metrics: distributions of each step, texts of
//! sample trajectories, the settings as hyperparameters.

use std::fmt::Write;

use serde_json::json;

use super::report::conversation;
use crate::error::Result;
use crate::mdp::Trajectory;
use crate::script::Script;
use crate::telemetry::MetricsLog;
use crate::train::options::due;

/// Number of trajectories of a sample.
const SAMPLES: usize = 2;
/// Number of samples of training trajectories in a run.
const TIMES: usize = 10;
/// Characters of one trajectory.
const LONGEST: usize = 8000;

/// The settings in effect.
pub(crate) fn settings(log: &mut MetricsLog, script: &Script) -> Result<()> {
    let mut settings = json!(script.settings);
    settings["trainer"]["algorithm"] = json!(script.algorithm);
    // Rows in the recipe are data.
    settings["data"] = json!(null);
    log.settings(&settings)
}

/// Distributions over the trajectories of a step and over its trained tokens (`of_tokens`, by
/// name); at some steps also a few trajectories as text.
pub(crate) fn step(
    log: &mut MetricsLog,
    step: u64,
    steps: usize,
    trajectories: &[Trajectory],
    of_tokens: [(&str, Vec<f64>); 2],
) -> Result<()> {
    let counted: Vec<&Trajectory> = trajectories.iter().filter(|one| !one.status.is_failure()).collect();
    let of = |number: &dyn Fn(&Trajectory) -> f64| counted.iter().map(|one| number(one)).collect::<Vec<f64>>();
    log.distributions(
        step,
        &[
            ("distribution/reward", of(&Trajectory::total_reward)),
            ("distribution/response_tokens", of(&|one| one.response_tokens() as f64)),
            ("distribution/steps", of(&|one| one.steps.len() as f64)),
        ],
    )?;
    for (name, values) in of_tokens.into_iter().filter(|(_, values)| !values.is_empty()) {
        log.distributions(step, &[(&format!("distribution/{name}"), values)])?;
    }
    if step == 1 || due(step, steps.div_ceil(TIMES), steps) {
        samples(log, step, "train", trajectories)?;
    }
    Ok(())
}

/// The first trajectories as text.
pub(crate) fn samples(log: &mut MetricsLog, step: u64, split: &str, trajectories: &[Trajectory]) -> Result<()> {
    for (index, trajectory) in trajectories.iter().take(SAMPLES).enumerate() {
        let status = trajectory.status.name();
        let head = format!(
            "{}, task {}, reward {:+.3}, {status}\n",
            trajectory.id,
            trajectory.task_index,
            trajectory.total_reward()
        );
        log.text(step, &format!("trajectory/{split}/{index}"), &markdown(head, &conversation(trajectory)))?;
    }
    Ok(())
}

/// Adds a conversation to `text` as Markdown: its texts are in fences longer than any fence in
/// them.
fn markdown(mut text: String, conversation: &[(String, String)]) -> String {
    for (who, content) in conversation {
        let longest = content.split(|c| c != '`').map(str::len).max().unwrap_or(0);
        let fence = "`".repeat(longest.max(2) + 1);
        let room = LONGEST.saturating_sub(text.len());
        let cut: String = content.chars().take(room).collect();
        let more = if cut.len() < content.len() { "\n…" } else { "" };
        // Writing to a string can't fail.
        let _ = write!(text, "\n**{who}**\n\n{fence}\n{cut}{more}\n{fence}\n");
        if room == 0 {
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_longer_than_the_fences_in_it() {
        let messages = [("user", "Use ``` and ````.".to_owned()), ("assistant", "x".repeat(9000))];
        let text = markdown("1-0-0\n".to_owned(), &messages.map(|(who, messages)| (who.to_owned(), messages)));
        assert!(text.contains("**user**\n\n`````\nUse ``` and ````.\n`````\n"), "{text}");
        assert!(text.ends_with("\n…\n```\n") && text.len() < LONGEST + 200, "{}", text.len());
    }
}
