//! `r1.reward_model`: scores of a conversation by a reward model.

use std::rc::Rc;

use mlua::{Lua, Table, Value};
use serde_json::json;

use super::args::check_text;
use super::arguments::{Arguments, arguments};
use super::logprobs::PromptArgument;
use super::outcome::{OutsideCall, outcome_of};
use crate::mdp::Message;
use crate::script::runtime::bind::bind_async;
use crate::script::runtime::convert::from_answer;
use crate::script::runtime::host::Host;
use crate::script::runtime::named_models::{ModelInput, RewardScores, shared_models};

const NAME: &str = "r1.reward_model";

arguments! {
    /// Arguments of `r1.reward_model`.
    pub(super) struct RewardModelArguments {
        model: String, needs("a directory or a Hub id");
        prompt: PromptArgument;
        text: Option<String>;
    }
}

pub(super) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let host = host.clone();
    bind_async(lua, r1, "reward_model", move |lua, options: Value| {
        let (call, device) = (host.current(), host.policy_device.get());
        let arguments = RewardModelArguments::read(&lua, NAME, &options);
        let outside = OutsideCall::new(&lua, NAME, None);
        async move {
            let RewardModelArguments { model: name, prompt, text } = arguments?;
            let prompt = conversation(prompt, text);
            let (field, shown) = match &prompt {
                ModelInput::Messages(messages) => {
                    check_text(&lua, NAME, messages)?;
                    ("messages", json!(messages))
                }
                ModelInput::Text(text) => {
                    check_text(&lua, NAME, &[Message::user(text.clone())])?;
                    ("text", json!(text))
                }
                ModelInput::Ids(ids) => ("ids", json!(ids)),
            };
            let request = json!({ "model": name, field: shown });
            let live = async { outcome_of(shared_models(NAME, &name)?.reward(&name, device, prompt).await) };
            let convert = |RewardScores { scores, tokens }: RewardScores| {
                from_answer(&lua, &json!({ "score": scores.first(), "scores": scores, "tokens": tokens }))
            };
            outside.answer(&call, ("reward_model", request), live, convert).await
        }
    })
}

/// The conversation to score: a prompt and the answer to it. A text alone is scored as it is.
fn conversation(prompt: PromptArgument, answer: Option<String>) -> ModelInput {
    match (prompt, answer) {
        (PromptArgument::Text(text), None) => ModelInput::Text(text),
        (prompt, answer) => {
            let mut messages = prompt.messages();
            messages.extend(answer.map(Message::assistant));
            ModelInput::Messages(messages)
        }
    }
}
