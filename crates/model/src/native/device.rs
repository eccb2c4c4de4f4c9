//! Copies to the device, waiting for it, and its memory.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;

use tch::{Device, Kind, Tensor};

use super::{checked, owned, pointer};
use r1_base::error::Result;

unsafe extern "C" {
    fn r1_upload(tensor: *const c_void, index: i64, out: *mut *mut c_void) -> *mut c_char;
    fn r1_event_record(index: i64, out: *mut *mut c_void) -> *mut c_char;
    fn r1_event_wait(event: *mut c_void) -> *mut c_char;
    fn r1_event_free(event: *mut c_void);
    fn r1_device_release() -> *mut c_char;
    fn r1_storage_release(tensor: *const c_void, bytes: *mut i64) -> *mut c_char;
    fn r1_storage_restore(tensor: *const c_void, bytes: i64) -> *mut c_char;
}

/// `x` on the device. The copy is queued behind the work of the device, from pinned memory, which
/// libtorch keeps until the copy is done; libtorch's own copy of memory that is not pinned waits
/// for all of that work. On the CPU nothing is copied.
pub fn upload(x: &Tensor, device: Device) -> Result<Tensor> {
    if meta::is_on() {
        return meta::like(x);
    }
    let Device::Cuda(index) = device else { return Ok(x.shallow_clone()) };
    let mut out = null_mut();
    // SAFETY: both pointers are live for the call. tch's `pin_memory` passes a device, for which
    // libtorch prints a warning.
    checked(unsafe { r1_upload(pointer(x), index as i64, &raw mut out) })?;
    Ok(owned(out))
}

/// Frees the memory of a tensor, and of all tensors that share it. Returns its size for
/// [`restore_storage`], or 0 if it has none already. Until then the values must not be used.
pub fn release_storage(tensor: &Tensor) -> Result<i64> {
    let mut bytes = 0;
    // SAFETY: both pointers are live for the call.
    checked(unsafe { r1_storage_release(pointer(tensor), &raw mut bytes) })?;
    Ok(bytes)
}

/// Gives a tensor new memory, unless it has some. The values are undefined.
pub fn restore_storage(tensor: &Tensor, bytes: i64) -> Result<()> {
    // SAFETY: the pointer is live for the call.
    checked(unsafe { r1_storage_restore(pointer(tensor), bytes) })
}

/// Zeros on the device.
pub(crate) fn zeros(shape: &[i64], kind: Kind, device: Device) -> Result<Tensor> {
    let zeros = Tensor::f_zeros(shape, (kind, device))?;
    if meta::is_on() {
        return meta::like(&zeros);
    }
    Ok(zeros)
}

/// The end of the work that a device has queued. On the CPU there is nothing to wait for.
#[derive(Debug)]
pub(crate) struct DeviceEvent(*mut c_void);

impl DeviceEvent {
    /// After the work that is queued so far on the current stream of the device.
    pub(crate) fn record(device: Device) -> Result<Self> {
        let mut event = null_mut();
        if let Device::Cuda(index) = device {
            // SAFETY: the pointer is live for the call.
            checked(unsafe { r1_event_record(index as i64, &raw mut event) })?;
        }
        Ok(Self(event))
    }

    /// Waits until the work is done.
    pub(crate) fn wait(&self) -> Result<()> {
        if self.0.is_null() {
            return Ok(());
        }
        // SAFETY: an event of r1_event_record.
        checked(unsafe { r1_event_wait(self.0) })
    }
}

impl Drop for DeviceEvent {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: an event of r1_event_record, freed once.
            unsafe { r1_event_free(self.0) }
        }
    }
}

/// Gives memory that libtorch keeps for later tensors back to the device.
pub fn release_memory(device: Device) -> Result<()> {
    if device.is_cuda() {
        // SAFETY: no pointers.
        checked(unsafe { r1_device_release() })?;
    }
    Ok(())
}

pub mod meta {
    //! libtorch's meta device, for tests: its tensors have no numbers, so that every operation that
    //! waits for numbers on a GPU fails.

    use std::cell::Cell;
    use std::ffi::{c_char, c_void};
    use std::ptr::null_mut;

    use tch::Tensor;

    use crate::native::{checked, owned, pointer};
    use r1_base::error::Result;

    unsafe extern "C" {
        fn r1_without_numbers(of: *const c_void, out: *mut *mut c_void) -> *mut c_char;
        fn r1_add_meta_operations() -> *mut c_char;
    }

    thread_local! {
        static ON: Cell<bool> = const { Cell::new(false) };
    }

    /// Whether this thread's weights, caches and uploads are on the meta device.
    pub fn is_on() -> bool {
        ON.get()
    }

    /// Runs `body` with them on the meta device. An error of libtorch if it cannot be prepared.
    pub fn with<R>(body: impl FnOnce() -> R) -> Result<R> {
        struct Off;
        impl Drop for Off {
            fn drop(&mut self) {
                ON.set(false);
            }
        }
        // SAFETY: no pointers.
        checked(unsafe { r1_add_meta_operations() })?;
        let _off = Off;
        ON.set(true);
        Ok(body())
    }

    /// A tensor of the same shape and type.
    pub fn like(x: &Tensor) -> Result<Tensor> {
        let mut out = null_mut();
        // SAFETY: both pointers are live for the call.
        checked(unsafe { r1_without_numbers(pointer(x), &raw mut out) })?;
        Ok(owned(out))
    }
}
