//! NVRTC, the run-time compiler of CUDA: the kernels of r1 for the compute capability of a GPU.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

use r1_base::error::{Error, Kind, Result};

/// The library of CUDA 13, which a CUDA torch 2.11 has.
pub(super) const LIBRARY: &str = "libnvrtc.so.13";
/// NVRTC opens it by name, and does not search its own directory.
const BUILTINS: &str = "libnvrtc-builtins.so.13";

type NvrtcProgram = *mut c_void;
type SizeFunction = unsafe extern "C" fn(NvrtcProgram, *mut usize) -> c_int;
type BytesFunction = unsafe extern "C" fn(NvrtcProgram, *mut c_char) -> c_int;

pub(super) struct Compiler {
    create: unsafe extern "C" fn(
        *mut NvrtcProgram,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(NvrtcProgram, c_int, *const *const c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut NvrtcProgram) -> c_int,
    log: (SizeFunction, BytesFunction),
    code: (SizeFunction, BytesFunction),
    ptx: (SizeFunction, BytesFunction),
    /// Version of CUDA.
    pub version: (c_int, c_int),
    /// Compute capabilities times 10 that it compiles for.
    architectures: Vec<c_int>,
}

/// The result of a compilation.
#[derive(Debug)]
pub(super) struct Compiled {
    /// Code of the GPU, or PTX for one that is newer than the compiler.
    pub code: Vec<u8>,
    /// Messages of the compiler, which the test of registers reads.
    #[cfg_attr(not(test), allow(dead_code))]
    pub log: String,
}

/// Files of a directory that NVRTC consists of, in the order in which they must be opened.
pub(super) fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let named = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(BUILTINS));
    let mut all: Vec<PathBuf> = entries.filter(named).collect();
    all.sort();
    all.extend(Some(directory.join(LIBRARY)).filter(|path| path.exists()));
    all
}

impl Compiler {
    /// Opens the compiler of a directory, or the one that is open already.
    ///
    /// # Errors
    /// `Kind::Device`: it is not found or does not load.
    pub(super) fn open(directory: Option<&Path>) -> Result<Self> {
        let failed = |error: &dyn std::fmt::Display| Error::new(Kind::Device, format!("NVRTC does not load: {error}"));
        let mut paths = directory.map_or_else(|| vec![PathBuf::from(LIBRARY)], files);
        let library = paths.pop().unwrap_or_else(|| PathBuf::from(LIBRARY));
        // SAFETY: libraries of CUDA, whose initialisers are harmless; they stay loaded. The types
        // are from nvrtc.h.
        unsafe {
            for path in paths {
                std::mem::forget(Library::open(Some(path), RTLD_LAZY | RTLD_LOCAL).map_err(|error| failed(&error))?);
            }
            let library = Library::open(Some(library), RTLD_LAZY | RTLD_LOCAL).map_err(|error| failed(&error))?;
            macro_rules! symbol {
                ($name:literal) => {
                    *library.get(concat!($name, "\0").as_bytes()).map_err(|error| failed(&error))?
                };
            }
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int = symbol!("nvrtcVersion");
            let count: unsafe extern "C" fn(*mut c_int) -> c_int = symbol!("nvrtcGetNumSupportedArchs");
            let list: unsafe extern "C" fn(*mut c_int) -> c_int = symbol!("nvrtcGetSupportedArchs");
            let (mut major, mut minor, mut number) = (0, 0, 0);
            let _ = version(&raw mut major, &raw mut minor);
            let _ = count(&raw mut number);
            let mut architectures = vec![0; usize::try_from(number).unwrap_or(0)];
            let _ = list(architectures.as_mut_ptr());
            let compiler = Self {
                create: symbol!("nvrtcCreateProgram"),
                compile: symbol!("nvrtcCompileProgram"),
                destroy: symbol!("nvrtcDestroyProgram"),
                log: (symbol!("nvrtcGetProgramLogSize"), symbol!("nvrtcGetProgramLog")),
                code: (symbol!("nvrtcGetCUBINSize"), symbol!("nvrtcGetCUBIN")),
                ptx: (symbol!("nvrtcGetPTXSize"), symbol!("nvrtcGetPTX")),
                version: (major, minor),
                architectures,
            };
            std::mem::forget(library);
            Ok(compiler)
        }
    }

    /// Options for a compute capability times 10, with definitions separated by spaces.
    pub(super) fn options(&self, capability: c_int, definitions: &str) -> Vec<String> {
        let newest = self
            .architectures
            .iter()
            .copied()
            .filter(|&architecture| architecture <= capability)
            .max()
            .unwrap_or(capability);
        let kind = if self.architectures.contains(&capability) { "sm" } else { "compute" };
        let mut options = vec![format!("--gpu-architecture={kind}_{newest}"), "--std=c++17".to_owned()];
        options.extend(definitions.split_whitespace().map(str::to_owned));
        options
    }

    /// Compiles a source, whose name is for messages.
    ///
    /// # Errors
    /// `Kind::Internal` with the messages of the compiler.
    pub(super) fn compile(&self, name: &str, source: &str, options: &[String]) -> Result<Compiled> {
        let text = |text: &str| CString::new(text).map_err(|_| Error::new(Kind::Internal, "a source has a zero byte"));
        let (source, title) = (text(source)?, text(name)?);
        let options = options.iter().map(|option| text(option)).collect::<Result<Vec<_>>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let is_ptx = options.iter().any(|option| option.to_bytes().starts_with(b"--gpu-architecture=compute"));
        let mut program = null_mut();
        // SAFETY: the strings are live for the calls, and the program until it is destroyed.
        unsafe {
            if (self.create)(&raw mut program, source.as_ptr(), title.as_ptr(), 0, null(), null()) != 0 {
                return Err(Error::new(Kind::Internal, format!("NVRTC takes no program: {name}")));
            }
            let status = (self.compile)(program, pointers.len() as c_int, pointers.as_ptr());
            // The messages of the assembler end with zeros too.
            let log = String::from_utf8_lossy(&read(program, self.log)).replace('\0', "");
            let code = if status == 0 { read(program, if is_ptx { self.ptx } else { self.code }) } else { Vec::new() };
            let _ = (self.destroy)(&raw mut program);
            if code.is_empty() {
                let message = format!("the kernels {name} do not compile (NVRTC error {status}): {}", log.trim());
                return Err(Error::new(Kind::Internal, message));
            }
            Ok(Compiled { code, log })
        }
    }
}

/// # Safety
/// The program must be live.
unsafe fn read(program: NvrtcProgram, (size, bytes): (SizeFunction, BytesFunction)) -> Vec<u8> {
    let mut length = 0;
    // SAFETY: the program is live; the buffer has the length that was returned.
    unsafe {
        if size(program, &raw mut length) != 0 {
            return Vec::new();
        }
        let mut all = vec![0_u8; length];
        if bytes(program, all.as_mut_ptr().cast()) != 0 {
            return Vec::new();
        }
        all
    }
}
