//! Tests of the defaults that pages and the comments of Lua modules name: `eval.limit` (128 …), a
//! column `default` of a table, `--k1` (1.2). Each is the declared one.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use clap::CommandFactory;
use regex::Regex;

use super::args::Cli;
use super::documented::pages;
use crate::config::settings;
use crate::script::docs;
use crate::script::docs::defaults::meanings;

/// Pages that are made from the declarations, and the log of earlier versions.
const OTHERS: [&str; 4] =
    ["docs/reference/settings.md", "docs/reference/lua.md", "docs/reference/coming-from.md", "docs/lab/LOG.md"];

/// A literal: a number with its unit, a quoted text, true or false.
const LITERAL: &str = r#"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?: ?(?:KiB|MiB|ms|s)\b)?|"[^"]*"|true|false"#;

fn regex(pattern: &str) -> Regex {
    Regex::new(&pattern.replace("LITERAL", LITERAL)).unwrap()
}

fn is_same(named: &str, declared: &str) -> bool {
    meanings(named).iter().any(|named| meanings(declared).contains(named))
}

fn setting(path: &str) -> Option<String> {
    let mut listed = settings().filter(|setting| setting.path == path && setting.only != "sft");
    listed.next().map(|setting| setting.default.clone())
}

/// The default of an option of a host function, as its declaration names it.
fn option(function: &str, name: &str) -> Option<String> {
    let entry = docs::find(function)?;
    let field = entry.params.iter().flat_map(|param| &param.fields).find(|field| field.bare() == name)?;
    let named = regex(r"efault:? (LITERAL|\w+)").captures_iter(&field.doc).last()?;
    Some(named[1].to_owned())
}

/// Flags of all commands, with their defaults.
fn flags() -> BTreeMap<String, Vec<String>> {
    fn add(command: &clap::Command, flags: &mut BTreeMap<String, Vec<String>>) {
        for argument in command.get_arguments() {
            let Some(name) = argument.get_long() else { continue };
            let defaults = flags.entry(format!("--{name}")).or_default();
            defaults.extend(argument.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()));
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            defaults.extend(regex(r"\[default[^\]]*?(LITERAL)").captures(&help).map(|flags| flags[1].to_owned()));
        }
        command.get_subcommands().for_each(|command| add(command, flags));
    }
    let mut flags = BTreeMap::new();
    add(&Cli::command(), &mut flags);
    flags
}

/// The declared defaults with a name, as a page or a module names it.
struct DeclaredDefaults {
    flags: BTreeMap<String, Vec<String>>,
    /// Modules of `lua/` without blanks, by path.
    modules: BTreeMap<String, String>,
}

