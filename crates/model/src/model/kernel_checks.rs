//! r1's CUDA kernels compared with libtorch's operations in f64: outputs and gradients. Tests do so
//! on the CPU, gpu-check on a GPU, and a model when it is opened.

use tch::{Device, Kind, Tensor};

use super::Config;
use super::config::Activation;
use super::plain::{self, Arithmetic, Scores};
use super::varlen::Varlen;
use crate::native::{self, Cached, Heads, Softmax};
use r1_base::error::{Error, Result};

/// One comparison.
#[derive(Clone, Debug)]
pub struct KernelCheck {
    /// Name as in `R1_CUDA_KERNELS`.
    pub kernel: &'static str,
    /// Type and shapes.
    pub case: String,
    /// Largest difference over the outputs and gradients, each relative to its largest number.
    pub difference: f64,
    /// Largest difference that rounding explains.
    pub limit: f64,
}

impl KernelCheck {
    /// Whether the difference is within the limit; not so for a NaN.
    pub fn agrees(&self) -> bool {
        self.difference <= self.limit
    }
}

/// Sizes of a comparison.
#[derive(Clone, Debug)]
pub(super) struct Shapes {
    pub tokens: i64,
    pub hidden: i64,
    pub inner: i64,
    pub vocab: i64,
    pub heads: i64,
    pub kv_heads: i64,
    pub head_dim: i64,
    /// Number of keys of each sequence of a decode step.
    pub lengths: Vec<i64>,
    pub window: Option<usize>,
    pub gelu: bool,
    /// Added to the weights of norms.
    pub offset: f64,
}

impl Shapes {
    /// A few tokens of a model, and a part of its vocabulary.
    pub(super) fn of(config: &Config) -> Self {
        Self {
            tokens: 5,
            hidden: config.hidden_size as i64,
            inner: config.intermediate_size as i64,
            vocab: config.vocab_size.min(4096) as i64,
            heads: config.num_attention_heads as i64,
            kv_heads: config.num_key_value_heads as i64,
            head_dim: config.head_dim as i64,
            lengths: vec![1, 70, 333],
            window: (0..config.num_hidden_layers).find_map(|index| config.layer(index).window).map(|all| all.min(40)),
            gelu: config.activation == Activation::GeluTanh,
            offset: if config.zero_centred_norms { 1.0 } else { 0.0 },
        }
    }
}

/// Compares every kernel on a device for small and odd shapes, and for shapes of large models if
/// `large`.
///
/// # Errors
/// `Kind::Internal`: a kernel does not compile or start.
pub fn check_kernels(device: Device, large: bool) -> Result<Vec<KernelCheck>> {
    let base = Shapes {
        tokens: 7,
        hidden: 64,
        inner: 48,
        vocab: 128,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        lengths: vec![1, 5, 64, 65, 130],
        window: None,
        gelu: false,
        offset: 0.0,
    };
    let mut all = vec![
        base.clone(),
        Shapes { heads: 3, kv_heads: 3, head_dim: 48, window: Some(16), hidden: 1100, ..base.clone() },
        Shapes { heads: 18, kv_heads: 1, head_dim: 64, inner: 2060, vocab: 1003, gelu: true, ..base.clone() },
        Shapes { tokens: 1, hidden: 33, inner: 35, vocab: 97, head_dim: 8, window: Some(64), ..base.clone() },
        Shapes { tokens: 530, hidden: 264, vocab: 16, offset: 1.0, lengths: vec![2], ..base.clone() },
    ];
    if large {
        let wide = Shapes { tokens: 4096, hidden: 1536, inner: 8960, vocab: 151_936, ..base };
        let (lengths, ragged) = ((0..64).map(|b| 1 + (b * 131) % 1024).collect(), vec![8192, 1, 4097, 63]);
        all.extend([
            Shapes { heads: 12, kv_heads: 2, head_dim: 128, lengths, ..wide.clone() },
            Shapes { heads: 14, kv_heads: 2, head_dim: 64, lengths: ragged.clone(), hidden: 896, ..wide.clone() },
            Shapes { heads: 28, kv_heads: 4, head_dim: 128, lengths: ragged.clone(), hidden: 3584, ..wide.clone() },
            Shapes { heads: 16, kv_heads: 16, head_dim: 128, lengths: ragged.clone(), hidden: 8192, ..wide.clone() },
            Shapes { heads: 8, kv_heads: 4, head_dim: 256, lengths: ragged, window: Some(1024), ..wide },
        ]);
    }
    let mut checks = Vec::new();
    for shapes in &all {
        for kind in [Kind::BFloat16, Kind::Float] {
            for name in ["norm", "rope", "gated", "logprobs", "attention"] {
                checks.extend(check(name, shapes, device, kind)?);
            }
        }
    }
    Ok(checks)
}

