//! Settings without effect, and settings that contradict others: a warm-up longer than the run, a
//! critic's learning rate without a critic.
//!
//! The condition of a single setting is part of its declaration ([`lacking`]); the rules about
//! several settings are rows of `lua/unused.lua`. A contradiction within the recipe or within the
//! command line is an error. An override that makes a setting of the recipe useless
//! (`trainer.steps=2`, `trainer.algorithm=grpo`) is a warning.

use serde_json::{Map, Value, json};

use super::objective::policy_objective;
use super::refusals::{BrokenRule, adapter_targets, loss_facts};
use crate::config::{Lacking, Learner, Settings, lacking, value_of};
use crate::error::{Error, Result};
use crate::host_lua::HostFile;
use crate::script::Script;

thread_local! {
    static UNUSED: Result<HostFile> = HostFile::load("unused", include_str!("../../../lua/unused.lua"), |_| Ok(()));
}

/// Refuses contradictions within the recipe or the command line; returns the warnings.
///
/// # Errors
/// `Kind::Script` with the line of the setting, `Kind::Usage` for one of the command line.
pub fn unused_settings(script: &Script) -> Result<Vec<Error>> {
    adapter_targets(&script.settings.policy).map_err(|error| script.placed(error))?;
    let typed = ["trainer.algorithm", "trainer.loss", "trainer.clip"];
    let typed: Map<String, Value> =
        typed.into_iter().filter_map(|key| Some((key.to_owned(), script.typed(key)?.into()))).collect();
    let unused = unused(script, &script.settings, &script.written.all, &typed)?;
    if unused.is_empty() {
        return Ok(Vec::new());
    }
    let alone = match script.without_overrides() {
        Ok(settings) => self::unused(script, &settings, &script.written.recipe, &Map::new())?,
        Err(_) => Vec::new(),
    };
    let mut warnings = Vec::new();
    for rule in unused {
        let is_of_recipe = || alone.iter().any(|other| other.setting == rule.setting);
        let is_error = rule.is_error && (script.typed(&rule.setting).is_some() || is_of_recipe());
        let error = script.placed(rule.into());
        if is_error {
            return Err(error);
        }
        warnings.push(error);
    }
    Ok(warnings)
}

