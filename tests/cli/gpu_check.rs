//! `just gpu-check` on the CPU: its programs run, and disagreements are reported.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs the small checks with this program, and returns its rows.
fn check(out: &Path, r1: &str, parts: &str) -> (Output, Vec<Value>) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/gpu/check.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(out).args(["--device", "cpu", "--small", "--only", parts]);
    let output = command.env("R1", r1).env("OMP_NUM_THREADS", "1").output().unwrap();
    let files = std::fs::read_dir(out).unwrap().map(|file| file.unwrap().path());
    let rows = files.filter(|path| path.extension().is_some_and(|end| end == "jsonl"));
    let rows: Vec<Value> = rows
        .flat_map(|path| {
            let text = std::fs::read_to_string(path).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<_>>()
        })
        .collect();
    (output, rows)
}

#[test]
fn the_gpu_check_passes_on_the_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let (output, rows) = check(dir.path(), env!("CARGO_BIN_EXE_r1"), "machine,networks,ahead,updates,encoders,run");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let count = |part: &str| rows.iter().filter(|row| row["part"] == part && row["verdict"] == "ok").count();
    let parts = ["machine", "networks", "ahead", "updates", "encoders", "run"];
    assert_eq!(parts.map(count), [1, 18, 2, 12, 12, 5], "{text}");
}

#[test]
fn the_gpu_check_reports_a_program_that_fails() {
    let dir = tempfile::tempdir().unwrap();
    let (output, rows) = check(dir.path(), "/bin/false", "machine,updates");
    assert_eq!(output.status.code(), Some(1));
    assert!(!rows.is_empty() && rows.iter().all(|row| row["verdict"] == "FAILED"), "{rows:?}");
    assert!(rows[0]["measured"].as_str().unwrap().contains("exit code 1"), "{rows:?}");
}
