//! Validates names of models, datasets, files, commits and blobs.
//!
//! Names sent by a server become paths in the cache, so each is validated before it is used.

use std::fmt;

use hf_hub::{Repo, RepoType};

use crate::error::{Error, Kind, Result};

/// A model or dataset on the Hugging Face Hub: `ORG/NAME` or `NAME`, at a revision (branch, tag or
/// commit); of a model also one GGUF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelId {
    pub name: String,
    /// The default is `main`.
    pub revision: String,
    /// The path of a GGUF file, or the end of its name (`Q4_K_M`).
    pub file: Option<String>,
    pub(super) kind: RepoKind,
}

/// The type of a repository; model and dataset names are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RepoKind {
    Model,
    Dataset,
}

impl RepoKind {
    /// The word in messages.
    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Dataset => "dataset",
        }
    }

    /// The kind of errors about it.
    pub(super) fn error(self) -> Kind {
        match self {
            Self::Model => Kind::Model,
            Self::Dataset => Kind::Data,
        }
    }
}

const MAIN: &str = "main";

impl ModelId {
    /// Parses `ORG/NAME[@REVISION][:FILE]`.
    ///
    /// # Errors
    /// [`Kind::Usage`] for an invalid model name.
    pub fn parse(text: &str) -> Result<Self> {
        let Some((name, file)) = text.split_once(':') else { return Self::read(text, RepoKind::Model) };
        if !is_path(file) {
            return Err(Error::new(Kind::Usage, format!("`{text}` names no file of a model on the Hub"))
                .hint("write ORG/NAME:FILE.gguf, or ORG/NAME:Q4_K_M for the file whose name ends with it"));
        }
        Ok(Self { file: Some(file.to_owned()), ..Self::read(name, RepoKind::Model)? })
    }

    /// The same for a dataset.
    ///
    /// # Errors
    /// [`Kind::Usage`] for an invalid dataset name.
    pub fn dataset(text: &str) -> Result<Self> {
        Self::read(text, RepoKind::Dataset)
    }

    fn read(text: &str, kind: RepoKind) -> Result<Self> {
        let (name, revision) = text.split_once('@').unwrap_or((text, MAIN));
        let example = match kind {
            RepoKind::Model => "Qwen/Qwen2.5-1.5B-Instruct",
            RepoKind::Dataset => "openai/gsm8k",
        };
        let refuse = |why: &str| {
            let noun = kind.noun();
            Err(Error::new(Kind::Usage, format!("`{text}` is not the name of a {noun} on the Hub: {why}"))
                .hint(format!("write ORG/NAME or ORG/NAME@REVISION, as in {example}@main")))
        };
        let parts: Vec<&str> = name.split('/').collect();
        if parts.len() > 2 {
            return refuse("it has more than two parts");
        }
        for part in parts {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if part.is_empty() || part.len() > 96 || !part.chars().all(plain) {
                return refuse("a part has letters, digits, `-`, `_` and `.`, 1 to 96 of them");
            }
            if part.starts_with(['-', '.']) || part.ends_with(['-', '.']) || part.contains("--") || part.contains("..")
            {
                return refuse("a part has no `--` or `..` and neither begins nor ends with `-` or `.`");
            }
        }
        if !is_path(revision) {
            return refuse("the revision is a branch, a tag or a commit");
        }
        Ok(Self { name: name.to_owned(), revision: revision.to_owned(), file: None, kind })
    }

    /// Whether a name in a recipe refers to the Hub: two parts and no syntax of paths.
    pub fn is_hub_id(text: &str) -> bool {
        let name = text.split(['@', ':']).next().unwrap_or_default();
        name.split('/').count() == 2 && Self::parse(text).is_ok()
    }

    /// The repository as `hf-hub` names it, at this revision.
    pub(super) fn repo(&self) -> Repo {
        let kind = match self.kind {
            RepoKind::Model => RepoType::Model,
            RepoKind::Dataset => RepoType::Dataset,
        };
        Repo::with_revision(self.name.clone(), kind, self.revision.clone())
    }

    /// The path of its page.
    pub(super) fn page(&self) -> String {
        match self.kind {
            RepoKind::Model => self.name.clone(),
            RepoKind::Dataset => format!("datasets/{}", self.name),
        }
    }

    /// The same repository at another revision.
    #[must_use]
    pub fn at(self, revision: &str) -> Self {
        Self { revision: revision.to_owned(), ..self }
    }

