//! The rules about several settings: rows of `lua/rules.lua`, in groups, and of `lua/unused.lua`.
//! Rules about a single setting are part of its declaration (`range` and `needs`).

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::config::{LORA_TARGETS, PolicySettings};
use crate::error::{Error, Kind, Result, suggest};
use crate::host_lua::HostFile;
use crate::rl::objective::PolicyLoss;

thread_local! {
    static RULES: Result<HostFile> = HostFile::load("rules", include_str!("../../../lua/rules.lua"), |_| Ok(()));
}

/// A rule that settings break.
#[derive(Debug, Deserialize)]
pub(crate) struct BrokenRule {
    pub(crate) setting: String,
    pub(crate) message: String,
    pub(crate) hint: String,
    /// Whether it is an error rather than a warning: the setting was written, and is not a default.
    #[serde(default)]
    pub(crate) is_error: bool,
}

impl From<BrokenRule> for Error {
    fn from(BrokenRule { setting, message, hint, .. }: BrokenRule) -> Self {
        Self::new(Kind::Script, message).about_setting(setting).hint(hint)
    }
}

/// The rules of a group that settings break, in the order of the file.
///
/// # Errors
/// `Kind::Internal` for a mistake in the file.
pub(crate) fn broken(group: &str, settings: &impl Serialize) -> Result<Vec<BrokenRule>> {
    RULES.with(|rules| rules.as_ref().map_err(Clone::clone)?.call(group, settings))
}

/// Refuses settings that break a rule of a group.
///
/// # Errors
/// `Kind::Script` for the first broken rule.
pub(crate) fn check(group: &str, settings: &impl Serialize) -> Result<()> {
    broken(group, settings)?.into_iter().next().map_or(Ok(()), |rule| Err(rule.into()))
}

/// A loss as the rules read it.
pub(crate) fn loss_facts(loss: &PolicyLoss) -> Value {
    json!({
        "name": loss.name,
        "options": loss.formula.options(),
        "terms": loss.terms,
        "has_clip": loss.has_option("clip_low"),
        "compares_sequences": loss.formula.compares_sequences(),
        "one_advantage_per_sequence": loss.formula.one_advantage_per_sequence(),
    })
}

/// Refuses projections of an adapter that no model has, before one is loaded.
///
/// # Errors
/// `Kind::Script` with the nearest names.
pub(crate) fn adapter_targets(policy: &PolicySettings) -> Result<()> {
    const KEY: &str = "policy.lora.targets";
    let Some(lora) = &policy.lora else { return Ok(()) };
    let refusal = |message: String| Error::new(Kind::Script, message).about_setting(KEY);
    // The router of experts.
    let targets = || LORA_TARGETS.into_iter().chain(["gate"]);
    if lora.targets.is_empty() {
        return Err(refusal(format!("{KEY} is empty: the adapter has no weights")).hint("leave it out"));
    }
    let end = |target: &str| target.rsplit('.').next().unwrap_or_default().to_owned();
    // The model knows the projections of its vision tower.
    let of_language = || lora.targets.iter().filter(|target| !target.starts_with("visual."));
    match of_language().find(|target| targets().all(|name| name != end(target))) {
        Some(lost) => Err(refusal(format!("`{KEY}`: no model has a projection `{lost}`"))
            .hint(suggest(&end(lost), targets().collect::<Vec<_>>()))),
        None => Ok(()),
    }
}
