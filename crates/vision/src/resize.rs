//! Pillow's bicubic resampling with antialiasing, bit for bit.
//!
//! Pillow computes 8-bit images in fixed-point numbers and rounds after each of two passes. Other
//! libraries round elsewhere, and differ in up to a third of the values.

use super::RgbImage;

/// Bits of the fraction of a weight.
const FRACTION: u32 = 22;
/// Reach of the filter, in pixels of the smaller image.
const SUPPORT: f64 = 2.0;
const CHANNELS: usize = 3;

/// The cubic filter with a = -0.5.
fn bicubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

/// The weights of one value of the result.
struct Window {
    first: usize,
    weights: Vec<i32>,
}

/// The windows of all values along one side.
fn windows(from: usize, to: usize) -> Vec<Window> {
    let scale = from as f64 / to as f64;
    let stretch = scale.max(1.0);
    let (support, inverse) = (SUPPORT * stretch, 1.0 / stretch);
    let window = |index: usize| {
        let center = (index as f64 + 0.5) * scale;
        // As in C, a conversion to an integer is towards 0.
        let first = ((center - support + 0.5) as i64).max(0) as usize;
        let end = ((center + support + 0.5) as i64).clamp(0, from as i64) as usize;
        let weights: Vec<f64> =
            (first..end).map(|x| bicubic(((x - first) as f64 + first as f64 - center + 0.5) * inverse)).collect();
        let sum: f64 = weights.iter().sum();
        let fixed = |weight: &f64| {
            let weight = if sum == 0.0 { *weight } else { weight / sum };
            let scaled = weight * f64::from(1 << FRACTION);
            (if weight < 0.0 { scaled - 0.5 } else { scaled + 0.5 }) as i32
        };
        Window { first, weights: weights.iter().map(fixed).collect() }
    };
    (0..to).map(window).collect()
}

fn rounded(sum: i64) -> u8 {
    (sum >> FRACTION).clamp(0, 255) as u8
}

const HALF: i64 = 1 << (FRACTION - 1);

/// An image of another size, by Pillow's `resize(size, BICUBIC)`. Both sizes have pixels.
pub fn resize_bicubic(image: &RgbImage, width: usize, height: usize) -> RgbImage {
    let across = if width == image.width { image.clone() } else { horizontally(image, width) };
    if height == image.height { across } else { vertically(&across, height) }
}

fn horizontally(image: &RgbImage, width: usize) -> RgbImage {
    let windows = windows(image.width, width);
    let mut data = Vec::with_capacity(width * image.height * CHANNELS);
    for row in image.data.chunks_exact(image.width * CHANNELS) {
        for window in &windows {
            let mut sums = [HALF; CHANNELS];
            let pixels = row[window.first * CHANNELS..].chunks_exact(CHANNELS);
            for (pixel, &weight) in pixels.zip(&window.weights) {
                for (sum, &value) in sums.iter_mut().zip(pixel) {
                    *sum += i64::from(value) * i64::from(weight);
                }
            }
            data.extend(sums.map(rounded));
        }
    }
    RgbImage { width, height: image.height, data }
}

fn vertically(image: &RgbImage, height: usize) -> RgbImage {
    let stride = image.width * CHANNELS;
    let mut data = Vec::with_capacity(stride * height);
    let mut sums = vec![HALF; stride];
    for window in windows(image.height, height) {
        sums.fill(HALF);
        for (row, &weight) in image.data[window.first * stride..].chunks_exact(stride).zip(&window.weights) {
            for (sum, &value) in sums.iter_mut().zip(row) {
                *sum += i64::from(value) * i64::from(weight);
            }
        }
        data.extend(sums.iter().map(|sum| rounded(*sum)));
    }
    RgbImage { width: image.width, height, data }
}
