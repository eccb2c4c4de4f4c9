//! Number of threads of libtorch and the CPU kernels, and the return of memory to the system.

use std::collections::HashSet;
use std::fs;

/// Sets the number of threads of every tensor computation; 0 is one for each physical core this
/// process may use.
///
/// A second thread on the same core shares its arithmetic units and gives no speedup.
pub fn set_threads(count: usize) {
    let count = if count == 0 { physical_cores() } else { count };
    tch::set_num_threads(i32::try_from(count).unwrap_or(i32::MAX));
}

/// The number of threads of a tensor computation.
pub fn thread_count() -> usize {
    usize::try_from(tch::get_num_threads()).unwrap_or(1)
}

/// Sets the number of threads that a process starts with: one for each physical core this process
/// may use, unless the environment has a number for OpenMP or MKL.
///
/// libtorch counts the cores of the machine. In a container with a CPU quota its threads wait for
/// each other while the system has stopped one of them.
pub fn set_default_threads() {
    if has_default_threads() {
        set_threads(0);
    }
}

/// Whether the environment has no number of threads for OpenMP or MKL.
pub fn has_default_threads() -> bool {
    ["OMP_NUM_THREADS", "MKL_NUM_THREADS"].iter().all(|name| std::env::var_os(name).is_none())
}

/// Returns the memory of freed tensors to the system immediately.
///
/// glibc raises its threshold for keeping freed blocks up to 32 MiB, and tensors of varying sizes
/// fragment them: training with libtorch's operations held a third more memory than was in use.
pub fn return_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets an allocator parameter; called before other threads start.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
    }
}

/// Number of physical cores, limited by affinity and the CPU quota of the cgroup.
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
    fn physical_cores_are_limited_by_affinity() {
        let cores = physical_cores();
        assert!(cores >= 1);
        assert!(cores <= std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    }
}
