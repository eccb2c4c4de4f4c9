//! Algorithms by name: `trainer = r1.trainer { algorithm = "gspo" }`. A name is a training loop, an
//! estimator and a loss with their defaults; settings of the recipe take precedence.

use std::fmt::Write;

use serde_json::json;

use super::learner::{Choice, Learner, MiniBatchBy};

/// An algorithm: the row of docs/training.md, and how its settings differ from those of `grpo`.
struct Named {
    name: &'static str,
    /// Its paper, or the system that defines it.
    paper: &'static str,
    /// A note in addition to the texts of the estimator and the loss.
    about: &'static str,
    /// Whether a critic is trained.
    critic: bool,
    set: fn(&mut Learner),
}

/// Every algorithm; adding one is an entry here.
const TABLE: &[Named] = &[
    Named { name: "grpo", paper: "arXiv:2402.03300", about: "groups of 8", critic: false, set: |_| {} },
    Named {
        name: "dr_grpo",
        paper: "arXiv:2503.20783",
        about: "",
        critic: false,
        set: |learner| {
            learner.estimator = no_deviation();
            learner.loss = Choice::new("dr_grpo");
        },
    },
    Named {
        name: "dapo",
        paper: "arXiv:2503.14476",
        about: "`filter.uniform`",
        critic: false,
        set: |learner| {
            learner.loss = Choice::new("dapo");
            learner.filter.uniform = true;
        },
    },
    Named {
        name: "gspo",
        paper: "arXiv:2507.18071",
        about: "",
        critic: false,
        set: |learner| learner.loss = Choice::new("gspo"),
    },
    Named {
        name: "cispo",
        paper: "arXiv:2506.13585",
        about: "",
        critic: false,
        set: |learner| learner.loss = Choice::new("cispo"),
    },
    Named {
        name: "sapo",
        paper: "arXiv:2511.20347",
        about: "",
        critic: false,
        set: |learner| learner.loss = Choice::new("sapo"),
    },
    Named {
        name: "gmpo",
        paper: "arXiv:2507.20673",
        about: "",
        critic: false,
        set: |learner| learner.loss = Choice::new("geo_mean"),
    },
    Named {
        name: "gpg",
        paper: "arXiv:2504.02546",
        about: "",
        critic: false,
        set: |learner| {
            learner.estimator = Choice::new("gpg");
            learner.loss = Choice::new("gpg");
        },
    },
    Named {
        name: "rloo",
        paper: "arXiv:2402.14740",
        about: "",
        critic: false,
        set: |learner| learner.estimator = Choice::new("rloo"),
    },
    Named {
        name: "opo",
        paper: "arXiv:2505.23585",
        about: "",
        critic: false,
        set: |learner| learner.estimator = Choice::new("opo"),
    },
    Named {
        name: "max_rl",
        paper: "arXiv:2602.02710",
        about: "",
        critic: false,
        set: |learner| learner.estimator = Choice::new("max_rl"),
    },
    Named {
        name: "grpo_passk",
        paper: "arXiv:2503.19595",
        about: "",
        critic: false,
        set: |learner| learner.estimator = Choice::new("grpo_passk"),
    },
    Named {
        name: "rapo",
        paper: "arXiv:2509.06278",
        about: "",
        critic: false,
        set: |learner| learner.estimator = Choice::new("rapo"),
    },
    Named {
        name: "gigpo",
        paper: "arXiv:2505.10978",
        about: "",
        critic: false,
        set: |learner| learner.estimator = Choice::new("gigpo"),
    },
    Named {
        name: "remax",
        paper: "arXiv:2310.10505",
        about: "one sample per task, and a greedy baseline rollout",
        critic: false,
        set: |learner| {
            learner.estimator = Choice::new("remax");
            one_sample(learner);
        },
    },
    Named {
        name: "reinforce_pp",
        paper: "arXiv:2501.03262",
        about: "128 tasks, one sample each",
        critic: false,
        set: |learner| {
            learner.estimator = Choice::new("reinforce_pp");
            one_sample(learner);
        },
    },
    Named {
        name: "reinforce_pp_baseline",
        paper: "arXiv:2501.03262",
        about: "",
        critic: false,
        set: |learner| learner.estimator = Choice::new("reinforce_pp_baseline"),
    },
    Named {
        name: "ppo",
        paper: "arXiv:1707.06347",
        about: "a critic; steps are decisions (arXiv:2511.14460); 128 tasks, one sample each",
        critic: true,
        set: |learner| {
            learner.estimator = Choice::new("gae");
            one_sample(learner);
        },
    },
    Named {
        name: "pspo",
        paper: "arXiv:2601.10029",
        about: "as `ppo`, and a reference policy",
        critic: true,
        set: |learner| {
            learner.estimator = Choice::new("gae");
            learner.loss = Choice::new("pspo");
            one_sample(learner);
        },
    },
    Named {
        name: "capo",
        paper: "arXiv:2604.18401",
        about: "as `ppo`, with advantage and ratio per action (first published as StepPO)",
        critic: true,
        set: |learner| {
            learner.estimator = Choice::new("gae");
            learner.loss = action_ratio();
            one_sample(learner);
        },
    },
    Named {
        name: "seeupo",
        paper: "arXiv:2602.06554",
        about: "`mini_batch_by = \"step\"`: updates on the last steps first",
        critic: false,
        set: |learner| {
            learner.estimator = no_deviation();
            learner.loss = Choice::with("gspo", "seq", json!("step"));
            learner.mini_batch_by = MiniBatchBy::Step;
        },
    },
    Named {
        name: "gdpo",
        paper: "arXiv:2601.05242",
        about: "each named part of the reward is normalised separately",
        critic: false,
        set: |learner| learner.estimator = Choice::new("gdpo"),
    },
    Named {
        name: "optimal_token_baseline",
        paper: "verl 0.9.1",
        about: "a baseline per token",
        critic: false,
        set: |learner| learner.estimator = Choice::new("optimal_token_baseline"),
    },
    Named {
        name: "luspo",
        paper: "arXiv:2602.05261",
        about: "",
        critic: false,
        set: |learner| learner.loss = Choice::new("luspo"),
    },
    Named {
        name: "vespo",
        paper: "arXiv:2602.10693",
        about: "",
        critic: false,
        set: |learner| learner.loss = Choice::new("vespo"),
    },
    Named {
        name: "dro",
        paper: "arXiv:2405.19107",
        about: "",
        critic: false,
        set: |learner| learner.loss = Choice::new("dro"),
    },
];

