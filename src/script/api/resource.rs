//! `r1.resource`: a data file that is read once per process. Scripts see a read-only list of rows.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use mlua::{AnyUserData, Function, Lua, MetaMethod, Table, UserData, UserDataFields, UserDataMethods, Value};
use serde_json::Value as Json;

use super::args::{Fields, fail, fail_with, raise};
use super::argument::{Argument, Mebibytes};
use crate::config::Columns;
use crate::error::{Error, Kind, suggest};
use crate::script::runtime::convert::from_json;
use crate::script::runtime::host::{misuse, place};
use crate::script::runtime::require::Loader;
use crate::script::runtime::resource::{FORMATS, Form, MOST, Resource, Spec};

const NAME: &str = "r1.resource";

pub(crate) fn install(lua: &Lua, r1: &Table, loader: &Rc<RefCell<Loader>>) -> mlua::Result<()> {
    let loader = Rc::clone(loader);
    let next = lua.create_function(|lua, (own, last): (AnyUserData, usize)| {
        let row = own.borrow::<ResourceOf>()?.row(lua, last + 1)?;
        Ok((if row.is_nil() { Value::Nil } else { Value::Integer(last as i64 + 1) }, row))
    })?;
    let open = move |lua: &Lua, given: Value| {
        let spec = spec(lua, &given)?;
        let found = loader.borrow_mut().resource(&spec);
        let resource = found.map_err(|error| placed(lua, error))?;
        let (rows, weak) = (lua.create_table()?, lua.create_table()?);
        weak.raw_set("__mode", "v")?;
        rows.set_metatable(Some(weak))?;
        Ok(ResourceOf { resource, rows, next: next.clone() })
    };
    r1.raw_set("resource", lua.create_function(open)?)
}

/// The error with the line of the script, unless it has a line of the file.
fn placed(lua: &Lua, error: Error) -> mlua::Error {
    if error.kind == Kind::Script && error.place.is_none() {
        return raise(Error { place: place(lua), ..error });
    }
    let file = error.place.as_deref().map(|file| format!("{file}: ")).unwrap_or_default();
    let message = format!("{NAME}: {file}{}", error.message);
    raise(Error { message, place: place(lua), ..error })
}

/// `r1.resource "corpus.jsonl"` or `r1.resource { path =, format =, columns =, max_size = }`.
fn spec(lua: &Lua, given: &Value) -> mlua::Result<Spec> {
    let plain = |path: String| Spec { path: path.into(), format: None, columns: Columns::new(), max_size: MOST };
    if let Value::String(path) = given {
        return Ok(plain(path.to_string_lossy()));
    }
    let fields = Fields::new(lua, NAME, given, &["path", "format", "columns", "max_size"])?;
    let Some(path) = fields.text("path")? else { return Err(fail(lua, NAME, "needs `path`, the file to read")) };
    let mut spec = plain(path);
    if let Some(name) = fields.text("format")? {
        let Some(form) = Form::named(&name) else {
            let error =
                Error::new(Kind::Script, format!("`format` is \"{name}\"; it is one of {}", FORMATS.join(", ")));
            return Err(fail_with(lua, NAME, error.hint(suggest(&name, FORMATS))));
        };
        spec.format = Some(form);
    }
    if let Json::Object(columns) = fields.json("columns")? {
        for (name, column) in columns {
            let Json::String(column) = column else {
                return Err(fields.refuse("columns", "names: { mine = \"theirs\" }", &fields.get("columns")?));
            };
            spec.columns.insert(name, column);
        }
    } else if !fields.get("columns")?.is_nil() {
        return Err(fields.refuse("columns", "a table of names", &fields.get("columns")?));
    }
    spec.max_size = match fields.read::<Mebibytes>("max_size")? {
        None => MOST,
        Some(Mebibytes(0)) => {
            return Err(fields.refuse("max_size", &Mebibytes::wanted(), &fields.get("max_size")?));
        }
        Some(Mebibytes(size)) => size,
    };
    Ok(spec)
}

pub(crate) struct ResourceOf {
    pub(crate) resource: Arc<Resource>,
    /// Rows in use, so that no row is converted twice; weak references.
    rows: Table,
    /// The iterator function of loops.
    next: Function,
}

impl ResourceOf {
    /// A row, counted from 1, frozen; nil after the last one.
    fn row(&self, lua: &Lua, place: usize) -> mlua::Result<Value> {
        let known: Value = self.rows.raw_get(place)?;
        if !known.is_nil() {
            return Ok(known);
        }
        let Some(json) = place.checked_sub(1).and_then(|index| self.resource.row(index)) else {
            return Ok(Value::Nil);
        };
        let row = from_json(lua, &json)?;
        freeze(&row)?;
        self.rows.raw_set(place, row.clone())?;
        Ok(row)
    }
}

/// Makes a table and its nested tables read-only.
fn freeze(value: &Value) -> mlua::Result<()> {
    let Value::Table(table) = value else { return Ok(()) };
    table.for_each(|_: Value, inner: Value| freeze(&inner))?;
    table.set_readonly(true);
    Ok(())
}

impl UserData for ResourceOf {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        // The name in messages of Luau, and of typeof().
        fields.add_meta_field(MetaMethod::Type, "Resource");
        fields.add_field_method_get("path", |_, this| Ok(this.resource.path.display().to_string()));
        fields.add_field_method_get("hash", |_, this| Ok(this.resource.sha256()));
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_meta_method(MetaMethod::Len, |_, this, ()| Ok(this.resource.len()));
        methods.add_meta_method(MetaMethod::Index, |lua, this, key: Value| match key {
            Value::Integer(place) => this.row(lua, usize::try_from(place).unwrap_or(0)),
            Value::Number(_) => Ok(Value::Nil),
            other => {
                let name = other.to_string()?;
                let error = misuse(lua, format!("a resource has no `{name}`"));
                let hint = "corpus[i] is row i, #corpus their number, corpus.path and corpus.hash tell the file; \
                            `for i, row in corpus do` goes through all";
                Err(raise(error.hint(hint)))
            }
        });
        methods.add_meta_method(MetaMethod::NewIndex, |lua, _, _: (Value, Value)| -> mlua::Result<()> {
            Err(raise(misuse(lua, "a resource is read-only").hint("keep data that a trajectory changes in its state")))
        });
        methods.add_meta_function(MetaMethod::Iter, |_, own: AnyUserData| {
            let next = own.borrow::<Self>()?.next.clone();
            Ok((next, own, 0))
        });
    }
}
