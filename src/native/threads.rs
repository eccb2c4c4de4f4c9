//! Number of threads of libtorch and the CPU kernels, and the return of memory to the system.

use std::collections::HashSet;
use std::fs;

/// Sets the number of threads of every tensor computation; 0 is one for each physical core this process may use.
///
/// A second thread on the same core shares its arithmetic units, so it only costs.
pub fn set_threads(count: usize) {
    let count = if count == 0 { physical_cores() } else { count };
    tch::set_num_threads(i32::try_from(count).unwrap_or(i32::MAX));
}

/// Gives freed tensors back to the system at once.
///
/// The C library learns to keep blocks of up to 32 MiB for later, and tensors of ever different sizes leave gaps among
/// them: training by libtorch's own operations held a third more memory than was in use.
pub fn return_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets a number of the allocator; called before there are other threads.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
    }
}

/// Physical cores, no more than the processors that affinity and cgroup leave to this process.
fn physical_cores() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut cores = HashSet::new();
    for cpu in fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten() {
        let topology = cpu.path().join("topology");
        let read = |name: &str| fs::read_to_string(topology.join(name)).ok();
        if let (Some(package), Some(core)) = (read("physical_package_id"), read("core_id")) {
            cores.insert((package, core));
        }
    }
    if cores.is_empty() { allowed } else { allowed.min(cores.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_core_and_not_more_than_allowed() {
        let cores = physical_cores();
        assert!(cores >= 1);
        assert!(cores <= std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    }
}
