//! Expressions as jinja2 renders them (`tests/golden/jinja`): equal, or refused; never different.

#![allow(clippy::unwrap_used)]
use super::*;

#[test]
fn templates_render_as_in_jinja2_or_are_refused() {
    let cases = include_str!("../../../../tests/golden/jinja/cases.jsonl");
    let (mut equal, mut refused, mut wrong, mut accepted) = (0, Vec::new(), Vec::new(), Vec::new());
    for line in cases.lines() {
        let (source, wanted): (String, Option<String>) = serde_json::from_str(line).unwrap();
        let template = Template::at_time(&source, None, "t", ("", ""), 0);
        let text = template.and_then(|template| template.render_with(DEFAULT, Jinja::from_serialize(Map::new())));
        match (wanted, text) {
            (Some(wanted), Ok(text)) if wanted == text => equal += 1,
            (Some(wanted), Ok(text)) => wrong.push(format!("{source}\t{text:?}\tjinja2 {wanted:?}")),
            (Some(wanted), Err(error)) => refused.push(format!("{source}\tjinja2 {wanted:?}\t{}", error.message)),
            (None, Ok(text)) => accepted.push(format!("{source}\t{text:?}")),
            (None, Err(_)) => equal += 1,
        }
    }
    if let Some(path) = std::env::var_os("R1_SHOW") {
        let all = [&wrong, &refused, &accepted].map(|lines| lines.join("\n")).join("\n\n");
        std::fs::write(path, format!("{equal} {} {} {}\n{all}", wrong.len(), refused.len(), accepted.len())).unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
