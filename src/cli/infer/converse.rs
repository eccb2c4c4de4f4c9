//! Interactive chat: line editing with history, `/commands`, Ctrl-C stops a reply.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustyline::completion::Completer;
use rustyline::config::CompletionType;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper};

use super::super::failure::ErrorFormat;
use super::super::line_editor::LineEditor;
use super::ask;
use super::chat::Chat;
use super::screen::Screen;
use crate::error::{Error, Kind, Result, suggest};
use crate::telemetry::Interrupt;

/// Commands: name, argument, description.
const COMMANDS: [(&str, &str, &str); 13] = [
    ("/image", "FILE", "show an image with the next question"),
    ("/video", "FILE", "show a video (GIF, WebP or PNG with several frames)"),
    ("/reset", "", "start again"),
    ("/undo", "", "undo the last question"),
    ("/retry", "", "send the last question again"),
    ("/system", "[TEXT]", "show the system prompt, or change it"),
    ("/save", "FILE", "write the conversation to a file"),
    ("/load", "FILE", "continue a conversation from a file"),
    ("/tools", "", "show the tools that the policy has"),
    ("/stats", "", "show tokens, time and the room that is left"),
    ("/help", "", "show this"),
    ("/exit", "", "leave; so does Ctrl-D"),
    ("/quit", "", "leave"),
];

/// Delimits text of several lines.
const FENCE: &str = "\"\"\"";

/// Reads questions from the terminal until Ctrl-D.
pub(super) fn converse(chat: &mut Chat, interrupt: Interrupt, screen: &Screen, voice: ErrorFormat) -> Result<ExitCode> {
    let lines = LineEditor::open(Assistant, "history", io::stdout().is_terminal(), CompletionType::Circular)?;
    screen.note(&chat.title());
    screen.note("Ctrl-C stops a reply, Ctrl-D leaves, /help lists the commands");
    loop {
        interrupt.clear();
        interrupt.at_once(true);
        let Some(typed) = lines.next("> ", |text| screen.note(text))? else { return Ok(ExitCode::SUCCESS) };
        let done = match meant(&typed, chat.sees_images()) {
            Ok(Meant::Nothing) => Ok(()),
            Ok(Meant::Question(question)) => send_question(chat, &question, interrupt, screen),
            Ok(Meant::Command("/exit" | "/quit", _)) => return Ok(ExitCode::SUCCESS),
            Ok(Meant::Command(name, rest)) => command(chat, name, rest, interrupt, screen),
            Ok(Meant::Image(path, question)) => chat.show_image(&path, false).and_then(|()| {
                screen.note(&format!("the image {} is shown", path.display()));
                if question.is_empty() { Ok(()) } else { send_question(chat, question, interrupt, screen) }
            }),
            Err(error) => Err(error),
        };
        // A failed answer does not end the conversation.
        if let Err(error) = done {
            voice.fail(&error);
        }
    }
}

/// Samples a reply to a question.
fn send_question(chat: &mut Chat, question: &str, interrupt: Interrupt, screen: &Screen) -> Result<()> {
    if ask(chat, question, interrupt, screen)?.undone {
        screen.note("stopped and undone: /retry sends the question again");
    }
    Ok(())
}

/// A parsed input.
#[derive(Debug, PartialEq)]
enum Meant<'a> {
    Nothing,
    Question(String),
    Command(&'static str, &'a str),
    /// A pasted path, and a question after it.
    Image(PathBuf, &'a str),
}

/// The image file whose path begins a text, as terminals paste it, and the text after it.
fn pasted_image(text: &str) -> Option<(PathBuf, &str)> {
    let quote = text.chars().next().filter(|first| matches!(first, '\'' | '"'));
    // Terminals put a backslash before a space.
    let is_end = |&(at, c): &(usize, char)| c.is_whitespace() && !text[..at].ends_with('\\');
    let end = text.char_indices().find(is_end).map_or(text.len(), |(at, _)| at);
    let (path, rest) = quote.map_or(Some(text.split_at(end)), |quote| text[1..].split_once(quote))?;
    let path = expand(&path.trim_start_matches("file://").replace("\\ ", " "));
    let extension = path.extension()?.to_str()?.to_lowercase();
    let is_image = ["png", "jpg", "jpeg", "webp", "gif"].contains(&extension.as_str());
    (is_image && path.is_file()).then_some((path, rest.trim()))
}

