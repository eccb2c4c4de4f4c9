//! The order of fields of tool schemas that a script writes as tables. A Luau table has no order,
//! and a prompt needs one: the usual order, which models have seen in training.

use serde_json::{Map, Value};

/// Keywords of JSON Schema.
const SCHEMA: [&str; 7] = ["type", "description", "enum", "properties", "items", "required", "additionalProperties"];

/// An object whose fields are sorted by name has lost its order: its known fields come first, in
/// the usual order. Another order comes from JSON text, and is kept.
fn known_first(fields: &Map<String, Value>, first: &[&str]) -> Map<String, Value> {
    let mut names: Vec<&String> = fields.keys().collect();
    if names.is_sorted() {
        names.sort_by_key(|name| first.iter().position(|first| first == name).unwrap_or(first.len()));
    }
    names.into_iter().map(|name| (name.clone(), fields[name].clone())).collect()
}

/// A schema with its keywords in the usual order. The order of parameters is unchanged.
pub fn schema_in_order(schema: &Value) -> Value {
    let Value::Object(fields) = schema else { return schema.clone() };
    let mut fields = known_first(fields, &SCHEMA);
    for (name, value) in &mut fields {
        match (name.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                for schema in properties.values_mut() {
                    *schema = schema_in_order(schema);
                }
            }
            ("items", items) => *items = schema_in_order(items),
            _ => {}
        }
    }
    Value::Object(fields)
}

/// A tool in the OpenAI shape, `{ type, function = { name, description, parameters } }`, with its
/// fields in this order.
pub fn tool_in_order(tool: &Value) -> Value {
    let Value::Object(fields) = tool else { return tool.clone() };
    let mut tool = known_first(fields, &["type", "function"]);
    if let Some(Value::Object(function)) = tool.get_mut("function") {
        *function = known_first(function, &["name", "description", "parameters"]);
        if let Some(parameters) = function.get_mut("parameters") {
            *parameters = schema_in_order(parameters);
        }
    }
    Value::Object(tool)
}

/// Puts the schemas of a row's column `tools` in order. JSON text, which has an order, is
/// unchanged.
pub fn order_tools(row: &mut Value) {
    if let Some(Value::Array(tools)) = row.get_mut("tools") {
        for tool in tools {
            *tool = tool_in_order(tool);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tools_without_an_order_get_the_usual_one() {
        let sorted = r#"{"function":{"description":"Adds.","name":"add","parameters":{"properties":{"a":{"description":"One","type":"number"},"b":{"items":{"enum":[1],"type":"number"},"type":"array"}},"required":["a"],"type":"object"}},"type":"function"}"#;
        let default_value = r#"{"type":"function","function":{"name":"add","description":"Adds.","parameters":{"type":"object","properties":{"a":{"type":"number","description":"One"},"b":{"type":"array","items":{"type":"number","enum":[1]}}},"required":["a"]}}}"#;
        let mut row = serde_json::json!({ "tools": [serde_json::from_str::<Value>(sorted).unwrap()] });
        order_tools(&mut row);
        assert_eq!(row["tools"][0].to_string(), default_value);
    }

    #[test]
    fn an_order_of_json_text_is_kept() {
        let of_server = r#"{"function":{"name":"add","parameters":{"title":"Add","type":"object","properties":{"b":{"type":"number","minimum":0},"a":{"type":"number"}}}},"type":"function"}"#;
        let tool: Value = serde_json::from_str(of_server).unwrap();
        let ordered = tool_in_order(&tool).to_string();
        assert_eq!(
            ordered,
            of_server.replace(r#","type":"function"}"#, "}").replacen('{', r#"{"type":"function","#, 1)
        );
        let mut row = serde_json::json!({ "tools": of_server });
        order_tools(&mut row);
        assert_eq!(row["tools"], of_server);
    }
}
