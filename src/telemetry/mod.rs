//! Output of a run: metric names, `metrics.jsonl`, TensorBoard events, progress bars, lines and
//! charts.
//!
//! Only this module and `cli` print. Logs and bars go to stderr, results to stdout.

mod bar;
mod chart;
mod curves;
mod format;
mod interrupt;
mod metrics;
pub mod names;
pub mod prometheus;
mod report;
mod reporter;
mod table;
mod tensorboard;

pub use bar::Bar;
pub use curves::{Curve, read_curves};
pub use format::{compact, counted, duration, percent, plain, signed, thousands};
pub use interrupt::{Interrupt, SignalGuard, ctrl_c, ignore_file_size_signal, is_interrupted};
pub(crate) use metrics::open_lines;
pub use metrics::{Metrics, MetricsLog, last_step};
pub use names::is_share;
pub use report::{ReportStyle, report};
pub use reporter::{OutputMode, Reporter};
