//! All metrics with their descriptions. `docs/reference/metrics.md` is generated from this list; a
//! test keeps it current.

/// A metric: its name, with `<…>` for a word that the recipe defines, and its description.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    pub name: &'static str,
    pub meaning: &'static str,
}

/// A section of metrics, with a sentence on when they are logged.
#[derive(Clone, Copy, Debug)]
pub struct MetricSection {
    pub title: &'static str,
    pub when: &'static str,
    pub names: &'static [Name],
}

const fn name(name: &'static str, meaning: &'static str) -> Name {
    Name { name, meaning }
}

/// All metrics, in the order of the page.
pub const SECTIONS: &[MetricSection] = &[
    MetricSection {
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
                "Share of groups whose trajectories all have the same reward: their advantages are 0",
            ),
        ],
    },
    MetricSection {
        title: "Sources",
        when: "Every step of reinforcement learning whose tasks have the column `data_source`, which a dataset with\n\
               a name fills; over the trajectories of that source that did not fail.",
        names: &[
            name(
                "source/<source>/reward",
                "Mean over trajectories of the sum of step rewards, outcome reward included",
            ),
            name("source/<source>/accuracy", "Share of correct trajectories"),
            name("source/<source>/response_tokens", "Mean response tokens per trajectory"),
            name("source/<source>/share", "Share of the step's trajectories"),
        ],
    },
    MetricSection {
        title: "Rollout",
        when: "Every step of reinforcement learning, over the trajectories sampled in it.",
        names: &[
            name("rollout/accuracy", "Share of correct trajectories (`eval.accuracy`, or total reward > 0)"),
            name(
                "rollout/tool_call_share",
                "Share of trajectories with at least one call that was parsed and named a tool",
            ),
            name("rollout/tool_calls", "Mean calls per trajectory that were parsed and named a tool of the recipe"),
            name(
                "rollout/hidden_calls",
                "Mean calls per trajectory that the script made for itself (`hidden`), if any",
            ),
            name(
                "rollout/malformed_calls",
                "Mean calls per trajectory that could not be parsed or named no tool of the recipe",
            ),
            name("rollout/tool_ok_share", "Share of tool calls that succeeded"),
            name("rollout/tool_cached_share", "Share of tool calls served from the tool's cache"),
            name("rollout/tool_retries", "Repeated attempts of tool calls, summed over the step"),
            name("rollout/steps", "Mean steps per trajectory"),
            name(
                "rollout/response_tokens",
                "Mean response tokens per trajectory, over all its steps, shared steps included",
            ),
            name("rollout/response_tokens_max", "Largest number of response tokens in one trajectory"),
            name("rollout/prompt_tokens", "Mean tokens of a trajectory's last prompt"),
            name("rollout/prompt_tokens_max", "Largest number of tokens of a last prompt"),
            name(
                "rollout/branches",
                "Trajectories that branch from an intermediate state of another one (`trainer.branch`)",
            ),
            name("rollout/forked_at", "Mean number of steps that such a trajectory shares with its root"),
            name("rollout/shared_token_share", "Share of response tokens reused from shared prefixes (tree sampling)"),
            name("rollout/groups", "Groups sampled, dropped ones included"),
            name("rollout/dropped_groups", "Groups dropped by `trainer.filter`; those of the last refill are kept"),
            name("data/skipped_rows", "Rows that the curriculum passed over in the step (`data.curriculum`)"),
            name("data/sampled_share", "Share of the usable rows that were sampled before the step"),
            name("data/success_rate", "Mean success rate of these rows"),
            name("rollout/cut_share", "Share of responses cut at `sampling.max_new_tokens` or at the context limit"),
            name("rollout/truncated_share", "Share of trajectories ended by a limit instead of the environment"),
            name(
                "rollout/truncated/<limit>",
                "Trajectories ended by this limit: `max_steps`, `max_tokens`, `context_overflow`, or a \
                 `truncated = true` of the environment (`length`, `deadline`: the last response was cut; `env`); written \
                 if there are any",
            ),
            name(
                "rollout/overflow_share",
                "Share of trajectories ended because the next prompt leaves no room for a response",
            ),
            name("rollout/retries", "Failed attempts that were sampled again (`rollout.retries`)"),
            name("rollout/failed_share", "Share of failed trajectories; they are excluded from the advantages"),
            name("rollout/failed/<status>", "Trajectories that failed with this status; written if there are any"),
            name(
                "rollout/rewrites",
                "Mean number of steps per trajectory whose prompt does not extend the previous one: each starts a new row",
            ),
            name("rollout/cached_share", "Share of prompt tokens served from the key-value cache"),
            name(
                "rollout/graph_share",
                "Share of model calls with decoding sequences that launched them as a CUDA graph (bf16 on CUDA)",
            ),
        ],
    },
    MetricSection {
        title: "Script",
        when: "Every step of reinforcement learning.",
        names: &[
            name("script/generation", "Version of the script used by new groups; 0 is the first"),
            name("script/reloads", "Versions loaded since the last step (docs/guide/reload.md)"),
            name("script/memory", "Memory of the scripts' virtual machines in MiB, garbage included"),
        ],
    },
    MetricSection {
        title: "Policy",
        when: "Every step of reinforcement learning, over the sampled tokens of the trained rows; a mean over\n\
               optimiser steps. A step without an optimiser step (no token has an advantage or another gradient)\n\
               has `policy/lr`, `policy/version`, `policy/updates`, `policy/skipped` and `policy/tokens` only.",
        names: &[
            name("policy/loss", "The minimised loss, with its KL and entropy terms, aggregated by `loss_agg`"),
            name("policy/entropy", "Mean entropy of the next-token distribution at sampled positions, in nats"),
            name(
                "policy/approx_kl",
                "Estimate of KL(behaviour || current): mean of (r - 1) - ln r with r the probability ratio (k3)",
            ),
            name("policy/approx_kl_k1", "Another estimate of it, unbiased and with more variance: mean of -ln r (k1)"),
            name("policy/clip_frac", "Share of tokens whose ratio was clipped"),
            name(
                "policy/clip_frac_low",
                "Share of tokens with a negative advantage whose ratio was below the clip range",
            ),
            name(
                "policy/clip_frac_high",
                "Share of tokens with a positive advantage whose ratio was above the clip range",
            ),
            name(
                "policy/clip_frac_dual",
                "Share of tokens with a negative advantage whose loss the dual clip bounded (`trainer.loss.dual_clip`)",
            ),
            name("policy/ratio_max", "Largest probability ratio of a token"),
            name("policy/ratio_min", "Smallest probability ratio of a token"),
            name(
                "policy/largest_token",
                "Largest share of one token in the gradient with respect to log-probabilities",
            ),
            name("policy/tokens", "Trained response tokens, counted once per epoch"),
            name("policy/merged_share", "Share of tokens saved by merging steps that extend each other into one row"),
            name(
                "loss/<name>",
                "Value logged by a custom loss with `b:log(name, x)`: a mean over tokens, or a sum over the mini-batch; \
                 averaged over updates",
            ),
            name("policy/updates", "Optimiser steps taken"),
            name("policy/skipped", "Optimiser steps skipped because of a NaN or infinite number (`trainer.on_nan`)"),
            name("policy/grad_norm", "Global gradient norm before clipping"),
            name("policy/lr", "Learning rate"),
            name("policy/version", "Number of optimiser steps since the run began"),
        ],
    },
    MetricSection {
        title: "Advantage",
        when: "Every step of reinforcement learning with trained trajectories, over their sampled tokens.",
        names: &[
            name("advantage/mean", "Mean"),
            name("advantage/std", "Standard deviation"),
            name("advantage/min", "Smallest"),
            name("advantage/max", "Largest"),
        ],
    },
    MetricSection {
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
    MetricSection {
        title: "Critic",
        when: "Every step of `r1.ppo`; losses are means over optimiser steps, and absent where none was taken.",
        names: &[
            name("critic/loss", "Value loss: half the squared error, clipped by `trainer.critic.clip`"),
            name("critic/clip_frac", "Share of values that were clipped"),
            name("critic/grad_norm", "Global gradient norm before clipping"),
            name("critic/skipped", "Optimiser steps of the critic skipped because of a NaN or infinite number"),
            name("critic/value", "Mean predicted value, before the update"),
            name(
                "critic/explained_variance",
                "Share of the variance of the returns explained by the critic, before the update (explained variance)",
            ),
        ],
    },
    MetricSection {
        title: "Mismatch",
        when: "Every step of reinforcement learning, before the first update: sampler and learner compute\n\
               log-probabilities with the same weights.",
        names: &[
            name("mismatch/max_abs", "Largest absolute difference of the log-probability of a sampled token"),
            name(
                "mismatch/recomputed",
                "1 if the learner's log-probabilities replaced the sampler's (`trainer.recompute_above`)",
            ),
            name("mismatch/rejected", "Share of sampled tokens whose off-policy weight is 0"),
            name("mismatch/kl", "Mean of sampler minus learner log-probability: an estimate of the KL divergence"),
        ],
    },
    MetricSection {
        title: "Supervised fine-tuning",
        when: "Every step of `r1 sft`.",
        names: &[
            name("sft/loss", "Mean negative log-likelihood of a trained (assistant) token, in nats"),
            name("sft/tokens", "Trained tokens in the step"),
            name("sft/packed_tokens", "Tokens computed in the step: all tokens of its conversations, without padding"),
            name("sft/supervised_share", "Share of the computed tokens that are trained"),
            name(
                "sft/fill",
                "Share of the capacity of the micro-batches (`trainer.tokens_per_batch` each) that is used",
            ),
            name(
                "sft/padding_avoided",
                "Share of padding tokens that a batch padded to its longest conversation would have",
            ),
            name("sft/overlong", "Conversations of the step that were skipped or truncated because they are too long"),
        ],
    },
    MetricSection {
        title: "Evaluation",
        when: "Before the first step, after the last, and every `eval.every` steps, on `data.eval`.",
        names: &[
            name(
                "eval/loss",
                "Supervised training: mean negative log-likelihood per token of held-out replies, in nats",
            ),
            name("eval/tokens", "Supervised training: tokens in that mean"),
            name("eval/accuracy", "Share of tasks solved"),
            name("eval/reward", "Mean total reward"),
            name("eval/best@<k>", "With `eval.samples` = k above 1: the best score of a task, as a mean over tasks"),
            name("eval/worst@<k>", "The worst score of a task"),
            name("eval/pass@<k>", "Share of tasks with a solved sample"),
            name("eval/maj@<k>", "Score of a task's most frequent final answer (docs/guide/evaluation.md)"),
            name("eval/<part>", "Mean of a named part of the reward, unweighted"),
            name(
                "eval/tool_call_share",
                "Share of trajectories with at least one call that was parsed and named a tool",
            ),
            name("eval/response_tokens", "Mean response tokens per trajectory"),
            name("eval/failed_share", "Share of trajectories that failed; they count as wrong"),
            name(
                "eval/<source>/accuracy",
                "`eval/accuracy` over the tasks of one source (the column `data_source`), where tasks have one",
            ),
            name("eval/<source>/reward", "Mean total reward over the same tasks"),
            name("eval/<source>/tasks", "Number of these tasks"),
        ],
    },
    MetricSection {
        title: "Time, throughput and memory",
        when: "Every step. Seconds of wall clock.",
        names: &[
            name("time/step", "The whole step"),
            name("time/sampling", "Rollout: policy, environment and tools"),
            name("time/training", "Forward, backward and optimiser"),
            name("time/evaluation", "Evaluation; written if there is one"),
            name("time/tools", "Sum over tool calls; they overlap with each other and with sampling"),
            name("memory/resident", "Resident memory of the process in MiB, if the system reports it"),
            name("memory/peak", "Peak resident memory so far, in MiB"),
            name("memory/device_peak", "Peak memory of tensors on the GPU so far, in MiB"),
            name("throughput/tokens_per_s", "Sampled tokens per second of sampling"),
            name("throughput/train_tokens_per_s", "Tokens of trained rows, prompts included, per second of training"),
        ],
    },
];

