//! `r1.secret(NAME)`: a handle to an environment variable whose value the script cannot read.
//!
//! The host inserts the value only when it sends a request or starts a program. Records, replays
//! and errors show `(secret)` instead, and occurrences of the value in a response are replaced as
//! well.

use std::rc::Rc;

use mlua::{AnyUserData, Lua, MetaMethod, Table, UserData, UserDataMethods, Value};
use regex::bytes::{NoExpand, Regex};
use serde_json::{Map, Value as Json};

use super::args::{FromField, TableFields, fail, undeclared};
use super::argument::Argument;
use crate::error::{Error, Kind, Result, secret_pattern};
use crate::net::escape;
use crate::script::runtime::convert::kind;
use crate::script::runtime::host::Host;

/// The replacement of a secret value.
const MASK: &str = "(secret)";

/// Text with parts that may be values of environment variables.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Text(Vec<SecretPart>);

#[derive(Clone, Debug, PartialEq)]
enum SecretPart {
    Plain(String),
    Variable(String),
}

impl Text {
    pub(crate) fn plain(text: impl Into<String>) -> Self {
        Self(vec![SecretPart::Plain(text.into())])
    }

    /// This text followed by another.
    pub(crate) fn joined(self, other: Self) -> Self {
        Self([self.0, other.0].concat())
    }

    /// The text for display and records.
    pub(crate) fn shown(&self) -> String {
        self.0
            .iter()
            .map(|part| match part {
                SecretPart::Plain(text) => text,
                SecretPart::Variable(_) => MASK,
            })
            .collect()
    }

    pub(crate) fn is_secret(&self) -> bool {
        self.0.iter().any(|part| matches!(part, SecretPart::Variable(_)))
    }

    /// The text with its values, which are added to `values`.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a variable that is not set, or is not UTF-8.
    pub(crate) fn reveal(&self, values: &mut Secrets) -> Result<String> {
        let value = |part: &SecretPart| match part {
            SecretPart::Plain(text) => Ok(text.clone()),
            SecretPart::Variable(name) => {
                let value = variable(name)?;
                values.add(&value);
                Ok(value)
            }
        };
        self.0.iter().map(value).collect()
    }

    /// A text or a secret; `None` for another value.
    pub(crate) fn read(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(Self::plain(text.to_string_lossy())),
            Value::Integer(_) | Value::Number(_) | Value::Boolean(_) => value.to_string().ok().map(Self::plain),
            Value::UserData(data) => data.borrow::<Self>().ok().map(|secret| secret.clone()),
            _ => None,
        }
    }

    /// The environment variables in the text.
    pub(crate) fn variables(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            SecretPart::Plain(_) => None,
            SecretPart::Variable(name) => Some(name.as_str()),
        })
    }

    /// Refuses variables that the recipe does not declare.
    pub(crate) fn check(&self, lua: &Lua, host: &Host, function: &str) -> mlua::Result<()> {
        let unread = self.variables().find(|name| !host.grants.borrow().reads_variable(name));
        unread.map_or(Ok(()), |name| Err(undeclared(lua, host, function, &format!("env:{name}"))))
    }
}

/// Named texts, sorted by name: the record must not depend on the order of a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamedTexts(pub(crate) Vec<(String, Text)>);

impl FromField for NamedTexts {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        const WANTED: &str = "a table of named texts";
        let Value::Table(pairs) = value else { return Err(fields.refuse(name, WANTED, value)) };
        let mut named = Vec::new();
        pairs.for_each(|key: Value, value: Value| {
            let Some(key) = String::read(&key) else {
                let why = format!("`{name}` must be {WANTED}, and has the key {}", kind(&key));
                return Err(fields.refused(name, Error::new(Kind::Script, why)));
            };
            let refused = || fields.refuse(&format!("{name}.{key}"), "text or r1.secret(…)", &value);
            let text = Text::read(&value).ok_or_else(refused)?;
            named.push((key, text));
            Ok(())
        })?;
        named.sort_by(|a: &(String, Text), b| a.0.cmp(&b.0));
        Ok(Self(named))
    }
}

/// Headers with their secrets, and the names of the headers that have one.
pub(crate) type RevealedHeaders = (Vec<(String, String)>, Vec<String>);

