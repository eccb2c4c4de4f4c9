//! Checks a call's arguments against the part of JSON Schema that tools use: `type`, `enum`, `required`,
//! `properties`, `items`, `additionalProperties = false`. What is wrong is said in words for the policy.

use serde_json::Value as Json;

/// The first thing that does not fit.
pub(crate) fn check(schema: &Json, value: &Json) -> Result<(), String> {
    check_at(schema, value, "arguments")
}

fn check_at(schema: &Json, value: &Json, at: &str) -> Result<(), String> {
    let types: Vec<&str> = match schema.get("type") {
        Some(Json::String(name)) => vec![name],
        Some(Json::Array(names)) => names.iter().filter_map(Json::as_str).collect(),
        _ => Vec::new(),
    };
    if !types.is_empty() && !types.iter().any(|name| is_type(name, value)) {
        return Err(format!("{at} must be {}, got {}", types.join(" or "), describe(value)));
    }
    if let Some(choices) = schema.get("enum").and_then(Json::as_array)
        && !choices.contains(value)
    {
        let choices: Vec<String> = choices.iter().map(Json::to_string).collect();
        return Err(format!("{at} must be one of {}, got {}", choices.join(", "), describe(value)));
    }
    if let Json::Object(fields) = value {
        let properties = schema.get("properties").and_then(Json::as_object);
        for name in schema.get("required").and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str) {
            if !fields.contains_key(name) {
                return Err(format!("{at}.{name} is missing"));
            }
        }
        for (name, value) in fields {
            match properties.and_then(|properties| properties.get(name)) {
                Some(schema) => check_at(schema, value, &format!("{at}.{name}"))?,
                None if schema.get("additionalProperties") == Some(&Json::Bool(false)) => {
                    let known: Vec<&str> =
                        properties.into_iter().flat_map(|properties| properties.keys()).map(String::as_str).collect();
                    return Err(format!("{at}.{name} is unknown; known: {}", known.join(", ")));
                }
                None => {}
            }
        }
    }
    if let (Json::Array(items), Some(schema)) = (value, schema.get("items")) {
        for (index, item) in items.iter().enumerate() {
            check_at(schema, item, &format!("{at}[{index}]"))?;
        }
    }
    Ok(())
}

fn is_type(name: &str, value: &Json) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        // 3.0 is an integer in JSON Schema.
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        // A type this check does not know forbids nothing.
        _ => true,
    }
}

fn describe(value: &Json) -> String {
    super::convert::clip(&value.to_string(), 60)
}
