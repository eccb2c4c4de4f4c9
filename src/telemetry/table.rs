//! Summary line of a step: aligned columns, selected by the metrics of the first step.

use super::Metrics;
use super::format::{compact, duration, percent, thousands};

/// Number of steps between headings.
const HEADING_EVERY: u64 = 25;

struct TableColumn {
    metric: &'static str,
    /// The column is shown if the first step has this metric, even if it lacks `metric`.
    with: &'static str,
    heading: &'static str,
    format: fn(f64) -> String,
    width: usize,
}

const fn column(metric: &'static str, heading: &'static str, format: fn(f64) -> String, width: usize) -> TableColumn {
    TableColumn { metric, with: metric, heading, format, width }
}

/// A column of a metric that some steps lack: steps in which every trajectory failed or no token
/// was trained.
const fn optional(
    metric: &'static str,
    with: &'static str,
    heading: &'static str,
    format: fn(f64) -> String,
    width: usize,
) -> TableColumn {
    TableColumn { metric, with, heading, format, width }
}

/// A metric of every step of reinforcement learning.
const ROLLOUT: &str = "rollout/failed_share";

/// Columns in order; a run shows those whose metric is in its first step.
const COLUMNS: &[TableColumn] = &[
    column("sft/loss", "loss", compact, 8),
    column("policy/lr", "lr", compact, 8),
    optional("reward/mean", ROLLOUT, "reward", |v| format!("{:+.3}", v + 0.0), 7),
    optional("rollout/accuracy", ROLLOUT, "accuracy", percent, 8),
    optional("rollout/tool_call_share", ROLLOUT, "tool calls", percent, 10),
    optional("rollout/response_tokens", ROLLOUT, "tokens", |v| format!("{v:.1}"), 7),
    optional("kl/mean", "kl/coef", "kl", compact, 8),
    optional("policy/approx_kl", ROLLOUT, "approx kl", compact, 9),
    optional("policy/grad_norm", ROLLOUT, "grad norm", compact, 9),
    column("throughput/tokens_per_s", "tok/s", thousands, 8),
    column("throughput/train_tokens_per_s", "train tok/s", thousands, 11),
    column("time/step", "time", duration, 12),
];

/// Columns shown only in runs without sampling.
const ONLY_WITHOUT_SAMPLING: [&str; 2] = ["throughput/train_tokens_per_s", "policy/lr"];

/// Columns that a narrow terminal leaves out, in this order; metrics.jsonl has all metrics.
const LEFT_OUT: [&str; 5] = [
    "policy/approx_kl",
    "throughput/tokens_per_s",
    "policy/grad_norm",
    "rollout/response_tokens",
    "rollout/tool_call_share",
];

/// The columns of a run, and the number of printed rows.
#[derive(Default)]
pub(super) struct StepTable {
    columns: Vec<&'static TableColumn>,
    rows: u64,
    /// Width of the terminal; `None` for a file.
    width: Option<usize>,
}

impl StepTable {
    pub(super) fn of_width(width: Option<usize>) -> Self {
        Self { width, ..Self::default() }
    }

    /// The row of a step, with a heading every [`HEADING_EVERY`] steps.
    pub(super) fn row(&mut self, step: u64, total: u64, metrics: &Metrics) -> (Option<String>, String) {
        if self.columns.is_empty() {
            let sampled = metrics.get("throughput/tokens_per_s").is_some();
            self.columns = COLUMNS
                .iter()
                .filter(|column| metrics.get(column.metric).or(metrics.get(column.with)).is_some())
                .filter(|column| !(sampled && ONLY_WITHOUT_SAMPLING.contains(&column.metric)))
                .collect();
        }
        let digits = total.to_string().len();
        let first = (2 * digits + 1).max("step".len());
        for metric in LEFT_OUT {
            let needed = 2 + first + self.columns.iter().map(|column| 2 + column.width).sum::<usize>();
            if self.width.is_some_and(|width| needed > width) {
                self.columns.retain(|column| column.metric != metric);
            }
        }
        let heading = self.rows.is_multiple_of(HEADING_EVERY).then(|| {
            let cells = self.columns.iter().map(|c| format!("  {:>width$}", c.heading, width = c.width));
            format!("  {:>first$}{}", "step", cells.collect::<String>())
        });
        self.rows += 1;
        let cells = self.columns.iter().map(|c| {
            let value = metrics.get(c.metric).map_or_else(|| "-".to_owned(), c.format);
            format!("  {value:>width$}", width = c.width)
        });
        let counter = format!("{step:>digits$}/{total}");
        (heading, format!("  {counter:>first$}{}", cells.collect::<String>()))
    }
}

