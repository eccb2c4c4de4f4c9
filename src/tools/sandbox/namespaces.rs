//! A world of its own for the server, where the kernel allows one: a file system that holds the interpreter and a
//! scratch directory in memory and nothing else, no network devices, no other processes, no shared memory.
//!
//! Landlock and seccomp forbid; this hides. With it not even the name or size of a file outside can be asked for, and
//! the scratch directories have a hard limit. Root enters such a world directly and then becomes nobody; anybody else
//! goes through a user namespace. Containers and some distributions allow neither.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::{Reach, check, check_long};

/// How to get namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Namespaces {
    /// As root, without a user namespace, becoming nobody afterwards.
    Privileged,
    /// Through a user namespace, keeping the user id.
    User,
    /// Not at all.
    None,
}

impl Namespaces {
    /// What is worth a try, best first.
    pub(crate) fn candidates() -> &'static [Self] {
        // SAFETY: always succeeds and touches nothing.
        if unsafe { libc::geteuid() } == 0 {
            &[Self::Privileged, Self::User, Self::None]
        } else {
            &[Self::User, Self::None]
        }
    }
}

/// Where distributions keep libraries; all but the first are links into it on most systems.
const SYSTEM: [&str; 4] = ["/usr", "/lib", "/lib32", "/lib64"];

/// Files and directories of a scratch directory.
const INODES: u64 = 4096;

/// The user and group without rights, on every distribution.
const NOBODY: libc::id_t = 65534;

/// The steps into the new world, prepared so that taking them needs system calls only.
#[derive(Debug)]
pub(super) struct World {
    namespaces: Namespaces,
    /// Written to `uid_map` and `gid_map`: everybody keeps the own id.
    maps: [CString; 2],
    /// Where the new root is mounted, seen from outside.
    root: CString,
    options: CString,
    directories: Vec<CString>,
    files: Vec<CString>,
    links: Vec<(CString, CString)>,
    binds: Vec<Bind>,
    /// Scratch directories that are file systems of their own, seen from inside, and their options.
    rooms: Vec<CString>,
    room_options: CString,
}

#[derive(Debug)]
struct Bind {
    from: CString,
    to: CString,
    attributes: u64,
}

impl World {
    /// Plans a root that shows what `reach` names. `scratch` has the same path inside as outside, where it is only
    /// the place to mount on. Its size is limited for the whole of it or, with rooms, for each of them, so that no
    /// program can take the space of another, whatever kind of file it hides its bytes in.
    pub(super) fn plan(namespaces: Namespaces, reach: &Reach) -> io::Result<Self> {
        let root = &reach.scratch;
        let bytes = if reach.rooms > 0 { 0 } else { reach.scratch_bytes }.max(1 << 20);
        let inside = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
        // SAFETY: these always succeed and touch nothing.
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

    /// Enters it. Made for the time between fork and exec: system calls only.
    pub(super) fn enter(&self) -> io::Result<()> {
        let user = if self.namespaces == Namespaces::User { libc::CLONE_NEWUSER } else { 0 };
        let flags =
            libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
        let nothing = std::ptr::null::<libc::c_char>();
        // SAFETY: plain system calls on strings that outlive them.
        unsafe {
            check(libc::unshare(user | flags))?;
            if user != 0 {
                write_file(c"/proc/self/setgroups", c"deny")?;
                write_file(c"/proc/self/uid_map", &self.maps[0])?;
                write_file(c"/proc/self/gid_map", &self.maps[1])?;
            }
            check(libc::sethostname(c"r1".as_ptr(), 2))?;
            // Nothing that is mounted from here on shows outside.
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
            // The new root on top of the old one, which is then let go.
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

    /// Root becomes nobody. The raw calls, because the C library's would talk to threads that a fork left behind.
    pub(super) fn become_nobody(&self) -> io::Result<()> {
        if self.namespaces != Namespaces::Privileged {
            return Ok(());
        }
        // SAFETY: plain system calls.
        unsafe {
            check_long(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()))?;
            check_long(libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY))?;
            check_long(libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY))
        }
    }
}

/// What to mount: the system's directories as a whole, since links lead about in them, and of the rest only what is
/// needed. Nothing twice.
fn shown(reach: &Reach) -> Vec<PathBuf> {
    let mut paths = BTreeSet::from([PathBuf::from("/dev/null"), PathBuf::from("/dev/urandom")]);
    // The loader is named through these; links among them are made as links.
    paths.extend(SYSTEM.iter().map(PathBuf::from).filter(|path| path.is_dir() && !path.is_symlink()));
    for path in reach.read.iter().chain(&reach.list) {
        let top: PathBuf = path.components().take(2).collect();
        let system = SYSTEM.iter().any(|name| top == Path::new(name));
        // Libraries are found by names that are links beside them.
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
    // SAFETY: plain system calls on strings that outlive them.
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
    // Prepared paths are absolute and clean, so that inside and outside can't be confused.
    debug_assert!(path.components().all(|part| part != Component::ParentDir));
    c_string(path.as_os_str().as_bytes())
}

fn c_string(bytes: impl Into<Vec<u8>>) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::ErrorKind::InvalidInput.into())
}
