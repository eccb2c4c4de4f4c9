//! Unused settings, and settings that others contradict: a warm-up longer than the run, a critic's
//! learning rate without a critic.
//!
//! A recipe that contradicts itself is refused, and so is an override. Where an override only makes
//! a setting of the recipe useless (`trainer.steps=2`, `trainer.algorithm=grpo`), there is a
//! warning.

use serde_json::Value;

use crate::config::{Branch, Decay, KlPlace, Learner, LossAgg, MiniBatchBy, Settings, Sft, Trainer};
use crate::error::{Error, Kind, Result};
use crate::rl::objective::{Formula, Objective};
use crate::script::Script;

/// A setting that does nothing, and why.
#[derive(Clone, Debug, PartialEq)]
struct UnusedSetting {
    key: String,
    message: String,
    hint: String,
    /// Whether it is an error rather than a warning: the setting was written, and is not a default.
    is_error: bool,
}

/// Refuses contradictions within the recipe or the command line; returns the warnings.
///
/// # Errors
/// `Kind::Script` with the line of the setting, `Kind::Usage` for one that was typed.
pub fn unused_settings(script: &Script) -> Result<Vec<Error>> {
    let written = &script.written;
    let find = |settings: &Settings, given: &Value| find(settings, given, script.privileged);
    let found = find(&script.settings, &written.all);
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let alone = script.without_overrides().map(|settings| find(&settings, &written.recipe)).unwrap_or_default();
    let mut warnings = Vec::new();
    for UnusedSetting { key, message, hint, is_error } in found {
        let typed = script.typed(&key);
        let error = match typed {
            Some(typed) => Error::new(Kind::Usage, message).at(typed),
            None => Error::new(Kind::Script, message).at(script.place_of(&key)),
        };
        let error = error.about_setting(&*key).hint(hint);
        if is_error && (typed.is_some() || alone.iter().any(|own| own.key == key)) {
            return Err(error);
        }
        warnings.push(error);
    }
    Ok(warnings)
}

/// The settings that do nothing. `given` has the written settings; `privileged` says whether the
/// recipe has that function.
fn find(settings: &Settings, given: &Value, privileged: bool) -> Vec<UnusedSetting> {
    let mut found = Found { given, privileged, list: Vec::new() };
    match &settings.trainer {
        Trainer::Sft(sft) => found.supervised(sft, settings),
        Trainer::Grpo(learner) => found.learner(learner, false),
        Trainer::Ppo(learner) => found.learner(learner, true),
    }
    if !matches!(settings.trainer, Trainer::Sft(_)) {
        if settings.policy.init.is_some() && settings.cold_start.is_none() {
            let message =
                "policy.init makes a new model for supervised training, and this trainer starts from policy.model";
            found.add(
                "policy.init",
                message,
                "make it in a cold_start with r1.sft (docs/sft.md), or give a policy.model",
            );
        }
        if settings.data.eval.is_none() && settings.eval.every > 0 {
            found.add("eval.every", "eval.every is set, and there is nothing to evaluate on", "give data.eval");
        }
        if settings.data.eval.is_none() && found.says("eval.limit") {
            found.add("eval.limit", "eval.limit is set, and there is nothing to evaluate on", "give data.eval");
        }
    }
    found.list
}

struct Found<'a> {
    given: &'a Value,
    privileged: bool,
    list: Vec<UnusedSetting>,
}

