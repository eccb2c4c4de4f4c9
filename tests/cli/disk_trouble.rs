//! A full disk, a read-only file system, a limit on file sizes, and a directory that vanishes, at
//! any moment of a run: the message says where, and the run resumes to the files of one without
//! trouble.
//!
//! A library (tests/fixtures/kill.cpp) lets system calls fail, so that the tests need neither a
//! file system of their own nor the rights of a user who is not root.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Output;

use super::killed::{killed_at, library, printing};
use super::run_contents::{assert_same, left};
use super::running::Running;
use super::{directory, r1, shown, succeed};

const START: [&str; 5] = ["run", "a.lua", "--name", "k", "--no-reload"];
const RESUME: [&str; 5] = ["run", "a.lua", "--resume", "k", "--no-reload"];

/// A directory with a recipe, what a run of it leaves, and its system calls.
fn whole() -> (tempfile::TempDir, BTreeMap<String, Vec<u8>>, String) {
    let dir = directory(&[("a.lua", &printing(&[("eval", "{ every = 2 }")]))], true);
    library(dir.path());
    let list = dir.path().join("calls");
    let output = killed_at(dir.path(), &START, "none", 1).env("KILL_CALLS", &list).output().unwrap();
    assert!(output.status.success(), "{}", shown(dir.path(), &output));
    let files = left(&dir.path().join("runs/k"));
    let calls = String::from_utf8_lossy(&fs::read(list).unwrap()).into_owned();
    (dir, files, calls)
}

/// The run ends with the exit code of a store that can't be written, and its message.
fn assert_store_error(dir: &Path, output: &Output, message: &str, point: &str) {
    assert_eq!(output.status.code(), Some(8), "{point}: {}", shown(dir, output));
    let reported = String::from_utf8_lossy(&output.stderr);
    assert!(reported.contains(message), "{point}: {reported}");
    assert!(reported.contains("--> ") && reported.contains("runs"), "{point}: no path in {reported}");
}

/// Resumes the run, or starts it again if it has not begun.
fn go_on(dir: &Path) {
    let begun = dir.join("runs/k/config.json").is_file();
    succeed(dir, if begun { &RESUME } else { &START });
}

fn fails_and_goes_on(call: &str, calls_of: &[&str], error: i32, message: &str, points: usize) {
    let (dir, files, calls) = whole();
    let dir = dir.path();
    let is_call = |line: &&str| calls_of.iter().any(|call| line.starts_with(call)) && line.contains("runs/k/");
    let count = calls.lines().filter(is_call).count();
    assert!(count > points, "{calls}");
    let (mut failed, mut begun) = (0, 0);
    for point in 0..points {
        let number = 1 + point * (count - 1) / (points - 1);
        let _ = fs::remove_dir_all(dir.join("runs"));
        let mut command = killed_at(dir, &START, call, u32::try_from(number).unwrap());
        let output = command.env("FAIL_WITH", error.to_string()).output().unwrap();
        let point = format!("call {number} of {count}, {call}");
        // What can't be removed or closed at the end does no harm.
        if !output.status.success() {
            assert_store_error(dir, &output, message, &point);
            failed += 1;
        }
        begun += usize::from(dir.join("runs/k/config.json").is_file());
        go_on(dir);
        assert_same(&files, &dir.join("runs/k"), &point);
    }
    assert!(failed >= points - 1 && begun >= points / 2, "{failed} of {points} runs fail, {begun} have begun");
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_run_on_a_full_disk_says_so_and_resumes_to_the_same_files() {
    fails_and_goes_on("write *runs/k/*", &["write "], libc::ENOSPC, "no space left on device", 9);
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_run_on_a_file_system_that_becomes_read_only_says_so_and_resumes_to_the_same_files() {
    let calls = ["open ", "mkdir ", "rename ", "unlink "];
    fails_and_goes_on("[omru][^s]* *runs/k/*", &calls, libc::EROFS, "read-only file", 7);
}

/// A directory that is moved away while the run goes on, as a file system that is no longer
/// mounted.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_run_whose_directory_vanishes_says_so_and_resumes_to_the_same_files() {
    let (dir, files, _) = whole();
    let dir = dir.path();
    fs::remove_dir_all(dir.join("runs")).unwrap();
    let running = Running::of(r1(dir, &[&START[..], &["trainer.steps=100000"]].concat()), dir);
    // The evaluation, and two steps; a checkpoint, which is written in the background.
    running.until_lines(&dir.join("runs/k/metrics.jsonl"), 3);
    while r1::store::latest_checkpoint(&dir.join("runs/k")).unwrap().is_none() {
        assert!(running.is_running(), "the run has ended");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    fs::rename(dir.join("runs"), dir.join("away")).unwrap();
    let output = running.end();
    assert_store_error(dir, &output, "no such file or directory", "runs is moved away");
    assert!(!dir.join("runs").exists(), "it is made again");
    fs::rename(dir.join("away"), dir.join("runs")).unwrap();
    let (step, _) = r1::store::latest_checkpoint(&dir.join("runs/k")).unwrap().expect("a checkpoint");
    let steps = format!("trainer.steps={}", step + 2);
    succeed(dir, &[&RESUME[..], &[&steps]].concat());
    assert!(dir.join(format!("runs/k/checkpoints/step-{:06}", step + 2)).is_dir());
    let resumed = left(&dir.join("runs/k"));
    for name in ["trajectories/step-000001.parquet", "trajectories/step-000003.parquet"] {
        assert!(resumed[name] == files[name], "{name}");
    }
}

/// The system would end the process without a message.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_run_that_reaches_the_limit_of_file_sizes_resumes_without_it() {
    let (dir, files, _) = whole();
    let dir = dir.path();
    // Blocks of 512 bytes: below the size of the configuration, of a checkpoint, of the optimiser.
    for blocks in ["8", "20", "60"] {
        fs::remove_dir_all(dir.join("runs")).unwrap();
        let run = format!("ulimit -f {blocks} && exec '{}' {}", env!("CARGO_BIN_EXE_r1"), START.join(" "));
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &run]).current_dir(dir).env("OMP_NUM_THREADS", "1");
        let output = command.output().unwrap();
        assert_store_error(dir, &output, "file too large", blocks);
        assert!(String::from_utf8_lossy(&output.stderr).contains("ulimit -f"), "{}", shown(dir, &output));
        go_on(dir);
        assert_same(&files, &dir.join("runs/k"), blocks);
    }
}
