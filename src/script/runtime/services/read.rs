//! Fields of requests that Lua tables write in a form of their own.

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;

/// A list. An empty Lua table is a list and a table.
pub(super) fn list<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    match Json::deserialize(deserializer)? {
        Json::Object(fields) if fields.is_empty() => Ok(Vec::new()),
        list => Vec::deserialize(list).map_err(D::Error::custom),
    }
}

/// A value as JSON text: Lua tables have no null and do not tell an empty list from a table.
pub(super) fn json_text<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| serde_json::from_str(&text).map_err(D::Error::custom)).transpose()
}

/// `{ { name, value }, … }` as `name=value`, the form of the command line.
pub(super) fn overrides<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let pairs: Vec<(String, Json)> = list(deserializer)?;
    let text = |(name, value): (String, Json)| match value {
        Json::String(text) => format!("{name}={text}"),
        other => format!("{name}={other}"),
    };
    Ok(pairs.into_iter().map(text).collect())
}
