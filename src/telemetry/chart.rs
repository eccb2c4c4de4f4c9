//! Text plots with axes, for a terminal (lua/reports/chart.lua).

use serde::Serialize;

use super::report::{ReportStyle, report};
use crate::error::Result;

/// A plot of one value per step.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Plot<'a> {
    pub(super) title: &'a str,
    pub(super) values: &'a [f64],
    /// Columns and rows.
    pub(super) size: (usize, usize),
    /// Range of the value axis; the range of the data if `None`.
    pub(super) bounds: Option<(f64, f64)>,
    /// Step of the first value.
    pub(super) first: u64,
}

/// Draws the values, with their range on the left and the steps below.
pub(super) fn plot(plot: &Plot<'_>, style: ReportStyle) -> Result<String> {
    report("return (...).plot", plot, style)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const UNICODE: ReportStyle = ReportStyle { colour: false, unicode: true };

    #[test]
    fn plot_shows_value_range_and_steps() {
        let values: Vec<f64> = (0..24).map(|n| f64::from(n) / 23.0).collect();
        let share = Plot { title: "share", values: &values, size: (24, 3), bounds: Some((0.0, 1.0)), first: 1 };
        assert_eq!(
            plot(&share, UNICODE).unwrap(),
            "share\n\
             1.000 │                ▁▂▃▄▅▆▇█\n      │        ▁▂▃▄▅▆▇█████████\n    0 │▁▂▃▄▅▆▇█████████████████\n      \
             └step 1           step 24"
        );
        let plain = Plot { title: "x", size: (24, 2), bounds: None, first: 7, ..share };
        let drawn = plot(&plain, ReportStyle::default()).unwrap();
        // NaN leaves its columns empty; a constant is drawn at half height.
        let odd = Plot { title: "x", values: &[f64::NAN, 1.0], size: (4, 2), bounds: None, first: 1 };
        assert_eq!(plot(&odd, UNICODE).unwrap(), "x\n1.000 │  ▁▁\n1.000 │  ██\n      └step 1 step 2");
        assert!(drawn.is_ascii() && drawn.ends_with("+step 7           step 30"), "{drawn}");
    }

    #[test]
    fn sparkline_has_a_block_for_each_value() {
        let line = |values: &[f64], style| -> String {
            let source = "local formats = ...; return function(it) return formats.sparkline(it, 8, 0, 1) end";
            report(source, &values, style).unwrap()
        };
        let values: Vec<f64> = (0..24).map(|n| f64::from(n) / 23.0).collect();
        assert_eq!(line(&values, UNICODE), "▁▂▃▄▅▆▇█");
        assert_eq!(line(&[0.0, f64::NAN, 1.0], ReportStyle::default()), ". #");
    }
}
