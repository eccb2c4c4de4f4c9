//! Images for vision-language models: decoding within limits, and the preprocessing of the
//! processors of transformers.
//!
//! [`decode()`] reads PNG, JPEG, WebP and GIF. [`Processor`] resizes an [`RgbImage`] and makes the
//! patches that the vision towers of Qwen's models and of SmolVLM read, with the values of
//! transformers' slow processors (Pillow's resampling, bit for bit). [`VideoProcessor`] does this
//! for the frames of a video.

mod decode;
mod images;
mod parts;
mod processor;
mod resize;
mod tiles;
mod videos;

pub use decode::{DecodeLimits, RgbImage, decode, decode_frames};
pub use images::{ImageBytes, Images, StoredImage};
pub use parts::{store_columns, store_images, store_part};
pub use processor::{Grid, IMAGE_TOKENS, ImageSizes, Patches, Processor, VIDEO_TOKENS, smart_resize};
pub use resize::{Filter, resize};
pub use tiles::{TILE_TOKEN, TileSizes};
pub use videos::{DEFAULT_FPS, MAX_FRAMES, TokenGrid, Video, VideoProcessor, VideoStyle};

#[cfg(test)]
mod tests;
#[cfg(test)]
mod video_tests;

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
