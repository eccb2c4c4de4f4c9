//! Rules about several settings at once, one row each: the refused setting, the condition, and the
//! fix. Rules about a single setting are part of its declaration (`range` and `needs`), those about
//! estimators and losses are in `combinations.rs`.

use crate::config::{Branch, BranchAt, KlPlace, LORA_TARGETS, Learner, MiniBatchBy, PolicySettings, Settings, Trainer};
use crate::error::{Error, Kind, Result, suggest};
use crate::mdp::Sampling;
use crate::telemetry::counted;

/// A rule about settings `T`.
pub(crate) struct Rule<T> {
    pub(crate) setting: &'static str,
    /// The violation with its values; `None` for settings that follow the rule.
    pub(crate) broken: fn(&T) -> Option<String>,
    pub(crate) hint: &'static str,
}

pub(crate) fn refusal(key: &str, message: impl Into<String>) -> Error {
    Error::new(Kind::Script, message).about_setting(key)
}

/// Refuses settings that break a rule.
///
/// # Errors
/// `Kind::Script` for the first broken rule.
pub(crate) fn check<T>(rules: &[Rule<T>], settings: &T) -> Result<()> {
    let broken = |rule: &Rule<T>| Some(refusal(rule.setting, (rule.broken)(settings)?).hint(rule.hint));
    rules.iter().find_map(broken).map_or(Ok(()), Err)
}

/// Refuses projections of an adapter that no model has, before one is loaded.
///
/// # Errors
/// `Kind::Script` with the nearest names.
pub(crate) fn adapter_targets(policy: &PolicySettings) -> Result<()> {
    const KEY: &str = "policy.lora.targets";
    let Some(lora) = &policy.lora else { return Ok(()) };
    // The router of experts.
    let targets = || LORA_TARGETS.into_iter().chain(["gate"]);
    if lora.targets.is_empty() {
        return Err(refusal(KEY, format!("{KEY} is empty: the adapter has no weights")).hint("leave it out"));
    }
    let end = |target: &str| target.rsplit('.').next().unwrap_or_default().to_owned();
    match lora.targets.iter().find(|target| targets().all(|name| name != end(target))) {
        Some(lost) => Err(refusal(KEY, format!("`{KEY}`: no model has a projection `{lost}`"))
            .hint(suggest(&end(lost), targets().collect::<Vec<_>>()))),
        None => Ok(()),
    }
}

/// Contradictions within the settings of policy optimisation.
pub(crate) const LEARNER: &[Rule<Learner>] = &[
    Rule {
        setting: "trainer.clip",
        broken: |learner| {
            learner.clip?;
            twice(learner, "trainer.clip", "clip_low").or_else(|| twice(learner, "trainer.clip", "clip_high"))
        },
        hint: ONE_OF_TWO,
    },
    Rule {
        setting: "trainer.loss_agg",
        broken: |learner| learner.loss_agg.and_then(|_| twice(learner, "trainer.loss_agg", "loss_agg")),
        hint: ONE_OF_TWO,
    },
    Rule {
        setting: "trainer.entropy",
        broken: |learner| if learner.entropy == 0.0 { None } else { twice(learner, "trainer.entropy", "entropy_coef") },
        hint: ONE_OF_TWO,
    },
    Rule {
        setting: "trainer.kl.coef",
        broken: |learner| {
            let in_loss = learner.kl.coef > 0.0 && learner.kl.place == KlPlace::Loss;
            in_loss.then(|| twice(learner, "trainer.kl.coef", "kl_coef"))?
        },
        hint: ONE_OF_TWO,
    },
    Rule {
        setting: "trainer.mini_batches",
        broken: |learner| {
            let trajectories = learner.group_size * learner.groups_per_step;
            let message = || {
                let trajectories = counted(trajectories, "trajectory", "trajectories");
                format!("trainer.mini_batches is {} and a step has {trajectories}", learner.mini_batches)
            };
            (learner.mini_batches > trajectories).then(message)
        },
        hint: "give fewer mini-batches",
    },
    Rule {
        setting: "trainer.mini_batches",
        broken: |learner| {
            let several = learner.mini_batch_by == MiniBatchBy::Step && learner.mini_batches > 1;
            several.then(|| {
                format!("trainer.mini_batches is {} and trainer.mini_batch_by is \"step\"", learner.mini_batches)
            })
        },
        hint: "by step there is one for each number of a step: leave trainer.mini_batches out",
    },
    Rule {
        setting: "trainer.clip",
        broken: |learner| {
            let (low, high) = learner.clip?;
            let fits = low > 0.0 && low <= 1.0 && high > 0.0 && high.is_finite();
            (!fits).then(|| format!("trainer.clip is {{ {low}, {high} }}"))
        },
        hint: "both are above 0, the first at most 1",
    },
    Rule {
        setting: "trainer.critic.privileged",
        broken: |learner| {
            let both = learner.critic.shared && !learner.critic.privileged.is_empty();
            both.then(|| {
                "trainer.critic.privileged is for the critic alone, and with trainer.critic.shared it reads what the \
                 policy reads"
                    .to_owned()
            })
        },
        hint: "leave trainer.critic.shared out: the critic is then a model of its own",
    },
    Rule {
        setting: "trainer.entropy",
        broken: |learner| (!learner.entropy.is_finite()).then(|| format!("trainer.entropy is {}", learner.entropy)),
        hint: "give a number",
    },
    Rule {
        setting: "trainer.filter.uniform",
        broken: |learner| {
            (learner.filter.uniform && learner.group_size < 2)
                .then(|| "trainer.filter.uniform drops groups without variance, and groups of one have none".to_owned())
        },
        hint: "raise trainer.group_size or leave the filter out",
    },
    Rule {
        setting: "trainer.branch.roots",
        broken: |learner| {
            let (roots, group) = (learner.branch.roots, learner.group_size);
            (roots > group).then(|| format!("trainer.branch.roots is {roots} and trainer.group_size {group}"))
        },
        hint: "the roots are part of the group: give fewer than trainer.group_size",
    },
    Rule {
        setting: "trainer.branch.rounds",
        broken: |learner| {
            let Branch { roots, rounds, .. } = learner.branch;
            let branches = learner.group_size.saturating_sub(roots).checked_div(roots)?;
            (rounds > branches.max(1))
                .then(|| format!("trainer.branch.rounds is {rounds}, and {branches} trajectories branch off each root"))
        },
        hint: "give at least 1, and a trajectory for each round",
    },
    Rule {
        setting: "trainer.branch.at",
        broken: |learner| match &learner.branch.at {
            BranchAt::Steps(list) if learner.branch.roots > 0 && (list.is_empty() || list.contains(&0)) => {
                Some(format!("trainer.branch.at is {list:?}"))
            }
            _ => None,
        },
        hint: "list numbers of steps: 1 is the state after the first; roots begin at 0",
    },
];

