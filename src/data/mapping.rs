//! Columns of published datasets, converted to those that recipes read: `problem` and `answer` of
//! mathematics, `question`, `answers` and `paragraphs` of question answering, `table` with `header`
//! and `rows`.

use serde_json::{Map, Value as Json, json};

use super::texts::{no_column, wrong_column as wrong};
use crate::answers::last_boxed;
use crate::error::{Error, Kind, Result};
use crate::json;

/// A conversion of a published row to the row that is written.
type Mapping = fn(&PublishedRow<'_>) -> Result<Map<String, Json>>;

/// The conversions by their names in catalog.json.
const MAPPINGS: [(&str, Mapping); 12] = [
    ("", |row| Ok(row.0.clone())),
    ("aime", aime),
    ("countdown", countdown),
    ("dapo", dapo),
    ("gsm8k", gsm8k),
    ("hotpotqa", hotpotqa),
    ("math_500", math_500),
    ("metamathqa", metamathqa),
    ("musique", musique),
    ("pasa", pasa),
    ("tabfact", tabfact),
    ("wikitablequestions", wikitablequestions),
];

/// Converts a row by the conversion of a name.
///
/// # Errors
/// [`Kind::Data`] for a column that is missing or has another type; [`Kind::Internal`] for an
/// unknown name.
pub(crate) fn convert(mapping: &str, row: &Map<String, Json>) -> Result<Map<String, Json>> {
    match MAPPINGS.iter().find(|(name, _)| *name == mapping) {
        Some((_, convert)) => convert(&PublishedRow(row)),
        None => Err(Error::new(Kind::Internal, format!("there is no conversion `{mapping}`"))),
    }
}

/// A row as published.
struct PublishedRow<'a>(&'a Map<String, Json>);

impl PublishedRow<'_> {
    fn get(&self, column: &str) -> Option<&Json> {
        self.0.get(column).filter(|value| !value.is_null())
    }

    /// A column that every row has.
    fn need(&self, column: &str) -> Result<&Json> {
        self.get(column).ok_or_else(|| no_column(self.0, column))
    }

    fn text(&self, column: &str) -> Result<&str> {
        let value = self.need(column)?;
        value.as_str().ok_or_else(|| wrong(column, "text"))
    }

    /// Text, or a number as text.
    fn plain(&self, column: &str) -> Result<String> {
        plain(self.need(column)?, column)
    }

    fn list(&self, column: &str) -> Result<&Vec<Json>> {
        self.need(column)?.as_array().ok_or_else(|| wrong(column, "a list"))
    }
}

/// Text, or a number as text.
fn plain(value: &Json, column: &str) -> Result<String> {
    match value {
        Json::String(text) => Ok(text.clone()),
        Json::Number(number) => Ok(number.to_string()),
        _ => Err(wrong(column, "text or a number")),
    }
}

/// The fields of a JSON object, without those that are null.
fn fields(object: Json) -> Map<String, Json> {
    let Json::Object(mut fields) = object else { return Map::new() };
    fields.retain(|_, value| !value.is_null());
    fields
}

/// `question`, and `answer` with the final answer after `####`.
fn gsm8k(row: &PublishedRow<'_>) -> Result<Map<String, Json>> {
    let solution = row.text("answer")?;
    let (_, last) = solution.rsplit_once("####").ok_or_else(|| wrong("answer", "a solution that ends with #### N"))?;
    let answer = last.trim().replace(',', "");
    Ok(fields(json!({ "problem": row.text("question")?, "answer": answer, "solution": solution })))
}

fn math_500(row: &PublishedRow<'_>) -> Result<Map<String, Json>> {
    Ok(fields(json!({
        "id": row.get("unique_id"),
        "problem": row.text("problem")?,
        "answer": row.plain("answer")?,
        "solution": row.get("solution"),
        "subject": row.get("subject"),
        "level": row.get("level"),
    })))
}

fn aime(row: &PublishedRow<'_>) -> Result<Map<String, Json>> {
    // The answers of AIME are whole numbers from 000 to 999.
    let answer = row.plain("answer")?;
    let answer = answer.trim();
    let is_whole = !answer.is_empty() && answer.chars().all(|c| c.is_ascii_digit());
    let answer = match answer.trim_start_matches('0') {
        _ if !is_whole => answer,
        "" => "0",
        digits => digits,
    };
    Ok(fields(json!({
        "id": row.plain("id").ok(),
        "problem": row.text("problem")?,
        "answer": answer,
        "solution": row.get("solution"),
    })))
}

/// The instruction around each problem of DAPO-Math-17k, which is for its own answer format.
const DAPO_BEFORE: &str = "Solve the following math problem step by step. The last line of your response should be of the form \
     Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n";
const DAPO_AFTER: &str = "\n\nRemember to put your answer on its own line after \"Answer:\".";

