//! `r1 traj grep`: lines of messages that match a regular expression.

use regex::{Regex, RegexBuilder};
use serde_json::json;

use super::super::args::OutputArgs;
use super::super::traj_args::GrepArgs;
use super::super::{print_json, print_report};
use super::selected::{Selected, event, harmless};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Message, Role};
use crate::telemetry::ReportStyle;

/// Bytes shown on each side of a match.
const AROUND: usize = 70;

pub(super) fn run(args: &GrepArgs, output: OutputArgs) -> Result<()> {
    let pattern = RegexBuilder::new(&args.pattern).case_insensitive(args.ignore_case).build();
    let pattern = pattern.map_err(|error| {
        let text = error.to_string();
        let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        Error::new(Kind::Usage, format!("`{}` is not a regular expression: {reason}", args.pattern))
            .hint("a backslash before a character such as ( or [ searches the character")
    })?;
    let role = args.role.as_deref().and_then(Role::from_name);
    let selected = Selected::open(&args.selection, args.condition.as_deref(), output)?;
    let (mut matches, mut lines, mut trajectories, mut total) = (Vec::new(), 0_usize, 0_usize, 0_usize);
    selected.each(&["id", "messages", "replies"], |_, _, scanned| {
        total += scanned.total;
        for &row in &scanned.rows {
            let before = lines;
            let id = scanned.texts("id")[row].as_deref().unwrap_or_default();
            let text = |column: &str| scanned.texts(column)[row].as_deref().unwrap_or("[]");
            let mut messages: Vec<Message> = serde_json::from_str(text("messages")).unwrap_or_default();
            if messages.is_empty() {
                let replies: Vec<String> = serde_json::from_str(text("replies")).unwrap_or_default();
                messages = replies.into_iter().map(Message::assistant).collect();
            }
            for (number, message) in messages.iter().enumerate() {
                if role.is_some_and(|role| role != message.role) {
                    continue;
                }
                for line in searched(message).iter().flat_map(|text| text.lines()) {
                    let Some([before, matched, after]) = excerpt(&pattern, line) else { continue };
                    lines += 1;
                    if args.limit == 0 || matches.len() < args.limit {
                        matches.push(json!({
                            "event": "match", "id": id, "message": number, "role": message.role, "before": before,
                            "match": matched, "after": after,
                        }));
                    }
                }
            }
            trajectories += usize::from(lines > before);
        }
        Ok(())
    })?;
    let counts = json!({ "shown": matches.len(), "lines": lines, "trajectories": trajectories, "total": total });
    if output.json {
        matches.into_iter().try_for_each(print_json)?;
        return print_json(event("summary", &counts));
    }
    let mut result = json!({ "matches": matches, "counts": counts, "quiet": output.quiet });
    harmless(&mut result);
    print_report(include_str!("../../../lua/reports/traj_grep.lua"), &result, ReportStyle::of(&selected.reporter))
}

/// The texts of a message: reasoning, content and tool calls.
fn searched(message: &Message) -> Vec<String> {
    let calls = message.tool_calls.iter().map(|call| format!("{} {}", call.name, call.arguments));
    message.reasoning_content.clone().into_iter().chain([message.content.text()]).chain(calls).collect()
}

/// The part of a line with its first match: what is before, the match, what is after.
fn excerpt(pattern: &Regex, line: &str) -> Option<[String; 3]> {
    let matched = pattern.find(line)?;
    let start = line.floor_char_boundary(matched.start().saturating_sub(AROUND));
    let match_end = line.floor_char_boundary(matched.end().min(matched.start() + 4 * AROUND));
    let end = line.floor_char_boundary(line.len().min(match_end + AROUND));
    let before = format!("{}{}", if start > 0 { "…" } else { "" }, &line[start..matched.start()]);
    let after = format!("{}{}", &line[match_end..end], if end < line.len() { "…" } else { "" });
    Some([before, line[matched.start()..match_end].to_owned(), after])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn long_lines_are_cut_around_the_match() {
        let line = format!("{}néedle{}", "ä".repeat(100), "x".repeat(10_000_000));
        let shown = excerpt(&Regex::new("n.edle").unwrap(), &line).unwrap();
        let expected = [format!("…{}", "ä".repeat(35)), "néedle".to_owned(), format!("{}…", "x".repeat(70))];
        assert_eq!(shown, expected);
        let everything = excerpt(&Regex::new("x+").unwrap(), &line).unwrap();
        assert!(everything.concat().len() < 1000);
        assert!(excerpt(&Regex::new("^$").unwrap(), "a").is_none());
    }
}
