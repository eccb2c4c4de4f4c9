//! Types of tensors in GGUF files and their dequantisation to f32.
//!
//! A quantised tensor is a sequence of blocks along its rows: the scales of a block, as f16, and
//! small integers. The K types have blocks of 256 numbers, with quantised scales of 16 or 32
//! numbers each. Layouts and the order of operations are as in `ggml-quants.c`, so that the numbers
//! are bitwise equal to the numbers of llama.cpp and transformers.

use half::{bf16, f16};

/// A type of tensors: numbers (blocks of 1) or blocks of quantised numbers.
#[derive(Debug)]
pub(in crate::model) struct BlockType {
    id: u32,
    pub(in crate::model) name: &'static str,
    /// Numbers of a block.
    pub(super) numbers: usize,
    /// Bytes of a block.
    pub(super) bytes: usize,
    /// Writes the numbers of a block.
    dequantise: fn(&[u8], &mut [f32]),
}

impl PartialEq for BlockType {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

const fn block(
    id: u32,
    name: &'static str,
    [numbers, bytes]: [usize; 2],
    dequantise: fn(&[u8], &mut [f32]),
) -> BlockType {
    BlockType { id, name, numbers, bytes, dequantise }
}

const TYPES: [BlockType; 13] = [
    block(0, "f32", [1, 4], |block, out| out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
    block(1, "f16", [1, 2], |block, out| out[0] = half(block, 0)),
    block(2, "q4_0", [32, 18], |block, out| halves(&block[2..], out, |q, _| half(block, 0) * (f32::from(q) - 8.0))),
    block(3, "q4_1", [32, 20], |block, out| halves(&block[4..], out, |q, _| with_minimum(block, q))),
    block(6, "q5_0", [32, 22], |block, out| {
        halves(&block[6..], out, |q, at| half(block, 0) * (f32::from(q | fifth(&block[2..], at)) - 16.0));
    }),
    block(7, "q5_1", [32, 24], |block, out| {
        halves(&block[8..], out, |q, at| with_minimum(block, q | fifth(&block[4..], at)));
    }),
    block(8, "q8_0", [32, 34], |block, out| {
        for (out, &q) in out.iter_mut().zip(&block[2..]) {
            *out = f32::from(q.cast_signed()) * half(block, 0);
        }
    }),
    block(10, "q2_k", [256, 84], q2_k),
    block(11, "q3_k", [256, 110], q3_k),
    block(12, "q4_k", [256, 144], |block, out| with_sub_blocks(block, &block[16..], out, |_, _| 0)),
    block(13, "q5_k", [256, 176], |block, out| {
        with_sub_blocks(block, &block[48..], out, |sub, at| (block[16 + at] >> sub & 1) << 4);
    }),
    block(14, "q6_k", [256, 210], q6_k),
    block(30, "bf16", [1, 2], |block, out| out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32()),
];

/// Names of types that are not supported, by their numbers, for messages.
const OTHERS: [&str; 40] = [
    "", "", "", "", "", "", "", "", "", "Q8_1", "", "", "", "", "", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S",
    "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "", "", "", "", "", "IQ1_M", "", "", "", "", "TQ1_0", "TQ2_0", "", "", "",
    "MXFP4",
];

impl BlockType {
    /// The type with a number in a file.
    pub(super) fn of(id: u32) -> Option<&'static Self> {
        const { &TYPES }.iter().find(|kind| kind.id == id)
    }

    /// Names of the types, for messages.
    pub(super) fn names() -> String {
        TYPES.map(|kind| kind.name.to_uppercase()).join(", ")
    }

    /// The name of a type that is not supported, for messages.
    pub(super) fn other(id: u32) -> &'static str {
        OTHERS.get(id as usize).filter(|name| !name.is_empty()).unwrap_or(&"of an unknown kind")
    }

    /// The numbers of whole blocks.
    pub(in crate::model) fn dequantise(&self, bytes: &[u8]) -> Vec<f32> {
        let mut numbers = vec![0.0; bytes.len() / self.bytes * self.numbers];
        for (block, out) in bytes.chunks_exact(self.bytes).zip(numbers.chunks_exact_mut(self.numbers)) {
            (self.dequantise)(block, out);
        }
        numbers
    }
}

