//! Settings without effect, and settings that contradict others: a warm-up longer than the run, a
//! critic's learning rate without a critic.
//!
//! The condition of a single setting is part of its declaration ([`lacking`]); the rules here
//! involve more than one other setting. A contradiction within the recipe or within the command
//! line is an error. An override that makes a setting of the recipe useless (`trainer.steps=2`,
//! `trainer.algorithm=grpo`) is a warning.

use std::sync::Arc;

use serde_json::Value;

use super::refusals::{Rule, adapter_targets};
use crate::config::{KlPlace, Lacking, Learner, LossAgg, Settings, Trainer, lacking, value_of};
use crate::error::{Error, Kind, Result};
use crate::rl::objective::PolicyLoss;
use crate::script::Script;

/// A setting that has no effect or contradicts another, with the reason.
struct UnusedSetting {
    key: &'static str,
    message: String,
    hint: String,
    /// Whether it is an error rather than a warning: the setting was written, and is not a default.
    is_error: bool,
}

/// Refuses contradictions within the recipe or the command line; returns the warnings.
///
/// # Errors
/// `Kind::Script` with the line of the setting, `Kind::Usage` for one of the command line.
pub fn unused_settings(script: &Script) -> Result<Vec<Error>> {
    adapter_targets(&script.settings.policy).map_err(|error| script.placed(error))?;
    let written = &script.written;
    let find = |settings: &Settings, written: &Value| RuleInput::new(settings, written, script).unused();
    let unused = find(&script.settings, &written.all);
    if unused.is_empty() {
        return Ok(replaced_clip(script));
    }
    let alone = script.without_overrides().map(|settings| find(&settings, &written.recipe)).unwrap_or_default();
    let mut warnings = replaced_clip(script);
    for UnusedSetting { key, message, hint, is_error } in unused {
        let error = script.placed(Error::new(Kind::Script, message).about_setting(key).hint(hint));
        if is_error && (script.typed(key).is_some() || alone.iter().any(|setting| setting.key == key)) {
            return Err(error);
        }
        warnings.push(error);
    }
    Ok(warnings)
}

/// Warns that the clip range of the recipe replaces the range of an algorithm or a loss of the
/// command line.
fn replaced_clip(script: &Script) -> Vec<Error> {
    let (Trainer::Grpo(learner) | Trainer::Ppo(learner)) = &script.settings.trainer else { return Vec::new() };
    let chosen = ["trainer.algorithm", "trainer.loss"].iter().find_map(|key| script.typed(key));
    let (Some(chosen), Some((low, high)), None) = (chosen, learner.clip, script.typed("trainer.clip")) else {
        return Vec::new();
    };
    let published = loss_of(learner).map(|loss| loss.formula.options()).unwrap_or_default();
    let range = |name: &str| published.get(name).and_then(Value::as_f64);
    match (range("clip_low"), range("clip_high")) {
        (Some(own_low), Some(own_high)) if (own_low, own_high) != (low, high) => {
            let message = format!(
                "trainer.clip = {{ {low}, {high} }} of the recipe replaces the clip range of {chosen}, which is \
                 {{ {own_low}, {own_high} }}"
            );
            let error = Error::new(Kind::Script, message).about_setting("trainer.clip");
            vec![script.placed(error.hint("trainer.clip=null keeps that of the algorithm"))]
        }
        _ => Vec::new(),
    }
}

/// The settings of a recipe, as input of the rules.
struct RuleInput {
    settings: Settings,
    /// The settings that were written, without defaults.
    written: Value,
    values: Value,
    /// The loss with its own options; `None` for one that is refused elsewhere.
    loss: Option<PolicyLoss>,
    /// Whether the loss is a function of the recipe's algorithm with a clip range.
    clips: bool,
}

struct NoEffect {
    settings: &'static [&'static str],
    why: fn(&RuleInput) -> Option<String>,
    hint: &'static str,
}

