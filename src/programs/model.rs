//! `r1.model(dir_or_id, options)`: direct use of a model.

use std::rc::Rc;

use mlua::{AnyUserData, Lua, Table, Value};
use serde_json::{Map, Value as Json};

use super::call::{Held, call};
use super::open_model::OpenModel;
use crate::config::PolicySettings;
use crate::schema::Section;
use crate::script::api::args::{answer, fail, raise_here, text};
use crate::script::api::arguments::Arguments;
use crate::script::api::model_options::{LogprobsOptions, OpenOptions, SampleOptions};
use crate::script::api::seal;
use crate::script::api::tokenizer::ids;
use crate::script::named_models::{ModelInput, ResponseOptions, ResponseRequest};
use crate::script::runtime::bind::{bind, bind_async};
use crate::script::runtime::convert::{NonJson, kind, to_json};
use crate::script::settings::section;
use crate::telemetry::Reporter;

pub(super) fn install(lua: &Lua, r1: &Table, reporter: &Reporter) -> mlua::Result<()> {
    let meta = lua.create_table()?;
    meta.raw_set("__index", methods(lua)?)?;
    meta.raw_set("__metatable", false)?;
    meta.set_readonly(true);
    let reporter = reporter.clone();
    bind_async(lua, r1, "model", move |lua, (name, options): (Value, Value)| {
        let (reporter, meta) = (reporter.clone(), meta.clone());
        async move {
            const NAME: &str = "r1.model";
            let name = text(&lua, NAME, "model", &name)?;
            let OpenOptions { format, policy } = OpenOptions::read_optional(&lua, NAME, &options)?;
            let policy: PolicySettings =
                section("policy", &Json::Object(policy)).map_err(|error| raise_here(&lua, error))?;
            let policy = PolicySettings { model: name, ..policy };
            let opened = call(&lua, async move { OpenModel::open(policy, format.as_deref(), &reporter) }).await?;
            let model = lua.create_table()?;
            model.raw_set(HANDLE, lua.create_userdata(Held(Rc::new(opened)))?)?;
            model.set_metatable(Some(meta))?;
            model.set_readonly(true);
            Ok(model)
        }
    })
}

/// The field of an open model with the host's handle.
const HANDLE: &str = "handle";

/// The handle of an open model; `None` for other values.
pub(super) fn handle(value: &Value) -> Option<AnyUserData> {
    let held: AnyUserData = value.as_table()?.raw_get(HANDLE).ok()?;
    held.is::<Held<OpenModel>>().then_some(held)
}

/// The model of `self`.
fn model_of(lua: &Lua, method: &str, this: &Value) -> mlua::Result<Rc<OpenModel>> {
    let Some(held) = handle(this) else { return Err(fail(lua, method, format!("call it as model:{method}(…)"))) };
    Ok(held.borrow::<Held<OpenModel>>()?.0.clone())
}

/// The methods. Created while the VM still has the globals needed to build async functions.
fn methods(lua: &Lua) -> mlua::Result<Table> {
    let methods = lua.create_table()?;
    bind_async(lua, &methods, "logprobs", |lua, (this, list, options): (Value, Value, Value)| async move {
        let model = model_of(&lua, "logprobs", &this)?;
        let ids = ids(&lua, "logprobs", &list)?;
        let LogprobsOptions { top, temperature } = LogprobsOptions::read_optional(&lua, "logprobs", &options)?;
        let scored = call(&lua, async move { model.logprobs(&ids, top, temperature) }).await?;
        Ok((answer(&lua, &scored.logprobs)?, answer(&lua, &scored.top)?))
    })?;
    bind_async(lua, &methods, "logits", |lua, (this, list): (Value, Value)| async move {
        let model = model_of(&lua, "logits", &this)?;
        let ids = ids(&lua, "logits", &list)?;
        answer(&lua, &call(&lua, async move { model.logits(&ids) }).await?)
    })?;
    bind_async(lua, &methods, "generate", |lua, (this, prompt, options): (Value, Value, Value)| async move {
        const NAME: &str = "generate";
        let model = model_of(&lua, NAME, &this)?;
        if !matches!(options, Value::Nil | Value::Table(_)) {
            return Err(fail(&lua, NAME, format!("options must be a table, got {}", kind(&options))));
        }
        let SampleOptions { logit_bias, others } = SampleOptions::read_optional(&lua, NAME, &options)?;
        let of_response = |(name, _): &(String, _)| ResponseOptions::FIELDS.contains(&name.as_str());
        let (options, mut sampling): (Map<_, _>, Map<_, _>) = others.into_iter().partition(of_response);
        sampling.extend(logit_bias.map(|bias| ("logit_bias".to_owned(), Json::Object(bias.0))));
        let options: ResponseOptions =
            section("sampling", &Json::Object(options)).map_err(|error| raise_here(&lua, error))?;
        let prompt = to_json(&prompt, "prompt", NonJson::Refuse).map_err(|why| fail(&lua, NAME, why))?;
        let prompt = ModelInput::try_from(prompt).map_err(|error| raise_here(&lua, error))?;
        let request = ResponseRequest { prompt, options, sampling: sampling.into() };
        answer(&lua, &call(&lua, async move { model.generate(request).await }).await?)
    })?;
    bind(lua, &methods, "config", |lua, this: Value| {
        answer(lua, &model_of(lua, "config", &this)?.model.config.to_json())
    })?;
    seal(lua, "model", &methods)?;
    Ok(methods)
}
