//! libtorch's profiler: a Chrome trace of what this thread does, and totals by operation.

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tch::Device;

use super::checked;
use r1_base::error::{Error, Kind, Result};

unsafe extern "C" {
    fn r1_profile_start(device: bool) -> *mut c_char;
    fn r1_profile_stop(
        path: *const c_char,
        each: unsafe extern "C" fn(*mut c_void, *const c_char, i64, i64, bool),
        target: *mut c_void,
    ) -> *mut c_char;
}

/// Total of the calls of one operation, or of the launches of one kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationTime {
    pub name: String,
    pub count: u64,
    /// Time of the host without called operations, or time of the device.
    pub seconds: f64,
    /// Whether it is a kernel or a copy on the device.
    pub on_device: bool,
}

/// Starts a profile of this thread and of its backward passes; with kernels if `device` is CUDA.
pub fn start_profile(device: Device) -> Result<()> {
    // SAFETY: no pointers.
    checked(unsafe { r1_profile_start(device.is_cuda()) })
}

/// Ends the profile of this thread and writes it to `path` in Chrome's trace format. Returns
/// totals, largest first.
pub fn stop_profile(path: &Path) -> Result<Vec<OperationTime>> {
    let text = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::new(Kind::Usage, "the path has a zero byte").at_path(path))?;
    let mut all: Vec<OperationTime> = Vec::new();
    // SAFETY: a C string, and the list that `each` extends, both live for the call.
    checked(unsafe { r1_profile_stop(text.as_ptr(), each, std::ptr::from_mut(&mut all).cast()) })?;
    if !path.is_file() {
        return Err(Error::new(Kind::Store, "libtorch did not write the profile").at_path(path));
    }
    all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    Ok(all)
}

unsafe extern "C" fn each(target: *mut c_void, name: *const c_char, count: i64, nanoseconds: i64, on_device: bool) {
    // SAFETY: the list of `stop_profile`, and a C string, both live for the call.
    let (all, name) = unsafe { (&mut *target.cast::<Vec<OperationTime>>(), CStr::from_ptr(name)) };
    let name = name.to_string_lossy().into_owned();
    all.push(OperationTime { name, count: count.unsigned_abs(), seconds: nanoseconds.max(0) as f64 / 1e9, on_device });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tch::{Kind as Type, Tensor};

    use super::*;

    #[test]
    fn a_profile_counts_operations_and_is_a_chrome_trace() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        let x = Tensor::ones([64, 64], (Type::Float, Device::Cpu)).set_requires_grad(true);
        start_profile(Device::Cpu).unwrap();
        x.linear(&x, None::<&Tensor>).sum(Type::Float).backward();
        let all = stop_profile(&path).unwrap();
        let of = |name: &str| all.iter().find(|operation| operation.name == name).unwrap();
        // A sum of all numbers calls the one over dimensions.
        assert_eq!((of("aten::linear").count, of("aten::sum").count), (1, 2));
        // The product of the backward pass, too.
        assert!(of("aten::mm").count >= 2, "{all:?}");
        assert!(all.iter().all(|operation| !operation.on_device && operation.seconds >= 0.0));
        // Calls of other operations do not count twice.
        let total: f64 = all.iter().map(|operation| operation.seconds).sum();
        assert!(total > 0.0 && of("aten::linear").seconds < total);
        let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert!(trace["traceEvents"].as_array().unwrap().iter().any(|event| event["name"] == "aten::linear"));
        assert!(stop_profile(&path).is_err());
    }
}
