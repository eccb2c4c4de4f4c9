//! `r1 data split`: parts by a seed.

use serde_json::{Map, json};

use super::super::args::OutputArgs;
use super::super::data_args::SplitArgs;
use super::super::{print, print_json};
use super::rows::{check_interrupt, check_out, in_rows, write_selected};
use crate::data::{Amount, Division, column, split, text_of};
use crate::error::{Error, Kind, Result};
use crate::telemetry::ctrl_c;

pub(super) fn run(args: &SplitArgs, output: OutputArgs) -> Result<()> {
    let data = args.rows.open()?;
    let interrupt = ctrl_c();
    let names: Vec<&str> = args.part.iter().map(|(name, _)| name.as_str()).chain([args.rest.as_str()]).collect();
    if let Some(twice) = names.iter().enumerate().find(|(position, name)| names[..*position].contains(name)) {
        return Err(Error::new(Kind::Usage, format!("two parts are called `{}`", twice.1)).at("--part"));
    }
    if args.out.is_file() {
        return Err(Error::new(Kind::Usage, "this is a file; the parts are written to a folder").at_path(&args.out));
    }
    let paths: Vec<_> = names.iter().map(|name| args.out.join(format!("{name}.{}", args.format))).collect();
    paths.iter().try_for_each(|path| check_out(path, &data))?;
    let by = args.stratify.as_ref().or(args.group.as_ref());
    let mut values = Vec::new();
    if let Some(by) = by {
        for index in 0..data.len() {
            check_interrupt(interrupt)?;
            let row = data.raw_row(index)?;
            values.push(text_of(column(&row, by).map_err(|error| error.at(data.place(index)))?));
        }
    }
    let division = match (&args.stratify, &args.group) {
        (Some(_), _) => Division::Stratified(&values),
        (_, Some(_)) => Division::Grouped(&values),
        _ => Division::Rows,
    };
    let amounts: Vec<Amount> = args.part.iter().map(|(_, amount)| *amount).collect();
    let parts = split(data.len(), &amounts, &division, args.seed)?;
    let mut files = Map::new();
    for ((name, path), rows) in names.iter().zip(&paths).zip(&parts) {
        // An empty file would be refused by what reads it.
        if !rows.is_empty() {
            write_selected(path, &data, rows, interrupt)?;
        }
        let file = (!rows.is_empty()).then_some(path);
        files.insert((*name).to_owned(), json!({ "file": file, "rows": rows.len() }));
        if !output.json && !rows.is_empty() {
            print(&format!("{}: {}\n", path.display(), in_rows(rows.len() as u64)))?;
        } else if !output.json {
            output.reporter().warn(&format!("the part `{name}` has no rows and no file"));
        }
    }
    if output.json {
        return print_json(json!({ "rows": data.len(), "seed": args.seed, "parts": files }));
    }
    Ok(())
}
