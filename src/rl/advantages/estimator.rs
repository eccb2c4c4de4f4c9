//! Estimators by name, with typed options, over rows.

use serde_json::Value;

use super::group::{Ranking, gpg, group_normalized, grpo_passk, max_rl, opo, rapo, reinforce_pp_baseline, rloo};
use super::over_rows::{Advantages, bilevel, gigpo, greedy, mean_logp, missing, step_gae, token_gae, tree};
use super::parts::gdpo;
use super::sequence::reinforce_pp;
use super::settings::{
    Gae, GaeBilevel, GaeToken, Gdpo, Gigpo, Gpg, Grpo, MaxRl, Plain, Rapo, ReinforcePp, ReinforcePpBaseline, Remax,
    TokenBaseline, Tree,
};
use super::token_baseline::{Timeline, optimal_token_baseline};
use crate::error::{Error, Kind, Result};
use crate::rl::options::{names, refuse_rest, table, take, unknown, within};
use crate::rl::rows::{Batch, Path, StepRow};

/// What an estimator or a loss cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Need {
    /// Values of a critic.
    Critic,
    /// Log-probabilities under the reference policy.
    Reference,
    /// Groups of at least two trajectories.
    Groups,
    /// a greedy baseline rollout in every group.
    Greedy,
    /// What the policy was shown at each step.
    Anchors,
    /// Log-probabilities of the sampled tokens when the advantages are made.
    Logp,
    /// The sum of squared probabilities over the vocabulary at each sampled token.
    Squares,
    /// Named parts of the reward.
    Parts,
    /// All tokens of a mini-batch at once: statistics that micro-batches would change.
    WholeBatch,
}

/// What one advantage belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Trajectory,
    Step,
    Token,
}

/// An estimator and its options.
#[derive(Clone, Debug, PartialEq)]
pub enum Estimator {
    Gae(Gae),
    GaeToken(GaeToken),
    GaeBilevel(GaeBilevel),
    Grpo(Grpo),
    Rloo(Plain),
    ReinforcePp(ReinforcePp),
    ReinforcePpBaseline(ReinforcePpBaseline),
    Remax(Remax),
    Gigpo(Gigpo),
    Rapo(Rapo),
    Opo(Plain),
    Gpg(Gpg),
    MaxRl(MaxRl),
    GrpoPassk(Grpo),
    Tree(Tree),
    Gdpo(Gdpo),
    OptimalTokenBaseline(TokenBaseline),
    TirOptimalTokenBaseline(TokenBaseline),
}

impl Estimator {
    /// Every name.
    pub const NAMES: [&'static str; 18] = [
        "gae",
        "gae_token",
        "gae_bilevel",
        "grpo",
        "rloo",
        "reinforce_pp",
        "reinforce_pp_baseline",
        "remax",
        "gigpo",
        "rapo",
        "opo",
        "gpg",
        "max_rl",
        "grpo_passk",
        "tree",
        "gdpo",
        "optimal_token_baseline",
        "tir_optimal_token_baseline",
    ];

