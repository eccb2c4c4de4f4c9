//! A report as one page of HTML without scripts or other files: the template `report.html`.

use minijinja::{Environment, context};
use serde_json::Value;

use super::report::Report;
use super::show::{call, missing_notes, sequential_notes, tables};
use crate::error::{Error, Kind, Result};

/// The page: the tables of the report, a drawing of the metrics from 0 to 1 with their intervals,
/// and replies as text.
///
/// # Errors
/// [`Kind::Internal`] for a mistake in the template.
pub fn html(report: &Report, examples: &str) -> Result<String> {
    let values = context! {
        recipe => report.recipe,
        models => report.policies.iter().map(|policy| &policy.model).collect::<Vec<_>>(),
        drawing => call::<Vec<Value>>("drawing", report, true)?,
        tables => tables(report, true)?,
        notes => [missing_notes(report)?, sequential_notes(report)?].concat(),
        examples => examples,
    };
    let mut environment = Environment::new();
    environment.set_keep_trailing_newline(true);
    environment
        .add_template("report.html", include_str!("report.html"))
        .and_then(|()| environment.get_template("report.html")?.render(values))
        .map_err(|error| Error::new(Kind::Internal, format!("can't write the page of the report: {error}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::eval::{Estimate, Figures, PolicyReport};

    #[test]
    fn a_page_has_a_drawing_with_a_line_per_policy_and_escaped_text() {
        let policy = |model: &str, low: f64| PolicyReport {
            model: model.to_owned(),
            figures: Figures {
                metrics: vec![
                    ("pass@1".to_owned(), Estimate { value: 0.5, low, high: 1.0 }),
                    ("seconds".to_owned(), Estimate { value: 0.5, low: 0.5, high: 0.5 }),
                ],
                ..Figures::default()
            },
            ..PolicyReport::default()
        };
        let policies = vec![policy("a<b", 0.25), policy("c", -0.5)];
        let report = Report { recipe: "x & y".to_owned(), policies, ..Report::default() };
        let page = html(&report, "1 < 2").unwrap();
        assert!(page.contains("<h1>Evaluation of x &amp; y</h1>") && page.contains("<pre>1 &lt; 2</pre>"), "{page}");
        assert_eq!(page.matches("<circle").count(), 2, "{page}");
        assert!(page.contains("a&lt;b pass@1 0.500 [0.250, 1.000]") && page.contains("x1=\"280"), "{page}");
        // The scale ends at 0.
        assert!(page.replace(".0\"", "\"").contains("x1=\"140\" x2=\"700\""), "{page}");
        assert!(page.ends_with("</html>\n"), "{page}");
    }
}
