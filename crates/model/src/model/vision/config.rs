//! `vision_config` of a `config.json`.

use serde_json::Value;

use r1_base::error::{self, Error, Result};

/// The `model_type` of towers that read tiles.
pub(in crate::model) const TILES: &str = "idefics3_vision";

/// Largest size in a configuration.
const LARGEST: u64 = 1 << 24;

/// Name, inputs and outputs of a projection.
pub(in crate::model) type Projection = (&'static str, usize, usize);

/// The configuration of a vision tower.
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
    pub kind: TowerKind,
}

/// Parts in which towers differ.
#[derive(Clone, Debug, PartialEq)]
pub enum TowerKind {
    /// RMSNorm, gated feed-forward blocks, attention within windows (Qwen2.5-VL,
    /// arXiv:2502.13923).
    Windows {
        /// Pixels along each side of a window.
        window: usize,
        /// Layers that attend to whole frames.
        full_layers: Vec<usize>,
        /// Positions along time for a second of a video.
        per_second: f64,
    },
    /// LayerNorm, learned embeddings of positions, features of several layers (DeepStack,
    /// arXiv:2406.04334) (Qwen3-VL, arXiv:2511.21631; Qwen3.5, without features of several layers).
    DeepStack {
        /// Learned positions along each side of a square, between which an image interpolates.
        side: usize,
        /// Layers whose outputs are added to the language model's hidden states, after its first
        /// layers.
        layers: Vec<usize>,
    },
    /// SigLIP (arXiv:2303.15343): LayerNorm, the learned embedding that is nearest to each patch,
    /// one projection of merged patches (Idefics3, arXiv:2408.12637; SmolVLM, arXiv:2504.05299).
    Tiles {
        /// Learned positions along each side of a tile.
        side: usize,
        eps: f64,
    },
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
        let only = |name: &str, wanted: &str| match json[name].as_str().filter(|value| *value != wanted) {
            Some(other) => Err(refused(format!("`{name}` is {other:?}; only {wanted:?} is supported"))),
            None => Ok(()),
        };
        let tiles = json["model_type"] == TILES;
        let layers = if tiles { size_or("num_hidden_layers", Some(12))? } else { size("depth")? };
        let listed = |name: &str| -> Result<Vec<usize>> {
            let list: Option<Vec<usize>> = serde_json::from_value(json[name].clone()).ok();
            let list = list.filter(|list| list.iter().all(|layer| *layer < layers) && list.is_sorted());
            list.ok_or_else(|| refused(format!("`{name}` is not an ascending list of layers")))
        };
        let kind = match json["model_type"].as_str().unwrap_or("qwen2_5_vl") {
            "qwen2_5_vl" | "qwen2_5_vl_vision" => {
                only("hidden_act", "silu")?;
                let value = &json["tokens_per_second"];
                let per_second = if value.is_null() { Some(4.0) } else { value.as_f64() };
                let per_second = per_second.filter(|rate| (0.0..=1000.0).contains(rate)).ok_or_else(|| {
                    refused(format!("`tokens_per_second` is {value}; it must be a number from 0 to 1000"))
                })?;
                let full_layers = listed("fullatt_block_indexes")?;
                TowerKind::Windows { window: size("window_size")?, full_layers, per_second }
            }
            family @ ("qwen3_vl" | "qwen3_vl_vision" | "qwen3_5" | "qwen3_5_vision" | "qwen3_5_moe"
            | "qwen3_5_moe_vision") => {
                only("hidden_act", "gelu_pytorch_tanh")?;
                let positions = size("num_position_embeddings")?;
                let side = positions.isqrt();
                if side * side != positions {
                    return Err(refused(format!("`num_position_embeddings` is {positions}, which is no square")));
                }
                // Qwen3.5 has the tower of Qwen3-VL without features of several layers.
                let deep = family.starts_with("qwen3_vl");
                let layers = if deep { listed("deepstack_visual_indexes")? } else { Vec::new() };
                TowerKind::DeepStack { side, layers }
            }
            TILES => {
                only("hidden_act", "gelu_pytorch_tanh")?;
                let side = size_or("image_size", Some(224))? / size_or("patch_size", Some(32))?;
                let eps = json["layer_norm_eps"].as_f64().unwrap_or(1e-6);
                if side == 0 {
                    return Err(refused("`patch_size` is larger than `image_size`".to_owned()));
                }
                TowerKind::Tiles { side, eps }
            }
            other => return Err(refused(format!("`model_type` {other:?} is not supported"))),
        };
        // Files of Idefics3 leave out values that are defaults.
        let default = |value: usize| tiles.then_some(value);
        let (heads, channels) = if tiles { ("num_attention_heads", "num_channels") } else { ("num_heads", "in_chans") };
        let config = Self {
            layers,
            hidden: size_or("hidden_size", default(1152))?,
            inner: size_or("intermediate_size", default(3072))?,
            heads: size_or(heads, default(16))?,
            out: size("out_hidden_size")?,
            channels: size_or("in_channels", json[channels].as_u64().map(|size| size as usize).or(Some(3)))?,
            patch: size_or("patch_size", default(32))?,
            temporal_patch: size_or("temporal_patch_size", Some(if tiles { 1 } else { 2 }))?,
            merge: size_or("spatial_merge_size", Some(2))?,
            kind,
        };
        if !config.hidden.is_multiple_of(config.heads) || !(config.hidden / config.heads).is_multiple_of(4) {
            let (hidden, heads) = (config.hidden, config.heads);
            return Err(refused(format!("`hidden_size` {hidden} in {heads} heads is not a multiple of 4 in each")));
        }
        match config.kind {
            TowerKind::Windows { window, .. } if window < config.patch * config.merge => {
                Err(refused(format!("`window_size` {window} is smaller than a square of patches")))
            }
            _ => Ok(config),
        }
    }

    /// The language model beside the tower in the module tree of transformers.
    pub(in crate::model) fn language(&self) -> &'static str {
        if matches!(self.kind, TowerKind::Tiles { .. }) { "text_model" } else { "language_model" }
    }

    /// The projections of a layer: of its attention, and of its feed-forward block.
    pub(super) fn layer_projections(&self) -> [Vec<Projection>; 2] {
        let (hidden, inner) = (self.hidden, self.inner);
        let attention = if matches!(self.kind, TowerKind::Tiles { .. }) {
            let names = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"];
            names.map(|name| (name, hidden, hidden)).to_vec()
        } else {
            vec![("attn.qkv", hidden, 3 * hidden), ("attn.proj", hidden, hidden)]
        };
        let (first, last): (&[_], _) = match self.kind {
            TowerKind::Windows { .. } => (&["mlp.gate_proj", "mlp.up_proj"], "mlp.down_proj"),
            TowerKind::DeepStack { .. } => (&["mlp.linear_fc1"], "mlp.linear_fc2"),
            TowerKind::Tiles { .. } => (&["mlp.fc1"], "mlp.fc2"),
        };
        let first = first.iter().map(|name| (*name, hidden, inner));
        [attention, first.chain([(last, inner, hidden)]).collect()]
    }

    /// The projections of a merger.
    pub(super) fn merger_projections(&self) -> Vec<Projection> {
        let square = self.hidden * self.merge * self.merge;
        match self.kind {
            TowerKind::Windows { .. } => vec![("mlp.0", square, square), ("mlp.2", square, self.out)],
            TowerKind::DeepStack { .. } => vec![("linear_fc1", square, square), ("linear_fc2", square, self.out)],
            TowerKind::Tiles { .. } => vec![("modality_projection.proj", square, self.out)],
        }
    }

    /// The layers whose outputs are added to the language model's hidden states.
    pub(super) fn deep_layers(&self) -> &[usize] {
        if let TowerKind::DeepStack { layers, .. } = &self.kind { layers } else { &[] }
    }

    /// The projections of all layers and mergers, and how many of each there are.
    pub(in crate::model) fn projections(&self) -> impl Iterator<Item = (Projection, usize)> {
        let [attention, block] = self.layer_projections();
        let (layers, mergers) = (self.layers, 1 + self.deep_layers().len());
        let of_layers = attention.into_iter().chain(block).map(move |projection| (projection, layers));
        of_layers.chain(self.merger_projections().into_iter().map(move |projection| (projection, mergers)))
    }

    /// Number of weights in the matrices.
    pub(in crate::model) fn numbers(&self) -> u128 {
        let projections =
            self.projections().map(|((_, inputs, outputs), count)| inputs as u128 * outputs as u128 * count as u128);
        (self.hidden * self.patch_numbers()) as u128 + projections.sum::<u128>()
    }

    /// Numbers of a patch.
    pub(super) fn patch_numbers(&self) -> usize {
        self.channels * self.temporal_patch * self.patch * self.patch
    }

    /// Merged squares along a side of a window; the largest number without windows.
    pub(super) fn window_side(&self) -> usize {
        match self.kind {
            TowerKind::Windows { window, .. } => window / self.merge / self.patch,
            TowerKind::DeepStack { .. } | TowerKind::Tiles { .. } => usize::MAX / 2,
        }
    }

    /// Whether a layer attends to whole frames.
    pub(super) fn is_full(&self, layer: usize) -> bool {
        match &self.kind {
            TowerKind::Windows { full_layers, .. } => full_layers.contains(&layer),
            TowerKind::DeepStack { .. } | TowerKind::Tiles { .. } => true,
        }
    }
}
