//! The images of the processes of a run. Each process numbers its images in the order in which it
//! sees them (docs/lab/decisions/0037). Trajectories are sent with the hashes of the images in
//! their prompts, after the images that another process does not have.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tch::{Device, Kind as Dtype, Tensor};

use crate::error::{Error, Kind, Result};
use crate::mdp::{Trajectory, renumber_images};
use crate::process_group::ProcessGroup;
use crate::vision::{Grid, ImageBytes, Images, StoredImage, Video};

/// The images of this process, and which of them all processes have.
#[derive(Debug)]
pub(super) struct ImageExchange {
    images: Arc<Images>,
    exchanged: Mutex<ExchangedImages>,
}

#[derive(Debug, Default)]
struct ExchangedImages {
    /// Number of images that this process had at the last exchange.
    seen: usize,
    /// Hashes of the images that all processes have.
    everywhere: HashSet<String>,
}

/// An image that a process did not have at the last exchange.
#[derive(Serialize, Deserialize)]
struct NewImage {
    hash: String,
    grid: Grid,
    video: Option<Video>,
    /// Size of its file.
    bytes: i64,
}

impl ImageExchange {
    pub(super) fn new(images: &Arc<Images>) -> Self {
        Self { images: Arc::clone(images), exchanged: Mutex::default() }
    }

    /// The images that this process does not have and another one has. All processes call it at
    /// the same time, and [`insert`](Self::insert) afterwards. Of the processes with an image, the
    /// first one sends it.
    ///
    /// # Errors
    /// `Kind::Device` if another process has ended or does not answer in time.
    pub(super) fn receive(&self, group: &ProcessGroup) -> Result<Vec<StoredImage>> {
        let failed = |error: serde_json::Error| Error::new(Kind::Internal, format!("can't exchange images: {error}"));
        let mut exchanged = self.exchanged.lock().unwrap_or_else(PoisonError::into_inner);
        let added = self.images.since(exchanged.seen);
        exchanged.seen += added.len();
        let of = |image: &Arc<StoredImage>| {
            let StoredImage { hash, grid, video, .. } = &**image;
            let bytes = image.bytes()?.len() as i64;
            Ok(NewImage { hash: hash.clone(), grid: *grid, video: video.clone(), bytes })
        };
        let new = added.iter().filter(|image| !exchanged.everywhere.contains(&image.hash));
        let new = serde_json::to_vec(&new.map(of).collect::<Result<Vec<_>>>()?).map_err(failed)?;
        let read = |bytes: &Vec<u8>| serde_json::from_slice::<Vec<NewImage>>(bytes).map_err(failed);
        let all = group.gather(&new)?.iter().map(read).collect::<Result<Vec<_>>>()?;
        let mut holders: HashMap<String, usize> = HashMap::new();
        for image in all.iter().flatten() {
            *holders.entry(image.hash.clone()).or_default() += 1;
        }
        let mut received = Vec::new();
        for (rank, mut sent) in all.into_iter().enumerate() {
            sent.retain(|image| exchanged.everywhere.insert(image.hash.clone()) && holders[&image.hash] < group.size());
            received.extend(self.broadcast(group, rank, sent)?);
        }
        received.retain(|image| self.images.number(&image.hash).is_none());
        Ok(received)
    }

    /// Images of process `from`, with their files.
    fn broadcast(&self, group: &ProcessGroup, from: usize, sent: Vec<NewImage>) -> Result<Vec<StoredImage>> {
        let file = |image: &NewImage| match self.images.number(&image.hash).filter(|_| from == group.rank()) {
            Some(number) => Ok(Tensor::f_from_slice(&self.images.image(number)?.bytes()?)?),
            None => Ok(Tensor::f_zeros([image.bytes], (Dtype::Uint8, Device::Cpu))?),
        };
        let files = sent.iter().map(file).collect::<Result<Vec<_>>>()?;
        group.broadcast_tensors(&files, from)?;
        let stored = |(NewImage { hash, grid, video, .. }, file): (NewImage, Tensor)| {
            Ok(StoredImage { hash, grid, file: ImageBytes::Held(Vec::try_from(file)?), video })
        };
        sent.into_iter().zip(files).map(stored).collect()
    }

    /// Adds images that other processes have sent.
    ///
    /// # Errors
    /// `Kind::Store` if an image can't be written.
    pub(super) fn insert(&self, received: Vec<StoredImage>) -> Result<()> {
        received.into_iter().try_for_each(|image| self.images.insert(image).map(drop))
    }

    /// Numbers and hashes of the images in the prompts of trajectories of this process.
    pub(super) fn hashes(&self, trajectories: &mut [Trajectory]) -> Result<HashMap<u32, String>> {
        let mut hashes = HashMap::new();
        for trajectory in trajectories {
            renumber_images(trajectory, |number| {
                if let Entry::Vacant(vacant) = hashes.entry(number) {
                    vacant.insert(self.images.image(number)?.hash.clone());
                }
                Ok::<_, Error>(number)
            })?;
        }
        Ok(hashes)
    }

    /// Replaces the numbers of images in trajectories of another process by the numbers that they
    /// have here. `hashes` has the numbers of the other process.
    pub(super) fn renumber(&self, trajectories: &mut [Trajectory], hashes: &HashMap<u32, String>) -> Result<()> {
        let missing = |number| Error::new(Kind::Internal, format!("image {number} of another process is missing"));
        let number =
            |number: u32| hashes.get(&number).and_then(|hash| self.images.number(hash)).ok_or_else(|| missing(number));
        trajectories.iter_mut().try_for_each(|trajectory| renumber_images(trajectory, number))
    }
}
