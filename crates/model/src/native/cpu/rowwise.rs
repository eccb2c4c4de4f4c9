//! Batch-invariant operations for generation: a row's result does not depend on the other rows
//! (bitwise). In f32 on the CPU, without gradient.

use std::ffi::c_void;
use std::ptr::null;

use tch::Tensor;

use super::{pointer, r1_attend_rows, r1_gated_rows, r1_linear_rows, written};
use r1_base::error::Result;

/// x `[T, in]` times the weight `[out, in]` transposed, plus the bias `[out]`: `[T, out]`.
pub(crate) fn linear_rows(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    // SAFETY: the pointers are live for the call, and the C++ checks types, shapes and devices; so
    // below.
    written(|out| unsafe { r1_linear_rows(pointer(x), pointer(weight), bias.map_or(null(), pointer), out) })
}

/// `silu(gate) * up`, or with `gelu` the tanh approximation of GELU; all `[T, n]`.
pub(crate) fn gated_rows(gate: &Tensor, up: &Tensor, gelu: bool) -> Result<Tensor> {
    // SAFETY: as above.
    written(|out| unsafe { r1_gated_rows(pointer(gate), pointer(up), gelu, out) })
}

/// Causal attention of queries `[T, H, D]` over cached keys and values `[slots, capacity, Hkv, D]`,
/// H a multiple of Hkv. Query t belongs to sequence `slots[t]` and has position `positions[t]`,
/// both `[T]` i64. It attends to its own and earlier keys, `window` in total if given. Sinks `[H]`
/// are scores without a key and a value. Returns `[T, H, D]`.
pub(crate) fn attend_rows(
    qkv: [&Tensor; 3],
    slots: &Tensor,
    positions: &Tensor,
    (scale, window): (f64, Option<usize>),
    sinks: Option<&Tensor>,
) -> Result<Tensor> {
    let qkv: [*const c_void; 3] = qkv.map(pointer);
    let sinks = sinks.map_or(null(), pointer);
    let window = window.map_or(0, |window| window as i64);
    // SAFETY: as above.
    written(|out| unsafe {
        r1_attend_rows(qkv.as_ptr(), sinks, pointer(slots), pointer(positions), scale, window, out)
    })
}
