//! A command that runs beside a test, which waits for what it prints and writes.

use std::cell::RefCell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use super::r1;

/// Its output is in files of the directory. It is killed when the value is dropped.
pub(crate) struct Running {
    child: RefCell<Child>,
    dir: PathBuf,
}

impl Running {
    pub(crate) fn start(dir: &Path, args: &[&str]) -> Self {
        Self::of(r1(dir, args), dir)
    }

    pub(crate) fn of(command: impl Into<Command>, dir: &Path) -> Self {
        let mut command = command.into();
        let file = |name: &str| File::create(dir.join(name)).unwrap();
        let child = command.stdout(file("stdout")).stderr(file("stderr")).spawn().unwrap();
        Self { child: RefCell::new(child), dir: dir.to_owned() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.borrow().id()
    }

    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(self.dir.join("stderr")).unwrap()
    }

    /// Waits until a condition holds.
    ///
    /// # Panics
    /// If the command ends before, or after ten minutes.
    pub(crate) fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let begun = Instant::now();
        loop {
            // Asked before the condition, which may have come true as the last thing.
            let ended = self.child.borrow_mut().try_wait().unwrap();
            if holds() {
                return;
            }
            assert!(ended.is_none(), "{what}: the command has ended: {}", self.stderr());
            assert!(begun.elapsed() < Duration::from_mins(10), "{what} does not appear: {}", self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for a text in its stderr.
    pub(crate) fn until_reported(&self, text: &str) {
        let path = self.dir.join("stderr");
        self.until(text, || fs::read_to_string(&path).unwrap().contains(text));
    }

    /// Waits until a file has a number of complete lines.
    pub(crate) fn until_lines(&self, file: &Path, count: usize) {
        let lines = || fs::read_to_string(file).map_or(0, |text| text.matches('\n').count());
        self.until(&format!("line {count} of {}", file.display()), || lines() >= count);
    }

    pub(crate) fn send(&self, signal: libc::c_int) {
        // SAFETY: no pointers; the process is a child that has not been waited for.
        unsafe { libc::kill(i32::try_from(self.child.borrow().id()).unwrap(), signal) };
    }

    pub(crate) fn is_running(&self) -> bool {
        self.child.borrow_mut().try_wait().unwrap().is_none()
    }

    /// Waits for its end.
    pub(crate) fn end(self) -> Output {
        let status = self.child.borrow_mut().wait().unwrap();
        let read = |name: &str| fs::read(self.dir.join(name)).unwrap();
        Output { status, stdout: read("stdout"), stderr: read("stderr") }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let child = self.child.get_mut();
        let _ = child.kill();
        let _ = child.wait();
    }
}
