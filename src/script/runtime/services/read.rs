//! Requests from Lua tables: errors name the field, and some fields have a form of their own.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{DeserializeOwned, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;
use serde_path_to_error::Segment;

use crate::error::Kind;
use crate::schema::join;

/// A request from the table of its fields.
///
/// # Errors
/// [`Kind::Script`] names the invalid field: `options.groups`, `examples[2].role`.
pub(crate) fn request<R: DeserializeOwned>(fields: Json) -> crate::error::Result<R> {
    serde_path_to_error::deserialize(fields).map_err(|error| {
        let path = error.path().iter().fold(String::new(), |path, segment| match segment {
            Segment::Seq { index } => format!("{path}[{}]", index + 1),
            Segment::Map { key: name } | Segment::Enum { variant: name } => join(&path, name),
            Segment::Unknown => path,
        });
        let misfit = crate::error::Error::new(Kind::Script, format!("`{path}`: {}", error.inner()));
        if path.is_empty() { crate::error::Error::new(Kind::Script, error.inner().to_string()) } else { misfit }
    })
}

/// A list. An empty Lua table is a list and a table.
pub(super) fn list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_any(List(PhantomData))
}

/// Reads the items in place, so that an error names its item.
struct List<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Vec<T>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Vec<T>, A::Error> {
        match fields.next_key::<IgnoredAny>()? {
            None => Ok(Vec::new()),
            Some(_) => Err(A::Error::invalid_type(Unexpected::Map, &self)),
        }
    }
}

/// A value as JSON text: Lua tables have no null and do not distinguish an empty list from an empty
/// table.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;
    use crate::script::runtime::services::training::{SampleTrajectories, TrajectoryLogprobs};

    #[test]
    fn an_error_in_a_call_names_the_invalid_field() {
        let refused = |fields: Json| request::<SampleTrajectories>(fields).unwrap_err().message;
        let wrong = refused(json!({ "training": 1, "options": { "groups": "x" } }));
        assert_eq!(wrong, "`options.groups`: invalid type: string \"x\", expected usize");
        let unknown = refused(json!({ "training": 1, "options": { "group": 1 } }));
        assert!(unknown.starts_with("`options.group`: unknown field `group`, expected"), "{unknown}");
        assert_eq!(refused(json!({})), "missing field `training`");
        let ids = |ids: Json| request::<TrajectoryLogprobs>(json!({ "training": 1, "ids": ids, "model": "policy" }));
        assert!(ids(json!({})).unwrap().ids.is_empty());
        let message = ids(json!(["a", 3])).unwrap_err().message;
        assert_eq!(message, "`ids[2]`: invalid type: integer `3`, expected a string");
        assert!(ids(json!({ "a": 1 })).unwrap_err().message.starts_with("`ids`: invalid type: map, expected a list"));
    }
}
