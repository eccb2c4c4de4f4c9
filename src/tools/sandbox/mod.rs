//! Confines a child process with features of Linux: landlock for files, seccomp for system calls,
//! limits, and namespaces if available.
//!
//! [`Confinement::new`] prepares everything in the host; [`Confinement::apply`] applies it between
//! fork and exec, where only system calls are allowed; [`Confinement::inner`] describes the second,
//! stricter layer that the server's forked children apply to themselves. It needs no privileges,
//! and root drops all its privileges.

mod namespaces;
mod seccomp;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
};

use libc::sock_filter;
use serde::Serialize;

use self::namespaces::NamespaceSetup;
pub(crate) use self::namespaces::Namespaces;
pub(crate) use self::seccomp::Role;
use crate::error::{Error, Kind, Result};

/// The access of a confined process.
#[derive(Clone, Debug, Default)]
pub(crate) struct SandboxAccess {
    /// Readable files and directories with their contents.
    pub read: Vec<PathBuf>,
    /// Directories whose entries may be listed but not read.
    pub list: Vec<PathBuf>,
    /// The writable directory, or the parent of the children's scratch directories.
    pub scratch: PathBuf,
    /// Its size, or the size of each room, with namespaces; 0 forbids writing.
    pub scratch_bytes: u64,
    /// With namespaces: the number of directories `0`, `1`, … in it, each with its own file system.
    pub rooms: usize,
    /// Files written there may be executed.
    pub execute: bool,
}

/// Everything that [`Confinement::apply`] needs, prepared before the fork.
#[derive(Debug)]
pub(crate) struct Confinement {
    world: Option<NamespaceSetup>,
    ruleset: OwnedFd,
    scratch: CString,
    scratch_access: u64,
    filter: Vec<sock_filter>,
    last_capability: libc::c_int,
    /// The second layer.
    pub inner: InnerLayer,
}

/// The second layer, in the driver's format.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct InnerLayer {
    /// The filter program in hexadecimal.
    pub seccomp: String,
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
    /// Prepares the layers of a process.
    ///
    /// # Errors
    /// [`Kind::Tool`] if the kernel has no landlock or a path is missing.
    pub(crate) fn new(reach: &SandboxAccess, namespaces: Namespaces, role: Role) -> Result<Self> {
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
        // Devices, FIFOs and sockets are not allowed in a scratch directory.
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
        let write = if reach.execute { write | AccessFs::Execute } else { write } & all;
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
        let ruleset: Option<OwnedFd> = ruleset.into();
        let ruleset = ruleset.ok_or_else(|| broken(&"landlock gave no ruleset"))?;
        let world = match namespaces {
            Namespaces::None => None,
            _ => Some(NamespaceSetup::plan(namespaces, reach).map_err(|e| broken(&e))?),
        };
        Ok(Self {
            world,
            ruleset,
            scratch: CString::new(reach.scratch.as_os_str().as_bytes()).map_err(|e| broken(&e))?,
            // The server creates and removes the scratch directories.
            scratch_access: if reach.scratch_bytes > 0 { write } else { read }.bits(),
            filter: seccomp::filter(role),
            last_capability: std::fs::read_to_string("/proc/sys/kernel/cap_last_cap")
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(63),
            inner: InnerLayer {
                seccomp: seccomp::filter(Role::Child).into_iter().map(instruction_hex).collect(),
                landlock: InnerLandlock {
                    handled: all.bits(),
                    read: (read | AccessFs::WriteFile).bits(),
                    write: write.bits(),
                    paths: covering_directories(reach),
                },
            },
        })
    }

    /// Confines the calling process. For use between fork and exec: only system calls, no
    /// allocation and no lock, because the parent process has threads.
    pub(crate) fn apply(&self) -> io::Result<()> {
        // SAFETY: system calls on values that outlive them.
        unsafe {
            // A separate process group, so that a signal from the terminal reaches only the host.
            check(libc::setpgid(0, 0))?;
            // Only the standard streams are passed to the new program.
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            let files = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
            check(libc::setrlimit(libc::RLIMIT_CORE, &raw const none))?;
            check(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files))?;
            // Killed first when memory is short, rather than the host, which holds the model.
            let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if file >= 0 {
                libc::write(file, c"1000".as_ptr().cast(), 4);
            }
            if let Some(world) = &self.world {
                world.enter()?;
            }
            // Fixed addresses, so that sets of objects have a fixed order. Not allowed on every
            // system.
            libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
            // No privileges now or through exec.
            for capability in 0..=self.last_capability {
                libc::prctl(libc::PR_CAPBSET_DROP, capability);
            }
            if let Some(world) = &self.world {
                world.become_nobody()?;
            }
            check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
            drop_capabilities()?;
            // Dies with the thread that started it. (A change of user would have reset this.)
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            self.allow_scratch()?;
            check_long(libc::syscall(libc::SYS_landlock_restrict_self, self.ruleset.as_raw_fd(), 0))?;
            let program =
                libc::sock_fprog { len: self.filter.len() as libc::c_ushort, filter: self.filter.as_ptr().cast_mut() };
            check(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program))?;
        }
        Ok(())
    }

    /// Adds the scratch directory to the ruleset: only now, because with namespaces it was created
    /// just before.
    fn allow_scratch(&self) -> io::Result<()> {
        #[repr(C, packed)]
        struct PathBeneathAttribute {
            allowed_access: u64,
            parent_fd: libc::c_int,
        }
        const LANDLOCK_RULE_PATH_BENEATH: libc::c_int = 1;
        // SAFETY: system calls; the structure has the layout of `struct
        // landlock_path_beneath_attr`.
        unsafe {
            let directory = libc::open(self.scratch.as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
            check(directory)?;
            let rule = PathBeneathAttribute { allowed_access: self.scratch_access, parent_fd: directory };
            check_long(libc::syscall(
                libc::SYS_landlock_add_rule,
                self.ruleset.as_raw_fd(),
                LANDLOCK_RULE_PATH_BENEATH,
                &raw const rule,
                0,
            ))
        }
    }
}

/// Drops every capability of the process.
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

/// The kernel's landlock version, up to the newest that this crate supports.
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

/// A short list of directories that contain everything readable and no scratch directory. The first
/// layer stays in force, so the second one repeats nothing; fewer rules make forks faster.
fn covering_directories(reach: &SandboxAccess) -> Vec<PathBuf> {
    let mut paths = vec![PathBuf::from("/dev")];
    for path in reach.read.iter().chain(&reach.list) {
        let top = path.ancestors().filter(|a| a.parent().is_some() && !reach.scratch.starts_with(a)).last();
        let top = top.unwrap_or(path);
        if !paths.iter().any(|listed| top.starts_with(listed)) {
            paths.retain(|listed| !listed.starts_with(top));
            paths.push(top.to_path_buf());
        }
    }
    paths
}

/// One `struct sock_filter` as the kernel reads it.
fn instruction_hex(instruction: sock_filter) -> String {
    let [c0, c1] = instruction.code.to_ne_bytes();
    let [k0, k1, k2, k3] = instruction.k.to_ne_bytes();
    let number = u64::from_be_bytes([c0, c1, instruction.jt, instruction.jf, k0, k1, k2, k3]);
    format!("{number:016x}")
}
