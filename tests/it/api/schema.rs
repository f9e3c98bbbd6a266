//! As much of JSON Schema as the document uses.

use serde_json::Value;

/// Holds a value against a schema of the document; answers the first fault with its place.
pub(super) fn check(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    at(document, schema, value, "")
}

fn at(document: &Value, schema: &Value, value: &Value, place: &str) -> Result<(), String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = document
            .pointer(reference.trim_start_matches('#'))
            .ok_or_else(|| format!("{reference} leads nowhere"))?;
        return at(document, target, value, place);
    }
    for part in list(&schema["allOf"]) {
        at(document, part, value, place)?;
    }
    for alternatives in ["oneOf", "anyOf"] {
        let mut faults = Vec::new();
        for part in list(&schema[alternatives]) {
            match at(document, part, value, place) {
                Ok(()) => {
                    faults.clear();
                    break;
                }
                Err(fault) => faults.push(fault),
            }
        }
        if !faults.is_empty() {
            return Err(format!("{place}: fits nothing of: {}", faults.join(" | ")));
        }
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        return Err(format!("{place}: {value} is none of {allowed:?}"));
    }
    kind(&schema["type"], value, place)?;
    members(document, schema, value, place)?;
    for (index, item) in list(value).iter().enumerate() {
        if !schema["items"].is_null() {
            at(
                document,
                &schema["items"],
                item,
                &format!("{place}/{index}"),
            )?;
        }
    }
    Ok(())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn kind(wanted: &Value, value: &Value, place: &str) -> Result<(), String> {
    let is = |word: &Value| match word.as_str().unwrap_or_default() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    };
    let fits = match wanted {
        Value::Null => true,
        Value::Array(words) => words.iter().any(is),
        word => is(word),
    };
    if fits {
        Ok(())
    } else {
        Err(format!("{place}: {value} is no {wanted}"))
    }
}

fn members(document: &Value, schema: &Value, value: &Value, place: &str) -> Result<(), String> {
    let Some(object) = value.as_object() else {
        return Ok(());
    };
    for name in list(&schema["required"]) {
        let name = name.as_str().unwrap_or_default();
        if !object.contains_key(name) {
            return Err(format!("{place}/{name} is missing"));
        }
    }
    for (name, member) in object {
        let place = format!("{place}/{name}");
        let own = &schema["properties"][name];
        if !own.is_null() {
            at(document, own, member, &place)?;
        } else if schema["additionalProperties"].is_object() {
            at(document, &schema["additionalProperties"], member, &place)?;
        } else if schema["additionalProperties"] == false {
            return Err(format!("{place} is not documented"));
        }
    }
    Ok(())
}

#[test]
fn the_checker_finds_faults() {
    let document = serde_json::json!({"s": {
        "type": "object", "required": ["a"],
        "properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "null"}]}, "b": {"type": "array", "items": {"enum": ["x"]}}},
        "additionalProperties": false,
    }});
    let schema = serde_json::json!({"$ref": "#/s"});
    for (value, fits) in [
        (serde_json::json!({"a": 1}), true),
        (serde_json::json!({"a": null, "b": ["x"]}), true),
        (serde_json::json!({"a": "1"}), false),
        (serde_json::json!({"b": []}), false),
        (serde_json::json!({"a": 1, "b": ["y"]}), false),
        (serde_json::json!({"a": 1, "c": 1}), false),
        (serde_json::json!([]), false),
    ] {
        assert_eq!(check(&document, &schema, &value).is_ok(), fits, "{value}");
    }
}
