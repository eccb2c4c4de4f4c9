//! Pages of docs about settings, functions and metrics: tables match the code, and every name
//! exists.

use std::path::{Path, PathBuf};

use r1::config::{algorithm_names, settings};
use r1::script::docs;

use crate::reference_data::parts_up_to_date;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The Rust files of a folder and its subfolders with their texts.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                sources.push((path, text));
            }
        }
    }
    sources
}

/// Verdicts of r1 and Math-Verify on tests/golden/answers/pairs.jsonl. `just docs` updates the
/// page.
#[test]
fn files_made_from_the_declarations_of_answers() {
    // Of a kind: pairs, and the wrong verdicts of r1 and of Math-Verify.
    #[derive(Default)]
    struct Counts {
        correct: usize,
        traps: usize,
        refused: [usize; 2],
        accepted: [usize; 2],
    }
    let mut kinds: Vec<(String, Counts)> = Vec::new();
    let mut total = Counts::default();
    for line in read("tests/golden/answers/pairs.jsonl").lines() {
        let pair: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| pair[name].as_str().unwrap();
        let equal = pair["equal"] == true;
        // Of the two forms that Math-Verify is given, the one with the better verdict.
        let other = pair["math_verify"].as_array().unwrap().iter().any(|verdict| *verdict == equal) == equal;
        let verdicts = [r1::answers::math_equal(text("answer"), text("reference")), other];
        if !kinds.iter().any(|(kind, _)| kind == text("kind")) {
            kinds.push((text("kind").to_owned(), Counts::default()));
        }
        let (_, counts) = kinds.iter_mut().find(|(kind, _)| kind == text("kind")).unwrap();
        for counts in [counts, &mut total] {
            counts.correct += usize::from(equal);
            counts.traps += usize::from(!equal);
            for (index, verdict) in verdicts.into_iter().enumerate() {
                counts.refused[index] += usize::from(equal && !verdict);
                counts.accepted[index] += usize::from(!equal && verdict);
            }
        }
    }
    kinds.push(("all".to_owned(), total));
    let mut rows = "| kind | correct | refused by r1 | by Math-Verify | wrong | accepted by r1 | by Math-Verify |\n\
                    |---|---|---|---|---|---|---|\n"
        .to_owned();
    for (kind, counts) in kinds {
        let Counts { correct, traps, refused: [r1, other], accepted: [ours, theirs] } = counts;
        rows.extend([format!("| {kind} | {correct} | {r1} | {other} | {traps} | {ours} | {theirs} |\n")]);
    }
    parts_up_to_date("docs/guide/answers.md", &[("pairs", rows)]);
}

