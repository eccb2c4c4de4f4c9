//! Copies from the device that do not wait for it.
//!
//! Host memory of these copies is pinned. On the CPU nothing is copied.

use tch::{Device, Tensor};

use crate::native;
pub use crate::native::upload;
pub(crate) use crate::native::zeros;
use r1_base::error::Result;

/// Tensors on their way from the device to the host.
#[derive(Debug)]
pub struct HostTransfer {
    tensors: Vec<Tensor>,
    queued: native::DeviceEvent,
}

impl HostTransfer {
    /// Queues copies of the tensors behind the work of the device; later work may overwrite them.
    pub fn start(tensors: &[Tensor], device: Device) -> Result<Self> {
        let host = |x: &Tensor| -> Result<Tensor> {
            if !device.is_cuda() {
                return Ok(x.shallow_clone());
            }
            Ok(x.f_to_device_(Device::Cpu, x.kind(), true, false)?)
        };
        let tensors = tensors.iter().map(host).collect::<Result<_>>()?;
        Ok(Self { tensors, queued: native::DeviceEvent::record(device)? })
    }

    /// The tensors on the host, once the device has computed them.
    pub fn wait(self) -> Result<Vec<Tensor>> {
        self.queued.wait()?;
        Ok(self.tensors)
    }
}
