//! A line diff of two texts.

use console::Style;
use similar::{ChangeTag, TextDiff};

/// Context lines around a change.
const AROUND: usize = 2;

/// Maximum number of lines.
const LINES: usize = 60;

/// The diff, indented by two: `-` before removed lines, `+` before added lines, a blank before
/// unchanged ones. Unchanged lines far from any change are omitted.
pub(super) fn lines(was: &str, is: &str, colour: bool) -> String {
    let diff = TextDiff::from_lines(was, is);
    let paint = |style: Style, text: String| style.force_styling(colour).apply_to(text).to_string();
    let mut out = Vec::new();
    for (number, group) in diff.grouped_ops(AROUND).iter().enumerate() {
        if number > 0 {
            out.push("    …".to_owned());
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let text = change.value().trim_end_matches('\n');
            out.push(match change.tag() {
                ChangeTag::Delete => paint(Style::new().red(), format!("  - {text}")),
                ChangeTag::Insert => paint(Style::new().green(), format!("  + {text}")),
                ChangeTag::Equal => format!("    {text}"),
            });
        }
    }
    if out.len() > LINES {
        let more = out.len() - LINES;
        out.truncate(LINES);
        out.push(format!("    … {more} more lines"));
    }
    out.into_iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unchanged_lines_far_from_changes_are_omitted() {
        let was = "1\n2\n3\n4\n5\n6\n7\n";
        let is = "1\n2\n3\n4\nfive\n6\n7\n";
        assert_eq!(lines(was, is, false), "    3\n    4\n  - 5\n  + five\n    6\n    7\n");
        assert_eq!(lines(was, was, false), "");
        assert_eq!(lines("a", "b", true), "\u{1b}[31m  - a\u{1b}[0m\n\u{1b}[32m  + b\u{1b}[0m\n");
        let many = "x\n".repeat(200);
        assert!(lines("", &many, false).ends_with("    … 140 more lines\n"));
    }
}
