//! CUDA graphs: the operations of a step, recorded once and launched as one.
//!
//! They are in `libtorch_cuda`, which r1 is not linked against. graph.cpp is a small separate
//! library, embedded in the program and loaded after a CUDA torch.

use tch::Device;

use r1_base::error::Result;

/// A recorded graph, and the memory of its results.
#[derive(Debug)]
pub(crate) struct CudaGraph {
    #[cfg(cuda_graphs)]
    graph: loaded::Handle,
}

#[cfg(not(cuda_graphs))]
impl CudaGraph {
    /// The reason why graphs cannot be recorded: this build has no CUDA headers.
    pub(crate) fn missing(_device: Device) -> Option<String> {
        Some(missing().message)
    }

    pub(crate) fn record<T>(
        _device: Device,
        _share: Option<&Self>,
        _body: &dyn Fn() -> Result<T>,
    ) -> Result<(Self, T)> {
        Err(missing())
    }

    #[allow(clippy::unused_self)]
    pub(crate) fn launch(&self) -> Result<()> {
        Err(missing())
    }
}

/// The stream of this thread on a CUDA device.
pub(super) fn current_stream(device: i64) -> Result<*mut std::ffi::c_void> {
    #[cfg(not(cuda_graphs))]
    return Err(missing());
    #[cfg(cuda_graphs)]
    loaded::current_stream(device)
}

#[cfg(not(cuda_graphs))]
fn missing() -> r1_base::error::Error {
    r1_base::error::Error::new(r1_base::error::Kind::Internal, "this r1 was built without CUDA's headers")
}

#[cfg(cuda_graphs)]
impl CudaGraph {
    /// The reason why graphs cannot be recorded on this device; `None` if they can.
    pub(crate) fn missing(device: Device) -> Option<String> {
        if !device.is_cuda() {
            return Some("the device is not CUDA".to_owned());
        }
        loaded::library().err().map(|error| error.message)
    }

    /// Records the operations of `body` on the device, which must not synchronise or copy from the
    /// host. Runs `body` once before, because libraries initialise in their first call. Returns the
    /// tensors of `body`, which are valid after each [`launch`](Self::launch). `share`: a graph
    /// whose memory is reused; a launch of one overwrites the results of the other.
    pub(crate) fn record<T>(device: Device, share: Option<&Self>, body: &dyn Fn() -> Result<T>) -> Result<(Self, T)> {
        let graph = loaded::Handle::new(device)?;
        let recorded = (|| {
            let _ = body()?;
            graph.record(share.map(|graph| &graph.graph))?;
            body()
        })();
        let ended = graph.end();
        let result = recorded?;
        ended?;
        Ok((Self { graph }, result))
    }

    /// Launches the graph, after all queued operations.
    pub(crate) fn launch(&self) -> Result<()> {
        self.graph.replay()
    }
}

#[cfg(cuda_graphs)]
mod loaded {
    //! The loaded library, and its graphs.

    use std::ffi::{c_char, c_void};
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::ptr::{null_mut, with_exposed_provenance_mut};
    use std::sync::OnceLock;

    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
    use tch::Device;

    use crate::native::checked;
    use r1_base::error::{Error, Kind, Result};

    pub(super) static CODE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libr1_cuda.so"));

    type Plain = unsafe extern "C" fn(*mut c_void) -> *mut c_char;

    pub(super) struct Api {
        new: unsafe extern "C" fn(i64, *mut *mut c_void) -> *mut c_char,
        record: unsafe extern "C" fn(*mut c_void, *mut c_void) -> *mut c_char,
        end: Plain,
        replay: Plain,
        stream: unsafe extern "C" fn(i64, *mut *mut c_void) -> *mut c_char,
        free: unsafe extern "C" fn(*mut c_void),
    }

