//! Estimators by name, with typed options, over rows.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::estimator::{AdvantageEstimator, Level, Need};
use super::gae::{Gae, GaeBilevel, GaeToken};
use super::gdpo::Gdpo;
use super::gigpo::Gigpo;
use super::gpg::Gpg;
use super::grpo::Grpo;
use super::grpo_passk::GrpoPassk;
use super::max_rl::MaxRl;
use super::opo::Opo;
use super::rapo::Rapo;
use super::reinforce_pp::{ReinforcePp, ReinforcePpBaseline};
use super::remax::Remax;
use super::result::Advantages;
use super::rloo::Rloo;
use super::token_baseline::{OptimalTokenBaseline, TirOptimalTokenBaseline};
use super::trajectories::ComparedTrajectories;
use super::tree::Tree;
use crate::error::Result;
use crate::rl::options::{fields, names, refuse_rest, table, take, unknown};
use crate::rl::reference::Reference;
use crate::rl::rows::{Batch, StepRow};

/// Every estimator: its name, its paper (or the system that defines it), and what it computes, for
/// docs/guide/training.md. An estimator is a type with its options, in a file of this folder, and a
/// line here.
const ESTIMATORS: &[Entry] = &[
    entry::<Gae>("gae", "arXiv:1506.02438", "GAE over steps (Agent-R1, arXiv:2511.14460)"),
    entry::<GaeToken>("gae_token", "arXiv:1506.02438", "GAE over sampled tokens, as in verl"),
    entry::<GaeBilevel>("gae_bilevel", "arXiv:2504.20073", "GAE over steps, then over the tokens of each (RAGEN)"),
    entry::<Grpo>("grpo", "arXiv:2402.03300", "return minus the mean of the group, over its deviation"),
    entry::<Rloo>("rloo", "arXiv:2402.14740", "return minus the mean of the others in the group"),
    entry::<ReinforcePp>("reinforce_pp", "arXiv:2501.03262", "discounted returns, whitened over the batch"),
    entry::<ReinforcePpBaseline>(
        "reinforce_pp_baseline",
        "arXiv:2501.03262",
        "return minus the group's mean, whitened",
    ),
    entry::<Remax>("remax", "arXiv:2310.10505", "return minus that of a greedy rollout"),
    entry::<Gigpo>("gigpo", "arXiv:2505.10978", "`grpo`, and a comparison of steps with the same observation"),
    entry::<Rapo>("rapo", "arXiv:2509.06278", "`grpo` with a factor for pairs whose winner is not preferred yet"),
    entry::<Opo>("opo", "arXiv:2505.23585", "return minus the baseline of least variance"),
    entry::<Gpg>("gpg", "arXiv:2504.02546", "return minus the mean of the group, times all returns over those not 0"),
    entry::<MaxRl>("max_rl", "arXiv:2602.02710", "return minus the mean of the group, over that mean"),
    entry::<GrpoPassk>("grpo_passk", "arXiv:2503.19595", "the best of a group against the second best"),
    entry::<Tree>("tree", "arXiv:2506.11902", "values of shared steps in a tree of branches"),
    entry::<Gdpo>("gdpo", "arXiv:2601.05242", "the named parts of the reward, each normalised separately"),
    entry::<OptimalTokenBaseline>("optimal_token_baseline", "verl 0.9.1", "a baseline of least variance per token"),
    entry::<TirOptimalTokenBaseline>(
        "tir_optimal_token_baseline",
        "verl 0.9.1",
        "the same, per number of tokens before",
    ),
];

/// Reads an estimator from its name and options.
type Read = fn(&str, Map<String, Value>) -> Result<Arc<dyn AdvantageEstimator>>;

/// The row of an estimator, and the reader of its options.
struct Entry {
    name: &'static str,
    paper: &'static str,
    about: &'static str,
    read: Read,
    /// Its options with their defaults.
    options: fn() -> Map<String, Value>,
}

const fn entry<T>(name: &'static str, paper: &'static str, about: &'static str) -> Entry
where
    T: AdvantageEstimator + Default + Serialize + DeserializeOwned + 'static,
{
    Entry { name, paper, about, read: read::<T>, options: || fields(&T::default()) }
}

fn read<T>(name: &str, mut options: Map<String, Value>) -> Result<Arc<dyn AdvantageEstimator>>
where
    T: AdvantageEstimator + Default + Serialize + DeserializeOwned + 'static,
{
    let own = take::<T>(name, &mut options)?;
    refuse_rest(name, &options, &names(&T::default()))?;
    own.check(name)?;
    Ok(Arc::new(own))
}

/// An estimator and its options.
#[derive(Clone, Debug)]
pub struct Estimator {
    name: &'static str,
    formula: Arc<dyn AdvantageEstimator>,
}

impl Estimator {
    /// Every name.
    pub const NAMES: [&'static str; ESTIMATORS.len()] = {
        let mut names = [""; ESTIMATORS.len()];
        let mut i = 0;
        while i < names.len() {
            names[i] = ESTIMATORS[i].name;
            i += 1;
        }
        names
    };

    /// Every estimator, as docs/guide/training.md lists it.
    pub fn reference() -> impl Iterator<Item = Reference> {
        let needs = |entry: &Entry| {
            (entry.read)(entry.name, Map::new()).map(|own| own.needs().iter().filter_map(|need| need.words()).collect())
        };
        ESTIMATORS.iter().map(move |entry| Reference {
            name: entry.name,
            paper: entry.paper,
            about: entry.about,
            options: (entry.options)(),
            needs: needs(entry).unwrap_or_default(),
        })
    }

    /// An estimator by name with the options of a table. Options that the table does not have keep
    /// their defaults.
    ///
    /// # Errors
    /// [`Kind::Usage`](crate::error::Kind::Usage) for a name or an option that does not exist (with
    /// the nearest names), a value of the wrong type or out of its range.
    pub fn new(name: &str, options: &Value) -> Result<Self> {
        let options = table(name, options)?;
        let Some(entry) = ESTIMATORS.iter().find(|entry| entry.name == name) else {
            return Err(unknown("estimator", name, &Self::NAMES));
        };
        Ok(Self { name: entry.name, formula: (entry.read)(name, options)? })
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Inputs that the host must provide.
    pub fn needs(&self) -> &'static [Need] {
        self.formula.needs()
    }

    /// The unit of one of its advantages.
    pub fn level(&self) -> Level {
        self.formula.level()
    }

    /// Advantages of `rows`, the same in all rows of a shared step ([`Advantages::share`]). Failed
    /// trajectories are left out unless `include_failures`. Estimators that compare within a group
    /// give 0 to a trajectory whose group has no other member that did not fail, and exclude it
    /// from the statistics of the batch. In a group of one without failures the formula of the
    /// estimator applies.
    ///
    /// # Errors
    /// Those of [`Batch::new`]; [`Kind::Usage`](crate::error::Kind::Usage) names the row that lacks
    /// an input of the estimator.
    pub fn estimate(&self, rows: &[StepRow], include_failures: bool) -> Result<Advantages> {
        let batch = Batch::new(rows, include_failures)?;
        let in_groups = self.needs().contains(&Need::Groups);
        let paths = batch.counted().filter(|path| !(in_groups && path.only_finished)).collect();
        let mut found = Advantages::empty(&batch);
        self.formula.estimate(&ComparedTrajectories { batch: &batch, paths }, &mut found)?;
        found.share(rows);
        Ok(found)
    }
}
