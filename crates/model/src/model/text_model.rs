//! The text model in the checkpoint of a model that sees images: its tensors have other names, and
//! the experts of a layer are one tensor.
//!
//! The other parts, which are not read, are the images' and multi-token prediction.

use std::borrow::Cow;
use std::path::Path;

use super::file_tensor::{FileNumbers, FileTensor};
use super::vision::TOWER;
use super::{lora, weights};
use r1_base::error::Result;

/// The name of a tensor in r1: a tensor of the text model has its name in a text model, and a
/// tensor of the vision tower has the prefix [`TOWER`].
pub(super) fn name_of(name: &str) -> String {
    if let Some(name) = name.strip_prefix(lora::PREFIX) {
        return format!("{}{}", lora::PREFIX, name_of(name));
    }
    let name =
        LANGUAGE.iter().fold(name.to_owned(), |name, part| name.replacen(&format!("model.{part}."), "model.", 1));
    match name.strip_prefix("model.") {
        Some(short) if short.starts_with(TOWER) => short.to_owned(),
        Some(short) if TILES.iter().any(|part| short.starts_with(part)) => format!("{TOWER}{short}"),
        _ => name,
    }
}

/// The language model in the module trees of transformers.
const LANGUAGE: [&str; 2] = ["language_model", "text_model"];

/// Modules of a vision tower that reads tiles.
const TILES: [&str; 2] = ["vision_model.", "connector."];

/// The name of a tensor as a part of the module tree of transformers, in which `language` is the
/// language model.
pub(super) fn full_name(name: &str, language: &str) -> String {
    if let Some(name) = name.strip_prefix(lora::PREFIX) {
        return format!("{}{}", lora::PREFIX, full_name(name, language));
    }
    if let Some(short) = name.strip_prefix(TOWER) {
        let tiles = TILES.iter().any(|part| short.starts_with(part));
        return format!("model.{}", if tiles { short } else { name });
    }
    let parts = ["layers.", "embed_tokens.", "norm."];
    parts.iter().fold(name.to_owned(), |name, part| {
        name.replacen(&format!("model.{part}"), &format!("model.{language}.{part}"), 1)
    })
}

/// A tensor by the name of the text model. The gate and up projections, or the down projections, of
/// all experts of a layer `[experts, out, in]` become a tensor for each expert.
/// Tensors of other numbers of experts than the model's stay whole.
pub(super) fn parts<'a>(tensor: &FileTensor<'a>, is_parameter: impl Fn(&str) -> bool) -> Vec<FileTensor<'a>> {
    let name = name_of(&tensor.name);
    let parts: &[&str] = match name.rsplit_once(".mlp.experts.") {
        Some((_, "gate_up_proj")) => &["gate_proj", "up_proj"],
        Some((_, "down_proj")) => &["down_proj"],
        _ => &[],
    };
    let count = parts.len().max(1);
    let (&[experts, outputs, inputs], FileNumbers::Plain(_), Some((layer, _))) =
        (tensor.shape.as_slice(), tensor.numbers, name.rsplit_once('.').filter(|_| !parts.is_empty()))
    else {
        return vec![FileTensor { name: Cow::Owned(name), ..tensor.clone() }];
    };
    let bytes = tensor.bytes.len() / (experts as usize * count).max(1);
    let has = |expert: i64| parts.iter().all(|part| is_parameter(&format!("{layer}.{expert}.{part}.weight")));
    if !(outputs as usize).is_multiple_of(count) || bytes == 0 || !has(experts - 1) || has(experts) {
        return vec![FileTensor { name: Cow::Owned(name.clone()), ..tensor.clone() }];
    }
    let places = (0..experts).flat_map(|expert| parts.iter().map(move |part| (expert, part)));
    let each = places.zip(tensor.bytes.chunks_exact(bytes)).map(|((expert, part), bytes)| FileTensor {
        name: Cow::Owned(format!("{layer}.{expert}.{part}.weight")),
        shape: vec![outputs / count as i64, inputs],
        numbers: tensor.numbers,
        bytes,
    });
    each.collect()
}

/// Whether a tensor belongs to a part of the model that is not read: multi-token prediction, and
/// the images' unless the model has a vision tower.
pub(super) fn is_beside(name: &str, has_tower: bool) -> bool {
    let starts = ["mtp.", "model.mtp.", "model.visual.", "visual.", "model.vision_model.", "model.connector."];
    starts[..if has_tower { 2 } else { starts.len() }].iter().any(|start| name.starts_with(start))
}

/// Number of tensors in `dir` that are not read because they are part of neither the text model nor
/// of a vision tower that the model has.
pub fn tensors_beside_text(dir: &Path, has_tower: bool) -> Result<usize> {
    let each = weights::files(dir)?.into_iter().map(|path| weights::names(&path));
    let counts = each.map(|names| Ok(names?.iter().filter(|name| is_beside(name, has_tower)).count()));
    counts.sum()
}
