//! External access of a script: a recipe has what it declares in `needs`, a program has everything.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Kind, Result, suggest};
use crate::net::{AllowedAddresses, host_and_port, is_private_host};
use crate::tools::connection::websocket_as_http;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeclaredNeed {
    /// `http`: public hosts; `http:HOST[:PORT]` or a URL: that host, which may be private.
    Http(Option<(String, Option<u16>)>),
    /// `process`: any program in the sandbox; `process:NAME`: that program.
    Process(Option<String>),
    /// `env:NAME`: the value of an environment variable, to be sent in requests.
    Variable(String),
    /// `fs:DIR`: read the files below a directory.
    Read(PathBuf),
    /// `fs:write:DIR`: read and write the files below a directory.
    Write(PathBuf),
}

/// The forms of a need, for messages.
const FORMS: [&str; 8] =
    ["http", "http:HOST", "a URL", "process", "process:NAME", "env:NAME", "fs:DIR", "fs:write:DIR"];

impl DeclaredNeed {
    /// Parses one entry of `needs`.
    ///
    /// # Errors
    /// [`Kind::Script`] for an unknown form.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        // The host and port of a URL.
        let http = websocket_as_http(text);
        if let Some((host, port)) = host_and_port(http.as_deref().unwrap_or(text)) {
            return Ok(Self::Http(Some((host, Some(port)))));
        }
        let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest.trim())));
        match (name, rest) {
            ("http", None) => return Ok(Self::Http(None)),
            ("http", Some(host)) if !host.is_empty() && !host.contains('/') => {
                let bare = |host: &str| host.trim_start_matches('[').trim_end_matches(']').to_lowercase();
                // An IPv6 address contains colons.
                let port = host.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
                let port = port.and_then(|(host, port)| Some((bare(host), port.parse().ok()?)));
                let (host, port) = port.map_or_else(|| (bare(host), None), |(host, port)| (host, Some(port)));
                return Ok(Self::Http(Some((host, port))));
            }
            ("process", None) => return Ok(Self::Process(None)),
            ("process", Some(program)) if !program.is_empty() => return Ok(Self::Process(Some(program.to_owned()))),
            ("env", Some(name)) if !name.is_empty() => return Ok(Self::Variable(name.to_owned())),
            ("fs", Some(path)) if !path.is_empty() => {
                return Ok(match path.strip_prefix("write:") {
                    Some(path) => Self::Write(path.into()),
                    None => Self::Read(path.into()),
                });
            }
            _ => {}
        }
        let near = crate::error::nearest(name, ["http", "process", "env", "fs"]);
        let error = Error::new(Kind::Script, format!("`needs` contains \"{text}\"; it is one of {}", FORMS.join(", ")));
        Err(if !near.is_empty() {
            error.hint(suggest(name, ["http", "process", "env", "fs"]))
        } else if text.contains(['.', '/']) {
            error.hint("a URL begins with http://, https://, ws:// or wss://")
        } else {
            error
        })
    }
}

impl fmt::Display for DeclaredNeed {
    /// A phrase for the user who starts the recipe.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(None) => f.write_str("send HTTP requests to public hosts"),
            Self::Http(Some((host, None))) => write!(f, "send HTTP requests to {host}"),
            Self::Http(Some((host, Some(port)))) => write!(f, "send HTTP requests to {host}:{port}"),
            Self::Process(None) => f.write_str("run programs"),
            Self::Process(Some(program)) => write!(f, "run {program}"),
            Self::Variable(name) => write!(f, "use the environment variable {name}"),
            Self::Read(path) => write!(f, "read files below {}", path.display()),
            Self::Write(path) => write!(f, "read and write files below {}", path.display()),
        }
    }
}

/// The permissions of `needs`, one phrase each.
pub fn needs_in_words(needs: &[String]) -> Vec<String> {
    needs.iter().filter_map(|need| DeclaredNeed::parse(need).ok()).map(|need| need.to_string()).collect()
}

