//! Dataset columns that select the environment, tools and arguments of a task: the columns of
//! Agent-R1 and verl, and their short names `env`, `tools`, `env_kwargs`, `tools_kwargs`,
//! `agent_name`.

use serde_json::{Map, Value as Json, json};

use crate::error::{Error, Kind, Subject};
use crate::json;

/// Agent flows of Agent-R1 and verl that correspond to an environment's own loop; they name no
/// environment.
pub(crate) const FLOWS: [&str; 4] = [SINGLE_STEP, SINGLE_TURN, "agent_env_loop", "tool_agent"];

/// Flows of one prompt and one response.
const SINGLE_STEP: &str = "single_step_agent";
const SINGLE_TURN: &str = "single_turn_agent";

/// Columns with tables, which Parquet files often store as JSON text.
const TABLES: [&str; 2] = ["env_kwargs", "tools_kwargs"];

/// Entries of `env_kwargs` that select the environment and its tools; the others are arguments of
/// `reset`.
const CHOOSING: [&str; 4] = ["env_type", "tools", "tools_kwargs", "tool_format"];

/// The environment columns of a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct EnvColumns {
    /// Columns that may name an environment, in order of precedence.
    pub(crate) names: Vec<(&'static str, String)>,
    /// Names of the tools shown to the policy; `None` for all.
    pub(crate) tools: Option<Vec<String>>,
    /// Arguments of `reset`.
    pub(crate) kwargs: Map<String, Json>,
    /// Arguments of tools, by tool name.
    pub(crate) tool_kwargs: Map<String, Json>,
    /// The task has one prompt and one response.
    pub(crate) single_step: bool,
}

/// A column with an invalid value.
#[derive(Debug, thiserror::Error)]
#[error("the column `{column}` {problem}")]
pub(crate) struct InvalidColumn {
    /// `env_kwargs`, `tools_kwargs.grade`
    pub(crate) column: String,
    problem: String,
}

impl From<InvalidColumn> for Error {
    fn from(invalid: InvalidColumn) -> Self {
        Self::new(Kind::Data, invalid.to_string()).about(Subject::Column(invalid.column))
    }
}

impl EnvColumns {
    /// Reads the columns of a task.
    ///
    /// # Errors
    /// The first invalid column.
    pub(crate) fn read(task: &Json) -> Result<Self, InvalidColumn> {
        let mut kwargs = table(task.get("env_kwargs"), "env_kwargs")?;
        let text = |value: Option<&Json>| Some(value?.as_str()?.to_owned()).filter(|text| !text.is_empty());
        let mut read = Self::default();
        let names = [
            ("env", text(task.get("env"))),
            ("env_kwargs.env_type", text(kwargs.get("env_type"))),
            ("agent_name", text(task.get("agent_name"))),
        ];
        read.names = names.into_iter().filter_map(|(column, name)| Some((column, name?))).collect();
        read.single_step = read.names.iter().any(|(_, name)| [SINGLE_STEP, SINGLE_TURN].contains(&name.as_str()));
        read.tools = tool_names(task.get("tools")).or_else(|| tool_names(kwargs.get("tools")));
        let extra = task.get("extra_info").and_then(|extra| extra.get("tools_kwargs"));
        for (values, column) in [
            (extra, "extra_info.tools_kwargs"),
            (kwargs.get("tools_kwargs"), "env_kwargs.tools_kwargs"),
            (task.get("tools_kwargs"), "tools_kwargs"),
        ] {
            for (tool, values) in table(values, column)? {
                read.tool_kwargs.insert(tool.clone(), Json::Object(arguments(&values, column, &tool)?));
            }
        }
        kwargs.retain(|name, _| !CHOOSING.contains(&name.as_str()));
        read.kwargs = kwargs;
        Ok(read)
    }

    /// Only the environment columns, from which [`EnvColumns::read`] reads the same; null without
    /// such columns.
    pub(crate) fn of(task: &Json) -> Json {
        let mut columns = Map::new();
        for name in ["env", "agent_name", "tools", "env_kwargs", "tools_kwargs"] {
            if let Some(value) = task.get(name).filter(|value| !value.is_null()) {
                columns.insert(name.to_owned(), value.clone());
            }
        }
        if let Some(value) = task.get("extra_info").and_then(|extra| extra.get("tools_kwargs")) {
            columns.insert("extra_info".to_owned(), json!({ "tools_kwargs": value }));
        }
        if columns.is_empty() { Json::Null } else { Json::Object(columns) }
    }
}

/// Decodes the JSON text of a row's table columns, for the script.
///
/// # Errors
/// The column that is not a table.
pub(crate) fn decode(row: &mut Json) -> Result<(), InvalidColumn> {
    let Some(fields) = row.as_object_mut() else { return Ok(()) };
    for name in TABLES {
        if let Some(value) = fields.get_mut(name).filter(|value| value.is_string()) {
            *value = Json::Object(table(Some(value), name)?);
        }
    }
    let extra = fields.get_mut("extra_info").and_then(|extra| extra.get_mut("tools_kwargs"));
    if let Some(value) = extra.filter(|value| value.is_string()) {
        *value = Json::Object(table(Some(value), "extra_info.tools_kwargs")?);
    }
    Ok(())
}

