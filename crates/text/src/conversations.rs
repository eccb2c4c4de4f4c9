//! Tests of token-in/token-out: conversations are extended by a renderer as in a rollout, with
//! made-up replies.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::testing::{real, real_with, renderer, renderer_of, show, with_template};
use super::{Extension, Format, Renderer};
use crate::reference_data::reference_data;
use r1_base::mdp::{Message, ToolCall};

/// Collects the ids of replies and environment messages, and a mask of the policy's ids.
struct Play<'a> {
    renderer: &'a Renderer,
    tools: Vec<Value>,
    messages: Vec<Message>,
    ids: Vec<u32>,
    mask: Vec<bool>,
}

impl<'a> Play<'a> {
    fn new(renderer: &'a Renderer, tools: Vec<Value>, messages: Vec<Message>) -> Self {
        let ids = renderer.prompt(&messages, &tools).unwrap();
        let mask = vec![false; ids.len()];
        Self { renderer, tools, messages, ids, mask }
    }

    /// One step: the policy samples `reply` (and may end its turn), then the environment's
    /// `answers` are appended.
    fn step(&mut self, reply: &str, ended: bool, answers: Vec<Message>) -> Extension {
        self.step_as(reply, ended, Message::assistant(reply), answers)
    }

    fn step_as(&mut self, reply: &str, ended: bool, message: Message, answers: Vec<Message>) -> Extension {
        let marker = self.renderer.marker.clone();
        self.end_with(reply, ended.then_some(marker.as_str()), message, answers)
    }

    /// A reply that ends with the token `end`.
    fn end_with(&mut self, reply: &str, end: Option<&str>, message: Message, answers: Vec<Message>) -> Extension {
        let mut response = self.renderer.tokenizer().encode(reply).unwrap();
        if let Some(end) = end {
            response.push(self.renderer.tokenizer().id_of(end).unwrap());
        }
        let shown = self.messages.clone();
        self.messages.push(message);
        self.messages.extend(answers);
        let extension = self.renderer.extend(&shown, &response, reply, &self.messages, &self.tools).unwrap();
        self.ids.extend(&response);
        self.mask.resize(self.ids.len(), true);
        if let Extension::Appends(new) = &extension {
            self.ids.extend(new);
            self.mask.resize(self.ids.len(), false);
        }
        extension
    }

    fn show(&self) -> String {
        show(self.renderer, &self.ids, &self.mask)
    }
}

