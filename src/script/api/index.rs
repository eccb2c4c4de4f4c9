//! `r1.text.index`: an index of texts for many queries. The index of a resource is built once per
//! process.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use mlua::{Lua, Table, UserData, UserDataFields, UserDataMethods, Value};

use super::args::{fail, in_time, optional, raise, text};
use super::argument::{NonNegative, argument};
use super::arguments::{Arguments, arguments};
use super::resource::ResourceOf;
use crate::config::Limits;
use crate::error::Error;
use crate::script::runtime::convert::{float, kind};
use crate::script::runtime::host::place;
use crate::script::runtime::rank::{Bm25Weights, TextIndex};

const NAME: &str = "r1.text.index";

/// Default number of results of a search.
pub(super) const MOST: usize = 10;

arguments! {
    /// Options of `r1.text.index`.
    pub(super) struct IndexOptions {
        column: Option<String>;
        k1: NonNegative = NonNegative(Bm25Weights::default().k1);
        b: Share = Share(Bm25Weights::default().b);
    }
}

/// A number from 0 to 1.
pub(super) struct Share(pub(super) f64);

argument!(Share, "a number from 0 to 1", |value| float(value).filter(|number| (0.0..=1.0).contains(number)).map(Self));

/// Bytes of the indexes that a virtual machine has built of lists; Lua's allocator does not count
/// them.
#[derive(Clone, Default)]
struct IndexBytes(Rc<Cell<usize>>);

pub(super) fn install(lua: &Lua, table: &Table) -> mlua::Result<()> {
    lua.set_app_data(IndexBytes::default());
    table.raw_set("index", lua.create_function(|lua, (texts, options): (Value, Value)| index(lua, &texts, &options))?)
}

fn index(lua: &Lua, texts: &Value, options: &Value) -> mlua::Result<IndexOf> {
    let IndexOptions { column, k1, b } = IndexOptions::read_optional(lua, NAME, options)?;
    let weights = Bm25Weights { k1: k1.0, b: b.0 };
    match texts {
        Value::UserData(data) if data.is::<ResourceOf>() => {
            let resource = Arc::clone(&data.borrow::<ResourceOf>()?.resource);
            let index = resource.index(column.as_deref().unwrap_or("text"), weights).map_err(|error| {
                raise(Error { message: format!("{NAME}: {}", error.message), place: place(lua), ..error })
            })?;
            Ok(IndexOf { index, held: None })
        }
        Value::Table(_) if column.is_some() => Err(fail(lua, NAME, "`column` is for resources; a list has texts")),
        Value::Table(list) => of_list(lua, list, weights),
        other => Err(fail(lua, NAME, format!("takes a list of texts or a resource, got {}", kind(other)))),
    }
}

fn of_list(lua: &Lua, list: &Table, weights: Bm25Weights) -> mlua::Result<IndexOf> {
    let held = lua.app_data_ref::<IndexBytes>().map(|held| held.clone()).unwrap_or_default();
    let limit = lua.app_data_ref::<Limits>().map_or(usize::MAX, |limits| limits.memory << 20);
    let mut index = TextIndex::new(weights);
    for number in 1..=list.raw_len() {
        in_time(lua)?;
        index.add(&text(lua, NAME, &format!("texts[{number}]"), &list.raw_get(number)?)?);
        if held.0.get() + index.bytes() > limit {
            // The collection frees unused indexes.
            lua.gc_collect()?;
            if held.0.get() + index.bytes() > limit {
                let why = format!("the indexes take more memory than limits.memory = {} MiB", limit >> 20);
                return Err(fail(lua, NAME, why));
            }
        }
    }
    index.finish();
    let bytes = index.bytes();
    held.0.set(held.0.get() + bytes);
    Ok(IndexOf { index: Arc::new(index), held: Some((held, bytes)) })
}

struct IndexOf {
    index: Arc<TextIndex>,
    /// For an index owned by the virtual machine: its size.
    held: Option<(IndexBytes, usize)>,
}

impl Drop for IndexOf {
    fn drop(&mut self) {
        if let Some((held, bytes)) = &self.held {
            held.0.set(held.0.get().saturating_sub(*bytes));
        }
    }
}

impl UserData for IndexOf {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_meta_field(mlua::MetaMethod::Type, "TextIndex");
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_meta_method(mlua::MetaMethod::Len, |_, this, ()| Ok(this.index.len()));
        methods.add_method("search", |lua, this, (query, limit): (Value, Value)| {
            let query = text(lua, "search", "query", &query)?;
            let limit: Option<usize> = optional(lua, "search", "k", &limit)?;
            matches(lua, this.index.search(&query, limit.unwrap_or(MOST), || in_time(lua))?)
        });
    }
}

/// Indexes of texts (from 0) and scores as `{ { index =, score = }, … }`.
pub(super) fn matches(lua: &Lua, places: Vec<(usize, f64)>) -> mlua::Result<Table> {
    let list = lua.create_table_with_capacity(places.len(), 0)?;
    for (number, score) in places {
        let entry = lua.create_table_with_capacity(0, 2)?;
        entry.raw_set("index", number + 1)?;
        entry.raw_set("score", score)?;
        list.raw_push(entry)?;
    }
    Ok(list)
}
