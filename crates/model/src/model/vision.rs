//! The vision tower of Qwen2.5-VL (arXiv:2502.13923): from the patches of images and videos to
//! embeddings for the language model.
//!
//! Most layers attend within windows, and some within whole frames. Patches are computed window by
//! window; squares of patches become one embedding at the end. Names of parameters are those of the
//! checkpoint below `visual.`.

use std::collections::BTreeMap;

use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::plain::{angles, rms_norm, rotate};
use super::{upload, zeros};
use r1_base::error::{self, Error, Result};

/// Largest size in a configuration.
const LARGEST: u64 = 1 << 24;
const EPS: f64 = 1e-6;
const ROPE_BASE: f64 = 10_000.0;

/// `vision_config` of a `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    pub layers: usize,
    pub hidden: usize,
    pub inner: usize,
    pub heads: usize,
    /// Size of the embeddings of the language model.
    pub out: usize,
    pub channels: usize,
    pub patch: usize,
    pub temporal_patch: usize,
    /// Patches along each side that become one embedding.
    pub merge: usize,
    /// Pixels along each side of a window.
    pub window: usize,
    /// Layers that attend to whole frames.
    pub full_layers: Vec<usize>,
}

impl VisionConfig {
    /// # Errors
    /// `Kind::Model` names a field that is missing or has a value that is not supported.
    pub fn from_json(json: &Value) -> Result<Self> {
        let refused = |why: String| Error::new(error::Kind::Model, format!("config.json: vision_config: {why}"));
        let size_or = |name: &str, default: Option<usize>| match &json[name] {
            Value::Null if default.is_some() => Ok(default.unwrap_or_default()),
            value => {
                value.as_u64().filter(|size| (1..=LARGEST).contains(size)).map(|size| size as usize).ok_or_else(|| {
                    refused(format!("`{name}` is {value}; it must be a whole number from 1 to {LARGEST}"))
                })
            }
        };
        let size = |name: &str| size_or(name, None);
        let kind = json["model_type"].as_str().unwrap_or("qwen2_5_vl");
        if !["qwen2_5_vl", "qwen2_5_vl_vision"].contains(&kind) {
            return Err(refused(format!("`model_type` {kind:?} is not supported")));
        }
        if let Some(other) = json["hidden_act"].as_str().filter(|name| *name != "silu") {
            return Err(refused(format!("`hidden_act` is {other:?}; only \"silu\" is supported")));
        }
        let config = Self {
            layers: size("depth")?,
            hidden: size("hidden_size")?,
            inner: size("intermediate_size")?,
            heads: size("num_heads")?,
            out: size("out_hidden_size")?,
            channels: size_or("in_channels", json["in_chans"].as_u64().map(|size| size as usize).or(Some(3)))?,
            patch: size("patch_size")?,
            temporal_patch: size_or("temporal_patch_size", Some(2))?,
            merge: size_or("spatial_merge_size", Some(2))?,
            window: size("window_size")?,
            full_layers: serde_json::from_value(json["fullatt_block_indexes"].clone())
                .map_err(|_| refused("`fullatt_block_indexes` is not a list of layers".to_owned()))?,
        };
        if !config.hidden.is_multiple_of(config.heads) || !(config.hidden / config.heads).is_multiple_of(4) {
            let (hidden, heads) = (config.hidden, config.heads);
            return Err(refused(format!("`hidden_size` {hidden} in {heads} heads is not a multiple of 4 in each")));
        }
        if config.window < config.patch * config.merge {
            return Err(refused(format!("`window_size` {} is smaller than a square of patches", config.window)));
        }
        Ok(config)
    }

    /// Numbers of a patch.
    fn patch_numbers(&self) -> usize {
        self.channels * self.temporal_patch * self.patch * self.patch
    }
}

/// A weight `[out, in]` and a bias `[out]`.
#[derive(Debug)]
struct VisionLinear {
    weight: Tensor,
    bias: Tensor,
}

impl VisionLinear {
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.f_linear(&self.weight, Some(&self.bias))?)
    }
}

#[derive(Debug)]
struct VisionLayer {
    attention_norm: Tensor,
    block_norm: Tensor,
    qkv: VisionLinear,
    proj: VisionLinear,
    gate: VisionLinear,
    up: VisionLinear,
    down: VisionLinear,
}

/// A vision tower. See the module documentation.
#[derive(Debug)]
pub struct VisionTower {
    pub config: VisionConfig,
    /// `[E, numbers of a patch]`
    embed: Tensor,
    layers: Vec<VisionLayer>,
    merger_norm: Tensor,
    merger: [VisionLinear; 2],
    named: Vec<(String, Tensor)>,
    device: Device,
    kind: Kind,
}

/// The order in which patches are computed, and what attends to what.
struct PatchOrder {
    /// Row and column of each patch in its frame.
    positions: Vec<[i64; 2]>,
    /// Numbers of the merged squares, window by window.
    squares: Vec<i64>,
    /// Numbers of patches of the windows, and of the frames.
    windows: Vec<i64>,
    frames: Vec<i64>,
}

