//! `arguments!` declares the named arguments of a host function: a table of options, or a table
//! that is the only argument. A field is named once, in the struct. Unknown names are refused with
//! the nearest names, and a value of another type with its field and line.

use mlua::{Lua, Value};

use super::args::TableFields;

/// A table of named arguments, declared by `arguments!`.
pub(crate) trait Arguments: Sized {
    /// The names of the fields that are read one by one.
    fn own_names() -> Vec<&'static str>;

    /// The names of the other fields, which are plain data.
    fn others() -> Vec<&'static str>;

    /// All names that the table may have.
    fn names() -> Vec<&'static str> {
        let mut names = Self::own_names();
        names.extend(Self::others().into_iter().filter(|name| !Self::own_names().contains(name)));
        names
    }

    /// The values of fields that are left out, where the struct declares one.
    #[cfg(test)]
    fn defaults() -> Vec<(&'static str, Box<dyn std::any::Any>)>;

    /// The struct of a table whose names are known.
    ///
    /// # Errors
    /// A missing or unsuitable field, at its line.
    fn from_fields(fields: &TableFields<'_>) -> mlua::Result<Self>;

    /// Reads the table that `function` requires.
    ///
    /// # Errors
    /// A value that is not a table, and a field that is unknown, missing or of another type.
    fn read(lua: &Lua, function: &'static str, value: &Value) -> mlua::Result<Self> {
        Self::from_fields(&TableFields::new(lua, function, value, &Self::names())?)
    }

    /// Reads a table that may be left out.
    ///
    /// # Errors
    /// As [`Arguments::read`].
    fn read_optional(lua: &Lua, function: &'static str, value: &Value) -> mlua::Result<Self> {
        Self::from_fields(&TableFields::optional(lua, function, value, &Self::names())?)
    }
}

pub(crate) fn joined(lists: &[&[&'static str]]) -> Vec<&'static str> {
    lists.concat()
}

/// Declares tables of named arguments.
///
/// ```text
/// arguments! {
///     /// Arguments of `r1.resource`.
///     struct ResourceArguments {
///         path: String, needs("the file to read");
///         format: Option<String>;
///         max_rows: usize = 1000;
///     }
/// }
/// let given = ResourceArguments::read(lua, "r1.resource", &value)?;
/// ```
///
/// A type implements [`super::args::FromField`], which refuses other values. An `Option`
/// and a field with a default may be left out; `needs` explains a missing field: "needs `path`, the
/// file to read". Two lines may follow the fields:
///
/// - `+ limits: LimitArguments;` adds the fields of another table, as one field of the struct.
/// - `..settings: Learner::FIELDS;` adds other names, whose values are plain data in `settings`.
macro_rules! arguments {
    ($(
        $(#[doc = $about:literal])+
        $vis:vis struct $Name:ident {
            $(
                $(#[$attribute:meta])*
                $field:ident: $Type:ty $(= $default:expr)? $(, needs($what:literal))?;
            )*
            $(+ $part:ident: $Part:ty;)*
            $(..$rest:ident: $others:expr;)?
        }
    )+) => {$(
        $(#[doc = $about])+
        $vis struct $Name {
            $($(#[$attribute])* $vis $field: $Type,)*
            $($vis $part: $Part,)*
            $($vis $rest: serde_json::Map<String, serde_json::Value>,)?
        }

        impl $crate::script::api::arguments::Arguments for $Name {
            fn own_names() -> Vec<&'static str> {
                let own_names: &[&'static str] = &[$(stringify!($field)),*];
                let parts: Vec<Vec<&'static str>> =
                    vec![$(<$Part as $crate::script::api::arguments::Arguments>::names()),*];
                [own_names, &parts.concat()].concat()
            }

            fn others() -> Vec<&'static str> {
                $crate::script::api::arguments::joined(&[$(&$others[..])?])
            }

            #[cfg(test)]
            #[allow(unused_mut)] // some structs have neither defaults nor parts
            fn defaults() -> Vec<(&'static str, Box<dyn std::any::Any>)> {
                let mut all: Vec<(&'static str, Box<dyn std::any::Any>)> = Vec::new();
                $($(
                    let default: $Type = $default;
                    all.push((stringify!($field), Box::new(default)));
                )?)*
                $(all.extend(<$Part as $crate::script::api::arguments::Arguments>::defaults());)*
                all
            }

            fn from_fields(fields: &$crate::script::api::args::TableFields<'_>) -> mlua::Result<Self> {
                Ok(Self {
                    $($field: $crate::script::api::arguments::arguments!(
                        @read fields, stringify!($field), $Type $(, default $default)? $(, needs $what)?
                    ),)*
                    $($part: $crate::script::api::arguments::Arguments::from_fields(fields)?,)*
                    $($rest: $crate::script::api::arguments::arguments!(@rest fields, $others),)?
                })
            }
        }
    )+};
    (@read $fields:ident, $name:expr, $Type:ty) => { $fields.read::<$Type>($name)? };
    (@read $fields:ident, $name:expr, $Type:ty, default $default:expr) => {
        match $fields.read::<Option<$Type>>($name)? {
            Some(value) => value,
            None => $default,
        }
    };
    (@read $fields:ident, $name:expr, $Type:ty, needs $what:literal) => {
        $fields.needed::<$Type>($name, $what)?
    };
    (@rest $fields:ident, $others:expr) => { $fields.rest(&Self::own_names())? };
}
pub(crate) use arguments;
