//! The system calls that confined processes may make: an allow list; all others fail with `EPERM`.
//!
//! Allowed are computing, memory, threads, files (limited by landlock), pipes and clocks. Not
//! allowed are sockets except an anonymous pair (used by event loops), new programs, signals to
//! other processes, debugging, changes of owner, mode or times, namespaces, mounts, keys, BPF,
//! io_uring and shared memory. The server may also fork and reap.
//!
//! The filter is a binary search over ranges of call numbers. The kernel runs it for every call
//! number when it is installed, once per child: a linear search takes a millisecond there.

use std::collections::BTreeMap;

use libc::{c_long, sock_filter};

/// The process that a filter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The trusted interpreter that forks.
    Server,
    /// A forked child, which runs programs.
    Child,
    /// Any program and its child processes.
    Program,
}

/// The result for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Allow,
    /// Fails with this error.
    Errno(i32),
    /// Allowed if the argument with this index has one of the values.
    IfOneOf(u8, &'static [u64]),
    /// Allowed if all these bits are set in the argument with this index.
    IfSet(u8, u32),
    /// For mmap: refuses small stacks, so that the memory limit also limits threads. Root has no
    /// other limit on threads.
    UnlessSmallStack,
}

/// 512 MiB allow 500 such stacks.
const SMALL_STACK: u32 = 1 << 20;

/// The program for `prctl(PR_SET_SECCOMP)`.
pub(crate) fn filter(role: Role) -> Vec<sock_filter> {
    let mut calls: BTreeMap<u32, Verdict> =
        ALWAYS.iter().chain(OLDER).map(|&call| (call as u32, Verdict::Allow)).collect();
    for &(call, argument, values) in VALUES {
        calls.insert(call as u32, Verdict::IfOneOf(argument, values));
    }
    // A filter can't read the flags of `clone3`; without it the C library uses `clone`.
    calls.insert(libc::SYS_clone3 as u32, Verdict::Errno(libc::ENOSYS));
    match role {
        Role::Child => {
            // Threads only, no processes.
            calls.insert(libc::SYS_clone as u32, Verdict::IfSet(0, libc::CLONE_THREAD as u32));
            calls.insert(libc::SYS_mmap as u32, Verdict::UnlessSmallStack);
        }
        Role::Server => {
            calls.extend(SERVER.iter().map(|&call| (call as u32, Verdict::Allow)));
            calls.insert(libc::SYS_unshare as u32, Verdict::IfOneOf(0, &[libc::CLONE_NEWUSER as u64]));
        }
        Role::Program => calls.extend(PROGRAM.iter().map(|&call| (call as u32, Verdict::Allow))),
    }
    let mut program = vec![
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, ARCHITECTURE),
        jump(libc::BPF_JEQ, THIS_ARCHITECTURE, 1, 0),
        // Other architectures use other numbers.
        statement(libc::BPF_RET, libc::SECCOMP_RET_KILL_PROCESS),
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, NUMBER),
    ];
    program.extend(search(&ranges(&calls)));
    program
}

/// The start of each range of equal verdicts, over all 32-bit numbers.
fn ranges(calls: &BTreeMap<u32, Verdict>) -> Vec<(u32, Verdict)> {
    let denied = Verdict::Errno(libc::EPERM);
    let mut ranges = vec![(0, denied)];
    for (&call, &verdict) in calls {
        for (start, verdict) in [(call, verdict), (call + 1, denied)] {
            match ranges.last_mut() {
                Some(last) if last.0 == start => last.1 = verdict,
                _ => ranges.push((start, verdict)),
            }
        }
    }
    ranges.dedup_by_key(|range| range.1);
    ranges
}

/// The number is in the accumulator.
fn search(ranges: &[(u32, Verdict)]) -> Vec<sock_filter> {
    let (below, above) = ranges.split_at(ranges.len() / 2);
    let Some((first, _)) = above.first().filter(|_| !below.is_empty()) else {
        return ranges.first().map_or_else(Vec::new, |range| decide(range.1));
    };
    let below = search(below);
    let mut program = match u8::try_from(below.len()) {
        Ok(length) => vec![jump(libc::BPF_JGE, *first, length, 0)],
        // Conditional jumps are short.
        Err(_) => {
            vec![jump(libc::BPF_JGE, *first, 0, 1), statement(libc::BPF_JMP | libc::BPF_JA, below.len() as u32)]
        }
    };
    program.extend(below);
    program.extend(search(above));
    program
}

