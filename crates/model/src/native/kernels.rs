//! r1's own CUDA kernels as functions of tensors in bf16 and f32 (docs/lab/gpu.md). The tests
//! execute them on the CPU (`cuda::emulator`).

use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut};

use tch::Tensor;

use super::cuda::{Launcher, launcher};
use super::{checked, owned, pointer, written};
use r1_base::error::Result;

unsafe extern "C" {
    fn r1_kernels_launcher(launcher: Launcher);
    fn r1_kernel_add_norm(
        x: *const c_void,
        delta: *const c_void,
        weight: *const c_void,
        eps: f64,
        offset: f64,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn r1_kernel_gated(gate: *const c_void, up: *const c_void, gelu: bool, out: *mut *mut c_void) -> *mut c_char;
    fn r1_kernel_heads(
        parts: *const *const c_void,
        places: *const *const c_void,
        eps: f64,
        offset: f64,
        dim: i64,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn r1_kernel_attention(
        tensors: *const *const c_void,
        most_keys: i64,
        scale: f64,
        window: i64,
        out: *mut *mut c_void,
    ) -> *mut c_char;
}

fn started() {
    // SAFETY: the launcher is a function of this program.
    unsafe { r1_kernels_launcher(launcher) }
}

fn optional_pointer(tensor: Option<&Tensor>) -> *const c_void {
    tensor.map_or(null(), pointer)
}

/// RMSNorm over the last dimension of x, or of x plus `delta`: the norm, and that sum. `weight` is
/// added to `offset`. Differentiable.
///
/// # Errors
/// `Kind::Internal`: another type, shape or device, or a kernel that does not start; so for all
/// functions here.
pub(crate) fn add_norm(
    x: &Tensor,
    delta: Option<&Tensor>,
    weight: &Tensor,
    eps: f64,
    offset: f64,
) -> Result<(Tensor, Tensor)> {
    started();
    let mut out = [null_mut(); 2];
    // SAFETY: the pointers are live for the call; C++ writes both tensors.
    checked(unsafe {
        r1_kernel_add_norm(pointer(x), optional_pointer(delta), pointer(weight), eps, offset, out.as_mut_ptr())
    })?;
    Ok((owned(out[0]), owned(out[1])))
}

/// SiLU, or GELU (tanh), of `gate` times `up`, both `[T, n]`. Differentiable.
pub(crate) fn gated(gate: &Tensor, up: &Tensor, gelu: bool) -> Result<Tensor> {
    started();
    // SAFETY: as above.
    written(|out| unsafe { r1_kernel_gated(pointer(gate), pointer(up), gelu, out) })
}

/// Projections `[T, n * dim]` of queries, keys and values, and what is applied to them.
#[derive(Clone, Copy)]
pub(crate) struct Heads<'a> {
    pub projections: [&'a Tensor; 3],
    pub biases: [Option<&'a Tensor>; 3],
    /// Weights `[dim]` of the RMSNorms of query and key heads, which are added to `offset`.
    pub norms: Option<[&'a Tensor; 2]>,
    /// Cosines and sines `[T, dim]`, the first half of the sines negated.
    pub angles: Option<(&'a Tensor, &'a Tensor)>,
    pub eps: f64,
    pub offset: f64,
    pub dim: i64,
}

/// Keys and values `[slots, capacity, Hkv, dim]` of a cache, and the places of T tokens in it, i64.
#[derive(Clone, Copy)]
pub(crate) struct Cached<'a> {
    pub keys: &'a Tensor,
    pub values: &'a Tensor,
    pub slots: &'a Tensor,
    pub positions: &'a Tensor,
}

/// Queries, keys and values `[T, n, dim]`; keys and values are `None` if they are written to a
/// cache. Places outside the cache are not checked. Differentiable without biases, norms and cache.
pub(crate) fn rotated_heads(heads: &Heads<'_>, cached: Option<Cached<'_>>) -> Result<(Tensor, Option<[Tensor; 2]>)> {
    started();
    let [q, k, v] = heads.projections.map(pointer);
    let [q_bias, k_bias, v_bias] = heads.biases.map(optional_pointer);
    let [q_norm, k_norm] = heads.norms.map_or([null(); 2], |norms| norms.map(pointer));
    let (cos, sin) = heads.angles.map_or((null(), null()), |(cos, sin)| (pointer(cos), pointer(sin)));
    let parts = [q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm, cos, sin];
    let places = cached.map(|cache| [cache.keys, cache.values, cache.slots, cache.positions].map(pointer));
    let mut out = [null_mut(); 3];
    // SAFETY: the pointers are live for the call, and null where C++ allows it.
    checked(unsafe {
        let places = places.as_ref().map_or(null(), |places| places.as_ptr());
        r1_kernel_heads(parts.as_ptr(), places, heads.eps, heads.offset, heads.dim, out.as_mut_ptr())
    })?;
    let [q, k, v] = out;
    Ok((owned(q), cached.is_none().then(|| [owned(k), owned(v)])))
}

/// Attention of one query per sequence in bf16: q `[B, H, D]` over the last keys and values
/// `[N, Hkv, D]` of each sequence, which are `lengths` rows, at most `most_keys`, from `first_key`
/// on (both i32). `window`: number of last keys, all if `None`. Gives `[B, H, D]`. Not
/// differentiable.
pub(crate) fn decode_attention(
    [q, keys, values]: [&Tensor; 3],
    [first_key, lengths]: [&Tensor; 2],
    most_keys: i64,
    scale: Option<f64>,
    window: Option<usize>,
) -> Result<Tensor> {
    started();
    let scale = scale.unwrap_or_else(|| (*q.size().last().unwrap_or(&1) as f64).powf(-0.5));
    let tensors = [q, keys, values, first_key, lengths].map(pointer);
    let window = window.map_or(0, |size| size as i64);
    // SAFETY: as above.
    written(|out| unsafe { r1_kernel_attention(tensors.as_ptr(), most_keys, scale, window, out) })
}
