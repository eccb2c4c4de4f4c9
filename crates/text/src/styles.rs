//! Tests of reply prefixes and of variables of templates.

#![allow(clippy::unwrap_used)]

use serde_json::{Map, json};

use super::testing::{renderer, show, with_template};
use super::{Extension, FormatChoice, Style};
use r1_base::mdp::Message;

/// ChatML that thinks by default, as Qwen3's does.
const THINKING: &str = "{%- for m in messages -%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endfor -%}\
    {%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}\
    {%- if enable_thinking is defined and enable_thinking is false -%}{{ '<think>\n\n</think>\n\n' }}{%- endif -%}{%- endif -%}";

fn prefixed(format: &str) -> std::sync::Arc<super::Renderer> {
    let style =
        Style { reply_prefix: "<think>\n".to_owned(), ..Style::of_format(FormatChoice::named(format).unwrap()) };
    renderer(format).styled(&style).unwrap()
}

/// Runs two replies; returns the ids as text, with « » around sampled text.
fn played(renderer: &super::Renderer, first: &str, ended: bool, answer: Message) -> String {
    let tokenizer = renderer.tokenizer();
    let shown = vec![Message::user("q")];
    let prompt = renderer.prompt(&shown, &[]).unwrap();
    let mut response = tokenizer.encode(first).unwrap();
    response.extend(renderer.stop_ids().first().filter(|_| ended));
    // The reply that the environment receives.
    let reply = format!("{}{first}", renderer.reply_prefix());
    let now = [shown.clone(), vec![Message::assistant(reply.as_str()), answer]].concat();
    let Extension::Appends(added) = renderer.extend(&shown, &response, &reply, &now, &[]).unwrap() else {
        return "rewritten".to_owned();
    };
    let mut mask = vec![false; prompt.len()];
    mask.resize(prompt.len() + response.len(), true);
    mask.resize(mask.len() + added.len(), false);
    show(renderer, &[prompt, response, added].concat(), &mask)
}

#[test]
fn a_reply_prefix_ends_every_prompt_and_is_never_sampled() {
    let hermes = prefixed("hermes");
    assert!(hermes.prompt_text(&[Message::user("q")], &[]).unwrap().ends_with("<|im_start|>assistant\n<think>\n"));
    assert_eq!(
        played(&hermes, "hm</think>a", true, Message::user("more")),
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n«hm</think>a<|im_end|>»\n\
         <|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n<think>\n"
    );
    // A reply that was cut off: the environment ends the turn.
    assert_eq!(
        played(&hermes, "hm", false, Message::user("more")),
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n«hm»<|im_end|>\n\
         <|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n<think>\n"
    );
    let without = hermes.prompt_without_prefix(&[Message::user("q")], &[]).unwrap();
    assert!(hermes.prompt(&[Message::user("q")], &[]).unwrap().len() > without.len());
    let reply = hermes.parse("<think>\nhm</think>a", &[]).unwrap();
    assert_eq!((reply.reasoning.as_deref(), reply.content.as_str()), (Some("hm"), "a"));
}

#[test]
fn a_reply_that_continues_its_turn_has_no_second_prefix() {
    let retool = prefixed("retool");
    assert_eq!(
        played(&retool, "<code>1</code>", false, Message::tool("1")),
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n«<code>1</code>»\n<interpreter>\n1\n</interpreter>\n"
    );
    let answered = [Message::user("q"), Message::assistant("<think>\n<code>1</code>"), Message::tool("1")];
    assert!(!retool.prefixes(&answered, &[]).unwrap());
    assert!(!retool.prompt_text(&answered, &[]).unwrap().ends_with("<think>\n"));
}

#[test]
fn template_variables_are_set_in_every_rendering() {
    let renderer = with_template(THINKING, "thinking", "hermes");
    let kwargs = Map::from_iter([("enable_thinking".to_owned(), json!(false))]);
    let template = renderer.template().with_kwargs(&kwargs).unwrap();
    let text = |template: &super::Template| template.render(&[json!({"role": "user", "content": "q"})], None, true);
    assert!(text(renderer.template()).unwrap().ends_with("<|im_start|>assistant\n"));
    assert!(text(&template).unwrap().ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    let style = Style { template_kwargs: kwargs, ..Style::of_format(FormatChoice::named("hermes").unwrap()) };
    let styled = renderer.styled(&style).unwrap();
    assert!(styled.prompt_text(&[Message::user("q")], &[]).unwrap().ends_with("</think>\n\n"));

    let refused = |name: &str| {
        let kwargs = Map::from_iter([(name.to_owned(), json!(true))]);
        let error = renderer.template().with_kwargs(&kwargs).map(drop).unwrap_err();
        (error.message, error.hint.unwrap_or_default())
    };
    let (message, hint) = refused("enable_thinkng");
    assert_eq!(message, "the chat template does not read `enable_thinkng` (policy.template_kwargs)");
    assert_eq!(hint, "did you mean `enable_thinking`?");
    assert_eq!(refused("messages").0, "`policy.template_kwargs.messages` is what every prompt sets itself");
}
