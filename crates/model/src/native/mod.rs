//! C++ over libtorch: operations that tch does not bind, and the CPU kernels (`cpu`,
//! docs/lab/cpu-kernels.md).
//!
//! Chunked log-probabilities, fused AdamW and flash attention use libtorch's operations on every
//! device. Tensors are passed as tch's pointers. C++ exceptions become errors with libtorch's
//! message.

mod arena;
mod collectives;
// The CPU kernels, or their replacement in a build without them.
#[cfg_attr(not(feature = "cpu-kernels"), path = "cpu/absent.rs")]
mod cpu;
mod cuda;
mod device;
mod kernels;
mod operations;
mod profiler;
mod threads;

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use tch::Tensor;

pub(crate) use arena::Arena;
pub(crate) use collectives::Collectives;
pub(crate) use cpu::{Network, attend_rows, by_layer, gated_rows, linear_rows, panel};
pub use cpu::{kernels, softmax};
pub(crate) use cuda::CudaGraph;
pub use cuda::{compute_kind, cuda_graphs, device, load_cuda_torch};
pub(crate) use cuda::{kernels_missing, wanted_kernels};
pub(crate) use device::DeviceEvent;
pub use device::meta;
pub use device::release_memory;
pub use device::upload;
pub(crate) use device::zeros;
pub use device::{release_storage, restore_storage};
pub(crate) use kernels::{Cached, Heads, add_norm, decode_attention, gated, rotated_heads};
pub use operations::count_operations;
pub use profiler::{OperationTime, start_profile, stop_profile};
pub use r1_base::out_of_memory;
pub use threads::{has_default_threads, return_memory, set_default_threads, set_threads, thread_count};

use r1_base::error::{Error, Result};

/// Constants of one update; the same fields as `r1::AdamW` in adamw.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdamWConstants {
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    /// Factor of the gradients.
    pub scale: f64,
    /// Index of this update, from 1.
    pub step: i64,
}

/// How [`logprobs`] computes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Softmax {
    pub temperature: f64,
    /// Positions per chunk.
    pub chunk: usize,
    /// With r1's CUDA kernel (`kernels`), in bf16 and f32.
    pub fused: bool,
}

