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
use crate::rl::options::{names, refuse_rest, table, take, unknown};
use crate::rl::rows::{Batch, StepRow};

/// Every estimator by its name. An estimator is a type with its options, in a file of this folder,
/// and a line here.
const ESTIMATORS: [Entry; 18] = [
    entry::<Gae>("gae"),
    entry::<GaeToken>("gae_token"),
    entry::<GaeBilevel>("gae_bilevel"),
    entry::<Grpo>("grpo"),
    entry::<Rloo>("rloo"),
    entry::<ReinforcePp>("reinforce_pp"),
    entry::<ReinforcePpBaseline>("reinforce_pp_baseline"),
    entry::<Remax>("remax"),
    entry::<Gigpo>("gigpo"),
    entry::<Rapo>("rapo"),
    entry::<Opo>("opo"),
    entry::<Gpg>("gpg"),
    entry::<MaxRl>("max_rl"),
    entry::<GrpoPassk>("grpo_passk"),
    entry::<Tree>("tree"),
    entry::<Gdpo>("gdpo"),
    entry::<OptimalTokenBaseline>("optimal_token_baseline"),
    entry::<TirOptimalTokenBaseline>("tir_optimal_token_baseline"),
];

/// Reads an estimator from its name and options.
type Read = fn(&str, Map<String, Value>) -> Result<Arc<dyn AdvantageEstimator>>;

/// A name and how its options are read.
struct Entry {
    name: &'static str,
    read: Read,
}

const fn entry<T>(name: &'static str) -> Entry
where
    T: AdvantageEstimator + Default + Serialize + DeserializeOwned + 'static,
{
    Entry { name, read: read::<T> }
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

    /// What the host must provide.
    pub fn needs(&self) -> &'static [Need] {
        self.formula.needs()
    }

    /// What one of its advantages belongs to.
    pub fn level(&self) -> Level {
        self.formula.level()
    }

    /// Advantages of `rows`, the same in all rows of a shared step ([`Advantages::share`]). Failed
    /// trajectories are left out unless `include_failures`. Estimators that compare within a group
    /// give 0 to a trajectory whose group has no other member that did not fail, and leave it out
    /// of the statistics of the batch. In a group of one without failures the formula of the
    /// estimator holds.
    ///
    /// # Errors
    /// Those of [`Batch::new`]; [`Kind::Usage`](crate::error::Kind::Usage) names the row that lacks
    /// something the estimator needs.
    pub fn estimate(&self, rows: &[StepRow], include_failures: bool) -> Result<Advantages> {
        let batch = Batch::new(rows, include_failures)?;
        let in_groups = self.needs().contains(&Need::Groups);
        let paths = batch.counted().filter(|path| !(in_groups && path.lone_survivor)).collect();
        let mut found = Advantages::empty(&batch);
        self.formula.estimate(&ComparedTrajectories { batch: &batch, paths }, &mut found)?;
        found.share(rows);
        Ok(found)
    }
}