/// Sampling settings whose log-probabilities training can't compute.
pub(crate) const SAMPLING: &[Rule<Sampling>] = &[
    Rule {
        setting: "sampling.repetition_penalty",
        broken: |sampling| sampling.penalises().then(|| OTHER_DISTRIBUTION.to_owned()),
        hint: "leave it out; it is for `r1 infer` and `r1 lua`",
    },
    Rule {
        setting: "sampling.logit_bias",
        broken: |sampling| (!sampling.logit_bias.is_empty()).then(|| OTHER_DISTRIBUTION.to_owned()),
        hint: "leave it out; it is for `r1 infer` and `r1 lua`",
    },
    Rule {
        setting: "sampling.temperature",
        broken: |sampling| (sampling.temperature < 0.0).then(|| "sampling.temperature is below 0".to_owned()),
        hint: "train at temperature 1",
    },
    Rule {
        setting: "sampling.temperature",
        broken: |sampling| {
            (sampling.temperature == 0.0).then(|| {
                "sampling.temperature is 0: all samples of a task are the same, and there is no distribution to learn"
                    .to_owned()
            })
        },
        hint: "train at temperature 1; eval.temperature may be 0",
    },
];

const ONE_OF_TWO: &str = "leave one of the two out";

/// A setting that is also given as an option of the loss.
fn twice(learner: &Learner, setting: &str, option: &str) -> Option<String> {
    // The options of a custom loss are options of the recipe's function.
    let is_option = learner.loss.options.contains_key(option) && !learner.loss.is_custom();
    is_option.then(|| format!("{setting} and `{option}` of trainer.loss set the same value"))
}

const OTHER_DISTRIBUTION: &str = "sampling.repetition_penalty and sampling.logit_bias sample from another distribution \
                                  than the policy's, which training can't score";

/// Contradictions between the trainer and the environments.
pub(crate) const RECIPE: &[Rule<Settings>] = &[Rule {
    setting: "trainer.branch.roots",
    broken: |settings| {
        let (Trainer::Grpo(learner) | Trainer::Ppo(learner)) = &settings.trainer else { return None };
        let longer = settings.environments().iter().any(|(_, env)| env.max_steps > 1);
        (learner.branch.roots > 0 && !longer).then(|| {
            "trainer.branch branches off intermediate states, and env.max_steps is 1: there are none".to_owned()
        })
    },
    hint: "raise env.max_steps, or set trainer.branch.roots = 0",
}];