impl PatchOrder {
    /// `grids` are frames, rows and columns of patches of each image or video.
    fn new(config: &VisionConfig, grids: &[[usize; 3]]) -> Self {
        let merge = config.merge;
        // Squares along a side of a window.
        let side = config.window / merge / config.patch;
        let mut order = Self { positions: Vec::new(), squares: Vec::new(), windows: Vec::new(), frames: Vec::new() };
        let mut first = 0;
        for &[frames, rows, columns] in grids {
            let (down, right) = (rows / merge, columns / merge);
            for _ in 0..frames {
                order.frames.push((rows * columns) as i64);
                for (top, left) in
                    (0..down).step_by(side).flat_map(|top| (0..right).step_by(side).map(move |left| (top, left)))
                {
                    let before = order.squares.len();
                    for row in top..(top + side).min(down) {
                        for column in left..(left + side).min(right) {
                            order.squares.push((first + row * right + column) as i64);
                            let inside =
                                (0..merge * merge).map(|at| [row * merge + at / merge, column * merge + at % merge]);
                            order.positions.extend(inside.map(|position| position.map(|number| number as i64)));
                        }
                    }
                    order.windows.push(((order.squares.len() - before) * merge * merge) as i64);
                }
                first += down * right;
            }
        }
        order
    }
}

impl VisionTower {
    /// A tower without values: the caller reads [`parameters`](Self::parameters).
    pub fn empty(config: VisionConfig, device: Device, kind: Kind) -> Result<Self> {
        let mut named: Vec<(String, Tensor)> = Vec::new();
        let mut tensor = |name: &str, shape: &[usize]| -> Result<Tensor> {
            let shape: Vec<i64> = shape.iter().map(|size| *size as i64).collect();
            let tensor = zeros(&shape, kind, device)?.f_set_requires_grad(true)?;
            named.push((name.to_owned(), tensor.shallow_clone()));
            Ok(tensor)
        };
        let (hidden, inner, square) = (config.hidden, config.inner, config.hidden * config.merge * config.merge);
        let kernel = [hidden, config.channels, config.temporal_patch, config.patch, config.patch];
        let embed = tensor("patch_embed.proj.weight", &kernel)?;
        let mut linear = |name: &str, outputs: usize, inputs: usize| -> Result<VisionLinear> {
            let weight = tensor(&format!("{name}.weight"), &[outputs, inputs])?;
            Ok(VisionLinear { weight, bias: tensor(&format!("{name}.bias"), &[outputs])? })
        };
        let mut parts = Vec::new();
        for layer in 0..config.layers {
            let name = |part: &str| format!("blocks.{layer}.{part}");
            parts.push([
                linear(&name("attn.qkv"), 3 * hidden, hidden)?,
                linear(&name("attn.proj"), hidden, hidden)?,
                linear(&name("mlp.gate_proj"), inner, hidden)?,
                linear(&name("mlp.up_proj"), inner, hidden)?,
                linear(&name("mlp.down_proj"), hidden, inner)?,
            ]);
        }
        let merger = [linear("merger.mlp.0", square, square)?, linear("merger.mlp.2", config.out, square)?];
        let mut layers = Vec::new();
        for (layer, [qkv, proj, gate, up, down]) in parts.into_iter().enumerate() {
            let attention_norm = tensor(&format!("blocks.{layer}.norm1.weight"), &[hidden])?;
            let block_norm = tensor(&format!("blocks.{layer}.norm2.weight"), &[hidden])?;
            layers.push(VisionLayer { attention_norm, block_norm, qkv, proj, gate, up, down });
        }
        let merger_norm = tensor("merger.ln_q.weight", &[hidden])?;
        Ok(Self { config, embed, layers, merger_norm, merger, named, device, kind })
    }

    /// Names and shallow clones of the parameters.
    pub fn parameters(&self) -> Vec<(String, Tensor)> {
        self.named.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect()
    }

    /// Embeddings `[squares, out]` of patches `[P, numbers of a patch]`, in the order of the input.
    /// `grids` are frames, rows and columns of patches of each image or video. Differentiable.
    ///
    /// # Errors
    /// `Kind::Internal` if there are other patches than the grids have.
    pub fn forward(&self, patches: &Tensor, grids: &[[usize; 3]]) -> Result<Tensor> {
        let (config, merge) = (&self.config, self.config.merge);
        let count: usize = grids.iter().map(|grid| grid.iter().product::<usize>()).sum();
        let fits = grids.iter().all(|[_, rows, columns]| rows % merge == 0 && columns % merge == 0);
        if !fits || patches.size() != [count as i64, config.patch_numbers() as i64] {
            let message = format!("patches {:?} do not fit to the grids {grids:?}", patches.size());
            return Err(Error::new(error::Kind::Internal, message));
        }
        let order = PatchOrder::new(config, grids);
        let squares = upload(&Tensor::f_from_slice(&order.squares)?, self.device)?;
        let embedded = patches.f_to_kind(self.kind)?.f_linear(&self.embed.f_flatten(1, -1)?, None::<&Tensor>)?;
        let (unit, hidden) = ((merge * merge) as i64, config.hidden as i64);
        let mut x = embedded.f_view([-1, unit, hidden])?.f_index_select(0, &squares)?.f_view([-1, hidden])?;
        let angles = self.angles(&order.positions)?;
        let [windows, frames] =
            [AttentionSegments::new(&order.windows, self.device)?, AttentionSegments::new(&order.frames, self.device)?];
        for (number, layer) in self.layers.iter().enumerate() {
            let segments = if config.full_layers.contains(&number) { &frames } else { &windows };
            x = self.layer(layer, &x, &angles, segments)?;
        }
        let merged = rms_norm(&x, &self.merger_norm, EPS, false)?.f_view([-1, unit * hidden])?;
        let merged = self.merger[1].apply(&self.merger[0].apply(&merged)?.f_gelu("none")?)?;
        Ok(merged.f_index_select(0, &squares.f_argsort(0, false)?)?)
    }

