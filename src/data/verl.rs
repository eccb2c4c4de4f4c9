//! Rows in verl's columns, and back.
//!
//! verl reads `data_source` (which selects its scoring function), `prompt` (messages), `ability`,
//! `reward_model` (`style`, `ground_truth`) and `extra_info`. A row of r1 has `problem` and
//! `answer`; messages that are more than one question are in `messages`. The other columns of a row
//! are in `extra_info`.
//!
//! The conversion is exact in both directions, up to the order of columns, unless options change a
//! row (a system message, answers as text). Columns whose names have a meaning in r1 ([`RESERVED`])
//! stay in `extra_info`. What the conversion to verl adds to a row is noted in `extra_info.r1`
//! ([`Note`]), so that the way back removes it.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value as Json, json};

use super::texts::{no_column, wrong_column as wrong};
use crate::error::{Error, Kind, Result};

/// Columns of r1 that the conversion itself makes.
const RESERVED: [&str; 10] = [
    "problem",
    "question",
    "prompt",
    "messages",
    "answer",
    "answers",
    "data_source",
    "ability",
    "reward_model",
    "extra_info",
];

/// Columns of verl.
const COLUMNS: [&str; 5] = ["data_source", "prompt", "ability", "reward_model", "extra_info"];

/// The field of `extra_info` with the [`Note`] of a row.
const NOTE: &str = "r1";

/// What the conversion of a row of r1 has added and renamed.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    /// Columns that the row did not have, with their values. A value that was changed since stays.
    #[serde(default, skip_serializing_if = "Map::is_empty", deserialize_with = "or_default")]
    added: Map<String, Json>,
    /// The column of the question, if not `problem`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    question: Option<String>,
    /// The column of the messages, if not `messages`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    messages: Option<String>,
    /// The column of the answer, if not `answer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answer: Option<String>,
}

/// Null, as Parquet stores a missing field, is the default.
fn or_default<'de, D: Deserializer<'de>>(reader: D) -> Result<Map<String, Json>, D::Error> {
    Option::<Map<String, Json>>::deserialize(reader).map(Option::unwrap_or_default)
}

/// The style of a reward that is computed by a rule; verl's default.
const RULE: &str = "rule";
/// The field of a ground truth with a list of accepted answers.
const TARGET: &str = "target";

/// How rows become verl's.
#[derive(Debug, Default)]
pub(crate) struct VerlOptions {
    /// `data_source` of rows that have none.
    pub(crate) data_source: String,
    /// `ability` of rows that have none.
    pub(crate) ability: String,
    /// The column of the question or the messages; the usual ones if `None`.
    pub(crate) prompt: Option<String>,
    /// The column of the answer; `answer` if `None`.
    pub(crate) answer: Option<String>,
    /// A system message before a question.
    pub(crate) system: Option<String>,
    /// Ground truths are written as text.
    pub(crate) text: bool,
    /// `extra_info.split` of rows that have none.
    pub(crate) split: Option<String>,
}

/// Whether a row has verl's columns.
pub(crate) fn is_verl(row: &Map<String, Json>) -> bool {
    row.get("prompt").is_some_and(Json::is_array) && row.get("reward_model").is_some_and(Json::is_object)
}

