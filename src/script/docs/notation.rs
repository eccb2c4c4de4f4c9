//! Parser of the type notation of the declarations: Luau's, and `T…` for any number.

/// A parsed type.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Type<'a> {
    Name(&'a str),
    List(Box<Type<'a>>),
    Map(Box<Type<'a>>, Box<Type<'a>>),
    Table(Vec<(&'a str, Type<'a>)>),
    Function(Vec<(&'a str, Type<'a>)>, Vec<Type<'a>>),
    Optional(Box<Type<'a>>),
    Either(Vec<Type<'a>>),
    Many(Box<Type<'a>>),
}

/// Parses a type; `None` if it is invalid.
pub(super) fn read(text: &str) -> Option<Type<'_>> {
    let mut reader = Reader { rest: text };
    let read = reader.union()?;
    reader.rest.trim().is_empty().then_some(read)
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn eat(&mut self, token: &str) -> bool {
        match self.rest.trim_start().strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn name(&mut self) -> Option<&'a str> {
        let rest = self.rest.trim_start();
        let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        self.rest = &rest[length..];
        (length > 0).then(|| &rest[..length])
    }

    fn union(&mut self) -> Option<Type<'a>> {
        let mut all = vec![self.postfix()?];
        while self.eat("|") {
            all.push(self.postfix()?);
        }
        if all.len() == 1 { all.pop() } else { Some(Type::Either(all)) }
    }

    fn postfix(&mut self) -> Option<Type<'a>> {
        let mut read = self.primary()?;
        loop {
            if self.eat("?") {
                read = Type::Optional(Box::new(read));
            } else if self.eat("…") {
                read = Type::Many(Box::new(read));
            } else {
                return Some(read);
            }
        }
    }

    fn primary(&mut self) -> Option<Type<'a>> {
        if self.rest.trim_start().starts_with('"') {
            let rest = self.rest.trim_start();
            let end = rest[1..].find('"')? + 2;
            self.rest = &rest[end..];
            return Some(Type::Name(&rest[..end]));
        }
        if self.eat("{") {
            return self.table();
        }
        if self.eat("(") {
            return self.function();
        }
        self.name().map(Type::Name)
    }

    /// `{T}`, `{[K]: V}`, `{a: T, b: U}`, `{a: T, [K]: V}` (open for other fields).
    fn table(&mut self) -> Option<Type<'a>> {
        if self.eat("[") {
            let key = self.union()?;
            let value = (self.eat("]") && self.eat(":")).then(|| self.union()).flatten()?;
            return self.eat("}").then(|| Type::Map(Box::new(key), Box::new(value)));
        }
        let before = self.rest;
        if self.name().is_none() || !self.eat(":") {
            self.rest = before;
            let item = self.union()?;
            return self.eat("}").then(|| Type::List(Box::new(item)));
        }
        self.rest = before;
        let mut fields = Vec::new();
        while !self.eat("}") {
            if self.eat("[") {
                self.union()?;
                (self.eat("]") && self.eat(":")).then(|| self.union()).flatten()?;
                fields.push(("", Type::Name("any")));
            } else {
                let name = self.name()?;
                fields.push((name, self.eat(":").then(|| self.union()).flatten()?));
            }
            self.eat(",");
        }
        Some(Type::Table(fields))
    }

    /// `(a: T) -> U`, `() -> (T, U)`, or a type in brackets.
    fn function(&mut self) -> Option<Type<'a>> {
        let mut params = Vec::new();
        while !self.eat(")") {
            let before = self.rest;
            let name = self.name().filter(|_| self.eat(":"));
            if name.is_none() {
                self.rest = before;
            }
            params.push((name.unwrap_or(""), self.union()?));
            self.eat(",");
        }
        if !self.eat("->") {
            let only = params.pop().filter(|(name, _)| name.is_empty() && params.is_empty());
            return only.map(|(_, kind)| kind);
        }
        let mut returns = Vec::new();
        if self.eat("(") {
            while !self.eat(")") {
                returns.push(self.union()?);
                self.eat(",");
            }
        } else {
            returns.push(self.union()?);
        }
        Some(Type::Function(params, returns))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::types::named_types;
    use super::super::{Param, all};
    use super::*;

    fn walk<'a>(kind: &'a Type<'a>, found: &mut Vec<&'a str>) {
        match kind {
            Type::Name(name) => found.push(name),
            Type::List(item) | Type::Optional(item) | Type::Many(item) => walk(item, found),
            Type::Map(key, value) => {
                walk(key, found);
                walk(value, found);
            }
            Type::Table(fields) => {
                for (_, kind) in fields {
                    walk(kind, found);
                }
            }
            Type::Function(params, returns) => {
                for (_, kind) in params {
                    walk(kind, found);
                }
                for kind in returns {
                    walk(kind, found);
                }
            }
            Type::Either(all) => {
                for kind in all {
                    walk(kind, found);
                }
            }
        }
    }
    fn params<'a>(list: &'a [Param], found: &mut Vec<&'a str>) {
        for param in list {
            found.push(param.kind);
            params(param.fields, found);
        }
    }

    #[test]
    fn declared_types_parse_and_refer_to_known_types() {
        let names: Vec<&str> = named_types().iter().map(|named| named.name).collect();
        let known = |name: &str| {
            let basic = ["any", "string", "number", "integer", "boolean", "nil", "table", "true", "false"];
            basic.contains(&name) || names.contains(&name) || name.starts_with('"')
        };
        let mut written = Vec::new();
        for entry in all() {
            params(entry.params, &mut written);
            written.extend(entry.returns.iter().map(|(kind, _)| *kind));
        }
        let types = named_types();
        written.extend(types.iter().flat_map(|named| named.fields.iter().map(|(_, kind, _)| kind.as_str())));
        for text in written {
            let kind = read(text).unwrap_or_else(|| panic!("not a type: {text}"));
            let mut found = Vec::new();
            walk(&kind, &mut found);
            assert!(found.iter().all(|name| known(name)), "{text} refers to an unknown type");
        }
    }

    #[test]
    fn type_notation_is_parsed_like_luau() {
        let name = |text| Box::new(Type::Name(text));
        assert_eq!(read("{string}?"), Some(Type::Optional(Box::new(Type::List(name("string"))))));
        assert_eq!(
            read("(string | number)?"),
            Some(Type::Optional(Box::new(Type::Either(vec![*name("string"), *name("number")]))))
        );
        assert_eq!(
            read("(a: any) -> string?"),
            Some(Type::Function(vec![("a", *name("any"))], vec![Type::Optional(name("string"))]))
        );
        assert_eq!(read("string…"), Some(Type::Many(name("string"))));
        for bad in ["", "{", "a b", "(a: ) -> b", "{a: }"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