/// External access of a virtual machine.
#[derive(Debug)]
pub(crate) enum Grants {
    /// A recipe in `directory` is being loaded; its needs are not known yet.
    Loading { directory: PathBuf },
    /// The needs that a recipe declares; paths are relative to its script.
    Declared { needs: Vec<DeclaredNeed>, directory: PathBuf },
    /// A program, which its user trusts; paths are relative to the current directory.
    Everything,
}

impl Grants {
    /// The grants of a recipe in `directory`.
    pub(crate) fn declared(needs: &[String], directory: PathBuf) -> Self {
        let needs = needs.iter().filter_map(|need| DeclaredNeed::parse(need).ok()).collect();
        Self::Declared { needs, directory }
    }

    /// The addresses of a host that may be reached.
    pub(crate) fn reach(&self, host: &str, port: u16) -> AllowedAddresses {
        let names = |need: &DeclaredNeed| match need {
            DeclaredNeed::Http(Some((allowed, at))) => allowed == host && at.is_none_or(|at| at == port),
            _ => false,
        };
        if self.any(names) {
            AllowedAddresses::Anywhere
        } else if self.needs().contains(&DeclaredNeed::Http(None)) {
            AllowedAddresses::Public
        } else {
            AllowedAddresses::Nowhere
        }
    }

    /// Whether requests to a host may be sent. The addresses of a name are checked when it is
    /// resolved.
    pub(crate) fn reaches(&self, host: &str, port: u16) -> bool {
        match self.reach(host, port) {
            AllowedAddresses::Anywhere => true,
            AllowedAddresses::Public => !is_private_host(host),
            AllowedAddresses::Nowhere => false,
        }
    }

    /// Whether a recipe is being loaded.
    pub(crate) fn is_loading(&self) -> bool {
        matches!(self, Self::Loading { .. })
    }

    /// Whether one of the needs allows an access; a program may everything.
    fn any(&self, allows: impl Fn(&DeclaredNeed) -> bool) -> bool {
        matches!(self, Self::Everything) || self.needs().iter().any(allows)
    }

    /// What a recipe declares; nothing while it is loaded.
    fn needs(&self) -> &[DeclaredNeed] {
        if let Self::Declared { needs, .. } = self { needs } else { &[] }
    }

    /// Whether a program may be run.
    pub(crate) fn runs(&self, program: &str) -> bool {
        self.any(|need| match need {
            DeclaredNeed::Process(allowed) => allowed.as_ref().is_none_or(|allowed| allowed == program),
            _ => false,
        })
    }

    /// Whether a program may be started outside the sandbox, as an MCP server: it is declared by
    /// name.
    pub(crate) fn starts(&self, program: &str) -> bool {
        self.any(|need| matches!(need, DeclaredNeed::Process(Some(allowed)) if allowed == program))
    }

    /// The directory that relative paths refer to.
    pub(crate) fn directory(&self) -> &Path {
        match self {
            Self::Loading { directory } | Self::Declared { directory, .. } => directory,
            Self::Everything => Path::new("."),
        }
    }

    /// Whether the value of an environment variable may be sent.
    pub(crate) fn reads_variable(&self, name: &str) -> bool {
        self.any(|need| matches!(need, DeclaredNeed::Variable(allowed) if allowed == name))
    }

    /// The declared environment variables.
    pub(crate) fn variables(&self) -> Vec<String> {
        let name = |need: &DeclaredNeed| match need {
            DeclaredNeed::Variable(name) => Some(name.clone()),
            _ => None,
        };
        self.needs().iter().filter_map(name).collect()
    }

