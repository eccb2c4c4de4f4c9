//! `r1.reward_model`: scores of a conversation by a reward model.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use mlua::{Lua, Table, Value};
use serde_json::json;

use super::args::{Fields, fail, fail_with, raise};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Failed, Message, Outcome};
use crate::script::runtime::convert::from_answer;
use crate::script::runtime::host::Host;
use crate::script::runtime::messages::messages;
use crate::script::runtime::services::model::{OpenRewardModel, Prompt, Reward, RewardScores};
use crate::script::runtime::services::shared;

const NAME: &str = "r1.reward_model";

/// Numbers of the reward models that this virtual machine has opened, by name.
type Opened = Rc<RefCell<BTreeMap<String, u64>>>;

pub(super) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let (host, opened) = (host.clone(), Opened::default());
    let score = lua.create_async_function(move |lua, options: Value| {
        let call = host.current();
        let arguments = read(&lua, &options);
        let (host, opened) = (host.clone(), opened.clone());
        async move {
            let (name, prompt) = arguments?;
            let shown = match &prompt {
                Prompt::Messages(messages) => json!({ "model": name, "messages": messages }),
                Prompt::Text(text) => json!({ "model": name, "text": text }),
                Prompt::Ids(ids) => json!({ "model": name, "ids": ids }),
            };
            let live = async {
                match ask(&host, &opened, name, prompt).await {
                    Ok(scores) => Ok(Outcome::Ok(scores)),
                    // Errors that the script can fix: a text that is too long.
                    Err(error) if error.kind == Kind::Env => {
                        Ok(Outcome::Failed(Failed { error: error.message, undeclared: false }))
                    }
                    Err(error) => Err(error),
                }
            };
            match call.ask("reward_model", shown, live).await.map_err(raise)? {
                Outcome::Ok(RewardScores { scores, tokens }) => {
                    let found = json!({ "score": scores.first(), "scores": scores, "tokens": tokens });
                    Ok((from_answer(&lua, &found)?, Value::Nil))
                }
                Outcome::Failed(Failed { error, .. }) => Ok((Value::Nil, Value::String(lua.create_string(error)?))),
            }
        }
    })?;
    r1.raw_set("reward_model", score)
}

/// The model and the conversation.
fn read(lua: &Lua, options: &Value) -> mlua::Result<(String, Prompt)> {
    let fields = Fields::new(lua, NAME, options, &["model", "prompt", "text"])?;
    let Some(model) = fields.text("model")? else {
        return Err(fail(lua, NAME, "needs `model`, a directory or a Hub id"));
    };
    let text = fields.text("text")?;
    let mut list = match (fields.get("prompt")?, &text) {
        (Value::String(prompt), None) => return Ok((model, Prompt::Text(prompt.to_string_lossy()))),
        (Value::String(prompt), Some(_)) => vec![Message::user(prompt.to_string_lossy())],
        (Value::Table(list), _) => {
            messages(&list, "prompt").map_err(|invalid| fail_with(lua, NAME, invalid.of_script()))?
        }
        (other, _) => return Err(fields.refuse("prompt", "messages or text", &other)),
    };
    list.extend(text.map(Message::assistant));
    Ok((model, Prompt::Messages(list)))
}

async fn ask(host: &Host, opened: &Opened, name: String, prompt: Prompt) -> Result<RewardScores> {
    let Some(services) = host.services.clone().or_else(shared) else {
        return Err(Error::new(Kind::Script, format!("{NAME}: the model `{name}` can't be opened here")));
    };
    let known = opened.borrow().get(&name).copied();
    let model = match known {
        Some(model) => model,
        None => services.call(OpenRewardModel { name: name.clone() }).await?,
    };
    opened.borrow_mut().insert(name, model);
    services.call(Reward { model, prompt }).await
}