const NO_EFFECT: &[NoEffect] = &[
    NoEffect {
        settings: &["policy.init"],
        why: |recipe| {
            let learns = recipe.learner().is_some() && recipe.settings.cold_start.is_none();
            learns.then(|| "reinforcement learning starts from policy.model".to_owned())
        },
        hint: "initialise it in a cold_start with r1.sft (docs/guide/sft.md), or set policy.model",
    },
    NoEffect {
        settings: &[
            "data.curriculum.low",
            "data.curriculum.high",
            "data.curriculum.outside",
            "data.curriculum.min_attempts",
            "data.curriculum.memory",
        ],
        why: |recipe| {
            let supervised = recipe.learner().is_none();
            supervised.then(|| "supervised training has no success rates".to_owned())
        },
        hint: "leave it out; row_order sorts the rows (docs/guide/data.md)",
    },
    NoEffect {
        settings: &["data.curriculum.outside"],
        why: |recipe| {
            let none = recipe.learner().is_some() && !recipe.settings.data.curriculum.has_band();
            none.then(|| "no band is set: every success rate is inside".to_owned())
        },
        hint: "set data.curriculum.low or data.curriculum.high",
    },
    NoEffect {
        settings: &["trainer.clip"],
        why: |recipe| {
            recipe.learner()?.clip?;
            let has_clip = |loss: &&PolicyLoss| loss.has_option("clip_low") || recipe.clips;
            let loss = recipe.loss.as_ref().filter(|loss| !has_clip(loss))?;
            Some(format!("the loss `{}` has no clip", loss.name))
        },
        hint: "leave it out; on the command line: trainer.clip=null",
    },
    NoEffect {
        settings: &["trainer.kl.kind", "trainer.kl.straight_through", "trainer.kl.place"],
        why: |recipe| {
            // A written coefficient of 0 is a switch.
            let off = recipe.learner()?.kl.coef == 0.0 && !recipe.is_written("trainer.kl.coef");
            let loss = recipe.loss.as_ref().filter(|loss| off && loss.terms.kl_coef > 0.0)?;
            let name = loss.name;
            Some(format!(
                "the KL of the loss `{name}` has its own options: loss = {{ name = \"{name}\", kl = \"k1\" }}"
            ))
        },
        hint: "set it as an option of the loss",
    },
    NoEffect {
        settings: &["trainer.loss.kl", "trainer.loss.kl_straight_through"],
        why: |recipe| recipe.has_kl_in_loss()?.then(|| "the KL is that of trainer.kl".to_owned()),
        hint: "leave it out",
    },
    NoEffect {
        settings: &["trainer.loss.kl", "trainer.loss.kl_straight_through", "trainer.loss.kl_times_ratio"],
        why: |recipe| {
            let none = !recipe.has_kl_in_loss()? && recipe.loss.as_ref()?.terms.kl_coef == 0.0;
            (none && !recipe.is_written("trainer.loss.kl_coef"))
                .then(|| "the loss has no KL: its kl_coef is 0".to_owned())
        },
        hint: "leave it out",
    },
    NoEffect {
        settings: &["trainer.loss.horizon"],
        why: |recipe| {
            let unread = recipe.loss.as_ref()?.terms.loss_agg != LossAgg::SeqMeanTokenSumNorm;
            unread.then(|| "only loss_agg = \"seq-mean-token-sum-norm\" divides by it".to_owned())
        },
        hint: "leave it out",
    },
    NoEffect {
        settings: &["trainer.loss.seq"],
        why: |recipe| {
            let tokens = recipe.loss.as_ref()?.terms.loss_agg == LossAgg::TokenMean;
            tokens.then(|| "loss_agg = \"token-mean\" has no sequences".to_owned())
        },
        hint: "leave it out",
    },
    NoEffect {
        settings: &["trainer.loss.ratio_over"],
        why: |recipe| {
            let sequences = recipe.loss.as_ref()?.formula.compares_sequences();
            (!sequences).then(|| "the ratio of this loss is that of a token".to_owned())
        },
        hint: "leave it out",
    },
];

/// Settings that contradict others, including defaults.
const CONTRADICTIONS: &[Rule<RuleInput>] = &[
    Rule {
        setting: "trainer.warmup",
        broken: |recipe| {
            let (warmup, steps) = match &recipe.settings.trainer {
                Trainer::Grpo(learner) | Trainer::Ppo(learner) => (learner.warmup, learner.steps),
                Trainer::Sft(sft) => (sft.warmup, sft.steps),
            };
            let by_default = if recipe.is_written("trainer.warmup") { "" } else { " by default" };
            (steps > 0 && warmup > steps).then(|| {
                format!(
                    "trainer.warmup{by_default} is {warmup} and trainer.steps {steps}: the learning rate never reaches \
                     trainer.lr"
                )
            })
        },
        hint: "lower trainer.warmup or raise trainer.steps",
    },
    Rule {
        setting: "trainer.critic.warmup",
        broken: |recipe| {
            let Trainer::Ppo(learner) = &recipe.settings.trainer else { return None };
            let (warmup, steps) = (learner.critic.warmup, learner.steps);
            (steps > 0 && warmup >= steps).then(|| {
                format!("trainer.critic.warmup is {warmup} and trainer.steps {steps}: the policy is never trained")
            })
        },
        hint: "lower trainer.critic.warmup or raise trainer.steps",
    },
    Rule {
        setting: "trainer.filter.refills",
        broken: |recipe| {
            let filter = &recipe.learner()?.filter;
            (filter.uniform && filter.refills == 0).then(|| {
                "trainer.filter.uniform replaces groups without variance, and trainer.filter.refills is 0: all stay"
                    .to_owned()
            })
        },
        hint: "allow at least one, or set trainer.filter.uniform = false",
    },
];

