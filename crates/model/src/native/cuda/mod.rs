//! The device: CPU, or CUDA from a torch found at run time.
//!
//! The program is linked against `libtorch_cpu` only. Loading `libtorch_cuda.so` of a CUDA torch of
//! the same version registers its kernels, so that one binary supports both.

mod driver;
#[cfg(test)]
mod emulator;
mod graph;
mod launch;
mod nvrtc;

use std::env;
use std::ffi::c_char;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tch::{Cuda, Device};

use super::checked;
use r1_base::error::{Error, Kind, Result};
use r1_base::{DeviceChoice, Dtype};

pub(crate) use graph::CudaGraph;
pub(super) use launch::{Launcher, launcher};
pub(crate) use launch::{kernels_missing, wanted_kernels};

const LIBRARY: &str = "libtorch_cuda.so";
/// The version that tch binds; other versions have other symbols.
const VERSION: &str = "2.11.";

unsafe extern "C" {
    fn r1_cuda_loaded() -> bool;
    fn r1_cuda_settings(index: i64) -> *mut c_char;
}

/// The device that a recipe selects.
///
/// `auto` is CUDA if a driver and a CUDA torch are found, else the CPU. Errors are `Kind::Device`:
/// CUDA is selected without a driver or a CUDA torch that loads.
pub fn device(choice: DeviceChoice) -> Result<Device> {
    match choice {
        DeviceChoice::Cpu => Ok(Device::Cpu),
        // libtorch must not be queried for CUDA before: it caches the result for the process.
        _ => CudaMachine::this().device(choice),
    }
}

/// The compute type: the setting, or f32 on the CPU (the faster one there) and bf16 on CUDA.
pub fn compute_kind(dtype: Dtype, device: Device) -> tch::Kind {
    match dtype {
        Dtype::Bf16 => tch::Kind::BFloat16,
        Dtype::Auto if device.is_cuda() => tch::Kind::BFloat16,
        Dtype::F32 | Dtype::Auto => tch::Kind::Float,
    }
}

/// Loads the CUDA torch of this machine, if there are a driver and such a torch, without
/// initialising CUDA.
///
/// libtorch keeps what it finds at the first query for CUDA, and the first backward pass of a
/// process is one, also on the CPU. Call this before such a pass if a model may be opened on CUDA
/// later. A library that does not load is reported by [`device`].
pub fn load_cuda_torch() {
    static LOADED: OnceLock<()> = OnceLock::new();
    LOADED.get_or_init(|| {
        let machine = CudaMachine::this();
        if let Some(library) = machine.library().filter(|_| machine.driver) {
            let _ = load(&library);
        }
    });
}

/// The reason why decode steps cannot be recorded as CUDA graphs on this device; `None` if they
/// can.
pub fn cuda_graphs(device: Device) -> Option<String> {
    CudaGraph::missing(device)
}

/// CUDA driver and libraries of this machine.
struct CudaMachine {
    driver: bool,
    /// Directories to search for the library, in order.
    places: Vec<PathBuf>,
}

impl CudaMachine {
    fn this() -> Self {
        // SAFETY: initialisers of the driver's library are harmless; it is closed again.
        let loads = || unsafe { libloading::Library::new("libcuda.so.1") }.is_ok();
        Self { driver: Path::new("/dev/nvidiactl").exists() || loads(), places: places(|name| env::var_os(name)) }
    }

    /// The CUDA torch that is loaded.
    fn library(&self) -> Option<PathBuf> {
        self.places.iter().map(|directory| directory.join(LIBRARY)).find(|path| path.exists())
    }

