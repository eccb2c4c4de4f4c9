//! Decoding of image files, with limits for files that others have made.

use std::io::Cursor;

use image::error::LimitErrorKind;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};
use r1_base::error::{Error, Kind, Result};

/// An image of 8 bits for each of red, green and blue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RgbImage {
    pub width: usize,
    pub height: usize,
    /// Row by row, three values for each pixel.
    pub data: Vec<u8>,
}

/// Limits of an image file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Maximum size of the file.
    pub bytes: usize,
    /// Maximum width, and maximum height.
    pub side: u32,
    /// Maximum number of pixels. A file of a few kilobytes can have billions of them.
    pub pixels: u64,
}

impl Default for DecodeLimits {
    fn default() -> Self {
        Self { bytes: 64 << 20, side: 32_768, pixels: 64 << 20 }
    }
}

/// Reads an image: PNG, JPEG, WebP or GIF, whatever its file is called. Of several frames it is the
/// first one. The image is rotated as its EXIF orientation says. Transparency is ignored, as by
/// Pillow's `convert("RGB")`; of 16 bits the upper 8 are used.
///
/// # Errors
/// [`Kind::Data`] for a file that is not a complete image of these formats, that is larger than the
/// limits, or that has no pixels. The message is for people, and for a policy that made the file.
pub fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<RgbImage> {
    if bytes.is_empty() {
        return Err(invalid("the image file is empty"));
    }
    if bytes.len() > limits.bytes {
        let message = format!("the image file has {} bytes, more than {}", bytes.len(), limits.bytes);
        return Err(invalid(message).hint("make the image smaller"));
    }
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let mut reader = reader.map_err(|error| invalid(format!("can't read the image: {error}")))?;
    let Some(format) = reader.format().filter(|format| SUPPORTED.contains(format)) else {
        return Err(not_an_image(bytes));
    };
    let mut inner = Limits::no_limits();
    inner.max_image_width = Some(limits.side);
    inner.max_image_height = Some(limits.side);
    // 16 bits of four channels, and once more for a decoder's own buffer.
    inner.max_alloc = Some(limits.pixels.saturating_mul(16));
    reader.limits(inner);
    let failed = |error: ImageError| explain(&error, format, limits);
    let mut decoder = reader.into_decoder().map_err(failed)?;
    let (width, height) = decoder.dimensions();
    if width == 0 || height == 0 {
        return Err(invalid(format!("the image has {width} x {height} pixels")));
    }
    if u64::from(width) * u64::from(height) > limits.pixels {
        return Err(too_large(&format!("{width} x {height} pixels"), limits));
    }
    // A damaged EXIF block does not make the image unreadable.
    let orientation = decoder.orientation().ok();
    let mut image = DynamicImage::from_decoder(decoder).map_err(failed)?;
    if let Some(orientation) = orientation {
        image.apply_orientation(orientation);
    }
    let rgb = image.into_rgb8();
    Ok(RgbImage { width: rgb.width() as usize, height: rgb.height() as usize, data: rgb.into_raw() })
}

const SUPPORTED: [ImageFormat; 4] = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif];

fn invalid(message: impl Into<String>) -> Error {
    Error::new(Kind::Data, message)
}

fn too_large(size: &str, limits: &DecodeLimits) -> Error {
    invalid(format!("the image has {size}, more than {} or more than {} on a side", limits.pixels, limits.side))
        .hint("make the image smaller")
}

/// The error for bytes of another kind.
fn not_an_image(bytes: &[u8]) -> Error {
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(256)]).trim_start().to_lowercase();
    let what = if start.starts_with("<svg") || (start.starts_with("<?xml") && start.contains("<svg")) {
        "an SVG drawing"
    } else if start.starts_with("<!doctype html") || start.starts_with("<html") {
        "an HTML page"
    } else if !start.is_empty() && start.chars().all(|c| c != '\u{fffd}' && (!c.is_control() || c.is_whitespace())) {
        "text"
    } else {
        "data of another format"
    };
    invalid(format!("this is {what}, not an image")).hint("PNG, JPEG, WebP and GIF are read")
}

fn explain(error: &ImageError, format: ImageFormat, limits: &DecodeLimits) -> Error {
    let name = format!("{format:?}").to_uppercase();
    match error {
        ImageError::Limits(limit) => match limit.kind() {
            LimitErrorKind::DimensionError => too_large(&format!("more than {} pixels on a side", limits.side), limits),
            _ => too_large("too many pixels", limits),
        },
        ImageError::Unsupported(unsupported) => invalid(format!("this {name} image can't be read: {unsupported}")),
        // An incomplete file, or damaged data.
        error => invalid(format!("the {name} image is damaged or not complete: {error}")),
    }
}
