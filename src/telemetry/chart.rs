//! Charts for a terminal: a sparkline, and a small plot with axes.

use std::fmt::Write;

use super::format::compact;

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const MARKS: [char; 3] = ['.', ':', '#'];

/// One line of bars, at most `width` characters; what is not finite leaves a gap.
pub fn sparkline(values: &[f64], width: usize, unicode: bool) -> String {
    let values = resample(values, width.min(values.len()));
    let (low, high) = range(&values);
    let glyphs: &[char] = if unicode { &BLOCKS } else { &MARKS };
    values.iter().map(|&value| level(value, low, high, glyphs.len()).map_or(' ', |n| glyphs[n - 1])).collect()
}

/// A plot of one value a step: `height` rows of `width` columns, the range on the left, the steps below.
/// `bounds` fixes the range, for shares; otherwise it is the data's own.
pub fn plot(title: &str, values: &[f64], bounds: Option<(f64, f64)>, size: (usize, usize), unicode: bool) -> String {
    let (width, height) = (size.0.max(1), size.1.max(1));
    let columns = resample(values, width);
    let (low, high) = bounds.unwrap_or_else(|| range(&columns));
    let glyphs: &[char] = if unicode { &BLOCKS } else { &MARKS };
    let (side, corner) = if unicode { ('│', '└') } else { ('|', '+') };
    let labels = (compact(high), compact(low));
    let margin = labels.0.chars().count().max(labels.1.chars().count());
    let mut text = format!("{title}\n");
    for row in (0..height).rev() {
        let label = match row {
            _ if row + 1 == height => labels.0.as_str(),
            0 => labels.1.as_str(),
            _ => "",
        };
        let cells: String = columns
            .iter()
            .map(|&value| {
                let filled = level(value, low, high, height * glyphs.len()).unwrap_or(0);
                match filled.saturating_sub(row * glyphs.len()).min(glyphs.len()) {
                    0 => ' ',
                    n => glyphs[n - 1],
                }
            })
            .collect();
        // Writing to a string can't fail.
        let _ = writeln!(text, "{label:>margin$} {side}{}", cells.trim_end());
    }
    let (first, last) = ("step 1", format!("step {}", values.len()));
    let gap = width.saturating_sub(first.len() + last.len()).max(1);
    let _ = write!(text, "{:margin$} {corner}{first}{:gap$}{last}", "", "");
    text
}

/// As many values as columns: means of neighbours, or each value several times.
fn resample(values: &[f64], columns: usize) -> Vec<f64> {
    let count = values.len();
    if count == 0 {
        return Vec::new();
    }
    (0..columns)
        .map(|column| {
            let start = column * count / columns;
            let end = ((column + 1) * count / columns).max(start + 1);
            let finite: Vec<f64> = values[start..end].iter().copied().filter(|v| v.is_finite()).collect();
            finite.iter().sum::<f64>() / finite.len() as f64
        })
        .collect()
}

/// Smallest and largest finite value.
fn range(values: &[f64]) -> (f64, f64) {
    let finite = || values.iter().copied().filter(|v| v.is_finite());
    let (low, high) = (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
    if low <= high { (low, high) } else { (0.0, 0.0) }
}

/// Where a value stands between `low` (1) and `high` (`levels`); `None` when it is not finite. Equal bounds put
/// everything in the middle.
fn level(value: f64, low: f64, high: f64, levels: usize) -> Option<usize> {
    if !value.is_finite() {
        return None;
    }
    let share = if high > low { ((value - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 };
    Some(1 + (share * (levels - 1) as f64).round() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparklines_rise_with_the_values() {
        let values: Vec<f64> = (0..8).map(f64::from).collect();
        assert_eq!(sparkline(&values, 8, true), "▁▂▃▄▅▆▇█");
        assert_eq!(sparkline(&values, 4, true), "▁▃▆█");
        assert_eq!(sparkline(&[0.0, f64::NAN, 1.0], 8, false), ". #");
        assert_eq!(sparkline(&[], 8, true), "");
        assert_eq!(sparkline(&[2.0, 2.0], 8, true), "▅▅");
    }

    #[test]
    fn a_plot_has_its_range_and_its_steps() {
        let values: Vec<f64> = (0..24).map(|n| f64::from(n) / 23.0).collect();
        let drawn = plot("share", &values, Some((0.0, 1.0)), (24, 3), true);
        assert_eq!(
            drawn,
            "share\n\
             1.000 │                ▁▂▃▄▅▆▇█\n      │        ▁▂▃▄▅▆▇█████████\n    0 │▁▂▃▄▅▆▇█████████████████\n      \
             └step 1           step 24"
        );
        assert!(plot("x", &values, None, (24, 2), false).is_ascii());
    }
}
