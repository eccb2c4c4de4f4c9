//! `r1.index.open`: an index of passages on disk, for searches by scripts.

use std::path::PathBuf;
use std::rc::Rc;

use mlua::{Function, Lua, Table, UserData, UserDataFields, UserDataMethods, Value};
use serde_json::{Map, Value as Json, json};

use super::args::{FromField, TableFields, fail, fail_with, no_field, raise, text};
use super::argument::Whole;
use super::arguments::{Arguments, arguments};
use crate::error::{Error, Kind, Result};
use crate::script::runtime::convert::{from_json, kind};
use crate::script::runtime::grants::Grants;
use crate::script::runtime::host::{Host, misuse};
use crate::script::runtime::passages::{Passages, SearchPart};
use crate::search::{Hit, MOST_CANDIDATES, MOST_HITS, Mode, RerankOptions, SearchOptions};
use crate::tools::thread::on_thread;

const NAME: &str = "r1.index.open";
const SEARCH: &str = "search";
const SEARCH_KEY: &str = "r1.index.search";
/// Default number of hits.
const HITS: u64 = 5;
/// Maximum number of queries of one call.
const QUERIES: usize = 10_000;

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    lua.set_named_registry_value(SEARCH_KEY, search(lua)?)?;
    let table = lua.create_table()?;
    let shared_host = Rc::clone(host);
    let open = move |lua: &Lua, directory: Value| {
        let name = text(lua, NAME, "directory", &directory)?;
        let passages = named(&shared_host, name);
        match &*shared_host.grants.borrow() {
            Grants::Everything => drop(passages.open().map_err(|error| fail_with(lua, NAME, error))?),
            // A recipe may be loaded for a replay, which needs no index: it is opened before a run.
            Grants::Loading { .. } => shared_host.searches.borrow_mut().push(SearchPart::Index(passages.clone())),
            // The run's record would not have its version.
            Grants::Declared { .. } => {
                let error = misuse(lua, format!("{NAME}(\"{}\") after loading", passages.name));
                return Err(raise(error.hint("open indexes at the top of the script")));
            }
        }
        Ok(IndexHandle { passages, host: Rc::clone(&shared_host) })
    };
    table.raw_set("open", lua.create_function(open)?)?;
    super::namespace(lua, r1, "r1.index", table)
}

/// An index by its path: relative to the script of a recipe, or to the current directory.
pub(super) fn named(host: &Host, name: String) -> Passages {
    Passages::new(name, host.grants.borrow().directory(), host.search_models.get())
}

/// Number of hits.
pub(super) type Hits = Whole<1, { MOST_HITS as u64 }>;

arguments! {
    /// Options of `Index:search`.
    pub(super) struct IndexSearchOptions {
        k: Hits = Whole(HITS);
        + how: HowArguments;
    }

    /// The search mode.
    pub(super) struct HowArguments {
        mode: Mode = Mode::Sparse;
        ef: Option<Candidates>;
        exact: bool = false;
        rerank: Option<RerankArguments>;
    }

    /// The field `rerank`.
    pub(super) struct RerankArguments {
        model: String, needs("the directory of a cross-encoder");
        top: Option<Hits>;
    }
}

/// Candidates of a search in a graph.
pub(super) type Candidates = Whole<1, { MOST_CANDIDATES as u64 }>;

impl FromField for RerankArguments {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        let Value::Table(table) = value else {
            return Err(fields.refuse(name, "a table { model = DIR, top = N }", value));
        };
        Self::from_fields(&fields.inside(name, table, &Self::names())?)
    }
}

impl HowArguments {
    /// The options of a search for `k` passages, and those that are not defaults, as the script
    /// wrote them, for the record.
    pub(super) fn options(
        self,
        lua: &Lua,
        function: &'static str,
        host: &Host,
        k: &Hits,
    ) -> mlua::Result<(SearchOptions, Map<String, Json>)> {
        let Self { mode, ef, exact, rerank } = self;
        let mut written = Map::new();
        written.insert("mode".to_owned(), mode.name().into());
        if let Some(ef) = &ef {
            written.insert("ef".to_owned(), ef.0.into());
        }
        if exact {
            written.insert("exact".to_owned(), true.into());
        }
        let mut options = SearchOptions::new(k.0 as usize, mode)
            .with_nearest(ef.map(|ef| ef.0 as usize), exact)
            .map_err(|error| fail_with(lua, function, Error { kind: Kind::Script, ..error }))?;
        if let Some(RerankArguments { model, top }) = rerank {
            written.insert("rerank".to_owned(), json!({ "model": model, "top": top.as_ref().map(|top| top.0) }));
            let path = path_of(host, &model);
            if host.grants.borrow().is_loading() {
                host.searches.borrow_mut().push(SearchPart::Reranker(path.clone()));
            }
            options.rerank = Some(RerankOptions { model: path, top: top.map(|top| top.0 as usize) });
            options.check().map_err(|error| fail_with(lua, function, Error { kind: Kind::Script, ..error }))?;
        }
        Ok((options, written))
    }
}

