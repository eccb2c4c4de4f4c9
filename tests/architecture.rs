//! The house rules that the compiler does not keep: who may import whom, who may use which crate, who may print, and
//! how long a file may get.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Module -> modules it may import. `error` is free for all.
const EDGES: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("answers", &[]),
    ("clock", &[]),
    ("glob", &[]),
    ("units", &[]),
    ("mdp", &["units"]),
    ("net", &[]),
    ("hub", &["net", "glob"]),
    ("config", &["mdp", "units"]),
    ("text", &["mdp", "clock"]),
    ("store", &["mdp", "config"]),
    ("native", &["config"]),
    ("model", &["native"]),
    ("rl", &["mdp", "config", "native"]),
    ("engine", &["model", "mdp"]),
    ("tools", &["net"]),
    // Datasets lie in Parquet and on the hub.
    ("script", &["answers", "mdp", "text", "tools", "config", "store", "hub", "clock", "glob", "units"]),
    ("rollout", &["engine", "script", "text", "mdp", "config"]),
    ("telemetry", &[]),
    (
        "train",
        &[
            "config",
            "engine",
            "glob",
            "hub",
            "mdp",
            "model",
            "native",
            "rl",
            "rollout",
            "script",
            "store",
            "telemetry",
            "text",
            "tools",
        ],
    ),
    (
        "services",
        &["config", "engine", "mdp", "model", "rl", "rollout", "script", "store", "telemetry", "text", "train"],
    ),
    (
        "cli",
        &[
            "config",
            "engine",
            "hub",
            "mdp",
            "model",
            "native",
            "net",
            "rl",
            "rollout",
            "script",
            "services",
            "store",
            "telemetry",
            "text",
            "tools",
            "train",
        ],
    ),
];

/// Crate -> the modules that may use it.
const FENCES: &[(&str, &[&str])] = &[
    ("mlua", &["script"]),
    ("parquet", &["store"]),
    ("arrow_array", &["store"]),
    ("arrow_ipc", &["store"]),
    ("tch", &["native", "model", "rl", "engine", "train", "services", "error"]),
    ("torch_sys", &["native"]),
    ("clap", &["cli"]),
    ("rustyline", &["cli"]),
    ("ureq", &["net"]),
    ("indicatif", &["telemetry"]),
    ("rhai", &["tools"]),
    ("minijinja", &["text"]),
    ("tokenizers", &["text"]),
];

/// Longest file, in lines; tests at its end not counted.
const LONGEST: usize = 500;

struct Source {
    module: String,
    path: PathBuf,
    /// Lines of code before the test module, comments and strings left in.
    lines: Vec<String>,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("src is readable") {
            let path = entry.expect("src is readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(read(&root, path));
            }
        }
    }
    found.retain(|source| !only_in_tests(&source.path));
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Files that only test builds see: those of a folder `tests`, and modules declared under `#[cfg(test)]`.
fn only_in_tests(path: &Path) -> bool {
    let folder = path.parent().expect("a folder");
    let stem = path.file_stem().expect("a name").to_string_lossy();
    let declares = |parent: PathBuf| {
        std::fs::read_to_string(parent).is_ok_and(|text| text.contains(&format!("#[cfg(test)]\nmod {stem};")))
    };
    declares(folder.join("mod.rs"))
        || declares(folder.join("lib.rs"))
        || declares(folder.with_extension("rs"))
        || folder.file_name().is_some_and(|name| name == "tests")
}

fn read(root: &Path, path: PathBuf) -> Source {
    let relative = path.strip_prefix(root).expect("below src");
    let first = relative.components().next().expect("a file").as_os_str().to_string_lossy().into_owned();
    let module = first.trim_end_matches(".rs").to_owned();
    let text = std::fs::read_to_string(&path).expect("readable source");
    let lines = text.lines().take_while(|line| line.trim() != "#[cfg(test)]").map(str::to_owned).collect();
    Source { module, path, lines }
}

/// Code without line comments: good enough to look for paths.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or(line)
}

