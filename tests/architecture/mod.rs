//! Rules that the compiler does not check: imports between folders and files, the folders that may
//! use a crate, printing, and the length of files.

mod errors;
mod imports;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use imports::{circles, graph, sources};

/// Module -> modules it may import. `error` is free for all.
const EDGES: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("answers", &[]),
    ("clock", &[]),
    ("device", &["schema"]),
    ("glob", &[]),
    ("json", &[]),
    ("libtorch", &[]),
    ("timeline", &[]),
    ("units", &[]),
    ("schema", &["units"]),
    ("mdp", &["json", "schema", "units"]),
    ("net", &[]),
    ("hub", &["net", "glob", "telemetry"]),
    ("algorithms", &["mdp", "schema"]),
    ("config", &["algorithms", "mdp", "schema", "units"]),
    ("text", &["json", "mdp", "clock", "vision"]),
    ("vision", &["json"]),
    ("eval", &["answers", "host_lua", "mdp"]),
    ("host_lua", &[]),
    ("store", &["mdp", "config", "json"]),
    ("search", &["json", "net", "schema"]),
    ("native", &[]),
    ("model", &["mdp", "native", "schema", "vision"]),
    ("rl", &["algorithms", "mdp", "config", "native"]),
    ("adamw", &["native"]),
    ("process_group", &["native"]),
    ("engine", &["model", "mdp", "native", "timeline"]),
    ("encoders", &["model", "search", "text"]),
    ("remote", &["config", "json", "mdp", "net"]),
    ("tools", &["clock", "json", "mdp", "net", "schema"]),
    // Datasets are Parquet files or on the Hub.
    ("data", &["answers", "config", "glob", "hub", "json", "store"]),
    (
        "script",
        &[
            "algorithms",
            "search",
            "answers",
            "data",
            "mdp",
            "net",
            "text",
            "tools",
            "vision",
            "config",
            "store",
            "hub",
            "clock",
            "glob",
            "json",
            "schema",
            "units",
        ],
    ),
    ("rollout", &["algorithms", "script", "text", "mdp", "config", "timeline", "vision"]),
    ("telemetry", &["host_lua", "net"]),
    // Pages about stored runs.
    ("view", &["mdp", "net", "script", "store", "telemetry", "text"]),
    // Scripts and models by name.
    (
        "load",
        &["config", "encoders", "hub", "model", "native", "rollout", "script", "store", "telemetry", "text", "vision"],
    ),
    (
        "train",
        &[
            "algorithms",
            "adamw",
            "config",
            "engine",
            "eval",
            "glob",
            "host_lua",
            "hub",
            "load",
            "mdp",
            "model",
            "native",
            "process_group",
            "remote",
            "rl",
            "rollout",
            "script",
            "store",
            "telemetry",
            "text",
            "timeline",
            "tools",
            "vision",
        ],
    ),
    (
        "programs",
        &[
            "algorithms",
            "config",
            "encoders",
            "engine",
            "hub",
            "load",
            "mdp",
            "model",
            "rl",
            "rollout",
            "schema",
            "script",
            "search",
            "store",
            "telemetry",
            "text",
            "train",
        ],
    ),
    (
        "cli",
        &[
            "algorithms",
            "config",
            "data",
            "encoders",
            "engine",
            "eval",
            "hub",
            "load",
            "mdp",
            "model",
            "native",
            "net",
            "remote",
            "process_group",
            "programs",
            "rl",
            "rollout",
            "schema",
            "script",
            "search",
            "store",
            "telemetry",
            "text",
            "tools",
            "train",
            "view",
        ],
    ),
];

/// Crate -> the modules that may use it. Crates that only one package needs are in its Cargo.toml.
const FENCES: &[(&str, &[&str])] = &[
    ("mlua", &["algorithms", "host_lua", "programs", "script", "telemetry"]),
    ("parquet", &["store"]),
    ("arrow_array", &["store"]),
    ("arrow_buffer", &["store"]),
    ("arrow_ipc", &["store"]),
    ("tch", &["adamw", "libtorch", "native", "model", "process_group", "rl", "engine", "load", "train", "programs"]),
    ("clap", &["cli"]),
    ("rustyline", &["cli"]),
    ("hyper", &["net", "tools", "view"]),
    ("hf_hub", &["hub"]),
    ("indicatif", &["telemetry"]),
    ("rhai", &["tools"]),
    ("rmcp", &["tools"]),
    ("sse_stream", &["tools"]),
    ("tokio_tungstenite", &["net"]),
    ("full_moon", &["script"]),
];

/// The folders that use libtorch, directly (`tch`) or through another folder. The others build and
/// test without it.
const WITH_LIBTORCH: &[&str] = &[
    "libtorch",
    "native",
    "model",
    "adamw",
    "process_group",
    "rl",
    "engine",
    "encoders",
    "load",
    "train",
    "programs",
    "cli",
];

