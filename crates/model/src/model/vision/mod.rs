//! Vision towers: from the patches of images and videos to embeddings for the language model.
//!
//! Patches are computed window by window, or frame by frame; squares of patches become one
//! embedding at the end. Parameters have their names in the checkpoint, without `visual.`.

pub(super) mod config;
mod order;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::iter::repeat_n;

use tch::{Device, Kind, Tensor};

use super::layers::{AdapterUse, Linear};
use super::plain::{Arithmetic, angles, rms_norm, rotate};
use super::{upload, zeros};
use r1_base::error::{self, Error, Result};

use config::Projection;
pub use config::{TowerKind, VisionConfig};
use order::{AttentionSegments, PatchOrder};

/// Start of the names of its parameters in a model.
pub(super) const TOWER: &str = "visual.";
const EPS: f64 = 1e-6;
const ROPE_BASE: f64 = 10_000.0;

/// A projection with its name in the tower.
#[derive(Debug)]
struct VisionLinear {
    name: String,
    linear: Linear,
}

impl VisionLinear {
    fn apply(&self, x: &Tensor, adapter: AdapterUse) -> Result<Tensor> {
        self.linear.apply(x, adapter, Arithmetic::Libtorch)
    }
}

/// A LayerNorm, or an RMSNorm without a bias.
#[derive(Debug)]
struct VisionNorm {
    weight: Tensor,
    bias: Option<Tensor>,
    eps: f64,
}

impl VisionNorm {
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        if self.bias.is_none() {
            return rms_norm(x, &self.weight, self.eps, false);
        }
        Ok(x.f_layer_norm(self.weight.size(), Some(&self.weight), self.bias.as_ref(), self.eps, false)?)
    }
}

#[derive(Debug)]
struct VisionLayer {
    attention_norm: VisionNorm,
    block_norm: VisionNorm,
    /// Queries, keys and values, in one projection or in three, and the projection of the result.
    attention: Vec<VisionLinear>,
    /// The feed-forward block: gate, up and down, or two projections with an activation (GELU).
    block: Vec<VisionLinear>,
}

impl VisionLayer {
    fn feed_forward(&self, x: &Tensor, adapter: AdapterUse) -> Result<Tensor> {
        match self.block.as_slice() {
            [gate, up, down] => {
                let gated = gate.apply(x, adapter)?.f_silu()?.f_mul(&up.apply(x, adapter)?)?;
                down.apply(&gated, adapter)
            }
            [first, second] => second.apply(&first.apply(x, adapter)?.f_gelu("tanh")?, adapter),
            _ => Err(Error::new(error::Kind::Internal, "a feed-forward block has other projections")),
        }
    }
}

/// Makes one embedding of a square of patches, with one projection or two.
#[derive(Debug)]
struct Merger {
    norm: VisionNorm,
    linears: Vec<VisionLinear>,
}

impl Merger {
    /// x `[P, E]` to `[squares, out]`. The norm is over patches, or over squares.
    fn apply(&self, x: &Tensor, square: i64, adapter: AdapterUse) -> Result<Tensor> {
        let x = if self.norm.weight.size()[0] == square { x.f_view([-1, square])? } else { x.shallow_clone() };
        let mut x = self.norm.apply(&x)?.f_view([-1, square])?;
        for (index, linear) in self.linears.iter().enumerate() {
            x = linear.apply(&if index > 0 { x.f_gelu("none")? } else { x }, adapter)?;
        }
        Ok(x)
    }
}

/// A vision tower. See the module documentation.
#[derive(Debug)]
pub struct VisionTower {
    pub config: VisionConfig,
    /// `[E, channels, frames, patch, patch]`, and `[E]`.
    embed: (Tensor, Option<Tensor>),
    /// `[side * side, E]`
    positions: Option<Tensor>,
    layers: Vec<VisionLayer>,
    merger: Merger,
    deep_mergers: Vec<Merger>,
    named: Vec<(String, Tensor)>,
    device: Device,
    kind: Kind,
}

/// What a tower computes of images.
#[derive(Debug)]
pub struct ImageFeatures {
    /// `[squares, out]`, in the order of the input.
    pub embeddings: Tensor,
    /// The same shape for each of the language model's first layers, to whose output they are
    /// added.
    pub deep: Vec<Tensor>,
}

/// Creates the parameters of a tower.
struct TowerMaker {
    named: Vec<(String, Tensor)>,
    options: (Kind, Device),
    /// Of the norms.
    eps: f64,
}

