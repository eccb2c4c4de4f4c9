//! Namespaces for the server, if the kernel allows them: a file system with only the interpreter
//! and a scratch directory in memory, no network devices, no other processes, no shared memory.
//!
//! Landlock and seccomp forbid access; namespaces also hide names and sizes of files outside, and
//! limit the size of scratch directories. Root enters them directly and then becomes the user
//! `nobody`; other users need a user namespace. Containers and some distributions allow neither.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::{SandboxAccess, check, check_long};

/// The way in which namespaces are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Namespaces {
    /// As root, without a user namespace, then becoming the user `nobody`.
    Privileged,
    /// Through a user namespace with the same user id.
    User,
    /// No namespaces.
    None,
}

impl Namespaces {
    /// The ways to try, best first.
    pub(crate) fn candidates() -> &'static [Self] {
        // SAFETY: always succeeds and has no side effect.
        if unsafe { libc::geteuid() } == 0 {
            &[Self::Privileged, Self::User, Self::None]
        } else {
            &[Self::User, Self::None]
        }
    }
}

/// Directories of libraries; on most systems all but the first are links into it.
const SYSTEM: [&str; 4] = ["/usr", "/lib", "/lib32", "/lib64"];

/// Files and directories of a scratch directory.
const INODES: u64 = 4096;

/// The unprivileged user and group of every distribution.
const NOBODY: libc::id_t = 65534;

/// The steps into the namespaces, prepared so that they need only system calls.
#[derive(Debug)]
pub(super) struct NamespaceSetup {
    namespaces: Namespaces,
    /// Written to `uid_map` and `gid_map`: ids stay unchanged.
    maps: [CString; 2],
    /// The mount point of the new root, as a path outside.
    root: CString,
    options: CString,
    directories: Vec<CString>,
    files: Vec<CString>,
    links: Vec<(CString, CString)>,
    binds: Vec<Bind>,
    /// Scratch directories with their own file systems, as paths inside, and their options.
    rooms: Vec<CString>,
    room_options: CString,
}

#[derive(Debug)]
struct Bind {
    from: CString,
    to: CString,
    attributes: u64,
}

impl NamespaceSetup {
    /// Plans a root with the paths of `reach`. `scratch` has the same path inside as outside, where
    /// it is only the mount point. Its size is limited as a whole or, with rooms, per room, so that
    /// a program can't use up the space of another with any kind of file.
    pub(super) fn plan(namespaces: Namespaces, reach: &SandboxAccess) -> io::Result<Self> {
        let root = &reach.scratch;
        let bytes = if reach.rooms > 0 { 0 } else { reach.scratch_bytes }.max(1 << 20);
        let inside = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
        // SAFETY: these always succeed and have no side effect.
        let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
        let mut world = Self {
            namespaces,
            maps: [c_string(format!("{user} {user} 1"))?, c_string(format!("{group} {group} 1"))?],
            root: c_path(root)?,
            options: c_string(format!("size={bytes},nr_inodes=65536,mode=0755"))?,
            directories: Vec::new(),
            files: Vec::new(),
            links: Vec::new(),
            binds: Vec::new(),
            rooms: (0..reach.rooms).map(|room| c_path(&root.join(room.to_string()))).collect::<io::Result<_>>()?,
            room_options: c_string(format!(
                "size={},nr_inodes={INODES},mode=0700{}",
                reach.scratch_bytes.max(1 << 20),
                if namespaces == Namespaces::Privileged {
                    format!(",uid={NOBODY},gid={NOBODY}")
                } else {
                    String::new()
                },
            ))?,
        };
        let mut directories = BTreeSet::new();
        for path in shown(reach) {
            let is_file = !path.is_dir();
            let parents = if is_file { path.parent() } else { Some(path.as_path()) };
            directories.extend(parents.into_iter().flat_map(Path::ancestors).map(Path::to_path_buf));
            if is_file {
                world.files.push(c_path(&inside(&path))?);
            }
            let device = if path.starts_with("/dev") { 0 } else { libc::MOUNT_ATTR_NODEV };
            world.binds.push(Bind {
                from: c_path(&path)?,
                to: c_path(&inside(&path))?,
                attributes: libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | device,
            });
        }
        directories.extend(root.ancestors().map(Path::to_path_buf));
        let programs: &[&str] = if reach.execute { &["/bin", "/sbin"] } else { &[] };
        for name in SYSTEM.iter().chain(programs) {
            if let Ok(target) = std::fs::read_link(name) {
                world.links.push((c_path(&target)?, c_path(&inside(Path::new(name)))?));
                directories.remove(Path::new(name));
            }
        }
        directories.remove(Path::new("/"));
        // Sorted, so that parents come first.
        world.directories = directories.iter().map(|path| c_path(&inside(path))).collect::<io::Result<_>>()?;
        Ok(world)
    }