/// The path of a name in a script: relative to the script of a recipe, or to the current directory.
fn path_of(host: &Host, name: &str) -> PathBuf {
    match &*host.grants.borrow() {
        Grants::Loading { directory } | Grants::Declared { directory, .. } => directory.join(name),
        Grants::Everything => PathBuf::from(name),
    }
}

impl FromField for Mode {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        let mode = String::from_field(fields, name, value)?;
        Self::named("search mode", &mode).map_err(|error| {
            let message = format!("`{name}` is \"{mode}\"; it is one of {}", Self::NAMES.join(", "));
            fields.refused(name, Error { message, kind: Kind::Script, ..error })
        })
    }
}

/// A search of an index, off the thread of the scripts, which does not block other trajectories.
///
/// # Errors
/// As `Index::search_all`.
pub(super) async fn searched(
    passages: Passages,
    queries: Vec<String>,
    options: SearchOptions,
) -> Result<Vec<Vec<Hit>>> {
    let search = move || {
        let index = passages.open()?;
        let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
        index.search_all(&queries, &options)
    };
    on_thread("r1-index", search).await?
}

struct IndexHandle {
    passages: Passages,
    host: Rc<Host>,
}

impl UserData for IndexHandle {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_meta_field(mlua::MetaMethod::Type, "Index");
        fields.add_field_method_get("path", |_, this| Ok(this.passages.name.clone()));
        fields.add_field_method_get("search", |lua, _| lua.named_registry_value::<Function>(SEARCH_KEY));
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_meta_method(mlua::MetaMethod::Index, |lua, _, name: Value| {
            no_field(lua, "an index", &name, &["path", "search"])
        });
    }
}

/// `index:search(query, options)`. A function of the virtual machine, because methods of mlua that
/// wait need a global that scripts do not have.
fn search(lua: &Lua) -> mlua::Result<Function> {
    lua.create_async_function(|lua, (this, query, options): (Value, Value, Value)| {
        let pending = match this.as_userdata().map(mlua::AnyUserData::borrow::<IndexHandle>) {
            Some(Ok(index)) => pending(&lua, &index, &query, &options),
            _ => Err(fail(&lua, SEARCH, "is a method: write index:search(query)")),
        };
        async move {
            let PendingSearch { passages, host, queries, options, written, batch } = pending?;
            let call = host.current();
            let mut request = json!({ "index": passages.name, "queries": queries, "k": options.k });
            if let Some(request) = request.as_object_mut() {
                request.extend(written);
            }
            let live = searched(passages, queries, options);
            let hits_by_query: Vec<Vec<Hit>> = call.external("index", request, live).await.map_err(raise)?;
            let lists: Vec<Value> = hits_by_query.iter().map(|hits| list(&lua, hits)).collect::<mlua::Result<_>>()?;
            if batch {
                return lua.create_sequence_from(lists).map(Value::Table);
            }
            Ok(lists.into_iter().next().unwrap_or(Value::Nil))
        }
    })
}

struct PendingSearch {
    passages: Passages,
    host: Rc<Host>,
    queries: Vec<String>,
    options: SearchOptions,
    written: Map<String, Json>,
    /// A list of queries was given.
    batch: bool,
}

fn pending(lua: &Lua, this: &IndexHandle, query: &Value, options: &Value) -> mlua::Result<PendingSearch> {
    let IndexSearchOptions { k, how } = IndexSearchOptions::read_optional(lua, SEARCH, options)?;
    let (options, written) = how.options(lua, SEARCH, &this.host, &k)?;
    let (queries, batch) = match query {
        Value::Table(list) => {
            if list.raw_len() > QUERIES {
                return Err(fail(lua, SEARCH, format!("{} queries at once; at most {QUERIES}", list.raw_len())));
            }
            let each = 1..=list.raw_len();
            let queries = each.map(|index| text(lua, SEARCH, &format!("queries[{index}]"), &list.raw_get(index)?));
            (queries.collect::<mlua::Result<_>>()?, true)
        }
        Value::String(_) => (vec![text(lua, SEARCH, "query", query)?], false),
        other => return Err(fail(lua, SEARCH, format!("takes a query or a list of queries, got {}", kind(other)))),
    };
    let (passages, host) = (this.passages.clone(), Rc::clone(&this.host));
    Ok(PendingSearch { passages, host, queries, options, written, batch })
}

/// Hits as a list of tables.
fn list(lua: &Lua, hits: &[Hit]) -> mlua::Result<Value> {
    let table = lua.create_table_with_capacity(hits.len(), 0)?;
    for hit in hits {
        let entry = lua.create_table_with_capacity(0, 6)?;
        entry.raw_set("id", hit.id.as_str())?;
        entry.raw_set("title", hit.title.as_str())?;
        entry.raw_set("text", hit.text.as_str())?;
        entry.raw_set("score", hit.score)?;
        entry.raw_set("rank", hit.rank)?;
        entry.raw_set("columns", from_json(lua, &hit.columns.clone().into())?)?;
        table.raw_push(entry)?;
    }
    Ok(Value::Table(table))
}
