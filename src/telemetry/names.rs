//! Every metric by name, with what it means. `docs/metrics.md` is this list; a test keeps it current.

use std::fmt::Write;

/// A metric: its name, where `<…>` stands for one word that the recipe chooses, and what it means.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    pub name: &'static str,
    pub meaning: &'static str,
}

/// Metrics that belong together, with a sentence on when they are written.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    pub title: &'static str,
    pub when: &'static str,
    pub names: &'static [Name],
}

const fn name(name: &'static str, meaning: &'static str) -> Name {
    Name { name, meaning }
}

/// All metrics, in the order of the page.
pub const SECTIONS: &[Section] = &[
    Section {
        title: "Reward",
        when: "Every step of reinforcement learning, over the trajectories sampled in it that did not fail.",
        names: &[
            name("reward/mean", "Mean over trajectories of the sum of step rewards, outcome reward included"),
            name("reward/std", "Standard deviation of the same sum"),
            name("reward/min", "Smallest of the same sum"),
            name("reward/max", "Largest of the same sum"),
            name("reward/<part>", "Mean of a named part that the recipe's reward function returned, unweighted"),
            name("reward/group_std", "Mean over groups of the standard deviation of the same sum within one"),
            name(
                "reward/uniform_groups",
                "Share of groups whose trajectories all have the same reward: they teach nothing",
            ),
        ],
    },
    Section {
        title: "Sources",
        when: "Every step of reinforcement learning whose tasks have the column `data_source`, which a dataset with a name \
               fills; over the trajectories of one source that did not fail.",
        names: &[
            name(
                "source/<source>/reward",
                "Mean over trajectories of the sum of step rewards, outcome reward included",
            ),
            name("source/<source>/accuracy", "Share of trajectories that count as right"),
            name("source/<source>/response_tokens", "Mean sampled tokens a trajectory"),
            name("source/<source>/share", "Share of the step's trajectories"),
        ],
    },
    Section {
        title: "Rollout",
        when: "Every step of reinforcement learning, over the trajectories sampled in it.",
        names: &[
            name(
                "rollout/accuracy",
                "Share of trajectories that count as right (`eval.accuracy`, or total reward > 0)",
            ),
            name(
                "rollout/tool_call_share",
                "Share of trajectories with at least one call that was parsed and named a tool",
            ),
            name("rollout/tool_calls", "Mean calls per trajectory that were parsed and named a tool of the recipe"),
            name(
                "rollout/malformed_calls",
                "Mean calls per trajectory that could not be parsed or named no tool of the recipe",
            ),
            name("rollout/tool_ok_share", "Share of tool calls that succeeded"),
            name("rollout/steps", "Mean steps a trajectory"),
            name(
                "rollout/response_tokens",
                "Mean sampled tokens a trajectory, over all its steps, shared ones included",
            ),
            name("rollout/response_tokens_max", "Most sampled tokens in one trajectory"),
            name("rollout/prompt_tokens", "Mean tokens of a trajectory's last prompt"),
            name("rollout/prompt_tokens_max", "Most tokens of a last prompt"),
            name("rollout/branches", "Trajectories that went on from the middle of another (`trainer.branch`)"),
            name("rollout/forked_at", "Mean steps that such a trajectory shares"),
            name(
                "rollout/shared_token_share",
                "Share of all trajectories' replied tokens that were not sampled again, because a root had them already",
            ),
            name("rollout/groups", "Groups sampled, those that a filter dropped included"),
            name("rollout/dropped_groups", "Groups that `trainer.filter` dropped; those of the last refill stay"),
            name("rollout/cut_share", "Share of replies cut at `sampling.max_new_tokens` or at the end of the context"),
            name("rollout/truncated_share", "Share of trajectories that a limit ended, not the environment"),
            name(
                "rollout/truncated/<limit>",
                "Trajectories that this limit ended: `max_steps`, `max_tokens`, `context_overflow`, or what the env's \
                 `truncated = true` stands for (`length`, `deadline`: the last reply was cut; `env`); written when there \
                 are any",
            ),
            name(
                "rollout/overflow_share",
                "Share of trajectories that ended because the next prompt left no room for a reply",
            ),
            name("rollout/retries", "Failed attempts that were sampled again (`rollout.retries`)"),
            name("rollout/failed_share", "Share of trajectories that failed; left out of the advantages"),
            name("rollout/failed/<status>", "Trajectories that failed with this status; written when there are any"),
            name(
                "rollout/rewrites",
                "Mean steps a trajectory whose prompt did not extend the last one: each starts a new row",
            ),
            name("rollout/cached_share", "Share of prompt tokens whose keys and values were found in the cache"),
        ],
    },
    Section {
        title: "Script",
        when: "Every step of reinforcement learning.",
        names: &[
            name(
                "script/generation",
                "Version of the script that groups begin with now: 0 is the one the run began with",
            ),
            name("script/reloads", "Versions taken in since the last step (docs/reload.md)"),
            name("script/memory", "MiB that the scripts' virtual machines hold, what is not collected yet included"),
        ],
    },
    Section {
        title: "Policy",
        when: "Every step of reinforcement learning, over the sampled tokens of the trained rows; a mean over optimiser steps. A \
               step without an optimiser step (no token has an advantage or another gradient) has `policy/lr`, \
               `policy/version`, `policy/updates`, `policy/skipped` and `policy/tokens` only.",
        names: &[
            name(
                "policy/loss",
                "What was minimised: the recipe's loss under its `loss_agg`, with its KL and entropy terms",
            ),
            name("policy/entropy", "Mean entropy of the next-token distribution at sampled positions, in nats"),
            name(
                "policy/approx_kl",
                "Estimate of KL(behaviour || current): mean of (r - 1) - ln r with r the probability ratio (k3)",
            ),
            name("policy/approx_kl_k1", "Another of the same, without bias and with more noise: mean of -ln r (k1)"),
            name("policy/clip_frac", "Share of tokens whose ratio was clipped"),
            name("policy/clip_frac_low", "Share of tokens whose ratio was under the clip, with a negative advantage"),
            name("policy/clip_frac_high", "Share of tokens whose ratio was over the clip, with a positive advantage"),
            name(
                "policy/clip_frac_dual",
                "Share of tokens with a negative advantage whose loss the dual clip bounded (`trainer.loss.dual_clip`)",
            ),
            name("policy/ratio_max", "Largest probability ratio of a token"),
            name("policy/ratio_min", "Smallest probability ratio of a token"),
            name(
                "policy/largest_token",
                "Largest share that one token has in the gradient with respect to log-probabilities",
            ),
            name("policy/tokens", "Sampled tokens trained on, once for each pass"),
            name(
                "policy/merged_share",
                "Share of tokens saved by merging: steps that extend each other are one row, not each a row with its \
                 whole prompt",
            ),
            name(
                "loss/<name>",
                "What the recipe's own loss logs with `b:log(name, x)`: a mean over the tokens computed, or a sum over the \
                 mini-batch; the mean over updates",
            ),
            name("policy/updates", "Optimiser steps taken"),
            name("policy/skipped", "Optimiser steps left out because a number was NaN or infinite (`trainer.on_nan`)"),
            name("policy/grad_norm", "Global gradient norm before clipping"),
            name("policy/lr", "Learning rate"),
            name("policy/version", "Times the weights have changed since the run began"),
        ],
    },
    Section {
        title: "Advantage",
        when: "Every step of reinforcement learning that has some, over the sampled tokens of the trained trajectories.",
        names: &[
            name("advantage/mean", "Mean"),
            name("advantage/std", "Standard deviation"),
            name("advantage/min", "Smallest"),
            name("advantage/max", "Largest"),
        ],
    },
    Section {
        title: "KL to the reference",
        when: "Every step of a recipe with `trainer.kl.coef`, or with a loss that has a KL term.",
        names: &[
            name(
                "kl/mean",
                "Mean KL(policy || reference) of a sampled token, by `trainer.kl.kind`: in the updates, or before them where \
                 the KL is a penalty in the reward. The column `kl` of the table",
            ),
            name("kl/coef", "Its coefficient"),
        ],
    },
    Section {
        title: "Critic",
        when: "Every step of `r1.ppo`; losses are means over optimiser steps, and absent where none was taken.",
        names: &[
            name("critic/loss", "Value loss: half the squared error, clipped by `trainer.critic.clip`"),
            name("critic/clip_frac", "Share of values that the clip held back"),
            name("critic/grad_norm", "Global gradient norm before clipping"),
            name("critic/skipped", "Optimiser steps of the critic left out because a number was NaN or infinite"),
            name("critic/value", "Mean value before the sampled tokens, before the update"),
            name(
                "critic/explained_variance",
                "Share of the variance of its targets that the critic explained before the update",
            ),
        ],
    },
    Section {
        title: "Mismatch",
        when: "Every step of reinforcement learning, before the first update: the same weights, seen by the sampler and by the learner.",
        names: &[
            name("mismatch/max_abs", "Largest difference of a sampled token's log-probability"),
            name("mismatch/recomputed", "1 when the learner's log-probabilities took the place of the sampler's"),
            name("mismatch/rejected", "Share of sampled tokens whose off-policy weight is 0"),
            name("mismatch/kl", "Mean of sampler minus learner log-probability: an estimate of the KL divergence"),
        ],
    },
    Section {
        title: "Supervised fine-tuning",
        when: "Every step of `r1 sft`.",
        names: &[
            name("sft/loss", "Mean negative log-likelihood of a trained (assistant) token, in nats"),
            name("sft/tokens", "Trained tokens in the step"),
            name("sft/packed_tokens", "Tokens computed in the step: those of all its conversations, without padding"),
            name("sft/supervised_share", "Share of the computed tokens that are trained"),
            name(
                "sft/fill",
                "Share of the room of the micro-batches, `trainer.tokens_per_batch` each, that tokens fill",
            ),
            name(
                "sft/padding_avoided",
                "Share of the tokens of a batch padded to its longest conversation that would be padding",
            ),
            name("sft/overlong", "Conversations of the step that were left out or cut because they are too long"),
        ],
    },
    Section {
        title: "Evaluation",
        when: "Before the first step, after the last, and every `eval.every` steps, on `data.eval`.",
        names: &[
            name("eval/loss", "Supervised training: mean negative log-likelihood of a held-out reply's token, in nats"),
            name("eval/tokens", "Supervised training: tokens in that mean"),
            name("eval/accuracy", "Share of tasks whose trajectory counts as right"),
            name("eval/reward", "Mean total reward"),
            name("eval/<part>", "Mean of a named part of the reward, unweighted"),
            name(
                "eval/tool_call_share",
                "Share of trajectories with at least one call that was parsed and named a tool",
            ),
            name("eval/response_tokens", "Mean sampled tokens a trajectory"),
            name("eval/failed_share", "Share of trajectories that failed; they count as wrong"),
            name(
                "eval/<source>/accuracy",
                "`eval/accuracy` over the tasks of one source (the column `data_source`), where tasks have one",
            ),
            name("eval/<source>/reward", "Mean total reward over the same tasks"),
            name("eval/<source>/tasks", "Number of these tasks"),
        ],
    },
    Section {
        title: "Time, throughput and memory",
        when: "Every step. Seconds of wall clock.",
        names: &[
            name("time/step", "The whole step"),
            name("time/sampling", "Producing the trajectories: policy, environment and tools"),
            name("time/training", "Forward, backward and optimiser"),
            name("time/evaluation", "Evaluation; written when there is one"),
            name("time/tools", "Sum over tool calls; they overlap with each other and with sampling"),
            name("memory/resident", "MiB of memory that the process holds; where the system says it"),
            name("memory/peak", "The most it has held so far, MiB"),
            name("memory/device_peak", "The most that tensors have held on the GPU so far, MiB; on a GPU"),
            name("throughput/tokens_per_s", "Sampled tokens a second of sampling"),
            name("throughput/train_tokens_per_s", "Tokens of trained rows, prompts included, a second of training"),
        ],
    },
];

