//! `r1 index info`, `verify` and `search`.

use std::fmt::Write;
use std::path::Path;

use serde_json::json;

use super::super::args::OutputArgs;
use super::super::index_args::SearchArgs;
use super::super::{print, print_json};
use crate::error::{Error, Kind, Result, clip, without_control_characters};
use crate::search::{Hit, Index, Manifest, verify};
use crate::telemetry::{ReportStyle, ctrl_c, report, thousands};

/// Characters of a text that are shown.
const SHOWN: usize = 160;

pub(super) fn info(directory: &Path, output: OutputArgs) -> Result<()> {
    let manifest = Manifest::read(directory)?;
    if output.json {
        let json = serde_json::to_string(&manifest)
            .map_err(|error| Error::new(Kind::Internal, format!("the manifest can't be shown: {error}")))?;
        return print_json(json);
    }
    let (size, bytes) = (bytes(manifest.bytes()), manifest.bytes());
    let result = json!({ "manifest": manifest, "size": size, "bytes": bytes });
    let text = report(include_str!("../../../lua/reports/index_info.lua"), &result, ReportStyle::default())?;
    print(&without_control_characters(&text))
}

pub(super) fn verified(directory: &Path, output: OutputArgs) -> Result<()> {
    let manifest = Manifest::read(directory)?;
    let interrupt = ctrl_c();
    let reporter = output.reporter_beside_json();
    let bar = reporter.bar("verifying", manifest.bytes() >> 20, "MiB");
    let (mut read, mut shown) = (0, 0);
    let wrong = verify(directory, |more| {
        read += more;
        bar.inc((read >> 20) - shown);
        shown = read >> 20;
        !interrupt.is_set()
    })?;
    bar.finish();
    if let Some((path, sha256)) = wrong.first_key_value() {
        let others = if wrong.len() > 1 { format!(" and {} other files", wrong.len() - 1) } else { String::new() };
        return Err(Error::new(Kind::Data, format!("{path}{others} of the index changed: its SHA-256 is {sha256}"))
            .at_path(directory)
            .hint("copy the index again, or rebuild it with `r1 index build`"));
    }
    let files = manifest.parts.files().count();
    if output.json {
        return print_json(json!({ "index": directory, "files": files, "bytes": manifest.bytes() }));
    }
    print(&format!("{}: {files} files as they were written, {}\n", directory.display(), bytes(manifest.bytes())))
}

pub(super) fn search(args: &SearchArgs, output: OutputArgs) -> Result<()> {
    let index = Index::open_with(&args.directory, args.how.models.checkpoints()?.kept())?;
    if args.query.trim().is_empty() {
        return Err(Error::new(Kind::Usage, "the query is empty"));
    }
    let hits = index.search_all(&[&args.query], &args.how.options(usize::from(args.k))?)?.pop().unwrap_or_default();
    if output.json {
        return hits.iter().try_for_each(|hit| print_json(as_json(hit, args.text)));
    }
    if hits.is_empty() && !output.quiet {
        return print("no passage has a word of the query\n");
    }
    let mut text = String::new();
    for hit in &hits {
        let title = if hit.title.is_empty() { String::new() } else { format!("  {}", one_line(&hit.title, SHOWN)) };
        let _ = writeln!(text, "{:>3}  {:<8.4} {}{title}", hit.rank, hit.score, one_line(&hit.id, SHOWN));
        let shown =
            if args.text { without_control_characters(&hit.text).into_owned() } else { one_line(&hit.text, SHOWN) };
        for line in shown.lines() {
            let _ = writeln!(text, "     {line}");
        }
    }
    print(&text)
}

fn as_json(hit: &Hit, with_text: bool) -> serde_json::Value {
    let mut shown = json!({ "id": hit.id, "score": hit.score, "rank": hit.rank, "title": hit.title });
    if with_text {
        shown["text"] = hit.text.clone().into();
        shown["columns"] = hit.columns.clone().into();
    }
    shown
}

/// The beginning of a text on one line.
fn one_line(text: &str, limit: usize) -> String {
    let parts = text.split_whitespace();
    let mut line = String::new();
    for word in parts {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > 4 * limit {
            break;
        }
    }
    without_control_characters(&clip(&line, limit)).into_owned()
}

pub(super) fn counted(count: u64, what: &str) -> String {
    format!("{} {what}{}", thousands(count as f64), if count == 1 { "" } else { "s" })
}

/// A size in the largest unit in which it is above 1.
pub(super) fn bytes(size: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let unit = (0..units.len()).rfind(|unit| size >> (10 * unit) > 0).unwrap_or(0);
    if unit == 0 {
        return format!("{size} bytes");
    }
    format!("{:.1} {}", size as f64 / f64::from(1_u32 << 10).powi(unit as i32), units[unit])
}
