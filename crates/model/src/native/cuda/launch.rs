//! Compiles r1's kernels on first use, keeps them in memory and on disk, and starts them.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use sha2::{Digest, Sha256};
use tch::Device;

use super::driver::{Driver, KernelFunction, KernelModule};
use super::graph::current_stream;
use super::nvrtc::Compiler;
use r1_base::error::{Error, Kind, Result};

/// Parts of a kernel's source, in every compilation.
const COMMON: &str = include_str!("kernels/common.cuh");

/// The sources of the kernels, with their names in `R1_CUDA_KERNELS`.
pub(super) const SOURCES: [(&str, &str); 5] = [
    ("norm", include_str!("kernels/norm.cu")),
    ("rope", include_str!("kernels/rope.cu")),
    ("gated", include_str!("kernels/gated.cu")),
    ("logprobs", include_str!("kernels/logprobs.cu")),
    ("attention", include_str!("kernels/attention.cu")),
];

/// Starts a kernel for C++; see `r1::Launcher` in kernels.h.
pub(in crate::native) type Launcher = unsafe extern "C" fn(
    i64,
    *const c_char,
    *const c_char,
    *const c_char,
    *const u32,
    u32,
    *mut *mut c_void,
) -> *mut c_char;

/// The whole source of a kernel.
pub(super) fn source(name: &str) -> Result<String> {
    let entry = SOURCES.iter().find(|(key, _)| *key == name);
    let entry = entry.ok_or_else(|| Error::new(Kind::Internal, format!("no kernels are named `{name}`")))?;
    Ok(format!("{COMMON}\n{}", entry.1))
}

/// The kernels that `R1_CUDA_KERNELS` selects by their names, separated by commas; `off` is none,
/// and all without it.
///
/// # Errors
/// `Kind::Usage` for an unknown name.
pub(crate) fn wanted_kernels() -> Result<Vec<&'static str>> {
    wanted(std::env::var("R1_CUDA_KERNELS").ok().as_deref())
}

fn wanted(wish: Option<&str>) -> Result<Vec<&'static str>> {
    let all = SOURCES.map(|(name, _)| name);
    match wish {
        None => Ok(all.to_vec()),
        Some("off") => Ok(Vec::new()),
        Some(list) => list
            .split(',')
            .map(|name| {
                let kernel = all.into_iter().find(|kernel| *kernel == name.trim());
                kernel.ok_or_else(|| {
                    Error::new(Kind::Usage, format!("R1_CUDA_KERNELS names `{name}`, and there is no such kernel"))
                        .hint(format!("it is `off`, or some of: {}", all.join(",")))
                })
            })
            .collect(),
    }
}

/// The reason why no kernels can be compiled for a device; `None` if they can.
pub(crate) fn kernels_missing(device: Device) -> Option<String> {
    if !device.is_cuda() {
        return Some("the device is not CUDA".to_owned());
    }
    let ready = compiler().and_then(|_| Driver::this().map(|_| ())).and_then(|()| current_stream(0).map(|_| ()));
    ready.err().map(|error| error.message)
}

fn compiler() -> Result<&'static Compiler> {
    static COMPILER: OnceLock<Result<Compiler>> = OnceLock::new();
    // The CUDA torch's was opened with it.
    COMPILER.get_or_init(|| Compiler::open(None)).as_ref().map_err(Error::clone)
}

/// See `r1::Launcher` in kernels.h.
pub(in crate::native) unsafe extern "C" fn launcher(
    device: i64,
    source: *const c_char,
    definitions: *const c_char,
    name: *const c_char,
    grid: *const u32,
    threads: u32,
    arguments: *mut *mut c_void,
) -> *mut c_char {
    // SAFETY: C++ passes C strings and three numbers, live for the call.
    let (texts, grid) = unsafe {
        let texts = [source, definitions, name].map(|text| CStr::from_ptr(text).to_string_lossy());
        (texts, [*grid, *grid.add(1), *grid.add(2)])
    };
    let [source, definitions, name] = &texts;
    // SAFETY: C++ passes the arguments of the kernel.
    let started = unsafe { start(device, [source, definitions, name], (grid, threads), arguments) };
    let Err(error) = started else { return std::ptr::null_mut() };
    let message = std::ffi::CString::new(error.message.replace('\0', " ")).unwrap_or_default();
    // C++ frees it.
    // SAFETY: a C string.
    unsafe { libc::strdup(message.as_ptr()) }
}