    fn device(&self, choice: DeviceChoice) -> Result<Device> {
        let cuda = choice == DeviceChoice::Cuda;
        let hint = "policy.device=cpu runs without a GPU";
        if !self.driver {
            if cuda {
                return Err(Error::new(
                    Kind::Device,
                    "policy.device=cuda needs an NVIDIA driver, and this machine has none",
                )
                .hint(hint));
            }
            return Ok(Device::Cpu);
        }
        let Some(library) = self.library() else {
            if cuda {
                return Err(Error::new(
                    Kind::Device,
                    "policy.device=cuda needs a CUDA build of torch, and none is found",
                )
                .hint("activate a Python environment with torch 2.11, or set R1_CUDA_TORCH to its `torch` directory"));
            }
            return Ok(Device::Cpu);
        };
        load(&library).map_err(|error| error.at_path(&library).hint(hint))?;
        // SAFETY: no pointers.
        if !unsafe { r1_cuda_loaded() } {
            let message = "the CUDA torch was loaded after the first backward pass on the CPU, and libtorch ignores it";
            return Err(Error::new(Kind::Device, message)
                .at_path(&library)
                .hint("open a model on CUDA before training on the CPU in the same program, or use two programs"));
        }
        if Cuda::is_available() {
            let gpus = usize::try_from(Cuda::device_count()).unwrap_or(1);
            let gpu = gpu_of_process(gpus, |name| env::var(name).ok());
            // SAFETY: no pointers.
            checked(unsafe { r1_cuda_settings(gpu as i64) })?;
            Ok(Device::Cuda(gpu))
        } else {
            Err(Error::new(Kind::Device, "the CUDA torch is loaded, and it finds no usable GPU")
                .at_path(&library)
                .hint("check nvidia-smi and CUDA_VISIBLE_DEVICES; policy.device=cpu runs without a GPU"))
        }
    }
}

/// The GPU of this process among `gpus`: the number of the process on its machine, which launchers
/// set in LOCAL_RANK and Slurm in SLURM_LOCALID.
fn gpu_of_process(gpus: usize, variable: impl Fn(&str) -> Option<String>) -> usize {
    let number = ["LOCAL_RANK", "SLURM_LOCALID"].iter().find_map(|name| variable(name)?.parse::<usize>().ok());
    number.unwrap_or(0) % gpus.max(1)
}

/// Directories to search for a CUDA torch: R1_CUDA_TORCH, the Python environment, the loader's
/// path, the linked libtorch.
fn places(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Vec<PathBuf> {
    let mut places = Vec::new();
    for name in ["R1_CUDA_TORCH", "LIBTORCH_CUDA"] {
        if let Some(directory) = variable(name).map(PathBuf::from) {
            places.extend([directory.join("lib"), directory.join("torch/lib"), directory]);
        }
    }
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        let Some(root) = variable(name).map(PathBuf::from) else { continue };
        let pythons = fs::read_dir(root.join("lib")).into_iter().flatten().flatten();
        let mut pythons: Vec<PathBuf> = pythons
            .map(|entry| entry.path())
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3")))
            .collect();
        pythons.sort();
        places.extend(pythons.iter().rev().map(|python| python.join("site-packages/torch/lib")));
    }
    if let Some(path) = variable("LD_LIBRARY_PATH") {
        places.extend(env::split_paths(&path).filter(|directory| !directory.as_os_str().is_empty()));
    }
    // Directory of the libtorch_cpu of this process.
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let loaded_files = maps.lines().filter_map(|line| line.split_once('/').map(|(_, path)| format!("/{path}")));
    places.extend(
        loaded_files
            .filter(|path| path.ends_with("/libtorch_cpu.so"))
            .take(1)
            .filter_map(|path| Path::new(&path).parent().map(Path::to_owned)),
    );
    places
}

/// Checks the version of the library and loads it for the rest of the process.
fn load(library: &Path) -> Result<()> {
    let version_file = library.parent().and_then(Path::parent).map(|torch| torch.join("version.py"));
    let version_file = version_file.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    if let Some(version) = version_file.lines().find_map(|line| line.strip_prefix("__version__ = ")) {
        let version = version.trim_matches(['\'', '"']);
        if !version.starts_with(VERSION) {
            return Err(Error::new(
                Kind::Device,
                format!("the CUDA torch found is version {version}, and r1 is built for {VERSION}x"),
            ));
        }
    }
    #[cfg(unix)]
    {
        use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};
        // SAFETY: its initialisers register kernels with the dispatcher, as they do under Python.
        // It is never unloaded.
        let loaded = unsafe { Library::open(Some(library), RTLD_NOW | RTLD_GLOBAL) };
        let loaded =
            loaded.map_err(|error| Error::new(Kind::Device, format!("the CUDA torch found does not load: {error}")))?;
        std::mem::forget(loaded);
        // libtorch opens these by name when it first needs them, and the loader only searches the
        // directory of libtorch_cpu. A library that is open is found by its name.
        for path in opened_by_name(library) {
            // SAFETY: as above.
            if let Ok(loaded) = unsafe { Library::open(Some(&path), RTLD_LAZY | RTLD_LOCAL) } {
                std::mem::forget(loaded);
            }
        }
    }
    Ok(())
}

