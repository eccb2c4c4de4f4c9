//! `r1 check --masks`: the loss mask and the advantages, token by token.

use std::fmt::Write;

use serde_json::json;

use super::args::OutputArgs;
use super::{print, tokens};
use crate::error::Result;
use crate::telemetry::{Reporter, signed};
use crate::train::{self, RunOptions, ShownToken, ShownTrajectory};

/// Rolls out the first task's group and prints every token.
pub(super) fn show(options: &RunOptions, output: OutputArgs) -> Result<()> {
    let reporter = if output.json { Reporter::silent() } else { output.reporter() };
    let shown = train::masks(options, &reporter)?;
    if output.json {
        return shown.iter().try_for_each(|trajectory| print(&format!("{}\n", as_json(trajectory))));
    }
    let colour = reporter.is_coloured();
    let supervised = shown.iter().any(is_example);
    let below = if supervised { "" } else { "; below each sampled token its advantage, where it changes" };
    print(&format!("{}{below}\n", tokens::legend(colour)))?;
    shown.iter().try_for_each(|trajectory| print(&lines(trajectory, colour)))
}

fn as_json(trajectory: &ShownTrajectory) -> String {
    let token = |token: &ShownToken| json!({ "text": token.text, "sampled": token.sampled, "special": token.special, "advantage": token.advantage });
    let rows: Vec<Vec<_>> = trajectory.rows.iter().map(|row| row.iter().map(token).collect()).collect();
    json!({ "event": "trajectory", "id": trajectory.id, "status": trajectory.status, "reward": trajectory.reward,
            "steps": trajectory.steps, "fork": trajectory.fork, "rows": rows })
    .to_string()
}

/// A conversation of supervised training.
fn is_example(trajectory: &ShownTrajectory) -> bool {
    trajectory.status == "example"
}

/// A trajectory as pairs of lines: tokens, and their advantages below.
fn lines(trajectory: &ShownTrajectory, colour: bool) -> String {
    let mut out = String::new();
    if is_example(trajectory) {
        let count = trajectory.rows.iter().flatten().filter(|token| token.sampled).count();
        let all = trajectory.rows.iter().flatten().count();
        let _ = writeln!(out, "\nrow {}: {count} of {all} tokens are trained on", trajectory.id);
        trajectory.rows.iter().for_each(|row| out.push_str(&tokens::row(row, false, colour)));
        return out;
    }
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let (steps, rows) = (trajectory.steps, trajectory.rows.len());
    let fork = trajectory.fork.as_ref();
    let fork = fork.map_or_else(String::new, |fork| format!(", forked from {} after {}", fork.parent, fork.step));
    let _ = writeln!(
        out,
        "\ntrajectory {}: {}, reward {}, {steps} step{} in {rows} row{}{fork}",
        trajectory.id,
        trajectory.status,
        signed(trajectory.reward),
        plural(steps),
        plural(rows)
    );
    for row in &trajectory.rows {
        out.push_str(&tokens::row(row, true, colour));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str, sampled: bool, advantage: f64) -> ShownToken {
        ShownToken { text: text.to_owned(), sampled, special: text.starts_with("<|"), advantage }
    }

    #[test]
    fn advantages_are_printed_below_their_tokens() {
        let row = vec![
            token("<|user|>", false, 0.0),
            token("Hi\n", false, 0.0),
            token("ab", true, 0.5),
            token("c", true, 0.5),
            token(" ok", false, 0.0),
            token("d", true, -1.25),
        ];
        let trajectory = ShownTrajectory {
            id: "1-0-0".to_owned(),
            status: "terminated",
            reward: 1.0,
            steps: 2,
            fork: None,
            error: None,
            rows: vec![row],
        };
        assert_eq!(
            lines(&trajectory, false),
            "\ntrajectory 1-0-0: terminated, reward +1, 2 steps in 1 row\n\
             <|user|>Hi⏎[ab][c] ok[d]\n           +0.50     -1.25\n"
        );
        let coloured = lines(&trajectory, true);
        assert!(coloured.contains("\x1b[30;42mab\x1b[0m") && coloured.contains("\x1b[2mHi⏎\x1b[0m"), "{coloured}");
    }

    #[test]
    fn long_rows_are_wrapped_between_tokens() {
        let row = (0..60).map(|_| token("four", true, 1.0)).collect();
        let trajectory = ShownTrajectory {
            id: "1".to_owned(),
            status: "truncated",
            reward: 0.0,
            steps: 1,
            fork: None,
            error: None,
            rows: vec![row],
        };
        let text = lines(&trajectory, false);
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(longest.is_some_and(|longest| longest <= tokens::WIDTH), "{text}");
        assert_eq!(text.matches("[four]").count(), 60);
        assert_eq!(text.matches("+1.00").count(), 1);
    }
}