/// # Safety
/// The arguments must be the kernel's.
unsafe fn start(
    device: i64,
    [source, definitions, name]: [&str; 3],
    size: ([u32; 3], u32),
    arguments: *mut *mut c_void,
) -> Result<()> {
    if device < 0 {
        #[cfg(test)]
        // SAFETY: as required of the caller.
        return unsafe { super::emulator::launch([source, definitions, name], size, arguments) };
        #[cfg(not(test))]
        return Err(Error::new(Kind::Internal, "kernels of CUDA do not run on the CPU"));
    }
    let function = function(device, [source, definitions, name])?;
    let stream = current_stream(device)?;
    // SAFETY: as required of the caller.
    unsafe { Driver::this()?.launch(function, size, stream, arguments) }
}

/// Modules by device, source and definitions, with their kernels by name.
type LoadedModules = HashMap<(i64, String, String), (KernelModule, HashMap<String, KernelFunction>)>;

/// A kernel, compiled and loaded on first use.
fn function(device: i64, [source, definitions, name]: [&str; 3]) -> Result<KernelFunction> {
    static LOADED: OnceLock<Mutex<LoadedModules>> = OnceLock::new();
    let mut loaded = LOADED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let driver = Driver::this()?;
    let key = (device, source.to_owned(), definitions.to_owned());
    let (module, functions) = match loaded.entry(key) {
        std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
        std::collections::hash_map::Entry::Vacant(entry) => {
            entry.insert((module(driver, device, source, definitions)?, HashMap::new()))
        }
    };
    if let Some(&function) = functions.get(name) {
        return Ok(function);
    }
    let function = driver.function(*module, name)?;
    functions.insert(name.to_owned(), function);
    Ok(function)
}

/// Loads kernels from the cache on disk, or compiles them.
fn module(driver: &Driver, device: i64, name: &str, definitions: &str) -> Result<KernelModule> {
    let (compiler, text) = (compiler()?, source(name)?);
    let options = compiler.options(driver.capability(device)?, definitions);
    let file = cache_file(&text, &options, compiler.version);
    if let Some(module) = file.as_ref().and_then(|file| fs::read(file).ok()).and_then(|code| {
        // A damaged file is compiled again.
        if code.is_empty() { None } else { driver.load(device, &code).ok() }
    }) {
        return Ok(module);
    }
    let code = compiler.compile(name, &text, &options)?.code;
    let module = driver.load(device, &code)?;
    if let Some(file) = file {
        keep(&file, &code);
    }
    Ok(module)
}

/// The file of compiled kernels: its name has everything that they depend on. `None` without a home
/// directory.
fn cache_file(source: &str, options: &[String], version: (i32, i32)) -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let base = base.or_else(|| std::env::home_dir().map(|home| home.join(".cache")))?;
    let mut hash = Sha256::new();
    hash.update(format!("{version:?} {options:?}\n{source}"));
    Some(base.join("r1/kernels").join(format!("{:x}", hash.finalize())))
}