/// Description of a metric; `None` for an unknown name.
pub fn meaning(metric: &str) -> Option<&'static str> {
    let all = || SECTIONS.iter().flat_map(|section| section.names);
    let exact = all().find(|entry| entry.name == metric);
    exact.or_else(|| all().find(|entry| matches_pattern(entry.name, metric))).map(|entry| entry.meaning)
}

fn matches_pattern(pattern: &str, metric: &str) -> bool {
    pattern.split_once('<').is_some_and(|(fixed, _)| {
        metric.strip_prefix(fixed).is_some_and(|chosen| !chosen.is_empty() && !chosen.contains('/'))
    })
}

/// Whether a metric is a share, so that its plot has the range 0 to 1.
pub fn is_share(metric: &str) -> bool {
    meaning(metric).is_some_and(|meaning| meaning.starts_with("Share"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fmt::Write;

    use super::*;

    /// The page `docs/reference/metrics.md`.
    fn page() -> String {
        let mut page = String::from(
            "# Metrics\n\n\
             <!-- Generated from src/telemetry/names.rs: `R1_UPDATE=1 cargo test metrics_page`. -->\n\n\
             Every metric of a run is in `metrics.jsonl` (one JSON object per step, `null` for a non-finite\n\
             number) and in `tb/` (`tensorboard --logdir runs`) under the same name. Step 0 is the evaluation\n\
             before training; metrics of a later evaluation are merged into the object of the step before it.\n",
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

    #[test]
    fn metrics_page_is_current() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/metrics.md");
        if std::env::var_os("R1_UPDATE").is_some() {
            std::fs::write(&path, page()).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            written == page(),
            "docs/reference/metrics.md is out of date; `R1_UPDATE=1 cargo test metrics_page` writes it"
        );
    }

    /// src/train logs every metric of the list, and no others.
    #[test]
    fn logged_metrics_are_documented_metrics() {
        let mut paths = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/train")];
        let mut source = String::new();
        while let Some(path) = paths.pop() {
            if path.is_dir() {
                paths.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            } else {
                source += &std::fs::read_to_string(path).unwrap();
            }
        }
        let texts: std::collections::HashSet<&str> = source.split('"').collect();
        for Name { name, .. } in SECTIONS.iter().flat_map(|section| section.names) {
            let written = match name.split_once('<') {
                Some((fixed, _)) => texts.iter().any(|text| text.starts_with(&format!("{fixed}{{"))),
                None => texts.contains(name),
            };
            assert!(written, "{name} is documented and never logged");
        }
        let sections: std::collections::HashSet<&str> =
            SECTIONS.iter().flat_map(|section| section.names).filter_map(|n| n.name.split('/').next()).collect();
        let is_name = |text: &&&str| {
            let plain = text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "/_".contains(c));
            plain && text.split_once('/').is_some_and(|(section, rest)| sections.contains(section) && !rest.is_empty())
        };
        for text in texts.iter().filter(is_name) {
            assert!(meaning(text).is_some(), "{text} is logged and not documented");
        }
    }

    #[test]
    fn metric_names_are_unique_and_patterns_match_one_word() {
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