    /// Cosines and sines `[P, D]` of rows and columns, each in a half of the frequencies.
    fn angles(&self, positions: &[[i64; 2]]) -> Result<(Tensor, Tensor)> {
        let size = self.config.hidden / self.config.heads;
        let wide = if self.kind == Kind::Double { Kind::Double } else { Kind::Float };
        // Frequencies are computed in f32, as in the reference.
        let exponents = Tensor::f_arange_start_step(0, (size / 2) as i64, 2, (Kind::Float, Device::Cpu))?;
        let exponents = exponents.f_div_scalar((size / 2) as f64)?;
        let frequencies = Tensor::f_pow_scalar(ROPE_BASE, &exponents)?.f_reciprocal()?.f_to_kind(wide)?;
        let flat: Vec<i64> = positions.iter().flatten().copied().collect();
        let positions = Tensor::f_from_slice(&flat)?.f_to_kind(wide)?.f_view([-1, 2, 1])?;
        let half = positions.f_mul(&frequencies)?.f_flatten(1, 2)?;
        angles(&upload(&half, self.device)?, 1.0, wide)
    }

    fn layer(
        &self,
        layer: &VisionLayer,
        x: &Tensor,
        angles: &(Tensor, Tensor),
        segments: &AttentionSegments,
    ) -> Result<Tensor> {
        let heads = self.config.heads as i64;
        let normed = rms_norm(x, &layer.attention_norm, EPS, false)?;
        let qkv = layer.qkv.apply(&normed)?.f_view([x.size()[0], 3, heads, -1])?.f_unbind(1)?;
        let [q, k, v] = qkv.as_slice() else {
            return Err(Error::new(error::Kind::Internal, "a projection does not have three parts"));
        };
        // In at least f32, as in the reference.
        let rotated = |x: &Tensor| -> Result<Tensor> {
            Ok(rotate(&x.f_to_kind(angles.0.kind())?, &angles.0, &angles.1)?.f_to_kind(self.kind)?)
        };
        let seen = segments.attend(&rotated(q)?, &rotated(k)?, v)?.f_flatten(1, 2)?;
        let x = x.f_add(&layer.proj.apply(&seen)?)?;
        let normed = rms_norm(&x, &layer.block_norm, EPS, false)?;
        let gated = layer.gate.apply(&normed)?.f_silu()?.f_mul(&layer.up.apply(&normed)?)?;
        Ok(x.f_add(&layer.down.apply(&gated)?)?)
    }
}

/// AttentionSegments of equal length are attended to together.
struct AttentionSegments {
    /// For each length: the rows of its segments, and their number.
    groups: Vec<(i64, Tensor)>,
    /// The places of all rows in the concatenation of the groups.
    back: Tensor,
}

impl AttentionSegments {
    fn new(lengths: &[i64], device: Device) -> Result<Self> {
        let mut by_length: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        let mut at = 0;
        for &length in lengths {
            by_length.entry(length).or_default().extend(at..at + length);
            at += length;
        }
        let rows: Vec<i64> = by_length.values().flatten().copied().collect();
        let back = upload(&Tensor::f_from_slice(&rows)?.f_argsort(0, false)?, device)?;
        let group = |(length, rows): (i64, Vec<i64>)| Ok((length, upload(&Tensor::f_from_slice(&rows)?, device)?));
        Ok(Self { groups: by_length.into_iter().map(group).collect::<Result<_>>()?, back })
    }

    /// Attention in both directions within each segment; all `[P, H, D]`.
    fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let (heads, size) = (q.size()[1], q.size()[2]);
        let mut all = Vec::with_capacity(self.groups.len());
        for (length, rows) in &self.groups {
            let part = |x: &Tensor| x.f_index_select(0, rows)?.f_view([-1, *length, heads, size])?.f_transpose(1, 2);
            let seen = Tensor::f_scaled_dot_product_attention(
                &part(q)?,
                &part(k)?,
                &part(v)?,
                None::<&Tensor>,
                0.0,
                false,
                None,
                false,
            )?;
            all.push(seen.f_transpose(1, 2)?.f_reshape([-1, heads, size])?);
        }
        Ok(Tensor::f_cat(&all, 0)?.f_index_select(0, &self.back)?)
    }
}
