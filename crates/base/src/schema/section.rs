//! The two macros that declare settings, and the traits that they implement.

use serde::Serialize;
use serde_json::{Map, Value as Json};

use super::misfit::{Misfit, join};
use super::{Field, Setting};

/// A table of settings, declared by `section!`.
pub trait Section: Clone + PartialEq + Default + Serialize + Field<Value = Self> {
    /// The names of its fields.
    const FIELDS: &'static [&'static str];
    /// Documentation of the table.
    fn about() -> String;
    /// Its fields as they are declared; tables are one setting each.
    fn declared() -> Vec<Setting>;
    /// Sets the field `name` from JSON; `false` if there is none. `key` is its dotted name.
    ///
    /// # Errors
    /// An invalid value of the field.
    fn set(&mut self, name: &str, key: &str, json: &Json) -> Result<bool, Misfit>;
    /// The settings of the continued run after `old` has become `new` in the script.
    #[must_use]
    fn reloaded(old: &Self, new: &Self) -> Self;

    /// All settings in it and in its tables.
    fn listed() -> Vec<Setting>;
}

/// A declared table of settings, as data.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Its name in editor types.
    pub name: &'static str,
    /// Its documentation.
    pub about: String,
    pub fields: Vec<Setting>,
}

/// Reads a table over `defaults`; every refusal names the field.
///
/// # Errors
/// The first unknown or invalid field.
pub fn read<S: Section>(at: &str, json: &Json, defaults: &S) -> Result<S, Misfit> {
    let mut section = defaults.clone();
    for (name, value) in fields_of(at, json)? {
        if !section.set(name, &join(at, name), value)? {
            return Err(Misfit::unknown(at, name, S::FIELDS));
        }
    }
    Ok(section)
}

/// The fields of a table; empty for null, and for an empty Lua table, which may be a list or a
/// table.
///
/// # Errors
/// A value of another type.
pub fn fields_of<'a>(at: &str, json: &'a Json) -> Result<&'a Map<String, Json>, Misfit> {
    static NONE: std::sync::LazyLock<Map<String, Json>> = std::sync::LazyLock::new(Map::new);
    match json {
        Json::Object(fields) => Ok(fields),
        Json::Null => Ok(&NONE),
        Json::Array(items) if items.is_empty() => Ok(&NONE),
        other => Err(Misfit::wanted(at, "a table", other)),
    }
}

/// Declares a table of settings: a struct whose fields are settings.
///
/// ```text
/// section! {
///     /// Settings of the update.
///     pub struct Learner: "trainer.", restart() {
///         /// Learning rate of AdamW.
///         lr: f64 = 1e-6, range("≥ 0");
///         /// CPU time of one call.
///         cpu: f64 as Time = 1.0, unit("seconds"), range("> 0");
///     }
/// }
/// ```
///
/// `"trainer."` is what the settings' paths begin with. Options after it apply to all fields,
/// options after a default to that field: they are methods of [`Setting`]. The doc comment is the
/// text of the reference. `as` gives another [`Field`] to read the value by.
#[macro_export]
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        $vis:vis struct $Name:ident: $prefix:literal $(, $all:ident($($all_arguments:tt)*))* {
            $(
                $(#[doc = $doc:literal])+
                $(#[serde($($serde:tt)*)])?
                $field:ident: $Type:ty $(as $How:ty)? = $default:expr $(, $option:ident($($argument:tt)*))*;
            )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, serde::Serialize)]
        $vis struct $Name {
            $(
                $(#[doc = $doc])+
                $(#[serde($($serde)*)])?
                pub $field: $Type,
            )+
        }

        impl Default for $Name {
            fn default() -> Self {
                Self { $($field: $default),+ }
            }
        }

        impl $crate::schema::Section for $Name {
            const FIELDS: &'static [&'static str] = &[$($crate::schema::section!(@name $field)),+];

            fn about() -> String {
                concat!($($about),+).trim().to_owned()
            }

            fn declared() -> Vec<$crate::schema::Setting> {
                #[allow(unused_imports)] // some sections have no such rule
                use $crate::schema::{Is, Reload};
                let defaults = Self::default();
                let all = |setting: $crate::schema::Setting| setting $(.$all($($all_arguments)*))*;
                vec![$(
                    all($crate::schema::Setting::of::<$crate::schema::section!(@field $Type $(, $How)?)>(
                        concat!($prefix, $crate::schema::section!(@name $field)),
                        concat!($($doc),+),
                        &defaults.$field,
                    ))
                    $(.$option($($argument)*))*
                ),+]
            }

            fn listed() -> Vec<$crate::schema::Setting> {
                let mut declared = Self::declared().into_iter();
                let mut all = Vec::new();
                $(
                    let tables = declared.next().into_iter();
                    all.extend(tables.flat_map(
                        <$crate::schema::section!(@field $Type $(, $How)?) as $crate::schema::Field>::settings
                    ));
                    let _ = stringify!($field);
                )+
                all
            }

            fn set(
                &mut self,
                name: &str,
                key: &str,
                json: &serde_json::Value,
            ) -> Result<bool, $crate::schema::Misfit> {
                match name {
                    $($crate::schema::section!(@name $field) => {
                        self.$field = <$crate::schema::section!(@field $Type $(, $How)?) as $crate::schema::Field>::read(
                            key, json, Some(&self.$field),
                        )?;
                    })+
                    _ => return Ok(false),
                }
                Ok(true)
            }

            fn reloaded(old: &Self, new: &Self) -> Self {
                let mut classes = Self::declared().into_iter().map(|setting| setting.reload);
                Self { $(
                    $field: <$crate::schema::section!(@field $Type $(, $How)?) as $crate::schema::Field>::reloaded(
                        classes.next().unwrap_or($crate::schema::Reload::Restart), &old.$field, &new.$field,
                    )
                ),+ }
            }
        }

        impl $crate::schema::Field for $Name {
            type Value = Self;

            fn kind() -> String {
                "table".to_owned()
            }

            fn lua() -> String {
                stringify!($Name).to_owned()
            }

            fn read(
                key: &str,
                json: &serde_json::Value,
                defaults: Option<&Self>,
            ) -> Result<Self, $crate::schema::Misfit> {
                $crate::schema::read(key, json, &defaults.cloned().unwrap_or_default())
            }

            fn settings(_: $crate::schema::Setting) -> Vec<$crate::schema::Setting> {
                <Self as $crate::schema::Section>::listed()
            }

            fn tables() -> Vec<$crate::schema::Table> {
                let table = $crate::schema::Table {
                    name: stringify!($Name),
                    about: <Self as $crate::schema::Section>::about(),
                    fields: <Self as $crate::schema::Section>::declared(),
                };
                let mut all = vec![table];
                $(
                    all.extend(<$crate::schema::section!(@field $Type $(, $How)?) as $crate::schema::Field>::tables());
                    let _ = stringify!($field);
                )+
                all
            }

            fn reloaded(class: $crate::schema::Reload, old: &Self, new: &Self) -> Self {
                match class {
                    $crate::schema::Reload::Restart => old.clone(),
                    _ => <Self as $crate::schema::Section>::reloaded(old, new),
                }
            }
        }

        impl<'de> serde::Deserialize<'de> for $Name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let json = <serde_json::Value as serde::Deserialize>::deserialize(deserializer)?;
                $crate::schema::read("", &json, &Self::default()).map_err(serde::de::Error::custom)
            }
        }
    };
    (@name r#async) => { "async" };
    (@name $field:ident) => { stringify!($field) };
    (@field $Type:ty) => { $Type };
    (@field $Type:ty, $How:ty) => { $How };
}

