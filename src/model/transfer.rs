//! Copies from the device that do not wait for it, and selections that the meta device has.
//!
//! Host memory of these copies is pinned. On the CPU nothing is copied.

use tch::{Device, Tensor};

use crate::error::Result;
use crate::native;
pub(crate) use crate::native::upload;

/// The entries `index` `[N]` i64 of x in dimension `dim`.
pub fn select(x: &Tensor, dim: i64, index: &Tensor) -> Result<Tensor> {
    // The meta device lacks the operation, and has this one.
    #[cfg(test)]
    if native::meta::is_on() {
        let mut places: Vec<Option<Tensor>> = (0..dim).map(|_| None).collect();
        places.push(Some(index.shallow_clone()));
        return Ok(x.f_index(&places)?);
    }
    Ok(x.f_index_select(dim, index)?)
}

/// Tensors on their way from the device to the host.
#[derive(Debug)]
pub struct Download {
    tensors: Vec<Tensor>,
    queued: native::Event,
}

impl Download {
    /// Queues copies of the tensors behind the work of the device; later work may overwrite them.
    pub fn start(tensors: &[Tensor], device: Device) -> Result<Self> {
        let host = |x: &Tensor| -> Result<Tensor> {
            if !device.is_cuda() {
                return Ok(x.shallow_clone());
            }
            Ok(x.f_to_device_(Device::Cpu, x.kind(), true, false)?)
        };
        let tensors = tensors.iter().map(host).collect::<Result<_>>()?;
        Ok(Self { tensors, queued: native::Event::record(device)? })
    }

    /// The tensors on the host, once the device has computed them.
    pub fn wait(self) -> Result<Vec<Tensor>> {
        self.queued.wait()?;
        Ok(self.tensors)
    }
}
