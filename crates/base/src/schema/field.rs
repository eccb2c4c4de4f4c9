//! Types of settings: their names, their readers, and the effect of a reload on them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Map, Value as Json};

use super::misfit::{Misfit, join};
use super::section::{Section, Table, fields_of};
use super::{Reload, Setting, ValueSyntax};
use crate::units;

/// A type of settings. The implementing type is the type of the value, or names a way to read one
/// ([`Time`]).
pub trait Field {
    type Value: Clone + PartialEq + Serialize;
    const WRITTEN: ValueSyntax = ValueSyntax::Json;
    /// Whether it is a table whose names are not fixed, but depend on the value or the script.
    const OPEN: bool = false;

    /// The type as text, for the reference.
    fn kind() -> String;

    /// The type in Luau, for editors.
    fn lua() -> String {
        Self::kind()
    }

    /// Reads a value. `default_value` is the default.
    ///
    /// # Errors
    /// A value of another type; `key` is the name of the setting.
    fn read(key: &str, json: &Json, default_value: Option<&Self::Value>) -> Result<Self::Value, Misfit>;

    /// The settings of a declared field: itself, or the settings of its table.
    fn settings(setting: Setting) -> Vec<Setting> {
        vec![setting]
    }

    /// The tables of settings that the value has, for editor types.
    fn tables() -> Vec<Table> {
        Vec::new()
    }

    /// The value of the continued run after the script's value has changed.
    fn reloaded(class: Reload, old: &Self::Value, new: &Self::Value) -> Self::Value {
        if class == Reload::Restart { old.clone() } else { new.clone() }
    }
}

/// Seconds as a number, or as text with a unit.
pub struct Time;

/// MiB as a whole number, or as text with a unit.
pub struct MiB;

/// KiB as a whole number, or as text with a unit.
pub struct KiB;

/// A value that one function of JSON reads.
macro_rules! plain {
    ($($Type:ty => $Value:ty: $kind:literal, $lua:literal, $wanted:expr, $written:ident, $read:expr;)+) => {
        $(impl Field for $Type {
            type Value = $Value;
            const WRITTEN: ValueSyntax = ValueSyntax::$written;

            fn kind() -> String {
                $kind.to_owned()
            }

            fn lua() -> String {
                $lua.to_owned()
            }

            fn read(key: &str, json: &Json, _: Option<&$Value>) -> Result<$Value, Misfit> {
                let read: fn(&Json) -> Option<$Value> = $read;
                read(json).ok_or_else(|| Misfit::wanted(key, $wanted, json))
            }
        })+
    };
}

plain! {
    f64 => Self: "number", "number", "a number", Json, Json::as_f64;
    usize => Self: "integer", "number", "a whole number, 0 or more", Json, |json| json.as_u64()?.try_into().ok();
    u64 => Self: "integer", "number", "a whole number, 0 or more", Json, Json::as_u64;
    u32 => Self: "integer", "number", "a whole number, 0 or more", Json, |json| json.as_u64()?.try_into().ok();
    bool => Self: "boolean", "boolean", "true or false", Json, Json::as_bool;
    String => Self: "string", "string", "text", Text, |json| json.as_str().map(str::to_owned);
    PathBuf => Self: "string", "string", "text", Text, |json| json.as_str().map(PathBuf::from);
    Json => Self: "any", "any", "a value", Json, |json| Some(json.clone());
    Time => f64: "number or string", "number | string", units::TIME, Json, units::time;
    MiB => usize: "integer or string", "number | string", units::SIZE, Json, units::mib;
    KiB => usize: "integer or string", "number | string", units::SIZE, Json, units::kib;
}

/// A list of two.
impl<A, B> Field for (A, B)
where
    A: Field<Value = A> + Clone + PartialEq + Serialize,
    B: Field<Value = B> + Clone + PartialEq + Serialize,
{
    type Value = Self;

    fn kind() -> String {
        "list".to_owned()
    }

    fn lua() -> String {
        if A::lua() == B::lua() { format!("{{{}}}", A::lua()) } else { format!("{{{} | {}}}", A::lua(), B::lua()) }
    }

    fn read(key: &str, json: &Json, _: Option<&Self>) -> Result<Self, Misfit> {
        match json.as_array().map(Vec::as_slice) {
            Some([first, second]) => {
                let at = |index: usize| format!("{key}[{index}]");
                Ok((A::read(&at(1), first, None)?, B::read(&at(2), second, None)?))
            }
            _ if A::kind() == B::kind() => Err(Misfit::wanted(key, &format!("a list of two {}s", A::kind()), json)),
            _ => Err(Misfit::wanted(key, &format!("a list of two, {} and {}", A::kind(), B::kind()), json)),
        }
    }
}

