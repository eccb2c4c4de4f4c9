//! Replies recorded from the test suites of vLLM, SGLang and llama.cpp, parsed with r1's formats:
//! complete, and in the pieces in which they were streamed. Every deviation is listed with its
//! reason; each family prints how many agree.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::collections::BTreeMap;

use serde_json::Value;

use super::testing::{format, read};
use super::{Event, Format, Reply};
use crate::reference_data::reference_data;

/// The r1 format of a recorded family.
fn format_of(family: &str) -> Option<&'static str> {
    Some(match family {
        "hermes" => "hermes",
        "qwen3_coder" => "qwen3_coder",
        "llama3_json" => "llama3",
        "pythonic" | "pythonic_llama4" | "olmo3pythonic" => "pythonic",
        "mistral"
        | "mistral_nemo"
        | "mistralai-mistral-nemo-instruct-2407"
        | "mistralai-ministral-3-14b-reasoning-2512"
        | "mistral-small-3.2-24b-instruct-2506"
        | "unsloth-mistral-devstral-small-2507" => "mistral",
        "deepseek_v3"
        | "deepseek_r1"
        | "llama-cpp-deepseek-r1"
        | "deepseek-ai-deepseek-r1-distill-qwen-32b"
        | "deepseek-ai-deepseek-r1-distill-llama-8b" => "deepseek_v3",
        "deepseek-ai-deepseek-v3.1" => "deepseek_v31",
        "gpt-oss" | "openai-gpt-oss-120b" => "harmony",
        _ => return None,
    })
}

/// The reason why a recorded case is expected to differ, if it is.
fn deviation(format: &str, row: &Value, input: &str) -> Option<&'static str> {
    let (engine, test) = (row["source"].as_str().unwrap_or_default(), row["test"].as_str().unwrap_or_default());
    let calls = row["expected"]["calls"].as_array().is_some_and(|calls| !calls.is_empty());
    let kept = |name: &str| row["options"]["reasoning_format"] == name;
    match format {
        "hermes" if calls && !input.contains("<tool_call>") => {
            Some("llama.cpp's old parser took bare JSON, <function=…> and code fences for calls too")
        }
        "qwen3_coder" if input.contains("bad_func_no_gt") || input.contains("<function=get_current_weather\n") => Some(
            "a tag without its `>` is reported to the policy as an error, not a call with a line break in its name",
        ),
        "qwen3_coder" if !input.contains("</function>") && calls => {
            Some("a call that is cut off is an error: its last value may be cut off too")
        }
        _ if kept("none") && input.contains("</think>") => {
            Some("the recorded engine was configured to leave the reasoning in the content")
        }
        "llama3" if engine == "vllm" && input.starts_with("Here are the results") => {
            Some("text around calls is kept as content")
        }
        "pythonic" if row["kind"] == "stream" && row["family"] == "pythonic_llama4" => {
            Some("the recorded engine leaks half of <|python_start|> into the content")
        }
        "pythonic" if test.contains("text_after") || input.matches("<|python_start|>").count() > 1 => {
            Some("the recorded engine glues the arguments of two calls together")
        }
        "deepseek_v3" if input.contains("\"Tokyo\"\n```") => {
            Some("arguments that are not JSON are an error, not half an object")
        }
        "deepseek_v3" if input.starts_with("<｜tool▁calls▁begin｜>function") => {
            Some("a call without its opening tag is reported to the policy as an error, not content")
        }
        "mistral" if input.contains("```json") => Some("the recorded engine was configured to answer in JSON"),
        _ => None,
    }
}

fn whole(row: &Value) -> (String, Vec<String>) {
    if let Some(chunks) = row["chunks"].as_array() {
        let pieces: Vec<String> = chunks.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        return (pieces.concat(), pieces);
    }
    let input = row["input"].as_str().unwrap_or_default();
    // As when sampling: a few characters at a time.
    let letters: Vec<char> = input.chars().collect();
    (input.to_owned(), letters.chunks(3).map(|letters| letters.iter().collect()).collect())
}