impl TowerMaker {
    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let shape: Vec<i64> = shape.iter().map(|size| *size as i64).collect();
        let tensor = zeros(&shape, self.options.0, self.options.1)?.f_set_requires_grad(true)?;
        self.named.push((name.to_owned(), tensor.shallow_clone()));
        Ok(tensor)
    }

    fn linear(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<VisionLinear> {
        let weight = self.tensor(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = self.tensor(&format!("{name}.bias"), &[outputs])?;
        Ok(VisionLinear { name: name.to_owned(), linear: Linear::new(weight, Some(bias)) })
    }

    /// Projections with these names below `start`.
    fn linears(&mut self, start: &str, each: Vec<Projection>) -> Result<Vec<VisionLinear>> {
        let each = each.into_iter();
        each.map(|(name, inputs, outputs)| self.linear(&format!("{start}.{name}"), outputs, inputs)).collect()
    }

    fn norm(&mut self, name: &str, size: usize, biased: bool) -> Result<VisionNorm> {
        let weight = self.tensor(&format!("{name}.weight"), &[size])?;
        let bias = biased.then(|| self.tensor(&format!("{name}.bias"), &[size])).transpose()?;
        Ok(VisionNorm { weight, bias, eps: self.eps })
    }

    fn layer(&mut self, config: &VisionConfig, layer: usize) -> Result<VisionLayer> {
        let hidden = config.hidden;
        let tiles = matches!(config.kind, TowerKind::Tiles { .. });
        let start = if tiles { "vision_model.encoder.layers" } else { "blocks" };
        let name = |part: &str| format!("{start}.{layer}.{part}");
        let biased = !matches!(config.kind, TowerKind::Windows { .. });
        let [attention_norm, block_norm] = if tiles { ["layer_norm1", "layer_norm2"] } else { ["norm1", "norm2"] };
        let (attention_norm, block_norm) =
            (self.norm(&name(attention_norm), hidden, biased)?, self.norm(&name(block_norm), hidden, biased)?);
        let [attention, block] = config.layer_projections().map(|each| self.linears(&format!("{start}.{layer}"), each));
        let (attention, block) = (attention?, block?);
        Ok(VisionLayer { attention_norm, block_norm, attention, block })
    }

    /// A merger with the projections of the config below `start`; `normed` is the size of its norm.
    fn merger(&mut self, config: &VisionConfig, start: &str, norm: &str, normed: usize) -> Result<Merger> {
        let biased = matches!(config.kind, TowerKind::DeepStack { .. });
        let norm = self.norm(&format!("{start}.{norm}"), normed, biased)?;
        Ok(Merger { norm, linears: self.linears(start, config.merger_projections())? })
    }

    /// The merger of tiles.
    fn connector(&mut self, config: &VisionConfig) -> Result<Merger> {
        let norm = self.norm("vision_model.post_layernorm", config.hidden, true)?;
        let shape = [config.out, config.hidden * config.merge * config.merge];
        let name = "connector.modality_projection.proj";
        let linear = Linear::new(self.tensor(&format!("{name}.weight"), &shape)?, None);
        Ok(Merger { norm, linears: vec![VisionLinear { name: name.to_owned(), linear }] })
    }
}

impl VisionTower {
    /// A tower without values: the caller reads [`parameters`](Self::parameters).
    pub fn empty(config: VisionConfig, device: Device, kind: Kind) -> Result<Self> {
        let eps = if let TowerKind::Tiles { eps, .. } = config.kind { eps } else { EPS };
        let mut maker = TowerMaker { named: Vec::new(), options: (kind, device), eps };
        let hidden = config.hidden;
        let kernel = [hidden, config.channels, config.temporal_patch, config.patch, config.patch];
        let (embed, positions) = match config.kind {
            TowerKind::Windows { .. } => ((maker.tensor("patch_embed.proj.weight", &kernel)?, None), None),
            TowerKind::DeepStack { side, .. } => {
                let weight = maker.tensor("patch_embed.proj.weight", &kernel)?;
                let bias = maker.tensor("patch_embed.proj.bias", &[hidden])?;
                ((weight, Some(bias)), Some(maker.tensor("pos_embed.weight", &[side * side, hidden])?))
            }
            TowerKind::Tiles { side, .. } => {
                let kernel = [hidden, config.channels, config.patch, config.patch];
                let name = |part: &str| format!("vision_model.embeddings.{part}");
                let weight = maker.tensor(&name("patch_embedding.weight"), &kernel)?;
                let bias = maker.tensor(&name("patch_embedding.bias"), &[hidden])?;
                let positions = maker.tensor(&name("position_embedding.weight"), &[side * side, hidden])?;
                ((weight, Some(bias)), Some(positions))
            }
        };
        let layers = (0..config.layers).map(|layer| maker.layer(&config, layer)).collect::<Result<_>>()?;
        let merger = match config.kind {
            TowerKind::Windows { .. } => maker.merger(&config, "merger", "ln_q", hidden)?,
            TowerKind::DeepStack { .. } => maker.merger(&config, "merger", "norm", hidden)?,
            TowerKind::Tiles { .. } => maker.connector(&config)?,
        };
        let normed = hidden * config.merge * config.merge;
        let deep_mergers = (0..config.deep_layers().len())
            .map(|index| maker.merger(&config, &format!("deepstack_merger_list.{index}"), "norm", normed))
            .collect::<Result<_>>()?;
        let named = maker.named;
        Ok(Self { config, embed, positions, layers, merger, deep_mergers, named, device, kind })
    }

    /// Names and shallow clones of the parameters.
    pub fn parameters(&self) -> Vec<(String, Tensor)> {
        self.named.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect()
    }

    /// The projections, which can have an adapter, with their names.
    pub(super) fn linears_mut(&mut self) -> impl Iterator<Item = (&str, &mut Linear)> {
        let layers = self.layers.iter_mut().flat_map(|layer| layer.attention.iter_mut().chain(&mut layer.block));
        let mergers = [&mut self.merger].into_iter().chain(&mut self.deep_mergers);
        let all = layers.chain(mergers.flat_map(|merger| &mut merger.linears));
        all.map(|VisionLinear { name, linear }| (name.as_str(), linear))
    }

    /// As [`linears_mut`](Self::linears_mut).
    pub(super) fn linears(&self) -> impl Iterator<Item = (&str, &Linear)> {
        let layers = self.layers.iter().flat_map(|layer| layer.attention.iter().chain(&layer.block));
        let mergers = [&self.merger].into_iter().chain(&self.deep_mergers);
        let all = layers.chain(mergers.flat_map(|merger| &merger.linears));
        all.map(|VisionLinear { name, linear }| (name.as_str(), linear))
    }

    /// The features of patches `[P, numbers of a patch]`. `grids` are frames, rows and columns of
    /// patches of each image or video. Differentiable.
    ///
    /// # Errors
    /// `Kind::Internal` if there are other patches than the grids have.
    pub(super) fn forward(&self, patches: &Tensor, grids: &[[usize; 3]], adapter: AdapterUse) -> Result<ImageFeatures> {
        let (config, merge) = (&self.config, self.config.merge);
        let count: usize = grids.iter().map(|grid| grid.iter().product::<usize>()).sum();
        let fits = grids.iter().all(|[_, rows, columns]| rows % merge == 0 && columns % merge == 0);
        if !fits || patches.size() != [count as i64, config.patch_numbers() as i64] {
            let message = format!("patches {:?} do not fit to the grids {grids:?}", patches.size());
            return Err(Error::new(error::Kind::Internal, message));
        }
        let order = PatchOrder::new(config, grids);
        let squares = upload(&Tensor::f_from_slice(&order.squares)?, self.device)?;
        let (weight, bias) = &self.embed;
        let embedded = patches.f_to_kind(self.kind)?.f_linear(&weight.f_flatten(1, -1)?, bias.as_ref())?;
        let (unit, hidden) = ((merge * merge) as i64, config.hidden as i64);
        let mut x = embedded.f_view([-1, unit, hidden])?.f_index_select(0, &squares)?.f_view([-1, hidden])?;
        let tiles = matches!(config.kind, TowerKind::Tiles { .. });
        if let Some(positions) = &self.positions {
            let learned = if tiles {
                self.nearest(positions, &order.positions, grids)?
            } else {
                self.interpolated(positions, &order.positions, grids)?
            };
            x = x.f_add(&learned)?;
        }
        let angles = if tiles { None } else { Some(self.angles(&order.positions)?) };
        let [windows, frames] =
            [AttentionSegments::new(&order.windows, self.device)?, AttentionSegments::new(&order.frames, self.device)?];
        // From the order of windows to the one of the input.
        let back = squares.f_argsort(0, false)?;
        let merged = |merger: &Merger, x: &Tensor| -> Result<Tensor> {
            Ok(merger.apply(x, unit * hidden, adapter)?.f_index_select(0, &back)?)
        };
        let mut deep = Vec::new();
        for (number, layer) in self.layers.iter().enumerate() {
            let segments = if config.is_full(number) { &frames } else { &windows };
            x = self.layer(layer, &x, angles.as_ref(), segments, adapter)?;
            if let Some(index) = config.deep_layers().iter().position(|layer| *layer == number) {
                deep.push(merged(&self.deep_mergers[index], &x)?);
            }
        }
        Ok(ImageFeatures { embeddings: merged(&self.merger, &x)?, deep })
    }

    /// Learned embeddings `[P, E]` of the places of patches in their frames, between the learned
    /// ones (bilinear).
    fn interpolated(&self, table: &Tensor, places: &[[i64; 2]], grids: &[[usize; 3]]) -> Result<Tensor> {
        let side = table.size()[0].isqrt();
        // In f32, as in the reference.
        let between = |index: i64, size: usize| {
            let at = index as f32 * (side - 1) as f32 / (size.max(2) - 1) as f32;
            let low = at.floor();
            [(low as i64, 1.0 - (at - low)), ((low as i64 + 1).min(side - 1), at - low)]
        };
        let (mut indices, mut weights) = (Vec::new(), Vec::new());
        let sizes =
            grids.iter().flat_map(|&[frames, rows, columns]| repeat_n([rows, columns], frames * rows * columns));
        for (&[row, column], [rows, columns]) in places.iter().zip(sizes) {
            for (down, share) in between(row, rows) {
                for (right, other) in between(column, columns) {
                    indices.push(down * side + right);
                    weights.push(share * other);
                }
            }
        }
        let indices = upload(&Tensor::f_from_slice(&indices)?, self.device)?;
        let weights = upload(&Tensor::f_from_slice(&weights)?, self.device)?.f_view([-1, 4, 1])?;
        let wide = if self.kind == Kind::Double { Kind::Double } else { Kind::Float };
        let rows = table.f_index_select(0, &indices)?.f_view([-1, 4, table.size()[1]])?.f_to_kind(wide)?;
        Ok(rows.f_mul(&weights.f_to_kind(wide)?)?.f_sum_dim_intlist(&[1][..], false, None)?.f_to_kind(self.kind)?)
    }

    /// Learned embeddings `[P, E]` of the places of patches in their tiles.
    fn nearest(&self, table: &Tensor, places: &[[i64; 2]], grids: &[[usize; 3]]) -> Result<Tensor> {
        let side = table.size()[0].isqrt();
        let step = 1.0 / side as f64;
        let bounds = Tensor::f_arange_start_step(step, 1.0, step, (Kind::Float, Device::Cpu))?;
        // For each number of patches along a side, the learned position of each. In f32, as in the
        // reference.
        let mut buckets: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
        for size in grids.iter().flat_map(|&[_, rows, columns]| [rows, columns]) {
            if let Entry::Vacant(vacant) = buckets.entry(size) {
                let at: Vec<f32> =
                    (0..size).map(|index| (index as f32 * (1.0 / size as f32)).min(1.0 - 1e-6)).collect();
                vacant.insert(Vec::try_from(Tensor::f_from_slice(&at)?.f_bucketize(&bounds, false, true)?)?);
            }
        }
        let sizes =
            grids.iter().flat_map(|&[frames, rows, columns]| repeat_n([rows, columns], frames * rows * columns));
        let index = |(&[row, column], [rows, columns]): (&[i64; 2], [usize; 2])| {
            buckets[&rows][row as usize] * side + buckets[&columns][column as usize]
        };
        let indices: Vec<i64> = places.iter().zip(sizes).map(index).collect();
        Ok(table.f_index_select(0, &upload(&Tensor::f_from_slice(&indices)?, self.device)?)?)
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
        angles: Option<&(Tensor, Tensor)>,
        segments: &AttentionSegments,
        adapter: AdapterUse,
    ) -> Result<Tensor> {
        let heads = self.config.heads as i64;
        let normed = layer.attention_norm.apply(x)?;
        let unexpected = || Error::new(error::Kind::Internal, "a projection has another number of parts");
        let (proj, qkv) = layer.attention.split_last().ok_or_else(unexpected)?;
        let each = qkv.iter().map(|linear| linear.apply(&normed, adapter)).collect::<Result<Vec<_>>>()?;
        let qkv = Tensor::f_cat(&each, 1)?.f_view([x.size()[0], 3, heads, -1])?.f_unbind(1)?;
        let [q, k, v] = qkv.as_slice() else { return Err(unexpected()) };
        // In at least f32, as in the reference.
        let rotated = |x: &Tensor| -> Result<Tensor> {
            let Some((cos, sin)) = angles else { return Ok(x.shallow_clone()) };
            Ok(rotate(&x.f_to_kind(cos.kind())?, cos, sin)?.f_to_kind(self.kind)?)
        };
        let seen = segments.attend(&rotated(q)?, &rotated(k)?, v)?.f_flatten(1, 2)?;
        let x = x.f_add(&proj.apply(&seen, adapter)?)?;
        Ok(x.f_add(&layer.feed_forward(&layer.block_norm.apply(&x)?, adapter)?)?)
    }
}