    /// An estimator by name with the options of a table; what the table leaves out has its default.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a name or an option that does not exist (with those that resemble it), a value of the wrong type
    /// or out of its range.
    pub fn new(name: &str, options: &Value) -> Result<Self> {
        let mut rest = table(name, options)?;
        macro_rules! read {
            ($variant:ident, $options:ty) => {{
                let own = take::<$options>(name, &mut rest)?;
                refuse_rest(name, &rest, &names(&<$options>::default()))?;
                Self::$variant(own)
            }};
        }
        let estimator = match name {
            "gae" => read!(Gae, Gae),
            "gae_token" => read!(GaeToken, GaeToken),
            "gae_bilevel" => read!(GaeBilevel, GaeBilevel),
            "grpo" => read!(Grpo, Grpo),
            "rloo" => read!(Rloo, Plain),
            "reinforce_pp" => read!(ReinforcePp, ReinforcePp),
            "reinforce_pp_baseline" => read!(ReinforcePpBaseline, ReinforcePpBaseline),
            "remax" => read!(Remax, Remax),
            "gigpo" => read!(Gigpo, Gigpo),
            "rapo" => read!(Rapo, Rapo),
            "opo" => read!(Opo, Plain),
            "gpg" => read!(Gpg, Gpg),
            "max_rl" => read!(MaxRl, MaxRl),
            "grpo_passk" => read!(GrpoPassk, Grpo),
            "tree" => read!(Tree, Tree),
            "gdpo" => read!(Gdpo, Gdpo),
            "optimal_token_baseline" => read!(OptimalTokenBaseline, TokenBaseline),
            "tir_optimal_token_baseline" => read!(TirOptimalTokenBaseline, TokenBaseline),
            _ => return Err(unknown("estimator", name, &Self::NAMES)),
        };
        estimator.check()?;
        Ok(estimator)
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Gae(_) => "gae",
            Self::GaeToken(_) => "gae_token",
            Self::GaeBilevel(_) => "gae_bilevel",
            Self::Grpo(_) => "grpo",
            Self::Rloo(_) => "rloo",
            Self::ReinforcePp(_) => "reinforce_pp",
            Self::ReinforcePpBaseline(_) => "reinforce_pp_baseline",
            Self::Remax(_) => "remax",
            Self::Gigpo(_) => "gigpo",
            Self::Rapo(_) => "rapo",
            Self::Opo(_) => "opo",
            Self::Gpg(_) => "gpg",
            Self::MaxRl(_) => "max_rl",
            Self::GrpoPassk(_) => "grpo_passk",
            Self::Tree(_) => "tree",
            Self::Gdpo(_) => "gdpo",
            Self::OptimalTokenBaseline(_) => "optimal_token_baseline",
            Self::TirOptimalTokenBaseline(_) => "tir_optimal_token_baseline",
        }
    }

    /// What the host must have for it.
    pub fn needs(&self) -> &'static [Need] {
        match self {
            Self::Gae(_) | Self::GaeToken(_) | Self::GaeBilevel(_) => &[Need::Critic],
            Self::ReinforcePp(_) => &[],
            Self::Remax(_) => &[Need::Greedy],
            Self::Gigpo(_) => &[Need::Groups, Need::Anchors],
            Self::Rapo(_) => &[Need::Groups, Need::Logp],
            Self::Gdpo(_) => &[Need::Groups, Need::Parts],
            Self::OptimalTokenBaseline(_) | Self::TirOptimalTokenBaseline(_) => {
                &[Need::Groups, Need::Logp, Need::Squares]
            }
            Self::Grpo(_)
            | Self::Rloo(_)
            | Self::ReinforcePpBaseline(_)
            | Self::Opo(_)
            | Self::Gpg(_)
            | Self::MaxRl(_)
            | Self::GrpoPassk(_)
            | Self::Tree(_) => &[Need::Groups],
        }
    }

    /// What one of its advantages belongs to.
    pub fn level(&self) -> Level {
        match self {
            Self::Gae(_) | Self::Gigpo(_) | Self::Tree(_) => Level::Step,
            Self::GaeToken(_)
            | Self::GaeBilevel(_)
            | Self::ReinforcePp(_)
            | Self::OptimalTokenBaseline(_)
            | Self::TirOptimalTokenBaseline(_)
            | Self::Remax(Remax { reward_to_go: true }) => Level::Token,
            _ => Level::Trajectory,
        }
    }

    fn check(&self) -> Result<()> {
        let unit = |name, value| within(self.name(), name, value, 0.0, 1.0);
        let positive = |name, value| within(self.name(), name, value, 0.0, f64::INFINITY);
        match *self {
            Self::Gae(Gae { gamma, lambda, .. }) | Self::GaeToken(GaeToken { gamma, lambda, .. }) => {
                unit("gamma", gamma)?;
                unit("lambda", lambda)
            }
            Self::GaeBilevel(GaeBilevel { gamma_turn, gamma, lambda, .. }) => {
                unit("gamma_turn", gamma_turn)?;
                unit("gamma", gamma)?;
                unit("lambda", lambda)
            }
            Self::ReinforcePp(ReinforcePp { gamma, .. }) => unit("gamma", gamma),
            Self::Gigpo(Gigpo { gamma, weight, epsilon, similarity, .. }) => {
                unit("gamma", gamma)?;
                positive("weight", weight)?;
                positive("epsilon", epsilon)?;
                similarity.map_or(Ok(()), |least| unit("similarity", least))
            }
            Self::Tree(Tree { local, epsilon, .. }) => {
                unit("local", local)?;
                positive("epsilon", epsilon)
            }
            Self::Grpo(Grpo { epsilon, .. })
            | Self::GrpoPassk(Grpo { epsilon, .. })
            | Self::Rapo(Rapo { epsilon, .. })
            | Self::MaxRl(MaxRl { epsilon })
            | Self::OptimalTokenBaseline(TokenBaseline { epsilon, .. })
            | Self::TirOptimalTokenBaseline(TokenBaseline { epsilon, .. }) => positive("epsilon", epsilon),
            Self::Gdpo(Gdpo { epsilon, ref weights, .. }) => {
                positive("epsilon", epsilon)?;
                let odd = weights.iter().flatten().find(|(_, weight)| !weight.is_finite());
                odd.map_or(Ok(()), |(_, weight)| within("gdpo", "weights", *weight, f64::MIN, f64::MAX))
            }
            Self::Gpg(Gpg { f_norm }) => within("gpg", "f_norm", f_norm, f64::MIN_POSITIVE, f64::INFINITY),
            Self::Rloo(_) | Self::Opo(_) | Self::ReinforcePpBaseline(_) | Self::Remax(_) => Ok(()),
        }
    }

    /// Advantages of `rows`, the same in all rows of a shared step ([`Advantages::share`]). Failed trajectories stay out
    /// unless `include_failures`. Estimators that compare within a group give 0 to a trajectory whose group failures
    /// reduced to it alone, and leave it out of the statistics of the batch; a group that has one trajectory and no
    /// failure keeps the estimator's own meaning.
    ///
    /// # Errors
    /// Those of [`Batch::new`]; [`Kind::Usage`] where a row misses what the estimator needs, and names it.
    pub fn estimate(&self, rows: &[StepRow], include_failures: bool) -> Result<Advantages> {
        let batch = Batch::new(rows, include_failures)?;
        let compares = self.needs().contains(&Need::Groups);
        let paths: Vec<&Path> = batch.counted().filter(|path| !(compares && path.lone_survivor)).collect();
        let mut found = Advantages::empty(&batch);
        match *self {
            Self::Gae(options) => step_gae(&batch, &paths, options, &mut found)?,
            Self::GaeToken(options) => token_gae(&batch, &paths, options, &mut found)?,
            Self::GaeBilevel(options) => bilevel(&batch, &paths, options, &mut found)?,
            Self::ReinforcePp(ReinforcePp { gamma, whiten }) => {
                let rewards: Vec<Vec<f64>> = paths.iter().map(|path| batch.token_rewards(path)).collect();
                found.put_tokens(rows, &paths, &reinforce_pp(&rewards, gamma, whiten));
            }
            Self::Gigpo(options) => gigpo(&batch, &paths, options, &mut found)?,
            Self::Remax(options) => greedy(&batch, &paths, options, &mut found)?,
            Self::Tree(options) => tree(&batch, &paths, options, &mut found),
            Self::OptimalTokenBaseline(options) => {
                optimal_token_baseline(&batch, &paths, options, Timeline::Replies, &mut found)?;
            }
            Self::TirOptimalTokenBaseline(options) => {
                optimal_token_baseline(&batch, &paths, options, Timeline::Sampled, &mut found)?;
            }
            _ => found.put_trajectories(rows, &paths, &self.by_trajectory(&batch, &paths)?),
        }
        found.share(rows);
        Ok(found)
    }

    /// Estimators with one advantage per trajectory.
    fn by_trajectory(&self, batch: &Batch<'_>, paths: &[&Path]) -> Result<Vec<f64>> {
        let returns: Vec<f64> = paths.iter().map(|path| path.total).collect();
        let groups: Vec<u64> = paths.iter().map(|path| path.group).collect();
        let tokens: Vec<usize> = paths.iter().map(|path| path.tokens).collect();
        Ok(match *self {
            Self::Gdpo(ref options) => gdpo(batch, paths, options)?,
            Self::Rloo(_) => rloo(&returns, &groups),
            Self::Opo(_) => opo(&returns, &groups, &tokens),
            Self::Gpg(Gpg { f_norm }) => gpg(&returns, &groups, f_norm),
            Self::ReinforcePpBaseline(ReinforcePpBaseline { whiten }) => {
                reinforce_pp_baseline(&returns, &groups, &tokens, whiten)
            }
            Self::GrpoPassk(Grpo { normalize, epsilon }) => grpo_passk(&returns, &groups, normalize, epsilon),
            Self::MaxRl(MaxRl { epsilon }) => {
                if let Some(path) = paths.iter().find(|path| path.total < 0.0) {
                    return Err(missing(
                        batch,
                        path,
                        "`max_rl` divides by the mean reward: it wants rewards of at least 0",
                    ));
                }
                max_rl(&returns, &groups, epsilon)
            }
            Self::Rapo(Rapo { normalize, epsilon, threshold, margin, bonus }) => {
                let advantages = group_normalized(&returns, &groups, normalize, epsilon);
                let logp = paths.iter().map(|path| mean_logp(batch, path)).collect::<Result<Vec<f64>>>()?;
                rapo(&advantages, &returns, &groups, &logp, Ranking { threshold, margin, bonus })
            }
            Self::Grpo(Grpo { normalize, epsilon }) => group_normalized(&returns, &groups, normalize, epsilon),
            Self::Gae(_)
            | Self::GaeToken(_)
            | Self::GaeBilevel(_)
            | Self::ReinforcePp(_)
            | Self::Gigpo(_)
            | Self::Remax(_)
            | Self::OptimalTokenBaseline(_)
            | Self::TirOptimalTokenBaseline(_)
            | Self::Tree(_) => {
                return Err(Error::new(Kind::Internal, format!("`{}` has no advantage per trajectory", self.name())));
            }
        })
    }
}
