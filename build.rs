//! Links against the libtorch that `LIBTORCH` names and writes its place into the binary (rpath).

use std::path::Path;

fn main() {
    // The embedded model is made by this program itself: the first build has none.
    println!("cargo:rustc-check-cfg=cfg(nano)");
    println!("cargo:rerun-if-changed=models/r1-nano");
    if Path::new("models/r1-nano/model.safetensors").is_file() {
        println!("cargo:rustc-cfg=nano");
    }
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let Ok(libtorch) = std::env::var("LIBTORCH") else {
        println!("cargo:rustc-env=R1_LIBTORCH_VERSION=unknown");
        println!("cargo:warning=LIBTORCH is not set; run `just setup`, or build with `just build`");
        return;
    };
    println!("cargo:rustc-env=R1_LIBTORCH_VERSION={}", version(Path::new(&libtorch)));
    println!("cargo:rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
}

/// What libtorch calls itself: in `version.py` of a Python package, in `build-version` of a download.
fn version(libtorch: &Path) -> String {
    let read = |file: &str| std::fs::read_to_string(libtorch.join(file)).unwrap_or_default();
    let package = read("version.py");
    let quoted = package.lines().find_map(|line| line.strip_prefix("__version__ = '")?.strip_suffix('\''));
    let own = quoted.map_or_else(|| read("build-version").trim().to_owned(), str::to_owned);
    // `2.11.0+cu130` names the wheel it came in, not what is linked.
    own.split('+').next().filter(|version| !version.is_empty()).unwrap_or("unknown").to_owned()
}
