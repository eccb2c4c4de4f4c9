//! The line that sums up a step: aligned columns, chosen by what the first step measured.

use super::Metrics;
use super::format::{compact, duration, percent, thousands};

/// Steps between two headings.
const HEADING_EVERY: u64 = 25;

struct Column {
    metric: &'static str,
    heading: &'static str,
    format: fn(f64) -> String,
    width: usize,
}

const fn column(metric: &'static str, heading: &'static str, format: fn(f64) -> String, width: usize) -> Column {
    Column { metric, heading, format, width }
}

/// What a person follows during a run, in order; a run shows those that its first step has.
const COLUMNS: &[Column] = &[
    column("sft/loss", "loss", compact, 8),
    column("policy/lr", "lr", compact, 8),
    column("reward/mean", "reward", |v| format!("{:+.3}", v + 0.0), 7),
    column("rollout/accuracy", "accuracy", percent, 8),
    column("rollout/tool_call_share", "tool calls", percent, 10),
    column("rollout/response_tokens", "tokens", |v| format!("{v:.1}"), 7),
    column("policy/approx_kl", "kl", compact, 8),
    column("policy/grad_norm", "grad norm", compact, 9),
    column("throughput/tokens_per_s", "tok/s", thousands, 8),
    column("throughput/train_tokens_per_s", "train tok/s", thousands, 11),
    column("time/step", "time", duration, 12),
];

/// Columns shown only where there is no sampling, which has its own.
const ONLY_WITHOUT_SAMPLING: [&str; 2] = ["throughput/train_tokens_per_s", "policy/lr"];

/// Remembers which columns a run shows.
#[derive(Default)]
pub(super) struct StepTable {
    columns: Vec<&'static Column>,
    rows: u64,
}

impl StepTable {
    /// The heading, when one is due, and the row of a step.
    pub(super) fn row(&mut self, step: u64, total: u64, metrics: &Metrics) -> (Option<String>, String) {
        if self.columns.is_empty() {
            let sampled = metrics.get("throughput/tokens_per_s").is_some();
            self.columns = COLUMNS
                .iter()
                .filter(|column| metrics.get(column.metric).is_some())
                .filter(|column| !(sampled && ONLY_WITHOUT_SAMPLING.contains(&column.metric)))
                .collect();
        }
        let digits = total.to_string().len();
        let first = (2 * digits + 1).max("step".len());
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

/// Rows in aligned columns: the first to the left, the others to the right.
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
    fn rows_line_up_under_the_heading() {
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
    fn supervised_runs_have_their_own_columns() {
        let mut table = StepTable::default();
        let first = metrics(&[("sft/loss", 2.5), ("policy/lr", 1e-3), ("throughput/train_tokens_per_s", 1e4)]);
        let (heading, row) = table.row(7, 1000, &first);
        assert_eq!(heading.unwrap_or_default(), "       step      loss        lr  train tok/s");
        assert_eq!(row, "     7/1000     2.500     0.001       10,000");
    }

    #[test]
    fn cells_align() {
        let rows = [vec![String::new(), "before".to_owned()], vec!["accuracy".to_owned(), "41%".to_owned()]];
        assert_eq!(align(&rows), ["            before", "  accuracy     41%"]);
    }
}