    /// Whether the revision is a commit, whose content does not change.
    pub(super) fn is_pinned(&self) -> bool {
        is_commit(&self.revision)
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if self.revision != MAIN {
            write!(f, "@{}", self.revision)?;
        }
        self.file.iter().try_for_each(|file| write!(f, ":{file}"))
    }
}

/// A commit: 40 hexadecimal digits.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && is_hex(text)
}

/// A SHA-256: 64 hexadecimal digits.
pub(super) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && is_hex(text)
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// A path that stays inside the directory it is joined to: no `..`, no root, no separator of any
/// system.
pub(super) fn is_path(text: &str) -> bool {
    let part = |part: &str| !part.is_empty() && part != "." && part != "..";
    text.len() <= 1024 && text.split('/').all(part) && !text.contains(['\\', ':']) && !text.contains(char::is_control)
}

/// The value of an ETag without weak marker and quotes. `None` if it can't be a file name.
pub(super) fn etag(header: &str) -> Option<String> {
    let bare = header.trim().trim_start_matches("W/").trim_matches('"');
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let good = (1..=128).contains(&bare.len()) && bare.chars().all(plain) && !bare.starts_with('.');
    good.then(|| bare.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn hub_names_parse_with_and_without_revision() {
        let id = ModelId::parse("Qwen/Qwen2.5-1.5B-Instruct").unwrap();
        assert_eq!((id.name.as_str(), id.revision.as_str()), ("Qwen/Qwen2.5-1.5B-Instruct", "main"));
        assert_eq!(id.to_string(), "Qwen/Qwen2.5-1.5B-Instruct");
        let id = ModelId::parse("org/name@refs/pr/3").unwrap();
        assert_eq!((id.name.as_str(), id.revision.as_str()), ("org/name", "refs/pr/3"));
        assert_eq!(id.to_string(), "org/name@refs/pr/3");
        assert_eq!(ModelId::parse("gpt2").unwrap().name, "gpt2");
        let id = ModelId::parse("org/name@v1:sub/a.gguf").unwrap();
        assert_eq!((id.revision.as_str(), id.file.as_deref()), ("v1", Some("sub/a.gguf")));
        assert_eq!(
            (id.to_string(), id.at("main").to_string()),
            ("org/name@v1:sub/a.gguf".into(), "org/name:sub/a.gguf".into())
        );
        assert!(ModelId::is_hub_id("org/name:sub/a.gguf") && ModelId::dataset("org/name:a").is_err());
    }

    #[test]
    fn invalid_hub_names_are_refused() {
        for text in [
            "",
            "a/b/c",
            "a/",
            "/b",
            "../b",
            "a/..",
            "a/b@",
            "a/b@../../x",
            "a/b@/etc",
            "a b/c",
            "a/b--c",
            "a/-b",
            "a/b@x\\y",
            "~/models",
            "a/b@x\n",
            "a/b:",
            "a/b:../x.gguf",
            "a/b:x:y",
            "a/b/c:x",
        ] {
            assert!(ModelId::parse(text).is_err_and(|error| error.kind == Kind::Usage), "{text:?}");
        }
        assert!(ModelId::is_hub_id("a/b@v1") && ModelId::is_hub_id("a/b"));
        assert!(!ModelId::is_hub_id("gpt2") && !ModelId::is_hub_id("./a") && !ModelId::is_hub_id("a/b/c"));
    }

    #[test]
    fn server_names_can_not_leave_the_cache() {
        assert!(is_path("config.json") && is_path("refs/pr/1") && is_path("onnx/model.onnx"));
        for path in ["../x", "a/../x", "/etc/passwd", "", "a//b", "C:\\x", "c:x", "a\0b", "./a"] {
            assert!(!is_path(path), "{path:?}");
        }
        assert_eq!(etag("W/\"abc\"").as_deref(), Some("abc"));
        assert_eq!(etag("\"0123\"").as_deref(), Some("0123"));
        for header in ["\"../../x\"", "\"/etc\"", "", "\"\"", "\"..\"", "\"a/b\"", "\".x\""] {
            assert_eq!(etag(header), None, "{header:?}");
        }
        assert!(is_commit(&"a1".repeat(20)) && !is_commit("main") && !is_commit(&"A1".repeat(20)));
    }
}
