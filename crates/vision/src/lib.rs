//! Images for vision-language models: decoding within limits, and the preprocessing of the
//! processors of transformers.
//!
//! [`decode()`] reads PNG, JPEG, WebP and GIF. [`Processor`] resizes an [`RgbImage`] and makes the
//! patches that the vision tower of Qwen's models reads, with the values of transformers' slow
//! processor (Pillow's resampling, bit for bit).

mod decode;
mod images;
mod parts;
mod processor;
mod resize;

pub use decode::{DecodeLimits, RgbImage, decode};
pub use images::{Images, StoredImage};
pub use parts::store_images;
pub use processor::{Grid, Patches, Processor, smart_resize};
pub use resize::resize_bicubic;

#[cfg(test)]
mod tests;

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