/// Names in backticks in r1's columns: settings, algorithms and functions.
fn names(page: &str, columns: impl Fn(&[&str]) -> Vec<usize>) -> Vec<String> {
    let mut names = Vec::new();
    for line in page.lines().filter(|line| line.starts_with("| ")) {
        // `\|` is not a border.
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        for column in columns(&cells) {
            let cell = cells.get(column).copied().unwrap_or_default();
            names.extend(cell.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    names
}

/// The reason why a name does not exist in r1; `None` if it exists.
fn missing(name: &str) -> Option<String> {
    let (path, value) = name.split_once('=').map_or((name, None), |(path, value)| (path, Some(value)));
    let section = path.split('.').next().unwrap_or_default();
    if section == "r1" {
        let function = path.split([' ', '(', '{']).next().unwrap_or_default();
        // A namespace, such as r1.http, includes its functions.
        let is_file = path.contains(' ') && !path.contains('{')
            || docs::find(function).is_some()
            || !docs::below(function).is_empty();
        return (!is_file).then(|| format!("no function `{function}`"));
    }
    if !path.contains('.') || path.contains([' ', '/']) || !settings().any(|setting| setting.section() == section) {
        return None;
    }
    let option = path.starts_with("trainer.estimator.") || path.starts_with("trainer.loss.");
    if !option && !settings().any(|setting| setting.is_below(path)) {
        return Some(format!("no setting `{path}`"));
    }
    let unknown = |value: &&str| path == "trainer.algorithm" && !algorithm_names().contains(value);
    value.filter(unknown).map(|value| format!("no algorithm `{value}`"))
}

#[test]
fn every_r1_name_in_coming_from_exists() {
    let page = read("docs/reference/coming-from.md");
    let ours = names(&page, |cells| (1..cells.len()).collect());
    assert!(ours.len() > 100, "{} names", ours.len());
    let wrong: Vec<String> = ours.iter().filter_map(|name| missing(name)).collect();
    assert!(wrong.is_empty(), "docs/reference/coming-from.md: {}", wrong.join(", "));
    assert_eq!(missing("trainer.group_sise").as_deref(), Some("no setting `trainer.group_sise`"));
    assert_eq!(missing("trainer.algorithm=grop").as_deref(), Some("no algorithm `grop`"));
    assert_eq!(missing("r1.tols { … }").as_deref(), Some("no function `r1.tols`"));
}

#[test]
fn the_glossary_names_existing_settings() {
    let page = read("docs/reference/glossary.md");
    let ours = names(&page, |cells| vec![0, cells.len() - 1]);
    let wrong: Vec<String> = ours.iter().filter_map(|name| missing(name)).collect();
    assert!(wrong.is_empty(), "docs/reference/glossary.md: {}", wrong.join(", "));
}

/// An ignored test must be run by a recipe of the Justfile, and no test passes because its data is
/// missing.
#[test]
fn ignored_tests_have_a_just_recipe() {
    let recipes = read("Justfile") + read("tests/golden/models/exchange.py").as_str();
    let mut checked = 0;
    for (path, text) in ["src", "crates"].into_iter().flat_map(sources) {
        if path.ends_with("reference_data.rs") {
            continue;
        }
        for (at, _) in text.match_indices("#[ignore") {
            let name = text[at..].split_once("fn ").and_then(|(_, rest)| rest.split('(').next()).unwrap_or_default();
            let has_recipe = recipes.contains(name);
            assert!(has_recipe, "{}: no recipe of the Justfile runs the ignored test {name}", path.display());
            checked += 1;
        }
        assert!(!text.contains("R1_SHARED"), "{}: tests take data by reference_data()", path.display());
    }
    assert!(checked > 10, "{checked}");
}

/// The crate of docs/guide/library.md is the one that `just test-dependent` builds and runs.
#[test]
fn the_crate_of_the_page_is_the_one_that_is_built() {
    let page = read("docs/guide/library.md");
    for file in ["Cargo.toml", "build.rs", "src/main.rs"] {
        let text = read(&format!("tests/dependent/{file}"));
        // Without the parts that only r1's own copy has.
        let text = text.find("[package]").map_or(&*text, |start| &text[start..]);
        assert!(page.contains(text), "tests/dependent/{file} differs from docs/guide/library.md");
    }
}

/// The last column of the tables of docs/guide/bad-input.md names tests.
#[test]
fn the_page_of_bad_input_names_existing_tests() {
    let code: String = ["src", "crates", "tests"].into_iter().flat_map(sources).map(|(_, text)| text).collect();
    let page = read("docs/guide/bad-input.md");
    let mut named = 0;
    for row in page.lines().filter(|line| line.starts_with("| ") && line.contains('`')) {
        let last = row.trim_end_matches([' ', '|']).rsplit(" | ").next().unwrap();
        for name in last.split('`').skip(1).step_by(2) {
            assert!(
                code.contains(&format!("fn {name}()")),
                "docs/guide/bad-input.md names a test `{name}`, which is not there"
            );
            named += 1;
        }
    }
    assert!(named > 30, "{named}");
}

/// `just remeasure` can read the figures of every page: each table of figures is in a measured
/// block that names processor, instruction set, commit, date and command (benches/pages.py).
#[test]
fn every_table_of_figures_can_be_measured_again() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = |arguments: &[&str]| {
        let done = std::process::Command::new("python3")
            .args(arguments)
            .current_dir(root.join("benches"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .unwrap();
        assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
        text(&done.stdout)
    };
    assert_eq!(python(&["-m", "doctest", "pages.py"]), "");
    assert_eq!(python(&["-m", "doctest", "remeasure.py"]), "");
    python(&["pages.py", "check", "../docs"]);
    let listed = python(&["remeasure.py", "--list", "../docs/guide/recipes/bandit.md"]);
    assert!(listed.contains(": bandit. Measured on one thread of ") && listed.contains("\n  0  0.00 ("), "{listed}");
}

/// Benches and generators of golden numbers run rarely; a syntax error in them would stay unseen.
#[test]
fn python_files_have_no_syntax_error() {
    let program = "import ast, pathlib, sys\n\
        for path in sorted(path for name in sys.argv[1:] for path in pathlib.Path(name).rglob('*.py')):\n\
        \x20   ast.parse(path.read_text(encoding='utf-8'), str(path)); print(path)";
    let done = std::process::Command::new("python3")
        .args(["-c", program, "benches", "crates", "lua", "models", "scripts", "src", "tests"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(text(&done.stdout).lines().count() > 50, "{}", text(&done.stdout));
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
