//! `r1 data stats`: statistics of columns.

use serde_json::json;

use super::super::args::OutputArgs;
use super::super::data_args::StatsArgs;
use super::super::{print, print_json};
use super::rows::check_interrupt;
use crate::data::statistics;
use crate::error::{Result, without_control_characters};
use crate::hub::Fetching;
use crate::load::{local_model_dir, text_dir};
use crate::telemetry::{ReportStyle, ctrl_c, report};
use crate::text::Tokenizer;

pub(super) fn run(args: &StatsArgs, output: OutputArgs) -> Result<()> {
    let data = args.rows.open()?;
    let reporter = output.reporter_beside_json();
    let interrupt = ctrl_c();
    let tokenizer = match &args.tokenizer {
        None => None,
        Some(name) => {
            let fetching = Fetching { reporter: &reporter, interrupt: Some(interrupt) };
            let dir = local_model_dir(name).map_or_else(|| text_dir(name, fetching), Ok)?;
            Some(Tokenizer::load(&dir)?)
        }
    };
    let bar = reporter.bar("reading", data.len(), "rows");
    let row = |index: u64| {
        check_interrupt(interrupt)?;
        bar.inc(1);
        data.raw_row(index)
    };
    let tokens = tokenizer.as_ref().map(|tokenizer| |text: &str| Ok(tokenizer.encode(text)?.len()));
    let tokens = tokens.as_ref().map(|tokens| tokens as &dyn Fn(&str) -> Result<usize>);
    let statistics = statistics(data.len(), &row, tokens);
    bar.finish();
    let statistics = json!(statistics?);
    if output.json {
        return print_json(statistics);
    }
    let text = report(include_str!("../../../lua/reports/data_stats.lua"), &statistics, ReportStyle::of(&reporter))?;
    print(&without_control_characters(&text))
}