/// verl's columns; the problem is the prompt without its instruction.
fn dapo(row: &PublishedRow<'_>) -> Result<Map<String, Json>> {
    let last = row.list("prompt")?.iter().rfind(|message| message["role"] == "user");
    let content = last.and_then(|message| message["content"].as_str()).ok_or_else(|| wrong("prompt", "messages"))?;
    let problem = content.strip_prefix(DAPO_BEFORE).unwrap_or(content);
    let problem = problem.strip_suffix(DAPO_AFTER).unwrap_or(problem);
    let answer = plain(&row.need("reward_model")?["ground_truth"], "reward_model.ground_truth")?;
    Ok(fields(json!({ "problem": problem, "answer": answer })))
}

/// `query` and `response`, which ends with `The answer is: N`.
fn metamathqa(row: &PublishedRow<'_>) -> Result<Map<String, Json>> {
    let solution = row.text("response")?;
    let stated = solution.rsplit_once("The answer is:").map(|(_, answer)| answer.trim());
    let answer = stated.or_else(|| last_boxed(solution)).unwrap_or_default();
    Ok(fields(json!({
        "problem": row.text("query")?, "answer": answer, "solution": solution, "type": row.get("type"),
    })))
}

fn countdown(row: &PublishedRow<'_>) -> Result<Map<String, Json>> {
    Ok(fields(json!({ "target": row.need("target")?, "nums": row.list("nums")? })))
}

/// HotpotQA and 2WikiMultihopQA: `context` and `supporting_facts` as columns of lists, as lists of
/// pairs, or as JSON text of the latter.
fn hotpotqa(row: &PublishedRow<'_>) -> Result<Map<String, Json>> {
    let supporting: Vec<String> =
        pairs(row, "supporting_facts", "title", "sent_id")?.into_iter().map(|(title, _)| title).collect();
    let paragraph = |(title, sentences): (String, Json)| {
        let sentences: Vec<&str> = sentences.as_array().into_iter().flatten().filter_map(Json::as_str).collect();
        let text = sentences.concat();
        json!({ "title": title, "text": text.trim(), "is_supporting": supporting.contains(&title) })
    };
    let paragraphs: Vec<Json> = pairs(row, "context", "title", "sentences")?.into_iter().map(paragraph).collect();
    Ok(fields(json!({
        "id": row.get("id").or_else(|| row.get("_id")),
        "question": row.text("question")?,
        "answers": [row.text("answer")?],
        "type": row.get("type"),
        "level": row.get("level"),
        "paragraphs": paragraphs,
    })))
}

/// The pairs of a column `{ first = […], second = […] }`, or `[[first, second], …]`.
fn pairs(row: &PublishedRow<'_>, column: &str, first: &str, second: &str) -> Result<Vec<(String, Json)>> {
    let value = row.need(column)?;
    let parsed = value.as_str().map(|text| json::read(text.as_bytes())).transpose();
    let parsed = parsed.map_err(|_| wrong(column, "JSON"))?;
    let value = parsed.as_ref().unwrap_or(value);
    // `content` in some copies of 2WikiMultihopQA.
    let seconds = value.get(second).or_else(|| value.get("content"));
    if let (Some(firsts), Some(seconds)) = (value.get(first).and_then(Json::as_array), seconds.and_then(Json::as_array))
    {
        let titles = firsts.iter().map(|title| title.as_str().unwrap_or_default().to_owned());
        return Ok(titles.zip(seconds.iter().cloned()).collect());
    }
    let items = value.as_array().ok_or_else(|| wrong(column, "a list of pairs"))?;
    let pair = |item: &Json| Some((item.get(0)?.as_str()?.to_owned(), item.get(1)?.clone()));
    items.iter().map(|item| pair(item).ok_or_else(|| wrong(column, "a list of pairs"))).collect()
}

fn musique(row: &PublishedRow<'_>) -> Result<Map<String, Json>> {
    let mut answers = vec![Json::from(row.text("answer")?)];
    answers.extend(row.get("answer_aliases").and_then(Json::as_array).into_iter().flatten().cloned());
    let paragraph = |entry: &Json| json!({ "title": entry["title"], "text": entry["paragraph_text"], "is_supporting": entry["is_supporting"] });
    let paragraphs: Vec<Json> = row.list("paragraphs")?.iter().map(paragraph).collect();
    Ok(fields(json!({
        "id": row.get("id"), "question": row.text("question")?, "answers": answers, "paragraphs": paragraphs,
    })))
}

fn wikitablequestions(row: &PublishedRow<'_>) -> Result<Map<String, Json>> {
    let table = row.need("table")?;
    if !table["header"].is_array() || !table["rows"].is_array() {
        return Err(wrong("table", "a table with header and rows"));
    }
    Ok(fields(json!({
        "id": row.get("id"),
        "question": row.text("question")?,
        "answers": row.list("answers")?,
        "table": { "name": table["name"], "header": table["header"], "rows": table["rows"] },
    })))
}

