//! `r1 view`: pages about runs, from files of the run directories and a page that is embedded in
//! the program (its sources are in `view/`). It reads runs that other processes write, and writes
//! only their `curation.jsonl`.
//!
//! `http` answers requests: `ADDRESS/TOKEN/api/NAME?…` is the JSON of `View::get`, and everything
//! that is not below the token is refused. `export` writes the same JSON as files. The page learns
//! of changes from server-sent events (`events`).

mod curation;
mod evaluations;
mod events;
mod export;
mod http;
mod metrics;
mod page;
mod rows;
mod runs;
mod shown;
mod table;
mod tokens;
mod versions;

use crate::error::{Error, Kind, Result};

pub use export::export;
pub use http::serve;
pub use runs::View;

/// The parameters of a request, decoded.
#[derive(Clone, Copy, Debug)]
struct Query<'a>(&'a [(String, String)]);

impl<'a> Query<'a> {
    fn get(self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// # Errors
    /// [`Kind::Usage`] if it is missing.
    fn text(self, name: &str) -> Result<&'a str> {
        self.get(name).ok_or_else(|| Error::new(Kind::Usage, format!("the parameter `{name}` is missing")))
    }

    /// # Errors
    /// [`Kind::Usage`] if it is no number.
    fn number(self, name: &str) -> Result<Option<u64>> {
        let wrong = || Error::new(Kind::Usage, format!("the parameter `{name}` is not a whole number"));
        self.get(name).map(|text| text.parse().map_err(|_| wrong())).transpose()
    }
}

impl View {
    /// The JSON of a page, by its name in the address.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a name or a parameter without meaning, [`Kind::Store`] for a run that
    /// can't be read.
    fn get(&self, name: &str, query: Query<'_>) -> Result<String> {
        match name {
            "runs" => json(&self.list()),
            "metrics" => json(&self.metrics(query)?),
            "versions" => json(&versions::versions(&self.run(query.text("run")?)?)),
            "trajectories" => json(&self.trajectories(query)?),
            "groups" => json(&self.groups(query)?),
            "trajectory" => self.trajectory(query),
            "evaluations" => json(&evaluations::evaluations(&self.run(query.text("run")?)?)?),
            _ => Err(Error::new(Kind::Usage, format!("there is no `{name}`"))),
        }
    }
}

fn json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|error| Error::new(Kind::Internal, format!("can't write the answer as JSON: {error}")))
}
