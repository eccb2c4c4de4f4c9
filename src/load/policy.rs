//! Models on their device, tokenizers and chat templates, by the settings of a policy.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use super::adapter;
use super::source::model_dir;
use crate::config::{DeviceChoice, Dtype, PolicySettings, refuse_server};
use crate::error::Result;
use crate::hub::Fetching;
use crate::model::{Model, RewardModel};
use crate::native::compute_kind;
use crate::store::verify;
use crate::telemetry::Reporter;
use crate::text::{Renderer, Style};

/// Loads the policy: model on its device, tokenizer and template for the recipe's tool format.
pub fn load_policy(
    policy: &PolicySettings,
    style: &Style,
    fetching: Fetching<'_>,
) -> Result<(Rc<Model>, Arc<Renderer>, PathBuf)> {
    let (model, dir) = load_model(policy, fetching)?;
    let renderer = load_renderer(&dir, style, fetching.reporter)?;
    Ok((Rc::new(model), renderer, dir))
}

/// A model's tokenizer and template; a built-in template that replaces a missing one is reported.
pub fn load_renderer(dir: &Path, style: &Style, reporter: &Reporter) -> Result<Arc<Renderer>> {
    let renderer = Renderer::load_styled(dir, style)?;
    if renderer.template().is_default() {
        reporter.warn("the model has no chat template: plain ChatML is used, which may differ from its training");
    }
    Ok(Arc::new(renderer))
}

/// Loads the policy's model alone, on its device, and returns the directory of its tokenizer and
/// settings. An adapter is merged into the weights if that loses no precision.
pub fn load_model(policy: &PolicySettings, fetching: Fetching<'_>) -> Result<(Model, PathBuf)> {
    refuse_server(policy)?;
    let dir = model_dir(&policy.model, fetching)?;
    let (mut model, text) = adapter::load(&dir, policy, fetching)?;
    if model.lora().is_some() && model.kind() == tch::Kind::Float {
        model.merge_adapter()?;
    }
    Ok((model, text))
}

/// Loads a reward model by directory or Hub id onto a device, in f32 on the CPU and bf16 on CUDA;
/// and its directory.
///
/// # Errors
/// As [`RewardModel::load`], and as [`load_model`] for names.
pub fn load_reward_model(name: &str, device: DeviceChoice, fetching: Fetching<'_>) -> Result<(RewardModel, PathBuf)> {
    let dir = model_dir(name, fetching)?;
    verify(&dir, true)?;
    let device = crate::native::device(device)?;
    Ok((RewardModel::load(&dir, device, compute_kind(Dtype::Auto, device))?, dir))
}