/// Compares a kernel with libtorch's operations; no comparisons if it does not support the sizes.
pub(super) fn check(name: &str, shapes: &Shapes, device: Device, kind: Kind) -> Result<Vec<KernelCheck>> {
    let case = Case { shapes, options: (kind, device) };
    match name {
        "norm" => case.norm(),
        "rope" => case.rope(),
        "gated" => case.gated(),
        "logprobs" => case.logprobs(),
        "attention" => case.attention(),
        _ => Err(Error::new(r1_base::error::Kind::Internal, format!("no kernel is named `{name}`"))),
    }
}

/// Outputs for inputs, by a kernel or without.
type RunKernel<'a> = dyn Fn(&[Tensor], bool) -> Result<Vec<Tensor>> + 'a;

struct Case<'a> {
    shapes: &'a Shapes,
    options: (Kind, Device),
}

impl Case<'_> {
    /// Numbers of the given shape, different for each seed, about 1 in size.
    fn numbers(&self, seed: i64, shape: &[i64]) -> Result<Tensor> {
        let count = shape.iter().product::<i64>();
        let ramp = Tensor::f_arange(count, (Kind::Double, self.options.1))?;
        let wave = ramp.f_mul_scalar(0.7 + 0.01 * seed as f64)?.f_add_scalar(seed as f64)?.f_sin()?;
        Ok(wave.f_mul_scalar(1.5)?.f_to_kind(self.options.0)?.f_view(shape)?)
    }

    fn report(&self, kernel: &'static str, what: &str, difference: f64) -> KernelCheck {
        let bf16 = self.options.0 == Kind::BFloat16;
        let case = format!("{}, {what}", if bf16 { "bf16" } else { "f32" });
        KernelCheck { kernel, case, difference, limit: if bf16 { 0.012 } else { 2e-5 } }
    }

    fn norm(&self) -> Result<Vec<KernelCheck>> {
        let Shapes { tokens, hidden, offset, .. } = *self.shapes;
        let (x, delta) = (self.numbers(1, &[tokens, 2 * hidden])?, self.numbers(2, &[tokens, hidden])?);
        // Rows that are not side by side.
        let (x, weight) = (x.f_narrow(1, hidden, hidden)?, self.numbers(3, &[hidden])?);
        let mut all = Vec::new();
        for added in [false, true] {
            let run = |inputs: &[Tensor], fused: bool| -> Result<Vec<Tensor>> {
                let [x, delta, weight] = inputs else { return Ok(Vec::new()) };
                let delta = added.then_some(delta);
                let (norm, sum) = if fused {
                    native::add_norm(x, delta, weight, 1e-5, offset)?
                } else {
                    let sum = delta.map_or_else(|| Ok(x.shallow_clone()), |delta| x.f_add(delta))?;
                    (plain_norm(&sum, weight, offset)?, sum)
                };
                Ok(if added { vec![norm, sum] } else { vec![norm] })
            };
            let difference = self.compare(&[&x, &delta, &weight], 3, &run)?;
            let what = format!("{tokens} x {hidden}, add {added}, offset {offset}");
            let mut check = self.report("norm", &what, difference);
            // The gradient of a weight is a sum over tokens whose terms cancel, not their rounding.
            check.limit *= ((tokens as f64).sqrt() / 5.0).max(1.0);
            all.push(check);
        }
        Ok(all)
    }

    fn gated(&self) -> Result<Vec<KernelCheck>> {
        let Shapes { tokens, inner, gelu, .. } = *self.shapes;
        let both = self.numbers(1, &[tokens, 2 * inner])?;
        let (gate, up) = (both.f_narrow(1, 0, inner)?.f_mul_scalar(3.0)?, both.f_narrow(1, inner, inner)?);
        let activation = if gelu { Activation::GeluTanh } else { Activation::Silu };
        let run = |inputs: &[Tensor], fused: bool| -> Result<Vec<Tensor>> {
            let [gate, up] = inputs else { return Ok(Vec::new()) };
            let out = if fused {
                native::gated(gate, up, gelu)?
            } else {
                Arithmetic::Libtorch.gated(activation, gate, up)?
            };
            Ok(vec![out])
        };
        let difference = self.compare(&[&gate, &up], 2, &run)?;
        Ok(vec![self.report("gated", &format!("{tokens} x {inner}, gelu {gelu}"), difference)])
    }

    fn rope(&self) -> Result<Vec<KernelCheck>> {
        let Shapes { tokens, heads, kv_heads, head_dim: dim, offset, .. } = *self.shapes;
        let all = self.numbers(1, &[tokens, (heads + 2 * kv_heads) * dim])?;
        let sizes = [heads * dim, kv_heads * dim, kv_heads * dim];
        let parts = all.f_split_with_sizes(&sizes[..], 1)?;
        let half = self.numbers(2, &[tokens, dim / 2])?.f_to_kind(Kind::Double)?;
        let (cos, sin) = plain::angles(&half, 1.25, self.options.0)?;
        let biases = (3..6).zip(sizes).map(|(seed, size)| self.numbers(seed, &[size])).collect::<Result<Vec<_>>>()?;
        let norms = [self.numbers(6, &[dim])?, self.numbers(7, &[dim])?];
        let with = |inputs: &[Tensor], cached: Option<Cached<'_>>, decorated: bool, turned: bool| {
            let [q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm, cos, sin] = inputs else {
                return Ok((Vec::new(), None));
            };
            let heads = Heads {
                projections: [q, k, v],
                biases: [q_bias, k_bias, v_bias].map(|bias| decorated.then_some(bias)),
                norms: decorated.then_some([q_norm, k_norm]),
                angles: turned.then_some((cos, sin)),
                eps: 1e-5,
                offset,
                dim,
            };
            let (q, new) = native::rotated_heads(&heads, cached)?;
            Ok::<_, Error>((vec![q], new))
        };
        let plainly = |inputs: &[Tensor], decorated: bool, turned: bool| -> Result<Vec<Tensor>> {
            let mut out = Vec::new();
            for index in 0..3 {
                let mut x = inputs[index].shallow_clone();
                if decorated {
                    x = x.f_add(&inputs[3 + index])?;
                }
                let mut x = x.f_reshape([tokens, -1, dim])?;
                if decorated && index < 2 {
                    x = plain_norm(&x, &inputs[6 + index], offset)?;
                }
                out.push(if turned && index < 2 { plain::rotate(&x, &inputs[8], &inputs[9])? } else { x });
            }
            Ok(out)
        };
        let inputs: Vec<&Tensor> = parts.iter().chain(&biases).chain(&norms).chain([&cos, &sin]).collect();
        let run = |inputs: &[Tensor], fused: bool| -> Result<Vec<Tensor>> {
            if !fused {
                return plainly(inputs, false, true);
            }
            let (mut out, new) = with(inputs, None, false, true)?;
            out.extend(new.into_iter().flatten());
            Ok(out)
        };
        let shape = format!("{tokens} tokens, {heads} and {kv_heads} heads of {dim}");
        let mut checks = vec![self.report("rope", &format!("{shape}, learning"), self.compare(&inputs, 3, &run)?)];
        // Into a cache, at places in another order.
        let (slots, capacity) = (tokens.min(3), (tokens + 2) / 3 + 4);
        let _guard = tch::no_grad_guard();
        for (decorated, turned) in [(true, true), (false, true), (true, false)] {
            let row = Tensor::f_arange(tokens, (Kind::Int64, self.options.1))?;
            let slot = row.f_remainder(slots)?;
            let position = row.f_floor_divide_scalar(slots)?.f_add_scalar(2)?;
            let caches = || Tensor::f_full([slots, capacity, kv_heads, dim], 9.0, (self.options.0, self.options.1));
            let (keys, values) = (caches()?, caches()?);
            let cached = Cached { keys: &keys, values: &values, slots: &slot, positions: &position };
            let copies: Vec<Tensor> = inputs.iter().map(|x| x.shallow_clone()).collect();
            let (mut out, _) = with(&copies, Some(cached), decorated, turned)?;
            out.extend([keys.shallow_clone(), values.shallow_clone()]);
            let wide = wide(&inputs)?;
            let mut expected = plainly(&wide, decorated, turned)?;
            for new in &mut expected[1..] {
                let mut cache = caches()?.f_to_kind(Kind::Double)?;
                let _ = cache.f_index_put_(&[Some(&slot), Some(&position)], new, false)?;
                *new = cache;
            }
            let what = format!("{shape}, cache, biases and norms {decorated}, rotation {turned}");
            checks.push(self.report("rope", &what, largest(&out, &expected)?));
        }
        Ok(checks)
    }

    fn logprobs(&self) -> Result<Vec<KernelCheck>> {
        let Shapes { tokens, vocab, hidden, .. } = *self.shapes;
        let (tokens, hidden) = (tokens.min(300), hidden.min(256));
        let x = self.numbers(1, &[tokens, hidden])?;
        // Logits of up to about 20, as a trained model has them.
        let head = self.numbers(2, &[vocab, hidden])?.f_mul_scalar(8.0 / (hidden as f64).sqrt())?;
        let targets = Tensor::f_arange(tokens, (Kind::Int64, self.options.1))?.f_mul_scalar(31)?.f_remainder(vocab)?;
        // Every second position has a support.
        let (mut support, mut ends) = (Vec::new(), Vec::new());
        for token in 0..tokens {
            let target = token * 31 % vocab;
            if token % 2 == 1 {
                support.extend([target, (target + 1) % vocab, (target + 5) % vocab]);
            }
            ends.push(support.len() as i64);
        }
        let support = (Tensor::f_from_slice(&support)?, Tensor::f_from_slice(&ends)?);
        let mut checks = Vec::new();
        for (among, temperature) in [(false, 1.0), (true, 0.7)] {
            let run = |inputs: &[Tensor], use_kernel: bool| -> Result<Vec<Tensor>> {
                let [x, head] = inputs else { return Ok(Vec::new()) };
                let softmax = Softmax { temperature, chunk: 4096.min(tokens as usize * 2 / 3 + 1), fused: use_kernel };
                let (logp, entropy) = native::logprobs(None, x, head, &targets, among.then_some(&support), softmax)?;
                Ok(vec![logp, entropy])
            };
            let what = format!("{tokens} x {vocab}, support {among}, temperature {temperature}");
            // The CPU rounds logits in bf16, which is not the kernel's.
            let rounded = self.options.0 == Kind::BFloat16;
            checks.push(self.report("logprobs", &what, self.compare_as(&[&x, &head], 2, &run, rounded)?));
        }
        Ok(checks)
    }

    fn attention(&self) -> Result<Vec<KernelCheck>> {
        let Shapes { heads, kv_heads, head_dim: dim, window, .. } = *self.shapes;
        let lengths = &self.shapes.lengths;
        if self.options.0 != Kind::BFloat16 || dim % 8 != 0 {
            return Ok(Vec::new());
        }
        let _guard = tch::no_grad_guard();
        let (count, longest) = (lengths.len() as i64, lengths.iter().copied().max().unwrap_or(1));
        // A cache with more tokens than the sequences have.
        let capacity = longest + 70;
        let q = self.numbers(1, &[count, heads, dim])?;
        let keys = self.numbers(2, &[(count + 1) * capacity, kv_heads, dim])?;
        let values = self.numbers(3, &[(count + 1) * capacity, kv_heads, dim])?;
        let narrow = |numbers: &[i64]| -> Result<Tensor> {
            Ok(Tensor::f_from_slice(numbers)?.f_to_kind(Kind::Int)?.f_to_device(self.options.1)?)
        };
        // Slots in reverse order.
        let mut first: Vec<i64> = (0..count).map(|slot| (count - slot) * capacity).collect();
        first.push(0);
        let varlen = Varlen {
            first_query: narrow(&(0..=count).collect::<Vec<_>>())?,
            first_key: narrow(&first)?,
            keys: Some(narrow(lengths)?),
            most_queries: 1,
            most_keys: capacity,
        };
        let wide = wide(&[&q, &keys, &values])?;
        let mut checks = Vec::new();
        for (scale, window) in [(None, None), (Some(0.3), Some(window.unwrap_or(17)))] {
            let scores = Scores { window, scale, sinks: None };
            let expected = varlen.attend_plain(&wide[0], &wide[1], &wide[2], scores)?;
            let places = [&varlen.first_key, varlen.keys.as_ref().unwrap_or(&varlen.first_key)];
            let output = native::decode_attention([&q, &keys, &values], places, capacity, scale, window)?;
            let what =
                format!("{count} sequences to {longest}, {heads} and {kv_heads} heads of {dim}, window {window:?}");
            checks.push(self.report("attention", &what, largest(&[output], &[expected])?));
        }
        Ok(checks)
    }

    /// Compares outputs, and the gradients of the first `trained` inputs, of a kernel with the
    /// results of libtorch's operations in f64.
    fn compare(&self, inputs: &[&Tensor], trained: usize, run: &RunKernel<'_>) -> Result<f64> {
        self.compare_as(inputs, trained, run, false)
    }

    /// As [`compare`](Self::compare); with `same_type` libtorch's operations have the inputs of the
    /// kernel.
    fn compare_as(&self, inputs: &[&Tensor], trained: usize, run: &RunKernel<'_>, same_type: bool) -> Result<f64> {
        let learn = |inputs: Vec<Tensor>, fused: bool| -> Result<Vec<Tensor>> {
            let mut leaves = Vec::new();
            for (index, input) in inputs.into_iter().enumerate() {
                leaves.push(input.f_detach()?.f_set_requires_grad(index < trained)?);
            }
            let outputs = run(&leaves, fused)?;
            let mut loss = Tensor::f_zeros([], (Kind::Double, self.options.1))?;
            for (seed, output) in (20..).zip(&outputs) {
                let weights = self.numbers(seed, &output.size())?.f_to_kind(Kind::Double)?;
                loss = loss.f_add(&output.f_to_kind(Kind::Double)?.f_mul(&weights)?.f_sum(Kind::Double)?)?;
            }
            loss.f_backward()?;
            let mut all: Vec<Tensor> = outputs.iter().map(Tensor::detach).collect();
            all.extend(leaves[..trained].iter().map(Tensor::grad).filter(Tensor::defined));
            Ok(all)
        };
        let copies = inputs.iter().map(|input| input.shallow_clone()).collect();
        let expected =
            if same_type { inputs.iter().map(|input| input.shallow_clone()).collect() } else { wide(inputs)? };
        largest(&learn(copies, true)?, &learn(expected, false)?)
    }
}

fn plain_norm(x: &Tensor, weight: &Tensor, offset: f64) -> Result<Tensor> {
    plain::rms_norm(x, &weight.f_add_scalar(offset)?, 1e-5, false)
}

fn wide(inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    inputs.iter().map(|input| Ok(input.f_to_kind(Kind::Double)?)).collect()
}

/// The largest difference of tensors, each relative to its largest number; infinite if their
/// numbers or shapes differ.
fn largest(actual: &[Tensor], expected: &[Tensor]) -> Result<f64> {
    if actual.len() != expected.len()
        || actual.iter().zip(expected).any(|(actual, expected)| actual.size() != expected.size())
    {
        return Ok(f64::INFINITY);
    }
    let mut worst = 0.0;
    for (actual, expected) in actual.iter().zip(expected) {
        let largest_of = |x: &Tensor| -> Result<f64> { Ok(x.f_abs()?.f_max()?.f_double_value(&[])?) };
        let difference = largest_of(&actual.f_to_kind(Kind::Double)?.f_sub(expected)?)?;
        let relative = difference / largest_of(expected)?.max(1e-6);
        if relative.is_nan() || relative > worst {
            worst = relative;
        }
        if worst.is_nan() {
            break;
        }
    }
    Ok(worst)
}
