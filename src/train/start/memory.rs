//! The memory that training takes, from shapes alone, and the number of tokens per micro-batch that
//! fits into it.

use tch::Kind as Dtype;

use crate::config::{Learner, Settings, Trainer};
use crate::model::Footprint;
use crate::train::learn::score::logprobs_at_once;

/// A part of the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryShare {
    pub what: &'static str,
    /// A description of the values that its size depends on.
    pub why: String,
    pub bytes: u64,
}

pub(crate) fn sum(shares: &[MemoryShare]) -> u64 {
    shares.iter().map(|share| share.bytes).sum()
}

/// The memory that training takes in addition to a loaded policy and its key-value cache, bytes:
/// moments, master weights and the other models, all the time; gradients and activations, during
/// an update.
pub(crate) fn training_memory(shape: &Footprint<'_>, settings: &Settings, reference: bool) -> (u64, u64) {
    (sum(&held_by_run(shape, settings, reference)), sum(&in_update(shape, settings)))
}

/// The settings with a number of tokens per micro-batch on a GPU, if they have none: the most whose
/// update takes at most two thirds of what the other parts of training leave of `free` bytes, the
/// memory beside the policy. The rest is for the key-value cache.
pub(crate) fn with_micro_batches(
    shape: &Footprint<'_>,
    settings: &Settings,
    reference: bool,
    free: Option<u64>,
) -> Settings {
    /// From most to least.
    const TOKENS: [usize; 4] = [32_768, 16_384, 8192, 4096];
    let mut chosen = settings.clone();
    let (Some(free), true, 0) = (free, shape.device.is_cuda(), *chosen.trainer.tokens_per_batch_mut()) else {
        return chosen;
    };
    let left = free.saturating_sub(sum(&held_by_run(shape, settings, reference)));
    for tokens in TOKENS {
        *chosen.trainer.tokens_per_batch_mut() = tokens;
        if sum(&in_update(shape, &chosen)) <= left / 3 * 2 {
            break;
        }
    }
    chosen
}

pub(crate) fn share(what: &'static str, why: String, bytes: u64) -> MemoryShare {
    MemoryShare { what, why, bytes }
}

pub(crate) fn named(numbers: u64) -> String {
    format!("{} million numbers", numbers.div_ceil(1_000_000))
}

/// Number of trained weights, and the bytes of one.
pub(crate) fn learned(shape: &Footprint<'_>) -> (u64, u64) {
    match shape.adapter {
        Some(_) => (shape.adapted(), 4),
        None => (shape.numbers(), shape.kind.elt_size_in_bytes() as u64),
    }
}

pub(crate) fn context_tokens(shape: &Footprint<'_>, settings: &Settings) -> usize {
    match settings.policy.max_context {
        0 => shape.config.default_context(),
        wanted => wanted.min(shape.config.longest_context()),
    }
}

/// The memory in use during the whole run, without the policy and the key-value cache.
pub(crate) fn held_by_run(shape: &Footprint<'_>, settings: &Settings, reference: bool) -> Vec<MemoryShare> {
    let ((learned, learned_bytes), element) = (learned(shape), shape.kind.elt_size_in_bytes() as u64);
    let mut held = vec![share("AdamW", "two moments in f32".to_owned(), 8 * learned / shape.parts(1))];
    if learned_bytes == 2 {
        held.push(share("master weights", "in f32".to_owned(), 4 * learned / shape.parts(1)));
    }
    if reference {
        held.push(share("reference", "a model of its own".to_owned(), shape.weights() + shape.packed()));
    }
    let Trainer::Rl { learner, critic } = &settings.trainer else { return held };
    if learner.ema > 0.0 {
        held.push(share("average", "of the weights, in f32".to_owned(), 4 * learned));
    }
    if *critic && !learner.critic.shared {
        let state = shape.numbers() * if element == 2 { 12 } else { 8 } / shape.parts(1);
        let bytes = shape.weights() + shape.packed() + shape.numbers() * element / shape.parts(2) + state;
        held.push(share("critic", "weights, gradients and moments of a model of its own".to_owned(), bytes));
    }
    held
}

