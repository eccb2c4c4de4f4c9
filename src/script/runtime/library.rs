//! Lua modules that come with r1: `require("@r1/rewards")`, `require("@r1/env_http")`.

use std::path::Path;

use super::sources::{RequiredFile, file_of};

pub(crate) const PREFIX: &str = "@r1/";

/// Name after the prefix, and text.
const MODULES: [(&str, &str); 36] = [
    ("calculator", include_str!("../../../lua/calculator.lua")),
    ("demonstrations", include_str!("../../../lua/demonstrations.lua")),
    ("env_gym", include_str!("../../../lua/env_gym.lua")),
    ("env_gym.py", include_str!("../../../lua/env_gym.py")),
    ("env_http", include_str!("../../../lua/env_http.lua")),
    ("formats/search_r1", include_str!("../../../lua/formats/search_r1.lua")),
    ("games/bandit", include_str!("../../../lua/games/bandit.lua")),
    ("games/countdown", include_str!("../../../lua/games/countdown.lua")),
    ("games/frozen_lake", include_str!("../../../lua/games/frozen_lake.lua")),
    ("games/sokoban", include_str!("../../../lua/games/sokoban.lua")),
    ("games/turns", include_str!("../../../lua/games/turns.lua")),
    ("formats/sql", include_str!("../../../lua/formats/sql.lua")),
    ("formats/tagged", include_str!("../../../lua/formats/tagged.lua")),
    ("options", include_str!("../../../lua/options.lua")),
    ("papers", include_str!("../../../lua/papers.lua")),
    ("python", include_str!("../../../lua/python.lua")),
    ("python_server.py", include_str!("../../../lua/python_server.py")),
    ("python_worker.py", include_str!("../../../lua/python_worker.py")),
    ("python_source", include_str!("../../../lua/python_source.lua")),
    ("rewards", include_str!("../../../lua/rewards/init.lua")),
    ("rewards/code", include_str!("../../../lua/rewards/code.lua")),
    ("rewards/compare", include_str!("../../../lua/rewards/compare.lua")),
    ("rewards/data", include_str!("../../../lua/rewards/data.lua")),
    ("rewards/format", include_str!("../../../lua/rewards/format.lua")),
    ("rewards/judge", include_str!("../../../lua/rewards/judge.lua")),
    ("rewards/numbers", include_str!("../../../lua/rewards/numbers.lua")),
    ("rewards/penalties", include_str!("../../../lua/rewards/penalties.lua")),
    ("rewards/qa", include_str!("../../../lua/rewards/qa.lua")),
    ("rewards/qa_format", include_str!("../../../lua/rewards/qa_format.lua")),
    ("rewards/retrieval", include_str!("../../../lua/rewards/retrieval.lua")),
    ("rewards/tables", include_str!("../../../lua/rewards/tables.lua")),
    ("search", include_str!("../../../lua/search.lua")),
    ("statistics", include_str!("../../../lua/statistics.lua")),
    ("tables", include_str!("../../../lua/tables.lua")),
    ("tasks", include_str!("../../../lua/tasks.lua")),
    ("vote", include_str!("../../../lua/vote.lua")),
];

/// Whether a name refers to this library.
pub(super) fn has_prefix(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// The module of a name with its prefix.
pub(super) fn module(name: &str) -> Option<RequiredFile> {
    let short = name.strip_prefix(PREFIX)?;
    let (_, source) = MODULES.iter().find(|(key, _)| *key == short)?;
    Some(RequiredFile { path: shown_path(name, Path::new("")), source: (*source).to_owned() })
}

/// The path of a module of a script in `folder`, in messages. A stored copy of a module of this
/// library has the path of the library, so that a replay has the same errors.
pub(crate) fn shown_path(name: &str, folder: &Path) -> String {
    let file = file_of(name);
    let path = if has_prefix(name) { file } else { folder.join(file) };
    path.display().to_string()
}

/// The names of all modules.
pub(super) fn names() -> Vec<String> {
    MODULES.iter().map(|(name, _)| format!("{PREFIX}{name}")).collect()
}

/// Names after the prefix, and texts, of all modules.
pub(crate) fn sources() -> impl Iterator<Item = (&'static str, &'static str)> {
    MODULES.into_iter()
}
