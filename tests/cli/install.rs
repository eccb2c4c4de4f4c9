//! `setup/install.sh`: the installed binary runs after it is moved, without the build's libtorch.

use std::path::Path;
use std::process::Command;

#[test]
#[cfg(target_os = "linux")]
fn an_installed_binary_loads_its_installed_libtorch() {
    // Set where r1 is built and tested.
    let libtorch = std::env::var("LIBTORCH").unwrap();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let prefix = dir.path().join("prefix");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("setup/install.sh");
    let installed = Command::new(script)
        .arg(env!("CARGO_BIN_EXE_r1"))
        .arg(&prefix)
        .env("LIBTORCH", &libtorch)
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .unwrap();
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    assert!(prefix.join("share/man/man1/r1-run.1").is_file());
    // As another user would copy it.
    let moved = dir.path().join("moved");
    std::fs::rename(&prefix, &moved).unwrap();
    let binary = moved.join("bin/r1");
    let version = Command::new(&binary).arg("--version").env_remove("LD_LIBRARY_PATH").output().unwrap();
    assert!(version.status.success(), "{}", String::from_utf8_lossy(&version.stderr));
    let libraries = Command::new("ldd").arg(&binary).env_remove("LD_LIBRARY_PATH").output().unwrap();
    let libraries = String::from_utf8_lossy(&libraries.stdout).into_owned();
    let torch: Vec<&str> = libraries.lines().filter(|line| line.contains("torch") || line.contains("libc10")).collect();
    assert!(torch.len() >= 2, "{libraries}");
    for line in torch {
        assert!(line.contains(moved.to_str().unwrap()), "the loader takes another libtorch: {line}");
    }
}
