//! Entry point: runs the command line and returns its exit code.

fn main() -> std::process::ExitCode {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    exit::without_destructors();
    r1::cli::main()
}

/// The end of the process without the destructors of shared libraries.
///
/// The destructors of libtorch take a quarter of the time of a short command: they remove its
/// operators from tables one by one. They would also run while other threads may still use a
/// tensor.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod exit {
    use std::ffi::{c_int, c_void};

    unsafe extern "C" {
        /// A function of glibc: `atexit` with the exit status.
        safe fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }

    /// Functions of `exit` run in reverse order. The libraries registered theirs before `main`, so
    /// that this one is called first. The standard library has written its output by then.
    pub(crate) fn without_destructors() {
        on_exit(end, std::ptr::null_mut());
    }

    extern "C" fn end(status: c_int, _: *mut c_void) {
        // SAFETY: a system call that does not return.
        unsafe { libc::_exit(status) }
    }
}

/// Short waits of OpenMP threads.
///
/// A thread of libgomp that waits for others spins for milliseconds before it sleeps. If another
/// process needs the core, a model of hundreds of barriers per token becomes ten times slower. With
/// 1,000 turns a waiting thread sleeps after some microseconds. On an idle machine the speed is the
/// same (docs/lab/cpu-kernels.md).
///
/// libgomp reads the variable when it is loaded, before `main`. Functions of `.preinit_array` run
/// before the initialisation of libraries: this one starts the program again with the variable.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod spin {
    use std::ffi::{CStr, c_char, c_int};

    const SETTING: &CStr = c"GOMP_SPINCOUNT=1000";
    /// Variables by which a user decides.
    const OF_USER: [&[u8]; 2] = [b"GOMP_SPINCOUNT=", b"OMP_WAIT_POLICY="];
    /// Longest environment that is copied, in variables.
    const MOST: usize = 4096;
    const PATH: usize = 4096;

    #[used]
    #[unsafe(link_section = ".preinit_array")]
    static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

    /// Returns if the variable is set already, or if the program cannot be started again; then
    /// threads wait as libgomp decides. The standard library and libc are not initialised here.
    #[allow(clippy::large_stack_arrays)] // 36 KiB of the first thread's stack, which has megabytes
    extern "C" fn start(_count: c_int, arguments: *const *const c_char, variables: *const *const c_char) {
        let mut copy = [std::ptr::null(); MOST + 2];
        let mut path = [0; PATH];
        // SAFETY: the loader passes arrays of C strings that end with a null pointer. `copy` and
        // `path` stay one null longer than what is written to them.
        unsafe {
            let mut count = 0;
            while !(*variables.add(count)).is_null() {
                let variable = CStr::from_ptr(*variables.add(count)).to_bytes();
                if count == MOST || OF_USER.iter().any(|name| variable.starts_with(name)) {
                    return;
                }
                copy[count] = *variables.add(count);
                count += 1;
            }
            copy[count] = SETTING.as_ptr();
            // Not /proc/self/exe itself: the process would be named `exe`.
            if libc::readlink(c"/proc/self/exe".as_ptr(), path.as_mut_ptr(), PATH - 1) > 0 {
                libc::execve(path.as_ptr(), arguments, copy.as_ptr());
            }
        }
    }
}

/// Runs before the constructors of shared libraries. One of libtorch's ends the process in a
/// working directory that was deleted, with a message about itself.
#[cfg(target_os = "linux")]
#[used]
#[unsafe(link_section = ".preinit_array")]
static WORKING_DIRECTORY: extern "C" fn(libc::c_int, *const *const libc::c_char) = working_directory;

#[cfg(target_os = "linux")]
extern "C" fn working_directory(_count: libc::c_int, arguments: *const *const libc::c_char) {
    /// Words that ask for documentation, which needs no working directory.
    const ABOUT: [&[u8]; 7] = [b"--help", b"-h", b"--version", b"-V", b"help", b"doc", b"man"];
    const MESSAGE: &[u8] = b"error: the working directory can't be used: it may have been deleted\n  \
        hint: change to a directory that exists\n";
    let mut path = [0; 4096];
    // SAFETY: system calls on memory of this function, and the loader's array of C strings, which
    // ends with a null pointer; nothing of Rust's runtime is used, which has not started.
    unsafe {
        if libc::getcwd(path.as_mut_ptr(), path.len()).is_null() && *libc::__errno_location() == libc::ENOENT {
            let (mut next, mut is_about) = (arguments, false);
            while !(*next).is_null() {
                is_about |= ABOUT.contains(&std::ffi::CStr::from_ptr(*next).to_bytes());
                next = next.add(1);
            }
            if is_about && libc::chdir(c"/".as_ptr()) == 0 {
                return;
            }
            libc::write(2, MESSAGE.as_ptr().cast(), MESSAGE.len());
            libc::_exit(2);
        }
    }
}
