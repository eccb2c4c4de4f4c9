//! The parts of the CUDA driver that load and start kernels. The driver is opened at run time.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

use libloading::os::unix::Library;

use r1_base::error::{Error, Kind, Result};

type Handle = *mut c_void;

pub(super) struct Driver {
    error_text: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
    context: unsafe extern "C" fn(*mut Handle) -> c_int,
    set_context: unsafe extern "C" fn(Handle) -> c_int,
    device: unsafe extern "C" fn(*mut c_int, c_int) -> c_int,
    attribute: unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int,
    primary_context: unsafe extern "C" fn(*mut Handle, c_int) -> c_int,
    load: unsafe extern "C" fn(*mut Handle, *const c_void) -> c_int,
    function: unsafe extern "C" fn(*mut Handle, Handle, *const c_char) -> c_int,
    #[allow(clippy::type_complexity)]
    launch: unsafe extern "C" fn(
        Handle,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        Handle,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> c_int,
}

/// Compiled kernels on a device. They stay loaded as long as the program runs.
#[derive(Clone, Copy)]
pub(super) struct KernelModule(usize);

/// A kernel of a module.
#[derive(Clone, Copy)]
pub(super) struct KernelFunction(usize);

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR` of cuda.h.
const CAPABILITY: [c_int; 2] = [75, 76];

impl Driver {
    /// The driver of this machine.
    ///
    /// # Errors
    /// `Kind::Device`: there is none.
    pub(super) fn this() -> Result<&'static Self> {
        static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
        DRIVER.get_or_init(Self::open).as_ref().map_err(Error::clone)
    }

    fn open() -> Result<Self> {
        let failed = |error: libloading::Error| {
            Error::new(Kind::Device, format!("the library of the CUDA driver does not load: {error}"))
        };
        // SAFETY: initialisers of the driver's library are harmless. The types are from cuda.h.
        unsafe {
            let library = Library::new("libcuda.so.1").map_err(failed)?;
            macro_rules! symbol {
                ($name:literal) => {
                    *library.get(concat!($name, "\0").as_bytes()).map_err(failed)?
                };
            }
            let driver = Self {
                error_text: symbol!("cuGetErrorString"),
                context: symbol!("cuCtxGetCurrent"),
                set_context: symbol!("cuCtxSetCurrent"),
                device: symbol!("cuDeviceGet"),
                attribute: symbol!("cuDeviceGetAttribute"),
                primary_context: symbol!("cuDevicePrimaryCtxRetain"),
                load: symbol!("cuModuleLoadData"),
                function: symbol!("cuModuleGetFunction"),
                launch: symbol!("cuLaunchKernel"),
            };
            std::mem::forget(library);
            Ok(driver)
        }
    }

    fn checked(&self, what: &str, status: c_int) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let mut text = std::ptr::null();
        // SAFETY: the driver writes a static string, or leaves null.
        let text = unsafe {
            let _ = (self.error_text)(status, &raw mut text);
            if text.is_null() { "unknown error".into() } else { CStr::from_ptr(text).to_string_lossy() }
        };
        Err(Error::new(Kind::Internal, format!("{what}: CUDA error {status}, {text}")))
    }

    /// Makes the device's context current for this thread, if the thread has none: threads of a
    /// backward pass may not have called CUDA before.
    fn enter(&self, device: i64) -> Result<c_int> {
        let (mut handle, mut context) = (0, null_mut());
        // SAFETY: the pointers are live for the calls.
        unsafe {
            self.checked("a device", (self.device)(&raw mut handle, device as c_int))?;
            self.checked("the context", (self.context)(&raw mut context))?;
            if context.is_null() {
                self.checked("the device's context", (self.primary_context)(&raw mut context, handle))?;
                self.checked("the context", (self.set_context)(context))?;
            }
        }
        Ok(handle)
    }

    /// The compute capability of a device times 10.
    pub(super) fn capability(&self, device: i64) -> Result<c_int> {
        let handle = self.enter(device)?;
        let mut parts = [0; 2];
        for (part, attribute) in parts.iter_mut().zip(CAPABILITY) {
            // SAFETY: as above.
            self.checked("the compute capability", unsafe { (self.attribute)(part, attribute, handle) })?;
        }
        Ok(parts[0] * 10 + parts[1])
    }

    /// Loads compiled kernels.
    pub(super) fn load(&self, device: i64, code: &[u8]) -> Result<KernelModule> {
        self.enter(device)?;
        let mut module = null_mut();
        // SAFETY: the code is live for the call; it has its length, or, as PTX, a zero at its end.
        self.checked("loading kernels", unsafe { (self.load)(&raw mut module, code.as_ptr().cast()) })?;
        Ok(KernelModule(module.expose_provenance()))
    }

    pub(super) fn function(&self, module: KernelModule, name: &str) -> Result<KernelFunction> {
        let text = CString::new(name).map_err(|_| Error::new(Kind::Internal, "a kernel's name has a zero byte"))?;
        let mut function = null_mut();
        let module = std::ptr::with_exposed_provenance_mut(module.0);
        // SAFETY: the module stays loaded.
        self.checked(name, unsafe { (self.function)(&raw mut function, module, text.as_ptr()) })?;
        Ok(KernelFunction(function.expose_provenance()))
    }

    /// Starts a kernel on a stream.
    ///
    /// # Safety
    /// The arguments must be the kernel's, on that device.
    pub(super) unsafe fn launch(
        &self,
        function: KernelFunction,
        (grid, threads): ([u32; 3], u32),
        stream: *mut c_void,
        arguments: *mut *mut c_void,
    ) -> Result<()> {
        let function = std::ptr::with_exposed_provenance_mut(function.0);
        // SAFETY: as required of the caller.
        let status = unsafe {
            (self.launch)(function, grid[0], grid[1], grid[2], threads, 1, 1, 0, stream, arguments, null_mut())
        };
        self.checked("the start of a kernel", status)
    }
}
