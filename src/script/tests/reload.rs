//! Tests that the watcher detects new versions of a script, for any way of writing its files.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::*;
use crate::text::Renderer;

/// The report of the watcher: the hash of the version that was taken, or `same` and the hash of the
/// one that runs again; or why a version was not taken.
type Report = Result<(String, Vec<String>), String>;

struct Watched {
    reports: Receiver<Report>,
    _watcher: Watcher,
}

impl Watched {
    fn new(path: &Path) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let (taken, reports) = channel();
        let (refused, restored) = (taken.clone(), taken.clone());
        let script = Script::load(path, &["trainer.epochs=2".to_owned()]).unwrap();
        let watcher = Watcher::start(WatcherOptions {
            script,
            overrides: vec!["trainer.epochs=2".to_owned()],
            renderer: Arc::new(Renderer::load(&root.join("models/r1-nano"), "retool").unwrap()),
            budget: 200,
            take: Box::new(move |reload| {
                if reload.script.settings.rollout.retries == 9 {
                    return Err(Error::new(crate::error::Kind::Script, "nine is too many"));
                }
                let changes = reload.changed.iter().chain(&reload.waiting).map(ToString::to_string).collect();
                taken.send(Ok((reload.script.hash.clone(), changes))).unwrap();
                Ok(())
            }),
            refused: Box::new(move |error| refused.send(Err(error.to_string())).unwrap()),
            restored: Box::new(move |script| {
                restored.send(Ok((format!("same {}", script.hash), Vec::new()))).unwrap();
            }),
        });
        Self { reports, _watcher: watcher.unwrap() }
    }

    fn next(&self) -> Report {
        self.reports.recv_timeout(Duration::from_mins(10)).expect("the watcher reports nothing")
    }

    /// The next version has the current text of the files.
    fn takes(&self, path: &Path) -> Vec<String> {
        let (hash, changes) = self.next().unwrap();
        assert_eq!(hash, Script::load(path, &[]).unwrap().hash);
        changes
    }

    /// Waits for the report of the current text of the files; returns the number of other reports
    /// before it, such as reports of a partly written file.
    fn arrives(&self, path: &Path) -> usize {
        let wanted = Script::load(path, &[]).unwrap().hash;
        let mut others = 0;
        while self.next().ok().is_none_or(|(hash, _)| hash != wanted) {
            others += 1;
        }
        others
    }

    fn silent(&self) {
        if let Ok(reports) = self.reports.recv_timeout(Duration::from_millis(400)) {
            panic!("the watcher reports {reports:?}");
        }
    }
}

fn source(reward: &str) -> String {
    format!(
        "local lib = require('lib')\nreturn r1.recipe {{\n  reward = function(state, outcome) return {reward} end,\n  \
         data = {{ train = r1.data.generate {{ count = 4, row = function(n) return {{ prompt = 'Say ' .. n }} end }} }},\n\
         trainer = r1.grpo {{ lr = lib.lr }},\n}}"
    )
}

fn bench() -> (Bench, PathBuf) {
    let bench = Bench::new(&source("1"));
    bench.file("lib.lua", "return { lr = 1e-3 }");
    let path = bench.dir.path().join("x.lua");
    (bench, path)
}

/// Like most editors: writes another file, then renames it.
fn rename_write(path: &Path, text: &str) {
    let new = path.with_extension("swp");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, path).unwrap();
}

#[test]
fn reload_detects_any_kind_of_write() {
    let (bench, path) = bench();
    let watched = Watched::new(&path);
    watched.silent();
    rename_write(&path, &source("2"));
    assert!(watched.takes(&path).is_empty());
    bench.file("x.lua", &source("3"));
    watched.takes(&path);
    // The same text, a new time, and a file that is not required: nothing has changed.
    rename_write(&path, &source("3"));
    bench.file("other.lua", "return 1");
    watched.silent();
    // Missing for a moment, then present with another text.
    let gone = Instant::now();
    std::fs::remove_file(&path).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    bench.file("x.lua", &source("4"));
    let soon = gone.elapsed() < Duration::from_millis(900);
    assert!(watched.arrives(&path) == 0 || !soon);
    // A module, and a setting that depends on it.
    bench.file("lib.lua", "return { lr = 5e-3 }");
    assert_eq!(watched.takes(&path), ["trainer.lr 0.001 -> 0.005"]);
    // Written in pieces.
    let mut soon = true;
    for part in [10, 50, source("5").len()] {
        let begun = Instant::now();
        std::fs::write(&path, &source("5")[..part]).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        soon &= begun.elapsed() < Duration::from_millis(40);
    }
    assert!(watched.arrives(&path) == 0 || !soon);
    watched.silent();
}

#[test]
fn reload_follows_links() {
    let (bench, path) = bench();
    let at = |name: &str| bench.dir.path().join(name);
    std::fs::rename(&path, at("v1.lua")).unwrap();
    bench.file("v2.lua", &source("2"));
    symlink(at("v1.lua"), &path).unwrap();
    let watched = Watched::new(&path);
    symlink(at("v2.lua"), at("new")).unwrap();
    std::fs::rename(at("new"), &path).unwrap();
    watched.takes(&path);
    bench.file("v2.lua", &source("3"));
    watched.takes(&path);
}