unsafe extern "C" {
    fn r1_free_message(message: *mut c_char);
    fn r1_arena() -> *mut c_void;
    fn r1_arena_free(arena: *mut c_void);
    fn r1_arena_take(
        arena: *mut c_void,
        shape: *const i64,
        dimensions: i64,
        like: *const c_void,
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
        fused: bool,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn r1_device_peak(index: i64) -> i64;
    fn r1_device_free(index: i64) -> i64;
    fn r1_stacked_linear(
        x: *const c_void,
        weight: *const c_void,
        bias: *const c_void,
        leaves: *const *const c_void,
        leaf_count: i64,
        sizes: *const i64,
        size_count: i64,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn r1_grouped_linear(
        x: *const c_void,
        weight: *const c_void,
        ends: *const c_void,
        leaves: *const *const c_void,
        leaf_count: i64,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn r1_forget_gradients(tensors: *const *const c_void, count: i64) -> *mut c_char;
    fn r1_adamw(tensors: *const *const c_void, count: i64, settings: *const AdamWConstants) -> *mut c_char;
    fn r1_flash(
        qkv: *const *const c_void,
        sequences: *const *const c_void,
        most_queries: i64,
        most_keys: i64,
        scale: f64,
        window: i64,
        out: *mut *mut c_void,
    ) -> *mut c_char;
}

/// Turns the message of a failed call into an error, and frees it.
fn checked(message: *mut c_char) -> Result<()> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: a message is a C string allocated by C++, freed once here.
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

#[cfg_attr(not(feature = "cpu-kernels"), allow(dead_code))]
fn pointers(tensors: &[Tensor]) -> Vec<*const c_void> {
    tensors.iter().map(pointer).collect()
}

/// Takes ownership of a tensor created in C++ with `new`.
fn owned(tensor: *mut c_void) -> Tensor {
    // SAFETY: called once on each pointer a successful call wrote; tch frees tensors with `delete`.
    unsafe { Tensor::from_ptr(tensor.cast()) }
}

/// Shape and constants of the network; the same fields as `r1::Shape` in common.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(dead_code)] // read by the kernels only
pub(crate) struct NetworkShape {
    pub vocab: i64,
    pub hidden: i64,
    pub inner: i64,
    pub layers: i64,
    pub heads: i64,
    pub kv_heads: i64,
    pub head_dim: i64,
    pub eps: f64,
    /// Factor of cosines and sines of the rotary embedding.
    pub magnitude: f64,
}

/// The tensor that a call writes.
fn written(call: impl FnOnce(*mut *mut c_void) -> *mut c_char) -> Result<Tensor> {
    let mut out = null_mut();
    checked(call(&raw mut out))?;
    Ok(owned(out))
}

/// Scalars of any type as f64, in one transfer from the device, for which the host waits.
pub fn read_numbers(scalars: &[Tensor]) -> Result<Vec<f64>> {
    if scalars.is_empty() {
        return Ok(Vec::new());
    }
    let wide = scalars.iter().map(|scalar| scalar.f_to_kind(tch::Kind::Double)).collect::<Result<Vec<_>, _>>()?;
    Ok(Vec::<f64>::try_from(Tensor::f_stack(&wide, 0)?)?)
}

/// The version of the libtorch that r1 was built against, such as `2.11.0`.
pub fn libtorch_version() -> &'static str {
    env!("R1_LIBTORCH_VERSION")
}

/// Log-probabilities of `targets` `[N]` i64 and entropies, both `[N]`, at hidden states `[N, E]`
/// with the output projection `head` `[V, E]`, a chunk of positions at a time, forward and
/// backward. `model` is the model of `head`, if the CPU kernels compute it (f32 only). `support`:
/// ids and their end offset per position, both i64 on the CPU; the distribution is over these ids
/// only, or over the whole vocabulary for a position without ids.
pub(crate) fn logprobs(
    model: Option<&Network>,
    hidden: &Tensor,
    head: &Tensor,
    targets: &Tensor,
    support: Option<&(Tensor, Tensor)>,
    softmax: Softmax,
) -> Result<(Tensor, Tensor)> {
    let mut out = [null_mut(), null_mut()];
    // SAFETY: as above.
    checked(unsafe {
        r1_logprobs(
            model.map_or(null_mut(), Network::pointer),
            pointer(hidden),
            pointer(head),
            pointer(targets),
            support.map_or(null(), |(ids, _)| pointer(ids)),
            support.map_or(null(), |(_, ends)| pointer(ends)),
            softmax.temperature,
            softmax.chunk as i64,
            softmax.fused,
            out.as_mut_ptr(),
        )
    })?;
    Ok((owned(out[0]), owned(out[1])))
}

/// Peak memory of tensors on a GPU, bytes; `None` for the CPU.
pub fn device_peak(device: tch::Device) -> Option<u64> {
    let tch::Device::Cuda(index) = device else { return None };
    // SAFETY: no pointers; C++ returns -1 for a missing device.
    u64::try_from(unsafe { r1_device_peak(index as i64) }).ok()
}

/// Free memory of a GPU, bytes; `None` for the CPU and for a missing device.
pub fn device_free(device: tch::Device) -> Option<u64> {
    let tch::Device::Cuda(index) = device else { return None };
    // SAFETY: as above.
    u64::try_from(unsafe { r1_device_free(index as i64) }).ok()
}

/// One in-place update of weights, with gradients, first and second moments of the same type and
/// shape. Gradients are scaled in place.
pub(crate) fn adamw(weights: &[[&Tensor; 4]], settings: &AdamWConstants) -> Result<()> {
    // All weights, then all gradients, and so on.
    let tensors: Vec<_> = (0..4).flat_map(|part| weights.iter().map(move |all| pointer(all[part]))).collect();
    // SAFETY: the pointers are live for the call.
    checked(unsafe { r1_adamw(tensors.as_ptr(), weights.len() as i64, settings) })
}

/// Clears the gradients of weights and frees their memory.
pub(crate) fn forget_gradients<'a>(weights: impl Iterator<Item = &'a Tensor>) -> Result<()> {
    let tensors: Vec<_> = weights.map(pointer).collect();
    // SAFETY: as above.
    checked(unsafe { r1_forget_gradients(tensors.as_ptr(), tensors.len() as i64) })
}

/// x `[T, in]` times `weight` `[out, in]` transposed plus `bias` `[out]`, in parts of the given
/// sizes, whose sum is `out`: views `[T, size]`. `leaves` receive the gradients of the weight and
/// the bias: views of its rows in order, then views of the bias. Their gradients are views of one
/// matrix, too. `weight` and `bias` themselves are not tracked by autograd.
pub(crate) fn stacked_linear(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    leaves: &[&Tensor],
    sizes: &[i64],
) -> Result<Vec<Tensor>> {
    let leaves: Vec<_> = leaves.iter().map(|leaf| pointer(leaf)).collect();
    let mut out = vec![null_mut(); sizes.len()];
    // SAFETY: the pointers are live for the call; C++ writes one tensor for each size.
    checked(unsafe {
        r1_stacked_linear(
            pointer(x),
            pointer(weight),
            bias.map_or(null(), pointer),
            leaves.as_ptr(),
            leaves.len() as i64,
            sizes.as_ptr(),
            sizes.len() as i64,
            out.as_mut_ptr(),
        )
    })?;
    Ok(out.into_iter().map(owned).collect())
}

/// x `[N, in]`, rows sorted by expert, times the transposed weights `[count, out, in]` of their
/// experts: `[N, out]`. `ends` `[count]` i32 are the ends of the rows of each expert, on the
/// device. `leaves` receive the gradients of the weights: views of their rows, expert by expert. In
/// f32, bf16 and f16; in bf16 on GPUs of compute capability 9.0 and above the host does not wait.
pub(crate) fn grouped_linear(x: &Tensor, weight: &Tensor, ends: &Tensor, leaves: &[&Tensor]) -> Result<Tensor> {
    let leaves: Vec<_> = leaves.iter().map(|leaf| pointer(leaf)).collect();
    let (x, weight, ends) = (pointer(x), pointer(weight), pointer(ends));
    // SAFETY: the pointers are live for the call.
    written(|out| unsafe { r1_grouped_linear(x, weight, ends, leaves.as_ptr(), leaves.len() as i64, out) })
}

/// Flash attention (arXiv:2307.08691) over packed sequences, in f16 or bf16 on the GPU: q
/// `[T, H, D]`, k and v `[N, Hkv, D]`, H a multiple of Hkv, D a multiple of 8 and at most 256;
/// returns `[T, H, D]`. `begins` are the offsets of queries and keys of each sequence, [B + 1] i32;
/// `keys` `[B]` i32 is the number of keys of each, up to the next offset if `None`. The last query
/// of a sequence is at its last key. `limit`: maximum queries and keys per sequence. `scale` is
/// D^-0.5 if `None`. Without `causal` a query attends to all keys of its sequence, and there is no
/// window. Differentiable without `keys`.
pub(crate) fn flash(
    qkv: [&Tensor; 3],
    begins: [&Tensor; 2],
    keys: Option<&Tensor>,
    limit: [i64; 2],
    scale: Option<f64>,
    window: Option<usize>,
    causal: bool,
) -> Result<Tensor> {
    let sequences = [pointer(begins[0]), pointer(begins[1]), keys.map_or(null(), pointer)];
    let (scale, window) = (scale.unwrap_or(0.0), window.map_or(0, |window| window as i64));
    let window = if causal { window } else { -1 };
    // SAFETY: the pointers are live for the call; null is allowed.
    written(|out| unsafe {
        r1_flash(qkv.map(pointer).as_ptr(), sequences.as_ptr(), limit[0], limit[1], scale, window, out)
    })
}

/// The name of the processor: the model and family that Linux reports, or the architecture. Read
/// once.
pub fn cpu_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field =
            |name| info.lines().find_map(|line| line.strip_prefix(name)?.split_once(':')).map(|(_, text)| text.trim());
        match (field("model name"), field("cpu family")) {
            (Some(model), Some(family)) => format!("{model}, family {family}"),
            (Some(model), None) => model.to_owned(),
            (None, _) => std::env::consts::ARCH.to_owned(),
        }
    })
}

/// Whether the CPU kernels are built and not disabled by `R1_KERNELS=off`. Read once.
pub fn has_cpu_kernels() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| cfg!(feature = "cpu-kernels") && std::env::var_os("R1_KERNELS").is_none_or(|wish| wish != "off"))
}