#[test]
fn hermes_results_are_a_separate_turn() {
    let renderer = renderer("hermes");
    let mut play = Play::new(&renderer, vec![], vec![Message::user("q")]);
    play.step("<tool_call>\n{}\n</tool_call>", true, vec![Message::tool("a"), Message::tool("b")]);
    play.step("cut off", false, vec![Message::user("go on")]);
    assert_eq!(
        play.show(),
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n«<tool_call>\n{}\n</tool_call><|im_end|>»\n\
         <|im_start|>user\n<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response><|im_end|>\n\
         <|im_start|>assistant\n«cut off»<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn retool_results_are_inside_the_assistant_turn() {
    let renderer = renderer("retool");
    let mut play = Play::new(&renderer, vec![], vec![Message::user("q")]);
    play.step("<code>1</code>", false, vec![Message::tool("1")]);
    play.step("hm <code>2</code>", false, vec![Message::tool("2")]);
    // The policy ends its turn inside an open block; the environment reports it.
    play.step("<code>3", true, vec![Message::tool("not closed")]);
    play.step("4", true, vec![]);
    assert_eq!(
        play.show(),
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n«<code>1</code>»\n<interpreter>\n1\n</interpreter>\n\
         «hm <code>2</code>»\n<interpreter>\n2\n</interpreter>\n«<code>3<|im_end|>»\n<|im_start|>user\n\
         <interpreter>\nnot closed\n</interpreter><|im_end|>\n<|im_start|>assistant\n«4<|im_end|>»\n\
         <|im_start|>assistant\n"
    );
}

#[test]
fn a_reply_stored_as_parsed_calls_still_appends() {
    let renderer = renderer("hermes");
    let reply = "<think>hm</think>Let me see. <tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call>";
    let mut message = Message::assistant("Let me see.");
    message.reasoning_content = Some("hm".to_owned());
    message.tool_calls = vec![ToolCall { id: None, name: "f".to_owned(), arguments: json!({"a": 1}) }];
    let mut play = Play::new(&renderer, vec![], vec![Message::user("q")]);
    let extension = play.step_as(reply, true, message.clone(), vec![Message::tool("1")]);
    assert!(matches!(extension, Extension::Appends(_)));
    assert!(play.show().contains(&format!("«{reply}<|im_end|>»\n<|im_start|>user\n<tool_response>")));
    // A different call, reasoning or content means that the environment rewrote the reply.
    for change in [
        |message: &mut Message| message.tool_calls[0].arguments = json!({"a": 2}),
        |message: &mut Message| message.reasoning_content = None,
        |message: &mut Message| message.content = "Let me look.".into(),
    ] {
        let mut changed = message.clone();
        change(&mut changed);
        let mut play = Play::new(&renderer, vec![], vec![Message::user("q")]);
        assert_eq!(play.step_as(reply, true, changed, vec![Message::tool("1")]), Extension::Rewrites);
    }
}

#[test]
fn a_changed_earlier_message_is_a_rewrite() {
    let renderer = renderer("hermes");
    let shown = [Message::user("q")];
    let extend = |now: &[Message]| renderer.extend(&shown, &[2], "", now, &[]).unwrap();
    let reply = Message::assistant("");
    assert!(matches!(extend(&[shown[0].clone(), reply.clone(), Message::user("r")]), Extension::Appends(_)));
    for now in [
        vec![],
        vec![shown[0].clone()],
        vec![Message::user("other"), reply.clone(), Message::user("r")],
        vec![shown[0].clone(), Message::user("r")],
        vec![reply],
    ] {
        assert_eq!(extend(&now), Extension::Rewrites, "{now:?}");
    }
}

#[test]
fn images_are_refused_by_a_text_only_policy() {
    let renderer = renderer("hermes");
    let image = r1_base::mdp::Part::Image { hash: "ab12".to_owned() };
    let message = Message::user(r1_base::mdp::Content::Parts(vec![image]));
    let error = renderer.prompt(&[message], &[]).unwrap_err();
    assert_eq!(error.message, "this policy can't see image ab12");
}

#[test]
fn stop_ids_come_from_the_model_files() {
    let renderer = renderer("retool");
    assert_eq!(*renderer.stop_ids(), [2, 0]);
    assert_eq!(renderer.stop_strings(), ["</code>"]);
}

/// Strings that policies and environments write: letters, white space, tags of some formats.
fn text() -> impl Strategy<Value = String> {
    let bits = prop::sample::select(vec![
        " ",
        "\n",
        "\n\n",
        "a",
        "the answer",
        " is ",
        "12",
        "é",
        "👋🏽",
        "<code>",
        "</code>",
        "<answer>",
        "{\"a\": 1}",
        "<tool_call>",
        "</tool_call>",
        "<interpreter>",
        "</interpreter>",
        "```python\n",
        "\n```\n",
        "```output",
        "</think>",
        "[f(a=1)]",
        ".",
    ]);
    prop::collection::vec(bits, 0..8).prop_map(|bits| bits.concat())
}

/// Messages of the environment after a reply, all of one role.
fn answers() -> impl Strategy<Value = Vec<Message>> {
    prop_oneof![
        prop::collection::vec(text().prop_map(Message::tool), 1..3),
        text().prop_map(|text| vec![Message::user(text)]),
        (text(), text()).prop_map(|(tool, user)| vec![Message::tool(tool), Message::user(user)]),
        Just(vec![]),
    ]
}

/// The ids built step by step must equal the ids of the whole conversation and the ids of
/// supervised training.
fn grows_as_it_is_rendered(renderer: &Renderer, steps: &[(String, Vec<Message>)]) -> Result<(), TestCaseError> {
    let mut play = Play::new(renderer, vec![], vec![Message::system("s"), Message::user("q")]);
    for (reply, answers) in steps {
        let waits = renderer.format().leaves_open(reply);
        // A reply with an interpreter block after its code would have been stopped earlier.
        if renderer.format().name() == "retool" && reply.trim_end().trim_end_matches("</code>").contains("</code>") {
            return Ok(());
        }
        if renderer.format().name() == "tir" && reply.trim_end().trim_end_matches("```output").contains("```output") {
            return Ok(());
        }
        let before = play.ids.clone();
        let extension = play.step(reply, !waits, answers.clone());
        prop_assert!(matches!(extension, Extension::Appends(_)));
        prop_assert_eq!(&play.ids[..before.len()], &before[..]);
    }
    prop_assert_eq!(&renderer.prompt(&play.messages, &[]).unwrap(), &play.ids);
    let supervised = renderer.supervised(&play.messages, &[]).unwrap();
    let sampled = |ids: &[u32], mask: &[bool]| -> Vec<u32> {
        ids.iter().zip(mask).filter_map(|(&id, &sampled)| sampled.then_some(id)).collect()
    };
    prop_assert_eq!(sampled(&supervised.ids, &supervised.mask), sampled(&play.ids, &play.mask));
    let same = supervised.ids.iter().zip(&play.ids).take_while(|(a, b)| a == b).count();
    let last = play.mask.iter().rposition(|sampled| *sampled).unwrap_or_default();
    prop_assert!(same > last, "{} {}", same, last);
    Ok(())
}

#[test]
fn extended_conversations_equal_full_renderings() {
    // Harmony's headers do not occur in a ChatML template; it has its own test.
    for format in Format::all().filter(|format| format.name() != "harmony") {
        let renderer = renderer_of(format);
        let steps = prop::collection::vec((text(), answers()), 1..6);
        proptest!(ProptestConfig::with_cases(150), |(steps in steps)| {
            grows_as_it_is_rendered(&renderer, &steps)?;
        });
    }
}

#[test]
fn real_chatml_templates_extend_to_the_full_rendering() {
    for name in ["llamacpp__Qwen-Qwen2.5-7B-Instruct", "trl__qwen3_instruct_2507"] {
        for format in ["hermes", "retool", "tir", "answer"] {
            let renderer = real(name, format);
            assert!(renderer.probed(), "{name}");
            proptest!(ProptestConfig::with_cases(20), |(steps in prop::collection::vec((text(), answers()), 1..5))| {
                grows_as_it_is_rendered(&renderer, &steps)?;
            });
        }
    }
}

/// Qwen3 keeps the reasoning after the last question and drops earlier reasoning: only the first
/// case can be extended.
#[test]
fn a_template_that_drops_reasoning_rewrites() {
    let renderer = real("llamacpp__Qwen-Qwen3-0.6B", "hermes");
    assert!(!renderer.probed());
    let call = "<think>\nhm\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let mut play = Play::new(&renderer, vec![], vec![Message::user("q")]);
    assert!(matches!(play.step(call, true, vec![Message::tool("r")]), Extension::Appends(_)));
    assert!(matches!(play.step("<think>\nso\n</think>\n\n1", false, vec![Message::tool("r")]), Extension::Appends(_)));
    assert_eq!(
        play.show(),
        format!(
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n«{call}<|im_end|>»\n<|im_start|>user\n\
             <tool_response>\nr\n</tool_response><|im_end|>\n<|im_start|>assistant\n«<think>\nso\n</think>\n\n1»<|im_end|>\n\
             <|im_start|>user\n<tool_response>\nr\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        )
    );
    assert_eq!(play.step("2", true, vec![Message::user("next")]), Extension::Rewrites);
    // Without reasoning nothing is dropped.
    let mut play = Play::new(&renderer, vec![], vec![Message::user("q")]);
    assert!(matches!(play.step("1", true, vec![Message::user("next")]), Extension::Appends(_)));
    let supervised = renderer.supervised(&[Message::user("q"), Message::assistant(call)], &[]).unwrap();
    let expected = format!("<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n«{call}<|im_end|>»\n");
    assert_eq!(show(&renderer, &supervised.ids, &supervised.mask), expected);
}

/// Calls rendered by the template: either the sampled reply stays and the result is appended, or
/// the template changes earlier text and the step is a rewrite. Prints which templates do what.
#[test]
#[ignore = "needs the reference data: just test-data"]
fn native_tool_calls_extend_in_real_templates() {
    const EOS: &str = "<｜end▁of▁sentence｜>";
    let tools = [json!({"type": "function", "function": {"name": "f", "description": "d",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}})];
    for (name, format, ends, appends) in [
        ("llamacpp__Qwen3-Coder", "qwen3_coder", ["<|im_end|>", "<|im_end|>"], [true, true]),
        ("llamacpp__meta-llama-Llama-3.1-8B-Instruct", "llama3", ["<|eot_id|>", "<|eot_id|>"], [true, true]),
        ("vllm__tool_chat_template_llama3.2_pythonic", "pythonic", ["<|eot_id|>", "<|eot_id|>"], [true, true]),
        ("llamacpp__mistralai-Mistral-Nemo-Instruct-2407", "mistral", ["</s>", "</s>"], [true, false]),
        ("llamacpp__Mistral-Small-3.2-24B-Instruct-2506", "mistral", ["</s>", "</s>"], [true, false]),
        ("sglang__tool_chat_template_deepseekv3", "deepseek_v3", [EOS, EOS], [true, true]),
        ("llamacpp__deepseek-ai-DeepSeek-V3.1", "deepseek_v31", [EOS, EOS], [true, true]),
        ("llamacpp__openai-gpt-oss-120b", "harmony", ["<|call|>", "<|return|>"], [true, true]),
    ] {
        let renderer = real_with(name, format, ends[1], &ends[..1]);
        let call = ToolCall { id: None, name: "f".to_owned(), arguments: json!({"a": 1}) };
        let reply = renderer.format().write(String::new(), &[call]).unwrap();
        let last = if format == "harmony" { "<|channel|>final<|message|>It is 42." } else { "It is 42." };
        let mut play = Play::new(&renderer, tools.to_vec(), vec![Message::user("q")]);
        let steps = [(reply.as_str(), ends[0], Message::tool("42")), (last, ends[1], Message::user("why"))];
        let appended = steps.map(|(reply, end, answer)| {
            let extension = play.end_with(reply, Some(end), Message::assistant(reply), vec![answer]);
            let grown = matches!(extension, Extension::Appends(_));
            if grown {
                // The template may format a call differently from the policy: the sampled text
                // stays.
                let text = renderer.tokenizer().decode(&play.ids, false);
                let rendered = renderer.prompt_text(&play.messages, &tools).unwrap();
                let after = |text: &str| text.rsplit_once(end).map(|(_, after)| after.to_owned());
                if format != "harmony" {
                    assert_eq!(after(&text), after(&rendered), "{name}");
                }
                assert!(text.contains(&format!("{reply}{end}")), "{name}: {text}");
            }
            grown
        });
        eprintln!("{name} ({format}): appends {appended:?}");
        assert_eq!(appended, appends, "{name}");
    }
}

/// The prompt opens the reasoning block; the environment keeps reasoning and content separately.
#[test]
fn reasoning_opened_by_the_prompt_matches_the_reply() {
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think>\n\
         {{ m.reasoning_content }}\n</think>\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}\
         {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}";
    let renderer = with_template(template, "begun", "hermes");
    let reply = "hm\n</think>\n4";
    let parsed = renderer.parse(reply, &[]).unwrap();
    assert_eq!((parsed.reasoning.as_deref(), parsed.content.as_str()), (Some("hm"), "4"));
    let mut message = Message::assistant(parsed.content);
    message.reasoning_content = parsed.reasoning;
    let mut play = Play::new(&renderer, vec![], vec![Message::user("q")]);
    assert!(matches!(play.step_as(reply, true, message, vec![Message::user("r")]), Extension::Appends(_)));
    assert_eq!(
        play.show(),
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n«hm\n</think>\n4<|im_end|>»\n\
         <|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n<think>\n"
    );
}

/// Every real template that accepts a plain conversation: the text built step by step equals the
/// text rendered at once, or the step is a rewrite. Prints the counts.
#[test]
#[ignore = "needs the reference data: just test-data"]
fn every_real_template_appends_or_rewrites() {
    let dir = reference_data("chat-templates/templates");
    let (mut probed, mut compared, mut rewritten, mut refused) = (0, 0, Vec::new(), Vec::new());
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.extension().is_none_or(|extension| extension != "jinja") {
            continue;
        }
        let renderer = real(&name, "hermes");
        let first = [Message::user("q")];
        let whole = [first.to_vec(), vec![Message::assistant("It is 4."), Message::user("why?")]].concat();
        let renders = |messages: &[Message]| renderer.prompt_text(messages, &[]).is_ok_and(|text| text.contains('q'));
        if !renders(&first) || !renders(&whole) {
            refused.push(name);
            continue;
        }
        let mut play = Play::new(&renderer, vec![], first.to_vec());
        let grown = [("It is 4.", "why?"), ("Because.", "I see")].iter().all(|(reply, answer)| {
            matches!(play.step(reply, false, vec![Message::user(*answer)]), Extension::Appends(_))
        });
        if !grown {
            rewritten.push(name);
            continue;
        }
        let text = renderer.tokenizer().decode(&play.ids, false);
        let rendered = renderer.prompt_text(&play.messages, &[]).unwrap();
        // Mistral's templates print a space before a reply that their prompt lacks, Kimi's an empty
        // reasoning block: the sampled text stays.
        let dense = |text: &str| text.split_whitespace().collect::<String>().replace("<think></think>", "");
        assert_eq!(dense(&text), dense(&rendered), "{name}");
        *(if renderer.probed() { &mut probed } else { &mut compared }) += 1;
    }
    eprintln!("{probed} templates probed, {compared} compared; rewrite: {rewritten:?}; no plain chat: {refused:?}");
    assert!(probed > 60, "{probed}");
}