/// Aligns rows in columns: the first left-aligned, the others right-aligned.
pub(super) fn align(rows: &[Vec<String>]) -> Vec<String> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| console::measure_text_width(cell)).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    rows.iter()
        .map(|row| {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
                let pad = " ".repeat(width - console::measure_text_width(cell));
                if column == 0 { format!("  {cell}{pad}") } else { format!("  {pad}{cell}") }
            });
            cells.collect::<String>().trim_end().to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(pairs: &[(&str, f64)]) -> Metrics {
        let mut metrics = Metrics::new();
        for (name, value) in pairs {
            metrics.set(*name, *value);
        }
        metrics
    }

    #[test]
    fn step_table_rows_align_with_the_heading() {
        let mut table = StepTable::default();
        let first = metrics(&[
            ("reward/mean", -0.25),
            ("rollout/tool_call_share", 0.41),
            ("policy/lr", 1e-6),
            ("throughput/tokens_per_s", 8412.0),
            ("time/step", 1.91),
        ]);
        let (heading, row) = table.row(1, 40, &first);
        assert_eq!(heading.unwrap_or_default(), "   step   reward  tool calls     tok/s          time");
        assert_eq!(row, "   1/40   -0.250         41%     8,412         1.9 s");
        let (heading, row) = table.row(2, 40, &metrics(&[("reward/mean", 0.5)]));
        assert_eq!(heading, None);
        assert_eq!(row, "   2/40   +0.500           -         -             -");
    }

    #[test]
    fn rows_fit_a_terminal_of_80_columns() {
        let first = metrics(&[("rollout/failed_share", 0.0), ("throughput/tokens_per_s", 8412.0), ("time/step", 1.9)]);
        for (width, total, left_out) in [(84, 4, vec!["approx kl"]), (80, 120, vec!["approx kl", "tok/s"])] {
            let (heading, row) = StepTable::of_width(Some(width)).row(1, total, &first);
            let (all, _) = StepTable::default().row(1, total, &first);
            let (heading, all) = (heading.unwrap_or_default(), all.unwrap_or_default());
            assert!(all.len() > width && heading.len() <= width && row.chars().count() <= width, "{heading}");
            for name in ["approx kl", "tok/s", "grad norm", "reward", "accuracy", "time"] {
                assert_eq!(heading.contains(name), !left_out.contains(&name), "{heading}");
            }
        }
    }

    /// `kl` is the KL to the reference policy, if there is one; `approx kl` is the change by the
    /// updates.
    #[test]
    fn step_table_kl_column_is_the_reference_kl_and_optional() {
        let heading = |more: &[(&str, f64)]| {
            let first = [&[("rollout/failed_share", 0.0), ("policy/version", 0.0)], more].concat();
            let (heading, row) = StepTable::default().row(1, 9, &metrics(&first));
            (heading.unwrap_or_default(), row)
        };
        let (without, row) = heading(&[]);
        assert!(!without.contains("  kl") && without.contains("approx kl  grad norm"), "{without}");
        assert!(row.ends_with("        -          -          -"), "{row}");
        let (with, row) = heading(&[("kl/coef", 0.1), ("kl/mean", 0.25), ("policy/approx_kl", 1e-9)]);
        assert!(with.contains("        kl  approx kl  grad norm"), "{with}");
        assert!(row.contains("     0.250"), "{row}");
    }

    #[test]
    fn step_table_has_sft_columns() {
        let mut table = StepTable::default();
        let first = metrics(&[("sft/loss", 2.5), ("policy/lr", 1e-3), ("throughput/train_tokens_per_s", 1e4)]);
        let (heading, row) = table.row(7, 1000, &first);
        assert_eq!(heading.unwrap_or_default(), "       step      loss        lr  train tok/s");
        assert_eq!(row, "     7/1000     2.500     0.001       10,000");
    }

    #[test]
    fn table_cells_are_aligned() {
        let rows = [vec![String::new(), "before".to_owned()], vec!["accuracy".to_owned(), "41%".to_owned()]];
        assert_eq!(align(&rows), ["            before", "  accuracy     41%"]);
    }
}
