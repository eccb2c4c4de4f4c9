//! Transformers over libtorch: one decoder, described by each family's config, with weights and
//! key-value cache.
//!
//! - [`Config`]: a validated Hugging Face `config.json`; unsupported features are refused
//! - [`Architecture`]: the supported families, one per file
//! - [`Model`]: load, initialise, save; [`Model::learn`] for training, [`Model::forward`] for
//!   scoring, [`Model::step`] for generation
//! - [`Packed`]: packed rows without padding; [`Span`]: a chunk of one sequence for generation
//! - [`LoraConfig`]: a low-rank adapter in PEFT's format: [`Model::add_adapter`], load, save, merge
//! - [`Encoder`]: from texts to vectors; [`CrossEncoderModel`]: from pairs of texts to scores
//! - [`KvCache`]: key-value cache, one slot per sequence

mod batch;
mod bert;
mod cache;
mod checkpoint;
mod config;
mod critic;
mod cross_encoder;
mod decode;
mod decode_ahead;
mod decoder;
mod delta_rule;
mod encoder;
mod expert_routing;
mod experts;
mod families;
mod file_tensor;
mod files;
mod footprint;
mod gated_delta;
mod gguf;
mod images;
mod init;
mod json_file;
mod kernel_checks;
mod kernels;
mod layers;
mod lora;
mod memory;
mod merged;
mod mixers;
mod mxfp4;
mod network;
mod own_kernels;
mod pass;
mod plain;
mod recurrence;
mod recurrent;
mod reward_model;
mod shared_prefix;
mod short_conv;
mod spans;
mod stacked;
mod stored;
mod text_model;
mod transfer;
mod unwritten;
mod varlen;
mod vision;
mod weights;

pub use batch::{OnHost, Packed, Span};
pub use cache::{Decoding, KvCache};
pub use config::{
    Activation, Biases, Config, DeltaShape, ExpertStorage, Experts, Joint, LayerKind, Norms, Rope, Router, Scaling,
    Sections, SharedExpert,
};
pub use critic::Critic;
pub use cross_encoder::{CrossEncoderModel, Pair, PairFormat};
pub use decode_ahead::DrawTokens;
pub use encoder::{Encoder, Pooling};
pub use families::{Architecture, VisionPart};
pub use files::SHARD_BYTES;
pub use footprint::Footprint;
pub use gguf::{GGUF_FILE, Gguf};
pub use json_file::read_json;
pub use kernel_checks::{KernelCheck, check_kernels};
pub use kernels::WithoutKernels;
pub use layers::layer_of;
pub use lora::LoraConfig;
pub use memory::{available as available_memory, peak as peak_memory, resident as resident_memory};
pub use network::Model;
pub use pass::{LayerHooks, Pass};
pub use reward_model::RewardModel;
pub use text_model::tensors_beside_text;
pub use transfer::HostTransfer;
pub use transfer::upload;
pub(crate) use transfer::zeros;
pub use unwritten::UnwrittenFile;
pub use vision::{ImageFeatures, TowerKind, VisionConfig, VisionTower};
pub use weights::{files as weight_files, stored_dtype, write_file as write_tensors};

pub use crate::native::{OperationTime, release_memory, softmax, start_profile, stop_profile};

#[cfg(test)]
pub(crate) mod tests;