/// The f16 at a byte of a block.
fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// 32 numbers of 4 bits: the low bits of 16 bytes, then the high ones. `number` gets the bits and
/// their index.
fn halves(bytes: &[u8], out: &mut [f32], number: impl Fn(u8, usize) -> f32) {
    for (at, &byte) in bytes.iter().enumerate() {
        out[at] = number(byte & 15, at);
        out[at + 16] = number(byte >> 4, at + 16);
    }
}

/// The fifth bit of number `at`, of 32 bits.
fn fifth(bits: &[u8], at: usize) -> u8 {
    (bits[at / 8] >> (at % 8) & 1) << 4
}

/// A number of a block that begins with its scale and its minimum.
fn with_minimum(block: &[u8], q: u8) -> f32 {
    half(block, 0) * f32::from(q) + half(block, 2)
}

/// 16 scales and minima of 4 bits, 256 numbers of 2 bits, the scales of both.
fn q2_k(block: &[u8], out: &mut [f32]) {
    let (scale, minimum) = (half(block, 80), half(block, 82));
    for (at, out) in out.iter_mut().enumerate() {
        let sub = block[at / 16];
        let (scale, minimum) = (scale * f32::from(sub & 15), minimum * f32::from(sub >> 4));
        *out = scale * f32::from(two_bits(&block[16..80], at)) - minimum;
    }
}

/// Number `at` of 256 of 2 bits: 32 bytes have the bits of numbers 32 apart.
fn two_bits(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 128 * 32 + at % 32] >> (at / 32 % 4 * 2) & 3
}

/// 256 third bits, 256 numbers of 2 bits, 16 scales of 6 bits, their scale.
fn q3_k(block: &[u8], out: &mut [f32]) {
    let scales = &block[96..108];
    for (at, out) in out.iter_mut().enumerate() {
        let sub = at / 16;
        let low = scales[sub % 8] >> (sub / 8 * 4) & 15;
        let high = scales[8 + sub % 4] >> (sub / 4 * 2) & 3;
        let scale = half(block, 108) * (f32::from(low | high << 4) - 32.0);
        // A bit that is not set is 4 less.
        let third = block[at % 32] >> (at / 32) & 1;
        *out = scale * (f32::from(two_bits(&block[32..96], at)) - f32::from((third ^ 1) << 2));
    }
}

/// Q4_K and Q5_K: the scale of the scales and of the minima, 8 scales and minima of 6 bits, 256
/// numbers of 4 bits; `fifth` has the fifth bit of a number by its sub-block and index there.
fn with_sub_blocks(block: &[u8], bits: &[u8], out: &mut [f32], fifth: impl Fn(usize, usize) -> u8) {
    let packed = &block[4..16];
    for (sub, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = if sub < 4 {
            (packed[sub] & 63, packed[sub + 4] & 63)
        } else {
            let high = |at: usize| packed[at] >> 2 & 0x30;
            (packed[sub + 4] & 15 | high(sub - 4), packed[sub + 4] >> 4 | high(sub))
        };
        let (scale, minimum) = (half(block, 0) * f32::from(scale), half(block, 2) * f32::from(minimum));
        for (at, out) in out.iter_mut().enumerate() {
            let q = bits[sub / 2 * 32 + at] >> (sub % 2 * 4) & 15;
            *out = scale * f32::from(q | fifth(sub, at)) - minimum;
        }
    }
}

/// 256 numbers of 4 bits, their 2 highest bits, 16 scales of 8 bits, their scale.
fn q6_k(block: &[u8], out: &mut [f32]) {
    for (at, out) in out.iter_mut().enumerate() {
        let low = block[at / 128 * 64 + at % 64] >> (at / 64 % 2 * 4) & 15;
        let q = f32::from(low | two_bits(&block[128..192], at) << 4) - 32.0;
        *out = half(block, 208) * f32::from(block[192 + at / 16].cast_signed()) * q;
    }
}
