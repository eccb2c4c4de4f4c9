//! `r1 traj ls`, `where` and `top`: trajectories as rows of a table.

use serde_json::{Map, Value, json};

use super::super::args::OutputArgs;
use super::super::traj_args::{LsArgs, TopArgs, WhereArgs};
use super::super::{print_json, print_report};
use super::selected::{Damage, Selected, column, event, harmless};
use crate::error::{Error, Kind, Result, suggest};
use crate::store::{ColumnKind, TRAJECTORY_COLUMNS};
use crate::telemetry::ReportStyle;

/// The columns of a table.
const SHOWN: [&str; 8] = ["id", "status", "reward", "advantage", "steps", "tokens", "tool_calls", "seconds"];

/// A column that few runs have: it is shown for the trajectories that have a text there.
const DROPPED: &str = "dropped";

/// A trajectory: its file, and its row there.
type Position = (usize, usize);

pub(super) fn ls(args: &LsArgs, output: OutputArgs) -> Result<()> {
    let selected = Selected::open(&args.selection, None, output)?;
    let mut positions = Vec::new();
    let mut damage = Damage::default();
    // From the newest file back, until there are enough.
    for (index, file) in selected.files.iter().enumerate().rev() {
        let Some(scanned) = damage.or_warn(selected.scan(file, &[]), &selected.reporter)? else { continue };
        positions.extend((0..scanned.total).rev().map(|row| (index, row)));
        if args.limit > 0 && positions.len() >= args.limit {
            positions.truncate(args.limit);
            break;
        }
    }
    damage.unless_all(selected.files.len())?;
    positions.reverse();
    let counts = json!({ "shown": positions.len() });
    print_rows(&selected, &positions, &[], &counts, output)
}

pub(super) fn matching(args: &WhereArgs, output: OutputArgs) -> Result<()> {
    let selected = Selected::open(&args.selection, Some(&args.condition), output)?;
    let (mut positions, mut matching, mut total) = (Vec::new(), 0, 0);
    selected.each(&[], |index, _, scanned| {
        total += scanned.total;
        matching += scanned.rows.len();
        let room = if args.limit == 0 { usize::MAX } else { args.limit - positions.len() };
        positions.extend(scanned.rows.into_iter().take(room).map(|row| (index, row)));
        Ok(())
    })?;
    let counts = json!({ "shown": positions.len(), "matching": matching, "total": total });
    print_rows(&selected, &positions, selected.condition_columns(), &counts, output)
}

pub(super) fn top(args: &TopArgs, output: OutputArgs) -> Result<()> {
    let numbers = || TRAJECTORY_COLUMNS.iter().filter(|column| column.kind() == ColumnKind::Number);
    let name = if args.by == "length" { "tokens" } else { &args.by };
    let Some(by) = numbers().find(|column| column.name == name) else {
        return Err(Error::new(Kind::Usage, format!("there is no column of numbers `{}`", args.by))
            .at("--by")
            .hint(suggest(&args.by, numbers().map(|column| column.name))));
    };
    let selected = Selected::open(&args.selection, args.condition.as_deref(), output)?;
    let (mut best, mut total): (Vec<(f64, Position)>, usize) = (Vec::new(), 0);
    let order = |a: &(f64, Position), b: &(f64, Position)| {
        let by_number = if args.lowest { a.0.total_cmp(&b.0) } else { b.0.total_cmp(&a.0) };
        by_number.then(a.1.cmp(&b.1))
    };
    selected.each(&[by.name], |index, _, scanned| {
        let values = scanned.numbers(by.name);
        let with_number = scanned.rows.iter().filter(|row| !values[**row].is_nan());
        best.extend(with_number.map(|row| (values[*row], (index, *row))));
        total += scanned.total;
        if args.limit > 0 && best.len() > args.limit {
            best.sort_unstable_by(order);
            best.truncate(args.limit);
        }
        Ok(())
    })?;
    if best.is_empty() && total > 0 && args.condition.is_none() {
        let error = Error::new(Kind::Store, format!("no trajectory has a number `{}`", args.by));
        return Err(error.at_path(selected.run.path()).hint("the run did not compute it, or did not store it"));
    }
    best.sort_unstable_by(order);
    let positions: Vec<Position> = best.into_iter().map(|(_, position)| position).collect();
    let counts = json!({ "shown": positions.len(), "total": total });
    print_rows(&selected, &positions, &[by.name], &counts, output)
}

/// Prints trajectories in the order of `positions`, with the columns `more` in addition.
fn print_rows(
    selected: &Selected,
    positions: &[Position],
    more: &[&'static str],
    counts: &Value,
    output: OutputArgs,
) -> Result<()> {
    let is_cell = |name: &&&str| !SHOWN.contains(*name) && column(name).is_ok_and(|it| it.kind() != ColumnKind::Json);
    let more = more.iter().filter(is_cell).filter(|name| **name != DROPPED);
    let mut names: Vec<&'static str> = SHOWN.iter().chain(more).chain([&DROPPED]).copied().collect();
    let mut rows = vec![Value::Null; positions.len()];
    let mut order: Vec<usize> = (0..positions.len()).collect();
    order.sort_by_key(|at| positions[*at]);
    for same_file in order.chunk_by(|a, b| positions[*a].0 == positions[*b].0) {
        let scanned = selected.scan(&selected.files[positions[same_file[0]].0], &names)?;
        for at in same_file {
            let cell = |name: &&'static str| ((*name).to_owned(), scanned.json(name, positions[*at].1));
            let cells = names.iter().map(cell).filter(|(name, value)| name != DROPPED || !value.is_null());
            rows[*at] = Value::Object(cells.collect::<Map<String, Value>>());
        }
    }
    if output.json {
        for row in &rows {
            print_json(event("trajectory", row))?;
        }
        return print_json(event("summary", counts));
    }
    names.retain(|name| *name != DROPPED || rows.iter().any(|row| row.get(DROPPED).is_some()));
    let (first, last) = (&selected.files[0], &selected.files[selected.files.len() - 1]);
    let mut result = json!({
        "run": selected.run.name(), "steps": [first.step, last.step], "files": selected.files.len(),
        "columns": names, "rows": rows, "counts": counts, "quiet": output.quiet,
    });
    harmless(&mut result);
    print_report(include_str!("../../../lua/reports/traj_list.lua"), &result, ReportStyle::of(&selected.reporter))
}