impl Found<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        let found = key.split('.').try_fold(self.given, |value, name| value.get(name));
        found.filter(|value| !value.is_null())
    }

    fn says(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The fields that are set of those of a table.
    fn fields<'n>(&self, table: &str, names: &[&'n str]) -> Vec<&'n str> {
        names.iter().copied().filter(|name| self.says(&format!("{table}.{name}"))).collect()
    }

    fn add(&mut self, key: &str, message: impl Into<String>, hint: impl Into<String>) {
        let is_error = self.says(key);
        self.list.push(UnusedSetting { key: key.to_owned(), message: message.into(), hint: hint.into(), is_error });
    }

    fn warmup(&mut self, warmup: usize, steps: usize) {
        if steps > 0 && warmup > steps {
            let own = if self.says("trainer.warmup") { "" } else { " by default" };
            let message = format!(
                "trainer.warmup{own} is {warmup} and trainer.steps {steps}: the learning rate never gets to trainer.lr"
            );
            self.add("trainer.warmup", message, "lower trainer.warmup or raise trainer.steps");
        }
    }

    fn supervised(&mut self, sft: &Sft, settings: &Settings) {
        self.warmup(sft.warmup, sft.steps);
        let nothing = settings.data.eval.is_none();
        if nothing && settings.eval.every > 0 {
            self.add("eval.every", "eval.every is set, and there is nothing to evaluate on", "give data.eval");
        }
        if sft.patience > 0 && (nothing || settings.eval.every == 0) {
            let message = "trainer.patience counts evaluations during training, and there are none";
            self.add("trainer.patience", message, "give data.eval and eval.every");
        }
    }

    fn learner(&mut self, learner: &Learner, critic: bool) {
        self.warmup(learner.warmup, learner.steps);
        self.critic(learner, critic);
        let loss = loss_of(learner);
        if learner.clip.is_some() && loss.is_some_and(|loss| !loss.has_option("clip_low")) {
            let message = format!("trainer.clip is set, and the loss `{}` has no clip", learner.loss.name);
            self.add("trainer.clip", message, "leave it out; on the command line: trainer.clip=null");
        }
        if let Some(loss) = &loss {
            self.terms(loss, learner);
            self.kl_penalty(learner, loss);
        }
        self.branches(learner);
        if learner.mini_batch_by == MiniBatchBy::Trajectory && self.says("trainer.step_ratio_clip") {
            let message = "trainer.step_ratio_clip is set, and trainer.mini_batch_by is \"trajectory\"";
            self.add("trainer.step_ratio_clip", message, "set trainer.mini_batch_by = \"step\" or leave it out");
        }
        let filter = &learner.filter;
        if !filter.uniform && self.says("trainer.filter.refills") && !self.says("trainer.filter.uniform") {
            let message = "trainer.filter.refills is set, and no group is replaced: trainer.filter.uniform is false";
            self.add("trainer.filter.refills", message, "set trainer.filter.uniform = true or leave it out");
        }
        if filter.uniform && filter.refills == 0 {
            let message =
                "trainer.filter.uniform replaces groups without variance, and trainer.filter.refills is 0: all stay";
            self.add("trainer.filter.refills", message, "allow at least one, or set trainer.filter.uniform = false");
        }
        if learner.decay == Decay::Constant && self.says("trainer.final_lr") {
            let message = "trainer.final_lr is where the learning rate ends, and trainer.decay is \"constant\"";
            self.add("trainer.final_lr", message, "set trainer.decay = \"linear\" or \"cosine\", or leave it out");
        }
    }

    fn critic(&mut self, learner: &Learner, critic: bool) {
        if !critic {
            for name in self.fields(
                "trainer.critic",
                &["shared", "lr", "warmup", "clip", "weight", "privileged", "privileged_tokens"],
            ) {
                let key = format!("trainer.critic.{name}");
                let message = format!("{key} is set, and this algorithm trains no critic");
                self.add(&key, message, "use r1.ppo or leave it out");
            }
            return;
        }
        let (own, steps) = (&learner.critic, learner.steps);
        if steps > 0 && own.warmup >= steps {
            let message = format!(
                "trainer.critic.warmup is {} and trainer.steps {steps}: the critic alone learns, the policy never does",
                own.warmup
            );
            self.add("trainer.critic.warmup", message, "lower trainer.critic.warmup or raise trainer.steps");
        }
        if own.privileged.is_empty() && !self.privileged && self.says("trainer.critic.privileged_tokens") {
            let message =
                "trainer.critic.privileged_tokens bounds what trainer.critic.privileged shows, which is empty";
            self.add("trainer.critic.privileged_tokens", message, "set trainer.critic.privileged or leave it out");
        }
        if !own.shared && self.says("trainer.critic.weight") && !self.says("trainer.critic.shared") {
            let message =
                "trainer.critic.weight weighs the value loss on a shared trunk, and trainer.critic.shared is false";
            self.add("trainer.critic.weight", message, "set trainer.critic.shared = true or leave it out");
        }
    }

    /// Options of the loss that its other options make void.
    fn terms(&mut self, loss: &Objective, learner: &Learner) {
        let options = self
            .fields("trainer.loss", &["kl", "kl_straight_through", "kl_times_ratio", "horizon", "seq", "ratio_over"]);
        let sequences = matches!(loss.formula, Formula::Gspo(_) | Formula::GeoMean(_) | Formula::Vespo(_));
        for name in options {
            let kl_in_loss = learner.kl.coef > 0.0 && learner.kl.place == KlPlace::Loss;
            let none = !kl_in_loss && loss.terms.kl_coef == 0.0 && !self.says("trainer.loss.kl_coef");
            let why = match name {
                "kl" | "kl_straight_through" if kl_in_loss => "the KL is that of trainer.kl",
                "kl" | "kl_straight_through" | "kl_times_ratio" if none => "the loss has no KL: its kl_coef is 0",
                "horizon" if loss.terms.loss_agg != LossAgg::SeqMeanTokenSumNorm => {
                    "only loss_agg = \"seq-mean-token-sum-norm\" divides by it"
                }
                "seq" if loss.terms.loss_agg == LossAgg::TokenMean => "loss_agg = \"token-mean\" has no sequences",
                "ratio_over" if !sequences => "the ratio of this loss is that of a token",
                _ => continue,
            };
            let key = format!("trainer.loss.{name}");
            self.add(&key, format!("{key} is set and does nothing: {why}"), "leave it out");
        }
    }

    fn kl_penalty(&mut self, learner: &Learner, loss: &Objective) {
        let kl = &learner.kl;
        // A written coefficient of 0 is a switch.
        let off = kl.coef == 0.0 && !self.says("trainer.kl.coef");
        for name in self.fields("trainer.kl", &["kind", "straight_through", "place", "target", "horizon"]) {
            let (why, hint) = match name {
                "kind" | "straight_through" | "place" if off && loss.terms.kl_coef > 0.0 => (
                    format!("the KL of the loss `{}` goes by options of its own", loss.name),
                    format!("write them there: loss = {{ name = \"{}\", kl = \"k1\" }}", loss.name),
                ),
                "kind" | "straight_through" | "place" | "horizon" if off && loss.terms.kl_coef == 0.0 => (
                    "trainer.kl.coef is 0, so there is no reference policy".to_owned(),
                    "set trainer.kl.coef, such as 0.001, or leave it out".to_owned(),
                ),
                "straight_through" if kl.straight_through && kl.coef > 0.0 && kl.place == KlPlace::Reward => {
                    ("a KL in the reward has no gradient".to_owned(), "leave it out".to_owned())
                }
                "horizon" if kl.target == 0.0 && !self.says("trainer.kl.target") => (
                    "the coefficient is fixed: trainer.kl.target is 0".to_owned(),
                    "set trainer.kl.target or leave it out".to_owned(),
                ),
                _ => continue,
            };
            let key = format!("trainer.kl.{name}");
            self.add(&key, format!("{key} is set and does nothing: {why}"), hint);
        }
    }

    fn branches(&mut self, learner: &Learner) {
        let Branch { roots, .. } = learner.branch;
        if roots == 0 && !self.says("trainer.branch.roots") {
            for name in self.fields("trainer.branch", &["at", "width", "rounds"]) {
                let key = format!("trainer.branch.{name}");
                let message = format!("{key} is set, and nothing branches: trainer.branch.roots is 0");
                self.add(&key, message, "set trainer.branch.roots, such as 2, or leave it out");
            }
        }
        if roots > 0 && roots == learner.group_size {
            let message =
                format!("trainer.branch.roots is {roots} and so is trainer.group_size: nothing is left to branch off");
            self.add("trainer.branch.roots", message, "give fewer roots than the group has members, or 0");
            // A plain group is the end of the scale.
            self.list.iter_mut().rev().take(1).for_each(|unused| unused.is_error = false);
        }
    }
}

