//! Models on their device, tokenizers and chat templates, by the settings of a policy.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Value, json};

use super::adapter;
use super::source::model_dir;
use crate::config::{DeviceChoice, Dtype, PolicySettings, VisionInit, refuse_server};
use crate::error::{Error, Kind, Result};
use crate::hub::Fetching;
use crate::model::{Config, Model, RewardModel, TowerKind, VisionConfig};
use crate::native::compute_kind;
use crate::store::verify;
use crate::telemetry::Reporter;
use crate::text::{Renderer, Style};
use crate::vision::{DecodeLimits, ImageSizes, Images, Processor, VideoProcessor, VideoStyle};

/// Loads the policy: model on its device, tokenizer and template for the recipe's tool format.
pub fn load_policy(
    policy: &PolicySettings,
    style: &Style,
    fetching: Fetching<'_>,
) -> Result<(Rc<Model>, Arc<Renderer>, PathBuf)> {
    let (mut model, dir) = load_model(policy, fetching)?;
    let renderer = load_renderer(&dir, style, fetching.reporter)?;
    if let Some(images) = renderer.images() {
        model.set_images(Arc::clone(images));
    }
    Ok((Rc::new(model), renderer, dir))
}

/// A model's tokenizer and template; a built-in template that replaces a missing one is reported.
pub fn load_renderer(dir: &Path, style: &Style, reporter: &Reporter) -> Result<Arc<Renderer>> {
    let renderer = Renderer::load_styled(dir, style)?;
    if renderer.template().is_default() {
        reporter.warn("the model has no chat template: plain ChatML is used, which may differ from its training");
    }
    attach_images(&renderer, dir)?;
    Ok(Arc::new(renderer))
}

/// Gives the renderer a table of images, if the model in `dir` reads them.
///
/// # Errors
/// [`Kind::Model`] for a model without its processor, and a processor of another vision tower.
pub fn attach_images(renderer: &Renderer, dir: &Path) -> Result<()> {
    let Some(vision) = Config::load(dir).ok().and_then(|config| config.vision) else { return Ok(()) };
    let wrong = |message: &str| {
        let hint = "the files of the processors must be the ones of this model";
        Error::new(Kind::Model, message).at_path(dir).hint(hint)
    };
    let VisionConfig { patch, temporal_patch, merge, .. } = vision.tower;
    let processor = renderer.tokenizer().image_processor(patch, merge)?;
    let processor = processor.ok_or_else(|| wrong("the model reads images, and has no preprocessor_config.json"))?;
    let reads_tiles = matches!(vision.tower.kind, TowerKind::Tiles { .. });
    if matches!(processor.sizes, ImageSizes::Tiles(_)) != reads_tiles {
        return Err(wrong("preprocessor_config.json is the file of a model of another family"));
    }
    if [processor.patch_size, processor.temporal_patch_size, processor.merge_size] != [patch, temporal_patch, merge] {
        return Err(wrong("preprocessor_config.json and `vision_config` in config.json have different patch sizes"));
    }
    let style = match vision.tower.kind {
        TowerKind::Windows { per_second, .. } => Some(VideoStyle::Positions { per_second }),
        TowerKind::DeepStack { .. } => Some(VideoStyle::Timestamps),
        TowerKind::Tiles { .. } => None,
    };
    let videos = style.map(|style| renderer.tokenizer().video_processor(style)).transpose()?.flatten();
    if videos.as_ref().is_some_and(|videos| videos.patch_sizes() != [patch, temporal_patch, merge]) {
        let message = "video_preprocessor_config.json and `vision_config` in config.json have different patch sizes";
        return Err(wrong(message));
    }
    let images = Images::new(processor, DecodeLimits::default()).with_videos(videos);
    renderer.tokenizer().set_images(Arc::new(images))
}

/// Gives a table of images to the renderer of another model, if the model of the recipe may read
/// images: a new model with a vision tower, or one that is not on this machine (`stands_in`).
///
/// # Errors
/// [`Kind::Model`] for settings of a new tower that contradict each other.
pub fn attach_stand_in_images(renderer: &Renderer, policy: &PolicySettings, stands_in: bool) -> Result<()> {
    let new = policy.init.as_ref().and_then(|init| init.vision.clone());
    if new.is_none() && !stands_in {
        return Ok(());
    }
    let images = new_images(&new.unwrap_or_default())?;
    renderer.tokenizer().set_images_of_another_model(Arc::new(images));
    Ok(())
}

/// A table of images for a new model.
///
/// # Errors
/// [`Kind::Model`] for settings of a new tower that contradict each other.
pub fn new_images(vision: &VisionInit) -> Result<Images> {
    let json = new_processor(vision);
    let videos = VideoProcessor::from_json(&json, VideoStyle::Timestamps)?;
    Ok(Images::new(Processor::from_json(&json)?, DecodeLimits::default()).with_videos(Some(videos)))
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

/// Patches along each side that become one token of a new model.
pub const IMAGE_MERGE: usize = 2;
/// Frames of its patches; an image is repeated.
pub const IMAGE_FRAMES: usize = 2;

/// The content of `preprocessor_config.json` of a new model. Values of pixels are between -1 and 1.
pub fn new_processor(vision: &VisionInit) -> Value {
    json!({
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": vision.patch_size,
        "temporal_patch_size": IMAGE_FRAMES,
        "merge_size": IMAGE_MERGE,
        "min_pixels": vision.min_pixels,
        "max_pixels": vision.max_pixels,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    })
}
