//! Decoding of image files, with limits for files that others have made.

use std::io::Cursor;

use image::codecs::gif::GifDecoder;
use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::error::LimitErrorKind;
use image::{AnimationDecoder, DynamicImage, Frames, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};
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
    let format = format_of(bytes, limits)?;
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    reader.limits(decoder_limits(limits));
    let failed = |error: ImageError| explain(&error, format, limits);
    let mut decoder = reader.into_decoder().map_err(failed)?;
    check_size(decoder.dimensions(), limits)?;
    // A damaged EXIF block does not make the image unreadable.
    let orientation = decoder.orientation().ok();
    let mut image = DynamicImage::from_decoder(decoder).map_err(failed)?;
    if let Some(orientation) = orientation {
        image.apply_orientation(orientation);
    }
    let rgb = image.into_rgb8();
    Ok(RgbImage { width: rgb.width() as usize, height: rgb.height() as usize, data: rgb.into_raw() })
}

/// The frames of a GIF, WebP or PNG file with several frames that are shown at the times 0, 1 /
/// fps, 2 / fps …; an image has one frame. A frame without a duration is shown for a tenth of a
/// second, as in browsers.
///
/// # Errors
/// As [`decode()`]; [`Kind::Data`] for more than `count` frames, and if the frames together have
/// more pixels than the limits.
pub fn decode_frames(bytes: &[u8], limits: &DecodeLimits, fps: f64, count: usize) -> Result<Vec<RgbImage>> {
    let format = format_of(bytes, limits)?;
    let failed = |error: ImageError| explain(&error, format, limits);
    let start = Cursor::new(bytes);
    let frames = match format {
        ImageFormat::Gif => frames_of(GifDecoder::new(start).map_err(failed)?, limits)?,
        ImageFormat::WebP => {
            let decoder = WebPDecoder::new(start).map_err(failed)?;
            if !decoder.has_animation() {
                return Ok(vec![decode(bytes, limits)?]);
            }
            frames_of(decoder, limits)?
        }
        ImageFormat::Png => {
            let decoder = PngDecoder::with_limits(start, decoder_limits(limits)).map_err(failed)?;
            if !decoder.is_apng().map_err(failed)? {
                return Ok(vec![decode(bytes, limits)?]);
            }
            check_size(decoder.dimensions(), limits)?;
            decoder.apng().map_err(failed)?.into_frames()
        }
        _ => return Ok(vec![decode(bytes, limits)?]),
    };
    let (mut shown, mut end, mut pixels) = (Vec::new(), 0.0, [0_u64; 2]);
    for frame in frames {
        let frame = frame.map_err(failed)?;
        let (milliseconds, divisor) = frame.delay().numer_denom_ms();
        let milliseconds = f64::from(milliseconds) / f64::from(divisor.max(1));
        end += if milliseconds > 0.0 { milliseconds } else { 100.0 };
        let image = DynamicImage::from(frame.into_buffer()).into_rgb8();
        let (width, height) = (image.width() as usize, image.height() as usize);
        let area = (width * height) as u64;
        pixels[0] += area;
        while shown.len() as f64 * 1000.0 / fps < end {
            pixels[1] += area;
            let hint = "set a smaller `fps`, or make the video shorter or smaller";
            if shown.len() == count {
                let message = format!("the video has more than {count} frames at {fps} frames a second");
                return Err(invalid(message).hint(hint));
            }
            if pixels[1] > limits.pixels {
                let message = format!("the frames of the video have more than {} pixels together", limits.pixels);
                return Err(invalid(message).hint(hint));
            }
            shown.push(RgbImage { width, height, data: image.as_raw().clone() });
        }
        // Frames that are not shown take time, too.
        if pixels[0] > limits.pixels.saturating_mul(16) {
            return Err(invalid("the video has too many frames").hint("make it shorter or smaller"));
        }
    }
    Ok(shown)
}

/// The frames of a decoder within the limits.
fn frames_of<'a>(mut decoder: impl ImageDecoder + AnimationDecoder<'a>, limits: &DecodeLimits) -> Result<Frames<'a>> {
    check_size(decoder.dimensions(), limits)?;
    let refused = |_| too_large("too many pixels", limits);
    decoder.set_limits(decoder_limits(limits)).map_err(refused)?;
    Ok(decoder.into_frames())
}

/// The format of a file.
fn format_of(bytes: &[u8], limits: &DecodeLimits) -> Result<ImageFormat> {
    if bytes.is_empty() {
        return Err(invalid("the image file is empty"));
    }
    if bytes.len() > limits.bytes {
        let message = format!("the image file has {} bytes, more than {}", bytes.len(), limits.bytes);
        return Err(invalid(message).hint("make the image smaller"));
    }
    let format = image::guess_format(bytes).ok().filter(|format| SUPPORTED.contains(format));
    format.ok_or_else(|| not_an_image(bytes))
}

fn decoder_limits(limits: &DecodeLimits) -> Limits {
    let mut inner = Limits::no_limits();
    inner.max_image_width = Some(limits.side);
    inner.max_image_height = Some(limits.side);
    // 16 bits of four channels, and once more for a decoder's own buffer.
    inner.max_alloc = Some(limits.pixels.saturating_mul(16));
    inner
}

fn check_size((width, height): (u32, u32), limits: &DecodeLimits) -> Result<()> {
    if width == 0 || height == 0 {
        return Err(invalid(format!("the image has {width} x {height} pixels")));
    }
    if u64::from(width) * u64::from(height) > limits.pixels {
        return Err(too_large(&format!("{width} x {height} pixels"), limits));
    }
    Ok(())
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
    let of_video = bytes.get(4..8) == Some(b"ftyp") || bytes.starts_with(b"\x1a\x45\xdf\xa3");
    if of_video || bytes.get(8..12) == Some(b"AVI ") {
        let hint = "give its frames; ffmpeg writes them: ffmpeg -i FILE -vf fps=2 frames/%04d.png";
        return invalid("this is a video file; only GIF, WebP and PNG files are read as videos").hint(hint);
    }
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
