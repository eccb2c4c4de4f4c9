//! `r1.reward_model`: scores of a conversation by a reward model.

use std::rc::Rc;

use mlua::{Lua, Table, Value};
use serde_json::json;

use super::args::{check_text, raise};
use super::arguments::{Arguments, arguments};
use super::logprobs::PromptArgument;
use crate::error::Kind;
use crate::mdp::{Failed, Message, Outcome};
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
    let score = lua.create_async_function(move |lua, options: Value| {
        let call = host.current();
        let arguments = RewardModelArguments::read(&lua, NAME, &options);
        async move {
            let RewardModelArguments { model: name, prompt, text } = arguments?;
            let prompt = conversation(prompt, text);
            match &prompt {
                ModelInput::Messages(messages) => check_text(&lua, NAME, messages)?,
                ModelInput::Text(text) => check_text(&lua, NAME, &[Message::user(text.clone())])?,
                ModelInput::Ids(_) => {}
            }
            let shown = match &prompt {
                ModelInput::Messages(messages) => json!({ "model": name, "messages": messages }),
                ModelInput::Text(text) => json!({ "model": name, "text": text }),
                ModelInput::Ids(ids) => json!({ "model": name, "ids": ids }),
            };
            let live = async {
                match shared_models(NAME, &name)?.reward(&name, prompt).await {
                    Ok(scores) => Ok(Outcome::Ok(scores)),
                    // Errors that the script can fix: a text that is too long.
                    Err(error) if error.kind == Kind::Env => {
                        Ok(Outcome::Failed(Failed { error: error.message, undeclared: false }))
                    }
                    Err(error) => Err(error),
                }
            };
            match call.external("reward_model", shown, live).await.map_err(raise)? {
                Outcome::Ok(RewardScores { scores, tokens }) => {
                    let result = json!({ "score": scores.first(), "scores": scores, "tokens": tokens });
                    Ok((from_answer(&lua, &result)?, Value::Nil))
                }
                Outcome::Failed(Failed { error, .. }) => Ok((Value::Nil, Value::String(lua.create_string(error)?))),
            }
        }
    })?;
    r1.raw_set("reward_model", score)
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
