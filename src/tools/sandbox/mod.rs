//! Confinement of a child process with Linux's own means: landlock for files, seccomp for system calls, limits.
//!
//! [`Confinement::new`] prepares everything in the host; [`Confinement::apply`] puts it into force between fork and
//! exec, where only system calls are allowed; [`Confinement::inner`] describes the second, tighter layer that the
//! server's forked children put on themselves. No privilege is needed, and as root all privilege is given up.

mod seccomp;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
};
use seccompiler::BpfProgram;
use serde::Serialize;

use crate::error::{Error, Kind, Result};

/// What a confined process may reach.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reach {
    /// Files, and directories with all that is in them, to read.
    pub read: Vec<PathBuf>,
    /// Directories whose entries may be listed but not read.
    pub list: Vec<PathBuf>,
    /// The directory under which children get scratch directories.
    pub scratch: PathBuf,
    /// Whether anything may be written there.
    pub write: bool,
}

/// Everything that [`Confinement::apply`] needs, made before the fork.
#[derive(Debug)]
pub(crate) struct Confinement {
    ruleset: OwnedFd,
    filters: Vec<BpfProgram>,
    last_capability: libc::c_int,
    inner: Inner,
}

/// The second layer, as the driver reads it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Inner {
    /// Filter programs in hexadecimal.
    pub seccomp: Vec<String>,
    pub landlock: InnerLandlock,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct InnerLandlock {
    handled: u64,
    read: u64,
    write: u64,
    paths: Vec<PathBuf>,
}

impl Confinement {
    /// Prepares the layers.
    ///
    /// # Errors
    /// [`Kind::Tool`] if the kernel has no landlock or a path is missing.
    pub(crate) fn new(reach: &Reach) -> Result<Self> {
        let broken =
            |error: &dyn std::fmt::Display| Error::new(Kind::Tool, format!("can't set up the sandbox: {error}"));
        let Some(abi) = landlock_abi() else {
            return Err(Error::new(Kind::Tool, "can't set up the sandbox: this kernel has no landlock").hint(
                "landlock needs Linux 5.13 or later with `landlock` in the `lsm=` list (see /sys/kernel/security/lsm), \
                 and a container runtime that does not block its system calls; the rhai tool needs neither",
            ));
        };
        let all = AccessFs::from_all(abi);
        let read_file = AccessFs::ReadFile | AccessFs::Execute;
        let read = read_file | AccessFs::ReadDir;
        // Devices, FIFOs and sockets have no place in a scratch directory.
        let write = AccessFs::ReadFile
            | AccessFs::ReadDir
            | AccessFs::WriteFile
            | AccessFs::RemoveDir
            | AccessFs::RemoveFile
            | AccessFs::MakeDir
            | AccessFs::MakeReg
            | AccessFs::MakeSym
            | AccessFs::Refer
            | AccessFs::Truncate;
        let write = write & all;
        let mut ruleset = Ruleset::default()
            .handle_access(all)
            .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(abi)))
            .and_then(|ruleset| ruleset.scope(Scope::from_all(abi)))
            .and_then(Ruleset::create)
            .map_err(|e| broken(&e))?;
        let mut add = |path: &Path, access| -> Result<()> {
            let fd = PathFd::new(path).map_err(|e| broken(&e))?;
            (&mut ruleset).add_rule(PathBeneath::new(fd, access)).map_err(|e| broken(&e))?;
            Ok(())
        };
        for path in &reach.read {
            add(path, if path.is_dir() { read } else { read_file })?;
        }
        for path in &reach.list {
            add(path, AccessFs::ReadDir.into())?;
        }
        add(Path::new("/dev/null"), AccessFs::ReadFile | AccessFs::WriteFile)?;
        add(Path::new("/dev/urandom"), AccessFs::ReadFile.into())?;
        // The server makes and removes the scratch directories.
        add(&reach.scratch, if reach.write { write } else { read })?;
        let ruleset: Option<OwnedFd> = ruleset.into();
        let ruleset = ruleset.ok_or_else(|| broken(&"landlock gave no ruleset"))?;
        let hex = |program: BpfProgram| program.iter().map(instruction_hex).collect::<String>();
        let child = seccomp::filters(seccomp::Role::Child).map_err(|e| broken(&e))?;
        Ok(Self {
            ruleset,
            filters: seccomp::filters(seccomp::Role::Server).map_err(|e| broken(&e))?,
            last_capability: std::fs::read_to_string("/proc/sys/kernel/cap_last_cap")
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(63),
            inner: Inner {
                seccomp: child.into_iter().map(hex).collect(),
                landlock: InnerLandlock {
                    handled: all.bits(),
                    read: (read | AccessFs::WriteFile).bits(),
                    write: write.bits(),
                    paths: cover(reach),
                },
            },
        })
    }

    /// The second layer.
    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// Confines the calling process. Made for the time between fork and exec: it makes system calls and nothing else,
    /// no allocation and no lock, because the fork came from a process with threads.
    pub(crate) fn apply(&self) -> io::Result<()> {
        // SAFETY: plain system calls on values that outlive them.
        unsafe {
            // Dies with the thread that started it, however that ends.
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            // A process group of its own, so that a signal from the terminal reaches only the host.
            check(libc::setpgid(0, 0))?;
            // Nothing but standard streams goes into the new program, whatever some library left open.
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            let files = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
            check(libc::setrlimit(libc::RLIMIT_CORE, &raw const none))?;
            check(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files))?;
            // The first to go when memory is short; the host, which holds the model, must not be.
            let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if file >= 0 {
                libc::write(file, c"1000".as_ptr().cast(), 4);
            }
            // No privilege now, none through exec.
            for capability in 0..=self.last_capability {
                libc::prctl(libc::PR_CAPBSET_DROP, capability);
            }
            check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
            drop_capabilities()?;
            check_long(libc::syscall(libc::SYS_landlock_restrict_self, self.ruleset.as_raw_fd(), 0))?;
            for filter in &self.filters {
                let program = libc::sock_fprog {
                    len: filter.len() as libc::c_ushort,
                    // The crate's own instruction type has the layout of the kernel's.
                    filter: filter.as_ptr().cast_mut().cast(),
                };
                check(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program))?;
            }
        }
        Ok(())
    }
}

