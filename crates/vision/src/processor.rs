//! The image processors of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5, and of Idefics3 and SmolVLM:
//! from pixels to the patches that the vision tower reads.

use r1_base::error::{Error, Kind, Result, suggest};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::tiles::{AROUND, TILE_TOKEN, TileSizes, texts};
use crate::{Filter, RgbImage, resize};

const CHANNELS: usize = 3;
/// Largest quotient of the sides, as in the reference.
const LONGEST: f64 = 200.0;

/// Values of `image_processor_type`; they may end with `Fast` or `Pil`.
const TYPES: [&str; 3] = ["Qwen2VLImageProcessor", "Idefics3ImageProcessor", "SmolVLMImageProcessor"];

/// Tokens of Qwen's models: before the tokens of an image, in their place, and after them.
pub const IMAGE_TOKENS: [&str; 3] = ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>"];

/// The same for a video.
pub const VIDEO_TOKENS: [&str; 3] = ["<|vision_start|>", "<|video_pad|>", "<|vision_end|>"];

/// Patches along time, height and width, before they are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grid {
    /// Pairs of frames of a video, or tiles of an image.
    pub frames: usize,
    pub rows: usize,
    pub columns: usize,
    /// Rows and columns of tiles; 0 for an image that is not divided.
    pub tiles: [usize; 2],
}

impl Grid {
    /// Number of patches.
    pub fn patches(self) -> usize {
        self.frames * self.rows * self.columns
    }
}

/// The input of the vision tower for one image or video.
#[derive(Clone, Debug, PartialEq)]
pub struct Patches {
    pub grid: Grid,
    /// `[patches, channels * temporal_patch_size * patch_size * patch_size]`, row by row. Patches
    /// that are merged into one token follow each other.
    pub values: Vec<f32>,
}

/// The sizes to which images are resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageSizes {
    /// Numbers of pixels ([`smart_resize`]).
    Pixels {
        min: usize,
        max: usize,
    },
    Tiles(TileSizes),
}

/// The settings of a processor, from `preprocessor_config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Processor {
    pub patch_size: usize,
    pub temporal_patch_size: usize,
    /// Patches along each side that become one token.
    pub merge_size: usize,
    pub sizes: ImageSizes,
    pub rescale_factor: f64,
    pub mean: [f32; CHANNELS],
    pub std: [f32; CHANNELS],
}

/// The fields of the file that are read.
#[derive(Deserialize)]
struct ProcessorFields {
    image_processor_type: Option<String>,
    patch_size: usize,
    temporal_patch_size: Option<usize>,
    #[serde(default = "two")]
    merge_size: usize,
    min_pixels: Option<usize>,
    max_pixels: Option<usize>,
    size: Option<EdgeLimits>,
    #[serde(default = "per_level")]
    rescale_factor: f64,
    image_mean: [f32; CHANNELS],
    image_std: [f32; CHANNELS],
    resample: Option<u8>,
    do_resize: Option<bool>,
    do_rescale: Option<bool>,
    do_normalize: Option<bool>,
}

#[derive(Deserialize)]
struct EdgeLimits {
    shortest_edge: Option<usize>,
    longest_edge: Option<usize>,
}

fn two() -> usize {
    2
}

fn per_level() -> f64 {
    1.0 / 255.0
}

