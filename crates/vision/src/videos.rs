//! Videos: lists of frames, which are stored as images.
//!
//! The file of a video is a JSON object ([`Video`]). The sizes of frames are the ones of
//! transformers' video processors; frames are resized like images.

use r1_base::error::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::images::hash_of;
use crate::processor::resized;
use crate::{
    Grid, IMAGE_TOKENS, ImageBytes, ImageSizes, Images, Patches, Processor, RgbImage, StoredImage, decode,
    decode_frames,
};

/// Frames for each second, unless a message says otherwise; the number at which Qwen's models
/// sample videos.
pub const DEFAULT_FPS: f64 = 2.0;

/// Maximum number of frames of a video, as in transformers.
pub const MAX_FRAMES: usize = 768;

/// The frames of a video.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Video {
    /// Frames for each second.
    pub fps: f64,
    /// Hashes of the images.
    pub frames: Vec<String>,
    /// SHA-256 of the file that had the frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// What the text of a prompt has in the place of a video.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum VideoStyle {
    /// Its tokens, whose positions along time advance by `per_second` in a second (Qwen2.5-VL,
    /// arXiv:2502.13923).
    Positions { per_second: f64 },
    /// For each temporal patch its time, and its tokens like the tokens of an image (Qwen3-VL,
    /// arXiv:2511.21631; Qwen3.5).
    Timestamps,
}

/// The preprocessing of videos.
#[derive(Clone, Debug, PartialEq)]
pub struct VideoProcessor {
    style: VideoStyle,
    /// Values of pixels; the limits of pixels are for a frame, or for all frames of a video with
    /// timestamps.
    processor: Processor,
}

impl VideoProcessor {
    /// Reads `video_preprocessor_config.json`.
    ///
    /// # Errors
    /// As [`Processor::from_json`].
    pub fn from_json(json: &Value, style: VideoStyle) -> Result<Self> {
        let mut json = json.clone();
        if let Some(fields) = json.as_object_mut() {
            fields.insert("image_processor_type".to_owned(), "Qwen2VLImageProcessor".into());
            let side = if style == VideoStyle::Timestamps { 32 } else { 28 };
            let size = json!({ "shortest_edge": 128 * side * side, "longest_edge": 768 * side * side });
            fields.entry("size").or_insert(size);
        }
        let processor = Processor::from_json(&json)
            .map_err(|error| Error { place: Some("video_preprocessor_config.json".to_owned()), ..error })?;
        Ok(Self { style, processor })
    }

    /// Pixels of a patch along a side, frames of a patch, and patches along a side that become one
    /// token.
    pub fn patch_sizes(&self) -> [usize; 3] {
        let Processor { patch_size, temporal_patch_size, merge_size, .. } = self.processor;
        [patch_size, temporal_patch_size, merge_size]
    }

    /// The patches of a video of `count` frames of this size.
    fn grid(&self, count: usize, width: usize, height: usize) -> Result<Grid> {
        let [patch_size, temporal_patch_size, merge_size] = self.patch_sizes();
        let frames = count.div_ceil(temporal_patch_size);
        let ImageSizes::Pixels { min, max } = self.processor.sizes else { return Err(no_videos()) };
        if self.style != VideoStyle::Timestamps {
            return Ok(Grid { frames, ..self.processor.grid(width, height)? });
        }
        let factor = patch_size * merge_size;
        let scale = (factor as f64 / height as f64).max(factor as f64 / width as f64).max(1.0);
        let side = |side: usize| if scale > 1.0 { (side as f64 * scale) as usize } else { side };
        // One frame is a temporal patch of equal frames.
        let count = count.max(temporal_patch_size);
        let whole = (count as f64 / temporal_patch_size as f64).round_ties_even() as usize * temporal_patch_size;
        let (height, width) = resized((side(height), side(width)), factor, (min, max), [count, whole])?;
        Ok(Grid { frames, rows: height / patch_size, columns: width / patch_size, tiles: [0, 0] })
    }

    /// The patches of frames. The last frame is repeated until their number is a multiple of a
    /// temporal patch.
    fn patches(&self, grid: Grid, frames: impl Iterator<Item = Result<RgbImage>>) -> Result<Patches> {
        let resized = frames.map(|frame| Ok(self.processor.frame(&frame?, grid))).collect::<Result<Vec<_>>>()?;
        let count = grid.frames * self.processor.temporal_patch_size;
        let all: Vec<&RgbImage> = resized.iter().chain(resized.last().into_iter().cycle()).take(count).collect();
        Ok(self.processor.patches(grid, &all))
    }