    /// The library, loaded on first use, or why it does not load. A CUDA torch must be loaded
    /// before.
    pub(super) fn library() -> Result<&'static Api> {
        static LIBRARY: OnceLock<Result<Api>> = OnceLock::new();
        LIBRARY.get_or_init(load).as_ref().map_err(Error::clone)
    }

    fn load() -> Result<Api> {
        let failed = |error: &dyn std::fmt::Display| {
            Error::new(Kind::Internal, format!("the library for CUDA graphs does not load: {error}"))
        };
        // An anonymous file, which leaves nothing behind and can't be replaced by other processes.
        // SAFETY: the name is a C string; the returned descriptor is owned here.
        let mut file = unsafe {
            let descriptor = libc::memfd_create(c"r1_cuda".as_ptr(), libc::MFD_CLOEXEC);
            if descriptor < 0 {
                return Err(failed(&std::io::Error::last_os_error()));
            }
            File::from_raw_fd(descriptor)
        };
        file.write_all(CODE).map_err(|error| failed(&error))?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        // SAFETY: our own code, whose symbols come from the CUDA torch. It is never unloaded. The
        // types match graph.cpp.
        unsafe {
            let library = Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL).map_err(|error| failed(&error))?;
            let api = Api {
                new: *library.get(b"r1_graph_new\0").map_err(|error| failed(&error))?,
                record: *library.get(b"r1_graph_record\0").map_err(|error| failed(&error))?,
                end: *library.get(b"r1_graph_end\0").map_err(|error| failed(&error))?,
                replay: *library.get(b"r1_graph_replay\0").map_err(|error| failed(&error))?,
                stream: *library.get(b"r1_current_stream\0").map_err(|error| failed(&error))?,
                free: *library.get(b"r1_graph_free\0").map_err(|error| failed(&error))?,
            };
            std::mem::forget(library);
            Ok(api)
        }
    }

    pub(super) fn current_stream(device: i64) -> Result<*mut c_void> {
        let mut stream = null_mut();
        // SAFETY: the pointer is live for the call.
        checked(unsafe { (library()?.stream)(device, &raw mut stream) })?;
        Ok(stream)
    }

    #[derive(Debug)]
    pub(super) struct Handle(usize);

    impl Handle {
        pub(super) fn new(device: Device) -> Result<Self> {
            let Device::Cuda(index) = device else {
                return Err(Error::new(Kind::Internal, "CUDA graphs need a CUDA device"));
            };
            let mut handle = null_mut();
            // SAFETY: the pointer is live for the call.
            checked(unsafe { (library()?.new)(index as i64, &raw mut handle) })?;
            Ok(Self(handle.expose_provenance()))
        }

        fn pointer(&self) -> *mut c_void {
            with_exposed_provenance_mut(self.0)
        }

        pub(super) fn record(&self, share: Option<&Self>) -> Result<()> {
            let other = share.map_or(null_mut(), Self::pointer);
            // SAFETY: handles live as long as their owners.
            checked(unsafe { (library()?.record)(self.pointer(), other) })
        }

        pub(super) fn end(&self) -> Result<()> {
            // SAFETY: as above.
            checked(unsafe { (library()?.end)(self.pointer()) })
        }

        pub(super) fn replay(&self) -> Result<()> {
            // SAFETY: as above.
            checked(unsafe { (library()?.replay)(self.pointer()) })
        }
    }

    impl Drop for Handle {
        fn drop(&mut self) {
            if let Ok(api) = library() {
                // SAFETY: created by r1_graph_new, freed once.
                unsafe { (api.free)(self.pointer()) }
            }
        }
    }
}

#[cfg(all(test, cuda_graphs))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::process::Command;

    use super::*;

    #[test]
    fn cuda_graph_library_has_its_functions_and_needs_a_gpu() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libr1_cuda.so");
        std::fs::write(&path, loaded::CODE).unwrap();
        // SAFETY: its functions are looked up but not called, so their dependencies can be missing.
        let library = unsafe {
            use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
            Library::open(Some(&path), RTLD_LAZY | RTLD_LOCAL).unwrap()
        };
        for name in ["graph_new", "graph_record", "graph_end", "graph_replay", "graph_free", "current_stream"] {
            // SAFETY: as above.
            let symbol = unsafe { library.get::<unsafe extern "C" fn()>(format!("r1_{name}\0").as_bytes()) };
            assert!(symbol.is_ok(), "{name}");
        }
        // It must not depend on a CUDA library.
        if let Ok(output) = Command::new("readelf").arg("-d").arg(&path).output() {
            assert!(!String::from_utf8_lossy(&output.stdout).contains("cuda.so"));
        }
        assert_eq!(CudaGraph::missing(Device::Cpu).as_deref(), Some("the device is not CUDA"));
        assert!(CudaGraph::record(Device::Cpu, None, &|| Ok(())).is_err());
    }
}
