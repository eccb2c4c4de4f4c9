//! Executes the kernels on the CPU, for tests: their source is compiled as C++ with kernels/shim.h
//! in front, and the threads of a block run one after the other between barriers.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::os::unix::Library;
use sha2::{Digest, Sha256};

use super::launch::source;
use r1_base::error::{Error, Kind, Result};

const SHIM: &str = include_str!("kernels/shim.h");

type Emulate = unsafe extern "C" fn(*mut *mut c_void, *const u32, u32) -> *const c_char;

/// Runs a kernel over tensors on the CPU.
///
/// # Safety
/// The arguments must be the kernel's.
pub(super) unsafe fn launch(
    [name, definitions, kernel]: [&str; 3],
    (grid, threads): ([u32; 3], u32),
    arguments: *mut *mut c_void,
) -> Result<()> {
    static LIBRARIES: OnceLock<Mutex<HashMap<String, Library>>> = OnceLock::new();
    // The lock is held while the kernel runs, because its variables are static.
    let mut libraries = LIBRARIES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let library = match libraries.entry(format!("{name} {definitions}")) {
        std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
        std::collections::hash_map::Entry::Vacant(entry) => entry.insert(compile(name, definitions)?),
    };
    let failed = |error: &dyn std::fmt::Display| Error::new(Kind::Internal, format!("{kernel}: {error}"));
    // SAFETY: R1_EMULATED in shim.h has the type; the caller passes the arguments.
    let message = unsafe {
        let run = library.get::<Emulate>(format!("emulate_{kernel}\0").as_bytes()).map_err(|error| failed(&error))?;
        run(arguments, grid.as_ptr(), threads)
    };
    // SAFETY: null or a static string.
    let message = (!message.is_null()).then(|| unsafe { CStr::from_ptr(message) }.to_string_lossy());
    message.map_or(Ok(()), |message| Err(failed(&message)))
}

/// The kernels of a source as a library, which the tests share.
fn compile(name: &str, definitions: &str) -> Result<Library> {
    let failed = |error: &dyn std::fmt::Display| Error::new(Kind::Internal, format!("kernels {name}: {error}"));
    let text = format!("{SHIM}\n{}", source(name)?);
    let mut hash = Sha256::new();
    hash.update(format!("{definitions}\n{text}"));
    let id = format!("{:x}", hash.finalize());
    let path = Path::new(env!("OUT_DIR")).join(format!("emulated-{name}-{}.so", &id[..24]));
    if !path.exists() {
        let scratch = tempfile::tempdir_in(env!("OUT_DIR")).map_err(|error| failed(&error))?;
        let (input, output) = (scratch.path().join(format!("{name}.cpp")), scratch.path().join("out.so"));
        std::fs::write(&input, text).map_err(|error| failed(&error))?;
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
        let done = Command::new(compiler)
            .args(["-std=c++17", "-O1", "-shared", "-fPIC", "-fno-strict-aliasing", "-Wall", "-Werror"])
            .args(["-Wno-unknown-pragmas", "-Wno-unused"])
            .args(definitions.split_whitespace())
            .arg(&input)
            .arg("-o")
            .arg(&output)
            .output()
            .map_err(|error| failed(&error))?;
        if !done.status.success() {
            return Err(failed(&String::from_utf8_lossy(&done.stderr)));
        }
        std::fs::rename(&output, &path).map_err(|error| failed(&error))?;
    }
    // SAFETY: our own code, which has no initialisers.
    unsafe { Library::new(&path) }.map_err(|error| failed(&error))
}