impl Processor {
    /// Reads `preprocessor_config.json`.
    ///
    /// # Errors
    /// [`Kind::Model`] for a file of another processor, and names a field that is missing, has
    /// another type, or a value that is not supported.
    pub fn from_json(json: &Value) -> Result<Self> {
        let wrong = |message: String| Error::new(Kind::Model, message).at("preprocessor_config.json");
        let fields = ProcessorFields::deserialize(json).map_err(|error| wrong(error.to_string()))?;
        let name = fields.image_processor_type.as_deref().unwrap_or(TYPES[0]);
        let short = ["Fast", "Pil"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        if !TYPES.contains(&short) {
            let message = format!("image_processor_type `{name}` is not supported");
            return Err(wrong(message).hint(suggest(name, TYPES)));
        }
        for (name, value) in
            [("do_resize", fields.do_resize), ("do_rescale", fields.do_rescale), ("do_normalize", fields.do_normalize)]
        {
            if value == Some(false) {
                return Err(wrong(format!("`{name}` = false is not supported")));
            }
        }
        let (patch, merge) = (fields.patch_size, fields.merge_size);
        let frames = fields.temporal_patch_size.unwrap_or(if short == TYPES[0] { 2 } else { 1 });
        let size = fields.size.as_ref();
        let min = fields.min_pixels.or(size.and_then(|size| size.shortest_edge)).unwrap_or(56 * 56);
        let max = fields.max_pixels.or(size.and_then(|size| size.longest_edge)).unwrap_or(28 * 28 * 1280);
        let numbers = [patch, frames, merge, min, max];
        if numbers.contains(&0) || numbers.iter().any(|size| *size > 1 << 30) || min > max && short == TYPES[0] {
            return Err(wrong(format!(
                "patch_size, temporal_patch_size, merge_size, min_pixels and max_pixels are {numbers:?}"
            )));
        }
        let sizes = if short != TYPES[0] {
            ImageSizes::Tiles(TileSizes::from_json(json, patch, merge)?)
        } else if let Some(resample) = fields.resample.filter(|resample| *resample != 3) {
            return Err(wrong(format!("`resample` = {resample} is not supported")).hint("3 is bicubic"));
        } else {
            ImageSizes::Pixels { min, max }
        };
        let std = fields.image_std;
        if std.contains(&0.0) {
            return Err(wrong("`image_std` has a 0".to_owned()));
        }
        Ok(Self {
            patch_size: patch,
            temporal_patch_size: frames,
            merge_size: merge,
            sizes,
            rescale_factor: fields.rescale_factor,
            mean: fields.image_mean,
            std,
        })
    }

    /// The patches of an image of this size.
    ///
    /// # Errors
    /// As [`smart_resize`].
    pub fn grid(&self, width: usize, height: usize) -> Result<Grid> {
        let (min, max) = match self.sizes {
            ImageSizes::Pixels { min, max } => (min, max),
            ImageSizes::Tiles(sizes) => {
                let (tiles, side) = (sizes.grid(width, height), sizes.tile / self.patch_size);
                let [rows, columns] = tiles;
                return Ok(Grid { frames: rows * columns + 1, rows: side, columns: side, tiles });
            }
        };
        let factor = self.patch_size * self.merge_size;
        let (height, width) = smart_resize((height, width), factor, (min, max))?;
        Ok(Grid { frames: 1, rows: height / self.patch_size, columns: width / self.patch_size, tiles: [0, 0] })
    }

    /// The special tokens of an image in a text: before its tokens, in their place, and after them.
    /// The text of tiles has other tokens between them.
    pub fn special_tokens(&self) -> [&'static str; 3] {
        match self.sizes {
            ImageSizes::Pixels { .. } => IMAGE_TOKENS,
            ImageSizes::Tiles(_) => [AROUND, TILE_TOKEN, AROUND],
        }
    }

    /// What a chat template prints for an image.
    pub fn template_text(&self) -> String {
        match self.sizes {
            ImageSizes::Pixels { .. } => IMAGE_TOKENS.concat(),
            ImageSizes::Tiles(_) => TILE_TOKEN.to_owned(),
        }
    }

    /// What is in the place of an image of this grid in a text, in order: text, and the number of
    /// tokens of the image after it.
    pub fn text(&self, grid: Grid) -> Vec<(String, usize)> {
        let [before, _, after] = self.special_tokens();
        let texts = match self.sizes {
            ImageSizes::Pixels { .. } => vec![before.to_owned()],
            ImageSizes::Tiles(_) => texts(grid.tiles),
        };
        let tokens = self.tokens(grid) / texts.len();
        let mut pieces: Vec<(String, usize)> = texts.into_iter().map(|text| (text, tokens)).collect();
        pieces.push((after.to_owned(), 0));
        pieces
    }

    /// Tokens of the language model in the place of an image or video.
    pub fn tokens(&self, grid: Grid) -> usize {
        grid.patches() / (self.merge_size * self.merge_size)
    }

    /// The patches of an image.
    ///
    /// # Errors
    /// As [`smart_resize`].
    pub fn image(&self, image: &RgbImage) -> Result<Patches> {
        let grid = self.grid(image.width, image.height)?;
        if let ImageSizes::Tiles(sizes) = self.sizes {
            return Ok(self.patches(grid, &sizes.tiles(image).iter().collect::<Vec<_>>()));
        }
        let frame = self.frame(image, grid);
        Ok(self.patches(grid, &vec![&frame; self.temporal_patch_size]))
    }

    /// A frame in the size of its patches.
    pub(crate) fn frame(&self, image: &RgbImage, grid: Grid) -> RgbImage {
        resize(image, grid.columns * self.patch_size, grid.rows * self.patch_size, Filter::Bicubic)
    }

    /// The value of each level of a channel: rescaled in f64, then normalised in f32, as the
    /// reference does.
    fn levels(&self, channel: usize) -> [f32; 256] {
        let value = |level: usize| (level as f64 * self.rescale_factor) as f32;
        std::array::from_fn(|level| (value(level) - self.mean[channel]) / self.std[channel])
    }

    /// The patches of frames. Pixels at the right and at the bottom that are no whole patch are
    /// left out.
    pub(crate) fn patches(&self, grid: Grid, frames: &[&RgbImage]) -> Patches {
        let size = self.patch_size;
        let levels: [[f32; 256]; CHANNELS] = std::array::from_fn(|channel| self.levels(channel));
        let mut values = Vec::with_capacity(frames.len() * grid.rows * grid.columns * size * size * CHANNELS);
        for together in frames.chunks_exact(self.temporal_patch_size) {
            for (row, column) in self.merged_order(grid) {
                for (channel, levels) in levels.iter().enumerate() {
                    for (number, frame) in together.iter().enumerate() {
                        // An image is a frame that is repeated.
                        if number > 0 && std::ptr::eq(*frame, together[number - 1]) {
                            values.extend_from_within(values.len() - size * size..);
                            continue;
                        }
                        for line in row * size..(row + 1) * size {
                            let at = (line * frame.width + column * size) * CHANNELS;
                            let pixels = frame.data[at..at + size * CHANNELS].as_chunks::<CHANNELS>().0;
                            values.extend(pixels.iter().map(|pixel| levels[usize::from(pixel[channel])]));
                        }
                    }
                }
            }
        }
        Patches { grid, values }
    }

    /// Rows and columns of patches: merged squares row by row, and the patches of each row by row.
    fn merged_order(&self, grid: Grid) -> impl Iterator<Item = (usize, usize)> + use<> {
        let merge = self.merge_size;
        let squares =
            (0..grid.rows / merge).flat_map(move |row| (0..grid.columns / merge).map(move |column| (row, column)));
        squares.flat_map(move |(row, column)| {
            let inside = (0..merge).flat_map(move |down| (0..merge).map(move |right| (down, right)));
            inside.map(move |(down, right)| (row * merge + down, column * merge + right))
        })
    }
}

/// Height and width to which an image is resized: multiples of `factor` whose product is within the
/// limits, with about the same quotient (`smart_resize` of transformers).
///
/// # Errors
/// [`Kind::Data`] for an image that is more than 200 times longer than wide, or without pixels.
pub fn smart_resize(
    (height, width): (usize, usize),
    factor: usize,
    (min, max): (usize, usize),
) -> Result<(usize, usize)> {
    resized((height, width), factor, (min, max), [1, 1])
}

/// The same for each of several frames, whose pixels together are within the limits. `frames` are
/// their number, and this number as a multiple of a temporal patch.
pub(crate) fn resized(
    (height, width): (usize, usize),
    factor: usize,
    (min, max): (usize, usize),
    frames: [usize; 2],
) -> Result<(usize, usize)> {
    if height == 0 || width == 0 {
        return Err(Error::new(Kind::Data, format!("the image has {width} x {height} pixels")));
    }
    let (h, w, factor_f) = (height as f64, width as f64, factor as f64);
    if h.max(w) / h.min(w) > LONGEST {
        let message =
            format!("the image has {width} x {height} pixels: one side is more than {LONGEST} times the other");
        return Err(Error::new(Kind::Data, message).hint("crop it, or make it less long"));
    }
    let nearest = |side: f64| (side / factor_f).round_ties_even() as usize * factor;
    let (rows, columns) = (nearest(h), nearest(w));
    let [count, whole] = frames;
    let pixels = (count * height * width) as f64;
    if whole * rows * columns > max {
        let shrink = (pixels / max as f64).sqrt();
        let below = |side: f64| ((side / shrink / factor_f).floor() as usize * factor).max(factor);
        return Ok((below(h), below(w)));
    }
    if whole * rows * columns < min {
        let grow = (min as f64 / pixels).sqrt();
        let above = |side: f64| (side * grow / factor_f).ceil() as usize * factor;
        return Ok((above(h), above(w)));
    }
    Ok((rows, columns))
}