/// The settings that have no effect or are contradicted, each once. `written` has the settings that
/// were written, `typed` the settings of the command line.
fn unused(
    script: &Script,
    settings: &Settings,
    written: &Value,
    typed: &Map<String, Value>,
) -> Result<Vec<BrokenRule>> {
    let mut values = serde_json::to_value(settings).unwrap_or_default();
    // The name of the algorithm, not of its training loop.
    if let Some(name) = value_of(written, "trainer.algorithm").as_str() {
        values["trainer"]["algorithm"] = name.into();
    }
    let learner = settings.trainer.learner();
    let recipe = json!({
        "settings": values,
        "written": written,
        "typed": typed,
        "critic": settings.trainer.has_critic(),
        // With the clip range of the loss, without the trainer's. A loss that is refused elsewhere
        // has no facts.
        "loss": learner.and_then(|learner| {
            let loss = policy_objective(&Learner { clip: None, ..learner.clone() }).ok()?;
            Some(loss_facts(&loss))
        }),
        // The clip range of the recipe's own algorithm.
        "has_clip": learner.is_some_and(|learner| learner.loss.is_of_recipe())
            && script.declared.as_ref().is_some_and(|algorithm| algorithm.has_clip()),
    });
    let mut unused =
        UNUSED.with(|file| file.as_ref().map_err(Clone::clone)?.call::<Vec<BrokenRule>>("unused", &recipe))?;
    if script.privileged {
        values["trainer"]["critic"]["privileged"] = "the recipe's function".into();
    }
    for Lacking { setting, need, why } in lacking(&values, written, learner.is_none()) {
        if unused.iter().all(|listed| listed.setting != setting) {
            unused.push(BrokenRule {
                setting: setting.to_owned(),
                message: format!("{setting} is set and has no effect: {why}"),
                hint: format!("set {need}, or leave {setting} out"),
                is_error: true,
            });
        }
    }
    Ok(unused)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The refusal or the warnings for a recipe with this trainer.
    fn warnings(trainer: &str, overrides: &[&str]) -> std::result::Result<Vec<String>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.lua");
        let recipe = format!(
            "return r1.recipe {{\n  reward = function() return 1 end,\n  data = {{ train = \"x.jsonl\" }},\n  trainer = {trainer},\n}}"
        );
        std::fs::write(&path, recipe).unwrap();
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        let script = Script::load(&path, &overrides).unwrap();
        let clean = |error: Error| error.to_string().replace(&format!("{}/", dir.path().display()), "");
        Ok(unused_settings(&script).map_err(clean)?.into_iter().map(clean).collect())
    }

    #[test]
    fn a_recipe_that_contradicts_itself_is_refused_with_its_line() {
        for (trainer, reason) in [
            ("r1.grpo { steps = 5, warmup = 6 }", "trainer.warmup is 6 and trainer.steps 5"),
            ("r1.sft { steps = 5, warmup = 6 }", "trainer.warmup is 6 and trainer.steps 5"),
            (
                "r1.grpo { critic = { lr = 1e-5 } }",
                "trainer.critic.lr is set and has no effect: trainer.algorithm is \"grpo\"",
            ),
            ("r1.ppo { steps = 5, critic = { warmup = 5 } }", "the policy is never trained"),
            ("r1.ppo { critic = { weight = 1 } }", "trainer.critic.shared is false"),
            ("r1.ppo { critic = { privileged_tokens = 9 } }", "trainer.critic.privileged is empty"),
            ("r1.grpo { kl = { kind = \"k1\" } }", "trainer.kl.coef is 0"),
            ("r1.grpo { kl = { coef = 0.1, horizon = 5 } }", "trainer.kl.target is 0"),
            (
                "r1.grpo { kl = { coef = 0.1, place = \"reward\", straight_through = true } }",
                "trainer.kl.place is \"reward\"",
            ),
            ("r1.trainer { algorithm = \"pspo\", kl = { kind = \"k1\" } }", "loss = { name = \"pspo\", kl = \"k1\" }"),
            ("r1.grpo { loss = \"reinforce\", clip = { 0.2, 0.2 } }", "the loss `reinforce` has no clip"),
            ("r1.grpo { loss = { name = \"ppo\", kl = \"k1\" } }", "its kl_coef is 0"),
            ("r1.grpo { kl = { coef = 0.1 }, loss = { name = \"ppo\", kl = \"k1\" } }", "the KL is that of trainer.kl"),
            ("r1.grpo { loss = { name = \"ppo\", horizon = 9 } }", "seq-mean-token-sum-norm"),
            ("r1.grpo { loss = { name = \"ppo\", seq = \"step\" } }", "has no sequences"),
            ("r1.grpo { loss = { name = \"ppo\", ratio_over = \"trajectory\" } }", "is that of a token"),
            ("r1.grpo { branch = { width = 2 } }", "trainer.branch.roots is 0"),
            ("r1.grpo { filter = { refills = 2 } }", "trainer.filter.uniform is false"),
            ("r1.grpo { filter = { uniform = true, refills = 0 } }", "all stay"),
            ("r1.grpo { final_lr = 0.1 }", "trainer.decay is \"constant\""),
            ("r1.grpo { step_ratio_clip = 0.1 }", "trainer.mini_batch_by is \"trajectory\""),
            ("r1.grpo { importance = { cap = 3 } }", "set trainer.recompute_above > 0"),
            (
                "r1.sft { warmup = 0, patience = 3 }, data = { train = \"x.jsonl\", eval = \"x.jsonl\" }",
                "eval.every is 0",
            ),
            ("r1.grpo {}, policy = { init = {} }", "policy.init is set and has no effect"),
            ("r1.grpo {}, eval = { every = 5 }", "data.eval is not set"),
            ("r1.grpo {}, eval = { limit = 5 }", "data.eval is not set"),
        ] {
            let error = warnings(trainer, &[]).unwrap_err();
            assert!(error.contains(reason) && error.contains("a.lua:4"), "{trainer}: {error}");
        }
    }

    #[test]
    fn settings_with_an_effect_are_accepted() {
        for trainer in [
            "r1.grpo { steps = 6, warmup = 6 }",
            "r1.grpo { steps = 0, warmup = 6 }",
            "r1.ppo { critic = { shared = true, weight = 1, warmup = 5 } }",
            "r1.grpo { kl = { coef = 0.1, kind = \"k1\", target = 0.1, horizon = 9 } }",
            "r1.trainer { algorithm = \"pspo\", kl = { target = 0.1 }, loss = { name = \"pspo\", kl = \"k1\" } }",
            "r1.grpo { kl = { coef = 0.1 }, loss = { name = \"ppo\", kl_times_ratio = true } }",
            "r1.grpo { loss = { name = \"ppo\", kl_coef = 0.1, kl = \"k1\" } }",
            "r1.grpo { loss = { name = \"gspo\", ratio_over = \"trajectory\", seq = \"step\" }, clip = { 0.1, 0.1 } }",
            "r1.grpo { loss_agg = \"seq-mean-token-sum-norm\", loss = { name = \"ppo\", horizon = 9 } }",
            "r1.grpo { branch = { roots = 2, width = 2 } }",
            "r1.trainer { algorithm = \"dapo\", filter = { refills = 2 } }",
            "r1.grpo { decay = \"cosine\", final_lr = 0.1 }",
            // A switch that is turned off, and a setting that depends on it.
            "r1.grpo { kl = { coef = 0, kind = \"k1\" }, branch = { roots = 0, width = 2 }, filter = { uniform = false, refills = 2 } }",
            "r1.ppo { critic = { shared = false, weight = 1 } }",
        ] {
            assert_eq!(warnings(trainer, &[]), Ok(Vec::new()), "{trainer}");
        }
    }

    #[test]
    fn settings_made_useless_by_the_command_line_are_warned_of() {
        let long = "r1.grpo { steps = 50, warmup = 10 }";
        let warned = warnings(long, &["trainer.steps=2"]).unwrap();
        assert_eq!(warned.len(), 1, "{warned:?}");
        assert!(
            warned[0].contains("trainer.warmup is 10 and trainer.steps 2") && warned[0].contains("a.lua:4"),
            "{warned:?}"
        );
        // Settings of the command line are intentional.
        let typed = warnings(long, &["trainer.steps=2", "trainer.warmup=3"]).unwrap_err();
        assert!(typed.contains("--> trainer.warmup=3"), "{typed}");
        assert!(
            warnings("r1.grpo {}", &["trainer.critic.lr=1"]).unwrap_err().contains("\"ppo\", \"pspo\" or \"capo\"")
        );
        let loss = "{\"name\": \"ppo\", \"horizon\": 3}";
        assert!(
            warnings("r1.grpo {}", &[&format!("trainer.loss={loss}")]).unwrap_err().contains("trainer.loss.horizon")
        );
        // Another algorithm, another loss.
        let critic = "r1.ppo { group_size = 2, critic = { lr = 1 } }";
        assert_eq!(warnings(critic, &["trainer.algorithm=grpo"]).unwrap().len(), 1);
        assert_eq!(warnings("r1.grpo { clip = { 0.2, 0.2 } }", &["trainer.loss=gpg"]).unwrap().len(), 1);
        // The clip range of the recipe was meant for another loss.
        let clipped = warnings("r1.grpo { clip = { 0.2, 0.3 } }", &["trainer.algorithm=gspo"]).unwrap();
        assert!(clipped[0].contains("replaces the clip range of trainer.algorithm=gspo"), "{clipped:?}");
        assert!(clipped[0].contains("{ 0.0003, 0.0004 }") && clipped[0].contains("a.lua:4"), "{clipped:?}");
        let intended = ["trainer.algorithm=gspo", "trainer.clip=[0.1, 0.1]"];
        assert_eq!(warnings("r1.grpo { clip = { 0.2, 0.3 } }", &intended), Ok(Vec::new()));
        // A contradiction within the recipe is an error for any command line.
        assert!(warnings("r1.grpo { steps = 5, warmup = 6 }", &["seed=3"]).is_err());
        assert_eq!(warnings("r1.grpo { steps = 5, warmup = 6 }", &["trainer.steps=6"]), Ok(Vec::new()));
        let plain = warnings("r1.grpo { group_size = 4, branch = { roots = 4 } }", &[]).unwrap();
        assert!(plain[0].contains("nothing is left to branch off"), "{plain:?}");
        // A default is not in the recipe.
        let default = warnings("r1.sft { steps = 5 }", &[]).unwrap();
        assert!(default[0].contains("trainer.warmup by default is 20"), "{default:?}");
    }
}