pub(crate) fn in_update(shape: &Footprint<'_>, settings: &Settings) -> Vec<MemoryShare> {
    let (learned, learned_bytes) = learned(shape);
    let (tokens, several) = match &settings.trainer {
        Trainer::Rl { learner, .. } => {
            let context = context_tokens(shape, settings);
            (learner.tokens_at_once().max(context), several(learner, context))
        }
        Trainer::Sft(sft) => (sft.tokens_at_once(), true),
    };
    let parts = shape.parts(2);
    let mut all = if parts == 1 {
        vec![share("gradients", named(learned), learned * learned_bytes)]
    } else {
        // Of a process's part, and of what is exchanged.
        let layers = shape.config.num_hidden_layers as u64;
        let part = share("gradients", format!("of a {parts}th of the weights, in f32"), 4 * learned / parts);
        let head = if shape.adapter.is_none() { shape.embedding() } else { 0 };
        let computed = learned.saturating_sub(head) / layers.max(1) + head;
        vec![part, share("gradients", "of a layer and the head, until they are exchanged".to_owned(), 4 * computed)]
    };
    if parts == 1 && several && learned_bytes == 2 {
        all.push(share("gradients", "of earlier micro-batches, in f32".to_owned(), 4 * learned));
    }
    all.extend(learning(shape, tokens as u64, several));
    all
}

/// Whether an optimiser step may have more than one micro-batch.
fn several(learner: &Learner, context: usize) -> bool {
    let rows = (learner.group_size * learner.groups_per_step).div_ceil(learner.mini_batches.max(1));
    rows * context > learner.tokens_at_once()
}

/// The memory of `tokens` tokens at once; with `several` micro-batches, each has gradients in
/// addition to their sum.
fn learning(shape: &Footprint<'_>, tokens: u64, several: bool) -> Vec<MemoryShare> {
    let chunk = (logprobs_at_once(shape.config.vocab_size, shape.device) as u64).min(tokens);
    let how = if shape.checkpointing { ", one layer's at a time" } else { "" };
    let mut all = vec![
        share("activations", format!("{tokens} tokens at once{how}"), shape.learning(tokens)),
        share("logits", format!("{chunk} tokens at once"), shape.logits(chunk)),
    ];
    if shape.adapter.is_none() {
        let element = shape.kind.elt_size_in_bytes() as u64;
        let native = shape.packed() > 0;
        let (bytes, why) = if native {
            // In a micro-batch they use the memory of the packed head, which has been freed
            // by then.
            (if several { element * shape.numbers() } else { 0 }, "of a micro-batch, until they are added")
        } else {
            // Summed in f32; a tied embedding adds its own gradient.
            let wide = if shape.kind == Dtype::Float { 0 } else { 4 };
            let head_bytes = if shape.config.tie_word_embeddings { element } else { 0 };
            ((wide + head_bytes) * shape.embedding(), "of the head, until they are added up")
        };
        all.push(share("gradients", why.to_owned(), bytes));
    }
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tch::Device;

    use super::*;
    use crate::model::Config;

    /// Qwen2.5-1.5B in bf16.
    #[test]
    fn micro_batches_of_a_gpu_are_as_large_as_its_memory_allows() {
        let json = serde_json::json!({
            "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 151_936, "hidden_size": 1536,
            "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 32768, "tie_word_embeddings": true,
        });
        let config = Config::from_json(&json).unwrap();
        let of = |device: Device, gigabytes: u64, checkpointing: bool, tokens: usize| {
            let shape = Footprint {
                config: &config,
                device,
                kind: Dtype::BFloat16,
                adapter: None,
                checkpointing,
                threads: 1,
                processes: 1,
                zero_stage: 0,
            };
            let mut settings = Settings::default();
            settings.policy.max_context = 2048;
            *settings.trainer.tokens_per_batch_mut() = tokens;
            let chosen = with_micro_batches(&shape, &settings, false, Some(gigabytes << 30));
            chosen.trainer.learner().unwrap().tokens_at_once()
        };
        let gpu = Device::Cuda(0);
        let sizes = [40, 77, 136, 400].map(|gigabytes| of(gpu, gigabytes, false, 0));
        assert!(sizes.is_sorted() && sizes[0] == 4096 && sizes[2] >= 16_384 && sizes[3] == 32_768, "{sizes:?}");
        assert!(of(gpu, 77, true, 0) >= 16_384);
        assert_eq!((of(gpu, 400, false, 1000), of(Device::Cpu, 400, false, 0)), (1000, 4096));
    }
}
