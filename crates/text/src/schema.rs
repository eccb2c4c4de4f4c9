//! The part of JSON Schema that tools use. Errors in a call's arguments are messages for the
//! policy; unknown keywords are refused when the tool is created, so that no constraint is ignored.

use regex::Regex;
use serde_json::{Map, Value};

use super::literal;
use super::schema_pattern::compiled;
use r1_base::json::{self, is_long_whole};

pub use super::schema_error::{ArgumentError, Expected, SchemaError, SchemaFault, Violation};

/// Keywords that [`check`] supports.
const CHECKED: &str = "type, enum, const, properties, required, patternProperties, additionalProperties, items, \
                       prefixItems, minItems, maxItems, minimum, maximum, exclusiveMinimum, exclusiveMaximum, \
                       minLength, maxLength, pattern, anyOf, oneOf, allOf";

/// Annotation keywords, which do not constrain values.
const NOTES: &str = "title, description, default, example, examples, format, deprecated, nullable, $schema, $comment";

const TYPES: &str = "object, array, string, boolean, null, number, integer";

/// Whether a list of names has the name.
fn lists(names: &str, name: &str) -> bool {
    names.split(", ").any(|other| other == name)
}

/// Maximum nesting.
const DEPTH: usize = 64;

/// Refuses a schema with unsupported keywords.
///
/// # Errors
/// The first part of the schema that is not supported.
pub fn refuse_unknown(schema: &Value) -> Result<(), SchemaError> {
    refuse_at(schema, "", DEPTH)
}

fn refuse_at(schema: &Value, at: &str, depth: usize) -> Result<(), SchemaError> {
    let wrong = |path: &str, why| Err(SchemaError { path: path.to_owned(), why });
    let below = |name: &str| if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
    let Value::Object(fields) = schema else {
        return if schema.is_boolean() { Ok(()) } else { wrong(at, SchemaFault::NotATable) };
    };
    if depth == 0 {
        return wrong(at, SchemaFault::TooDeep);
    }
    for (keyword, value) in fields {
        match (keyword.as_str(), value) {
            // Columns of Parquet files have every keyword of every schema.
            (keyword, Value::Null) if lists(CHECKED, keyword) && keyword != "const" => {}
            ("type", value) => {
                let names = type_names(value);
                if names.is_empty() || names.iter().any(|name| !lists(TYPES, name)) {
                    return wrong(at, SchemaFault::Type { actual: value.clone(), names: TYPES });
                }
            }
            ("properties", Value::Object(properties)) => {
                for (name, schema) in properties {
                    refuse_at(schema, &below(name), depth - 1)?;
                }
            }
            ("items" | "additionalProperties", schema) => refuse_at(schema, &below(keyword), depth - 1)?,
            ("patternProperties", Value::Object(patterns)) => {
                for (pattern, schema) in patterns {
                    if let Err(error) = Regex::new(pattern) {
                        return wrong(&below(keyword), SchemaFault::Pattern(error));
                    }
                    refuse_at(schema, &below(keyword), depth - 1)?;
                }
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(schemas)) => {
                for schema in schemas {
                    refuse_at(schema, &below(keyword), depth - 1)?;
                }
            }
            ("pattern", Value::String(pattern)) => {
                if let Err(error) = Regex::new(pattern) {
                    return wrong(&below(keyword), SchemaFault::Pattern(error));
                }
            }
            ("properties" | "patternProperties" | "prefixItems" | "anyOf" | "oneOf" | "allOf" | "pattern", _) => {
                return wrong(&below(keyword), SchemaFault::Value(value.clone()));
            }
            (keyword, _) if lists(CHECKED, keyword) || lists(NOTES, keyword) => {}
            (keyword, _) => {
                return wrong(at, SchemaFault::Keyword { keyword: keyword.to_owned(), names: CHECKED });
            }
        }
    }
    Ok(())
}

/// Validates a call's arguments.
///
/// # Errors
/// The first argument that the schema does not allow.
pub fn check(schema: &Value, value: &Value) -> Result<(), ArgumentError> {
    check_at(schema, value, "arguments", DEPTH)
}