    /// The programs that are declared by name.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &str> {
        self.needs().iter().filter_map(|need| match need {
            DeclaredNeed::Process(program) => program.as_deref(),
            _ => None,
        })
    }

    /// The readable directories, as absolute paths.
    pub(crate) fn readable(&self) -> Vec<PathBuf> {
        self.roots().filter_map(|root| root.canonicalize().ok()).collect()
    }

    /// The declared directories.
    fn roots(&self) -> impl Iterator<Item = PathBuf> {
        self.needs().iter().filter_map(|need| match need {
            DeclaredNeed::Read(root) | DeclaredNeed::Write(root) => Some(self.directory().join(root)),
            _ => None,
        })
    }

    /// The real path of a path in the script, with links resolved, if access is allowed.
    ///
    /// # Errors
    /// The reason why access is refused, and whether a declaration would allow it.
    pub(crate) fn path(&self, named: &str, write: bool) -> Result<PathBuf, PathRefusal> {
        let (needs, directory) = match self {
            Self::Loading { .. } => return Err(PathRefusal::Undeclared),
            Self::Everything => return Ok(PathBuf::from(named)),
            Self::Declared { needs, directory } => (needs, directory),
        };
        let path = directory.join(named);
        if Path::new(named).components().any(|part| part == Component::ParentDir) {
            return Err(PathRefusal::Expected("paths must not contain `..`".to_owned()));
        }
        let real = existing(&path).map_err(|error| PathRefusal::Expected(error.to_string()))?;
        let inside = |root: &Path| existing(&directory.join(root)).is_ok_and(|root| real.starts_with(root));
        let allowed = needs.iter().any(|need| match need {
            DeclaredNeed::Read(root) => !write && inside(root),
            DeclaredNeed::Write(root) => inside(root),
            _ => false,
        });
        if allowed { Ok(real) } else { Err(PathRefusal::Undeclared) }
    }

    /// Whether a script may make a tokenizer or a template from `file`. Allowed are a model
    /// directory (only files with well-known names are read), its template file, and files in the
    /// script's directory or in a declared one. Links are resolved. Paths are relative to the
    /// current directory.
    pub(crate) fn allows_text_of(&self, file: &Path) -> bool {
        if matches!(self, Self::Everything) {
            return true;
        }
        let is_model = |path: &Path| OF_MODELS.iter().any(|name| path.join(name).is_file());
        let template = file.file_name().is_some_and(|name| name == "chat_template.jinja");
        if is_model(file) || (template && file.parent().is_some_and(is_model)) {
            return true;
        }
        let Ok(real) = file.canonicalize() else { return false };
        let mut roots = std::iter::once(self.directory().to_owned()).chain(self.roots());
        roots.any(|root| root.canonicalize().is_ok_and(|root| real.starts_with(root)))
    }
}

/// The files that identify a model directory.
const OF_MODELS: [&str; 3] = ["tokenizer.json", "config.json", "chat_template.jinja"];

/// The reason why a path is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PathRefusal {
    /// No need covers it.
    Undeclared,
    /// The path is invalid.
    Expected(String),
}