/// The loss with its own options; `None` for one that is refused elsewhere.
fn loss_of(learner: &Learner) -> Option<Objective> {
    if learner.loss.is_custom() {
        return Some(Objective::custom(learner.loss_agg.unwrap_or(LossAgg::TokenMean), learner.entropy));
    }
    let mut options = learner.loss.options.clone();
    if let Some(loss_agg) = learner.loss_agg {
        options.insert("loss_agg".to_owned(), serde_json::to_value(loss_agg).ok()?);
    }
    Objective::new(&learner.loss.name, &Value::Object(options)).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// What a recipe with this trainer comes to: the refusal, or the warnings.
    fn said(trainer: &str, overrides: &[&str]) -> std::result::Result<Vec<String>, String> {
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
            ("r1.grpo { critic = { lr = 1e-5 } }", "trainer.critic.lr is set, and this algorithm trains no critic"),
            ("r1.ppo { steps = 5, critic = { warmup = 5 } }", "the policy never does"),
            ("r1.ppo { critic = { weight = 1 } }", "trainer.critic.shared is false"),
            ("r1.ppo { critic = { privileged_tokens = 9 } }", "trainer.critic.privileged shows, which is empty"),
            ("r1.grpo { kl = { kind = \"k1\" } }", "there is no reference policy"),
            ("r1.grpo { kl = { coef = 0.1, horizon = 5 } }", "the coefficient is fixed"),
            (
                "r1.grpo { kl = { coef = 0.1, place = \"reward\", straight_through = true } }",
                "a KL in the reward has no gradient",
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
            ("r1.grpo {}, policy = { init = {} }", "policy.init makes a new model"),
            ("r1.grpo {}, eval = { every = 5 }", "nothing to evaluate on"),
            ("r1.grpo {}, eval = { limit = 5 }", "nothing to evaluate on"),
        ] {
            let error = said(trainer, &[]).unwrap_err();
            assert!(error.contains(reason) && error.contains("a.lua:4"), "{trainer}: {error}");
        }
    }

    #[test]
    fn settings_that_do_something_pass() {
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
            assert_eq!(said(trainer, &[]), Ok(Vec::new()), "{trainer}");
        }
    }

    #[test]
    fn what_the_command_line_makes_void_is_warned_of() {
        let long = "r1.grpo { steps = 50, warmup = 10 }";
        let warned = said(long, &["trainer.steps=2"]).unwrap();
        assert_eq!(warned.len(), 1, "{warned:?}");
        assert!(
            warned[0].contains("trainer.warmup is 10 and trainer.steps 2") && warned[0].contains("a.lua:4"),
            "{warned:?}"
        );
        // What is typed is meant.
        let typed = said(long, &["trainer.steps=2", "trainer.warmup=3"]).unwrap_err();
        assert!(typed.contains("--> trainer.warmup=3"), "{typed}");
        assert!(said("r1.grpo {}", &["trainer.critic.lr=1"]).unwrap_err().contains("trains no critic"));
        let loss = "{\"name\": \"ppo\", \"horizon\": 3}";
        assert!(said("r1.grpo {}", &[&format!("trainer.loss={loss}")]).unwrap_err().contains("trainer.loss.horizon"));
        // Another algorithm, another loss.
        let critic = "r1.ppo { group_size = 2, critic = { lr = 1 } }";
        assert_eq!(said(critic, &["trainer.algorithm=grpo"]).unwrap().len(), 1);
        assert_eq!(said("r1.grpo { clip = { 0.2, 0.2 } }", &["trainer.loss=gpg"]).unwrap().len(), 1);
        // A recipe's own contradiction stays one, whatever else is typed.
        assert!(said("r1.grpo { steps = 5, warmup = 6 }", &["seed=3"]).is_err());
        assert_eq!(said("r1.grpo { steps = 5, warmup = 6 }", &["trainer.steps=6"]), Ok(Vec::new()));
        let plain = said("r1.grpo { group_size = 4, branch = { roots = 4 } }", &[]).unwrap();
        assert!(plain[0].contains("nothing is left to branch off"), "{plain:?}");
        // A default is not in the recipe.
        let default = said("r1.sft { steps = 5 }", &[]).unwrap();
        assert!(default[0].contains("trainer.warmup by default is 20"), "{default:?}");
    }
}