fn check_at(schema: &Value, value: &Value, at: &str, depth: usize) -> Result<(), ArgumentError> {
    let Value::Object(keywords) = schema else {
        return if schema == &Value::Bool(false) { Err(ArgumentError::new(at, Violation::NotAllowed)) } else { Ok(()) };
    };
    if depth == 0 {
        return Err(ArgumentError::new(at, Violation::TooDeep));
    }
    if value.is_null() && keywords.get("nullable") == Some(&Value::Bool(true)) {
        return Ok(());
    }
    let types = keywords.get("type").map(type_names).unwrap_or_default();
    if !types.is_empty() && !types.iter().any(|name| is_type(name, value)) {
        let types = types.iter().map(|name| (*name).to_owned()).collect();
        return Err(ArgumentError::expected(at, Expected::Types(types), value.clone()));
    }
    if let Some(choices) = keywords.get("enum").and_then(Value::as_array)
        && !choices.iter().any(|choice| same(choice, value))
    {
        return Err(ArgumentError::expected(at, Expected::OneOf(choices.clone()), value.clone()));
    }
    if let Some(only) = keywords.get("const").filter(|only| !same(only, value)) {
        return Err(ArgumentError::expected(at, Expected::Const(only.clone()), value.clone()));
    }
    for (keyword, schemas) in
        ["anyOf", "oneOf", "allOf"].map(|name| (name, keywords.get(name).and_then(Value::as_array)))
    {
        let Some(schemas) = schemas else { continue };
        let results: Vec<_> = schemas.iter().map(|schema| check_at(schema, value, at, depth - 1)).collect();
        let fits = results.iter().filter(|result| result.is_ok()).count();
        let wrong = results.into_iter().find_map(Result::err);
        match (keyword, fits) {
            ("allOf", _) => wrong.map_or(Ok(()), Err)?,
            (_, 0) => return Err(wrong.unwrap_or_else(|| ArgumentError::new(at, Violation::NoAlternative))),
            ("oneOf", 2..) => return Err(ArgumentError::new(at, Violation::Alternatives(fits))),
            _ => {}
        }
    }
    match value {
        Value::Object(fields) => check_object(keywords, fields, at, depth),
        Value::Array(items) => check_array(keywords, items, at, depth),
        // A whole number of more than 64 bits.
        Value::String(text) if is_long_whole(text) && !types.is_empty() && !types.contains(&"string") => {
            check_number(keywords, text.parse().ok(), value, at)
        }
        Value::String(text) => check_text(keywords, text, at),
        Value::Number(number) => check_number(keywords, number.as_f64(), value, at),
        Value::Null | Value::Bool(_) => Ok(()),
    }
}

fn check_object(
    keywords: &Map<String, Value>,
    fields: &Map<String, Value>,
    at: &str,
    depth: usize,
) -> Result<(), ArgumentError> {
    let properties = keywords.get("properties").and_then(Value::as_object);
    for name in keywords.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(name) {
            return Err(ArgumentError::new(format!("{at}.{name}"), Violation::Missing));
        }
    }
    let patterns = keywords.get("patternProperties").and_then(Value::as_object).into_iter().flatten();
    let patterns: Vec<(&String, &Value, Option<Regex>)> =
        patterns.map(|(pattern, schema)| (pattern, schema, compiled(pattern))).collect();
    for (name, value) in fields {
        let at = || format!("{at}.{name}");
        let mut is_known = false;
        let schema = properties.and_then(|properties| properties.get(name));
        for schema in schema.into_iter().chain(patterns.iter().filter_map(|(_, schema, regex)| {
            regex.as_ref().is_some_and(|regex| regex.is_match(name)).then_some(*schema)
        })) {
            check_at(schema, value, &at(), depth - 1)?;
            is_known = true;
        }
        // A pattern that `regex` does not support may match any name.
        if is_known || patterns.iter().any(|(.., regex)| regex.is_none()) {
            continue;
        }
        match keywords.get("additionalProperties") {
            Some(Value::Bool(false)) => {
                let names = properties.into_iter().flat_map(|properties| properties.keys()).cloned();
                let names = names.chain(patterns.iter().map(|(pattern, ..)| format!("/{pattern}/"))).collect();
                return Err(ArgumentError::new(at(), Violation::Unknown { names }));
            }
            Some(schema) => check_at(schema, value, &at(), depth - 1)?,
            None => {}
        }
    }
    Ok(())
}