/// Folders of `src` whose folders have an order: a file may import files of its own folder and of
/// the folders before it.
const ORDERS: &[(&str, &[&str])] = &[
    ("script", &["runtime", "docs", "settings", "api", "recipe", "program", "debug"]),
    // `ranks`, `shards` and `options` are files.
    (
        "train",
        &[
            "image_exchange",
            "ranks",
            "parameter_shards",
            "shards",
            "gradient_exchange",
            "gradient_sum",
            "options",
            "rules",
            "rows",
            "learn",
            "start",
            "watch",
            "eval",
            "run",
        ],
    ),
];

/// Folder of `src` (or of a folder of [`ORDERS`]) -> files in its largest import cycle, without its
/// `mod.rs`.
/// Folders that are not listed have none. The numbers may only fall: lower them when they do.
const CYCLES: &[(&str, usize)] = &[
    ("answers", 3),
    ("cli", 4),
    ("config", 4),
    // A file for each model family.
    ("model", 20),
    ("native", 2),
    ("rl", 2),
    ("rollout", 5),
    ("script/api", 2),
    ("script/recipe", 3),
    ("script/runtime", 3),
    ("store", 2),
    ("telemetry", 2),
    ("text", 4),
    ("tools", 6),
];

/// Longest file, in lines; tests not counted.
const LONGEST: usize = 500;

/// Code without line comments: good enough to look for paths.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or(line)
}

