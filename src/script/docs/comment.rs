//! Comments of three dashes in Lua and Luau: what they say about the declaration that follows.
//!
//! The description comes first. Then `@param NAME TEXT`, `@return TEXT` (one for each result, in
//! order), `@tag programs` or `@tag tests`, and an example between lines of three backticks. Other
//! lines continue the text before them. An indented line of the description stays a line.

use full_moon::tokenizer::{TokenReference, TokenType};

use super::Scope;

/// A comment of three dashes.
#[derive(Debug, Default)]
pub(super) struct Comment {
    /// Paragraphs, with an empty line between them.
    pub(super) text: String,
    pub(super) params: Vec<(String, String)>,
    pub(super) returns: Vec<String>,
    pub(super) scope: Option<Scope>,
    pub(super) example: String,
}

impl Comment {
    /// The comment directly above a token.
    pub(super) fn above(token: &TokenReference) -> Self {
        let last = blocks(token).pop().filter(|block| !block.is_apart);
        last.map(|block| Self::of(&block.lines)).unwrap_or_default()
    }

    /// The first comment before a token.
    pub(super) fn first(token: &TokenReference) -> Self {
        blocks(token).first().map(|block| Self::of(&block.lines)).unwrap_or_default()
    }

    fn of(lines: &[String]) -> Self {
        let mut read = Self::default();
        // The description, then the text of each tag.
        let mut parts = vec![String::new()];
        let mut lines = lines.iter();
        while let Some(line) = lines.next() {
            if line.starts_with("```") {
                let code = lines.by_ref().map(String::as_str).take_while(|line| !line.starts_with("```"));
                read.example = code.collect::<Vec<_>>().join("\n");
            } else if ["@param ", "@return", "@tag "].iter().any(|tag| line.starts_with(tag)) {
                parts.push(line.clone());
            } else if let Some(part) = parts.last_mut() {
                append(part, line);
            }
        }
        let mut parts = parts.into_iter();
        parts.next().unwrap_or_default().trim().clone_into(&mut read.text);
        for part in parts {
            if let Some(param) = part.strip_prefix("@param ") {
                let (name, text) = param.split_once(' ').unwrap_or((param, ""));
                read.params.push((name.to_owned(), text.to_owned()));
            } else if let Some(text) = part.strip_prefix("@return") {
                read.returns.push(text.trim().to_owned());
            } else {
                read.scope = Scope::of_tag(&part);
            }
        }
        read
    }
}

fn append(text: &mut String, line: &str) {
    let is_description = !text.starts_with('@');
    if line.is_empty() {
        text.push_str("\n\n");
    } else if is_description && line.starts_with("  ") {
        text.push('\n');
        text.push_str(line);
    } else {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push(' ');
        }
        text.push_str(line.trim_start());
    }
}

/// Consecutive lines, without their dashes.
struct CommentBlock {
    lines: Vec<String>,
    /// An empty line or another comment follows.
    is_apart: bool,
}

/// The comments of three dashes before a token.
fn blocks(token: &TokenReference) -> Vec<CommentBlock> {
    let mut blocks: Vec<CommentBlock> = Vec::new();
    let mut newlines = 0;
    for trivia in token.leading_trivia() {
        match trivia.token_type() {
            TokenType::SingleLineComment { comment } if comment.starts_with('-') => {
                let line = comment.strip_prefix("- ").unwrap_or(&comment[1..]).trim_end().to_owned();
                match blocks.last_mut().filter(|block| !block.is_apart) {
                    Some(block) => block.lines.push(line),
                    None => blocks.push(CommentBlock { lines: vec![line], is_apart: false }),
                }
                newlines = 0;
            }
            TokenType::SingleLineComment { .. } | TokenType::MultiLineComment { .. } => newlines = 2,
            TokenType::Whitespace { characters } => newlines += characters.matches('\n').count(),
            _ => {}
        }
        if let Some(block) = blocks.last_mut().filter(|_| newlines > 1) {
            block.is_apart = true;
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(text: &str) -> (Comment, Comment) {
        let ast = full_moon::parse(text).unwrap();
        let token = full_moon::node::Node::tokens(ast.nodes()).next().unwrap();
        (Comment::first(token), Comment::above(token))
    }

    #[test]
    fn a_comment_has_a_description_tags_and_an_example() {
        let (_, read) = read(
            "--- Adds numbers, or\n--- anything else.\n---\n--- Second:\n---   code\n--- @param a The first\n---   one\n\
             --- @return\n--- @return Why not\n--- @tag programs\n--- ```lua\n--- add(1, 2)\n---   --> 3\n--- ```\nlocal a",
        );
        assert_eq!(read.text, "Adds numbers, or anything else.\n\nSecond:\n  code");
        assert_eq!(read.params, [("a".to_owned(), "The first one".to_owned())]);
        assert_eq!((read.returns, read.scope), (vec![String::new(), "Why not".to_owned()], Some(Scope::Programs)));
        assert_eq!(read.example, "add(1, 2)\n  --> 3");
    }

    #[test]
    fn a_comment_belongs_to_the_line_after_it() {
        let (first, above) = read("--- Of the file.\n\n--- Of the variable.\nlocal a");
        assert_eq!((first.text.as_str(), above.text.as_str()), ("Of the file.", "Of the variable."));
        assert_eq!(read("--- Of the file.\n\nlocal a").1.text, "");
        assert_eq!(read("--- Of the file.\n-- Another.\nlocal a").1.text, "");
    }
}
