//! A static copy: the page, and its JSON as files that it loads as scripts, because a page from a
//! disk may not read other files.

use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

use super::page::{FILES, INDEX};
use super::{Query, View};
use crate::error::{Error, Kind, Result};
use crate::mdp::Split;
use crate::store::{StoredRun, write_bytes};

/// Files and bytes of a copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exported {
    pub files: usize,
    pub bytes: usize,
    pub trajectories: usize,
}

/// Rows of a table in one file.
const ROWS: usize = 1000;

/// Writes a copy of everything that the page shows to a directory. `last`: only trajectories of
/// this number of last steps have pages with their tokens; the table has all trajectories.
///
/// # Errors
/// [`Kind::Usage`] for a directory that has other files, [`Kind::Store`] for what can't be read or
/// written.
pub fn export(view: &View, directory: &Path, last: Option<usize>, mut progress: impl FnMut(&str)) -> Result<Exported> {
    let is_other = directory.is_dir() && !directory.join("data").is_dir();
    if is_other && directory.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Error::new(Kind::Usage, "the directory has other files")
            .at_path(directory)
            .hint("name a directory that does not exist, or one of an earlier export"));
    }
    let data = directory.join("data");
    std::fs::create_dir_all(&data).map_err(|error| Error::io(Kind::Store, "make the directory", &data, &error))?;
    let mut exported = Exported::default();
    let write = |exported: &mut Exported, path: &Path, bytes: &[u8]| {
        exported.files += 1;
        exported.bytes += bytes.len();
        write_bytes(path, bytes)
    };
    let entry = |exported: &mut Exported, key: &str, json: &str| {
        // A `<` could end a script; the rest is JSON, which is JavaScript.
        let text = format!("r1data({},{});\n", Value::from(key), json.replace('<', "\\u003c"));
        write(exported, &data.join(file_name(key)), text.as_bytes())
    };
    entry(&mut exported, "runs", &view.get("runs", Query(&[]))?)?;
    for name in view.paths().into_keys() {
        progress(&name);
        let run = view.run(&name)?;
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        for page in ["metrics", "versions", "evaluations"] {
            let json = view.get(page, Query(&[pair("run", &name)]))?;
            entry(&mut exported, &format!("{page}?run={name}"), &json)?;
        }
        for split in Split::ALL {
            let mut offset = 0;
            loop {
                let at = offset.to_string();
                let query =
                    [pair("run", &name), pair("split", split.name()), pair("sort", "-step"), pair("offset", &at)];
                let json = view.get("trajectories", Query(&query))?;
                entry(&mut exported, &format!("trajectories?run={name}&split={}&offset={at}", split.name()), &json)?;
                let page: Value = serde_json::from_str(&json).unwrap_or_default();
                offset += ROWS;
                if page["total"].as_u64().is_none_or(|total| offset as u64 >= total) {
                    break;
                }
            }
            let steps = run.steps(split)?;
            let from = last.map_or(0, |last| steps.len().saturating_sub(last));
            for id in
                steps[from..].iter().map(|step| view.ids(&run, split, *step)).collect::<Result<Vec<_>>>()?.concat()
            {
                let json = view.shown(&name, &run, &id)?;
                entry(&mut exported, &format!("trajectory?run={name}&id={id}"), &json)?;
                exported.trajectories += 1;
            }
        }
    }
    for file in &FILES {
        write(&mut exported, &directory.join(file.name), file.bytes)?;
    }
    // Last, so that a copy with a page is complete.
    let index = String::from_utf8_lossy(INDEX.bytes).replace("<html ", "<html data-static ");
    write(&mut exported, &directory.join(INDEX.name), index.as_bytes())?;
    Ok(exported)
}

/// The name of the file of a key. `view/src/data.ts` has the same function.
fn file_name(key: &str) -> String {
    let mut name = String::new();
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'=') {
            name.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(name, "~{byte:02x}");
        }
    }
    name + ".js"
}

impl View {
    /// The ids of a step's trajectories; none of a file that is damaged.
    fn ids(&self, run: &StoredRun, split: Split, step: u64) -> Result<Vec<String>> {
        let steps = self.tables.files.load(run, split, Some(step))?;
        Ok(steps.iter().flat_map(|step| &step.rows).map(|row| row.id.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::view::shown::tests::written;

    #[test]
    fn a_copy_has_every_page_and_no_tag_of_a_text() {
        let root = tempfile::tempdir().unwrap();
        written(root.path(), "demo");
        let view = View::new(&[], root.path()).unwrap();
        let out = root.path().join("out");
        let exported = export(&view, &out, None, |_| ()).unwrap();
        assert_eq!(exported.trajectories, 3);
        let data = std::fs::read_to_string(out.join("data/trajectory~3frun=demo~26id=2-0-0.js")).unwrap();
        assert!(data.starts_with("r1data(\"trajectory?run=demo&id=2-0-0\",{"), "{data}");
        assert!(data.contains("\\u003cscript>") && !data.contains('<'), "{data}");
        assert!(std::fs::read_to_string(out.join("index.html")).unwrap().contains("<html data-static "));
        assert_eq!(
            exported.files,
            std::fs::read_dir(&out).unwrap().count() - 1 + std::fs::read_dir(out.join("data")).unwrap().count()
        );
        // It can be written again, but not over other files.
        assert_eq!(export(&view, &out, Some(1), |_| ()).unwrap().trajectories, 1);
        assert_eq!(export(&view, root.path(), None, |_| ()).unwrap_err().kind, Kind::Usage);
    }
}