fn one_sample(learner: &mut Learner) {
    (learner.group_size, learner.groups_per_step) = (1, 128);
}

fn no_deviation() -> Choice {
    Choice::with("grpo", "normalize", json!("none"))
}

/// The length-normalised ratio of a whole action, with the clip range of CAPO's paper.
fn action_ratio() -> Choice {
    let clip = [("seq", json!("step")), ("clip_low", json!(3e-4)), ("clip_high", json!(3e-4))];
    let options = clip.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Choice { name: "gspo".to_owned(), options }
}

/// Algorithms by name.
pub const ALGORITHMS: [&str; TABLE.len()] = names(false);

/// Those that train a critic.
pub(super) const WITH_CRITIC: [&str; critics()] = names(true);

const fn critics() -> usize {
    let (mut i, mut found) = (0, 0);
    while i < TABLE.len() {
        found += TABLE[i].critic as usize;
        i += 1;
    }
    found
}

/// The names of all algorithms, or of those with a critic.
const fn names<const N: usize>(critic: bool) -> [&'static str; N] {
    let mut names = [""; N];
    let (mut i, mut next) = (0, 0);
    while i < TABLE.len() {
        if TABLE[i].critic || !critic {
            names[next] = TABLE[i].name;
            next += 1;
        }
        i += 1;
    }
    names
}

/// An algorithm: its default settings, and whether it needs a critic.
#[derive(Clone, Debug, PartialEq)]
pub struct Algorithm {
    /// Whether a critic is trained.
    pub critic: bool,
    pub settings: Learner,
}

impl Algorithm {
    /// One of [`ALGORITHMS`].
    pub fn named(name: &str) -> Option<Self> {
        let Named { critic, set, .. } = TABLE.iter().find(|known| known.name == name)?;
        let mut settings = Learner::default();
        set(&mut settings);
        Some(Self { critic: *critic, settings })
    }
}