/// A table, or its JSON text. Null, empty text and an empty list are an empty table.
fn table(value: Option<&Json>, column: &str) -> Result<Map<String, Json>, InvalidColumn> {
    let invalid = |problem: &str| Err(InvalidColumn { column: column.to_owned(), problem: problem.to_owned() });
    match value {
        None | Some(Json::Null) => Ok(Map::new()),
        Some(Json::Object(fields)) => Ok(fields.clone()),
        Some(Json::Array(items)) if items.is_empty() => Ok(Map::new()),
        Some(Json::String(text)) if text.trim().is_empty() => Ok(Map::new()),
        Some(Json::String(text)) => match json::read(text.as_bytes()) {
            Ok(Json::Object(fields)) => Ok(fields),
            Ok(Json::Null) => Ok(Map::new()),
            Ok(_) => invalid("must hold a JSON object"),
            Err(error) => invalid(&format!("is not JSON: {error}")),
        },
        Some(_) => invalid("must hold a table or its JSON text"),
    }
}

/// The arguments of one tool. verl groups them by phase: `create_kwargs`, `execute_kwargs` …
fn arguments(column_value: &Json, column: &str, tool: &str) -> Result<Map<String, Json>, InvalidColumn> {
    let column = format!("{column}.{tool}");
    let mut merged = table(Some(column_value), &column)?;
    for stage in ["create_kwargs", "execute_kwargs", "calc_reward_kwargs", "release_kwargs"] {
        if let Some(inner) = merged.remove(stage) {
            merged.extend(table(Some(&inner), &format!("{column}.{stage}"))?);
        }
    }
    Ok(merged)
}

/// A list of names or of OpenAI schemas; other values belong to the script.
fn tool_names(value: Option<&Json>) -> Option<Vec<String>> {
    let name = |item: &Json| {
        let function = item.get("function").unwrap_or(item);
        function.as_str().or_else(|| function.get("name")?.as_str()).map(str::to_owned)
    };
    value?.as_array()?.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_of_agent_r1_and_verl_are_read() {
        let task = json!({
            "agent_name": "agent_env_loop",
            "env_kwargs": "{\"env_type\": \"tool\", \"tools\": [\"grade\"], \"difficulty\": 3, \
                            \"tools_kwargs\": {\"grade\": {\"truth\": \"4\"}}}",
            "extra_info": {"tools_kwargs": {"grade": {"create_kwargs": {"truth": "3", "split": "train"}}}},
        });
        let read = EnvColumns::read(&task).unwrap();
        assert_eq!(
            read.names,
            [("env_kwargs.env_type", "tool".to_owned()), ("agent_name", "agent_env_loop".to_owned())]
        );
        assert_eq!(read.tools, Some(vec!["grade".to_owned()]));
        assert_eq!(Json::Object(read.kwargs.clone()), json!({"difficulty": 3}));
        // The closer column replaces the other one entirely.
        assert_eq!(Json::Object(read.tool_kwargs.clone()), json!({"grade": {"truth": "4"}}));
        assert!(!read.single_step);
        assert_eq!(EnvColumns::read(&EnvColumns::of(&task)).unwrap(), read);
        assert!(EnvColumns::read(&json!({"agent_name": "single_step_agent"})).unwrap().single_step);
        assert_eq!(EnvColumns::of(&json!({"problem": "x", "extra_info": {"index": 1}})), Json::Null);
        let schema = json!({"tools": [{"type": "function", "function": {"name": "grade"}}]});
        assert_eq!(EnvColumns::read(&schema).unwrap().tools, Some(vec!["grade".to_owned()]));
        assert_eq!(EnvColumns::read(&json!({"tools": {"a": 1}})).unwrap().tools, None);
    }

    #[test]
    fn environment_columns_that_are_not_tables_are_refused() {
        let why = |task: Json| EnvColumns::read(&task).unwrap_err().to_string();
        assert!(why(json!({"env_kwargs": "{"})).starts_with("the column `env_kwargs` is not JSON"));
        assert_eq!(why(json!({"tools_kwargs": 4})), "the column `tools_kwargs` must hold a table or its JSON text");
        assert_eq!(
            why(json!({"tools_kwargs": {"grade": "[]"}})),
            "the column `tools_kwargs.grade` must hold a JSON object"
        );
        let error = Error::from(EnvColumns::read(&json!({"tools_kwargs": 4})).unwrap_err());
        assert_eq!(error.subject, Some(Box::new(Subject::Column("tools_kwargs".to_owned()))));
        let mut row = json!({"env_kwargs": "{\"a\": 1}", "tools_kwargs": ""});
        decode(&mut row).unwrap();
        assert_eq!(row, json!({"env_kwargs": {"a": 1}, "tools_kwargs": {}}));
    }
}
