//! The images and videos of a run. Each is stored once, by the SHA-256 of its file, and has a
//! number. In a directory its file is NUMBER-HASH.EXTENSION.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use image::ImageFormat;

use r1_base::error::{Error, Kind, Result};
use sha2::{Digest, Sha256};

use crate::{DecodeLimits, Filter, Grid, Processor, Video, VideoProcessor, decode, resize};

/// An image or video of a run.
#[derive(Clone, Debug)]
pub struct StoredImage {
    /// SHA-256 of the file, in hexadecimal digits.
    pub hash: String,
    pub grid: Grid,
    /// The file as it was given.
    pub file: ImageBytes,
    /// `None` for an image.
    pub video: Option<Video>,
}

/// The bytes of the file of an image.
#[derive(Clone, Debug)]
pub enum ImageBytes {
    Held(Vec<u8>),
    /// The path in the run directory.
    Stored(PathBuf),
}

impl StoredImage {
    /// The bytes of the file.
    ///
    /// # Errors
    /// [`Kind::Store`] if it can't be read.
    pub fn bytes(&self) -> Result<Cow<'_, [u8]>> {
        match &self.file {
            ImageBytes::Held(bytes) => Ok(Cow::Borrowed(bytes)),
            ImageBytes::Stored(path) => {
                let file = fs::read(path).map_err(|error| Error::io(Kind::Store, "read the image", path, &error))?;
                Ok(Cow::Owned(file))
            }
        }
    }
}

const HELD_BYTES: usize = 256 << 20;

/// Extension of the files of videos.
const VIDEO_EXTENSION: &str = "json";

/// The images of a run by number and by hash, for all threads.
#[derive(Debug)]
pub struct Images {
    processor: Processor,
    /// `None` for a model that reads no videos.
    pub(crate) videos: Option<VideoProcessor>,
    limits: DecodeLimits,
    table: RwLock<ImageTable>,
    /// Bytes of files that are held in memory. Files above them are read from the run directory
    /// when they are needed.
    pub(crate) held_limit: usize,
}

#[derive(Debug, Default)]
struct ImageTable {
    images: Vec<Arc<StoredImage>>,
    numbers: HashMap<String, u32>,
    /// The directory of their files.
    dir: Option<PathBuf>,
    held_bytes: usize,
}

impl Images {
    /// Without images. `processor` is the one of the model.
    pub fn new(processor: Processor, limits: DecodeLimits) -> Self {
        Self { processor, videos: None, limits, table: RwLock::default(), held_limit: HELD_BYTES }
    }

    /// The preprocessing of the images.
    pub fn processor(&self) -> &Processor {
        &self.processor
    }

    pub(crate) fn limits(&self) -> &DecodeLimits {
        &self.limits
    }

    /// Adds the file of an image and returns its number; an equal file has the number of the first.
    ///
    /// # Errors
    /// As [`decode()`] and [`Processor::grid`]; [`Kind::Store`] if the file can't be written.
    pub fn add(&self, file: &[u8]) -> Result<u32> {
        let hash = hash_of(file);
        if let Some(number) = self.number(&hash) {
            return Ok(number);
        }
        let image = decode(file, &self.limits)?;
        let grid = self.processor.grid(image.width, image.height)?;
        self.insert(StoredImage { hash, grid, file: ImageBytes::Held(file.to_vec()), video: None })
    }

