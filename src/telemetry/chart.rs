//! Text plots with axes, for a terminal.

use std::fmt::Write;

use super::format::compact;

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const MARKS: [char; 3] = ['.', ':', '#'];

/// Options of a plot.
#[derive(Clone, Copy, Debug)]
pub struct Plot {
    /// Columns and rows.
    pub size: (usize, usize),
    /// Range of the value axis; the range of the data if `None`.
    pub bounds: Option<(f64, f64)>,
    /// Step of the first value.
    pub first: u64,
    pub unicode: bool,
}

/// Draws one value per step, with the value range on the left and the steps below.
pub fn plot(title: &str, values: &[f64], options: Plot) -> String {
    let Plot { size, bounds, first, unicode } = options;
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
    let last = format!("step {}", (first + values.len() as u64).saturating_sub(1));
    let first = format!("step {first}");
    let gap = width.saturating_sub(first.len() + last.len()).max(1);
    let _ = write!(text, "{:margin$} {corner}{first}{:gap$}{last}", "", "");
    text
}

/// One line of blocks for values within bounds, at most `width` columns.
pub fn sparkline(values: &[f64], width: usize, (low, high): (f64, f64), unicode: bool) -> String {
    let glyphs: &[char] = if unicode { &BLOCKS } else { &MARKS };
    let columns = resample(values, width.min(values.len()));
    let glyph = |value: f64| level(value, low, high, glyphs.len()).map_or(' ', |level| glyphs[level - 1]);
    columns.into_iter().map(glyph).collect()
}

/// Resamples to one value per column, by averaging neighbours or repeating values.
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

/// Level of a value between `low` (1) and `high` (`levels`); `None` if it is not finite. With equal
/// bounds the level is the middle.
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
    fn plot_shows_value_range_and_steps() {
        let values: Vec<f64> = (0..24).map(|n| f64::from(n) / 23.0).collect();
        let drawn = plot("share", &values, Plot { size: (24, 3), bounds: Some((0.0, 1.0)), first: 1, unicode: true });
        assert_eq!(
            drawn,
            "share\n\
             1.000 │                ▁▂▃▄▅▆▇█\n      │        ▁▂▃▄▅▆▇█████████\n    0 │▁▂▃▄▅▆▇█████████████████\n      \
             └step 1           step 24"
        );
        let drawn = plot("x", &values, Plot { size: (24, 2), bounds: None, first: 7, unicode: false });
        // NaN leaves its columns empty; a constant is drawn at half height.
        let options = Plot { size: (4, 2), bounds: None, first: 1, unicode: true };
        let drawn_nan = plot("x", &[f64::NAN, 1.0], options);
        assert_eq!(drawn_nan, "x\n1.000 │  ▁▁\n1.000 │  ██\n      └step 1 step 2");
        assert_eq!(sparkline(&values, 8, (0.0, 1.0), true), "▁▂▃▄▅▆▇█");
        assert_eq!(sparkline(&[0.0, f64::NAN, 1.0], 8, (0.0, 1.0), false), ". #");
        assert!(drawn.is_ascii() && drawn.ends_with("+step 7           step 30"), "{drawn}");
    }
}
