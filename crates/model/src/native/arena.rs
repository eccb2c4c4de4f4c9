//! Memory for weights, keys and values.

use std::ffi::c_void;
use std::ptr::null_mut;

use tch::{Device, Kind, Tensor};

use super::{checked, owned, pointer, r1_arena, r1_arena_free, r1_arena_take};
use r1_base::error::Result;

/// Allocates uninitialised tensors, on the CPU in contiguous pages of 2 MiB if available: TLB
/// misses of 4 KiB pages take a tenth of a step. Memory is returned in blocks of 64 MiB or a
/// tensor's size, with their last tensor.
#[derive(Debug)]
pub(crate) struct Arena {
    handle: *mut c_void,
}

impl Arena {
    pub(crate) fn new() -> Self {
        // SAFETY: no arguments; freed once, by drop.
        Self { handle: unsafe { r1_arena() } }
    }

    /// Allocates a tensor, which can outlive the arena.
    pub(crate) fn take(&self, shape: &[i64], (kind, device): (Kind, Device)) -> Result<Tensor> {
        if device != Device::Cpu {
            return Ok(Tensor::f_empty(shape, (kind, device))?);
        }
        let like = Tensor::f_empty([0], (kind, device))?;
        let mut out = null_mut();
        // SAFETY: the pointers are live for the call.
        checked(unsafe {
            r1_arena_take(self.handle, shape.as_ptr(), shape.len() as i64, pointer(&like), &raw mut out)
        })?;
        let taken = owned(out);
        if super::meta::is_on() {
            return super::meta::like(&taken);
        }
        Ok(taken)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: created by r1_arena, freed once; tensors own their blocks.
        unsafe { r1_arena_free(self.handle) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arena_tensors_outlive_the_arena_and_do_not_overlap() -> Result<()> {
        let arena = Arena::new();
        let shapes: [&[i64]; 5] = [&[3], &[5, 7], &[0], &[1 << 12, 1 << 13], &[2, 2, 2]];
        let kinds = [Kind::Float, Kind::BFloat16, Kind::Float, Kind::BFloat16, Kind::Double];
        let mut all: Vec<Tensor> = Vec::new();
        for (index, (shape, kind)) in shapes.into_iter().zip(kinds).enumerate() {
            let mut taken = arena.take(shape, (kind, Device::Cpu))?;
            assert_eq!((taken.size().as_slice(), taken.kind()), (shape, kind));
            assert_eq!(taken.data_ptr() as usize % 64, 0);
            let _ = taken.fill_(index as f64 + 1.0);
            all.push(taken);
        }
        drop(arena);
        drop(all.remove(1));
        for (value, tensor) in [1.0, 3.0, 4.0, 5.0].into_iter().zip(&all) {
            assert_eq!(tensor.to_kind(Kind::Double).ne(value).sum(Kind::Int64).int64_value(&[]), 0);
        }
        Ok(())
    }

    #[test]
    fn arena_refuses_an_impossible_shape() {
        assert!(Arena::new().take(&[i64::MAX / 8], (Kind::Float, Device::Cpu)).is_err());
        assert!(Arena::new().take(&[-1], (Kind::Float, Device::Cpu)).is_err());
    }
}