#[test]
fn modules_import_only_what_they_may() {
    let edges: BTreeMap<&str, &[&str]> = EDGES.iter().copied().collect();
    let mut wrong = Vec::new();
    for source in sources() {
        if source.module == "lib" || source.module == "main" {
            continue;
        }
        let allowed = edges.get(source.module.as_str()).unwrap_or_else(|| {
            panic!("module `{}` is not in EDGES: say in this test whom it may import", source.module)
        });
        for (number, line) in source.lines.iter().enumerate() {
            for (start, _) in code(line).match_indices("crate::") {
                let rest = &code(line)[start + "crate::".len()..];
                let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                let known = edges.contains_key(name.as_str());
                if known && name != source.module && name != "error" && !allowed.contains(&name.as_str()) {
                    wrong.push(format!("{}:{}: {} imports {name}", source.path.display(), number + 1, source.module));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "edges the house does not have:\n{}", wrong.join("\n"));
}

#[test]
fn crates_stay_behind_their_fences() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (name, modules) in FENCES {
            if modules.contains(&source.module.as_str()) {
                continue;
            }
            for (number, line) in source.lines.iter().enumerate() {
                let text = code(line);
                let path = format!("{name}::");
                let mut places = text.match_indices(&path);
                if places.any(|(at, _)| !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_')) {
                    wrong.push(format!("{}:{}: {name} is used outside {modules:?}", source.path.display(), number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Texts that others write: these files look into them for want of anything better.
const FOREIGN_TEXTS: &[(&str, &str)] = &[
    ("script/runtime/failure.rs", "Luau raises its own errors as text"),
    ("script/runtime/habits.rs", "Luau raises its own errors as text"),
    ("script/recipe/worker.rs", "Luau raises its own errors as text"),
    ("cli/failure.rs", "libtorch panics with text"),
    ("error.rs", "libtorch and the operating system have text only"),
    ("net.rs", "the resolver has text only"),
    ("rollout/check/endings.rs", "a trajectory keeps its error as text"),
    ("train/failures.rs", "a trajectory keeps its error as text"),
];

/// What an error is about is in `Error::subject`, and what kind it is in `Error::kind`.
#[test]
fn no_error_message_is_parsed() {
    let looks = ["contains", "split", "split_once", "rsplit", "starts_with", "ends_with", "strip_prefix", "find"];
    let mut wrong = Vec::new();
    for source in sources() {
        if FOREIGN_TEXTS.iter().any(|(file, _)| source.path.ends_with(file)) {
            continue;
        }
        for (number, line) in source.lines.iter().enumerate() {
            let text = code(line);
            let of_error = |name: &&str| {
                [format!("message.{name}("), format!("error.to_string().{name}(")]
                    .iter()
                    .any(|part| text.contains(part))
            };
            if looks.iter().any(of_error) {
                wrong.push(format!("{}:{}: {}", source.path.display(), number + 1, text.trim()));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "these look into the message of an error; use its kind or subject:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn only_cli_and_telemetry_print() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| !["cli", "telemetry", "main"].contains(&source.module.as_str())) {
        for (number, line) in source.lines.iter().enumerate() {
            if ["println!(", "eprintln!(", "print!(", "eprint!("].iter().any(|print| code(line).contains(print)) {
                wrong.push(format!("{}:{}", source.path.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "these print:\n{}", wrong.join("\n"));
}

#[test]
fn files_stay_short_and_say_what_they_are() {
    let mut wrong = Vec::new();
    for source in sources() {
        if source.lines.len() > LONGEST {
            wrong.push(format!("{} has {} lines", source.path.display(), source.lines.len()));
        }
        if source.module != "main" && !source.lines.first().is_some_and(|line| line.starts_with("//!")) {
            wrong.push(format!("{} does not start with //!", source.path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn scripts_stay_within_reading_length() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    for entry in std::fs::read_dir(root).expect("scripts is readable") {
        let path = entry.expect("scripts is readable").path();
        if path.extension().is_some_and(|extension| extension == "lua") {
            let lines = std::fs::read_to_string(&path).expect("readable script").lines().count();
            assert!(lines <= 110, "{} has {lines} lines; a recipe is read in one sitting", path.display());
        }
    }
}

/// Widest line of a comment and of prose, in characters.
const PROSE_WIDTH: usize = 100;

/// Parts of `src` with wider comment lines. Remove a part when it has none left.
const WIDE_COMMENTS: &[&str] = &[
    "answers", "build", "cli", "engine", "error", "hub", "mdp", "model", "native", "net", "rl", "rollout", "script",
    "services", "store", "text", "tools", "train",
];

/// Pages that are generated, or have text from a generator between their tables.
const GENERATED_PAGES: &[&str] = &["coming-from.md", "containment.md", "lua.md", "metrics.md", "settings.md"];

#[test]
fn comment_lines_are_at_most_100_characters_wide() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wide = Vec::new();
    let sources = ["rs", "cpp", "h", "inc"];
    for path in files_below(&root.join("src"), &sources).into_iter().chain([root.join("build.rs")]) {
        let relative =
            path.strip_prefix(root.join("src")).or_else(|_| path.strip_prefix(root)).expect("below the root");
        let relative = relative.to_string_lossy().into_owned();
        let part = relative.split(['/', '.']).next().unwrap_or_default();
        if WIDE_COMMENTS.contains(&part) {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("readable source");
        let is_comment = |line: &str| line.trim_start().starts_with("//");
        wide.extend(wide_lines(&relative, &text, is_comment));
    }
    assert!(wide.is_empty(), "break these comments at {PROSE_WIDTH} characters:\n{}", wide.join("\n"));
}

#[test]
fn prose_lines_of_docs_are_at_most_100_characters_wide() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let top = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| root.join(name));
    let mut wide = Vec::new();
    for path in files_below(&root.join("docs"), &["md"]).into_iter().chain(top) {
        let relative = path.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
        if GENERATED_PAGES.iter().any(|page| relative.ends_with(page)) {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("readable page");
        let mut in_code = false;
        let is_prose = |line: &str| {
            let fence = line.trim_start().starts_with("```");
            in_code ^= fence;
            !fence && !in_code && !line.trim_start().starts_with('|')
        };
        wide.extend(wide_lines(&relative, &text, is_prose));
    }
    assert!(wide.is_empty(), "break these lines at {PROSE_WIDTH} characters:\n{}", wide.join("\n"));
}

/// `PATH:LINE` of each selected line that is too wide.
fn wide_lines(path: &str, text: &str, mut select: impl FnMut(&str) -> bool) -> Vec<String> {
    let selected = text.lines().enumerate().filter(|(_, line)| select(line));
    let wide = selected.filter(|(_, line)| line.chars().count() > PROSE_WIDTH);
    wide.map(|(number, _)| format!("{path}:{}", number + 1)).collect()
}

fn files_below(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            found.extend(files_below(&path, extensions));
        } else if path.extension().is_some_and(|extension| extensions.iter().any(|one| extension == *one)) {
            found.push(path);
        }
    }
    found.sort();
    found
}
