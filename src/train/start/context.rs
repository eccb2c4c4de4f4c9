//! The length of prompt and reply that a model and a recipe allow, and the shape of a loaded model.

use crate::config::{PolicySettings, Settings};
use crate::error::{Error, Kind, Result};
use crate::model::{Config, Footprint, Model};
use crate::telemetry::Reporter;

/// The shape of a loaded policy.
pub(crate) fn footprint<'a>(model: &'a Model, settings: &Settings) -> Footprint<'a> {
    Footprint {
        config: &model.config,
        device: model.device(),
        kind: model.kind(),
        adapter: model.lora(),
        checkpointing: settings.trainer.gradient_checkpointing(),
        threads: crate::native::thread_count(),
        // Without those that other processes have: a bound.
        processes: 1,
        zero_stage: settings.trainer.zero_stage(),
    }
}

/// Longest prompt plus reply: the setting of the recipe, at most the model's limit. A larger
/// setting causes a warning.
pub(crate) fn context(policy: &PolicySettings, config: &Config, reporter: &Reporter) -> usize {
    let limit = config.longest_context();
    match policy.max_context {
        0 => config.default_context(),
        wanted if wanted > limit => {
            let message = context_limit_message(wanted, limit);
            let is_long = limit < config.max_position_embeddings;
            reporter.warn(&if is_long { format!("{message} (the original context of LongRoPE)") } else { message });
            limit
        }
        wanted => wanted,
    }
}

/// [`context`] for rollouts, whose log-probabilities must equal a pass over the whole sequence.
///
/// # Errors
/// `Kind::Model` for a context in which dynamic rotary embeddings apply.
pub(crate) fn context_of_rollouts(policy: &PolicySettings, config: &Config, reporter: &Reporter) -> Result<usize> {
    let (wanted, limit) = (policy.max_context, config.max_position_embeddings);
    if config.turns_by_length(wanted) {
        let message = format!(
            "policy.max_context is {wanted}, and the model has dynamic rotary embeddings with max_position_embeddings = {limit}"
        );
        return Err(Error::new(Kind::Model, message).hint(format!(
            "above {limit} tokens their rotation depends on the length of the sequence, and samples made with a \
             key-value cache are not those that the update computes: set policy.max_context={limit} or less; r1 sft and \
             r1 infer take longer sequences"
        )));
    }
    Ok(context(policy, config, reporter))
}

/// The message about a context that is too long for a model.
pub fn context_limit_message(wanted: usize, limit: usize) -> String {
    format!("policy.max_context is {wanted}, and the limit of the model is {limit} tokens: {limit} is used")
}
