//! Images for vision-language models: decoding within limits, and the preprocessing of the
//! processors of transformers.
//!
//! [`decode()`] reads PNG, JPEG, WebP and GIF. [`Processor`] resizes an [`RgbImage`] and makes the
//! patches that the vision towers of Qwen's models and of SmolVLM read, with the values of
//! transformers' slow processors (Pillow's resampling, bit for bit).

mod decode;
mod images;
mod parts;
mod processor;
mod resize;
mod tiles;

pub use decode::{DecodeLimits, RgbImage, decode};
pub use images::{ImageBytes, Images, StoredImage};
pub use parts::{store_columns, store_images, store_part};
pub use processor::{Grid, IMAGE_TOKENS, ImageSizes, Patches, Processor, smart_resize};
pub use resize::{Filter, resize};
pub use tiles::{TILE_TOKEN, TileSizes};

#[cfg(test)]
mod tests;

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