/// Parses a reply in pieces and joins the streamed events.
fn streamed(format: &Format, begun: bool, pieces: &[String], tools: &[Value]) -> Reply {
    let mut stream = format.stream(begun, "python", tools);
    let mut events = Vec::new();
    for piece in pieces {
        events.extend(stream.push(piece));
    }
    let (last, reply) = stream.finish().unwrap();
    events.extend(last);
    let mut made = Reply::default();
    for event in events {
        match event {
            Event::Content(text) => made.content.push_str(&text),
            Event::Reasoning(text) => made.reasoning.get_or_insert_default().push_str(&text),
            Event::Call(call) => made.tool_calls.push(call),
            Event::Error(error) => made.errors.push(error),
        }
    }
    assert_eq!(made, reply, "{format:?} {pieces:?}");
    reply
}

fn agrees(row: &Value, reply: &Reply) -> bool {
    if row["kind"] == "has_tool_call" {
        return row["expected"] == (!reply.tool_calls.is_empty());
    }
    let text = |key: &str| row["expected"][key].as_str().unwrap_or_default().trim().to_owned();
    let expected: Vec<(String, Value)> = row["expected"]["calls"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|call| {
            let arguments = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap_or(Value::Null);
            (call["name"].as_str().unwrap().to_owned(), arguments)
        })
        .collect();
    let calls: Vec<(String, Value)> =
        reply.tool_calls.iter().map(|call| (call.name.clone(), call.arguments.clone())).collect();
    calls == expected
        && text("content") == reply.content
        && text("reasoning_content") == reply.reasoning.clone().unwrap_or_default()
}

#[test]
#[ignore = "needs the reference data: just test-data"]
fn recorded_replies_agree() {
    let dir = reference_data("tool-call-parsers");
    let mut tally: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut deviations: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut wrong, mut stale) = (Vec::new(), Vec::new());
    for file in ["main_families.jsonl", "other_families.jsonl"] {
        for line in std::fs::read_to_string(dir.join(file)).unwrap().lines() {
            let row: Value = serde_json::from_str(line).unwrap();
            let family = row["family"].as_str().unwrap();
            let Some(format) = format_of(family) else { continue };
            let (input, pieces) = whole(&row);
            let tools = row["tools"].as_array().map_or(&[][..], Vec::as_slice);
            let options = &row["options"];
            let begun = options["thinking_forced_open"] == true
                || options["generation_prompt"].as_str().is_some_and(|prompt| prompt.trim_end().ends_with("<think>"));
            let reply = read(format, &input, begun, tools);
            assert_eq!(streamed(&self::format(format), begun, &pieces, tools), reply, "{row}");
            let good = agrees(&row, &reply);
            match deviation(format, &row, &input) {
                Some(why) if good => stale.push(format!("{why}: {row}")),
                Some(why) => *deviations.entry(why).or_default() += 1,
                None => {
                    let count = tally.entry(format!("{family} ({format})")).or_default();
                    count.0 += usize::from(good);
                    count.1 += 1;
                    if !good {
                        wrong.push(format!("{row}\n  {reply:?}"));
                    }
                }
            }
        }
    }
    for (family, (good, all)) in &tally {
        eprintln!("{family}: {good} of {all} agree");
    }
    for (why, count) in &deviations {
        eprintln!("{count} deviate: {why}");
    }
    let (good, all) = tally.values().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    eprintln!("recorded replies: {good} of {all} agree, {} deviate on purpose", deviations.values().sum::<usize>());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(stale.is_empty(), "listed as deviations, and agree: {}", stale.join("\n"));
    assert!(all > 150, "{all}");
}

