//! The C++ over libtorch for what tch does not bind, and its safe Rust face.
//!
//! A network of the Llama kind (Qwen2, Llama, Qwen3, …) on the CPU: in f32 forward and backward over packed rows and
//! generation with a cache; with weights in bf16 generation alone, where all but the weights is f32. And chunked
//! log-probabilities (these on every device). The C++ has its own matrix products: MKL keeps to half of the speed of
//! processors not made by Intel, and libtorch reads bf16 at half of the memory's speed. Tensors cross as the pointers
//! that tch holds; a failure in C++ comes back as a message.

mod arena;
mod cuda;
mod rowwise;
mod threads;

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};

use tch::Tensor;

pub(crate) use arena::Arena;
pub(crate) use cuda::Graph;
pub use cuda::device;
pub(crate) use rowwise::{attend_rows, gated_rows, linear_rows};
pub use threads::{return_memory, set_threads};

use crate::error::{Error, Result};

/// Shape and constants of the network; the same fields as `r1::Shape` in common.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub vocab: i64,
    pub hidden: i64,
    pub inner: i64,
    pub layers: i64,
    pub heads: i64,
    pub kv_heads: i64,
    pub head_dim: i64,
    pub eps: f64,
    /// What cosines and sines of the rotary embedding are multiplied by.
    pub magnitude: f64,
}

/// Constants of one update; the same fields as `r1::AdamW` in adamw.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdamW {
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    /// What gradients are multiplied by.
    pub scale: f64,
    /// The number of this update, from 1.
    pub step: i64,
}

/// New ids of one sequence, at positions `start..` of its slot.
#[repr(C)]
struct SpanView {
    slot: i64,
    start: i64,
    count: i64,
    ids: *const u32,
}