impl NamedTexts {
    /// Refuses variables that the recipe does not declare.
    pub(crate) fn check(&self, lua: &Lua, host: &Host, function: &str) -> mlua::Result<()> {
        self.0.iter().try_for_each(|(_, text)| text.check(lua, host, function))
    }

    /// The texts for display and records, by name.
    pub(crate) fn shown(&self) -> Map<String, Json> {
        self.0.iter().map(|(name, text)| (name.clone(), text.shown().into())).collect()
    }

    /// The name of the first text that can't be an environment variable.
    pub(crate) fn invalid_variable(&self) -> Option<&str> {
        let odd = |(name, value): &&(String, Text)| {
            name.is_empty() || name.contains(['=', '\0']) || value.shown().contains('\0')
        };
        self.0.iter().find(odd).map(|(name, _)| name.as_str())
    }

    /// The headers of a request.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a secret that is not set, or that has a line break.
    pub(crate) fn headers(&self, values: &mut Secrets) -> Result<RevealedHeaders> {
        let (mut headers, mut secrets) = (Vec::with_capacity(self.0.len()), Vec::new());
        for (name, text) in &self.0 {
            let value = text.reveal(values)?;
            if text.is_secret() {
                if value.contains(['\r', '\n', '\0']) {
                    let why = format!("the value for the header {name} has a line break in it");
                    return Err(Error::new(Kind::Usage, why));
                }
                secrets.push(name.clone());
            }
            headers.push((name.clone(), value));
        }
        Ok((headers, secrets))
    }
}

/// The value of a variable.
///
/// # Errors
/// [`Kind::Usage`] if it is not set.
pub(crate) fn variable(name: &str) -> Result<String> {
    std::env::var(name).map_err(|error| {
        let why = match error {
            std::env::VarError::NotPresent => "is not set",
            std::env::VarError::NotUnicode(_) => "is not valid UTF-8",
        };
        Error::new(Kind::Usage, format!("the environment variable {name}, which the script needs, {why}"))
            .hint(format!("set it before r1 starts: export {name}=…"))
    })
}

/// Values that must not appear in results or records.
#[derive(Default)]
pub(crate) struct Secrets(Vec<Regex>);

impl Secrets {
    fn add(&mut self, value: &str) {
        // Escaped patterns of plain text always compile, except for texts of megabytes.
        for form in [value.to_owned(), escape(value, false)] {
            if !form.is_empty()
                && let Ok(pattern) = Regex::new(&secret_pattern(&form))
            {
                self.0.push(pattern);
            }
        }
    }

    /// The bytes with every value replaced.
    pub(crate) fn mask_bytes(&self, bytes: Vec<u8>) -> Vec<u8> {
        self.0.iter().fold(bytes, |bytes, value| value.replace_all(&bytes, NoExpand(MASK.as_bytes())).into_owned())
    }

    /// The text with every value replaced.
    pub(crate) fn mask(&self, text: String) -> String {
        if self.0.is_empty() {
            return text;
        }
        // Whole values were replaced by ASCII, so valid UTF-8 stays valid.
        String::from_utf8(self.mask_bytes(text.into_bytes())).unwrap_or_else(|_| MASK.to_owned())
    }
}

impl UserData for Text {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_meta_method(MetaMethod::ToString, |_, this, ()| Ok(this.shown()));
        methods.add_meta_function(MetaMethod::Concat, |lua, (left, right): (Value, Value)| {
            let part = |value: &Value| {
                let wrong = || fail(lua, "r1.secret", format!("a secret is joined with {}", kind(value)));
                Text::read(value).ok_or_else(wrong)
            };
            Ok(Text([part(&left)?.0, part(&right)?.0].concat()))
        });
    }
}

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    const NAME: &str = "r1.secret";
    let shared_host = host.clone();
    let secret = lua.create_function(move |lua, name: Value| -> mlua::Result<AnyUserData> {
        let name = super::args::text(lua, NAME, "name", &name)?;
        let good = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        if name.is_empty() || !name.chars().all(good) {
            return Err(fail(lua, NAME, format!("{name:?} is not a valid name of an environment variable")));
        }
        let secret = Text(vec![SecretPart::Variable(name)]);
        // Needs are not known while a recipe is loaded; the handle is checked again on use.
        if !shared_host.grants.borrow().is_loading() {
            secret.check(lua, &shared_host, NAME)?;
        }
        lua.create_userdata(secret)
    })?;
    r1.raw_set("secret", secret)
}