/// `table_text` has one line per row, with cells separated by `#`; the first is the header.
fn tabfact(row: &PublishedRow<'_>) -> Result<Map<String, Json>> {
    let cells = |line: &str| line.split('#').map(str::trim).map(Json::from).collect::<Vec<Json>>();
    let mut lines = row.text("table_text")?.lines().filter(|line| !line.trim().is_empty());
    let header = lines.next().map(cells).ok_or_else(|| wrong("table_text", "a table"))?;
    let rows: Vec<Vec<Json>> = lines.map(cells).collect();
    let answer = match row.need("label")?.as_i64() {
        Some(1) => "true",
        Some(0) => "false",
        _ => return Err(wrong("label", "0 or 1")),
    };
    Ok(fields(json!({
        "id": row.plain("id").ok(),
        "question": row.text("statement")?,
        "answer": answer,
        "table": { "name": row.get("table_caption"), "header": header, "rows": rows },
    })))
}

/// PaSa's questions, with titles and arXiv ids of the papers that answer them.
fn pasa(row: &PublishedRow<'_>) -> Result<Map<String, Json>> {
    Ok(fields(json!({
        "id": row.get("qid"),
        "question": row.text("question")?,
        "answers": row.list("answer")?,
        "arxiv_ids": row.get("answer_arxiv_id"),
        "published_time": row.get("source_meta").and_then(|meta| meta.get("published_time")),
    })))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn mapped(mapping: Mapping, row: &Json) -> std::result::Result<Json, String> {
        mapping(&PublishedRow(row.as_object().unwrap())).map(Json::Object).map_err(|error| error.to_string())
    }

    #[test]
    fn every_mapping_of_the_catalogue_exists() {
        for dataset in &*crate::data::CATALOG {
            assert!(MAPPINGS.iter().any(|(name, _)| *name == dataset.mapping), "{}", dataset.name);
        }
    }

    #[test]
    fn mathematics_has_problem_and_answer() {
        let row = json!({ "question": "How many?", "answer": "3 * 500 = <<3*500=1500>>1500\n#### 1,500" });
        assert_eq!(mapped(gsm8k, &row).unwrap()["answer"], "1500");
        let row = json!({ "id": 60, "problem": "p", "answer": "025", "solution": null, "year": "2024" });
        assert_eq!(mapped(aime, &row).unwrap(), json!({ "id": "60", "problem": "p", "answer": "25" }));
        assert_eq!(mapped(aime, &json!({ "problem": "p", "answer": "000" })).unwrap()["answer"], "0");
        assert_eq!(mapped(aime, &json!({ "problem": "p", "answer": "336^\\circ" })).unwrap()["answer"], "336^\\circ");
        let prompt = format!("{DAPO_BEFORE}What is 1+1?{DAPO_AFTER}");
        let row = json!({ "prompt": [{ "role": "user", "content": prompt }], "reward_model": { "ground_truth": "2" } });
        assert_eq!(mapped(dapo, &row).unwrap(), json!({ "problem": "What is 1+1?", "answer": "2" }));
        let row = json!({ "query": "q", "response": "so x.\nThe answer is: \\frac{1}{2}", "type": "MATH_FOBAR" });
        assert_eq!(mapped(metamathqa, &row).unwrap()["answer"], "\\frac{1}{2}");
    }

    #[test]
    fn the_forms_of_multi_hop_contexts_give_the_same_paragraphs() {
        let columns = json!({
            "id": "a", "question": "q", "answer": "yes", "type": "bridge", "level": "easy",
            "supporting_facts": { "title": ["T"], "sent_id": [0] },
            "context": { "title": ["T", "U"], "sentences": [["One.", " Two."], ["Three."]] },
        });
        let text = json!({
            "_id": "a", "question": "q", "answer": "yes", "type": "bridge", "level": "easy",
            "supporting_facts": "[[\"T\", 0]]",
            "context": "[[\"T\", [\"One.\", \" Two.\"]], [\"U\", [\"Three.\"]]]",
        });
        let expected = json!({
            "id": "a", "question": "q", "answers": ["yes"], "type": "bridge", "level": "easy",
            "paragraphs": [
                { "title": "T", "text": "One. Two.", "is_supporting": true },
                { "title": "U", "text": "Three.", "is_supporting": false },
            ],
        });
        assert_eq!(mapped(hotpotqa, &columns).unwrap(), expected);
        assert_eq!(mapped(hotpotqa, &text).unwrap(), expected);
    }

    #[test]
    fn tables_have_header_and_rows() {
        let row = json!({
            "id": 3, "statement": "ann won", "label": 1, "table_caption": "race",
            "table_text": "name#time\nann#9\nbob#10\n",
        });
        let table = json!({ "name": "race", "header": ["name", "time"], "rows": [["ann", "9"], ["bob", "10"]] });
        assert_eq!(
            mapped(tabfact, &row).unwrap(),
            json!({ "id": "3", "question": "ann won", "answer": "true", "table": table })
        );
        assert!(mapped(tabfact, &json!({ "table_text": "a", "label": 2 })).unwrap_err().contains("`label`"));
    }

    #[test]
    fn a_missing_column_is_named_with_the_nearest() {
        insta::assert_snapshot!(mapped(gsm8k, &json!({ "qestion": "q", "answer": "#### 1" })).unwrap_err(), @"
        the row has no column `question`
          hint: did you mean `qestion`?
        ");
    }
}