/// The run-time compiler of kernels, which the wheels of torch have in a separate package or in the
/// library's directory.
fn opened_by_name(library: &Path) -> Vec<PathBuf> {
    let Some(directory) = library.parent() else { return Vec::new() };
    let package = directory.join("../../nvidia/cu13/lib");
    [directory.to_owned(), package].iter().flat_map(|parent| nvrtc::files(parent)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn auto_device_falls_back_to_the_cpu() {
        assert_eq!(device(DeviceChoice::Cpu).unwrap(), Device::Cpu);
        for driver in [false, true] {
            let machine = CudaMachine { driver, places: vec![PathBuf::from("/nowhere")] };
            assert_eq!(machine.device(DeviceChoice::Auto).unwrap(), Device::Cpu);
            let error = machine.device(DeviceChoice::Cuda).unwrap_err();
            assert_eq!(error.kind, Kind::Device);
            assert!(error.message.contains(if driver { "a CUDA build of torch" } else { "an NVIDIA driver" }));
            assert!(error.hint.is_some());
        }
    }

    #[test]
    fn each_process_of_a_machine_has_a_gpu() {
        let of =
            |gpus, name: &str, number: &str| gpu_of_process(gpus, |asked| (asked == name).then(|| number.to_owned()));
        assert_eq!((of(4, "LOCAL_RANK", "3"), of(4, "SLURM_LOCALID", "2"), of(4, "RANK", "1")), (3, 2, 0));
        // Slurm may show each task only its own GPU.
        assert_eq!((of(1, "LOCAL_RANK", "3"), of(0, "LOCAL_RANK", "1")), (0, 0));
    }

    #[test]
    fn cuda_torch_of_another_version_or_a_broken_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let lib = dir.path().join("lib");
        fs::create_dir(&lib).unwrap();
        fs::write(lib.join(LIBRARY), "not a library").unwrap();
        let machine = CudaMachine { driver: true, places: vec![lib] };
        let broken = machine.device(DeviceChoice::Cuda).unwrap_err();
        assert!(broken.message.contains("does not load") && broken.place.is_some(), "{broken}");
        fs::write(dir.path().join("version.py"), "__version__ = '2.9.1+cu128'\n").unwrap();
        let other = machine.device(DeviceChoice::Auto).unwrap_err();
        assert!(other.message.contains("version 2.9.1+cu128"), "{other}");
    }

    #[test]
    fn libraries_that_libtorch_opens_by_name_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let (lib, package) = (dir.path().join("torch/lib"), dir.path().join("nvidia/cu13/lib"));
        fs::create_dir_all(&lib).unwrap();
        fs::create_dir_all(&package).unwrap();
        assert!(opened_by_name(&lib.join(LIBRARY)).is_empty());
        let files = ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"];
        for file in files {
            fs::write(package.join(file), "").unwrap();
        }
        // NVRTC opens the first one by name.
        let opened = opened_by_name(&lib.join(LIBRARY));
        let package = package.canonicalize().unwrap();
        let opened: Vec<PathBuf> = opened.iter().map(|path| path.canonicalize().unwrap()).collect();
        assert_eq!(opened, files.map(|file| package.join(file)));
    }

    #[test]
    fn cuda_torch_search_order() {
        let actual = places(|name| match name {
            "R1_CUDA_TORCH" => Some("/opt/torch".into()),
            "LD_LIBRARY_PATH" => Some("/a::/b".into()),
            _ => None,
        });
        let expected = ["/opt/torch/lib", "/opt/torch/torch/lib", "/opt/torch", "/a", "/b"];
        assert_eq!(&actual[..5], expected.map(PathBuf::from));
        #[cfg(target_os = "linux")]
        assert!(actual[5].join("libtorch_cpu.so").exists());
    }
}
