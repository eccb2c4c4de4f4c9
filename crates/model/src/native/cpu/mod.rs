//! r1's CPU kernels: matrix products, attention, and a backward pass over whole Llama-like networks
//! (Qwen2, Llama, Qwen3 …). See docs/lab/cpu-kernels.md for their purpose, measurements and tests.
//!
//! They support training, scoring and generation in f32, and generation in bf16 with f32
//! activations. The cargo feature `cpu-kernels` builds them; `R1_KERNELS=off` disables them at run
//! time in favour of libtorch.

mod rowwise;

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};

use tch::Tensor;

pub(crate) use rowwise::{attend_rows, gated_rows, linear_rows};

use super::{NetworkShape, checked, owned, pointer, pointers, written};
use r1_base::error::{Error, Result};

/// New ids of one sequence, at positions `start..` of its slot.
#[repr(C)]
struct SpanView {
    slot: i64,
    start: i64,
    count: i64,
    ids: *const u32,
}

unsafe extern "C" {
    fn r1_kernels() -> *const c_char;
    fn r1_panel() -> i64;
    fn r1_model(
        shape: *const NetworkShape,
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
    fn r1_layer_hook(done: Option<extern "C" fn(*mut c_void, i64) -> bool>, context: *mut c_void);
    fn r1_linear_rows(
        x: *const c_void,
        weight: *const c_void,
        bias: *const c_void,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn r1_gated_rows(gate: *const c_void, up: *const c_void, gelu: bool, out: *mut *mut c_void) -> *mut c_char;
    fn r1_attend_rows(
        qkv: *const *const c_void,
        sinks: *const c_void,
        slots: *const c_void,
        positions: *const c_void,
        scale: f64,
        window: i64,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn r1_softmax(row: *mut f32, count: i64, scale: f32);
}

/// Instruction set of the kernels: `base`, `avx2`, `avx512` or `avx512bf16`; `off` if they are not
/// used.
pub fn kernels() -> &'static str {
    if !super::has_cpu_kernels() {
        return "off";
    }
    // SAFETY: a static C string.
    unsafe { CStr::from_ptr(r1_kernels()) }.to_str().unwrap_or("unknown")
}

/// Floats in a panel of cached keys; capacities are multiples of it.
pub(crate) fn panel() -> usize {
    // SAFETY: no arguments, no state.
    unsafe { r1_panel() as usize }
}

/// Runs `backward`, a backward pass through [`Network::forward`], and calls `layer_done` when the
/// gradients of a layer are complete, from the last layer to the first.
///
/// # Errors
/// Errors of `layer_done`, which end the pass, and of `backward`.
pub(crate) fn by_layer(
    layer_done: &mut dyn FnMut(usize) -> Result<()>,
    backward: impl FnOnce() -> Result<()>,
) -> Result<()> {
    struct Context<'a> {
        layer_done: &'a mut dyn FnMut(usize) -> Result<()>,
        error: Option<Error>,
    }
    extern "C" fn done(context: *mut c_void, layer: i64) -> bool {
        // SAFETY: `context` below outlives the backward pass, which calls this on the same thread.
        let context = unsafe { &mut *context.cast::<Context<'_>>() };
        context.error = (context.layer_done)(usize::try_from(layer).unwrap_or(0)).err();
        context.error.is_none()
    }
    /// Removes the hook when dropped.
    struct Remove;
    impl Drop for Remove {
        fn drop(&mut self) {
            // SAFETY: null pointers are allowed.
            unsafe { r1_layer_hook(None, null_mut()) }
        }
    }
    let mut context = Context { layer_done, error: None };
    let result = {
        let _remove = Remove;
        // SAFETY: the hook is removed before `context` is dropped.
        unsafe { r1_layer_hook(Some(done), (&raw mut context).cast()) };
        backward()
    };
    context.error.map_or(result, Err)
}

/// A network that shares its parameters with their owner.
#[derive(Debug)]
pub(crate) struct Network {
    handle: *mut c_void,
}

// SAFETY: the handle owns memory of the heap, and nothing in it belongs to a thread.
unsafe impl Send for Network {}

impl Network {
    /// `parameters` are contiguous on the CPU, all f32 or all bf16, in the order of `common.h`:
    /// embedding, layers, norm, head unless tied; `None` for a bias or a head's norm that the model
    /// does not have. They may change in place, except between a forward pass and its backward
    /// pass. `frequencies` `[D / 2]` f32 are the rotary frequencies.
    pub(crate) fn new(shape: &NetworkShape, frequencies: &Tensor, parameters: &[Option<Tensor>]) -> Result<Self> {
        let mut handle = null_mut();
        let parameters: Vec<_> = parameters.iter().map(|tensor| tensor.as_ref().map_or(null(), pointer)).collect();
        // SAFETY: the pointers are live for the call, which copies what it keeps.
        checked(unsafe {
            r1_model(shape, pointer(frequencies), parameters.as_ptr(), parameters.len() as i64, &raw mut handle)
        })?;
        Ok(Self { handle })
    }

    /// Hidden states `[T, E]` of packed rows; differentiable. Refused in bf16. `inputs_only`: keeps
    /// only the inputs of the layers, and backward recomputes the rest with bitwise equal results.
    pub(crate) fn forward(
        &self,
        ids: &Tensor,
        positions: &Tensor,
        lengths: &[i64],
        inputs_only: bool,
    ) -> Result<Tensor> {
        let (ids, positions, rows) = (pointer(ids), pointer(positions), lengths.len() as i64);
        // SAFETY: the handle is valid for the lifetime of self, the other pointers for the call.
        written(|out| unsafe { r1_forward(self.handle, ids, positions, lengths.as_ptr(), rows, inputs_only, out) })
    }

    /// Logits [spans, V] after each span `(slot, start, ids)`. Keys are [slots, Hkv, capacity /
    /// panel, D, panel] and values `[slots, Hkv, capacity, D]`, one of each per layer, in f32; each
    /// slot appears once. If `stop`, polled between the layers, returns true, the result is `None`.
    pub(crate) fn step<'a>(
        &self,
        keys: &[Tensor],
        values: &[Tensor],
        capacity: usize,
        spans: impl Iterator<Item = (usize, usize, &'a [u32])>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Tensor>> {
        /// Calls the closure whose pointer `step` passes to C++.
        extern "C" fn polled(stop: *const c_void) -> bool {
            // SAFETY: `context` below outlives the C++ call, which passes it back on the same
            // thread.
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
        // SAFETY: as above; the C++ checks slots, positions and ids against the cache and the
        // vocabulary.
        checked(unsafe {
            r1_step(
                self.handle,
                keys.as_ptr(),
                values.as_ptr(),
                capacity as i64,
                spans.as_ptr(),
                spans.len() as i64,
                polled,
                context.cast(),
                &raw mut out,
            )
        })?;
        Ok((!out.is_null()).then(|| owned(out)))
    }
}

impl Network {
    pub(super) fn pointer(&self) -> *mut c_void {
        self.handle
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // SAFETY: created by r1_model, freed once.
        unsafe { r1_model_free(self.handle) }
    }
}

/// Replaces logits with softmax(logits * scale); all NaN if a logit is NaN or +infinite.
pub fn softmax(row: &mut [f32], scale: f32) {
    // Chunks without an early exit, which the compiler vectorises.
    let fine = |piece: &[f32]| piece.iter().filter(|logit| **logit < f32::INFINITY).count() == piece.len();
    if !row.chunks(1 << 12).all(fine) {
        row.fill(f32::NAN);
        return;
    }
    // SAFETY: the row is borrowed for the call, which stays in bounds.
    unsafe { r1_softmax(row.as_mut_ptr(), row.len() as i64, scale) }
}
