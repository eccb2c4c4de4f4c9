//! `r1 data prep`: rows in verl's columns, and back.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::super::args::OutputArgs;
use super::super::data_args::PrepArgs;
use super::super::{print, print_json};
use super::rows::{check_interrupt, check_out, in_rows};
use crate::data::{Fetched, VerlOptions, from_verl, is_verl, to_verl, write_rows};
use crate::error::{Error, Kind, Result};
use crate::telemetry::ctrl_c;

pub(super) fn run(args: &PrepArgs, output: OutputArgs) -> Result<()> {
    let data = args.rows.open()?;
    let verl = args.to == "verl";
    let verl_options = [&args.data_source, &args.ability, &args.prompt, &args.answer, &args.system, &args.split];
    if !verl && (args.text_answers || verl_options.iter().any(|option| option.is_some())) {
        let message =
            "--data-source, --ability, --prompt, --answer, --system, --split and --text-answers are for --to verl";
        return Err(Error::new(Kind::Usage, message).at("--to r1"));
    }
    let first = data.first_file().unwrap_or(Path::new("")).to_owned();
    let out = args.out.clone().unwrap_or_else(|| beside(&first, if verl { "verl.parquet" } else { "r1.jsonl" }));
    check_out(&out, &data)?;
    let reporter = output.reporter_beside_json();
    let fetched = first.parent().and_then(Fetched::read);
    let of =
        |verl_options: &Option<String>, fetched: Option<&String>| verl_options.clone().or_else(|| fetched.cloned());
    let data_source = of(&args.data_source, fetched.as_ref().map(|fetched| &fetched.data_source));
    let options = VerlOptions {
        data_source: data_source.unwrap_or_else(|| stem(&first)),
        ability: of(&args.ability, fetched.as_ref().map(|fetched| &fetched.ability)).unwrap_or_default(),
        prompt: args.prompt.clone(),
        answer: args.answer.clone(),
        system: args.system.clone(),
        text: args.text_answers,
        split: args.split.clone(),
    };
    let start = data.raw_row(0)?;
    if verl && is_verl(&start) {
        reporter.info("the rows have verl's columns already");
    } else if verl && start.get("data_source").is_none() && args.data_source.is_none() && fetched.is_none() {
        let name = &options.data_source;
        reporter.warn(&format!(
            "data_source is \"{name}\", the name of the file; verl selects its scoring function by it (--data-source NAME)"
        ));
    }
    let interrupt = ctrl_c();
    let row = |index: u64| {
        check_interrupt(interrupt)?;
        let row = data.raw_row(index)?;
        let converted = if verl { to_verl(row, index, &options) } else { from_verl(row) };
        converted.map_err(|error| error.at(data.place(index)))
    };
    write_rows(&out, data.len(), &row)?;
    if output.json {
        return print_json(json!({ "out": out, "rows": data.len(), "to": args.to }));
    }
    print(&format!("{}: {}\n", out.display(), in_rows(data.len())))
}

/// The file name without its extensions.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.split('.').next().unwrap_or_default().to_owned()
}

fn beside(path: &Path, extension: &str) -> PathBuf {
    path.with_file_name(format!("{}.{extension}", stem(path)))
}
