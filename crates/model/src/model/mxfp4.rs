//! MXFP4 (OCP Microscaling Formats 1.0): blocks of 32 numbers of four bits with a scale each.

/// Numbers of a block.
pub(super) const BLOCK: i64 = 32;

/// The numbers of four bits without the sign: e2m1.
const MAGNITUDES: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Numbers of blocks of 16 bytes, the lower four bits of a byte first. A scale is the exponent of
/// two plus 127.
pub(super) fn dequantised(blocks: &[u8], scales: &[u8]) -> Vec<f32> {
    let number = |bits: u8, scale: f64| {
        let sign = if bits & 8 == 0 { 1.0 } else { -1.0 };
        (sign * MAGNITUDES[usize::from(bits & 7)] * scale) as f32
    };
    let mut numbers = Vec::with_capacity(2 * blocks.len());
    for (block, scale) in blocks.chunks_exact(BLOCK as usize / 2).zip(scales) {
        let scale = (f64::from(*scale) - 127.0).exp2();
        numbers.extend(block.iter().flat_map(|byte| [number(byte & 15, scale), number(byte >> 4, scale)]));
    }
    numbers
}
