//! Pillow's bicubic and Lanczos resampling with antialiasing, bit for bit.
//!
//! Pillow computes 8-bit images in fixed-point numbers and rounds after each of two passes. Other
//! libraries round elsewhere, and differ in up to a third of the values.

use super::RgbImage;

/// Bits of the fraction of a weight.
const FRACTION: u32 = 22;
const CHANNELS: usize = 3;

/// A filter of Pillow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    Bicubic,
    Lanczos,
}

impl Filter {
    /// Its reach, in pixels of the smaller image.
    fn support(self) -> f64 {
        match self {
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        match self {
            Self::Bicubic => bicubic(x),
            Self::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Self::Lanczos => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    let x = x * std::f64::consts::PI;
    if x == 0.0 { 1.0 } else { x.sin() / x }
}

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
fn windows(from: usize, to: usize, filter: Filter) -> Vec<Window> {
    let scale = from as f64 / to as f64;
    let stretch = scale.max(1.0);
    let (support, inverse) = (filter.support() * stretch, 1.0 / stretch);
    let window = |index: usize| {
        let center = (index as f64 + 0.5) * scale;
        // As in C, a conversion to an integer is towards 0.
        let first = ((center - support + 0.5) as i64).max(0) as usize;
        let end = ((center + support + 0.5) as i64).clamp(0, from as i64) as usize;
        let weights: Vec<f64> =
            (first..end).map(|x| filter.weight(((x - first) as f64 + first as f64 - center + 0.5) * inverse)).collect();
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

/// An image of another size, by Pillow's `resize(size, filter)`. Both sizes have pixels.
pub fn resize(image: &RgbImage, width: usize, height: usize, filter: Filter) -> RgbImage {
    let across = if width == image.width { image.clone() } else { horizontally(image, width, filter) };
    if height == image.height { across } else { vertically(&across, height, filter) }
}

/// Values that are summed at once.
const LANES: usize = 24;
/// Rows of the image in them.
const ROWS: usize = LANES / CHANNELS;

fn horizontally(image: &RgbImage, width: usize, filter: Filter) -> RgbImage {
    let windows = windows(image.width, width, filter);
    let mut data = vec![0; width * image.height * CHANNELS];
    let mut columns = vec![[0; LANES]; image.width];
    let (from, to) = (image.width * CHANNELS, width * CHANNELS);
    for (rows, out) in image.data.chunks(ROWS * from).zip(data.chunks_mut(ROWS * to)) {
        for (row, lane) in rows.chunks_exact(from).zip((0..LANES).step_by(CHANNELS)) {
            for (column, pixel) in columns.iter_mut().zip(row.as_chunks::<CHANNELS>().0) {
                column[lane..lane + CHANNELS].copy_from_slice(pixel);
            }
        }
        for (window, at) in windows.iter().zip((0..to).step_by(CHANNELS)) {
            let mut values = [0; LANES];
            weighted(&columns[window.first..], &window.weights, &mut values);
            for (row, pixel) in out.chunks_exact_mut(to).zip(values.as_chunks::<CHANNELS>().0) {
                row[at..at + CHANNELS].copy_from_slice(pixel);
            }
        }
    }
    RgbImage { width, height: image.height, data }
}

fn vertically(image: &RgbImage, height: usize, filter: Filter) -> RgbImage {
    let stride = image.width * CHANNELS;
    let windows = windows(image.height, height, filter);
    let mut data = vec![0; stride * height];
    let mut column = vec![[0; LANES]; image.height];
    for at in (0..stride).step_by(LANES) {
        let lanes = LANES.min(stride - at);
        for (values, row) in column.iter_mut().zip(image.data.chunks_exact(stride)) {
            match row[at..].first_chunk() {
                Some(all) => *values = *all,
                None => values[..lanes].copy_from_slice(&row[at..]),
            }
        }
        for (window, row) in windows.iter().zip(data.chunks_exact_mut(stride)) {
            let mut values = [0; LANES];
            weighted(&column[window.first..], &window.weights, &mut values);
            match row[at..].first_chunk_mut() {
                Some(all) => *all = values,
                None => row[at..].copy_from_slice(&values[..lanes]),
            }
        }
    }
    RgbImage { width: image.width, height, data }
}

/// Sums of values times weights, rounded. The result does not depend on the processor.
#[allow(unsafe_code)]
fn weighted(values: &[[u8; LANES]], weights: &[i32], to: &mut [u8; LANES]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { weighted_avx2(values, weights, to) };
    }
    weighted_in_lanes(values, weights, to);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn weighted_avx2(values: &[[u8; LANES]], weights: &[i32], to: &mut [u8; LANES]) {
    weighted_in_lanes(values, weights, to);
}

/// The weights of a window have the sum 2^22, and less than 2 * 2^22 without their signs, so that
/// sums are within 32 bits, as in Pillow.
#[expect(clippy::inline_always, reason = "it is compiled again with AVX2")]
#[inline(always)]
fn weighted_in_lanes(values: &[[u8; LANES]], weights: &[i32], to: &mut [u8; LANES]) {
    let mut sums = [1 << (FRACTION - 1); LANES];
    for (values, weight) in values.iter().zip(weights) {
        for lane in 0..LANES {
            sums[lane] += i32::from(values[lane]) * weight;
        }
    }
    for lane in 0..LANES {
        to[lane] = (sums[lane] >> FRACTION).clamp(0, 255) as u8;
    }
}
