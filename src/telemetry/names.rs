//! The metrics of a run: docs/reference/metrics.md is the only list of their names and meanings.

/// The page, whose tables have a row for each metric.
const PAGE: &str = include_str!("../../docs/reference/metrics.md");

/// Name and meaning of every metric; a name has `<…>` for a word that the recipe defines.
fn documented() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | "))
}

/// Description of a metric, in Markdown; `None` for an unknown name.
pub fn meaning(metric: &str) -> Option<&'static str> {
    let exact = documented().find(|(name, _)| *name == metric);
    exact.or_else(|| documented().find(|(name, _)| matches_pattern(name, metric))).map(|(_, meaning)| meaning)
}

fn matches_pattern(pattern: &str, metric: &str) -> bool {
    pattern.split_once('<').is_some_and(|(fixed, _)| {
        metric.strip_prefix(fixed).is_some_and(|chosen| !chosen.is_empty() && !chosen.contains('/'))
    })
}

/// Whether a metric is a share, so that its plot has the range 0 to 1.
pub fn is_share(metric: &str) -> bool {
    meaning(metric).is_some_and(|meaning| meaning.starts_with("Share"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// src/train logs every metric of the list, and no others.
    #[test]
    fn logged_metrics_are_documented_metrics() {
        let mut paths = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/train")];
        let mut source = String::new();
        while let Some(path) = paths.pop() {
            if path.is_dir() {
                paths.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            } else {
                source += &std::fs::read_to_string(path).unwrap();
            }
        }
        let texts: std::collections::HashSet<&str> = source.split('"').collect();
        for (name, _) in documented() {
            let written = match name.split_once('<') {
                Some((fixed, _)) => texts.iter().any(|text| text.starts_with(&format!("{fixed}{{"))),
                None => texts.contains(name),
            };
            assert!(written, "{name} is documented and never logged");
        }
        let sections: std::collections::HashSet<&str> =
            documented().filter_map(|(name, _)| name.split('/').next()).collect();
        let is_name = |text: &&&str| {
            let plain = text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "/_".contains(c));
            plain && text.split_once('/').is_some_and(|(section, rest)| sections.contains(section) && !rest.is_empty())
        };
        for text in texts.iter().filter(is_name) {
            assert!(meaning(text).is_some(), "{text} is logged and not documented");
        }
    }

    #[test]
    fn metric_names_are_unique_and_patterns_match_one_word() {
        let mut seen = std::collections::HashSet::new();
        for (name, _) in documented() {
            assert!(seen.insert(name), "{name} twice");
        }
        assert!(meaning("reward/mean").unwrap().starts_with("Mean over trajectories"));
        assert!(meaning("reward/format").unwrap().starts_with("Mean of a named part"));
        assert!(meaning("reward/").is_none());
        assert!(meaning("reward/a/b").is_none());
        assert!(meaning("loss").is_none());
    }
}
