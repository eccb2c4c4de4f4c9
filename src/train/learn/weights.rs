//! The selection of trained weights and of their optimiser settings, by names with `*` for
//! anything.

use tch::Tensor;

use crate::adamw::{self, AdamW};
use crate::config::Learner;
use crate::error::{Error, Kind, Result};
use crate::glob::matches;
use crate::model::Model;

pub(crate) fn trained(model: &Model) -> Vec<(String, Tensor)> {
    model.parameters().into_iter().filter(|(_, tensor)| tensor.requires_grad()).collect()
}

/// Freezes weights by name; `*` matches anything.
pub(crate) fn freeze(model: &Model, patterns: &[String]) -> Result<()> {
    let parameters = model.parameters();
    for pattern in patterns {
        let mut any = false;
        for (name, tensor) in parameters.iter().filter(|(name, _)| matches(pattern, name)) {
            let _ = tensor.set_requires_grad(false);
            any |= !name.is_empty();
        }
        if !any {
            let names: Vec<&str> = parameters.iter().map(|(name, _)| name.as_str()).collect();
            return Err(Error::new(Kind::Script, format!("trainer.freeze: no weight is called `{pattern}`"))
                .hint(crate::error::suggest(pattern, names)));
        }
    }
    if parameters.iter().all(|(_, tensor)| !tensor.requires_grad()) {
        return Err(Error::new(Kind::Script, "trainer.freeze leaves nothing to train").hint("freeze less"));
    }
    Ok(())
}

/// The optimiser of the trained weights, with the recipe's groups.
///
/// # Errors
/// `Kind::Script` for a group that names no weight, or has invalid numbers.
pub(crate) fn optimizer(model: &Model, learner: &Learner) -> Result<AdamW> {
    let parameters = model.parameters();
    for group in &learner.groups {
        let refuse = |message: String| Error::new(Kind::Script, format!("trainer.groups: {message}"));
        if !parameters.iter().any(|(name, _)| matches(&group.weights, name)) {
            let names: Vec<&str> = parameters.iter().map(|(name, _)| name.as_str()).collect();
            return Err(refuse(format!("no weight is called `{}`", group.weights))
                .hint(crate::error::suggest(&group.weights, names)));
        }
        for (field, value) in [("lr", group.lr), ("weight_decay", group.weight_decay.unwrap_or(0.0))] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(refuse(format!("{field} of `{}` is {value}", group.weights)).hint("0 or more"));
            }
        }
    }
    let options = adamw::AdamWOptions { weight_decay: learner.weight_decay, ..adamw::AdamWOptions::default() };
    AdamW::with_groups(parameters, options, |name| {
        let group = learner.groups.iter().find(|group| matches(&group.weights, name))?;
        Some(adamw::Group { weight_decay: group.weight_decay, rate: group.lr })
    })
}
