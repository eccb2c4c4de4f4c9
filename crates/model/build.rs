//! Compiles the C++ in src/native against the libtorch in `LIBTORCH`, and sets the library path of
//! the tests.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let Ok(libtorch) = std::env::var("LIBTORCH") else {
        println!("cargo:rustc-env=R1_LIBTORCH_VERSION=unknown");
        println!("cargo:warning=LIBTORCH is not set; run `just setup`, or build with `just build`");
        return;
    };
    println!("cargo:rustc-env=R1_LIBTORCH_VERSION={}", version(Path::new(&libtorch)));
    let target = |name: &str| std::env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    println!("cargo:rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
    // Link arguments do not apply to packages that depend on this one. Their build scripts read
    // this as `DEP_R1_MODEL_LIBTORCH`.
    println!("cargo:libtorch={libtorch}");
    let source = |name: &str| {
        let path = format!("src/native/{name}.cpp");
        println!("cargo:rerun-if-changed={path}");
        path
    };
    let build = || {
        let mut build = cc::Build::new();
        // The inner loops are optimised in every profile.
        build.cpp(true).std("c++17").opt_level(3).debug(false).flag("-fno-math-errno");
        build
    };
    let kernels = std::env::var_os("CARGO_FEATURE_CPU_KERNELS").is_some();
    // One small library per instruction set; the program selects one at start.
    let mut sets: Vec<(&str, &[&str])> = vec![("base", &[])];
    if target("ARCH") == "x86_64" {
        sets.push(("avx2", &["-mavx2", "-mfma"]));
        // The last flag: GCC 12 warns about its own header.
        sets.push(("avx512", &["-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mfma", "-Wno-uninitialized"]));
        sets.push((
            "avx512bf16",
            &["-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mavx512bf16", "-mfma", "-Wno-uninitialized"],
        ));
    }
    for (set, flags) in sets.into_iter().filter(|_| kernels) {
        build().flags(flags).file(source(&format!("cpu/kernels_{set}"))).compile(&format!("r1_kernels_{set}"));
    }
    // Only the C++ files: cargo tracks the Rust files.
    for header in [
        "memory",
        "arena",
        "logprobs",
        "autograd",
        "adamw",
        "flash",
        "guarded",
        "operations",
        "kernels",
        "cpu/kernels",
        "cpu/common",
        "cpu/prefix",
        "cpu/learn",
        "cpu/thread_pool",
        "cpu/step",
        "cpu/rowwise",
    ] {
        println!("cargo:rerun-if-changed=src/native/{header}.h");
    }
    for part in ["kernels", "dots"] {
        println!("cargo:rerun-if-changed=src/native/cpu/{part}.inc");
    }
    let mut native = build();
    if target("OS") == "linux" {
        native.flag("-fopenmp");
    }
    // The files of a folder are compiled as one: libtorch's headers take most of the time.
    native.file(together(
        "native",
        &[
            "memory",
            "arena",
            "logprobs",
            "autograd",
            "adamw",
            "flash",
            "operations",
            "kernels",
            "autograd_kernels",
            "device",
            "meta",
            "profiler",
            "interface",
            "collectives",
        ]
        .map(source),
    ));
    // Declarations in place of Gloo's headers (src/native/include/gloo/README.md).
    native.include("src/native/include");
    println!("cargo:rerun-if-changed=src/native/include");
    if kernels {
        native.define("R1_CPU_KERNELS", None);
        let files =
            ["common", "project", "attention", "prefix", "learn", "step", "decode", "logprobs", "rowwise", "interface"];
        native.file(together("cpu", &files.map(|name| source(&format!("cpu/{name}")))));
    }
    // No warnings about libtorch's headers.
    for include in ["include", "include/torch/csrc/api/include"] {
        native.flag("-isystem").flag(format!("{libtorch}/{include}"));
    }
    native.compile("r1_native");
    println!("cargo:rustc-check-cfg=cfg(cuda_graphs)");
    if target("OS") == "linux" {
        cuda(&build(), &source("cuda/graph"), Path::new(&libtorch));
    }
}

/// A file that includes the others.
fn together(name: &str, files: &[String]) -> PathBuf {
    let out = PathBuf::from(std::env::var("OUT_DIR").unwrap_or_default()).join(format!("{name}.cpp"));
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let includes: Vec<String> = files.iter().map(|file| format!("#include \"{folder}/{file}\"")).collect();
    if let Err(error) = std::fs::write(&out, includes.join("\n") + "\n") {
        println!("cargo:warning={} can't be written: {error}", out.display());
    }
    out
}

/// The library for CUDA graphs, embedded in the program and loaded with a CUDA torch. It needs
/// CUDA's headers, which `setup/libtorch.sh` installs next to libtorch, and none of its libraries.
/// Without the headers it is not built.
fn cuda(build: &cc::Build, source: &str, libtorch: &Path) {
    let beside = libtorch.join("../nvidia/cu13/include");
    let stream_header = libtorch.join("include/c10/cuda/CUDAStream.h");
    println!("cargo:rerun-if-changed={}", beside.join("crt").display());
    if !beside.join("crt/host_config.h").is_file() || !stream_header.is_file() {
        return;
    }
    let out = Path::new(&std::env::var("OUT_DIR").unwrap_or_default()).join("libr1_cuda.so");
    let mut command = build.get_compiler().to_command();
    command.args(["-shared", "-fPIC", source, "-o"]).arg(&out);
    for include in [libtorch.join("include"), beside] {
        command.arg("-isystem").arg(include);
    }
    match command.status() {
        Ok(status) if status.success() => println!("cargo:rustc-cfg=cuda_graphs"),
        _ => println!("cargo:warning={source} does not compile: r1 is built without CUDA graphs"),
    }
}

/// Version of libtorch: from `version.py` of a Python package or `build-version` of a download.
fn version(libtorch: &Path) -> String {
    let read = |file: &str| std::fs::read_to_string(libtorch.join(file)).unwrap_or_default();
    let package = read("version.py");
    let quoted = package.lines().find_map(|line| line.strip_prefix("__version__ = '")?.strip_suffix('\''));
    let version = quoted.map_or_else(|| read("build-version").trim().to_owned(), str::to_owned);
    // The suffix of `2.11.0+cu130` is of the wheel, not of the linked libraries.
    version.split('+').next().filter(|version| !version.is_empty()).unwrap_or("unknown").to_owned()
}
