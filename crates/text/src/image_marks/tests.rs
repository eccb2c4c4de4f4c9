//! Prompts with images in tiles, for a template that takes contents as parts.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use r1_base::mdp::{Content, Message, Part, image_number};
use r1_vision::{DecodeLimits, Images, Processor};
use serde_json::{Value, json};

use crate::testing::corpus;
use crate::{Extension, Renderer, train_tokenizer};

/// In the manner of SmolVLM: a colon, and a space unless an image follows.
const TEMPLATE: &str = "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}:\
    {% if message['content'][0]['type'] != 'image' %} {% endif %}{% for part in message['content'] %}\
    {% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}{{ '<image>' }}{% endif %}\
    {% endfor %}<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}";

fn renderer() -> Renderer {
    let dir = tempfile::tempdir().unwrap();
    let tokens = ["<fake_token_around_image>", "<image>", "<global-img>", "<row_1_col_1>", "<end_of_utterance>"];
    train_tokenizer(corpus(), 360, &tokens.map(str::to_owned)).unwrap().save(dir.path()).unwrap();
    std::fs::write(dir.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    let path = dir.path().join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for token in tokenizer["added_tokens"].as_array_mut().unwrap() {
        token["special"] = true.into();
    }
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let renderer = Renderer::load(dir.path(), "hermes").unwrap();
    let processor = Processor::from_json(&json!({
        "image_processor_type": "SmolVLMImageProcessor", "patch_size": 4, "merge_size": 2, "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5], "size": { "longest_edge": 16 }, "max_image_size": { "longest_edge": 8 },
    }));
    let images = Images::new(processor.unwrap(), DecodeLimits::default());
    images.add_rgb(&[7; 3 * 64], 8).unwrap();
    renderer.tokenizer().set_images(Arc::new(images)).unwrap();
    renderer
}

fn with_image(renderer: &Renderer, before: &str, after: &str) -> Message {
    let hash = renderer.images().unwrap().image(0).unwrap().hash.clone();
    let text = |text: &str| Part::Text { text: text.to_owned() };
    let parts = [text(before), Part::Image { hash }, text(after)];
    let parts = parts.into_iter().filter(|part| *part != text("")).collect();
    Message::user(Content::Parts(parts))
}

#[test]
fn tiles_are_in_the_place_of_the_image_that_the_template_prints() {
    let renderer = renderer();
    let around = "<fake_token_around_image>";
    let image = format!(
        "{around}<row_1_col_1><image>{around}<row_1_col_2><image>\n{around}<row_2_col_1><image>{around}<row_2_col_2>\
         <image>\n\n{around}<global-img><image>{around}"
    );
    let prompt = |messages: &[Message]| renderer.prompt(messages, &[]).unwrap();
    let text = |ids: &[u32]| renderer.tokenizer().decode(ids, false);
    let asked = prompt(&[with_image(&renderer, "", "What is it?")]);
    assert_eq!(text(&asked), format!("<|im_start|>User:{image}What is it?<end_of_utterance>\nAssistant:"));
    assert_eq!(asked.iter().filter(|id| image_number(**id) == Some(0)).count(), 5);
    let messages = [Message::user("Hello"), Message::assistant("Yes"), with_image(&renderer, "See ", "")];
    let expected = format!(
        "<|im_start|>User: Hello<end_of_utterance>\nAssistant: Yes<end_of_utterance>\nUser: See {image}\
         <end_of_utterance>\nAssistant:"
    );
    assert_eq!(text(&prompt(&messages)), expected);
    // A text that spells the token is no image.
    let spelled = prompt(&[with_image(&renderer, "An <image> of", "")]);
    assert!(text(&spelled).starts_with(&format!("<|im_start|>User: An <image> of{image}")), "{}", text(&spelled));
    assert_eq!(spelled.iter().filter(|id| image_number(**id) == Some(0)).count(), 5);
}

#[test]
fn a_conversation_with_tiles_continues_by_its_new_ids() {
    let renderer = renderer();
    for image in [with_image(&renderer, "", "?"), with_image(&renderer, "Now ", "")] {
        let shown = [with_image(&renderer, "", "What?")];
        let reply = renderer.tokenizer().encode(" Yes<end_of_utterance>").unwrap();
        let now = [shown[0].clone(), Message::assistant("Yes"), image];
        let Extension::Appends(ids) = renderer.extend(&shown, &reply, " Yes", &now, &[]).unwrap() else {
            panic!("the prompt was rewritten")
        };
        let continued = [renderer.prompt(&shown, &[]).unwrap(), reply, ids].concat();
        assert_eq!(continued, renderer.prompt(&now, &[]).unwrap());
    }
}
