//! Units, magnitudes and phrases.

/// Units that are recognised after a number without a space, and their other names. Names of one
/// letter are omitted: `5 m` may be a product.
const UNITS: [(&str, &[&str]); 46] = [
    ("mm", &["millimeter", "millimetre"]),
    ("cm", &["centimeter", "centimetre"]),
    ("m", &["meter", "metre"]),
    ("km", &["kilometer", "kilometre"]),
    ("in", &["inch", "inches"]),
    ("ft", &["foot", "feet"]),
    ("yd", &["yard"]),
    ("mi", &["mile"]),
    ("mg", &["milligram"]),
    ("g", &["gram"]),
    ("kg", &["kilogram"]),
    ("lb", &["lbs", "pound"]),
    ("oz", &["ounce"]),
    ("ml", &["milliliter", "millilitre"]),
    ("l", &["liter", "litre"]),
    ("gal", &["gallon"]),
    ("ms", &["millisecond"]),
    ("s", &["sec", "secs", "second"]),
    ("min", &["mins", "minute"]),
    ("h", &["hr", "hrs", "hour"]),
    ("day", &[]),
    ("week", &[]),
    ("month", &[]),
    ("year", &["yr", "yrs"]),
    ("degree", &["deg"]),
    ("radian", &["rad"]),
    ("dollar", &["usd", "buck"]),
    ("cent", &[]),
    ("euro", &["eur"]),
    ("yuan", &["rmb"]),
    ("mph", &["miles per hour", "mile per hour"]),
    ("km/h", &["kph", "kmh", "kilometers per hour"]),
    ("hz", &["hertz"]),
    ("khz", &["kilohertz"]),
    ("joule", &[]),
    ("watt", &[]),
    ("volt", &[]),
    ("newton", &[]),
    ("%", &["percent", "pct", "percentage", "per cent"]),
    ("way", &[]),
    ("people", &["person"]),
    ("apple", &[]),
    ("time", &[]),
    ("point", &["pts"]),
    ("mol", &["mole"]),
    ("cup", &[]),
];

/// Words after a number without a meaning.
const FILLERS: [&str; 4] = ["unit", "square unit", "cubic unit", "sq unit"];

/// The normalized name of a unit; `None` for a word without a meaning, such as `units`.
pub(super) fn unit(words: &str) -> Option<String> {
    let words = words.trim().trim_end_matches('.').to_lowercase();
    let (words, power) = match words.split_once(' ') {
        Some(("square" | "sq", rest)) => (rest.to_owned(), "^2"),
        Some(("cubic" | "cu", rest)) => (rest.to_owned(), "^3"),
        _ => (words, ""),
    };
    let (words, written) = match words.split_once('^') {
        Some((name, power)) => (name.trim().to_owned(), format!("^{}", power.trim())),
        None => (words, String::new()),
    };
    let single = singular(&words);
    if FILLERS.contains(&single.as_str()) {
        return None;
    }
    let name = UNITS
        .iter()
        .find(|(name, others)| {
            [words.as_str(), single.as_str()].iter().any(|word| name == word || others.contains(word))
        })
        .map_or(single.as_str(), |(name, _)| name);
    Some(format!("{name}{power}{written}"))
}

fn singular(words: &str) -> String {
    match words.strip_suffix('s') {
        Some(stem) if stem.chars().count() > 2 && !stem.ends_with(['s', 'u', 'i']) => stem.to_owned(),
        _ => words.to_owned(),
    }
}

/// Whether a word after a number is its unit rather than a product of variables.
pub(super) fn is_unit(word: &str, spaced: bool) -> bool {
    let lower = word.to_lowercase();
    let single = singular(&lower);
    let known = UNITS.iter().any(|(name, others)| {
        [lower.as_str(), single.as_str()].iter().any(|word| name == word || others.contains(word))
    });
    known || (spaced && word.chars().count() >= 4) || FILLERS.contains(&single.as_str())
}

/// The exponent of ten of a word such as `million`.
pub(super) fn magnitude(word: &str) -> Option<u32> {
    Some(match word.to_lowercase().as_str() {
        "hundred" => 2,
        "thousand" => 3,
        "million" => 6,
        "billion" => 9,
        "trillion" => 12,
        _ => return None,
    })
}

/// Normalizes a phrase: single spaces, no punctuation at the ends, lower case unless it is a single
/// letter.
pub(super) fn phrase(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let joined = words.join(" ");
    let ends = |c: char| c.is_ascii_punctuation() && c != '\\';
    let trimmed = joined.trim_matches(ends);
    let kept = if trimmed.is_empty() { joined.as_str() } else { trimmed };
    if kept.chars().count() == 1 { kept.to_owned() } else { kept.to_lowercase() }
}

/// Dates, telephone numbers and other digits with hyphens or slashes that are not arithmetic.
pub(super) fn is_label(text: &str) -> bool {
    let text = text.trim().trim_start_matches('+');
    for separator in ['-', '/'] {
        let parts: Vec<&str> = text.split(separator).collect();
        let digits = |part: &&str| !part.is_empty() && part.len() < 12 && part.bytes().all(|b| b.is_ascii_digit());
        if parts.len() < 2 || !parts.iter().all(digits) {
            continue;
        }
        let long = parts.iter().all(|part| part.len() >= 3);
        if parts.len() >= 3 || (separator == '-' && (long || parts.iter().any(|p| p.len() > 1 && p.starts_with('0')))) {
            return true;
        }
    }
    false
}
