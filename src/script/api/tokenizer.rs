//! `r1.text.tokenizer`: the tokenizer of a model.

use std::path::Path;
use std::sync::Arc;

use mlua::{Lua, UserData, UserDataFields, UserDataMethods, Value};

use super::apart::{SHORT, apart};
use super::args::{fail, raise, text};
use super::arguments::{Arguments, arguments};
use crate::script::runtime::convert::kind;
use crate::text::Tokenizer;

arguments! {
    /// Options of `Tokenizer:encode`.
    pub(super) struct EncodeOptions {
        add_special_tokens: bool = false;
    }

    /// Options of `Tokenizer:decode`.
    pub(super) struct DecodeOptions {
        skip_special_tokens: bool = false;
    }
}

/// `r1.text.tokenizer(model)`
pub(super) struct TokenizerOf(Arc<Tokenizer>);

pub(super) fn tokenizer(lua: &Lua, dir: &str, options: &Value) -> mlua::Result<TokenizerOf> {
    if !options.is_nil() {
        return Err(fail(lua, "r1.text.tokenizer", "takes no options"));
    }
    Tokenizer::load(Path::new(dir)).map(|tokenizer| TokenizerOf(Arc::new(tokenizer))).map_err(raise)
}

impl UserData for TokenizerOf {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_meta_field(mlua::MetaMethod::Type, "Tokenizer");
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("encode", |lua, this, (string, options): (Value, Value)| {
            let string = text(lua, "encode", "text", &string)?;
            let EncodeOptions { add_special_tokens } = EncodeOptions::read_optional(lua, "encode", &options)?;
            let encode = move |tokenizer: &Tokenizer, text: &str| {
                if add_special_tokens { tokenizer.encode_with_special(text) } else { tokenizer.encode(text) }
            };
            if string.len() <= SHORT {
                return encode(&this.0, &string).map_err(raise);
            }
            let tokenizer = Arc::clone(&this.0);
            apart(lua, "Tokenizer:encode", move || encode(&tokenizer, &string))
        });
        methods.add_method("decode", |lua, this, (list, options): (Value, Value)| {
            let list = ids(lua, "decode", &list)?;
            let DecodeOptions { skip_special_tokens } = DecodeOptions::read_optional(lua, "decode", &options)?;
            Ok(this.0.decode(&list, skip_special_tokens))
        });
        methods.add_method("vocab_size", |_, this, ()| Ok(this.0.vocab_size()));
        methods.add_method("id", |lua, this, token: Value| Ok(this.0.id_of(&text(lua, "id", "token", &token)?)));
    }
}

/// A list of token ids.
pub(crate) fn ids(lua: &Lua, function: &str, value: &Value) -> mlua::Result<Vec<u32>> {
    let Value::Table(list) = value else {
        return Err(fail(lua, function, format!("`ids` must be a list of token ids, got {}", kind(value))));
    };
    (1..=list.raw_len())
        .map(|index| match list.raw_get(index)? {
            Value::Integer(id) if u32::try_from(id).is_ok() => Ok(id as u32),
            other => Err(fail(lua, function, format!("ids[{index}] must be a token id, got {}", kind(&other)))),
        })
        .collect()
}