/// A row in verl's columns. `index` is its number, for rows without `extra_info.index`.
///
/// # Errors
/// [`Kind::Data`] for a row without a question or without an answer, with the nearest column.
pub(crate) fn to_verl(mut row: Map<String, Json>, index: u64, options: &VerlOptions) -> Result<Map<String, Json>> {
    let mut note = Note::default();
    let prompt = prompt(&mut row, options, &mut note)?;
    let wanted = options.answer.as_deref().unwrap_or("answer");
    let reward_fields = match row.shift_remove("reward_model") {
        Some(Json::Object(fields)) => Some(fields),
        Some(_) => return Err(wrong("reward_model", "an object")),
        None => None,
    };
    let mut answer = row.shift_remove(wanted);
    if answer.is_none() && options.answer.is_none() {
        // Accepted answers, as verl's question answering reads them.
        answer = row.shift_remove("answers").map(|answers| json!({ (TARGET): answers }));
    }
    if options.text {
        answer = answer.map(as_text);
    }
    if answer.is_none() && reward_fields.is_none() {
        return Err(absent(wanted, &row, "--answer COLUMN names another"));
    }
    note.answer = options.answer.clone().filter(|name| name != "answer");
    let mut reward_model = reward_fields.unwrap_or_else(|| Map::from_iter([("style".to_owned(), RULE.into())]));
    if let Some(answer) = answer {
        reward_model.insert("ground_truth".to_owned(), answer);
    }
    let mut add = |name: &str, value: Json| {
        note.added.insert(name.to_owned(), value.clone());
        value
    };
    let mut take = |name: &str, default: &str| row.shift_remove(name).unwrap_or_else(|| add(name, default.into()));
    let data_source = take("data_source", &options.data_source);
    let ability = take("ability", &options.ability);
    let mut extra = match row.shift_remove("extra_info") {
        Some(Json::Object(fields)) => fields,
        Some(_) => return Err(wrong("extra_info", "an object")),
        None => Map::new(),
    };
    for (name, value) in row {
        extra.entry(name).or_insert(value);
    }
    if let Some(split) = &options.split {
        extra.entry("split").or_insert_with(|| add("split", split.as_str().into()));
    }
    extra.entry("index").or_insert_with(|| add("index", index.into()));
    let note = serde_json::to_value(note).map_err(|error| Error::new(Kind::Internal, error.to_string()))?;
    if note.as_object().is_some_and(|note| !note.is_empty()) {
        extra.entry(NOTE).or_insert(note);
    }
    let columns = [data_source, prompt, ability, Json::Object(reward_model), Json::Object(extra)];
    Ok(COLUMNS.iter().map(|name| (*name).to_owned()).zip(columns).collect())
}

fn prompt(row: &mut Map<String, Json>, options: &VerlOptions, note: &mut Note) -> Result<Json> {
    let names = ["messages", "prompt", "problem", "question"];
    let name = match &options.prompt {
        Some(name) => name.as_str(),
        None => {
            names.into_iter().find(|name| row.get(*name).is_some_and(|value| !value.is_null())).unwrap_or("problem")
        }
    };
    let question = match row.shift_remove(name) {
        Some(messages @ Json::Array(_)) => {
            note.messages = Some(name.to_owned()).filter(|name| name != "messages");
            return Ok(messages);
        }
        Some(Json::String(text)) => {
            note.question = Some(name.to_owned()).filter(|name| name != "problem");
            text
        }
        Some(Json::Null) | None => {
            let mut error = absent(name, row, "--prompt COLUMN names another");
            if options.prompt.is_none() {
                let [first @ .., last] = names.map(|name| format!("`{name}`"));
                error.message = format!("the row has no question: {} and {last} are missing or null", first.join(", "));
            }
            return Err(error);
        }
        Some(_) => return Err(wrong(name, "text or messages")),
    };
    let system = options.system.iter().map(|text| json!({ "role": "system", "content": text }));
    Ok(system.chain([json!({ "role": "user", "content": question })]).collect())
}

fn as_text(value: Json) -> Json {
    match value {
        Json::Number(number) => number.to_string().into(),
        Json::Bool(value) => value.to_string().into(),
        other => other,
    }
}

/// A row of r1 from verl's columns.
///
/// # Errors
/// [`Kind::Data`] for a row without verl's columns, with the nearest column.
pub(crate) fn from_verl(mut row: Map<String, Json>) -> Result<Map<String, Json>> {
    let messages = match row.shift_remove("prompt") {
        Some(Json::Array(messages)) => messages,
        Some(_) => return Err(wrong("prompt", "a list of messages")),
        None => {
            return Err(absent(
                "prompt",
                &row,
                "verl's columns are data_source, prompt, ability, reward_model, extra_info",
            ));
        }
    };
    let note = take_note(&mut row);
    let mut restored = Map::new();
    match question(&messages) {
        Some(text) => restored.insert(note.question.unwrap_or_else(|| "problem".to_owned()), text.into()),
        None => restored.insert(note.messages.unwrap_or_else(|| "messages".to_owned()), messages.into()),
    };
    if let Some(reward_model) = row.shift_remove("reward_model") {
        let Json::Object(mut fields) = reward_model else { return Err(wrong("reward_model", "an object")) };
        let truth = fields.shift_remove("ground_truth");
        let has_answer = truth.is_some();
        match truth {
            Some(Json::Object(mut truth)) if truth.len() == 1 && truth.get(TARGET).is_some_and(Json::is_array) => {
                restored.extend(truth.shift_remove(TARGET).map(|answers| ("answers".to_owned(), answers)));
            }
            Some(answer) => drop(restored.insert(note.answer.unwrap_or_else(|| "answer".to_owned()), answer)),
            None => {}
        }
        let is_usual = fields.len() == 1 && fields.get("style").is_some_and(|style| style == RULE);
        if !is_usual || !has_answer {
            restored.insert("reward_model".to_owned(), fields.into());
        }
    }
    for name in ["data_source", "ability"] {
        restored.extend(row.shift_remove(name).map(|value| (name.to_owned(), value)));
    }
    let mut rest = Map::new();
    if let Some(extra) = row.shift_remove("extra_info") {
        let Json::Object(fields) = extra else { return Err(wrong("extra_info", "an object")) };
        for (name, value) in fields {
            let stays = RESERVED.contains(&name.as_str()) || row.contains_key(&name);
            if stays { &mut rest } else { &mut restored }.insert(name, value);
        }
    }
    // Columns that are not verl's.
    restored.extend(row);
    if !rest.is_empty() {
        restored.insert("extra_info".to_owned(), rest.into());
    }
    Ok(restored)
}

