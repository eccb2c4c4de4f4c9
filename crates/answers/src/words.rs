//! Units, magnitudes and phrases.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::token::lists;

/// The names of units in units.tsv, and the first name of each.
static UNITS: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
    let all = rows(include_str!("units.tsv"));
    let names = all.flat_map(|(name, others)| others.split(", ").chain([name]).map(move |other| (other, name)));
    names.filter(|(other, _)| !other.is_empty()).collect()
});

/// The rows of a file with two columns.
pub(super) fn rows(file: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    file.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('\t'))
}

/// A list of phrases.tsv.
pub(super) fn phrases(list: &str) -> Vec<&'static str> {
    let lists = rows(include_str!("phrases.tsv")).filter(|(name, _)| *name == list);
    lists.flat_map(|(_, phrases)| phrases.split(", ")).collect()
}

/// Words after a number without a meaning.
const FILLERS: [&str; 4] = ["unit", "square unit", "cubic unit", "sq unit"];

/// Words after a number that change its value or compare it; text with them is not understood.
const NOT_UNITS: &str = "or and more less fewer if when unless mod modulo not least most than about remainder plus minus times \
    squared cubed factorial half halves third thirds quarter quarters fourth fourths fifth fifths sixth \
    sixths eighth eighths tenth tenths hundredth hundredths thousandth thousandths score gross pair pairs \
    couple negative below january february march april may june july august september october november \
    december is are was be can does wrong prime above with without except between choose union intersect \
    intersection cross over xor nor implies iff";

/// Letters that are units after a number and a space.
pub(super) const UNIT_LETTERS: [char; 16] =
    ['m', 'g', 's', 'h', 'L', 'l', 'N', 'J', 'W', 'V', 'A', 'K', 'C', 'F', 'Ω', 'M'];

/// Whether a phrase may be a unit.
pub(super) fn may_be_unit(phrase: &str) -> bool {
    !phrase.split(|c: char| !c.is_alphabetic()).any(|word| {
        let word = word.to_lowercase();
        !word.is_empty() && lists(NOT_UNITS, &word)
    })
}

/// The normalized name of a unit; `None` for a word without a meaning, such as `units`. A rate is
/// `km/h`.
pub(super) fn unit(phrase: &str) -> Option<String> {
    let phrase = phrase.trim().trim_end_matches('.').replace("per cent", "percent");
    let phrase = phrase.replace(" per ", "/").replace("per ", "/");
    let mut parts = phrase.split('/').map(str::trim);
    let first = parts.next().filter(|part| !part.is_empty()).and_then(simple_unit);
    let rest: Vec<String> = parts.filter_map(simple_unit).collect();
    match (first, rest.is_empty()) {
        (first, true) => first,
        (first, false) => Some(format!("{}/{}", first.unwrap_or_default(), rest.join("/"))),
    }
}

fn simple_unit(term: &str) -> Option<String> {
    let term = term.to_lowercase();
    let (term, power) = match term.split_once(' ') {
        Some(("square" | "sq" | "sq.", rest)) => (rest.to_owned(), "^2"),
        Some(("cubic" | "cu" | "cu.", rest)) => (rest.to_owned(), "^3"),
        _ => (term, ""),
    };
    let (term, written) = match term.split_once(['^', '²', '³']) {
        Some((name, power)) => {
            let power = if power.is_empty() { if term.ends_with('²') { "2" } else { "3" } } else { power.trim() };
            (name.trim().to_owned(), format!("^{power}"))
        }
        None => (term, String::new()),
    };
    let single = singular(&term);
    if FILLERS.contains(&single.as_str()) {
        return None;
    }
    let name = listed(&term, &single).unwrap_or(&single);
    Some(format!("{name}{power}{written}"))
}

/// The first name of a unit.
fn listed(term: &str, singular: &str) -> Option<&'static str> {
    UNITS.get(term).or_else(|| UNITS.get(singular)).copied()
}

fn singular(term: &str) -> String {
    match term.strip_suffix('s') {
        Some(stem) if stem.chars().count() > 2 && !stem.ends_with(['s', 'u', 'i']) => stem.to_owned(),
        _ => term.to_owned(),
    }
}

