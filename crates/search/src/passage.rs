//! A passage, and its construction from a row of a corpus.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use r1_base::error::{Error, Kind, Result, nearest, suggest};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Passage {
    pub id: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    pub text: String,
    /// The other columns of its row.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub columns: Map<String, Json>,
}

impl Passage {
    /// Title and text in the layout of Search-R1's and FlashRAG's corpora: the title in quotes on
    /// the first line.
    pub fn contents(&self) -> String {
        if self.title.is_empty() { self.text.clone() } else { format!("\"{}\"\n{}", self.title, self.text) }
    }
}

/// The columns of id, title and text. The defaults are the names that corpora commonly use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PassageFields {
    pub id: Option<String>,
    pub title: Option<String>,
    pub text: Option<String>,
    /// Ids are row numbers from 0.
    pub number_rows: bool,
}

/// Columns of ids: `_id` in BEIR.
const IDS: [&str; 2] = ["id", "_id"];
const TITLE: &str = "title";
const TEXT: &str = "text";
/// Title and text in one column, as in [`Passage::contents`].
const CONTENTS: &str = "contents";

impl PassageFields {
    /// The passage of a row, number `row` from 0.
    ///
    /// # Errors
    /// [`Kind::Data`], without a place, for a missing column or one of another type.
    pub fn passage(&self, row: u64, mut columns: Map<String, Json>) -> Result<Passage> {
        let id = if self.number_rows { row.to_string() } else { id(self.take_id(&mut columns)?)? };
        let title = match &self.title {
            Some(name) => text_of(name, take(&mut columns, name, "--title-field")?)?,
            None => columns.shift_remove(TITLE).map_or(Ok(String::new()), |title| text_of(TITLE, title))?,
        };
        let (title, text) = match &self.text {
            Some(name) => (title, text_of(name, take(&mut columns, name, "--text-field")?)?),
            None => match (columns.shift_remove(TEXT), columns.shift_remove(CONTENTS)) {
                (Some(text), contents) => {
                    columns.extend(contents.map(|contents| (CONTENTS.to_owned(), contents)));
                    (title, text_of(TEXT, text)?)
                }
                (None, Some(contents)) => split_contents(title, &text_of(CONTENTS, contents)?),
                (None, None) => return Err(missing(TEXT, &columns, "--text-field")),
            },
        };
        Ok(Passage { id, title, text, columns })
    }

    fn take_id(&self, columns: &mut Map<String, Json>) -> Result<Json> {
        match &self.id {
            Some(name) => take(columns, name, "--id-field"),
            None => IDS.iter().find_map(|name| columns.shift_remove(*name)).ok_or_else(|| {
                let error = missing(IDS[0], columns, "--id-field");
                let hint = error.hint.clone().unwrap_or_default();
                Error { hint: Some(format!("{hint}; --number-rows uses row numbers as ids")), ..error }
            }),
        }
    }
}

fn take(columns: &mut Map<String, Json>, name: &str, flag: &str) -> Result<Json> {
    columns.shift_remove(name).ok_or_else(|| missing(name, columns, flag))
}

fn missing(name: &str, columns: &Map<String, Json>, flag: &str) -> Error {
    let names_of_columns = columns.keys().map(String::as_str);
    let near = !nearest(name, names_of_columns.clone()).is_empty();
    let names = suggest(name, names_of_columns);
    let hint = if near { names } else { format!("{names}; {flag} NAME names the column") };
    Error::new(Kind::Data, format!("the row has no column `{name}`")).hint(hint)
}

fn id(value: Json) -> Result<String> {
    let wrong =
        |what: &str| Err(Error::new(Kind::Data, format!("the id is {what}; it must be text or a whole number")));
    match value {
        Json::String(id) if id.is_empty() => wrong("empty"),
        Json::String(id) if id.len() > 1024 => wrong("longer than 1024 bytes"),
        Json::String(id) => Ok(id),
        Json::Number(number) if !number.is_f64() => Ok(number.to_string()),
        other => wrong(&kind(&other)),
    }
}

/// Text, a list of texts (joined by spaces), or null.
fn text_of(name: &str, value: Json) -> Result<String> {
    let wrong = |what: String| {
        let why = format!("the column `{name}` is {what}; it must be text, or a list of texts");
        Err(Error::new(Kind::Data, why))
    };
    match value {
        Json::String(text) => Ok(text),
        Json::Null => Ok(String::new()),
        Json::Array(items) => {
            let texts: Option<Vec<&str>> = items.iter().map(Json::as_str).collect();
            texts.map_or_else(|| wrong("a list with values that are not text".to_owned()), |texts| Ok(texts.join(" ")))
        }
        other => wrong(kind(&other)),
    }
}

fn kind(value: &Json) -> String {
    match value {
        Json::Null => "null".to_owned(),
        Json::Bool(truth) => truth.to_string(),
        Json::Number(number) => format!("the number {number}"),
        Json::String(_) => "text".to_owned(),
        Json::Array(_) => "a list".to_owned(),
        Json::Object(_) => "an object".to_owned(),
    }
}

/// Title and text of `"Title"\nText`. A separate title column has precedence.
pub(super) fn split_contents(title: String, contents: &str) -> (String, String) {
    match contents.split_once('\n') {
        Some((first, rest)) if title.is_empty() => {
            let first = first.trim();
            let bare = first.strip_prefix('"').and_then(|first| first.strip_suffix('"')).unwrap_or(first);
            (bare.to_owned(), rest.to_owned())
        }
        _ => (title, contents.to_owned()),
    }
}
