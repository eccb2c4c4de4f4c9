//! `r1 data list` and `r1 data get`.

use std::cell::RefCell;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::super::args::OutputArgs;
use super::super::data_args::GetArgs;
use super::super::{print, print_json, print_report};
use super::rows::in_rows;
use crate::data::{CATALOG, GetOptions, get, published};
use crate::error::{Error, Kind, Result};
use crate::hub::Hub;
use crate::hub::{Fetching, watched};
use crate::telemetry::{Bar, ReportStyle, ctrl_c, thousands};

pub(super) fn list(output: OutputArgs) -> Result<()> {
    let result = json!({ "datasets": &*CATALOG });
    if output.json {
        return print_json(result);
    }
    print_report(include_str!("../../../lua/reports/data_list.lua"), &result, ReportStyle::default())
}

/// The first digits of a commit; other revisions in full.
fn short(revision: &str) -> &str {
    let is_commit = revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_commit { &revision[..12] } else { revision }
}

pub(super) fn run(args: &GetArgs, output: OutputArgs) -> Result<()> {
    let (name, revision) = match args.name.split_once('@') {
        Some((name, revision)) => (name, Some(revision)),
        None => (args.name.as_str(), None),
    };
    let dataset = published(name)?;
    let out = args.out.clone().unwrap_or_else(|| Path::new("data").join(dataset.name));
    if out.is_file() {
        return Err(Error::new(Kind::Usage, "this is a file; the dataset is written to a folder")
            .at_path(&out)
            .hint("as in --out data"));
    }
    let reporter = output.reporter_beside_json();
    reporter.info(&format!("{}: {}, licence {}, {}", dataset.name, dataset.hub, dataset.licence, dataset.source));
    let interrupt = Some(ctrl_c());
    let options = GetOptions { dataset, revision, splits: &args.split, out: &out, extension: &args.format };
    let bar: RefCell<Option<(Bar, u64)>> = RefCell::default();
    let progress = |done: u64, total: u64| {
        let mut bar = bar.borrow_mut();
        match &mut *bar {
            Some((bar, shown)) if done > 0 => bar.inc(done.saturating_sub(std::mem::replace(shown, done))),
            // The bar of the last pass is removed when it is dropped.
            other => *other = Some((reporter.bar("converting", total, "rows"), 0)),
        }
    };
    let fetched = watched(dataset.name, Fetching { reporter: &reporter, interrupt }, |watch| {
        get(&Hub::from_env()?, &options, watch, &progress)
    });
    drop(bar.take());
    let fetched = fetched?;
    let file = |name: &str| -> PathBuf { out.join(name) };
    if output.json {
        let splits: serde_json::Map<String, serde_json::Value> = fetched
            .splits
            .iter()
            .map(|(name, split)| {
                let fields = json!({
                    "file": file(&split.file), "rows": split.rows, "repeated": split.repeated, "kept": split.kept,
                });
                (name.clone(), fields)
            })
            .collect();
        let fields = json!({
            "name": fetched.name, "hub": fetched.hub, "commit": fetched.commit, "licence": fetched.licence,
            "source": fetched.source, "splits": splits,
        });
        return print_json(fields);
    }
    for split in fetched.splits.values() {
        let rows = in_rows(split.rows);
        let mut notes = String::new();
        if split.repeated > 0 {
            let _ = write!(notes, " ({} repeated ones left out)", thousands(split.repeated as f64));
        }
        if split.kept {
            let _ = write!(notes, ", already there at {}", short(&fetched.commit));
        }
        print(&format!("{}: {rows}{notes}\n", file(&split.file).display()))?;
    }
    Ok(())
}