/// Whether a word after a number is its unit rather than a product of variables.
pub(super) fn is_unit(word: &str, spaced: bool) -> bool {
    let lower = word.to_lowercase();
    let single = singular(&lower);
    listed(&lower, &single).is_some() || (spaced && word.chars().count() >= 4) || FILLERS.contains(&single.as_str())
}

/// The value of a word such as `million`.
pub(super) fn magnitude(word: &str) -> Option<i64> {
    Some(match word.to_lowercase().as_str() {
        "dozen" => 12,
        "hundred" => 100,
        "thousand" => 1_000,
        "million" => 1_000_000,
        "billion" => 1_000_000_000,
        "trillion" => 1_000_000_000_000,
        _ => return None,
    })
}

fn is_vowel(c: char) -> bool {
    matches!(c.to_ascii_lowercase(), 'a' | 'e' | 'i' | 'o' | 'u')
}

fn is_usual_variable(c: char) -> bool {
    matches!(c, 'a'..='d' | 'x'..='z')
}

/// Whether a word in a formula is a product of variables (`xyz`, `abc`, `nRT`), not an operator or
/// a name.
pub(super) fn is_product(word: &str) -> bool {
    let count = word.chars().count();
    let operator = matches!(word.to_lowercase().as_str(), "mod" | "xor" | "nor" | "lcm" | "gcd");
    !operator
        && (count <= 2
            || word.chars().all(is_usual_variable)
            || (count <= 6 && !word.chars().any(is_vowel))
            || (count == 3 && !word.chars().nth(1).is_some_and(is_vowel)))
}

/// Whether a word is a product of variables rather than English: it has no vowels (`xy`), or only
/// letters such as `ab`.
pub(super) fn is_variables(word: &str) -> bool {
    let fixed = matches!(word, "ad" | "da" | "cab" | "bad" | "dab" | "by" | "my");
    !fixed
        && (2..=4).contains(&word.len())
        && word.bytes().all(|byte| byte.is_ascii_lowercase())
        && (word.chars().all(is_usual_variable) || !word.chars().any(is_vowel))
}

/// The letter of a choice with its text (`B. 42`, `(B) 42`, `\textbf{(B)}\ 42`).
pub(super) fn choice(text: &str) -> Option<char> {
    let text = text.trim_start_matches("\\textbf{").trim_start_matches("\\text{").trim_start_matches("\\mathrm{");
    let bracket = text.starts_with(['(', '[']);
    let rest = text.trim_start_matches(['(', '[']);
    let letter = rest.chars().next().filter(|c| ('A'..='J').contains(c))?;
    let after = &rest[1..];
    let behind = after.strip_prefix([')', ']']).or_else(|| after.strip_prefix(['.', ':']).filter(|_| !bracket))?;
    // `A) or B)` is no choice.
    let mut before = ' ';
    let other = behind.char_indices().any(|(at, c)| {
        let is_choice = ('A'..='J').contains(&c)
            && !before.is_alphanumeric()
            && !behind[at + 1..].starts_with(char::is_alphanumeric);
        before = c;
        is_choice
    });
    (!other && !behind.trim_start().starts_with([',', ';', '/', '|', '&'])).then_some(letter)
}

/// `10-12` and what follows it: two increasing numbers without spaces between them.
pub(super) fn range(text: &str) -> Option<(String, &str)> {
    let number = |text: &str| {
        let length = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        (text[..length].parse::<f64>().ok().filter(|_| text.starts_with(|c: char| c.is_ascii_digit())), length)
    };
    let text = text.trim_start_matches(['$', '\\']);
    let (low, length) = number(text);
    let dash = ["--", "-", "–", "—"].into_iter().find(|dash| text[length..].starts_with(dash))?;
    let rest = text[length + dash.len()..].trim_start_matches(['$', '\\']);
    let (high, end) = number(rest);
    let (low, high) = low.zip(high).filter(|(low, high)| low < high)?;
    Some((format!("{low}-{high}"), rest[end..].trim_end_matches('$')))
}

/// Normalizes a phrase: single spaces, no punctuation at the ends, lower case unless it is a single
/// letter.
pub(super) fn phrase(text: &str) -> String {
    let parts: Vec<&str> = text.split_whitespace().collect();
    let joined = parts.join(" ");
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