/// Takes the note of a conversion out of a row, with the columns that it added.
fn take_note(row: &mut Map<String, Json>) -> Note {
    let Some(Json::Object(extra)) = row.get_mut("extra_info") else { return Note::default() };
    let Some(note) = extra.get(NOTE).and_then(|note| Note::deserialize(note).ok()) else { return Note::default() };
    extra.shift_remove(NOTE);
    for (name, value) in &note.added {
        let of_row = ["data_source", "ability"].contains(&name.as_str());
        let Some(fields) =
            (if of_row { Some(&mut *row) } else { row.get_mut("extra_info").and_then(Json::as_object_mut) })
        else {
            continue;
        };
        if fields.get(name) == Some(value) {
            fields.shift_remove(name);
        }
    }
    note
}

/// The text of a conversation that is one question.
fn question(messages: &[Json]) -> Option<&str> {
    let [message] = messages else { return None };
    let fields = message.as_object().filter(|fields| fields.len() == 2 && message["role"] == "user")?;
    fields.get("content")?.as_str()
}

fn absent(column: &str, row: &Map<String, Json>, hint: &str) -> Error {
    let error = no_column(row, column);
    let nearest = error.hint.unwrap_or_default();
    Error { hint: Some(format!("{nearest}; {hint}")), ..error }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn object(json: Json) -> Map<String, Json> {
        match json {
            Json::Object(fields) => fields,
            _ => Map::new(),
        }
    }

    #[test]
    fn rows_become_those_of_verl_and_return() {
        let row = object(json!({ "problem": "1+1?", "answer": "2", "level": 3, "data_source": "openai/gsm8k" }));
        let options =
            VerlOptions { ability: "math".to_owned(), split: Some("train".to_owned()), ..VerlOptions::default() };
        let verl = to_verl(row.clone(), 7, &options).unwrap();
        let expected = json!({
            "data_source": "openai/gsm8k",
            "prompt": [{ "role": "user", "content": "1+1?" }],
            "ability": "math",
            "reward_model": { "style": "rule", "ground_truth": "2" },
            "extra_info": {
                "level": 3, "split": "train", "index": 7,
                "r1": { "added": { "ability": "math", "split": "train", "index": 7 } },
            },
        });
        assert_eq!(Json::Object(verl.clone()), expected);
        assert!(is_verl(&verl));
        assert_eq!(from_verl(verl.clone()).unwrap(), row);
        // A value that was changed since is not what the conversion added.
        let mut changed = verl;
        changed["ability"] = "algebra".into();
        assert_eq!(from_verl(changed).unwrap()["ability"], "algebra");
        // Parquet stores the fields of other rows as null.
        let mut stored = to_verl(row.clone(), 7, &options).unwrap();
        stored["extra_info"]["r1"]["question"] = Json::Null;
        stored["extra_info"]["r1"]["added"]["data_source"] = Json::Null;
        assert_eq!(from_verl(stored).unwrap(), row);
    }

    #[test]
    fn accepted_answers_are_the_target_of_verl() {
        let row = object(json!({ "question": "Who?", "answers": ["Ann", "A."] }));
        let verl = to_verl(row, 0, &VerlOptions::default()).unwrap();
        assert_eq!(verl["reward_model"]["ground_truth"], json!({ "target": ["Ann", "A."] }));
        assert_eq!(Json::Object(from_verl(verl).unwrap()), json!({ "question": "Who?", "answers": ["Ann", "A."] }));
        // A column of the row with the name of the note stays.
        let row = object(json!({ "problem": "Who?", "answer": "Ann", "r1": { "added": 1 } }));
        assert_eq!(from_verl(to_verl(row, 0, &VerlOptions::default()).unwrap()).unwrap()["r1"], json!({ "added": 1 }));
    }

    #[test]
    fn missing_columns_are_named_with_the_nearest() {
        let options = VerlOptions::default();
        let error = |row: Json| to_verl(object(row), 0, &options).unwrap_err().to_string();
        insta::assert_snapshot!(error(json!({ "problems": "x", "answer": 1 })), @"
        the row has no question: `messages`, `prompt`, `problem` and `question` are missing or null
          hint: did you mean `problems`?; --prompt COLUMN names another
        ");
        insta::assert_snapshot!(error(json!({ "problem": "x", "anwser": 1 })), @"
        the row has no column `answer`
          hint: did you mean `anwser`?; --answer COLUMN names another
        ");
        insta::assert_snapshot!(error(json!({ "problem": 4, "answer": 1 })), @"the column `problem` is not text or messages");
        let error = from_verl(object(json!({ "promt": [], "reward_model": {} }))).unwrap_err();
        assert!(error.hint.unwrap().starts_with("did you mean `promt`?"));
    }

    fn value() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Json::from),
            any::<i64>().prop_map(Json::from),
            "[a-zä ]{0,8}".prop_map(Json::from),
        ];
        leaf.prop_recursive(2, 8, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Json::from),
                prop::collection::btree_map("[a-z]{1,4}", inner, 0..3)
                    .prop_map(|fields| Json::Object(fields.into_iter().collect())),
            ]
        })
    }

    fn columns(names: &'static str) -> impl Strategy<Value = Map<String, Json>> {
        prop::collection::btree_map(names, value(), 0..4).prop_map(|fields| fields.into_iter().collect())
    }

    proptest! {
        #[test]
        fn verl_rows_are_unchanged_by_a_round_trip(
            user in "[a-z ]{0,12}", system in prop::option::of("[a-z]{0,5}"), truth in prop::option::of(value()),
            style in prop::option::of("rule|model"), extra in columns("[a-z]{1,6}|answer|problem|messages"),
            reward in columns("[a-z]{1,3}"),
        ) {
            let mut prompt: Vec<Json> = system.iter().map(|text| json!({ "role": "system", "content": text })).collect();
            prompt.push(json!({ "role": "user", "content": user }));
            let mut reward_model = reward;
            reward_model.extend(style.map(|style| ("style".to_owned(), Json::from(style))));
            reward_model.extend(truth.map(|truth| ("ground_truth".to_owned(), truth)));
            let mut extra = extra;
            extra.insert("index".to_owned(), 3.into());
            let row = object(json!({
                "data_source": "d", "prompt": prompt, "ability": "a", "reward_model": reward_model, "extra_info": extra,
            }));
            let back = to_verl(from_verl(row.clone()).unwrap(), 0, &VerlOptions::default()).unwrap();
            prop_assert_eq!(back, row);
        }

        #[test]
        fn rows_of_r1_are_unchanged_by_a_round_trip(
            problem in "[a-z ]{0,12}", answer in value(), more in columns("[a-z]{1,6}|index|split"),
            question in "problem|question|prompt", kept_column in prop::option::of("data_source|ability"),
            named in prop::option::of("target|gold"),
        ) {
            let mut row = more;
            row.retain(|name, _| !RESERVED.contains(&name.as_str()) && name != "answers" && name != NOTE);
            row.extend(kept_column.map(|name| (name, "d".into())));
            row.insert(question, problem.into());
            row.insert(named.clone().unwrap_or_else(|| "answer".to_owned()), answer);
            let options = VerlOptions { answer: named, split: Some("train".to_owned()), ..VerlOptions::default() };
            let verl = to_verl(row.clone(), 0, &options).unwrap();
            prop_assert_eq!(from_verl(verl).unwrap(), row);
        }
    }
}