fn meant(typed: &str, sees_images: bool) -> Result<Meant<'_>> {
    // Exit commands of other consoles and of Agent-R1's chat; questions with a leading space.
    if matches!(typed.trim_end(), "exit" | "quit" | "q" | "exit()" | "quit()") {
        return Ok(Meant::Command("/exit", ""));
    }
    if sees_images && let Some((path, question)) = pasted_image(typed.trim()) {
        return Ok(Meant::Image(path, question));
    }
    if typed.starts_with('/') {
        let (name, rest) = typed.split_once(char::is_whitespace).unwrap_or((typed, ""));
        let name = name.trim();
        let names = COMMANDS.iter().map(|&(name, ..)| name);
        let Some((command, takes, _)) = COMMANDS.iter().find(|(command, ..)| *command == name) else {
            return Err(Error::new(Kind::Usage, format!("there is no command `{name}`"))
                .hint(format!("{} (start a question that begins with / with a space)", suggest(name, names))));
        };
        let rest = rest.trim();
        if takes.is_empty() && !rest.is_empty() {
            return Err(Error::new(Kind::Usage, format!("`{command}` takes no argument, got `{rest}`")));
        }
        if *takes == "FILE" && rest.is_empty() {
            let example = match *command {
                "/image" => "board.png",
                "/video" => "clip.gif",
                _ => "chat.json",
            };
            return Err(Error::new(Kind::Usage, format!("`{command}` needs a file name"))
                .hint(format!("as in {command} {example}")));
        }
        return Ok(Meant::Command(command, rest));
    }
    let text = typed.trim();
    let fenced = text.strip_prefix(FENCE).and_then(|rest| rest.strip_suffix(FENCE));
    let question = match fenced {
        Some(inside) => inside.trim_matches('\n').to_owned(),
        None => text.replace("\\\n", "\n"),
    };
    Ok(if question.trim().is_empty() { Meant::Nothing } else { Meant::Question(question) })
}

/// Whether the text continues on the next line.
fn is_open(typed: &str) -> bool {
    let text = typed.trim();
    if text.starts_with('/') {
        return false;
    }
    match text.strip_prefix(FENCE) {
        Some(rest) => !rest.ends_with(FENCE),
        None => typed.ends_with('\\'),
    }
}

fn command(chat: &mut Chat, name: &str, rest: &str, interrupt: Interrupt, screen: &Screen) -> Result<()> {
    match name {
        "/image" | "/video" => {
            chat.show_image(&expand(rest.trim_matches(['\'', '"'])), name == "/video")?;
            screen.note(&format!("the next question shows the {}", &name[1..]));
            Ok(())
        }
        "/reset" => {
            chat.reset();
            screen.note("the conversation is cleared");
            Ok(())
        }
        "/undo" => match chat.undo()? {
            Some(question) => screen.print(&format!("undone: {question}")),
            None => Err(chat.no_question()),
        },
        "/retry" => {
            let question = chat.again()?.ok_or_else(|| chat.no_question())?;
            screen.note(&format!("> {question}"));
            send_question(chat, &question, interrupt, screen)
        }
        "/system" if rest.is_empty() => screen.print(chat.system.as_deref().unwrap_or("no system prompt is set")),
        "/system" => {
            chat.set_system(rest)?;
            screen.note("the system prompt applies from here on");
            Ok(())
        }
        "/save" => {
            let path = expand(rest);
            let count = chat.save(&path)?;
            screen.print(&format!("{count} messages written to {}", path.display()))
        }
        "/load" => {
            let count = chat.load(&expand(rest))?;
            screen.print(&format!("{count} messages read"))
        }
        "/tools" => screen.print(&tools(chat)),
        "/stats" => screen.print(&stats(chat)),
        _ => screen.print(&help()),
    }
}

fn help() -> String {
    let mut lines: Vec<String> =
        COMMANDS.iter().map(|(name, takes, does)| format!("{:<16}{does}", format!("{name} {takes}"))).collect();
    lines.push(format!("{FENCE}             delimits a text of several lines; a \\ at the end continues a line"));
    lines.join("\n")
}