unsafe extern "C" {
    fn r1_free_message(message: *mut c_char);
    fn r1_kernels() -> *const c_char;
    fn r1_panel() -> i64;
    fn r1_arena() -> *mut c_void;
    fn r1_arena_free(arena: *mut c_void);
    fn r1_arena_take(
        arena: *mut c_void,
        shape: *const i64,
        dimensions: i64,
        like: *const c_void,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn r1_model(
        shape: *const Shape,
        frequencies: *const c_void,
        parameters: *const *const c_void,
        count: i64,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn r1_model_free(model: *mut c_void);
    fn r1_forward(
        model: *mut c_void,
        ids: *const c_void,
        positions: *const c_void,
        lengths: *const i64,
        rows: i64,
        inputs_only: bool,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn r1_step(
        model: *mut c_void,
        keys: *const *const c_void,
        values: *const *const c_void,
        capacity: i64,
        spans: *const SpanView,
        count: i64,
        stop: extern "C" fn(*const c_void) -> bool,
        context: *const c_void,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn r1_logprobs(
        model: *mut c_void,
        hidden: *const c_void,
        head: *const c_void,
        targets: *const c_void,
        support: *const c_void,
        ends: *const c_void,
        temperature: f64,
        chunk: i64,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn r1_device_peak(index: i64) -> i64;
    fn r1_device_free(index: i64) -> i64;
    fn r1_forget_gradients(tensors: *const *const c_void, count: i64) -> *mut c_char;
    fn r1_adamw(tensors: *const *const c_void, count: i64, settings: *const AdamW) -> *mut c_char;
    fn r1_flash(
        qkv: *const *const c_void,
        sequences: *const *const c_void,
        most_queries: i64,
        most_keys: i64,
        scale: f64,
        window: i64,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn r1_linear_rows(
        x: *const c_void,
        weight: *const c_void,
        bias: *const c_void,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn r1_gated_rows(gate: *const c_void, up: *const c_void, gelu: bool, out: *mut *mut c_void) -> *mut c_char;
    fn r1_attend_rows(
        qkv: *const *const c_void,
        slots: *const c_void,
        positions: *const c_void,
        scale: f64,
        window: i64,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn r1_softmax(row: *mut f32, count: i64, scale: f32);
}

/// Turns the message of a failed call into an error, and frees it.
fn checked(message: *mut c_char) -> Result<()> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: a message is a C string that the C++ allocated for us to give back once.
    let text = unsafe {
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        r1_free_message(message);
        text
    };
    Err(Error::from(tch::TchError::Torch(text)))
}

fn pointer(tensor: &Tensor) -> *const c_void {
    tensor.as_ptr().cast()
}

fn pointers(tensors: &[Tensor]) -> Vec<*const c_void> {
    tensors.iter().map(pointer).collect()
}

/// Takes over a tensor that C++ made with `new`.
fn owned(tensor: *mut c_void) -> Tensor {
    // SAFETY: called once on each pointer a successful call wrote; tch frees tensors with `delete`.
    unsafe { Tensor::from_ptr(tensor.cast()) }
}

/// The version of the libtorch that r1 was built against, such as `2.11.0`.
pub fn libtorch_version() -> &'static str {
    env!("R1_LIBTORCH_VERSION")
}

/// The instruction set picked for the inner loops: `base`, `avx2`, `avx512` or `avx512bf16`.
pub fn kernels() -> &'static str {
    // SAFETY: a static C string.
    unsafe { CStr::from_ptr(r1_kernels()) }.to_str().unwrap_or("unknown")
}

/// Floats in a panel of cached keys; capacities are multiples of it.
pub(crate) fn panel() -> usize {
    // SAFETY: no arguments, no state.
    unsafe { r1_panel() as usize }
}

/// The network over its parameters, which it shares with their owner.
#[derive(Debug)]
pub(crate) struct Model {
    handle: *mut c_void,
}

impl Model {
    /// `parameters` are contiguous on the CPU, all f32 or all bf16, in the order of `common.h`: embedding, layers, norm,
    /// head unless tied; `None` for a bias or a head's norm that the model does not have. They may change in place at any
    /// time but between a forward pass and its backward pass. `frequencies` `[D / 2]` f32 are those of the rotary
    /// embedding.
    pub(crate) fn new(shape: &Shape, frequencies: &Tensor, parameters: &[Option<Tensor>]) -> Result<Self> {
        let mut handle = null_mut();
        let parameters: Vec<_> = parameters.iter().map(|tensor| tensor.as_ref().map_or(null(), pointer)).collect();
        // SAFETY: the pointers are live for the call, which copies what it keeps.
        checked(unsafe {
            r1_model(shape, pointer(frequencies), parameters.as_ptr(), parameters.len() as i64, &raw mut handle)
        })?;
        Ok(Self { handle })
    }

    /// Hidden states `[T, E]` of rows laid end to end; differentiable. Refused in bf16. `inputs_only`: until backward only
    /// the inputs of the layers are kept, and the rest is computed again, to the same bits.
    pub(crate) fn forward(
        &self,
        ids: &Tensor,
        positions: &Tensor,
        lengths: &[i64],
        inputs_only: bool,
    ) -> Result<Tensor> {
        let mut out = null_mut();
        // SAFETY: the handle lives as long as self, the rest for the call.
        checked(unsafe {
            r1_forward(
                self.handle,
                pointer(ids),
                pointer(positions),
                lengths.as_ptr(),
                lengths.len() as i64,
                inputs_only,
                &raw mut out,
            )
        })?;
        Ok(owned(out))
    }

    /// Logits [spans, V] after each span `(slot, start, ids)`. Keys are [slots, Hkv, capacity / panel, D, panel] and
    /// values `[slots, Hkv, capacity, D]`, one of each a layer, in f32; a slot appears once. `stop` is asked between the
    /// layers: true ends it there, with `None`.
    pub(crate) fn step<'a>(
        &self,
        keys: &[Tensor],
        values: &[Tensor],
        capacity: usize,
        spans: impl Iterator<Item = (usize, usize, &'a [u32])>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Tensor>> {
        /// Asks the closure behind the pointer that `step` hands to C++.
        extern "C" fn asked(stop: *const c_void) -> bool {
            // SAFETY: `context` below, which outlives the call that gives it back here, on the calling thread.
            let stop = unsafe { *stop.cast::<&dyn Fn() -> bool>() };
            stop()
        }
        let context: *const &dyn Fn() -> bool = &raw const stop;
        let mut out = null_mut();
        let (keys, values) = (pointers(keys), pointers(values));
        let spans: Vec<SpanView> = spans
            .map(|(slot, start, ids)| SpanView {
                slot: slot as i64,
                start: start as i64,
                count: ids.len() as i64,
                ids: ids.as_ptr(),
            })
            .collect();
        // SAFETY: as above; the C++ checks slots, positions and ids against the cache and the vocabulary.
        checked(unsafe {
            r1_step(
                self.handle,
                keys.as_ptr(),
                values.as_ptr(),
                capacity as i64,
                spans.as_ptr(),
                spans.len() as i64,
                asked,
                context.cast(),
                &raw mut out,
            )
        })?;
        Ok((!out.is_null()).then(|| owned(out)))
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: made by r1_model, freed once.
        unsafe { r1_model_free(self.handle) }
    }
}

/// Log-probabilities of `targets` `[N]` i64 and entropies, both `[N]`, at hidden states `[N, E]` under the output projection
/// `head` `[V, E]`; `chunk` positions at a time in both directions. `model` is the one that `head` belongs to, if it is
/// computed natively (f32 only). `support`: ids and, for each position, where its own end in them, both i64 on the CPU; the
/// distribution is that of these ids alone, and of the whole vocabulary at a position without any.
pub(crate) fn logprobs(
    model: Option<&Model>,
    hidden: &Tensor,
    head: &Tensor,
    targets: &Tensor,
    support: Option<&(Tensor, Tensor)>,
    temperature: f64,
    chunk: usize,
) -> Result<(Tensor, Tensor)> {
    let mut out = [null_mut(), null_mut()];
    // SAFETY: as above.
    checked(unsafe {
        r1_logprobs(
            model.map_or(null_mut(), |model| model.handle),
            pointer(hidden),
            pointer(head),
            pointer(targets),
            support.map_or(null(), |(ids, _)| pointer(ids)),
            support.map_or(null(), |(_, ends)| pointer(ends)),
            temperature,
            chunk as i64,
            out.as_mut_ptr(),
        )
    })?;
    Ok((owned(out[0]), owned(out[1])))
}

/// The most that tensors have held on a GPU so far, bytes; `None` for the CPU.
pub fn device_peak(device: tch::Device) -> Option<u64> {
    let tch::Device::Cuda(index) = device else { return None };
    // SAFETY: no pointers; the C++ answers -1 where there is no such device.
    u64::try_from(unsafe { r1_device_peak(index as i64) }).ok()
}

/// What a GPU can still give to tensors, bytes; `None` for the CPU, and where there is no such device.
pub fn device_free(device: tch::Device) -> Option<u64> {
    let tch::Device::Cuda(index) = device else { return None };
    // SAFETY: as above.
    u64::try_from(unsafe { r1_device_free(index as i64) }).ok()
}

/// One update in place of weights with their gradients, first and second moments; the four of a weight have one type and
/// shape. Gradients are scaled where they are.
pub(crate) fn adamw(weights: &[[&Tensor; 4]], settings: &AdamW) -> Result<()> {
    // All weights, then all gradients, and so on.
    let tensors: Vec<_> = (0..4).flat_map(|part| weights.iter().map(move |all| pointer(all[part]))).collect();
    // SAFETY: the pointers are live for the call.
    checked(unsafe { r1_adamw(tensors.as_ptr(), weights.len() as i64, settings) })
}

/// Leaves weights without gradients, and their memory to others.
pub(crate) fn forget_gradients<'a>(weights: impl Iterator<Item = &'a Tensor>) -> Result<()> {
    let tensors: Vec<_> = weights.map(pointer).collect();
    // SAFETY: as above.
    checked(unsafe { r1_forget_gradients(tensors.as_ptr(), tensors.len() as i64) })
}

/// Causal flash attention (arXiv:2307.08691) over sequences laid end to end, in f16 or bf16 on the GPU: q `[T, H, D]`, k and v
/// `[N, Hkv, D]`, H a multiple of Hkv, D of 8 and at most 256; gives `[T, H, D]`. `begins` are where queries and keys of each
/// sequence begin, [B + 1] i32; `keys` `[B]` i32 is how many keys each has, up to the next beginning if `None`. The last
/// query of a sequence stands at its last key. `most`: queries and keys of any sequence. `scale` is D^-0.5 if `None`.
/// Differentiable without `keys`.
pub(crate) fn flash(
    qkv: [&Tensor; 3],
    begins: [&Tensor; 2],
    keys: Option<&Tensor>,
    most: [i64; 2],
    scale: Option<f64>,
    window: Option<usize>,
) -> Result<Tensor> {
    let mut out = null_mut();
    let sequences = [pointer(begins[0]), pointer(begins[1]), keys.map_or(null(), pointer)];
    let (scale, window) = (scale.unwrap_or(0.0), window.map_or(0, |window| window as i64));
    // SAFETY: the pointers are live for the call; a null one stands for nothing.
    checked(unsafe {
        r1_flash(qkv.map(pointer).as_ptr(), sequences.as_ptr(), most[0], most[1], scale, window, &raw mut out)
    })?;
    Ok(owned(out))
}

/// Turns logits into the probabilities of softmax(logits * scale), in place; all NaN if a logit is NaN or +infinite.
pub fn softmax(row: &mut [f32], scale: f32) {
    // In pieces without a way out, which the compiler turns into vectors.
    let fine = |piece: &[f32]| piece.iter().filter(|logit| **logit < f32::INFINITY).count() == piece.len();
    if !row.chunks(1 << 12).all(fine) {
        row.fill(f32::NAN);
        return;
    }
    // SAFETY: the row is ours for the call, which keeps within it.
    unsafe { r1_softmax(row.as_mut_ptr(), row.len() as i64, scale) }
}
