//! `r1 check --masks`: the loss mask and the advantages, token by token.

use serde_json::json;

use super::args::OutputArgs;
use super::{print, print_json};
use crate::error::Result;
use crate::telemetry::{ReportStyle, report};
use crate::train::{self, RunOptions, ShownToken, ShownTrajectory};

const SOURCE: &str = include_str!("../../lua/reports/masks.lua");

/// Rolls out the first task's group and prints every token.
pub(super) fn show(options: &RunOptions, output: OutputArgs) -> Result<()> {
    let reporter = output.reporter_beside_json();
    let shown = train::masks(options, &reporter)?;
    if output.json {
        return shown.iter().map(|trajectory| json!(trajectory)).try_for_each(print_json);
    }
    print(&text(&shown, ReportStyle::of(&reporter))?)
}

fn text(trajectories: &[ShownTrajectory], style: ReportStyle) -> Result<String> {
    report(SOURCE, &json!({ "trajectories": trajectories }), style)
}

/// The text of a prompt: its tokens, the number of `sampled` ones, and the limits.
pub(super) fn prompt(tokens: &[ShownToken], (budget, max_context): (usize, usize), colour: bool) -> Result<String> {
    let sampled = tokens.iter().filter(|token| token.sampled).count();
    let result = json!({ "prompt": tokens, "sampled": sampled, "budget": budget, "max_context": max_context });
    report(SOURCE, &result, ReportStyle { colour, ..ReportStyle::default() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The text after the legend.
    fn lines(trajectory: &ShownTrajectory, colour: bool) -> String {
        let style = ReportStyle { colour, ..ReportStyle::default() };
        let text = text(std::slice::from_ref(trajectory), style).unwrap();
        text.split_once('\n').unwrap().1.to_owned()
    }

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
        assert!(longest.is_some_and(|longest| longest <= 100), "{text}");
        assert_eq!(text.matches("[four]").count(), 60);
        assert_eq!(text.matches("+1.00").count(), 1);
    }
}