    /// Adds an image of another process, which has decoded it, and returns its number here.
    ///
    /// # Errors
    /// [`Kind::Store`] if the file can't be written.
    pub fn insert(&self, mut image: StoredImage) -> Result<u32> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = table.numbers.get(&image.hash) {
            return Ok(*number);
        }
        let number = u32::try_from(table.images.len()).ok().filter(|number| *number < 1 << 31);
        let number = number.ok_or_else(|| Error::new(Kind::Data, "a run can't have more than 2^31 images"))?;
        let size = image.bytes()?.len();
        if let Some(dir) = &table.dir {
            let path = write(dir, number, &image)?;
            if table.held_bytes + size > self.held_limit {
                image.file = ImageBytes::Stored(path);
            }
        }
        if matches!(image.file, ImageBytes::Held(_)) {
            table.held_bytes += size;
        }
        table.numbers.insert(image.hash.clone(), number);
        table.images.push(Arc::new(image));
        Ok(number)
    }

    /// Adds an image of pixels, three bytes each, row by row, as a PNG file. `width` is the number
    /// of pixels of a row.
    ///
    /// # Errors
    /// As [`add`](Self::add); [`Kind::Data`] for bytes that are not whole rows.
    pub fn add_rgb(&self, data: &[u8], width: usize) -> Result<u32> {
        let height = data.len() / 3 / width.max(1);
        if height == 0 || data.len() != 3 * width * height {
            let message = format!("{} bytes are not rows of {width} pixels with three bytes each", data.len());
            return Err(Error::new(Kind::Data, message));
        }
        let size = |side: usize| u32::try_from(side).unwrap_or(u32::MAX);
        let (mut file, color) = (Cursor::new(Vec::new()), image::ExtendedColorType::Rgb8);
        image::write_buffer_with_format(&mut file, data, size(width), size(height), color, ImageFormat::Png)
            .map_err(|error| Error::new(Kind::Data, format!("can't write the image: {error}")))?;
        self.add(file.get_ref())
    }

    /// The number of an image with at most `max_pixels` pixels: the image itself, or a smaller one
    /// with about the same quotient of its sides, by Pillow's bicubic resampling. The frames of a
    /// video are reduced one by one.
    ///
    /// # Errors
    /// As [`image`](Self::image) and [`add`](Self::add).
    pub fn reduced(&self, number: u32, max_pixels: usize) -> Result<u32> {
        let stored = self.image(number)?;
        if let Some(video) = &stored.video {
            return self.reduced_video(video, max_pixels);
        }
        let image = decode(&stored.bytes()?, &self.limits)?;
        let pixels = image.width * image.height;
        if pixels <= max_pixels {
            return Ok(number);
        }
        let scale = (max_pixels as f64 / pixels as f64).sqrt();
        let side = |side: usize| ((side as f64 * scale) as usize).max(1);
        let smaller = resize(&image, side(image.width), side(image.height), Filter::Bicubic);
        self.add_rgb(&smaller.data, smaller.width)
    }

    /// Reads the images that a run stored in `dir`, before others are added. They have the numbers
    /// that they had in the run. A missing directory has none.
    ///
    /// # Errors
    /// [`Kind::Store`] for a file that is damaged or missing.
    pub fn read_from(&self, dir: &Path) -> Result<()> {
        let failed = |why: String| Error::new(Kind::Store, why).at_path(dir);
        let mut files = Vec::new();
        for entry in fs::read_dir(dir).into_iter().flatten() {
            let name = entry.map_err(|error| failed(error.to_string()))?.file_name();
            let stem = name.to_str().and_then(|name| name.split_once('.')).and_then(|(stem, _)| stem.split_once('-'));
            let number = stem.and_then(|(number, hash)| Some((number.parse::<usize>().ok()?, hash.to_owned())));
            files.extend(number.map(|(number, hash)| (number, hash, dir.join(&name))));
        }
        files.sort();
        // While they are read, their files are known to be here.
        self.set_dir(Some(dir));
        let each = files.into_iter().enumerate().map(|(index, (number, hash, path))| {
            let file = fs::read(&path).map_err(|error| Error::io(Kind::Store, "read the image", &path, &error))?;
            let is_video = path.extension().is_some_and(|extension| extension == VIDEO_EXTENSION);
            let add = || if is_video { self.add_stored_video(&file) } else { self.add(&file) };
            if number != index || hash_of(&file) != hash || add()? as usize != index {
                let message = "the stored images of the run are damaged, or one is missing";
                return Err(Error::new(Kind::Store, message).at_path(&path));
            }
            Ok(())
        });
        let read = each.collect();
        self.set_dir(None);
        read
    }

    fn set_dir(&self, dir: Option<&Path>) {
        self.table.write().unwrap_or_else(PoisonError::into_inner).dir = dir.map(Path::to_owned);
    }

    /// Stores the images in `dir`. An image that is added later is stored when it is added.
    ///
    /// # Errors
    /// [`Kind::Store`] with the path.
    pub fn store_in(&self, dir: &Path) -> Result<()> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        for (number, image) in (0..).zip(&table.images) {
            write(dir, number, image)?;
        }
        table.dir = Some(dir.to_owned());
        Ok(())
    }

    /// The number of an image by its hash.
    pub fn number(&self, hash: &str) -> Option<u32> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).numbers.get(hash).copied()
    }

    /// Whether no image was added.
    pub fn is_empty(&self) -> bool {
        self.table.read().unwrap_or_else(PoisonError::into_inner).images.is_empty()
    }

    /// The images from number `first` on.
    pub fn since(&self, first: usize) -> Vec<Arc<StoredImage>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.images.get(first..).unwrap_or_default().to_vec()
    }

    /// An image by its number.
    ///
    /// # Errors
    /// [`Kind::Internal`] for a number without an image.
    pub fn image(&self, number: u32) -> Result<Arc<StoredImage>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let image = table.images.get(number as usize).cloned();
        image.ok_or_else(|| Error::new(Kind::Internal, format!("there is no image {number}")))
    }

    /// The media type, such as `image/png`, and the file in base64 of an image, or of each frame of
    /// a video.
    ///
    /// # Errors
    /// [`Kind::Env`] for an unknown hash.
    pub fn encoded(&self, hash: &str) -> Result<Vec<(&'static str, String)>> {
        let unknown = |hash: &str| Error::new(Kind::Env, format!("there is no image {hash}"));
        let image = |hash: &str| self.image(self.number(hash).ok_or_else(|| unknown(hash))?);
        let whole = image(hash)?;
        let all = whole.video.as_ref().map_or(vec![hash], |video| video.frames.iter().map(String::as_str).collect());
        let encode = |hash: &str| {
            let image = image(hash)?;
            let file = image.bytes()?;
            let media_type = image::guess_format(&file).map_or("image/png", |format| format.to_mime_type());
            Ok((media_type, BASE64_STANDARD.encode(&file)))
        };
        all.into_iter().map(encode).collect()
    }

    /// Tokens of the language model in the place of an image or video.
    ///
    /// # Errors
    /// As [`image`](Self::image).
    pub fn tokens(&self, number: u32) -> Result<usize> {
        Ok(self.processor.tokens(self.image(number)?.grid))
    }
}