    /// What is in the place of a video in a text, as [`Processor::text`].
    fn text(&self, grid: Grid, video: &Video) -> Vec<(String, usize)> {
        let ([start, _, end], all) = (IMAGE_TOKENS, self.processor.tokens(grid));
        if self.style != VideoStyle::Timestamps {
            return vec![(start.to_owned(), all), (end.to_owned(), 0)];
        }
        let (size, last) = (self.processor.temporal_patch_size, video.frames.len() - 1);
        let time = |frame: usize| frame.min(last) as f64 / video.fps;
        let mut pieces: Vec<(String, usize)> = (0..grid.frames)
            .map(|patch| {
                let middle = f64::midpoint(time(patch * size), time((patch + 1) * size - 1));
                let before = if patch > 0 { end } else { "" };
                (format!("{before}<{middle:.1} seconds>{start}"), all / grid.frames)
            })
            .collect();
        pieces.push((end.to_owned(), 0));
        pieces
    }
}

/// Tokens of an image or video that follow each other without text between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenGrid {
    pub frames: usize,
    pub rows: usize,
    pub columns: usize,
    /// Positions along time from a frame to the next one, in f32 as in the reference.
    pub interval: f32,
}

impl TokenGrid {
    /// Number of tokens.
    pub fn tokens(self) -> usize {
        self.frames * self.rows * self.columns
    }
}

impl Images {
    /// With the preprocessing of videos, if the model reads them.
    #[must_use]
    pub fn with_videos(mut self, videos: Option<VideoProcessor>) -> Self {
        self.videos = videos;
        self
    }

    /// Adds a video and returns its number. `frames` are numbers of images.
    ///
    /// # Errors
    /// [`Kind::Data`] for a model that reads no videos, no frame, too many of them, and frames of
    /// several sizes; as [`smart_resize`](crate::smart_resize); [`Kind::Store`] if the file can't
    /// be written.
    pub fn add_video(&self, frames: &[u32], fps: f64) -> Result<u32> {
        self.add_frames(frames, fps, None)
    }

    fn add_frames(&self, frames: &[u32], fps: f64, file: Option<String>) -> Result<u32> {
        let videos = self.videos.as_ref().ok_or_else(no_videos)?;
        check_fps(fps)?;
        if frames.is_empty() || frames.len() > MAX_FRAMES {
            return Err(invalid(format!("the video has {} frames; it can have 1 to {MAX_FRAMES}", frames.len())));
        }
        let hash = |number: &u32| Ok(self.image(*number)?.hash.clone());
        let video = Video { fps, frames: frames.iter().map(hash).collect::<Result<_>>()?, file };
        let bytes = serde_json::to_vec(&video).map_err(|error| Error::new(Kind::Internal, error.to_string()))?;
        let hash = hash_of(&bytes);
        if let Some(number) = self.number(&hash) {
            return Ok(number);
        }
        let size = |frame: Result<RgbImage>| frame.map(|frame| (frame.width, frame.height));
        let mut sizes = self.frames(&video).map(size);
        let (width, height) = sizes.next().unwrap_or(Ok((0, 0)))?;
        for (number, size) in (2..).zip(sizes) {
            let (other_width, other_height) = size?;
            if (width, height) != (other_width, other_height) {
                let other = format!("frame {number} has {other_width} x {other_height} pixels");
                return Err(invalid(format!("{other}, and the first {width} x {height}")));
            }
        }
        let grid = videos.grid(frames.len(), width, height)?;
        self.insert(StoredImage { hash, grid, file: ImageBytes::Held(bytes), video: Some(video) })
    }

    /// Adds the frames of a GIF, WebP or PNG file with several frames, `fps` (default
    /// [`DEFAULT_FPS`]) for each second.
    ///
    /// # Errors
    /// As [`add_video`](Self::add_video) and [`decode_frames`].
    pub fn add_video_file(&self, file: &[u8], fps: Option<f64>) -> Result<u32> {
        let (hash, fps) = (hash_of(file), fps.unwrap_or(DEFAULT_FPS));
        if let Some(number) = self.video_of(&hash, fps) {
            return Ok(number);
        }
        check_fps(fps)?;
        let frames = decode_frames(file, self.limits(), fps, MAX_FRAMES)?;
        let numbers = frames.iter().map(|frame| self.add_rgb(&frame.data, frame.width)).collect::<Result<Vec<_>>>()?;
        self.add_frames(&numbers, fps, Some(hash))
    }