impl<T: Field<Value = T> + Clone + PartialEq + Serialize> Field for Option<T> {
    type Value = Self;
    const WRITTEN: ValueSyntax = T::WRITTEN;
    const OPEN: bool = T::OPEN;

    fn kind() -> String {
        T::kind()
    }

    fn lua() -> String {
        T::lua()
    }

    fn read(key: &str, json: &Json, default_value: Option<&Self>) -> Result<Self, Misfit> {
        if json.is_null() {
            return Ok(None);
        }
        T::read(key, json, default_value.and_then(Option::as_ref)).map(Some)
    }

    fn tables() -> Vec<Table> {
        T::tables()
    }

    /// A table that may be missing is a setting, and so are its fields.
    fn settings(outer: Setting) -> Vec<Setting> {
        let inner = T::settings(outer.clone());
        if inner.iter().any(|setting| setting.path == outer.path) {
            return inner;
        }
        std::iter::once(outer).chain(inner).collect()
    }
}

impl<T: Field<Value = T> + Clone + PartialEq + Serialize> Field for Vec<T> {
    type Value = Self;

    fn kind() -> String {
        "list".to_owned()
    }

    fn lua() -> String {
        format!("{{{}}}", T::lua())
    }

    fn read(key: &str, json: &Json, _: Option<&Self>) -> Result<Self, Misfit> {
        let items = match json {
            Json::Array(items) => items.as_slice(),
            // An empty Lua table may be a list or a table.
            Json::Object(fields) if fields.is_empty() => &[],
            other => return Err(Misfit::wanted(key, "a list", other)),
        };
        (1..).zip(items).map(|(index, item)| T::read(&format!("{key}[{index}]"), item, None)).collect()
    }

    fn tables() -> Vec<Table> {
        T::tables()
    }
}

impl Field for Map<String, Json> {
    type Value = Self;
    const OPEN: bool = true;

    fn kind() -> String {
        "table".to_owned()
    }

    fn lua() -> String {
        "{[string]: any}".to_owned()
    }

    fn read(key: &str, json: &Json, _: Option<&Self>) -> Result<Self, Misfit> {
        match json {
            Json::Null => Err(Misfit::wanted(key, "a table", json)),
            table => fields_of(key, table).cloned(),
        }
    }
}

/// By token id.
impl Field for BTreeMap<u32, f64> {
    type Value = Self;

    fn kind() -> String {
        "table".to_owned()
    }

    fn lua() -> String {
        "{[number]: number}".to_owned()
    }

    fn read(key: &str, json: &Json, _: Option<&Self>) -> Result<Self, Misfit> {
        let odd = || Misfit::wanted(key, "a table by token id", json);
        let fields = fields_of(key, json).map_err(|_| odd())?;
        let pair = |(id, value): (&String, &Json)| {
            Ok((id.parse().map_err(|_| odd())?, f64::read(&join(key, id), value, None)?))
        };
        fields.iter().map(pair).collect()
    }
}

/// A section by name, as `envs`. Added and removed names take effect after a restart.
impl<T: Section> Field for BTreeMap<String, T> {
    type Value = Self;

    fn kind() -> String {
        "table".to_owned()
    }

    fn lua() -> String {
        let section = <T as Field>::lua();
        format!("{{[string]: {}}}", section.strip_suffix("Settings").unwrap_or(&section))
    }

    fn read(key: &str, json: &Json, _: Option<&Self>) -> Result<Self, Misfit> {
        let section = |(name, json): (&String, &Json)| Ok((name.clone(), T::read(&join(key, name), json, None)?));
        fields_of(key, json)?.iter().map(section).collect()
    }

    fn reloaded(_: Reload, old: &Self, new: &Self) -> Self {
        let section = |(name, old): (&String, &T)| {
            let new = new.get(name).unwrap_or(old);
            (name.clone(), <T as Section>::reloaded(old, new))
        };
        old.iter().map(section).collect()
    }
}

/// Text by name, as the columns of a data source.
impl Field for BTreeMap<String, String> {
    type Value = Self;
    const WRITTEN: ValueSyntax = ValueSyntax::Text;
    const OPEN: bool = true;

    fn kind() -> String {
        "table".to_owned()
    }

    fn lua() -> String {
        "{[string]: string}".to_owned()
    }

    fn read(key: &str, json: &Json, _: Option<&Self>) -> Result<Self, Misfit> {
        let text = |(name, json): (&String, &Json)| Ok((name.clone(), String::read(&join(key, name), json, None)?));
        fields_of(key, json)?.iter().map(text).collect()
    }
}