/// Declares an enum whose values have names: `pub enum Split { Train = "train", … }`. They are also
/// its form in JSON.
#[macro_export]
macro_rules! names {
    (
        $(#[$meta:meta])*
        $vis:vis enum $Name:ident {
            $($(#[$variant_meta:meta])* $Variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        $vis enum $Name {
            $($(#[$variant_meta])* #[serde(rename = $name)] $Variant,)+
        }

        #[allow(dead_code)]
        impl $Name {
            /// Every value, in order.
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$Variant),+];
            /// Their names.
            $vis const NAMES: [&'static str; [$($name),+].len()] = [$($name),+];

            $vis const fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name,)+
                }
            }

            /// The value with this name.
            ///
            /// # Errors
            /// `Kind::Usage`, with the nearest names. `what` is the
            /// noun in the message.
            $vis fn named(what: &str, name: &str) -> $crate::error::Result<Self> {
                Self::ALL.into_iter().find(|value| value.name() == name).ok_or_else(|| {
                    $crate::error::Error::new($crate::error::Kind::Usage, format!("there is no {what} `{name}`"))
                        .hint($crate::error::suggest(name, Self::NAMES.iter().copied()))
                })
            }
        }
    };
}

/// Declares a setting's values by name, as [`names`] does: `pub enum Decay { Constant = "constant",
/// … }`.
#[macro_export]
macro_rules! choices {
    ($(#[$meta:meta])* $vis:vis enum $Name:ident { $($values:tt)+ }) => {
        $crate::schema::names! {
            $(#[$meta])*
            $vis enum $Name { $($values)+ }
        }

        impl $crate::schema::Field for $Name {
            type Value = Self;
            const WRITTEN: $crate::schema::ValueSyntax = $crate::schema::ValueSyntax::Text;

            fn kind() -> String {
                Self::NAMES.map(|name| format!("\"{name}\"")).join(" | ")
            }

            fn lua() -> String {
                Self::kind()
            }

            fn read(
                key: &str,
                json: &serde_json::Value,
                _: Option<&Self>,
            ) -> Result<Self, $crate::schema::Misfit> {
                let Some(name) = json.as_str() else {
                    return Err($crate::schema::Misfit::wanted(key, "text", json));
                };
                let value = Self::ALL.into_iter().find(|value| value.name() == name);
                value.ok_or_else(|| $crate::schema::Misfit::not_one_of(key, name, &Self::NAMES))
            }
        }
    };
}
