//! Tools of which every call fails: a server that is down, a program that is not there.

use std::collections::BTreeMap;
use std::fmt;

use super::ToolRecord;

/// A tool of which every call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingTool {
    pub name: String,
    pub calls: usize,
    /// The first line of the first result.
    pub output: String,
}

impl fmt::Display for FailingTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, calls, output } = self;
        match calls {
            1 => write!(f, "the call of `{name}` failed: {output}"),
            calls => write!(f, "all {calls} calls of `{name}` failed: {output}"),
        }
    }
}

/// The tools with at least `least` calls that ran, none of which succeeded. Calls with wrong
/// arguments are mistakes of the policy, and do not count.
pub fn failing_tools<'a>(calls: impl IntoIterator<Item = &'a ToolRecord>, least: usize) -> Vec<FailingTool> {
    /// Characters of a result that are shown.
    const SHOWN: usize = 200;
    let mut tools: BTreeMap<&str, (usize, bool, &str)> = BTreeMap::new();
    for call in calls.into_iter().filter(|call| call.kind.has_run()) {
        let tool = tools.entry(&call.name).or_insert((0, false, &call.output));
        tool.0 += 1;
        tool.1 |= call.ok;
    }
    let failing = tools.into_iter().filter(|(_, (count, works, _))| *count >= least && !works);
    failing
        .map(|(name, (calls, _, output))| {
            let line = output.trim().lines().next().unwrap_or_default();
            FailingTool { name: name.to_owned(), calls, output: line.chars().take(SHOWN).collect() }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mdp::CallKind;

    #[test]
    fn a_tool_fails_if_all_its_calls_do() {
        let call = |name: &str, ok: bool, kind: CallKind| ToolRecord {
            name: name.to_owned(),
            ok,
            kind,
            output: "Error: down\nmore".to_owned(),
            ..ToolRecord::default()
        };
        let calls = [
            call("search", false, CallKind::Ran),
            call("search", false, CallKind::Ran),
            call("search", false, CallKind::BadArguments),
            call("python", false, CallKind::Ran),
            call("python", true, CallKind::Ran),
            call("fetch", false, CallKind::Ran),
        ];
        let shown = |least| failing_tools(&calls, least).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(shown(2), ["all 2 calls of `search` failed: Error: down"]);
        assert_eq!(
            shown(1),
            ["the call of `fetch` failed: Error: down", "all 2 calls of `search` failed: Error: down"]
        );
    }
}
