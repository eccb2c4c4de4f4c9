//! The commands of the REPL, which start with a colon.

use crate::error::{Error, Kind, Result, suggest};

/// A command: its name, argument and description.
pub(super) struct ReplCommand {
    pub(super) name: &'static str,
    takes: &'static str,
    does: &'static str,
}

const fn command(name: &'static str, takes: &'static str, does: &'static str) -> ReplCommand {
    ReplCommand { name, takes, does }
}

/// All commands, in the order of `:help`.
pub(super) const COMMANDS: &[ReplCommand] = &[
    command("reset", "[eval] [ROW] [seed=N] | {…}", "start again: with a row of the data, or a task of your own"),
    command("step", "[TEXT]", "reply TEXT as the policy; in a replay, alone: the recorded reply"),
    command("tool", "NAME {…}", "reply with a call of a tool; the arguments are JSON or Lua"),
    command("sample", "[N]", "let the model reply, N times or until it is over"),
    command("obs", "", "the current observation"),
    command("tokens", "", "its tokens: which are sampled, which would be trained on"),
    command("state", "[FIELD]", "the environment's state, or a field of it (messages[1].content)"),
    command("diff", "", "what the last step changed in the state"),
    command("reward", "", "the reward if the trajectory ended here, with its parts"),
    command("undo", "[N]", "undo the last step"),
    command("fork", "[NAME]", "continue in a copy; the trajectory so far stays unchanged"),
    command("branches", "", "the copies"),
    command("branch", "NAME", "switch to another copy"),
    command("replay", "RUN:ID[:STEP]", "a stored trajectory, before its step STEP; :step runs its replies one by one"),
    command("break", "[PLACE]", "stop at a function or a line (step, 12, lib/x.lua:12); alone: list"),
    command("trace", "PLACE", "print the locals there without stopping; in a function: at each line"),
    command("clear", "[PLACE]", "remove breakpoints"),
    command("reload", "", "load the script again, and play the trajectory again under it"),
    command("save", "FILE", "write what was done as a test (r1 test FILE)"),
    command("help", "[COMMAND]", "this"),
    command("quit", "", "leave; so does Ctrl-D"),
];

/// Commands at a breakpoint.
pub(super) const HALTED: &[ReplCommand] = &[
    command("continue", "", "continue to the next breakpoint"),
    command("next", "", "continue to the next line of this function"),
    command("in", "", "continue to the next line in any function"),
    command("out", "", "continue until this function returns"),
    command("locals", "", "the locals"),
    command("where", "", "the call stack"),
    command("help", "", "this"),
    command("abort", "", "abort the call and undo the step"),
    command("quit", "", "leave; so does Ctrl-D"),
];

/// Parses a command and its argument. A unique prefix of a name is enough.
pub(super) fn parse<'a>(typed: &'a str, commands: &'static [ReplCommand]) -> Result<(&'static ReplCommand, &'a str)> {
    let body = typed.trim_start_matches(':');
    let (name, rest) = body.split_once(char::is_whitespace).unwrap_or((body, ""));
    let all = commands.iter().filter(|command| command.name.starts_with(name) && !name.is_empty());
    let mut all: Vec<&'static ReplCommand> = all.collect();
    if let Some(exact) = all.iter().position(|command| command.name == name) {
        all = vec![all[exact]];
    }
    let command = match all[..] {
        [one] => one,
        [] => {
            let missing = |why: &str| Error::new(Kind::Usage, format!("{why} `:{name}`"));
            if HALTED.iter().any(|command| command.name == name) {
                return Err(missing("the script is not stopped at a breakpoint for").hint("`:break PLACE` sets one"));
            }
            if COMMANDS.iter().any(|command| command.name == name) {
                return Err(missing("the halted step must end before").hint("`:continue` or `:abort`"));
            }
            let hint = suggest(name, commands.iter().map(|command| command.name));
            return Err(missing("there is no command").hint(hint));
        }
        _ => {
            let names: Vec<String> = all.iter().map(|command| format!(":{}", command.name)).collect();
            return Err(Error::new(Kind::Usage, format!("`:{name}` is ambiguous: {}", names.join(", "))));
        }
    };
    let rest = rest.trim();
    if command.takes.is_empty() && !rest.is_empty() {
        return Err(Error::new(Kind::Usage, format!("`:{}` takes no argument, got `{rest}`", command.name)));
    }
    if rest.is_empty() && !command.takes.is_empty() && !command.takes.starts_with('[') {
        return Err(Error::new(Kind::Usage, format!("`:{}` needs {}", command.name, command.takes)));
    }
    Ok((command, unfenced(rest)))
}

/// Delimiter of text with several lines.
pub(super) const FENCE: &str = "\"\"\"";

fn unfenced(text: &str) -> &str {
    match text.strip_prefix(FENCE).and_then(|rest| rest.strip_suffix(FENCE)) {
        Some(inside) => inside.trim_matches('\n'),
        None => text,
    }
}

/// Whether a command continues on the next line.
pub(super) fn is_open(typed: &str) -> bool {
    typed.matches(FENCE).count() == 1
}

pub(super) fn help(commands: &[ReplCommand], one: &str) -> Result<String> {
    let one = one.trim_start_matches(':');
    let line = |command: &ReplCommand| {
        let left = format!(":{} {}", command.name, command.takes);
        if left.len() < 24 {
            format!("{left:<24}{}\n", command.does)
        } else {
            format!("{left}\n{:24}{}\n", "", command.does)
        }
    };
    if !one.is_empty() {
        let command = commands.iter().find(|command| command.name == one);
        return command.map(line).ok_or_else(|| {
            let hint = suggest(one, commands.iter().map(|command| command.name));
            Error::new(Kind::Usage, format!("there is no command `:{one}`")).hint(hint)
        });
    }
    Ok(commands.iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn unique_prefixes_of_commands_are_accepted() {
        let name = |typed: &'static str| parse(typed, COMMANDS).map(|(command, rest)| (command.name, rest));
        assert_eq!(name(":step  a reply ").unwrap(), ("step", "a reply"));
        assert_eq!(name(":o").unwrap(), ("obs", ""));
        assert_eq!(name(":branch x").unwrap(), ("branch", "x"));
        assert_eq!(name(":step \"\"\"\na\n\nb\n\"\"\"").unwrap(), ("step", "a\n\nb"));
        let refusal = |typed: &'static str| name(typed).unwrap_err().to_string();
        assert!(refusal(":re").contains("`:re` is ambiguous: :reset, :reward, :replay, :reload"), "{}", refusal(":re"));
        assert!(refusal(":rset").contains("did you mean `reset`"), "{}", refusal(":rset"));
        assert!(refusal(":obs 3").contains("takes no argument"));
        assert!(refusal(":locals").contains("the script is not stopped at a breakpoint for `:locals`"));
        let halted = parse(":step x", HALTED).err().unwrap().to_string();
        assert!(halted.contains("must end before `:step`"), "{halted}");
        assert!(refusal(":tool").contains("needs NAME"));
        assert!(is_open(":step \"\"\"a") && !is_open(":step \"\"\"a\"\"\"") && !is_open(":step a"));
    }

    #[test]
    fn help_fits_a_terminal() {
        let all = help(COMMANDS, "").unwrap();
        assert!(all.lines().all(|line| line.chars().count() <= 100), "{all}");
        assert!(help(COMMANDS, ":undo").unwrap().starts_with(":undo [N]"));
        help(COMMANDS, "undoo").unwrap_err();
    }
}