impl DeclaredDefaults {
    fn read() -> Self {
        fn read(root: &Path, folder: &Path, modules: &mut BTreeMap<String, String>) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    read(root, &path, modules);
                } else if path.extension().is_some_and(|end| end == "lua") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let name = path.strip_prefix(root).unwrap().display().to_string();
                    modules.insert(name, text);
                }
            }
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut modules = BTreeMap::new();
        read(root, &root.join("lua"), &mut modules);
        modules.retain(|name, _| !name.starts_with("lua/types"));
        Self { flags: flags(), modules }
    }

    /// Whether a module uses a value where the option is not given.
    fn in_module(&self, module: &str, name: &str, named: &str) -> bool {
        let code: String = self.modules[module].lines().filter(|line| !line.trim_start().starts_with("--")).collect();
        let code: String = code.split_whitespace().collect();
        let (name, named) = (name.rsplit('.').next().unwrap_or(name), named.trim_matches('`'));
        match named {
            "true" => code.contains(&format!(".{name}~=false")) || code.contains(&format!(".{name}==false")),
            "false" => code.contains(&format!(".{name}")) && !code.contains(&format!(".{name}~=false")),
            _ => {
                // `options.timeout or TIMEOUT`, `positive(options, "timeout", TIMEOUT)`
                let value = r#"(-?\d[\d.]*(?:e-?\d+)?(?:/\d+)?|"[^"]*"|[A-Z_]+)"#;
                let used = regex(&format!(r#"[.(]{name}or{value}|"{name}",{value}\)"#));
                let mut values = used.captures_iter(&code).map(|capture| {
                    let value = capture.get(1).or(capture.get(2)).unwrap().as_str();
                    Self::constant(&code, value)
                });
                values.any(|value| is_same(named, &value) || named.replace(' ', "") == value)
            }
        }
    }

    /// The value of a local constant: `local TIMEOUT, BYTES = 30, 2 ^ 20`.
    fn constant(code: &str, name: &str) -> String {
        let declared = regex(r"local((?:[A-Z_]+,)*[A-Z_]+)=((?:[\d^.]+,)*[\d^.]+)");
        for captures in declared.captures_iter(code) {
            let index = captures[1].split(',').position(|declared_name| declared_name == name);
            if let Some(value) = index.and_then(|index| captures[2].split(',').nth(index)) {
                return value.split_once('^').map_or(value.to_owned(), |(base, power)| {
                    base.parse::<f64>().unwrap().powi(power.parse().unwrap()).to_string()
                });
            }
        }
        name.to_owned()
    }
}

/// Defaults that a text names, and which of them differ from the declared ones.
#[derive(Default)]
struct Compared {
    count: usize,
    wrong: Vec<String>,
}

impl Compared {
    fn add(&mut self, location: &str, name: &str, named: &str, declared: Option<&str>) {
        self.count += 1;
        if !declared.is_some_and(|declared| is_same(named, declared)) {
            self.wrong.push(format!("{location}: the default of {name} is said to be {named}; declared: {declared:?}"));
        }
    }

    fn finish(self, least: usize) {
        assert!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
        assert!(self.count >= least, "{} defaults were found", self.count);
    }
}

fn own_pages() -> impl Iterator<Item = (String, String)> {
    pages().into_iter().filter(|(page, _)| page.ends_with(".md") && !OTHERS.contains(&page.as_str()))
}

#[test]
fn settings_have_the_defaults_that_pages_name() {
    const NAME: &str = r"`?((?:policy|data|sampling|env|rollout|eval|checkpoint|limits|trainer)\.[a-z_.]*[a-z_])";
    let patterns = [
        // `eval.limit` (128 …), `rollout.retries` times (1)
        regex(&format!(r"{NAME}`?(?: [a-z]+){{0,2}} \((LITERAL)[ ;:,)]")),
        // `env.on_overflow = "end"` (default), `trainer.tokens_per_batch=0`, the default
        regex(&format!(r"{NAME} ?= ?(LITERAL|\w+)`?,? (?:\(default\)|the default)")),
        // `eval.store` is …, 128 by default
        regex(&format!(r"{NAME}`[^.`|]{{0,80}}? (LITERAL) by default")),
        // | `data.overlong_prompts` | … `auto`, the default, …
        regex(&format!(r"\| {NAME}` \|[^|]*?(?:`(\w+)`|(LITERAL)), the default")),
        // | `data.check_rows` | … (20,000; 0: all) …
        regex(&format!(r"\| {NAME}` \|[^|(]*\((LITERAL)[;)]")),
    ];
    let mut compared = Compared::default();
    // Pages of recipes name the values of the recipe.
    for (page, text) in own_pages().filter(|(page, _)| !page.contains("recipes")) {
        let text = text.replace('\n', " ");
        for pattern in &patterns {
            // A setting that has no value is described.
            for captures in
                pattern.captures_iter(&text).filter(|captures| setting(&captures[1]).as_deref() != Some("null"))
            {
                let named = captures.iter().skip(2).flatten().next().unwrap().as_str();
                let declared = setting(&captures[1]);
                compared.add(&page, &captures[1], named, declared.as_deref());
            }
        }
    }
    compared.finish(7);
}

#[test]
fn tables_of_pages_have_the_declared_defaults() {
    let (declared, mut compared) = (DeclaredDefaults::read(), Compared::default());
    let literal = regex(r"^`?(LITERAL)`?");
    for (page, text) in own_pages() {
        let (mut column, mut of) = (None, String::new());
        for line in text.lines() {
            let cells: Vec<&str> = line.trim().trim_matches('|').split(" | ").map(str::trim).collect();
            if !line.starts_with("| ") {
                column = column.filter(|_| line.starts_with("|--"));
                continue;
            }
            if let Some(index) = cells.iter().position(|cell| *cell == "default") {
                (column, of) = (Some(index), cells[0].to_owned());
                continue;
            }
            let Some(cell) = column.and_then(|column| cells.get(column)) else { continue };
            let names: Vec<&str> = cells[0].split('`').skip(1).step_by(2).collect();
            let values: Vec<&str> = cell.split(", ").collect();
            for (index, name) in names.iter().enumerate() {
                let value = if names.len() == values.len() { values[index] } else { cell };
                let (Some(value), true) = (literal.captures(value), index == 0 || names.len() == values.len()) else {
                    continue;
                };
                let name = name.split(' ').next().unwrap_or_default();
                let declared_value = match (page.as_str(), of.as_str()) {
                    _ if name.starts_with("--") => {
                        declared.flags[name].iter().find(|default| is_same(&value[1], default)).cloned()
                    }
                    ("docs/guide/tables.md", "limit") => option("r1.tools.table", name),
                    ("docs/guide/games.md", _) => {
                        let same = declared.in_module("lua/games/turns.lua", name, &value[1]);
                        same.then(|| value[1].to_owned())
                    }
                    ("docs/guide/python.md", _) => {
                        let same = declared.in_module("lua/python.lua", name, &value[1]);
                        if same { Some(value[1].to_owned()) } else { option("r1.connection", name) }
                    }
                    _ => continue,
                };
                compared.add(&page, name, &value[1], declared_value.as_deref());
            }
        }
    }
    compared.finish(15);
}

/// `--flag` (LITERAL) in a page.
#[test]
fn flags_have_the_defaults_that_pages_name() {
    let (flags, mut compared) = (flags(), Compared::default());
    let pattern = regex(r"`(--[a-z0-9-]+)(?: [A-Z]+)?`(?: [a-z]+){0,2} \((LITERAL)\)");
    for (page, text) in own_pages() {
        for captures in pattern.captures_iter(&text.replace('\n', " ")) {
            let declared = flags
                .get(&captures[1])
                .and_then(|defaults| defaults.iter().find(|defaults| is_same(&captures[2], defaults)));
            compared.add(&page, &captures[1], &captures[2], declared.map(String::as_str));
        }
    }
    compared.finish(3);
}

/// `name` (LITERAL) in the comments of a module, and in the page about it.
#[test]
fn modules_have_the_defaults_that_their_comments_and_pages_name() {
    const PAGES: [(&str, &[&str]); 5] = [
        ("docs/guide/rewards.md", &["lua/rewards/judge.lua"]),
        ("docs/guide/context.md", &["lua/compaction.lua"]),
        ("docs/guide/games.md", &["lua/games/sokoban.lua"]),
        ("docs/guide/env_http.md", &["lua/env_http.lua"]),
        ("docs/guide/env_gym.md", &["lua/env_gym.lua"]),
    ];
    let (declared, mut compared) = (DeclaredDefaults::read(), Compared::default());
    let pattern = regex(
        r"((?:`[\w.]+`, )*`[\w.]+`)(?: characters| \| [^|()]*)? ?\((?:default )?`?((?:LITERAL)(?:/\d+)?(?:, (?:LITERAL))*)`?[,;:)]",
    );
    let mut texts: Vec<(String, String, Vec<String>)> = Vec::new();
    for (module, text) in &declared.modules {
        let comments: Vec<&str> = text.lines().filter_map(|line| line.trim_start().strip_prefix("---")).collect();
        texts.push((module.clone(), comments.join(" "), vec![module.clone()]));
    }
    for (page, modules) in PAGES {
        let text = pages().into_iter().find(|(name, _)| name == page).unwrap().1.replace('\n', " ");
        texts.push((page.to_owned(), text, modules.iter().map(|&module| module.to_owned()).collect()));
    }
    for (location, text, modules) in texts {
        for captures in pattern.captures_iter(&text) {
            let names: Vec<&str> = captures[1].split('`').skip(1).step_by(2).collect();
            let values: Vec<&str> = captures[2].split(", ").collect();
            // A name of a setting, and a value such as `options.seen`.
            for (at, name) in names.iter().enumerate().filter(|(_, name)| setting(name).is_none()) {
                if names.len() != values.len() && at + 1 < names.len() {
                    continue;
                }
                let named = if names.len() == values.len() { values[at] } else { values[0] };
                let is_declared = modules.iter().any(|module| declared.in_module(module, name, named));
                let passed = option("r1.connection", name);
                let default_value = if is_declared { Some(named) } else { passed.as_deref() };
                compared.add(&location, name, named, default_value);
            }
        }
    }
    compared.finish(40);
}
