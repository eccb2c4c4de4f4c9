//! The unpacked files of the embedded model.

use std::path::{Path, PathBuf};

use super::{directory, r1};

/// Loads the embedded model with `HOME`, and returns the number of its layers or the message.
fn layers(dir: &Path, home: Option<&Path>, temporary: &Path) -> String {
    let mut command = r1(dir, &["lua", "-e", "return r1.model('r1-nano'):config().num_hidden_layers"]);
    command.env_remove("XDG_CACHE_HOME").env_remove("HOME").env("TMPDIR", temporary);
    if let Some(home) = home {
        command.env("HOME", home);
    }
    let output = command.output().unwrap();
    let text = if output.status.success() { &output.stdout } else { &output.stderr };
    String::from_utf8_lossy(text).trim().to_owned()
}

/// The unpacked directory below a cache.
fn unpacked(cache: &Path) -> PathBuf {
    let folders: Vec<PathBuf> =
        std::fs::read_dir(cache.join("r1")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(folders.len(), 1, "{folders:?}");
    folders[0].clone()
}

/// Files that were changed, cut or removed are unpacked again.
#[test]
fn damaged_files_of_the_embedded_model_are_replaced() {
    let dir = directory(&[], false);
    let (home, temporary) = (dir.path().join("home"), dir.path().join("tmp"));
    for made in [&home, &temporary] {
        std::fs::create_dir(made).unwrap();
    }
    let wanted = layers(dir.path(), Some(&home), &temporary);
    wanted.parse::<u32>().unwrap();
    let model = unpacked(&home.join(".cache"));
    let weights = model.join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    let mut zeroed = whole.clone();
    let half = zeroed.len() / 2;
    zeroed[half..].fill(0);
    for damaged in [&zeroed[..], &whole[..half], &[]] {
        std::fs::write(&weights, damaged).unwrap();
        assert_eq!(layers(dir.path(), Some(&home), &temporary), wanted);
        assert!(std::fs::read(&weights).unwrap() == whole);
    }
    std::fs::remove_file(model.join("config.json")).unwrap();
    assert_eq!(layers(dir.path(), Some(&home), &temporary), wanted);
    assert_eq!(unpacked(&home.join(".cache")), model);
}

/// Without a home, or with one where nothing can be written, the files are with temporary ones.
#[test]
fn the_embedded_model_needs_no_home() {
    let dir = directory(&[("file", "")], false);
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    for made in [&first, &second] {
        std::fs::create_dir(made).unwrap();
    }
    // A directory can't be made below a file.
    for (home, temporary) in [(None, &first), (Some(dir.path().join("file")), &second)] {
        let text = layers(dir.path(), home.as_deref(), temporary);
        assert!(text.parse::<u32>().is_ok(), "{text}");
        let cache = std::fs::read_dir(temporary).unwrap().map(|entry| entry.unwrap().path());
        let cache = cache.filter(|path| path.to_string_lossy().contains("r1-cache-")).collect::<Vec<_>>();
        assert_eq!(cache.len(), 1, "{cache:?}");
        unpacked(&cache[0]);
    }
    let text = layers(dir.path(), None, &dir.path().join("file"));
    assert!(text.contains("unpack the embedded model") && text.contains("XDG_CACHE_HOME"), "{text}");
}

/// Libraries of libtorch end the process there with a message about themselves.
#[test]
fn a_deleted_working_directory_is_named() {
    let dir = directory(&[], false);
    let gone = dir.path().join("gone");
    std::fs::create_dir(&gone).unwrap();
    let command = format!("cd gone && rmdir ../gone && exec '{}' version", env!("CARGO_BIN_EXE_r1"));
    let output = std::process::Command::new("sh").args(["-c", &command]).current_dir(dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.starts_with("error: the working directory can't be used: "), "{text}");
    // Documentation needs none.
    for (args, expected) in [("--help", "Usage: r1"), ("run -h", "Usage: r1 run"), ("doc trainer.lr", "trainer.lr")] {
        std::fs::create_dir(&gone).unwrap();
        let command = format!("cd gone && rmdir ../gone && exec '{}' {args}", env!("CARGO_BIN_EXE_r1"));
        let output = std::process::Command::new("sh").args(["-c", &command]).current_dir(dir.path()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains(expected), "{args}: {output:?}");
    }
}