/// Gives up every capability of the process.
fn drop_capabilities() -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: libc::c_int,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header { version: VERSION_3, pid: 0 };
    // Two triples of effective, permitted, inheritable.
    let none = [0_u32; 6];
    // SAFETY: both structures have the layout of capset(2), version 3.
    check_long(unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn check_long(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The kernel's landlock version, as far as this crate knows them.
fn landlock_abi() -> Option<ABI> {
    const LANDLOCK_CREATE_RULESET_VERSION: libc::c_int = 1;
    // SAFETY: with this flag the call takes no attributes and returns a number.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    match version {
        ..=0 => None,
        1 => Some(ABI::V1),
        2 => Some(ABI::V2),
        3 => Some(ABI::V3),
        4 => Some(ABI::V4),
        5 => Some(ABI::V5),
        6 => Some(ABI::V6),
        _ => Some(ABI::V7),
    }
}

/// Few directories that contain everything readable and no scratch directory. The second layer needs no more, since
/// the first one stays in force; fewer rules make a quicker fork.
fn cover(reach: &Reach) -> Vec<PathBuf> {
    let mut paths = vec![PathBuf::from("/dev")];
    for path in reach.read.iter().chain(&reach.list) {
        let top = path.ancestors().filter(|a| a.parent().is_some() && !reach.scratch.starts_with(a)).last();
        let top = top.unwrap_or(path);
        if !paths.iter().any(|known| top.starts_with(known)) {
            paths.retain(|known| !known.starts_with(top));
            paths.push(top.to_path_buf());
        }
    }
    paths
}

/// One `struct sock_filter` as the kernel reads it.
fn instruction_hex(instruction: &seccompiler::sock_filter) -> String {
    let [c0, c1] = instruction.code.to_ne_bytes();
    let [k0, k1, k2, k3] = instruction.k.to_ne_bytes();
    let number = u64::from_be_bytes([c0, c1, instruction.jt, instruction.jf, k0, k1, k2, k3]);
    format!("{number:016x}")
}