/// The algorithms as a table in Markdown.
pub fn table() -> String {
    let mut out = "| name | estimator | loss | remarks | paper |\n|---|---|---|---|---|\n".to_owned();
    for Named { name, paper, about, set, .. } in TABLE {
        let mut learner = Learner::default();
        set(&mut learner);
        let (estimator, loss) = (shown(&learner.estimator), shown(&learner.loss));
        let _ = writeln!(out, "| `{name}` | {estimator} | {loss} | {about} | {paper} |");
    }
    out
}

/// Names of algorithms with their papers.
pub fn papers() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLE.iter().map(|known| (known.name, known.paper))
}

/// `` `gspo` with `seq = "step"` ``
fn shown(Choice { name, options }: &Choice) -> String {
    let options: Vec<String> = options.iter().map(|(name, value)| format!("`{name} = {value}`")).collect();
    if options.is_empty() { format!("`{name}`") } else { format!("`{name}` with {}", options.join(", ")) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::Value;

    use super::*;

    /// Differences of each algorithm from `Learner::default()`, and whether it has a critic.
    #[test]
    fn each_algorithm_name_expands_to_these_settings() {
        let named = |name: &str| json!({ "name": name });
        let one = |other: Value| {
            let mut all = json!({ "group_size": 1, "groups_per_step": 128 });
            all.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
            all
        };
        let seq_gspo = json!({ "name": "gspo", "seq": "step" });
        let no_std = json!({ "name": "grpo", "normalize": "none" });
        let capo = json!({ "name": "gspo", "seq": "step", "clip_low": 3e-4, "clip_high": 3e-4 });
        let expected = [
            ("grpo", false, json!({})),
            ("dr_grpo", false, json!({ "estimator": no_std, "loss": named("dr_grpo") })),
            ("dapo", false, json!({ "loss": named("dapo"), "filter": { "uniform": true, "refills": 4, "keep": 1.0 } })),
            ("gspo", false, json!({ "loss": named("gspo") })),
            ("cispo", false, json!({ "loss": named("cispo") })),
            ("sapo", false, json!({ "loss": named("sapo") })),
            ("gmpo", false, json!({ "loss": named("geo_mean") })),
            ("gpg", false, json!({ "estimator": named("gpg"), "loss": named("gpg") })),
            ("rloo", false, json!({ "estimator": named("rloo") })),
            ("opo", false, json!({ "estimator": named("opo") })),
            ("max_rl", false, json!({ "estimator": named("max_rl") })),
            ("grpo_passk", false, json!({ "estimator": named("grpo_passk") })),
            ("rapo", false, json!({ "estimator": named("rapo") })),
            ("gigpo", false, json!({ "estimator": named("gigpo") })),
            ("remax", false, one(json!({ "estimator": named("remax") }))),
            ("reinforce_pp", false, one(json!({ "estimator": named("reinforce_pp") }))),
            ("reinforce_pp_baseline", false, json!({ "estimator": named("reinforce_pp_baseline") })),
            ("ppo", true, one(json!({ "estimator": named("gae") }))),
            ("pspo", true, one(json!({ "estimator": named("gae"), "loss": named("pspo") }))),
            ("capo", true, one(json!({ "estimator": named("gae"), "loss": capo }))),
            ("seeupo", false, json!({ "estimator": no_std, "loss": seq_gspo, "mini_batch_by": "step" })),
            ("gdpo", false, json!({ "estimator": named("gdpo") })),
            ("optimal_token_baseline", false, json!({ "estimator": named("optimal_token_baseline") })),
            ("luspo", false, json!({ "loss": named("luspo") })),
            ("vespo", false, json!({ "loss": named("vespo") })),
            ("dro", false, json!({ "loss": named("dro") })),
        ];
        assert_eq!(expected.each_ref().map(|(name, ..)| *name), ALGORITHMS);
        let fields = |learner: &Learner| serde_json::to_value(learner).unwrap().as_object().unwrap().clone();
        let defaults = fields(&Learner::default());
        assert_eq!((&defaults["estimator"], &defaults["loss"]), (&named("grpo"), &named("ppo")));
        for (name, critic, differs) in expected {
            let algorithm = Algorithm::named(name).unwrap();
            let mut found = fields(&algorithm.settings);
            found.retain(|field, value| defaults[field] != *value);
            assert_eq!(Value::Object(found), differs, "{name}");
            assert_eq!(algorithm.critic, critic, "{name}");
        }
        assert!(Algorithm::named("grop").is_none());
    }
}