/// Settings that are allowed but unlikely to be intended.
const REMARKS: &[Rule<RuleInput>] = &[Rule {
    setting: "trainer.branch.roots",
    broken: |recipe| {
        let learner = recipe.learner()?;
        let roots = learner.branch.roots;
        (roots > 0 && roots == learner.group_size).then(|| {
            format!("trainer.branch.roots is {roots} and so is trainer.group_size: nothing is left to branch off")
        })
    },
    hint: "give fewer roots than the group has members, or 0",
}];

impl RuleInput {
    /// The recipe of `script` with these settings; `written` has those that were written.
    fn new(settings: &Settings, written: &Value, script: &Script) -> Self {
        let mut values = serde_json::to_value(settings).unwrap_or_default();
        // The name of the algorithm, not of its training loop.
        if let Some(name) = value_of(written, "trainer.algorithm").as_str() {
            values["trainer"]["algorithm"] = name.into();
        }
        if script.privileged {
            values["trainer"]["critic"]["privileged"] = "the recipe's function".into();
        }
        let mut recipe =
            Self { settings: settings.clone(), written: written.clone(), values, loss: None, clips: false };
        recipe.loss = recipe.learner().and_then(loss_of);
        let custom = recipe.learner().is_some_and(|learner| learner.loss.is_custom());
        recipe.clips = custom && script.declared.as_ref().is_some_and(|algorithm| algorithm.has_clip());
        recipe
    }

    fn learner(&self) -> Option<&Learner> {
        match &self.settings.trainer {
            Trainer::Grpo(learner) | Trainer::Ppo(learner) => Some(learner),
            Trainer::Sft(_) => None,
        }
    }

    /// Whether the KL penalty of `trainer.kl` is a term of the loss.
    fn has_kl_in_loss(&self) -> Option<bool> {
        let kl = &self.learner()?.kl;
        Some(kl.coef > 0.0 && kl.place == KlPlace::Loss)
    }

    /// Whether a setting was written.
    fn is_written(&self, key: &str) -> bool {
        !value_of(&self.written, key).is_null()
    }

    /// The settings that have no effect or are contradicted, each once.
    fn unused(&self) -> Vec<UnusedSetting> {
        let mut unused = Vec::new();
        for (rules, is_error) in [(CONTRADICTIONS, true), (REMARKS, false)] {
            for &Rule { setting: key, broken, hint } in rules {
                let Some(message) = broken(self) else { continue };
                let is_error = is_error && self.is_written(key);
                unused.push(UnusedSetting { key, message, hint: hint.to_owned(), is_error });
            }
        }
        let mut none = |key: &'static str, why: &str, hint: String| {
            if !unused.iter().any(|listed: &UnusedSetting| listed.key == key) {
                let message = format!("{key} is set and has no effect: {why}");
                unused.push(UnusedSetting { key, message, hint, is_error: true });
            }
        };
        for NoEffect { settings, why, hint } in NO_EFFECT {
            for key in settings.iter().filter(|key| self.is_written(key)) {
                if let Some(why) = why(self) {
                    none(key, &why, (*hint).to_owned());
                }
            }
        }
        for Lacking { setting, need, why } in lacking(&self.values, &self.written, self.learner().is_none()) {
            none(setting, &why, format!("set {need}, or leave {setting} out"));
        }
        unused
    }
}

/// The loss with its own options; `None` for one that is refused elsewhere.
fn loss_of(learner: &Learner) -> Option<PolicyLoss> {
    let mut options = learner.loss.options.clone();
    if let Some(loss_agg) = learner.loss_agg {
        options.insert("loss_agg".to_owned(), serde_json::to_value(loss_agg).ok()?);
    }
    if learner.loss.is_custom() {
        return PolicyLoss::of_graph(Arc::default(), &options).ok();
    }
    PolicyLoss::new(&learner.loss.name, &Value::Object(options)).ok()
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
