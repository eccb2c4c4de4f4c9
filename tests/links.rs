//! Links and paths in the Markdown pages of the repository.

use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The pages that people read.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    let mut folders = vec![root().join("docs"), root().join("models")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| root().join(name)));
    pages.sort();
    pages
}

/// The text of a page without code: fenced blocks and, if `spans`, text in backticks.
fn without_code(page: &str, spans: bool) -> String {
    let mut in_block = false;
    let lines = page.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        in_block ^= fence;
        !fence && !in_block
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    if spans { text.split('`').step_by(2).collect::<Vec<_>>().join("``") } else { text }
}

/// The targets of the links of a page.
fn links(page: &str) -> Vec<String> {
    let text = without_code(page, true);
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

/// The anchor of a heading, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().replace(' ', "-");
    kept.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
}

fn has_anchor(page: &Path, wanted: &str) -> bool {
    let text = without_code(&std::fs::read_to_string(page).unwrap(), false);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#').trim())).any(|anchor| anchor == wanted)
}

#[test]
fn relative_links_of_docs_resolve() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for page in pages() {
        let shown = page.strip_prefix(root()).unwrap().display().to_string();
        for link in links(&std::fs::read_to_string(&page).unwrap()) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            count += 1;
            let (path, heading) =
                link.split_once('#').map_or((&link[..], None), |(path, heading)| (path, Some(heading)));
            let target = if path.is_empty() { page.clone() } else { page.with_file_name(path) };
            if !target.exists() || heading.is_some_and(|heading| !has_anchor(&target, heading)) {
                wrong.push(format!("{shown}: {link}"));
            }
        }
    }
    assert!(wrong.is_empty() && count > 40, "{count} links; those without a target:\n{}", wrong.join("\n"));
    assert_eq!(anchor("How `r1 run` resumes: a page"), "how-r1-run-resumes-a-page");
}

/// A page that is named as text, such as docs/guide/resume.md.
#[test]
fn pages_named_in_docs_exist() {
    let mut wrong = Vec::new();
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let parts = text.split(|c: char| c.is_whitespace() || "()[]`,;:\"'|".contains(c));
        let named = parts.filter(|word| word.starts_with("docs/"));
        for name in named.map(|name| name.split('#').next().unwrap_or(name).trim_end_matches(['.', '/'])) {
            // The others are beginnings of names, such as docs/lab/decisions/0004.
            if Path::new(name).extension().is_some() && !root().join(name).exists() {
                wrong.push(format!("{}: {name}", page.strip_prefix(root()).unwrap().display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_readme_names_pages_as_links() {
    let page = std::fs::read_to_string(root().join("README.md")).unwrap();
    let text = without_code(&page, true).replace("](docs/", "](");
    let plain: Vec<&str> = text.lines().filter(|line| line.contains("docs/")).collect();
    assert!(plain.is_empty(), "{plain:#?}");
}
