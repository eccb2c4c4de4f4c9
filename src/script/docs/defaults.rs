//! Defaults that texts name, for tests that compare them with the declared ones.

/// Values that a text may mean: `5 s` is 5, `1 MiB` is 1 and 1048576.
pub(crate) fn meanings(text: &str) -> Vec<String> {
    let text = text.trim_matches(['`', '"']).replace(',', "");
    let end = text.find(|letter: char| !(letter.is_ascii_digit() || ".-e".contains(letter))).unwrap_or(text.len());
    let Ok(number) = text[..end].parse::<f64>() else { return vec![text] };
    let factor = match text[end..].trim() {
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "ms" => 0.001,
        _ => 1.0,
    };
    vec![number.to_string(), (number * factor).to_string()]
}