fn tools(chat: &Chat) -> String {
    let tools = chat.script.worker.tools();
    if tools.is_empty() {
        return "there are no tools; --script SCRIPT brings a recipe's".to_owned();
    }
    let line = |tool: &serde_json::Value| {
        let function = &tool["function"];
        let fields = function["parameters"]["properties"].as_object();
        let names: Vec<&str> = fields.into_iter().flat_map(|fields| fields.keys()).map(String::as_str).collect();
        let text = |name: &str| function[name].as_str().unwrap_or_default().to_owned();
        format!("{}({}): {}", text("name"), names.join(", "), text("description"))
    };
    tools.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn stats(chat: &Chat) -> String {
    let stats = chat.stats;
    let rate = stats.tokens as f64 / stats.sampling_seconds.max(1e-9);
    let used = stats.context.map_or_else(|| "not known yet".to_owned(), |used| format!("{used} tokens"));
    let room = chat.max_context().map(|limit| format!(", of {limit}")).unwrap_or_default();
    format!(
        "questions   {}\nreplies     {}\ntool calls  {}\ntokens      {} ({rate:.0} tokens/s)\ncontext     {used}{room}",
        stats.questions, stats.replies, stats.tool_calls, stats.tokens
    )
}

fn expand(text: &str) -> PathBuf {
    match (text.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => PathBuf::from(text),
    }
}

/// Completes commands and detects incomplete texts.
struct Assistant;

impl Completer for Assistant {
    type Candidate = String;

    fn complete(&self, line: &str, pos: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..pos];
        let names =
            COMMANDS.iter().map(|&(name, ..)| name).filter(|name| typed.starts_with('/') && name.starts_with(typed));
        Ok((0, names.map(str::to_owned).collect()))
    }
}

impl Validator for Assistant {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_open(context.input()) { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Hinter for Assistant {
    type Hint = String;
}

impl Highlighter for Assistant {}

impl Helper for Assistant {}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn meant(text: &str) -> Result<Meant<'_>> {
        super::meant(text, false)
    }

    #[test]
    fn pasted_paths_are_images() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["a.png", "a b.JPG", "notes.txt"] {
            std::fs::write(at(name), "").unwrap();
        }
        let (plain, spaced) = (at("a.png").display().to_string(), at("a b.JPG").display().to_string());
        let image = |name: &str, question: &'static str| Meant::Image(at(name), question);
        for (text, expected) in [
            (plain.clone(), image("a.png", "")),
            (format!(" {plain}  what? "), image("a.png", "what?")),
            (format!("'{spaced}' what?"), image("a b.JPG", "what?")),
            (format!("\"{spaced}\""), image("a b.JPG", "")),
            (spaced.replace(' ', "\\ "), image("a b.JPG", "")),
            (format!("file://{plain}"), image("a.png", "")),
        ] {
            assert_eq!(super::meant(&text, true).unwrap(), expected, "{text}");
        }
        let missing = at("b.png").display().to_string();
        assert!(super::meant(&missing, true).unwrap_err().message.contains("there is no command"));
        let notes = format!("'{}'", at("notes.txt").display());
        assert_eq!(super::meant(&notes, true).unwrap(), Meant::Question(notes.clone()));
        assert!(meant(&plain).unwrap_err().message.contains("there is no command"));
    }

    #[test]
    fn questions_and_commands_are_distinguished() {
        let question = |text: &str| Meant::Question(text.to_owned());
        assert_eq!(meant("  what?  ").unwrap(), question("what?"));
        assert_eq!(meant(" /usr is what?").unwrap(), question("/usr is what?"));
        assert_eq!(meant("one \\\ntwo").unwrap(), question("one \ntwo"));
        assert_eq!(meant("\"\"\"\na\n\nb\\\n\"\"\"").unwrap(), question("a\n\nb\\"));
        assert_eq!(meant(" ").unwrap(), Meant::Nothing);
        assert_eq!(meant("\"\"\"\"\"\"").unwrap(), Meant::Nothing);
        assert_eq!(meant("/system Be  brief. ").unwrap(), Meant::Command("/system", "Be  brief."));
        assert_eq!(meant("/undo").unwrap(), Meant::Command("/undo", ""));
        for word in ["exit", "quit", "q", "exit()"] {
            assert_eq!(meant(word).unwrap(), Meant::Command("/exit", ""));
            assert_eq!(meant(&format!(" {word}")).unwrap(), question(word));
        }
    }

    #[test]
    fn unknown_commands_are_refused_with_the_nearest() {
        let refusal = |text: &str| meant(text).unwrap_err().to_string();
        assert!(refusal("/rest").contains("did you mean `/reset`"), "{}", refusal("/rest"));
        assert!(refusal("/clear").contains("there is no command `/clear`"));
        assert!(refusal("/undo 3").contains("takes no argument"));
        assert!(refusal("/save").contains("as in /save chat.json"));
    }

    #[test]
    fn texts_of_several_lines_continue_until_they_are_closed() {
        for open in ["a \\", "\"\"\"", "\"\"\"a", "\"\"\"\na\nb", "a \\\nb\\"] {
            assert!(is_open(open), "{open:?}");
        }
        for closed in ["", "a", "\"\"\"a\"\"\"", "\"\"\"\na\n\"\"\"", "a \\\nb", "/save \"\"\"", "say \"\"\"x"] {
            assert!(!is_open(closed), "{closed:?}");
        }
    }
}
