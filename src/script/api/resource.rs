//! `r1.resource`: a data file that is read once per process. Scripts see a read-only list of rows.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use mlua::{AnyUserData, Function, Lua, MetaMethod, Table, UserData, UserDataFields, UserDataMethods, Value};

use super::args::{FromField, TableFields, raise};
use super::argument::{Mebibytes, argument};
use super::arguments::{Arguments, arguments};
use crate::config::Columns;
use crate::error::{Error, Kind, suggest};
use crate::script::runtime::convert::from_row;
use crate::script::runtime::host::{misuse, place};
use crate::script::runtime::require::Loader;
use crate::script::runtime::resource::{FORMATS, KeptParts, MOST, Resource, ResourceFormat, ResourceSpec};

const NAME: &str = "r1.resource";

pub(crate) fn install(lua: &Lua, r1: &Table, loader: &Rc<RefCell<Loader>>) -> mlua::Result<()> {
    let loader = Rc::clone(loader);
    let next = lua.create_function(|lua, (resource_of, last): (AnyUserData, usize)| {
        let row = resource_of.borrow::<ResourceOf>()?.row(lua, last + 1)?;
        Ok((if row.is_nil() { Value::Nil } else { Value::Integer(last as i64 + 1) }, row))
    })?;
    let open = move |lua: &Lua, argument: Value| {
        let spec = spec(lua, &argument)?;
        let opened = loader.borrow_mut().resource(&spec);
        let resource = opened.map_err(|error| placed(lua, NAME, error))?;
        let (rows, weak) = (lua.create_table()?, lua.create_table()?);
        weak.raw_set("__mode", "v")?;
        rows.set_metatable(Some(weak))?;
        Ok(ResourceOf { resource, rows, next: next.clone() })
    };
    r1.raw_set("resource", lua.create_function(open)?)
}

/// The error with the line of the script, unless it has a line of the file.
pub(super) fn placed(lua: &Lua, function: &str, error: Error) -> mlua::Error {
    if error.kind == Kind::Script && error.place.is_none() {
        return raise(Error { place: place(lua), ..error });
    }
    let file = error.place.as_deref().map(|file| format!("{file}: ")).unwrap_or_default();
    let message = format!("{function}: {file}{}", error.message);
    raise(Error { message, place: place(lua), ..error })
}

arguments! {
    /// Arguments of `r1.resource`.
    pub(super) struct ResourceArguments {
        path: String, needs("the file to read");
        format: Option<ResourceFormat>;
        columns: Columns = Columns::new();
        max_size: Option<FileSize>;
    }
}

impl ResourceArguments {
    /// The file, of at most `limit` MiB if its size is not given.
    pub(super) fn spec(self, limit: u64, keep: KeptParts) -> ResourceSpec {
        let Self { path, format, columns, max_size } = self;
        ResourceSpec { path: path.into(), format, columns, max_size: max_size.map_or(limit, |size| size.0), keep }
    }
}

/// A size above 0, in MiB.
pub(super) struct FileSize(u64);

argument!(FileSize, Mebibytes::wanted(), |value| Mebibytes::read(value)
    .filter(|size| size.0 > 0)
    .map(|size| Self(size.0)));

impl FromField for ResourceFormat {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        let format = String::from_field(fields, name, value)?;
        Self::named(&format).ok_or_else(|| {
            let why = format!("`{name}` is \"{format}\"; it is one of {}", FORMATS.join(", "));
            fields.refused(name, Error::new(Kind::Script, why).hint(suggest(&format, FORMATS)))
        })
    }
}

argument!(Columns, "names: { mine = \"theirs\" }", |value| {
    let text = |value: Value| String::read(&value);
    let pairs = value.as_table()?.pairs::<Value, Value>();
    pairs.map(|pair| pair.ok().and_then(|(name, column)| Some((text(name)?, text(column)?)))).collect()
});

/// `r1.resource "corpus.jsonl"` or `r1.resource { path =, format =, columns =, max_size = }`.
fn spec(lua: &Lua, argument: &Value) -> mlua::Result<ResourceSpec> {
    if let Value::String(path) = argument {
        return Ok(ResourceSpec::new(path.to_string_lossy(), MOST, KeptParts::Rows));
    }
    Ok(ResourceArguments::read(lua, NAME, argument)?.spec(MOST, KeptParts::Rows))
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
    fn row(&self, lua: &Lua, number: usize) -> mlua::Result<Value> {
        let made: Value = self.rows.raw_get(number)?;
        if !made.is_nil() {
            return Ok(made);
        }
        let Some(json) = number.checked_sub(1).and_then(|index| self.resource.row(index)) else {
            return Ok(Value::Nil);
        };
        let row = from_row(lua, &json)?;
        freeze(&row)?;
        self.rows.raw_set(number, row.clone())?;
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
        fields.add_field_method_get("hash", |_, this| Ok(this.resource.sha256.clone()));
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_meta_method(MetaMethod::Len, |_, this, ()| Ok(this.resource.len()));
        methods.add_meta_method(MetaMethod::Index, |lua, this, key: Value| match key {
            Value::Integer(index) => this.row(lua, usize::try_from(index).unwrap_or(0)),
            Value::Number(_) => Ok(Value::Nil),
            other => {
                let name = other.to_string()?;
                let error = misuse(lua, format!("a resource has no `{name}`"));
                let hint = "corpus[i] is row i, #corpus their number, corpus.path and corpus.hash are those of the file; \
                            `for i, row in corpus do` iterates over all";
                Err(raise(error.hint(hint)))
            }
        });
        methods.add_meta_method(MetaMethod::NewIndex, |lua, _, _: (Value, Value)| -> mlua::Result<()> {
            Err(raise(misuse(lua, "a resource is read-only").hint("keep data that a trajectory changes in its state")))
        });
        methods.add_meta_function(MetaMethod::Iter, |_, this: AnyUserData| {
            let next = this.borrow::<Self>()?.next.clone();
            Ok((next, this, 0))
        });
    }
}
