//! The text of a row, for comparisons between rows; its words and their n-grams.

use serde_json::{Map, Value as Json};

use crate::error::{Error, Kind, Result, Subject, suggest};

/// Columns that hold a task's text, the first of them that a row has.
const USUAL: [&str; 8] = ["problem", "question", "prompt", "messages", "query", "instruction", "text", "statement"];

/// The columns whose text stands for a row.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextColumns(Vec<String>);

impl TextColumns {
    /// The columns of these names; the usual ones if there are none.
    pub(crate) fn new(names: &[String]) -> Self {
        Self(names.to_vec())
    }

    /// The text of a row; of several columns, one per line.
    ///
    /// # Errors
    /// [`Kind::Data`] for a column that the row does not have, with the nearest.
    pub(crate) fn text(&self, row: &Map<String, Json>) -> Result<String> {
        if self.0.is_empty() {
            let default_column = USUAL.into_iter().find_map(|name| row.get(name).filter(|value| !value.is_null()));
            return default_column.map(text_of).ok_or_else(|| {
                let names = USUAL.map(|name| format!("`{name}`")).join(", ");
                let columns: Vec<String> = row.keys().map(|name| format!("`{name}`")).collect();
                let hint = format!("--column NAME selects one of its columns: {}", columns.join(", "));
                Error::new(Kind::Data, format!("the row has none of the usual columns of text: {names}")).hint(hint)
            });
        }
        let texts: Vec<String> = self.0.iter().map(|name| column(row, name).map(text_of)).collect::<Result<_>>()?;
        Ok(texts.join("\n"))
    }
}

/// A column by its name or its dotted path.
///
/// # Errors
/// [`Kind::Data`] for a column that the row does not have, with the nearest.
pub(crate) fn column<'a>(row: &'a Map<String, Json>, name: &str) -> Result<&'a Json> {
    find_column(row, name).ok_or_else(|| no_column(row, name))
}

/// The error for a column that the row does not have, with the nearest.
pub(super) fn no_column(row: &Map<String, Json>, name: &str) -> Error {
    Error::new(Kind::Data, format!("the row has no column `{name}`"))
        .about(Subject::Column(name.to_owned()))
        .hint(suggest(name, row.keys().map(String::as_str)))
}

/// The error for a column with another value than is wanted.
pub(super) fn wrong_column(name: &str, wanted: &str) -> Error {
    Error::new(Kind::Data, format!("the column `{name}` is not {wanted}")).about(Subject::Column(name.to_owned()))
}

pub(crate) fn find_column<'a>(row: &'a Map<String, Json>, name: &str) -> Option<&'a Json> {
    row.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        rest.split('.').try_fold(row.get(first)?, |value, name| value.get(name))
    })
}

/// The text of a value: for messages the contents without system messages, for other values their
/// JSON.
pub(crate) fn text_of(value: &Json) -> String {
    let content = |message: &Json| message.get("content").and_then(Json::as_str).map(str::to_owned);
    match value {
        Json::String(text) => text.clone(),
        Json::Null => String::new(),
        Json::Array(items) if !items.is_empty() && items.iter().all(|item| item.get("role").is_some()) => {
            let shown = items.iter().filter(|message| message["role"] != "system");
            shown.filter_map(content).collect::<Vec<String>>().join("\n")
        }
        other => other.to_string(),
    }
}

/// A text in lower case with single spaces. Punctuation stays: `2+3` and `2-3` are different
/// problems.
pub(crate) fn normalised(text: &str) -> String {
    text.to_lowercase().split_whitespace().collect::<Vec<&str>>().join(" ")
}

/// The words of a text in lower case, without punctuation. A character of a script without spaces
/// between words (Chinese, Japanese, Korean) is a word.
pub(crate) fn words(text: &str) -> Vec<String> {
    let (mut tokens, mut word) = (Vec::new(), String::new());
    for c in text.chars() {
        if is_ideograph(c) {
            if !word.is_empty() {
                tokens.push(std::mem::take(&mut word));
            }
            tokens.push(c.to_string());
        } else if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        } else if !word.is_empty() {
            tokens.push(std::mem::take(&mut word));
        }
    }
    if !word.is_empty() {
        tokens.push(word);
    }
    tokens
}

fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}')
}

/// A hash of words that is the same on every machine (FNV-1a, then a bit mixer).
pub(crate) fn hash(tokens: &[String]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for word in tokens {
        for byte in word.bytes().chain([0xff]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    mixed(hash)
}

/// The finaliser of SplitMix64: every bit of the result depends on every bit of the value.
pub(crate) fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn row(json: &Json) -> Map<String, Json> {
        json.as_object().unwrap().clone()
    }

    #[test]
    fn the_text_of_a_row_is_that_of_its_question() {
        let columns = TextColumns::default();
        let messages = json!([
            { "role": "system", "content": "Be brief." }, { "role": "user", "content": "Why?" },
            { "role": "assistant", "content": "So." },
        ]);
        assert_eq!(columns.text(&row(&json!({ "prompt": messages }))).unwrap(), "Why?\nSo.");
        assert_eq!(columns.text(&row(&json!({ "question": "Q", "problem": null }))).unwrap(), "Q");
        let chosen = TextColumns::new(&["a.b".to_owned(), "n".to_owned()]);
        assert_eq!(chosen.text(&row(&json!({ "a": { "b": "x" }, "n": 3 }))).unwrap(), "x\n3");
        let error = chosen.text(&row(&json!({ "a": {}, "n": 3 }))).unwrap_err();
        assert_eq!(error.message, "the row has no column `a.b`");
        assert!(columns.text(&row(&json!({ "x": 1 }))).unwrap_err().hint.unwrap().ends_with("`x`"));
    }

    #[test]
    fn words_ignore_case_and_punctuation() {
        assert_eq!(
            words("Ann's \"2nd\" RUN: 3.5km,\n越野跑!"),
            ["ann", "s", "2nd", "run", "3", "5km", "越", "野", "跑"]
        );
        assert_eq!(normalised("  What IS\n2+3? "), "what is 2+3?");
        let list = |text: &str| words(text);
        assert_eq!(hash(&list("a b")), hash(&list("A, b!")));
        assert_ne!(hash(&list("ab c")), hash(&list("a bc")));
    }
}
