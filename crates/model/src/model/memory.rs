//! Memory of a model, checked before it is loaded.

use tch::{Device, Kind};

use crate::native;
use r1_base::error::{self, Error, Result};

/// Free memory of a device (of the system for the CPU), bytes; `None` if unknown.
pub fn available(device: Device) -> Option<u64> {
    match device {
        Device::Cuda(_) => native::device_free(device),
        _ => kibibytes("/proc/meminfo", "MemAvailable:"),
    }
}

/// Resident memory of this process, bytes; `None` if unknown.
pub fn resident() -> Option<u64> {
    kibibytes("/proc/self/status", "VmRSS:")
}

/// Peak resident memory of this process, bytes.
pub fn peak() -> Option<u64> {
    kibibytes("/proc/self/status", "VmHWM:")
}

/// Value of a line in a file of /proc, in bytes.
fn kibibytes(path: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Memory of `weights` of type `kind`, bytes; `packed` adds the f32 copy of the CPU kernels.
pub(super) fn bytes(weights: u128, kind: Kind, packed: bool) -> u128 {
    let copy = if packed { Kind::Float.elt_size_in_bytes() } else { 0 };
    weights.saturating_mul((kind.elt_size_in_bytes() + copy) as u128)
}

/// Refuses a model that does not fit into `free` bytes. Errors are `Kind::Device`.
pub(super) fn check(weights: u128, kind: Kind, packed: bool, free: u64) -> Result<()> {
    let wanted = bytes(weights, kind, packed);
    if wanted <= u128::from(free) {
        return Ok(());
    }
    let (held, copied) = match (kind, packed) {
        (Kind::BFloat16, _) => ("bf16", ""),
        (_, true) => ("f32", ", with the packed copy that products are computed from,"),
        (_, false) => ("f32", ""),
    };
    let error = Error::new(
        error::Kind::Device,
        format!(
            "{} million weights in {held}{copied} take {}, more than the {} of memory that are free",
            weights.div_ceil(1_000_000),
            mebibytes(wanted),
            mebibytes(free.into())
        ),
    );
    let smaller = bytes(weights, Kind::BFloat16, false);
    if kind == Kind::BFloat16 || smaller > free.into() {
        return Err(error.hint("take a smaller model, or a machine with more memory"));
    }
    Err(error.hint(format!("in bf16 they take {} (policy.dtype=bf16)", mebibytes(smaller))))
}

fn mebibytes(bytes: u128) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn model_larger_than_memory_is_refused_with_its_size() {
        let (weights, gib) = (1_000_000_000, 1 << 30);
        assert_eq!(bytes(weights, Kind::Float, true), 8_000_000_000);
        assert_eq!(bytes(weights, Kind::Float, false), 4_000_000_000);
        assert_eq!(bytes(weights, Kind::BFloat16, false), 2_000_000_000);
        assert!(check(weights, Kind::Float, true, 8_000_000_000).is_ok());
        let error = check(weights, Kind::Float, true, 7_999_999_999).unwrap_err();
        assert_eq!(error.kind, error::Kind::Device);
        assert_eq!(
            error.message,
            "1000 million weights in f32, with the packed copy that products are computed from, take 7630 MiB, more \
             than the 7630 MiB of memory that are free"
        );
        assert_eq!(error.hint.as_deref(), Some("in bf16 they take 1908 MiB (policy.dtype=bf16)"));
        assert!(check(weights, Kind::Float, false, 4 * gib).is_ok());
        let error = check(weights, Kind::BFloat16, false, gib).unwrap_err();
        assert_eq!(
            error.message,
            "1000 million weights in bf16 take 1908 MiB, more than the 1024 MiB of memory that are free"
        );
        assert!(error.hint.is_some_and(|hint| hint.contains("smaller model")));
        // The largest size that a header can have.
        assert!(check(u128::MAX, Kind::Float, true, u64::MAX).is_err());
    }

    #[test]
    fn free_and_resident_memory_are_known() {
        if std::path::Path::new("/proc/meminfo").exists() {
            assert!(available(Device::Cpu).unwrap() > 1 << 20);
            assert_eq!(available(Device::Cuda(7)), None);
            // Read before the peak, since another thread may allocate in between.
            let resident = resident();
            assert!(resident.unwrap() > 1 << 20 && peak() >= resident);
        }
    }
}