/// Reasoning split off by vLLM's parsers with `<think>` tags, for models whose prompts open the
/// block and for others.
#[test]
#[ignore = "needs the reference data: just test-data"]
fn recorded_reasoning_agrees() {
    let dir = reference_data("tool-call-parsers");
    // Parsers of models whose prompt opens the block: a reply without tags is reasoning.
    let begun = [
        "Qwen3ParserReasoningAdapter",
        "DeepSeekR1ReasoningParser",
        "MiniMaxM2ReasoningParser",
        "Step3p5ReasoningParser",
        "Ernie45ReasoningParser",
        "HYV3ReasoningParser",
        "Glm47MoeParserReasoningAdapter",
        "NemotronV3ParserReasoningAdapter",
    ];
    let plain = ["Olmo3ReasoningParser", "IdentityReasoningParser", "DeepSeekV3ReasoningWithThinkingParser"];
    let mut tally: BTreeMap<String, usize> = BTreeMap::new();
    let (mut pieces_only, mut wrong) = (0, Vec::new());
    for line in std::fs::read_to_string(dir.join("reasoning.jsonl")).unwrap().lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let (parser, test) = (row["parser"].as_str().unwrap(), row["test"].as_str().unwrap());
        let (input, pieces) = whole(&row);
        let opened =
            begun.contains(&parser) && !test.contains("thinking_disabled") && !test.contains("without_thinking");
        if !opened && !begun.contains(&parser) && !plain.contains(&parser) {
            continue;
        }
        // Recorded from the middle of a stream without its beginning, or from a whole prompt.
        if test.contains("promot") || test.contains("multi_turn") {
            pieces_only += 1;
            continue;
        }
        // A closing tag alone is content here, because the prompt did not open the block.
        if parser.starts_with("Olmo3") && !input.contains("<think>") {
            pieces_only += 1;
            continue;
        }
        // The text after reasoning that a call ended is a call of some format; only the start is
        // compared.
        let format = if input.contains("<function=") { "qwen3_coder" } else { "hermes" };
        let reply = read(format, &input, opened, &[]);
        assert_eq!(streamed(&self::format(format), opened, &pieces, &[]), reply, "{row}");
        let expected = |key: &str| row["expected"][key].as_str().unwrap_or_default().trim().to_owned();
        let content = reply.tool_calls.is_empty().then(|| expected("content"));
        if reply.reasoning.clone().unwrap_or_default() == expected("reasoning")
            && content.is_none_or(|content| content == reply.content)
        {
            *tally.entry(parser.to_owned()).or_default() += 1;
        } else {
            wrong.push(format!("{row}\n  {reply:?}"));
        }
    }
    let good: usize = tally.values().sum();
    eprintln!("reasoning: {good} agree ({pieces_only} left out): {tally:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(good > 45, "{good}");
}