    /// Enters the namespaces. For use between fork and exec: only system calls.
    pub(super) fn enter(&self) -> io::Result<()> {
        let user = if self.namespaces == Namespaces::User { libc::CLONE_NEWUSER } else { 0 };
        let flags =
            libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
        let nothing = std::ptr::null::<libc::c_char>();
        // SAFETY: system calls on strings that outlive them.
        unsafe {
            check(libc::unshare(user | flags))?;
            if user != 0 {
                write_file(c"/proc/self/setgroups", c"deny")?;
                write_file(c"/proc/self/uid_map", &self.maps[0])?;
                write_file(c"/proc/self/gid_map", &self.maps[1])?;
            }
            check(libc::sethostname(c"r1".as_ptr(), 2))?;
            // Later mounts are not visible outside.
            check(libc::mount(nothing, c"/".as_ptr(), nothing, libc::MS_REC | libc::MS_PRIVATE, nothing.cast()))?;
            let tmpfs = c"tmpfs".as_ptr();
            let flags = libc::MS_NOSUID | libc::MS_NODEV;
            check(libc::mount(tmpfs, self.root.as_ptr(), tmpfs, flags, self.options.as_ptr().cast()))?;
            for (target, link) in &self.links {
                check(libc::symlink(target.as_ptr(), link.as_ptr()))?;
            }
            for directory in &self.directories {
                check(libc::mkdir(directory.as_ptr(), 0o755))?;
            }
            for file in &self.files {
                let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_CLOEXEC;
                let fd = libc::open(file.as_ptr(), flags, 0o644 as libc::c_uint);
                check(fd)?;
                libc::close(fd);
            }
            for bind in &self.binds {
                let flags = libc::MS_BIND | libc::MS_REC;
                check(libc::mount(bind.from.as_ptr(), bind.to.as_ptr(), nothing, flags, nothing.cast()))?;
                let attributes =
                    libc::mount_attr { attr_set: bind.attributes, attr_clr: 0, propagation: 0, userns_fd: 0 };
                check_long(libc::syscall(
                    libc::SYS_mount_setattr,
                    libc::AT_FDCWD,
                    bind.to.as_ptr(),
                    libc::AT_RECURSIVE,
                    &raw const attributes,
                    size_of::<libc::mount_attr>(),
                ))?;
            }
            // Mounts the new root over the old one, which is then detached.
            check(libc::chdir(self.root.as_ptr()))?;
            check_long(libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()))?;
            check(libc::umount2(c".".as_ptr(), libc::MNT_DETACH))?;
            check(libc::chdir(self.root.as_ptr()))?;
            for room in &self.rooms {
                check(libc::mkdir(room.as_ptr(), 0o700))?;
                check(libc::mount(tmpfs, room.as_ptr(), tmpfs, flags, self.room_options.as_ptr().cast()))?;
            }
            if self.namespaces == Namespaces::Privileged {
                check(libc::chown(self.root.as_ptr(), NOBODY, NOBODY))?;
            }
        }
        Ok(())
    }

    /// Root becomes the user `nobody`. Raw calls: the C library's would use threads that do not
    /// exist after a fork.
    pub(super) fn become_nobody(&self) -> io::Result<()> {
        if self.namespaces != Namespaces::Privileged {
            return Ok(());
        }
        // SAFETY: only system calls.
        unsafe {
            check_long(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()))?;
            check_long(libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY))?;
            check_long(libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY))
        }
    }
}

/// The paths to mount: the system's directories as a whole, because links point into them, and
/// otherwise only required paths, without duplicates.
fn shown(reach: &SandboxAccess) -> Vec<PathBuf> {
    let mut paths = BTreeSet::from([PathBuf::from("/dev/null"), PathBuf::from("/dev/urandom")]);
    // The loader's path uses these; links among them are created as links.
    paths.extend(SYSTEM.iter().map(PathBuf::from).filter(|path| path.is_dir() && !path.is_symlink()));
    for path in reach.read.iter().chain(&reach.list) {
        let top: PathBuf = path.components().take(2).collect();
        let system = SYSTEM.iter().any(|name| top == Path::new(name));
        // Libraries are found by the names of links in the same directory.
        let library =
            path.is_file() && path.file_name().is_some_and(|name| name.as_bytes().windows(3).any(|w| w == b".so"));
        let shown = match path.parent() {
            _ if system => top,
            Some(parent) if library && parent.components().count() > 2 => parent.to_path_buf(),
            _ => path.clone(),
        };
        paths.insert(shown);
    }
    let all: Vec<PathBuf> = paths.into_iter().collect();
    all.iter().filter(|path| !all.iter().any(|other| other != *path && path.starts_with(other))).cloned().collect()
}

fn write_file(path: &CStr, text: &CStr) -> io::Result<()> {
    // SAFETY: system calls on strings that outlive them.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        check(file)?;
        let length = text.count_bytes();
        let written = libc::write(file, text.as_ptr().cast(), length);
        let error = io::Error::last_os_error();
        libc::close(file);
        if usize::try_from(written) == Ok(length) { Ok(()) } else { Err(error) }
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    // Prepared paths are absolute and without `..`, so that inside and outside can't be confused.
    debug_assert!(path.components().all(|part| part != Component::ParentDir));
    c_string(path.as_os_str().as_bytes())
}

fn c_string(bytes: impl Into<Vec<u8>>) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::ErrorKind::InvalidInput.into())
}
