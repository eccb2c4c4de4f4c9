//! Estimators by name: estimators of the host, and the files of `lua/algorithms` that have a
//! function `advantage`.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::estimator::AdvantageEstimator;
use super::gae::{Gae, GaeBilevel, GaeToken};
use super::grpo::Grpo;
use super::lua::LuaEstimator;
use super::result::Advantages;
use super::trajectories::ComparedTrajectories;
use crate::algorithms::{self, AlgorithmFile, AlgorithmNeed, Level};
use crate::error::Result;
use crate::rl::options::{fields, names, refuse_rest, table, take, unknown};
use crate::rl::reference::ReferenceRow;
use crate::rl::rows::{Batch, StepRow};

/// The estimators of the host: name, paper (or the system that defines it), and what it computes,
/// for docs/reference/algorithms.md.
const HOST: [EstimatorEntry; 4] = [
    entry::<Gae>("gae", "arXiv:1506.02438", "GAE over steps (Agent-R1, arXiv:2511.14460)"),
    entry::<GaeToken>("gae_token", "arXiv:1506.02438", "GAE over sampled tokens, as in verl"),
    entry::<GaeBilevel>("gae_bilevel", "arXiv:2504.20073", "GAE over steps, then over the tokens of each (RAGEN)"),
    entry::<Grpo>("grpo", "arXiv:2402.03300", "return minus the mean of the group, over its deviation"),
];

/// An estimator from its name and options.
type EstimatorReader = fn(&str, Map<String, Value>) -> Result<Arc<dyn AdvantageEstimator>>;

/// The row of an estimator of the host, and the reader of its options.
struct EstimatorEntry {
    name: &'static str,
    paper: &'static str,
    about: &'static str,
    read: EstimatorReader,
    /// Its options with their defaults.
    options: fn() -> Map<String, Value>,
}

const fn entry<T>(name: &'static str, paper: &'static str, about: &'static str) -> EstimatorEntry
where
    T: AdvantageEstimator + Default + Serialize + DeserializeOwned + 'static,
{
    EstimatorEntry { name, paper, about, read: read::<T>, options: || fields(&T::default()) }
}

fn read<T>(name: &str, mut options: Map<String, Value>) -> Result<Arc<dyn AdvantageEstimator>>
where
    T: AdvantageEstimator + Default + Serialize + DeserializeOwned + 'static,
{
    let estimator = take::<T>(name, &mut options)?;
    refuse_rest(name, &options, &names(&T::default()))?;
    estimator.check(name)?;
    Ok(Arc::new(estimator))
}

/// The files that are estimators.
fn files() -> impl Iterator<Item = &'static AlgorithmFile> {
    algorithms::all().iter().filter(|file| file.advantage)
}

/// Rewards to advantages: GRPO or GAE in Rust, or a file of `lua/algorithms`.
#[derive(Clone, Debug)]
pub struct Estimator {
    name: &'static str,
    formula: Arc<dyn AdvantageEstimator>,
}

impl Estimator {
    pub fn names() -> Vec<&'static str> {
        HOST.iter().map(|entry| entry.name).chain(files().map(|file| file.name)).collect()
    }

    /// Every estimator, as docs/reference/algorithms.md lists it.
    pub fn reference() -> impl Iterator<Item = ReferenceRow> {
        let needs =
            |estimator: &dyn AdvantageEstimator| estimator.needs().iter().filter_map(|need| need.words()).collect();
        let of_host = move |entry: &EstimatorEntry| ReferenceRow {
            name: entry.name,
            paper: entry.paper,
            about: entry.about,
            options: (entry.options)(),
            needs: (entry.read)(entry.name, Map::new()).map(|estimator| needs(&*estimator)).unwrap_or_default(),
        };
        let of_file = move |file: &'static AlgorithmFile| {
            let estimator = LuaEstimator::new(file, &Value::Null).ok()?;
            let (options, needs) = (estimator.options(), needs(&estimator));
            Some(ReferenceRow { name: file.name, paper: &file.paper, about: &file.about, options, needs })
        };
        HOST.iter().map(of_host).chain(files().filter_map(of_file))
    }

    /// An estimator by name with the options of a table. Options that the table does not have keep
    /// their defaults.
    ///
    /// # Errors
    /// [`Kind::Usage`](crate::error::Kind::Usage) for a name or an option that does not exist (with
    /// the nearest names), a value of the wrong type or out of its range.
    pub fn new(name: &str, options: &Value) -> Result<Self> {
        if let Some(file) = files().find(|file| file.name == name) {
            return Ok(Self { name: file.name, formula: Arc::new(LuaEstimator::new(file, options)?) });
        }
        let options = table(name, options)?;
        let Some(entry) = HOST.iter().find(|entry| entry.name == name) else {
            return Err(unknown("estimator", name, &Self::names()));
        };
        Ok(Self { name: entry.name, formula: (entry.read)(name, options)? })
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Inputs that the host must provide.
    pub fn needs(&self) -> &[AlgorithmNeed] {
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
    /// Errors of [`Batch::new`]; [`Kind::Usage`](crate::error::Kind::Usage) names the row that
    /// lacks an input of the estimator.
    pub fn estimate(&self, rows: &[StepRow], include_failures: bool) -> Result<Advantages> {
        let batch = Batch::new(rows, include_failures)?;
        let mut advantages = Advantages::empty(&batch);
        self.formula.estimate(&ComparedTrajectories::of(&batch, self.needs()), &mut advantages)?;
        advantages.share(rows);
        Ok(advantages)
    }
}