fn check_array(keywords: &Map<String, Value>, items: &[Value], at: &str, depth: usize) -> Result<(), ArgumentError> {
    in_bounds(keywords, ["minItems", "maxItems"], items.len(), at, "items")?;
    let first = keywords.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (index, item) in items.iter().enumerate() {
        if let Some(schema) = first.get(index).or(keywords.get("items")) {
            check_at(schema, item, &format!("{at}[{index}]"), depth - 1)?;
        }
    }
    Ok(())
}

fn check_text(keywords: &Map<String, Value>, text: &str, at: &str) -> Result<(), ArgumentError> {
    in_bounds(keywords, ["minLength", "maxLength"], text.chars().count(), at, "letters")?;
    if let Some(pattern) = keywords.get("pattern").and_then(Value::as_str)
        && compiled(pattern).is_some_and(|regex| !regex.is_match(text))
    {
        return Err(ArgumentError::expected(at, Expected::Pattern(pattern.to_owned()), text));
    }
    Ok(())
}

fn check_number(
    keywords: &Map<String, Value>,
    number: Option<f64>,
    value: &Value,
    at: &str,
) -> Result<(), ArgumentError> {
    type Fits = fn(f64, f64) -> bool;
    let Some(number) = number else { return Ok(()) };
    let bounds: [(&str, Fits, &'static str); 4] = [
        ("minimum", |number, bound| number >= bound, "at least"),
        ("maximum", |number, bound| number <= bound, "at most"),
        ("exclusiveMinimum", |number, bound| number > bound, "more than"),
        ("exclusiveMaximum", |number, bound| number < bound, "less than"),
    ];
    for (keyword, fits, word) in bounds {
        if let Some(bound) = keywords.get(keyword).and_then(Value::as_f64).filter(|bound| !fits(number, *bound)) {
            return Err(ArgumentError::expected(at, Expected::Bound(word, bound), value.clone()));
        }
    }
    Ok(())
}

fn in_bounds(
    keywords: &Map<String, Value>,
    [least, maximum]: [&str; 2],
    count: usize,
    at: &str,
    what: &'static str,
) -> Result<(), ArgumentError> {
    let bound = |keyword: &str| keywords.get(keyword).and_then(Value::as_u64);
    if let Some(least) = bound(least).filter(|least| (count as u64) < *least) {
        return Err(ArgumentError::expected(at, Expected::Count("at least", least, what), count));
    }
    if let Some(maximum) = bound(maximum).filter(|maximum| (count as u64) > *maximum) {
        return Err(ArgumentError::expected(at, Expected::Count("at most", maximum, what), count));
    }
    Ok(())
}

/// Equality of JSON Schema: 3 and 3.0 are the same number.
fn same(a: &Value, b: &Value) -> bool {
    a == b || a.as_f64().is_some_and(|a| Some(a) == b.as_f64())
}

fn type_names(value: &Value) -> Vec<&str> {
    match value {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

fn is_type(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number() || is_long(value),
        // 3.0 is an integer in JSON Schema.
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0) || is_long(value),
        _ => false,
    }
}

/// Whether a value is a whole number of more than 64 bits, which is text ([`r1_base::json`]).
fn is_long(value: &Value) -> bool {
    value.as_str().is_some_and(is_long_whole)
}

/// The schema of a tool's parameter, with tools as in the OpenAI API.
pub(super) fn parameter<'a>(tools: &'a [Value], function: &str, key: &str) -> Option<&'a Value> {
    let function_of = |tool: &'a Value| tool.get("function").unwrap_or(tool);
    let tool = tools.iter().map(function_of).find(|tool| tool.get("name").and_then(Value::as_str) == Some(function))?;
    tool.get("parameters")?.get("properties")?.get(key)
}

