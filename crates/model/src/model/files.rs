//! Model directories: loading and saving `config.json` and the weights.

use std::path::Path;

use tch::{Device, Kind, Tensor};

use super::kernels::packs;
use super::layers::Parameters;
use super::stored::StoredTensor;
use super::unwritten::{UnwrittenFile, write_all};
use super::{Config, Model, memory, text_model, weights};
use r1_base::error::{self, Error, Result};

/// Maximum size of a weight file with more than one tensor.
pub const SHARD_BYTES: u64 = 5_000_000_000;

/// The output head's key in a checkpoint.
const HEAD: &str = "lm_head.weight";

/// What a checkpoint has after the transformer.
#[derive(Clone, Copy)]
enum CheckpointHead<'a> {
    /// The output head.
    Logits,
    /// Another head: the name of its tensor and what it is read into.
    Other(&'a str, &'a Tensor),
    /// Nothing, or an output head that is not read.
    Unread,
}

impl Model {
    /// Loads `config.json` and the safetensors (one file, or shards with an index) in `dir`.
    ///
    /// Weights stored as f32, bf16 or f16 are converted to `kind`; all parameters require
    /// gradients. Errors are `Kind::Model` and name the file, the field or the tensors;
    /// `Kind::Device`, before loading, if the weights (with the packed f32 copy of the CPU kernels)
    /// do not fit into memory.
    pub fn load(dir: &Path, device: Device, kind: Kind) -> Result<Self> {
        Self::load_for(dir, device, kind, true)
    }

    /// As [`load`](Self::load), without the memory check for the CPU kernels' copy of the weights.
    pub fn load_base(dir: &Path, device: Device, kind: Kind) -> Result<Self> {
        Self::load_for(dir, device, kind, false)
    }

    fn load_for(dir: &Path, device: Device, kind: Kind, computes: bool) -> Result<Self> {
        Self::read(Config::load(dir)?, dir, (device, kind), computes, CheckpointHead::Logits)
    }

    /// Loads a transformer whose checkpoint has another head than logits: `head` is the name of its
    /// tensor and what it is read into.
    pub(super) fn load_with_head(
        config: Config,
        dir: &Path,
        options: (Device, Kind),
        head: (&str, &Tensor),
    ) -> Result<Self> {
        Self::read(config, dir, options, true, CheckpointHead::Other(head.0, head.1))
    }

    /// Loads a transformer alone; the checkpoint may have an output head, and names of tensors with
    /// or without `model.`.
    pub(super) fn load_without_head(config: Config, dir: &Path, options: (Device, Kind)) -> Result<Self> {
        Self::read(config, dir, options, true, CheckpointHead::Unread)
    }

    fn read(
        mut config: Config,
        dir: &Path,
        (device, kind): (Device, Kind),
        computes: bool,
        head: CheckpointHead<'_>,
    ) -> Result<Self> {
        let files = weights::files(dir)?;
        let wanted = Parameters::numbers(&config);
        weights::check_size(dir, &files, wanted)?;
        if let Some(free) = memory::available(device) {
            let packed = computes && packs(&config, device, kind);
            memory::check(wanted, kind, packed, free).map_err(|error| error.at_path(dir))?;
        }
        let parameters = Parameters::empty(&config, device, kind)?;
        let tied = config.tie_word_embeddings;
        // Old checkpoints have the rotary frequencies and a copy of the tied head, which are not
        // needed.
        let mut stored = parameters.stored();
        match head {
            CheckpointHead::Other(name, tensor) => stored.push(StoredTensor::whole(name, tensor)),
            CheckpointHead::Unread if weights::shape_of(&files, "embed_tokens.weight")?.is_some() => {
                for tensor in &mut stored {
                    tensor.name = tensor.name.strip_prefix("model.").unwrap_or(&tensor.name).to_owned();
                }
            }
            CheckpointHead::Logits | CheckpointHead::Unread => {}
        }
        if !matches!(head, CheckpointHead::Logits) {
            // The factor is for logits only.
            config.logits_scale = 1.0;
        }
        let predicted = predicted_layers(&config);
        weights::read_stored(&files, &stored, |name| {
            let of_others = predicted.iter().any(|prefix| name.starts_with(prefix))
                || (config.is_recurrent() && text_model::is_beside(name, config.vision.is_some()));
            name.ends_with("rotary_emb.inv_freq") || (tied && name == HEAD) || of_others
        })?;
        let differs = |embed| weights::differ(&files, HEAD, embed);
        if tied
            && matches!(head, CheckpointHead::Logits)
            && (differs("model.embed_tokens.weight")? || differs("model.language_model.embed_tokens.weight")?)
        {
            let message = format!("config.json ties the output head to the embedding, and {HEAD} is another tensor");
            return Err(Error::new(error::Kind::Model, message)
                .at_path(dir)
                .hint("set tie_word_embeddings to false to use that head, or remove it from the weights"));
        }
        Self::new(config, parameters, device, kind)
    }

    /// Writes `config.json` and the weights in the format of transformers, each file atomically:
    /// one weight file, or shards with an index above [`SHARD_BYTES`].
    /// `dir` is made if the directory above it exists.
    pub fn save(&self, dir: &Path) -> Result<()> {
        self.save_sharded(dir, SHARD_BYTES)
    }

    /// [`save`](Self::save) with shards of at most `limit` bytes and at least one tensor.
    pub fn save_sharded(&self, dir: &Path, limit: u64) -> Result<()> {
        write_all(&self.unwritten(limit)?, dir)
    }

    /// The files that [`save_sharded`](Self::save_sharded) writes. Their tensors are not copied.
    pub(super) fn unwritten(&self, limit: u64) -> Result<Vec<UnwrittenFile>> {
        self.refuse_adapter()?;
        let mut config = self.config.to_json();
        // The newer name of the field below, which could have another value.
        if let Some(object) = config.as_object_mut() {
            object.shift_remove("dtype");
        }
        config["torch_dtype"] = serde_json::json!(match self.kind {
            Kind::BFloat16 => "bfloat16",
            Kind::Half => "float16",
            Kind::Double => "float64",
            _ => "float32",
        });
        let config = UnwrittenFile::bytes("config.json", format!("{config:#}\n").into_bytes());
        let mut stored = self.parameters.stored();
        if let Some(vision) = self.config.vision.as_ref().filter(|vision| vision.full_names) {
            for tensor in &mut stored {
                tensor.name = text_model::full_name(&tensor.name, vision.tower.language());
            }
        }
        Ok(vec![UnwrittenFile::weights(stored, limit), config])
    }
}

/// Prefixes of the layers for the prediction of several tokens, which follow the model's layers.
fn predicted_layers(config: &Config) -> Vec<String> {
    let count = |name: &str| config.source.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0).min(64) as usize;
    let count = count("num_nextn_predict_layers").max(count("num_mtp_layers"));
    (0..count).map(|index| format!("model.layers.{}.", config.num_hidden_layers + index)).collect()
}