/// The real path of the part of a path that exists, followed by the rest.
fn existing(path: &Path) -> std::io::Result<PathBuf> {
    let mut rest = Vec::new();
    let mut at = path;
    loop {
        match at.canonicalize() {
            Ok(real) => return Ok(rest.iter().rev().fold(real, |real, part| real.join(part))),
            Err(error) => match (at.parent(), at.file_name()) {
                // Writing through a dangling link is not allowed.
                _ if at.is_symlink() => return Err(error),
                (Some(parent), Some(name)) => {
                    rest.push(name.to_owned());
                    at = parent;
                }
                _ => return Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn grants(needs: &[&str], directory: &Path) -> Grants {
        Grants::declared(&needs.iter().map(|&need| need.to_owned()).collect::<Vec<_>>(), directory.to_owned())
    }

    fn loading() -> Grants {
        Grants::Loading { directory: ".".into() }
    }

    #[test]
    fn http_needs_allow_named_or_public_hosts() {
        let needs = ["http:API.co", "http:localhost:8080", "http:[::1]:90", "https://Judge.co/v1", "ws://[::2]:7/ws"];
        let granted = grants(&needs, Path::new("."));
        assert_eq!(granted.reach("api.co", 443), AllowedAddresses::Anywhere);
        assert_eq!(granted.reach("localhost", 8080), AllowedAddresses::Anywhere);
        assert_eq!(granted.reach("::1", 90), AllowedAddresses::Anywhere);
        assert_eq!(granted.reach("judge.co", 443), AllowedAddresses::Anywhere);
        assert_eq!(granted.reach("::2", 7), AllowedAddresses::Anywhere);
        for (host, port) in
            [("localhost", 80), ("::1", 91), ("judge.co", 80), ("::2", 80), ("sub.api.co", 443), ("api.co.evil", 443)]
        {
            assert_eq!(granted.reach(host, port), AllowedAddresses::Nowhere, "{host}:{port}");
        }
        assert_eq!(grants(&["http"], Path::new(".")).reach("any.co", 80), AllowedAddresses::Public);
        assert_eq!(loading().reach("any.co", 80), AllowedAddresses::Nowhere);
    }

    #[test]
    fn process_needs_allow_named_programs_or_any() {
        assert!(grants(&["process"], Path::new(".")).runs("git"));
        let granted = grants(&["process:sort"], Path::new("."));
        assert!(granted.runs("sort") && !granted.runs("sh") && !loading().runs("sort"));
    }

    #[test]
    fn paths_must_be_below_the_directories_of_fs_needs() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["data/deep", "out", "other"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        std::fs::write(dir.path().join("other/secret"), "x").unwrap();
        std::os::unix::fs::symlink("../other", dir.path().join("data/link")).unwrap();
        std::os::unix::fs::symlink("../other/new", dir.path().join("out/dangling")).unwrap();
        let granted = grants(&["fs:data", "fs:write:out"], dir.path());
        let real = dir.path().canonicalize().unwrap();
        assert_eq!(granted.path("data/deep/x.txt", false), Ok(real.join("data/deep/x.txt")));
        assert_eq!(granted.path("out/new/x.txt", true), Ok(real.join("out/new/x.txt")));
        assert_eq!(granted.path(&real.join("data").to_string_lossy(), false), Ok(real.join("data")));
        for (path, write) in [
            ("data/x", true),
            ("other/secret", false),
            ("data/link/secret", false),
            ("/etc/passwd", false),
            ("x", true),
        ] {
            assert_eq!(granted.path(path, write), Err(PathRefusal::Undeclared), "{path}");
        }
        assert!(matches!(granted.path("data/../other/secret", false), Err(PathRefusal::Expected(_))));
        assert!(matches!(granted.path("out/dangling", true), Err(PathRefusal::Expected(_))));
    }

    #[test]
    fn needs_are_described_in_words() {
        let described =
            |needs: &[&str]| needs_in_words(&needs.iter().map(|&need| need.to_owned()).collect::<Vec<_>>()).join("; ");
        insta::assert_snapshot!(described(&["http", "http:a.co:8", "process", "process:gcc", "env:KEY", "fs:data", "fs:write:out"]), @"send HTTP requests to public hosts; send HTTP requests to a.co:8; run programs; run gcc; use the environment variable KEY; read files below data; read and write files below out");
        insta::assert_snapshot!(DeclaredNeed::parse("htp").unwrap_err(), @r#"
        `needs` contains "htp"; it is one of http, http:HOST, a URL, process, process:NAME, env:NAME, fs:DIR, fs:write:DIR
          hint: did you mean `http`?
        "#);
        for bad in [
            "",
            "http:",
            "http:https://x",
            "ftp://x",
            "https://",
            "//x",
            "127.0.0.1:80",
            "process:",
            "env",
            "env:",
            "fs",
            "fs:",
        ] {
            assert!(DeclaredNeed::parse(bad).is_err(), "{bad}");
        }
    }
}
