//! The files of a model before they are written.
//!
//! Their tensors share the memory of the model and are not copied. Another thread can write them
//! while the model samples; the weights must not change until they are written.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tch::Tensor;

use super::stored::{StoredTensor, is_finite};
use super::weights::{self, ShardLimits};
use r1_base::error::{Error, Kind, Result};

/// A file before it is written, or the weight files of a model.
#[derive(Debug)]
pub struct UnwrittenFile {
    /// Relative to the directory of [`write`](Self::write).
    path: PathBuf,
    content: UnwrittenContent,
    /// The kind of its tensors in an error, such as `the weight`.
    what: &'static str,
}

#[derive(Debug)]
enum UnwrittenContent {
    /// One file, or shards, in the folder of the path.
    Weights(Vec<StoredTensor>, ShardLimits),
    Tensors(Vec<StoredTensor>),
    Bytes(Vec<u8>),
}

impl UnwrittenFile {
    /// A safetensors file. `what` is the kind of its tensors in an error.
    pub fn tensors(path: impl Into<PathBuf>, what: &'static str, tensors: &[(String, Tensor)]) -> Self {
        Self { path: path.into(), content: UnwrittenContent::Tensors(StoredTensor::all(tensors)), what }
    }

    /// Any other file.
    pub fn bytes(path: impl Into<PathBuf>, bytes: Vec<u8>) -> Self {
        Self { path: path.into(), content: UnwrittenContent::Bytes(bytes), what: "" }
    }

    /// The weights of a model in the directory itself.
    pub(super) fn weights(tensors: Vec<StoredTensor>, bytes: u64) -> Self {
        let content = UnwrittenContent::Weights(tensors, ShardLimits { bytes, part: (0, 1) });
        Self { path: PathBuf::new(), content, what: "the weight" }
    }

    /// What process `rank` of `size` writes: every `size`-th shard of weights. The first one also
    /// writes all other files; `None` for the others.
    pub fn of_rank(mut self, rank: usize, size: usize) -> Option<Self> {
        if let UnwrittenContent::Weights(_, limits) = &mut self.content {
            limits.part = (rank, size);
            return Some(self);
        }
        (rank == 0).then_some(self)
    }

    /// The file in this folder.
    #[must_use]
    pub fn within(self, folder: impl AsRef<Path>) -> Self {
        Self { path: folder.as_ref().join(self.path), ..self }
    }

    /// The file with another kind of tensors in an error.
    #[must_use]
    pub fn labelled(self, what: &'static str) -> Self {
        Self { what, ..self }
    }

    /// # Errors
    /// `Kind::Numeric` names a tensor that contains NaN or infinity.
    pub fn require_finite(&self) -> Result<()> {
        let (UnwrittenContent::Weights(tensors, _) | UnwrittenContent::Tensors(tensors)) = &self.content else {
            return Ok(());
        };
        for stored in tensors {
            for part in stored.parts().into_iter().filter(|part| part.is_floating_point()) {
                if !is_finite(part)? {
                    let message = format!("{} `{}` contains NaN or infinity", self.what, stored.name);
                    return Err(Error::new(Kind::Numeric, message));
                }
            }
        }
        Ok(())
    }

    /// Writes the file into `dir`, and makes the folders of its path below `dir`.
    ///
    /// # Errors
    /// `Kind::Store` with the path.
    pub fn write(&self, dir: &Path) -> Result<()> {
        self.write_with(dir, true)
    }

    /// [`write`](Self::write) without a sync, for a directory that is synced as a whole.
    ///
    /// # Errors
    /// `Kind::Store` with the path.
    pub fn write_unsynced(&self, dir: &Path) -> Result<()> {
        self.write_with(dir, false)
    }

    fn write_with(&self, dir: &Path, sync: bool) -> Result<()> {
        let (path, mut folder) = (dir.join(&self.path), dir.to_owned());
        let parts = match self.content {
            UnwrittenContent::Weights(..) => self.path.as_path(),
            _ => self.path.parent().unwrap_or(Path::new("")),
        };
        for part in parts {
            folder.push(part);
            make_dir(&folder)?;
        }
        match &self.content {
            UnwrittenContent::Weights(tensors, limits) => weights::write(&folder, tensors, *limits, sync),
            UnwrittenContent::Tensors(tensors) => weights::write_stored(&path, tensors, sync),
            UnwrittenContent::Bytes(bytes) => weights::write_bytes(&path, bytes, sync),
        }
    }
}

/// Makes a directory if it does not exist. The one above it must exist: if the directory of a run
/// is moved away, it is not made again.
///
/// # Errors
/// `Kind::Store` with the path.
pub(super) fn make_dir(dir: &Path) -> Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        made => made.map_err(|error| Error::io(Kind::Store, "make the directory", dir, &error)),
    }
}

/// Writes files into `dir`, which is made if the directory above it exists.
///
/// # Errors
/// `Kind::Store` with the path.
pub(super) fn write_all(files: &[UnwrittenFile], dir: &Path) -> Result<()> {
    make_dir(dir)?;
    files.iter().try_for_each(|file| file.write(dir))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tensors_that_are_not_finite_are_named() {
        use tch::Kind as Type;
        let file = |value: f32, kind: Type, is_contiguous: bool| {
            let pair = Tensor::from_slice(&[-1.0_f32, value, 0.5, f32::MIN_POSITIVE]).view([2, 2]).to_kind(kind);
            let w = if is_contiguous { pair } else { pair.tr() };
            let tensors = [("step".to_owned(), Tensor::from_slice(&[3_i64])), ("w".to_owned(), w)];
            UnwrittenFile::tensors("a.safetensors", "the weight", &tensors)
        };
        for (kind, largest) in
            [(Type::Float, f32::MAX), (Type::BFloat16, 3.3e38), (Type::Half, 65504.0), (Type::Double, f32::MAX)]
        {
            for is_contiguous in [true, false] {
                for good in [2.0, largest, -largest] {
                    file(good, kind, is_contiguous).require_finite().unwrap();
                }
                for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let error = file(bad, kind, is_contiguous).require_finite().unwrap_err();
                    assert_eq!(error.kind, Kind::Numeric);
                    assert!(error.message.starts_with("the weight `w` contains NaN"), "{error:?}");
                }
            }
        }
    }

    #[test]
    fn folders_are_made_below_a_directory_that_exists() {
        let dir = tempfile::tempdir().unwrap();
        let file = UnwrittenFile::bytes("b/c.json", b"{}".to_vec()).within("a");
        file.write(dir.path()).unwrap();
        assert_eq!(fs::read(dir.path().join("a/b/c.json")).unwrap(), b"{}");
        let gone = dir.path().join("gone");
        assert_eq!(file.write(&gone).unwrap_err().kind, Kind::Store);
        assert!(write_all(&[file], &gone.join("model")).is_err() && !gone.exists());
    }
}
