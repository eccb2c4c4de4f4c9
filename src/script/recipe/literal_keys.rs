//! Finds literal API keys in scripts: a run directory has a copy of the script, and may be shared.

use std::sync::LazyLock;

use regex::Regex;

use super::load::Script;

/// Patterns of the keys of OpenAI, Hugging Face, GitHub, AWS, Google and Slack.
const KEYS: &str = r"\b(sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{20,}|ghp_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|AKIA[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{30,}|xox[abp]-[A-Za-z0-9-]{10,})";

#[allow(clippy::expect_used)] // a pattern of this file, which the test compiles
static PATTERN: LazyLock<Regex> = LazyLock::new(|| Regex::new(KEYS).expect("a pattern of this file"));

impl Script {
    /// `path:line` of every line of the script and its modules that contains a likely API key.
    pub fn literal_keys(&self) -> Vec<String> {
        let main = (self.path.display().to_string(), &self.source);
        let modules = self.modules.values().map(|module| (module.path.clone(), &module.source));
        std::iter::once(main)
            .chain(modules)
            .flat_map(|(path, source)| lines_with_keys(source).into_iter().map(move |line| format!("{path}:{line}")))
            .collect()
    }
}

/// Line numbers, from 1.
fn lines_with_keys(source: &str) -> Vec<usize> {
    source.lines().enumerate().filter(|(_, line)| PATTERN.is_match(line)).map(|(index, _)| index + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_api_keys_are_found_in_scripts() {
        let source = "local a = 'sk-proj-abcdefghijklmnop1234'\n-- hf_ is a prefix, risk-free-and-long-names-are-fine\n\
                      local b = { key = \"hf_abcdefghijABCDEFGHIJabcdefghij\" }\nlocal c = 'AKIAABCDEFGHIJKLMNOP'";
        assert_eq!(lines_with_keys(source), [1, 3, 4]);
    }
}