/// What a metric means; `None` for a name that is not on the list.
pub fn meaning(metric: &str) -> Option<&'static str> {
    let all = || SECTIONS.iter().flat_map(|section| section.names);
    let exact = all().find(|known| known.name == metric);
    exact.or_else(|| all().find(|known| matches_pattern(known.name, metric))).map(|known| known.meaning)
}

fn matches_pattern(pattern: &str, metric: &str) -> bool {
    pattern.split_once('<').is_some_and(|(fixed, _)| {
        metric.strip_prefix(fixed).is_some_and(|chosen| !chosen.is_empty() && !chosen.contains('/'))
    })
}

/// Whether a metric lies between 0 and 1, so that a plot shows that range.
pub(super) fn is_share(metric: &str) -> bool {
    meaning(metric).is_some_and(|meaning| meaning.starts_with("Share"))
}

/// The page `docs/metrics.md`.
pub fn page() -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         <!-- Made from src/telemetry/names.rs: `R1_UPDATE=1 cargo test metrics_page` writes it again. -->\n\n\
         Every metric of a run is in `metrics.jsonl` (one JSON object per step, `null` where a number is not finite) and in \
         `tb/` (`tensorboard --logdir runs`) under the same name. Step 0 is the evaluation before training; the metrics of a \
         later evaluation are in the object of the step that it followed, which is written again with them.\n",
    );
    for section in SECTIONS {
        // Writing to a string can't fail.
        let _ = write!(page, "\n## {}\n\n{}\n\n| metric | meaning |\n|---|---|\n", section.title, section.when);
        for Name { name, meaning } in section.names {
            let _ = writeln!(page, "| `{name}` | {} |", meaning.replace('|', "\\|"));
        }
    }
    page
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn metrics_page_is_current() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
        if std::env::var_os("R1_UPDATE").is_some() {
            std::fs::write(&path, page()).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(written == page(), "docs/metrics.md is out of date; `R1_UPDATE=1 cargo test metrics_page` writes it");
    }

    /// Every name is written somewhere in src/train, and nothing else is.
    #[test]
    fn what_is_written_is_what_is_explained() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/train");
        let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let source: String = files.map(|path| std::fs::read_to_string(path).unwrap()).collect();
        let texts: std::collections::HashSet<&str> = source.split('"').collect();
        for Name { name, .. } in SECTIONS.iter().flat_map(|section| section.names) {
            let written = match name.split_once('<') {
                Some((fixed, _)) => texts.iter().any(|text| text.starts_with(&format!("{fixed}{{"))),
                None => texts.contains(name),
            };
            assert!(written, "{name} is explained and never written");
        }
        let sections: std::collections::HashSet<&str> =
            SECTIONS.iter().flat_map(|section| section.names).filter_map(|n| n.name.split('/').next()).collect();
        let is_name = |text: &&&str| {
            let plain = text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "/_".contains(c));
            plain && text.split_once('/').is_some_and(|(section, rest)| sections.contains(section) && !rest.is_empty())
        };
        for text in texts.iter().filter(is_name) {
            assert!(meaning(text).is_some(), "{text} is written and not explained");
        }
    }

    #[test]
    fn names_are_unique_and_patterns_match_one_word() {
        let mut seen = std::collections::HashSet::new();
        for Name { name, .. } in SECTIONS.iter().flat_map(|section| section.names) {
            assert!(seen.insert(name), "{name} twice");
        }
        assert!(meaning("reward/mean").unwrap().starts_with("Mean over trajectories"));
        assert!(meaning("reward/format").unwrap().starts_with("Mean of a named part"));
        assert!(meaning("reward/").is_none());
        assert!(meaning("reward/a/b").is_none());
        assert!(meaning("loss").is_none());
    }
}
