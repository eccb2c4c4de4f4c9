//! Curves of several runs as a picture (SVG): one panel per metric, one line per run.

use std::fmt::Write;

use super::curves::Curve;
use super::format::compact;

/// Colours with enough contrast on white and on black.
const COLOURS: [&str; 8] = ["#0969da", "#d1570c", "#1a7f37", "#8250df", "#bf3989", "#9a6700", "#0e8a8a", "#6e7781"];

/// Panels per row, and the size of one with its margins.
const PER_ROW: usize = 3;
const PANEL: (f64, f64) = (380.0, 260.0);
const LEFT: f64 = 60.0;
const TOP: f64 = 40.0;
const PLOT: (f64, f64) = (300.0, 170.0);

/// A panel: the metric, whether it is a share from 0 to 1, and a curve per run, if the run has it.
pub struct Panel<'a> {
    pub metric: &'a str,
    pub is_share: bool,
    pub curves: Vec<Option<&'a Curve>>,
}

/// Draws the panels with a legend of the runs.
pub fn picture(runs: &[String], panels: &[Panel<'_>]) -> String {
    let rows = panels.len().div_ceil(PER_ROW);
    let legend = 24.0 + 18.0 * runs.len() as f64;
    let (width, height) = (PANEL.0 * panels.len().clamp(1, PER_ROW) as f64, PANEL.1 * rows as f64 + legend);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#777\">\n"
    );
    for (at, panel) in panels.iter().enumerate() {
        let origin = (PANEL.0 * (at % PER_ROW) as f64 + LEFT, PANEL.1 * (at / PER_ROW) as f64 + TOP);
        draw(&mut svg, panel, origin);
    }
    for (at, run) in runs.iter().enumerate() {
        let y = PANEL.1 * rows as f64 + 18.0 * at as f64 + 12.0;
        let (colour, run) = (COLOURS[at % COLOURS.len()], escaped(run));
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{}\" y=\"{}\">{run}</text>",
            LEFT + 24.0,
            LEFT + 32.0,
            y + 4.0
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw(svg: &mut String, panel: &Panel<'_>, (left, top): (f64, f64)) {
    let points = || panel.curves.iter().flatten().flat_map(|curve| &curve.0);
    let range = |of: &dyn Fn(&(u64, f64)) -> f64| {
        let (low, high) = points()
            .map(of)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        // One value has no range.
        if low < high { (low, high) } else { (low - 0.5, high + 0.5) }
    };
    if points().next().is_none() {
        return;
    }
    let steps = range(&|point| point.0 as f64);
    let values = if panel.is_share { (0.0, 1.0) } else { range(&|point| point.1) };
    let x = |step: f64| left + PLOT.0 * (step - steps.0) / (steps.1 - steps.0);
    let y = |value: f64| top + PLOT.1 * (values.1 - value) / (values.1 - values.0);
    let _ =
        writeln!(svg, "<text x=\"{left}\" y=\"{}\" font-weight=\"600\">{}</text>", top - 14.0, escaped(panel.metric));
    for tick in 0..=4 {
        let value = values.0 + (values.1 - values.0) * f64::from(tick) / 4.0;
        let height = y(value);
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" x2=\"{}\" y1=\"{height:.1}\" y2=\"{height:.1}\" stroke=\"#888\" stroke-opacity=\"0.25\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left + PLOT.0,
            left - 6.0,
            height + 4.0,
            compact(value)
        );
    }
    let bottom = top + PLOT.1 + 16.0;
    for (step, anchor) in [(steps.0, "start"), (steps.1, "end")] {
        let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{bottom}\" text-anchor=\"{anchor}\">step {step}</text>", x(step));
    }
    for (curve, colour) in panel.curves.iter().zip(COLOURS.iter().cycle()) {
        let Some(curve) = curve else { continue };
        let mut path = String::new();
        for (at, (step, value)) in curve.0.iter().enumerate() {
            let _ = write!(path, "{}{:.1} {:.1}", if at == 0 { 'M' } else { 'L' }, x(*step as f64), y(*value));
        }
        let _ = writeln!(svg, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>");
        // A line through one point is invisible.
        if let [(step, value)] = curve.0[..] {
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>",
                x(step as f64),
                y(value)
            );
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_a_panel_per_metric_and_a_line_per_run() {
        let (rising, one) = (Curve(vec![(1, 0.0), (3, 1.0)]), Curve(vec![(2, 0.5)]));
        let runs = ["a".to_owned(), "b<c".to_owned()];
        let panels = [
            Panel { metric: "eval/accuracy", is_share: true, curves: vec![Some(&rising), Some(&one)] },
            Panel { metric: "kl/mean", is_share: false, curves: vec![None, Some(&one)] },
        ];
        let svg = picture(&runs, &panels);
        assert_eq!((svg.matches("<path").count(), svg.matches("<circle").count()), (3, 2), "{svg}");
        assert!(svg.contains("M60.0 210.0L360.0 40.0") && svg.contains("b&lt;c") && svg.contains("step 3"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
