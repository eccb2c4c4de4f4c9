//! Files with which editors complete and check scripts: the types of r1, and settings of luau-lsp,
//! lua-language-server and stylua that refer to them. Existing settings files stay unchanged.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::error::{Error, Kind, Result};
use crate::script::docs;

/// Directory of the types in r1's own repository.
const OWN: &str = "lua/types";
/// Directory of the types in other projects.
const TYPES: &str = ".r1/types";

/// As in r1's own repository.
const STYLUA: &str = include_str!("../../stylua.toml");

/// Writes the files that `root` lacks, and the types of this version; returns the written files.
pub(super) fn write(root: &Path) -> Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    let types = if root.join(OWN).join("r1.d.luau").is_file() {
        OWN
    } else {
        for (name, text) in [("r1.d.luau", docs::luau()), ("r1.lua", &docs::luacats())] {
            let path = root.join(TYPES).join(name);
            if std::fs::read_to_string(&path).ok().as_deref() != Some(text) {
                put(&path, text)?;
                written.push(path);
            }
        }
        TYPES
    };
    for (name, text) in settings(types) {
        let path = root.join(name);
        if !path.exists() {
            put(&path, &text)?;
            written.push(path);
        }
    }
    Ok(written)
}

/// The settings files, with types in the directory `types`.
pub(super) fn settings(types: &str) -> [(&'static str, String); 4] {
    // Syntax of Luau that Lua 5.1 lacks.
    let symbols = ["//", "+=", "-=", "*=", "/=", "//=", "%=", "^=", "continue", "`"];
    let luarc = json!({
        "runtime.version": "Lua 5.1",
        "runtime.nonstandardSymbol": symbols,
        "workspace.library": [types],
        "workspace.checkThirdParty": false,
    });
    let luaurc = json!({ "languageMode": "nonstrict", "lint": { "*": true } });
    // luau-lsp reads definitions only from the editor's settings.
    let code = json!({
        "luau-lsp.platform.type": "standard",
        "luau-lsp.types.definitionFiles": { "r1": format!("{types}/r1.d.luau") },
    });
    [
        (".luaurc", format!("{luaurc:#}\n")),
        (".luarc.json", format!("{luarc:#}\n")),
        ("stylua.toml", STYLUA.to_owned()),
        (".vscode/settings.json", format!("{code:#}\n")),
    ]
}

/// Writes a file, whose folder is made.
pub(super) fn put(path: &Path, text: &str) -> Result<()> {
    let failed = |error: &std::io::Error| Error::io(Kind::Store, "write", path, error);
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|error| failed(&error))?;
    }
    std::fs::write(path, text).map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The repository has the same files for its own scripts.
    #[test]
    fn files_made_from_the_declarations_are_those_of_the_repository() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for (name, text) in settings(OWN) {
            if std::env::var_os("R1_UPDATE_DOCS").is_some() {
                put(&root.join(name), &text).unwrap();
            }
            assert_eq!(std::fs::read_to_string(root.join(name)).unwrap(), text, "{name}: R1_UPDATE_DOCS=1 writes it");
        }
    }
}