/// SHA-256 in hexadecimal digits.
pub(crate) fn hash_of(file: &[u8]) -> String {
    Sha256::digest(file).iter().fold(String::with_capacity(64), |mut hash, byte| {
        // Writing to a string can't fail.
        let _ = write!(hash, "{byte:02x}");
        hash
    })
}

/// Writes the file of an image, unless it is there, and returns its path.
fn write(dir: &Path, number: u32, image: &StoredImage) -> Result<PathBuf> {
    let bytes = image.bytes()?;
    let extension = match image.video {
        Some(_) => VIDEO_EXTENSION,
        None => image::guess_format(&bytes).map_or("img", |format| format.extensions_str()[0]),
    };
    let path = dir.join(format!("{number:06}-{}.{extension}", image.hash));
    let failed = |error: &std::io::Error| Error::io(Kind::Store, "write the image", &path, error);
    if path.exists() {
        return Ok(path);
    }
    fs::create_dir_all(dir).map_err(|error| failed(&error))?;
    let unfinished = dir.join(format!(".{number:06}.unfinished"));
    let written = fs::File::create(&unfinished).and_then(|mut file| {
        std::io::Write::write_all(&mut file, &bytes)?;
        file.sync_all()
    });
    written.and_then(|()| fs::rename(&unfinished, &path)).map_err(|error| failed(&error))?;
    Ok(path)
}
