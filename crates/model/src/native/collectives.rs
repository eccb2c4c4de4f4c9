//! c10d's TCP store and Gloo backend, for [`ProcessGroup`](crate::process_group::ProcessGroup).

use std::ffi::{CString, c_char, c_void};
use std::net::TcpListener;
use std::os::fd::IntoRawFd;
use std::ptr::null_mut;
use std::time::Duration;

use tch::Tensor;

use super::{checked, pointer, r1_free_message};
use r1_base::error::{Error, Kind, Result};

unsafe extern "C" {
    fn r1_group_connect(
        host: *const c_char,
        port: i64,
        socket: i64,
        milliseconds: i64,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn r1_group_set(group: *mut c_void, key: *const c_char, value: *const c_char, length: i64) -> *mut c_char;
    fn r1_group_get(group: *mut c_void, key: *const c_char, milliseconds: i64, out: *mut *mut c_char) -> *mut c_char;
    fn r1_group_add(group: *mut c_void, key: *const c_char, amount: i64, out: *mut i64) -> *mut c_char;
    fn r1_group_part(
        group: *mut c_void,
        name: *const c_char,
        address: *const c_char,
        rank: i64,
        size: i64,
        milliseconds: i64,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn r1_group_broadcast(group: *mut c_void, tensor: *const c_void, from: i64) -> *mut c_char;
    fn r1_group_join(
        group: *mut c_void,
        address: *const c_char,
        rank: i64,
        size: i64,
        milliseconds: i64,
    ) -> *mut c_char;
    fn r1_group_free(group: *mut c_void);
    fn r1_group_gather(group: *mut c_void, tensor: *const c_void, out: *const c_void) -> *mut c_char;
    fn r1_group_exchange(group: *mut c_void, tensor: *const c_void, with: i64, out: *const c_void) -> *mut c_char;
}

/// A connection to the store and, after [`join`](Self::join), to the other ranks.
#[derive(Debug)]
pub(crate) struct Collectives(*mut c_void);

impl Collectives {
    /// Connects to the store at `host:port`. The process with a `listener` there runs it.
    pub(crate) fn connect(host: &str, port: u16, listener: Option<TcpListener>, timeout: Duration) -> Result<Self> {
        let (host, mut out) = (text(host)?, null_mut());
        // The store closes the socket.
        let socket = listener.map_or(-1, |listener| listener.into_raw_fd().into());
        // SAFETY: all pointers are live for the call.
        checked(unsafe { r1_group_connect(host.as_ptr(), port.into(), socket, milliseconds(timeout), &raw mut out) })?;
        Ok(Self(out))
    }

    pub(crate) fn set(&self, key: &str, value: &str) -> Result<()> {
        let key = text(key)?;
        // SAFETY: the value is copied; its length is passed.
        checked(unsafe { r1_group_set(self.0, key.as_ptr(), value.as_ptr().cast(), value.len() as i64) })
    }

    /// Waits for the value of a key; `None` if it was not set in time.
    pub(crate) fn get(&self, key: &str, timeout: Duration) -> Result<Option<String>> {
        let (key, mut out) = (text(key)?, null_mut());
        // SAFETY: the value is a C string allocated by C++, freed once here.
        unsafe {
            checked(r1_group_get(self.0, key.as_ptr(), milliseconds(timeout), &raw mut out))?;
            if out.is_null() {
                return Ok(None);
            }
            let value = std::ffi::CStr::from_ptr(out).to_string_lossy().into_owned();
            r1_free_message(out);
            Ok(Some(value))
        }
    }

    /// Connects with the other ranks. They reach this one at `address`; without one, at the address
    /// of this machine's name.
    pub(crate) fn join(&self, address: Option<&str>, rank: usize, size: usize, timeout: Duration) -> Result<()> {
        let address = text(address.unwrap_or(""))?;
        let (rank, size) = (rank as i64, size as i64);
        // SAFETY: the address is live for the call.
        checked(unsafe { r1_group_join(self.0, address.as_ptr(), rank, size, milliseconds(timeout)) })
    }

    /// Adds to a counter of the store, and returns its value. A new one is 0.
    pub(crate) fn add(&self, key: &str, amount: i64) -> Result<i64> {
        let (key, mut out) = (text(key)?, 0);
        // SAFETY: both pointers are live for the call.
        checked(unsafe { r1_group_add(self.0, key.as_ptr(), amount, &raw mut out) })?;
        Ok(out)
    }

    /// Connects some of the ranks with each other, as the group `name`; `rank` is the number within
    /// it. The store is the same.
    pub(crate) fn part(
        &self,
        name: &str,
        address: Option<&str>,
        (rank, size): (usize, usize),
        timeout: Duration,
    ) -> Result<Self> {
        let (name, address, mut out) = (text(name)?, text(address.unwrap_or(""))?, null_mut());
        let (rank, size, timeout) = (rank as i64, size as i64, milliseconds(timeout));
        // SAFETY: all pointers are live for the call.
        checked(unsafe { r1_group_part(self.0, name.as_ptr(), address.as_ptr(), rank, size, timeout, &raw mut out) })?;
        Ok(Self(out))
    }

    /// Sets `tensor`, which is contiguous, to the one of the rank `from`.
    pub(crate) fn broadcast(&self, tensor: &Tensor, from: usize) -> Result<()> {
        // SAFETY: the tensor lives until its values are there.
        checked(unsafe { r1_group_broadcast(self.0, pointer(tensor), from as i64) })
    }

    /// The tensors of all ranks, which have one shape and type: `[size, …]`.
    pub(crate) fn gather(&self, tensor: &Tensor, size: usize) -> Result<Tensor> {
        let tensor = tensor.f_contiguous()?;
        let shape = [&[size as i64], &tensor.size()[..]].concat();
        let out = tensor.f_new_empty(shape, (tensor.kind(), tensor.device()))?;
        // SAFETY: both tensors live until all ranks have answered.
        checked(unsafe { r1_group_gather(self.0, pointer(&tensor), pointer(&out)) })?;
        Ok(out)
    }

    /// Sends `tensor` to the rank `with` and receives `count` values of the same type from it, as a
    /// tensor of one dimension.
    pub(crate) fn exchange(&self, tensor: &Tensor, with: usize, count: i64) -> Result<Tensor> {
        let tensor = tensor.f_contiguous()?;
        let out = tensor.f_new_empty([count], (tensor.kind(), tensor.device()))?;
        // SAFETY: both tensors live until the other rank has answered.
        checked(unsafe { r1_group_exchange(self.0, pointer(&tensor), with as i64, pointer(&out)) })?;
        Ok(out)
    }
}

// SAFETY: c10d's store and process group have no thread of their own that they must be used from.
unsafe impl Send for Collectives {}
// SAFETY: both lock their state. The order of operations is the caller's.
unsafe impl Sync for Collectives {}

impl Drop for Collectives {
    fn drop(&mut self) {
        // SAFETY: created by r1_group_connect, freed once.
        unsafe { r1_group_free(self.0) }
    }
}

fn text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::new(Kind::Usage, format!("`{}` has a NUL byte", text.escape_debug())))
}

fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX).max(1)
}
