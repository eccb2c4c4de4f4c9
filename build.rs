//! Sets the library path of the binary: `../lib/r1` relative to its folder (`just install`), then
//! the libtorch that crates/model was built with.

use std::path::Path;

fn main() {
    // The embedded model is trained by this program: the first build has none.
    println!("cargo:rustc-check-cfg=cfg(nano)");
    println!("cargo:rerun-if-changed=models/r1-nano");
    if Path::new("models/r1-nano/model.safetensors").is_file() {
        println!("cargo:rustc-cfg=nano");
    }
    let Ok(libtorch) = std::env::var("DEP_R1_MODEL_LIBTORCH") else { return };
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib/r1");
    }
    println!("cargo:rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
    // Link arguments do not apply to crates that depend on r1. Their build scripts read this as
    // `DEP_R1_LIBTORCH`.
    println!("cargo:libtorch={libtorch}");
}