/// Writes a file under another name first. Without a place for it, kernels are compiled each time.
fn keep(file: &std::path::Path, code: &[u8]) {
    let Some(directory) = file.parent() else { return };
    let written = fs::create_dir_all(directory).and_then(|()| {
        let mut new = tempfile::NamedTempFile::new_in(directory)?;
        std::io::Write::write_all(&mut new, code)?;
        new.persist(file).map_err(|error| error.error)
    });
    drop(written);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn kernels_are_selected_by_name() {
        assert_eq!(wanted(None).unwrap().len(), SOURCES.len());
        assert!(wanted(Some("off")).unwrap().is_empty());
        assert_eq!(wanted(Some("norm, rope")).unwrap(), ["norm", "rope"]);
        let error = wanted(Some("norm,fast")).unwrap_err();
        assert_eq!(error.kind, Kind::Usage);
        assert!(error.message.contains("`fast`") && error.hint.unwrap().contains("attention"));
    }

    #[test]
    fn compiled_kernels_are_kept_by_everything_they_depend_on() {
        let file = |source: &str, option: &str, version| cache_file(source, &[option.to_owned()], version).unwrap();
        let first = file("a", "--gpu-architecture=sm_90", (13, 0));
        assert_eq!(first, file("a", "--gpu-architecture=sm_90", (13, 0)));
        for other in [
            file("b", "--gpu-architecture=sm_90", (13, 0)),
            file("a", "--gpu-architecture=sm_80", (13, 0)),
            file("a", "--gpu-architecture=sm_90", (13, 1)),
        ] {
            assert_ne!(first, other);
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kernels/one");
        keep(&file, b"code");
        keep(&file, b"other");
        assert_eq!(fs::read(&file).unwrap(), b"other");
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
        // A directory that cannot be written is no error.
        keep(std::path::Path::new("/proc/nowhere/one"), b"code");
    }

    #[test]
    fn kernels_are_refused_without_a_gpu() {
        assert_eq!(kernels_missing(Device::Cpu).as_deref(), Some("the device is not CUDA"));
        assert!(source("absent").unwrap_err().message.contains("absent"));
    }

    /// The compiler of a directory, `R1_NVRTC`, takes every kernel for three architectures and
    /// reports their registers (`just check-kernels`).
    #[test]
    #[ignore = "needs NVRTC: just check-kernels"]
    #[allow(clippy::print_stdout)]
    fn nvrtc_compiles_every_kernel() {
        let Some(directory) = std::env::var_os("R1_NVRTC") else { panic!("R1_NVRTC is the directory of libnvrtc") };
        let directory = PathBuf::from(directory);
        let compiler = Compiler::open(Some(&directory)).unwrap();
        println!("NVRTC {}.{}", compiler.version.0, compiler.version.1);
        let mut variants = Vec::new();
        for (element, packs, wide) in [("-DELEMENT_BF16", [8, 1], 4), ("", [4, 1], 4)] {
            for pack in packs {
                for name in ["norm", "gated", "logprobs"] {
                    variants.push((name, format!("{element} -DPACK={pack}")));
                }
            }
            variants.push(("logprobs", format!("{element} -DLOGITS_F32 -DPACK={wide}")));
            for pack in [2, 1] {
                variants.push(("rope", format!("{element} -DPACK={pack}")));
            }
            let groups = [(48, 2), (64, 7), (128, 1), (128, 4), (128, 6), (128, 7), (128, 8), (256, 2)];
            for (head, group) in groups.into_iter().filter(|_| !element.is_empty()) {
                variants.push(("attention", format!("{element} -DHEAD={head} -DGROUP={group}")));
            }
        }
        for capability in [80, 90, 100] {
            for (name, definitions) in &variants {
                let mut options = compiler.options(capability, definitions);
                assert!(options[0].ends_with(&format!("sm_{capability}")), "{options:?}");
                options.push("--ptxas-options=-v".to_owned());
                let compiled = compiler.compile(name, &source(name).unwrap(), &options).unwrap();
                assert!(compiled.code.starts_with(b"\x7fELF"));
                assert!(compiled.log.contains("Used "), "the compiler does not report registers: {}", compiled.log);
                let mut kernel = "";
                for line in compiled.log.lines() {
                    if let Some((_, rest)) = line.split_once("entry function '") {
                        kernel = rest.split('\'').next().unwrap_or_default();
                    }
                    let spills = line.contains("spill") && !line.contains(" 0 bytes spill stores");
                    // A block must find its registers in a processor's 65,536.
                    let threads = match (*name, kernel) {
                        ("attention", _) => 128,
                        ("rope" | "gated", _) | (_, "logprobs_backward" | "column_sums") => 256,
                        _ => 1024,
                    };
                    let used =
                        line.split_once("Used ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<u32>().ok());
                    assert!(used.is_none_or(|used| used.next_multiple_of(8) * threads <= 65_536), "{kernel}: {line}");
                    if used.is_some() || spills {
                        let usage = line.trim_start_matches("ptxas info    : ").trim();
                        println!("sm_{capability} {name} [{definitions}] {kernel}: {usage}");
                    }
                }
            }
        }
        let broken = compiler.compile("broken", "__global__ void f() { undefined(); }", &compiler.options(90, ""));
        assert!(broken.unwrap_err().message.contains("undefined"));
        // A GPU that is newer than the compiler gets PTX.
        let newer = compiler.options(999, "");
        assert!(newer[0].contains("=compute_"), "{newer:?}");
        let compiled = compiler.compile("norm", &source("norm").unwrap(), &newer).unwrap();
        assert!(compiled.code.ends_with(b"\0") && String::from_utf8_lossy(&compiled.code).contains("norm_forward"));
    }
}