/// Text built from fragments of the formats.
fn scraps() -> impl proptest::strategy::Strategy<Value = String> {
    const SCRAPS: &[&str] = &[
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "<function=f>",
        "<function=",
        "</function>",
        "<parameter=k>",
        "</parameter>",
        "<|python_tag|>",
        "{\"name\": \"f\", \"parameters\": {\"a\": 1}}",
        "{\"name\": \"f\", \"arguments\": {\"a\": \"}\"}}",
        "{\"name\"",
        "[f(a=1), g(b='x')]",
        "[f(",
        "g(a=[1, {'b': None}])",
        "]",
        ")",
        "<|python_start|>",
        "<|python_end|>",
        "<function_calls>",
        "</function_calls>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "[THINK]",
        "[/THINK]",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
        "function",
        "```json\n",
        "```",
        "<|start|>assistant",
        "<|channel|>analysis",
        "<|channel|>commentary to=functions.f",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
        " to=",
        "<code>",
        "</code>",
        "```python\n",
        "```output",
        "<answer>",
        "</answer>",
        "||",
        ";",
        ",",
        "\n",
        " ",
        "{",
        "}",
        "{}",
        "[",
        "\"",
        "'",
        "\\",
        ":",
        "name",
        "12",
        "true",
        "<",
        "</",
        "é",
        "text",
        ".call(",
        "(",
    ];
    use proptest::prelude::*;
    let scrap = prop_oneof![8 => prop::sample::select(SCRAPS).prop_map(str::to_owned), 1 => "\\PC{0,3}"];
    prop::collection::vec(scrap, 0..24).prop_map(|scraps| scraps.concat())
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(1500))]

    /// Parsing never panics, and parsing in pieces gives the same result for any split of the text.
    #[test]
    fn any_reply_parses_the_same_in_pieces(text in scraps(), cuts in proptest::collection::vec(0_usize..400, 0..12)) {
        let tools: [Value; 0] = [];
        let mut ends: Vec<usize> = cuts.into_iter().filter(|&cut| cut <= text.len() && text.is_char_boundary(cut)).collect();
        ends.extend([0, text.len()]);
        ends.sort_unstable();
        let pieces: Vec<String> = ends.windows(2).map(|cut| text[cut[0]..cut[1]].to_owned()).collect();
        let letters: Vec<String> = text.chars().map(String::from).collect();
        for format in Format::all() {
            for begun in [false, true] {
                let reply = format.read(&text, begun, "python", &tools).unwrap();
                proptest::prop_assert_eq!(&streamed(&format, begun, &pieces, &tools), &reply, "{:?}", format);
                proptest::prop_assert_eq!(&streamed(&format, begun, &letters, &tools), &reply, "{:?}", format);
            }
        }
    }

    /// A written call parses to the same call.
    #[test]
    fn written_tool_calls_parse_to_the_same_calls(
        content in "[a-z ,.]{0,12}",
        calls in proptest::collection::vec(("[a-z_]{1,8}", proptest::collection::btree_map("[a-z]{1,5}", values(), 0..3)), 1..3),
    ) {
        use r1_base::mdp::ToolCall;
        let made: Vec<ToolCall> = calls
            .into_iter()
            .map(|(name, arguments)| ToolCall { id: None, name, arguments: Value::Object(arguments.into_iter().collect()) })
            .collect();
        for format in Format::all() {
            let one = format.name() == "harmony";
            let calls: Vec<ToolCall> = match format.name() {
                // Bare text and programs have no other types, and one call per reply.
                "retool" | "tir" => vec![ToolCall { id: None, name: "python".to_owned(), arguments: serde_json::json!({"code": "print(1)"}) }],
                "answer" => made.iter().map(|call| ToolCall { id: None, name: "act".to_owned(), arguments: serde_json::json!({"action": call.name}) }).collect(),
                _ if one => made[..1].to_vec(),
                _ => made.clone(),
            };
            let tools: Vec<Value> = calls.iter().map(|call| {
                let properties: serde_json::Map<String, Value> = call.arguments.as_object().unwrap().iter().map(|(key, value)| {
                    let kind = match value {
                        Value::String(_) => "string",
                        Value::Array(_) => "array",
                        Value::Object(_) => "object",
                        Value::Null => "null",
                        Value::Bool(_) => "boolean",
                        Value::Number(_) => "number",
                    };
                    (key.clone(), serde_json::json!({"type": kind}))
                }).collect();
                serde_json::json!({"function": {"name": call.name, "parameters": {"properties": properties}}})
            }).collect();
            // Two tools with the same name would make types ambiguous.
            if format.name() == "qwen3_coder" && calls.len() > 1 && calls[0].name == calls[1].name {
                continue;
            }
            let text = format.write(content.clone(), &calls).unwrap();
            let reply = format.read(&text, false, "python", &tools).unwrap();
            proptest::prop_assert_eq!(&reply.errors, &Vec::<String>::new(), "{:?} {}", format, text);
            proptest::prop_assert_eq!(&reply.tool_calls, &calls, "{:?} {}", format, text);
            if !matches!(format.name(), "retool" | "tir") {
                proptest::prop_assert_eq!(reply.content.as_str(), content.trim(), "{:?} {}", format, text);
            }
        }
    }
}

/// JSON values of arguments.
fn values() -> impl proptest::strategy::Strategy<Value = Value> {
    use proptest::prelude::*;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        (-1000_i32..1000).prop_map(|number| Value::from(f64::from(number) / 8.0)),
        "[a-zé'\"\\\\ \n{}\\[\\]=|,]{0,8}".prop_map(|text| Value::from(text.trim())),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,4}", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}