    /// The video of a file with this SHA-256, if it is stored.
    pub fn video_of(&self, file: &str, fps: f64) -> Option<u32> {
        let is_it = |video: &Video| video.fps.to_bits() == fps.to_bits() && video.file.as_deref() == Some(file);
        let all = self.since(0);
        let number = all.iter().position(|image| image.video.as_ref().is_some_and(is_it))?;
        u32::try_from(number).ok()
    }

    /// Adds a video from its file in a run directory. Its frames were added before.
    pub(crate) fn add_stored_video(&self, file: &[u8]) -> Result<u32> {
        let damaged = |error| Error::new(Kind::Store, format!("the file of a video is damaged: {error}"));
        let video: Video = serde_json::from_slice(file).map_err(damaged)?;
        let numbers = video.frames.iter().map(|hash| self.frame(hash)).collect::<Result<Vec<_>>>()?;
        self.add_frames(&numbers, video.fps, video.file)
    }

    /// The number of a frame by its hash.
    fn frame(&self, hash: &str) -> Result<u32> {
        let missing = || Error::new(Kind::Store, format!("the frame {hash} of a video is missing"));
        self.number(hash).ok_or_else(missing)
    }

    /// The frames of a video.
    fn frames<'a>(&'a self, video: &'a Video) -> impl Iterator<Item = Result<RgbImage>> + use<'a> {
        video.frames.iter().map(|hash| decode(&self.image(self.frame(hash)?)?.bytes()?, self.limits()))
    }

    /// A video whose frames have at most `max_pixels` pixels.
    pub(crate) fn reduced_video(&self, video: &Video, max_pixels: usize) -> Result<u32> {
        let reduced = |hash: &String| self.reduced(self.frame(hash)?, max_pixels);
        let frames = video.frames.iter().map(reduced).collect::<Result<Vec<_>>>()?;
        self.add_video(&frames, video.fps)
    }

    /// Tokens of an image or video that follow each other; the tokens of a tile are one row.
    ///
    /// # Errors
    /// As [`image`](Self::image).
    pub fn token_grid(&self, number: u32) -> Result<TokenGrid> {
        let image = self.image(number)?;
        let (Grid { frames, rows, columns, .. }, merge) = (image.grid, self.processor().merge_size);
        let mut grid = TokenGrid { frames: 1, rows: rows / merge, columns: columns / merge, interval: 0.0 };
        match (&image.video, &self.videos) {
            (Some(video), Some(VideoProcessor { style: VideoStyle::Positions { per_second }, processor })) => {
                grid.frames = frames;
                grid.interval = *per_second as f32 * (processor.temporal_patch_size as f64 / video.fps) as f32;
            }
            (None, _) if matches!(self.processor().sizes, ImageSizes::Tiles(_)) => {
                (grid.rows, grid.columns) = (1, grid.tokens());
            }
            _ => {}
        }
        Ok(grid)
    }

    /// What is in the place of an image or video in a text (see [`Processor::text`]).
    ///
    /// # Errors
    /// As [`image`](Self::image).
    pub fn text(&self, number: u32) -> Result<Vec<(String, usize)>> {
        let image = self.image(number)?;
        Ok(match (&image.video, &self.videos) {
            (Some(video), Some(videos)) => videos.text(image.grid, video),
            _ => self.processor().text(image.grid),
        })
    }

    /// The input of the vision tower for an image or video, computed from its files.
    ///
    /// # Errors
    /// As [`image`](Self::image).
    pub fn patches(&self, number: u32) -> Result<Patches> {
        let image = self.image(number)?;
        match (&image.video, &self.videos) {
            (Some(video), Some(videos)) => videos.patches(image.grid, self.frames(video)),
            _ => self.processor().image(&decode(&image.bytes()?, self.limits())?),
        }
    }
}

fn check_fps(fps: f64) -> Result<()> {
    if (0.001..=1000.0).contains(&fps) {
        return Ok(());
    }
    Err(invalid(format!("`fps` of the video is {fps}; it must be from 0.001 to 1000")))
}

fn invalid(message: String) -> Error {
    Error::new(Kind::Data, message)
}

fn no_videos() -> Error {
    invalid("the model reads no videos".to_owned()).hint("give it some of the frames as images")
}