#[test]
fn folders_import_only_allowed_folders() {
    let edges: BTreeMap<&str, &[&str]> = EDGES.iter().copied().collect();
    let mut wrong = Vec::new();
    for source in sources() {
        let importer = source.folder();
        if importer == "lib" || importer == "main" {
            continue;
        }
        let allowed = edges
            .get(importer.as_str())
            .unwrap_or_else(|| panic!("`{importer}` is not in EDGES: add its allowed imports to this test"));
        for name in source.paths.iter().filter_map(|path| path.first()) {
            let is_folder = edges.contains_key(name.as_str());
            if is_folder && *name != importer && name != "error" && !allowed.contains(&name.as_str()) {
                wrong.push(format!("{}: {importer} imports {name}", source.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "imports that EDGES does not allow:\n{}", wrong.join("\n"));
}

/// The folders that have an order in `folder`.
fn order(folder: &str) -> Option<&'static [&'static str]> {
    ORDERS.iter().find(|(name, _)| *name == folder).map(|(_, order)| *order)
}

#[test]
fn folders_with_an_order_import_only_those_below_them() {
    let sources = sources();
    let mut wrong = Vec::new();
    for (source, used) in sources.iter().zip(graph(&sources)) {
        let [first, second, ..] = &source.module[..] else { continue };
        let Some(order) = order(first) else { continue };
        let index = |name: &String| order.iter().position(|folder| folder == name);
        let own_index = index(second).unwrap_or_else(|| panic!("`src/{first}/{second}` is not in ORDERS"));
        for other in used.into_iter().map(|other| &sources[other]) {
            let [folder, inner, ..] = &other.module[..] else { continue };
            if folder == first && index(inner).is_some_and(|other| other > own_index) {
                wrong.push(format!("{} imports {}", source.path.display(), other.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "imports against ORDERS:\n{}", wrong.join("\n"));
}

#[test]
fn import_cycles_between_files_do_not_grow() {
    let sources = sources();
    let graph = graph(&sources);
    let mut folders: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for (index, source) in sources.iter().enumerate() {
        let folder = match &source.module[..] {
            // A `mod.rs` re-exports the items of its folder.
            [_] | [] => continue,
            [first, _] if order(first).is_some() => continue,
            [first, second, ..] if order(first).is_some() => format!("{first}/{second}"),
            [first, ..] => first.clone(),
        };
        folders.entry(folder).or_default().insert(index);
    }
    let mut wrong = Vec::new();
    for (folder, files) in &folders {
        let limit = CYCLES.iter().find(|(listed, _)| listed == folder).map_or(1, |(_, limit)| *limit);
        let cycles = circles(files, &graph);
        if let Some(largest) = cycles.iter().max_by_key(|cycle| cycle.len()).filter(|cycle| cycle.len() > limit) {
            let names: Vec<String> = largest.iter().map(|&file| sources[file].module.join("::")).collect();
            wrong.push(format!("{folder}: {} files, at most {limit}: {}", names.len(), names.join(", ")));
        }
    }
    assert!(wrong.is_empty(), "import cycles that have grown:\n{}", wrong.join("\n"));
}

#[test]
fn crates_are_used_only_in_allowed_folders() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (name, folders) in FENCES {
            let used = source.foreign.iter().any(|path| path[0] == *name);
            if used && !folders.contains(&source.folder().as_str()) {
                wrong.push(format!("{}: {name} is used outside {folders:?}", source.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn other_folders_do_not_use_libtorch_directly_or_through_another_folder() {
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources().iter().filter(|source| !["lib", "main"].contains(&source.folder().as_str())) {
        let imports = uses.entry(source.folder()).or_default();
        imports.extend(source.paths.iter().filter_map(|path| path.first()).cloned());
        imports.extend(source.foreign.iter().map(|path| path[0].clone()).filter(|name| name == "tch"));
    }
    let mut reached = BTreeSet::from(["tch".to_owned()]);
    loop {
        let new = uses.iter().filter(|(folder, used)| !reached.contains(*folder) && !used.is_disjoint(&reached));
        let new: Vec<String> = new.map(|(folder, _)| folder.clone()).collect();
        if new.is_empty() {
            break;
        }
        reached.extend(new);
    }
    reached.remove("tch");
    let listed = WITH_LIBTORCH.iter().map(|folder| (*folder).to_owned()).collect();
    assert_eq!(reached, listed, "the folders that use libtorch (left) are not those of WITH_LIBTORCH (right)");
}

#[test]
fn only_cli_and_telemetry_print() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| !["cli", "telemetry", "main"].contains(&source.folder().as_str())) {
        for (number, line) in source.code_lines() {
            if ["println!(", "eprintln!(", "print!(", "eprint!("].iter().any(|print| code(line).contains(print)) {
                wrong.push(format!("{}:{}", source.path.display(), number));
            }
        }
    }
    assert!(wrong.is_empty(), "these print:\n{}", wrong.join("\n"));
}

#[test]
fn files_are_short_and_have_a_header() {
    let mut wrong = Vec::new();
    for source in sources() {
        let lines = source.code_lines().count();
        if lines > LONGEST {
            wrong.push(format!("{} has {lines} lines", source.path.display()));
        }
        if source.folder() != "main" && !source.text.starts_with("//!") {
            wrong.push(format!("{} does not start with //!", source.path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn scripts_have_a_maximum_length() {
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

#[test]
fn comment_lines_are_at_most_100_characters_wide() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wide = Vec::new();
    let folders = ["src", "crates", "tests", "benches", "lua", "scripts", "setup"];
    let files =
        folders.map(|folder| files_below(&root.join(folder), &["rs", "cpp", "h", "inc", "lua", "luau", "py", "sh"]));
    for path in files.into_iter().flatten().chain([root.join("build.rs")]) {
        let relative = path.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
        // Editors read an annotation from one line.
        if relative == "lua/types/r1.lua" {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("readable source");
        let is_rust = !["lua", "luau", "py", "sh"].iter().any(|extension| relative.ends_with(&format!(".{extension}")));
        let is_comment = |line: &str| {
            let start = line.trim_start();
            if is_rust { start.starts_with("//") } else { start.starts_with('#') || start.starts_with("--") }
        };
        wide.extend(wide_lines(&relative, &text, is_comment));
    }
    assert!(wide.is_empty(), "break these comments at {PROSE_WIDTH} characters:\n{}", wide.join("\n"));
}

#[test]
fn prose_lines_of_docs_are_at_most_100_characters_wide() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let top = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root.join(name));
    let mut wide = Vec::new();
    let folders = ["docs", "models", "tests"].map(|folder| files_below(&root.join(folder), &["md"]));
    for path in folders.into_iter().flatten().chain(top) {
        let relative = path.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("readable page");
        let mut in_code = false;
        let is_prose = |line: &str| {
            let fence = line.trim_start().starts_with("```");
            in_code ^= fence;
            let is_signature = line.starts_with('`') && line.ends_with("  ");
            !fence && !in_code && !is_signature && !line.trim_start().starts_with('|')
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
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            files.extend(files_below(&path, extensions));
        } else if path.extension().is_some_and(|extension| extensions.iter().any(|one| extension == *one)) {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Lines of code in src: comments, blank lines and tests are not counted. Lower it when the code
/// gets smaller; it is raised only for a feature that was agreed to cost lines.
const CODE_LINES: usize = 102_405;

#[test]
fn the_code_does_not_grow() {
    let is_code = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    let lines: usize =
        sources().iter().map(|source| source.code_lines().filter(|(_, line)| is_code(line)).count()).sum();
    assert!(lines <= CODE_LINES, "src has {lines} lines of code, more than {CODE_LINES}: make other code smaller");
    assert!(lines + 200 > CODE_LINES, "src has {lines} lines of code: lower CODE_LINES from {CODE_LINES}");
}