fn decide(verdict: Verdict) -> Vec<sock_filter> {
    let allow = statement(libc::BPF_RET, libc::SECCOMP_RET_ALLOW);
    let error = |number: i32| statement(libc::BPF_RET, libc::SECCOMP_RET_ERRNO | number as u32);
    match verdict {
        Verdict::Allow => vec![allow],
        Verdict::Errno(number) => vec![error(number)],
        Verdict::IfOneOf(argument, values) => {
            let mut program = Vec::new();
            for &value in values {
                program.extend([
                    load(argument, 1),
                    jump(libc::BPF_JEQ, (value >> 32) as u32, 0, 3),
                    load(argument, 0),
                    jump(libc::BPF_JEQ, value as u32, 0, 1),
                    allow,
                ]);
            }
            program.push(error(libc::EPERM));
            program
        }
        Verdict::UnlessSmallStack => vec![
            load(3, 0),
            statement(libc::BPF_ALU | libc::BPF_AND, libc::MAP_STACK as u32),
            jump(libc::BPF_JEQ, 0, 4, 0),
            load(1, 1),
            jump(libc::BPF_JGE, 1, 2, 0),
            load(1, 0),
            jump(libc::BPF_JGE, SMALL_STACK, 0, 1),
            allow,
            error(libc::EPERM),
        ],
        Verdict::IfSet(argument, bits) => vec![
            load(argument, 0),
            statement(libc::BPF_ALU | libc::BPF_AND, bits),
            jump(libc::BPF_JEQ, bits, 0, 1),
            allow,
            error(libc::EPERM),
        ],
    }
}

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

#[cfg(target_arch = "x86_64")]
const THIS_ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const THIS_ARCHITECTURE: u32 = 0xC000_00B7;

/// Loads the low (0) or high (1) half of an argument; both architectures are little endian.
fn load(argument: u8, half: u32) -> sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, ARGUMENTS + 8 * u32::from(argument) + 4 * half)
}

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn jump(condition: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | condition | libc::BPF_K) as u16, jt, jf, k }
}

/// Calls that are allowed if the argument with this index has one of these values.
const VALUES: &[(c_long, u8, &[u64])] = &[
    (libc::SYS_socketpair, 0, &[libc::AF_UNIX as u64]),
    // Only to the other end of a socket pair, not to an address; only this process's own limits.
    (libc::SYS_sendto, 4, &[0]),
    (libc::SYS_prlimit64, 0, &[0]),
    // Terminal queries of interpreters, close-on-exec and non-blocking.
    (
        libc::SYS_ioctl,
        1,
        &[libc::TCGETS, libc::TIOCGWINSZ, libc::FIONREAD, libc::FIONBIO, libc::FIOCLEX, libc::FIONCLEX],
    ),
    (
        libc::SYS_fcntl,
        1,
        &[
            libc::F_DUPFD as u64,
            libc::F_DUPFD_CLOEXEC as u64,
            libc::F_GETFD as u64,
            libc::F_SETFD as u64,
            libc::F_GETFL as u64,
            libc::F_SETFL as u64,
            libc::F_GETLK as u64,
            libc::F_SETLK as u64,
            libc::F_SETLKW as u64,
        ],
    ),
];

/// Additional calls of the server: to start, to fork, to control and reap its children, to confine
/// them.
const SERVER: &[c_long] = &[
    libc::SYS_clone,
    libc::SYS_execve,
    libc::SYS_kill,
    libc::SYS_recvmsg,
    libc::SYS_prctl,
    libc::SYS_seccomp,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
    libc::SYS_setsid,
    libc::SYS_capset,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
];

/// Additional calls of shells and compilers: to start and control other programs.
const PROGRAM: &[c_long] = &[
    libc::SYS_clone,
    libc::SYS_execve,
    libc::SYS_prctl,
    libc::SYS_kill,
    libc::SYS_tgkill,
    libc::SYS_setpgid,
    libc::SYS_setsid,
    // Not for children: enlarged buffers do not count against a memory limit.
    libc::SYS_setsockopt,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_utimensat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

const ALWAYS: &[c_long] = &[
    // Memory and threads.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_membarrier,
    libc::SYS_get_mempolicy,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_getcpu,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_restart_syscall,
    // Own signals.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_setitimer,
    libc::SYS_getitimer,
    // Process and user ids.
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getgroups,
    libc::SYS_getpgid,
    libc::SYS_getsid,
    libc::SYS_getpriority,
    libc::SYS_getrusage,
    libc::SYS_times,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrandom,
    // Clocks.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    // Open files and pipes.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_getdents64,
    libc::SYS_sendfile,
    libc::SYS_copy_file_range,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    // The other end of a socket pair.
    libc::SYS_recvfrom,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    // Files by name, limited by landlock.
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_getcwd,
    libc::SYS_umask,
];

/// Older names of calls that are always allowed.
#[cfg(target_arch = "x86_64")]
const OLDER: &[c_long] = &[
    libc::SYS_arch_prctl,
    libc::SYS_open,
    libc::SYS_creat,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_getdents,
    libc::SYS_getpgrp,
    libc::SYS_getrlimit,
    libc::SYS_setrlimit,
    libc::SYS_alarm,
    libc::SYS_pause,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[c_long] = &[];

#[cfg(test)]
mod tests;