#[test]
fn reload_reports_a_broken_version_once() {
    let (bench, path) = bench();
    let watched = Watched::new(&path);
    let refused = |source: &str| {
        bench.file("x.lua", source);
        let text = watched.next().unwrap_err();
        // Reported once, also if the time of the file changes.
        rename_write(&path, source);
        watched.silent();
        bench.show(text)
    };
    let syntax = refused("return r1.recipe {\n  reward = = 1\n}");
    assert!(syntax.contains("--> x.lua:2"), "{syntax}");
    let unknown = refused(&source("1").replace("lr = lib.lr", "lrr = lib.lr"));
    assert!(unknown.contains("unknown field `lrr`") && unknown.contains("did you mean `lr`"), "{unknown}");
    let fails = refused(&source("outcome.nothing.at_all"));
    insta::assert_snapshot!(fails, @r#"
    env_error: attempt to index nil with 'at_all'
      --> x.lua:3
      hint: it was tried on the first row of data.train, with a reply that calls no tool
    "#);
    let nan = refused(&source("0 / 0"));
    assert!(nan.starts_with("env_error: reward is NaN"), "{nan}");
    let endless =
        refused(&source("(function() while true do end end)()").replace("trainer", "limits = { cpu = 0.1 }, trainer"));
    assert!(endless.starts_with("script_limit: reward used more than 0.1 s"), "{endless}");
    let loading = refused("while true do end");
    assert!(loading.starts_with("loading used more than"), "{loading}");
    let judged = refused(&source("1").replace("trainer", "rollout = { retries = 9 }, trainer"));
    assert_eq!(judged, "nine is too many");
    // The return to the running text is reported once.
    bench.file("x.lua", &source("1"));
    let (reports, _) = watched.next().unwrap();
    assert_eq!(reports, format!("same {}", Script::load(&path, &[]).unwrap().hash));
    rename_write(&path, &source("1"));
    watched.silent();
    let missing = refused(&format!("local more = require('more')\n{}", source("more")));
    assert!(missing.contains("no file more.lua"), "{missing}");
    // The file that was missing is waited for.
    bench.file("more.lua", "return 2");
    watched.takes(&path);
    bench.file("more.lua", "return 3");
    watched.takes(&path);
}

#[test]
fn a_resource_that_changes_makes_a_new_version() {
    let (bench, path) = bench();
    bench.file("c.txt", "one\n");
    bench.file(
        "x.lua",
        &source("#corpus").replace("return r1.recipe", "local corpus = r1.resource 'c.txt'\nreturn r1.recipe"),
    );
    let watched = Watched::new(&path);
    bench.file("c.txt", "one\n");
    watched.silent();
    bench.file("c.txt", "one\ntwo\n");
    watched.takes(&path);
    bench.file("c.txt", "");
    let empty = watched.next().unwrap_err();
    assert!(empty.contains("the resource has no lines"), "{empty}");
    bench.file("c.txt", "three\n");
    watched.takes(&path);
}

/// A version that fails the trial like the running one is accepted.
#[test]
fn reload_accepts_a_version_that_fails_where_the_old_one_failed() {
    let (bench, path) = bench();
    bench.file("x.lua", &source("tonumber(outcome.text) + 1"));
    let watched = Watched::new(&path);
    bench.file("x.lua", &source("tonumber(outcome.text) + 2"));
    watched.takes(&path);
    // A version that fails earlier is refused.
    let reset = "env = r1.env { reset = function() return nil end }, trainer";
    bench.file("x.lua", &source("tonumber(outcome.text) + 3").replace("trainer", reset));
    let worse = watched.next().unwrap_err();
    assert!(worse.starts_with("env_error: reset returned nil"), "{worse}");
    bench.file("x.lua", &source("1"));
    watched.takes(&path);
    bench.file("x.lua", &source("tonumber(outcome.text) + 4"));
    assert!(watched.next().unwrap_err().starts_with("env_error: "));
}

#[test]
fn reload_defers_settings_that_need_a_restart() {
    let (bench, path) = bench();
    let watched = Watched::new(&path);
    bench.file("x.lua", &source("1").replace("lr = lib.lr", "lr = 0.5, group_size = 3, epochs = 7"));
    // Settings of the command line apply to every version.
    assert_eq!(watched.takes(&path), ["trainer.lr 0.001 -> 0.5", "trainer.group_size 8 -> 3"]);
}

#[test]
fn reload_treats_a_checkout_as_one_change() {
    let (bench, path) = bench();
    let git = |args: &[&str]| {
        let identity = ["-c", "user.name=r1", "-c", "user.email=r1@localhost"];
        let output = std::process::Command::new("git").args(identity).args(args).current_dir(bench.dir.path()).output();
        output.is_ok_and(|output| output.status.success())
    };
    if !(git(&["init", "-q", "-b", "one"]) && git(&["add", "."]) && git(&["commit", "-qm", "one"])) {
        eprintln!("skipped: no git here");
        return;
    }
    assert!(git(&["checkout", "-qb", "two"]));
    bench.file("x.lua", &source("lib.two"));
    bench.file("lib.lua", "return { lr = 1e-3, two = 2 }");
    assert!(git(&["commit", "-qam", "two"]) && git(&["checkout", "-q", "one"]));
    let watched = Watched::new(&path);
    assert!(git(&["checkout", "-q", "two"]));
    watched.takes(&path);
    assert!(git(&["checkout", "-q", "one"]));
    watched.takes(&path);
    watched.silent();
}
