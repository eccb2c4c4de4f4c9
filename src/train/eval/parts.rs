//! Trajectories of an evaluation on disk as they end, so that a kill loses about one second of
//! them. A thread writes small files, which are removed when the whole file of the evaluation is
//! written.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Error, Kind, Result};
use crate::mdp::Trajectory;
use crate::rollout::OnFinished;
use crate::store::{read_trajectories, write_trajectories};

/// Trajectories that end within this time are written together.
const TOGETHER: Duration = Duration::from_secs(1);
/// The folder in `evaluations/`.
const FOLDER: &str = "unmerged";

/// The files of trajectories that are not in the file of the evaluation yet.
pub(crate) struct SampleFiles {
    folder: PathBuf,
    /// Number of the next file.
    next: usize,
}

impl SampleFiles {
    /// Those next to the evaluation's `file`.
    pub(crate) fn beside(file: &Path) -> Self {
        Self { folder: file.with_file_name(FOLDER), next: 0 }
    }

    /// Reads them. Files from a kill while they were written are left out by their names.
    pub(crate) fn read(&mut self) -> Result<Vec<Trajectory>> {
        let mut trajectories = Vec::new();
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<usize>().ok());
            let Some(number) = number.filter(|_| path.extension().is_some_and(|end| end == "parquet")) else {
                continue;
            };
            trajectories.extend(read_trajectories(&path)?);
            self.next = self.next.max(number + 1);
        }
        Ok(trajectories)
    }

    /// Removes them, after their trajectories are in the file of the evaluation.
    pub(crate) fn remove(&mut self) -> Result<()> {
        match std::fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io(Kind::Store, "clear away the directory", &self.folder, &error))
            }
            _ => Ok(()),
        }
    }

    /// Starts to write trajectories that end.
    pub(crate) fn write(&mut self) -> Result<PartWriter> {
        let failed = |error: &std::io::Error| Error::io(Kind::Store, "make the directory", &self.folder, error);
        std::fs::create_dir_all(&self.folder).map_err(|error| failed(&error))?;
        let (sender, receiver) = channel();
        let (folder, first) = (self.folder.clone(), self.next);
        let body = move || write_all(&folder, first, &receiver);
        let thread = std::thread::Builder::new().name("eval-parts".to_owned()).spawn(body);
        let thread = thread.map_err(|error| Error::new(Kind::Internal, format!("can't start a thread: {error}")))?;
        Ok(PartWriter { sender, thread })
    }
}

/// The thread that writes.
pub(crate) struct PartWriter {
    /// `None` ends the thread: workers may hold a [`OnFinished`] for longer.
    sender: Sender<Option<Trajectory>>,
    thread: JoinHandle<Result<usize>>,
}

impl PartWriter {
    /// Receives the trajectories.
    pub(crate) fn progress(&self) -> OnFinished {
        let sender = self.sender.clone();
        std::sync::Arc::new(move |trajectory| drop(sender.send(Some(trajectory.clone()))))
    }

    /// Waits until everything is written.
    pub(crate) fn finish(self, parts: &mut SampleFiles) -> Result<()> {
        // The thread has ended already if it failed.
        let _ = self.sender.send(None);
        let panicked = || Err(Error::new(Kind::Internal, "the thread that writes trajectories has stopped"));
        parts.next = self.thread.join().unwrap_or_else(|_| panicked())?;
        Ok(())
    }
}

/// Writes until the end; the number of the next file.
fn write_all(folder: &Path, first: usize, receiver: &Receiver<Option<Trajectory>>) -> Result<usize> {
    let mut number = first;
    let mut ended = false;
    while !ended && let Ok(Some(trajectory)) = receiver.recv() {
        let (mut together, until) = (vec![trajectory], Instant::now() + TOGETHER);
        ended = loop {
            match receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Some(trajectory)) => together.push(trajectory),
                Err(RecvTimeoutError::Timeout) => break false,
                Ok(None) | Err(RecvTimeoutError::Disconnected) => break true,
            }
        };
        write_trajectories(&folder.join(format!("{number:06}.parquet")), 0, &together)?;
        number += 1;
    }
    Ok(number)
}
