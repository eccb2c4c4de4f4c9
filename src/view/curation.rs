//! Notes about trajectories, which the page sends.

use std::collections::BTreeMap;

use super::{Query, View, json};
use crate::error::{Error, Kind, Result};
use crate::store::{Curation, StoredRun, read_curation, write_curation};

impl View {
    /// Stores the notes in the body of a request, and returns them.
    ///
    /// # Errors
    /// [`Kind::Usage`] for notes without meaning, or about a trajectory that the run does not have.
    pub(super) fn curate(&self, query: Query<'_>, body: &[u8]) -> Result<String> {
        let run = self.run(query.text("run")?)?;
        let wrong = |error: serde_json::Error| Error::new(Kind::Usage, format!("the notes can't be read: {error}"));
        let notes: Curation = serde_json::from_slice(body).map_err(wrong)?;
        self.tables.files.find(&run, &notes.id)?;
        write_curation(run.path(), &notes)?;
        json(&notes)
    }

    pub(super) fn notes(run: &StoredRun) -> Result<BTreeMap<String, Curation>> {
        read_curation(run.path())
    }
}