/// Converts a value that was written as bare text. It stays text if the schema allows only text or
/// gives no type; otherwise it is parsed as JSON, or as a literal of Python, of a type that the
/// schema allows. If nothing fits it stays text, and [`check`] reports the error.
pub(super) fn from_text(schema: Option<&Value>, text: &str) -> Value {
    let plain = || Value::String(text.to_owned());
    let Some(schema) = schema else { return plain() };
    let mut types = Vec::new();
    allowed(schema, &mut types, DEPTH);
    if types.iter().all(|name| *name == "string") {
        return plain();
    }
    let text = text.trim();
    match json::read(text.as_bytes()).ok().or_else(|| literal::read_value(text)) {
        Some(Value::String(digits)) if !is_long_whole(&digits) => plain(),
        Some(value) if types.iter().any(|name| is_type(name, &value)) => value,
        _ => plain(),
    }
}

fn allowed<'a>(schema: &'a Value, types: &mut Vec<&'a str>, depth: usize) {
    if let Some(value) = schema.get("type") {
        types.extend(type_names(value));
    } else if schema.get("properties").is_some() {
        types.push("object");
    } else if schema.get("items").is_some() {
        types.push("array");
    }
    if schema.get("nullable") == Some(&Value::Bool(true)) {
        types.push("null");
    }
    for keyword in ["anyOf", "oneOf", "allOf"] {
        for schema in schema.get(keyword).and_then(Value::as_array).into_iter().flatten().filter(|_| depth > 0) {
            allowed(schema, types, depth - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn a_pattern_is_compiled_once_for_all_texts_of_a_list() {
        let schema = json!({"type": "array", "items": {"type": "string", "pattern": "^[\\w\\s]{1,200}$"}});
        refuse_unknown(&schema).unwrap();
        let started = std::time::Instant::now();
        check(&schema, &vec!["a"; 5000].into()).unwrap();
        // Compiling the pattern takes milliseconds, so 5000 times took a minute.
        assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
        assert!(check(&schema, &json!(["a", "-"])).is_err());
    }

    #[test]
    fn schema_errors_name_the_argument() {
        let schema = json!({
            "type": "object",
            "properties": {
                "city": {"type": "string", "minLength": 2, "pattern": "^[A-Z]"},
                "days": {"type": "integer", "minimum": 1, "exclusiveMaximum": 8},
                "unit": {"enum": ["C", "F", 3]},
                "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
                "when": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "more": {"type": "object", "additionalProperties": {"type": "number"}},
                "kind": {"const": "x"},
            },
            "required": ["city"],
            "additionalProperties": false,
        });
        assert_eq!(refuse_unknown(&schema), Ok(()));
        let good = json!({"city": "Rom", "days": 7.0, "unit": 3.0, "tags": ["a"], "when": null, "more": {"a": 1}, "kind": "x"});
        assert_eq!(check(&schema, &good), Ok(()));
        for (arguments, why) in [
            (json!([]), "arguments must be object, got []"),
            (json!({}), "arguments.city is missing"),
            (json!({"city": 1}), "arguments.city must be string, got 1"),
            (json!({"city": "R"}), "arguments.city must have at least 2 letters, got 1"),
            (json!({"city": "rom"}), "arguments.city must match ^[A-Z], got \"rom\""),
            (json!({"city": "Rom", "days": 1.5}), "arguments.days must be integer, got 1.5"),
            (json!({"city": "Rom", "days": 0}), "arguments.days must be at least 1, got 0"),
            (json!({"city": "Rom", "days": 8}), "arguments.days must be less than 8, got 8"),
            (json!({"city": "Rom", "unit": "K"}), "arguments.unit must be one of \"C\", \"F\", 3, got \"K\""),
            (json!({"city": "Rom", "tags": ["a", 1]}), "arguments.tags[1] must be string, got 1"),
            (json!({"city": "Rom", "tags": ["a", "b", "c"]}), "arguments.tags must have at most 2 items, got 3"),
            (json!({"city": "Rom", "when": 1}), "arguments.when must be string, got 1"),
            (json!({"city": "Rom", "more": {"a": "1"}}), "arguments.more.a must be number, got \"1\""),
            (json!({"city": "Rom", "kind": "y"}), "arguments.kind must be \"x\", got \"y\""),
            (
                json!({"city": "Rom", "town": 1}),
                "arguments.town is unknown; known: city, days, unit, tags, when, more, kind",
            ),
        ] {
            assert_eq!(check(&schema, &arguments).map_err(|error| error.to_string()), Err(why.to_owned()));
        }
        let one = json!({"oneOf": [{"type": "number"}, {"type": "integer"}]});
        let error = check(&one, &json!(1)).err();
        assert_eq!(error, Some(ArgumentError::new("arguments", Violation::Alternatives(2))));
        let error = check(&schema, &json!({"city": "Rom", "tags": ["a", 1]})).err().map(|error| error.path);
        assert_eq!(error.as_deref(), Some("arguments.tags[1]"));
    }

    #[test]
    fn names_may_be_declared_by_patterns() {
        let schema = json!({
            "type": "object",
            "properties": {"a": {"type": "string"}, "pair": {"prefixItems": [{"type": "integer"}], "items": false}},
            "patternProperties": {"^x": {"type": "integer"}},
            "additionalProperties": false,
        });
        assert_eq!(refuse_unknown(&schema), Ok(()));
        assert_eq!(check(&schema, &json!({"x1": 1, "a": "b", "pair": [1]})), Ok(()));
        for (arguments, why) in [
            (json!({"x1": "b"}), "arguments.x1 must be integer, got \"b\""),
            (json!({"y": 1}), "arguments.y is unknown; known: a, pair, /^x/"),
            (json!({"pair": ["b"]}), "arguments.pair[0] must be integer, got \"b\""),
            (json!({"pair": [1, 2]}), "arguments.pair[1] is not allowed"),
        ] {
            assert_eq!(check(&schema, &arguments).map_err(|error| error.to_string()), Err(why.to_owned()));
        }
        // Look-ahead is not supported, and servers use it.
        let unsupported = json!({"patternProperties": {"^(?!y)": {}}, "additionalProperties": false});
        assert_eq!(check(&unsupported, &json!({"x": 1})), Ok(()));
        assert!(refuse_unknown(&unsupported).is_err());
    }

    #[test]
    fn whole_numbers_of_more_than_64_bits_are_integers() {
        let schema = json!({"properties": {"n": {"type": "integer", "minimum": 0}, "s": {"type": "boolean"}}});
        let long = |text: &str| json!({"n": text});
        assert_eq!(check(&schema, &long("12345678901234567890123")), Ok(()));
        for arguments in [long("-12345678901234567890123"), long("123"), json!({"s": "12345678901234567890123"})] {
            assert!(check(&schema, &arguments).is_err(), "{arguments}");
        }
    }

    #[test]
    fn unsupported_schema_keywords_are_refused() {
        for (schema, why) in [
            (json!({"$ref": "#/x"}), "the schema has the keyword `$ref`, which is not checked"),
            (json!({"properties": {"a": {"not": {}}}}), "the schema.a has the keyword `not`, which is not checked"),
            (json!({"type": "text"}), "the schema has the type \"text\"; known: object"),
            (json!({"items": {"pattern": "("}}), "the schema.items.pattern can't be read"),
            (json!([]), "the schema is not a table"),
        ] {
            let error = refuse_unknown(&schema).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.starts_with(why), "{error}");
        }
    }

    #[test]
    fn bare_text_is_converted_to_the_schema_type() {
        for (schema, text, expected) in [
            (json!({"type": "string"}), "5", json!("5")),
            (json!({"type": "integer"}), " 5 ", json!(5)),
            (json!({"type": "integer"}), "five", json!("five")),
            (json!({"type": "boolean"}), "True", json!(true)),
            (json!({"type": ["integer", "null"]}), "None", json!(null)),
            (json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}), "5", json!(5)),
            (json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}), "x", json!("x")),
            (json!({"type": "object"}), "{\"a\": [1]}", json!({"a": [1]})),
            (json!({"items": {}}), "[1]", json!([1])),
            (json!({"items": {}}), "['a', 1]", json!(["a", 1])),
            (json!({"type": ["integer", "string"]}), "'a'", json!("'a'")),
            (json!({"type": "integer"}), "12345678901234567890123", json!("12345678901234567890123")),
            (json!({}), "5", json!("5")),
        ] {
            assert_eq!(from_text(Some(&schema), text), expected, "{text}");
        }
        assert_eq!(from_text(None, "5"), json!("5"));
    }
}
