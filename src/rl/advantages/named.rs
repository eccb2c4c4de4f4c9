//! Estimators by name: estimators of the host, and the files of `lua/algorithms` that have a
//! function `advantage`.

use serde_json::{Map, Value};

use super::gae::{Gae, GaeBilevel};
use super::grpo::Grpo;
use super::lua::LuaEstimator;
use super::result::Advantages;
use super::statistics::{Deviation, EPSILON};
use super::whiten::Whiten;
use crate::algorithms::{self, AlgorithmFile, AlgorithmNeed, Level};
use crate::error::Result;
use crate::rl::options::{fields, refuse_rest, table, take_from, unknown};
use crate::rl::reference::ReferenceRow;
use crate::rl::rows::{Batch, Path, StepRow};

/// An estimator of the host: a row of docs/reference/algorithms.md, and its formula with the
/// defaults.
struct HostEstimator {
    name: &'static str,
    /// Its paper, or the system that defines it.
    paper: &'static str,
    about: &'static str,
    formula: EstimatorFormula,
}

static HOST: [HostEstimator; 4] = [
    HostEstimator {
        name: "gae",
        paper: "arXiv:1506.02438",
        about: "GAE over steps (Agent-R1, arXiv:2511.14460)",
        formula: EstimatorFormula::Gae(Gae { gamma: 1.0, lambda: 1.0, bootstrap: true, whiten: Whiten::Std }),
    },
    HostEstimator {
        name: "gae_token",
        paper: "arXiv:1506.02438",
        about: "GAE over sampled tokens, as in verl",
        formula: EstimatorFormula::GaeToken(Gae { gamma: 1.0, lambda: 1.0, bootstrap: true, whiten: Whiten::Variance }),
    },
    HostEstimator {
        name: "gae_bilevel",
        paper: "arXiv:2504.20073",
        about: "GAE over steps, then over the tokens of each (RAGEN)",
        formula: EstimatorFormula::GaeBilevel(GaeBilevel {
            gamma_turn: 0.95,
            gamma: 1.0,
            lambda: 1.0,
            bootstrap: true,
            whiten: Whiten::Variance,
        }),
    },
    HostEstimator {
        name: "grpo",
        paper: "arXiv:2402.03300",
        about: "return minus the mean of the group, over its deviation",
        formula: EstimatorFormula::Grpo(Grpo { normalize: Deviation::Std, epsilon: EPSILON }),
    },
];

/// The formula of an estimator with its options.
#[derive(Clone, Debug)]
enum EstimatorFormula {
    /// Over steps.
    Gae(Gae),
    /// Over sampled tokens.
    GaeToken(Gae),
    GaeBilevel(GaeBilevel),
    Grpo(Grpo),
    Lua(LuaEstimator),
}

impl EstimatorFormula {
    /// With the options of a table; those that it does not have keep their values.
    fn read(&self, name: &str, options: &mut Map<String, Value>) -> Result<Self> {
        Ok(match self {
            Self::Gae(gae) => Self::Gae(take_from(name, options, gae)?),
            Self::GaeToken(gae) => Self::GaeToken(take_from(name, options, gae)?),
            Self::GaeBilevel(gae) => Self::GaeBilevel(take_from(name, options, gae)?),
            Self::Grpo(grpo) => Self::Grpo(take_from(name, options, grpo)?),
            Self::Lua(lua) => Self::Lua(lua.clone()),
        })
    }

    /// Refuses options outside of their range.
    fn check(&self, name: &str) -> Result<()> {
        match self {
            Self::Gae(gae) | Self::GaeToken(gae) => gae.check(name),
            Self::GaeBilevel(gae) => gae.check(name),
            Self::Grpo(grpo) => grpo.check(name),
            Self::Lua(_) => Ok(()),
        }
    }

    /// Its options with their values.
    fn options(&self) -> Map<String, Value> {
        match self {
            Self::Gae(gae) | Self::GaeToken(gae) => fields(gae),
            Self::GaeBilevel(gae) => fields(gae),
            Self::Grpo(grpo) => fields(grpo),
            Self::Lua(lua) => lua.options.clone(),
        }
    }

    fn needs(&self) -> &[AlgorithmNeed] {
        match self {
            Self::Gae(_) | Self::GaeToken(_) | Self::GaeBilevel(_) => &[AlgorithmNeed::Critic],
            Self::Grpo(_) => &[AlgorithmNeed::Groups],
            Self::Lua(lua) => &lua.function.needs,
        }
    }

    /// Writes the advantages of the compared trajectories, and a critic's targets, into `result`,
    /// which is 0 everywhere.
    fn estimate(&self, batch: &Batch<'_>, paths: &[&Path], result: &mut Advantages) -> Result<()> {
        match self {
            Self::Gae(gae) => gae.by_step(batch, paths, result),
            Self::GaeToken(gae) => gae.by_token(batch, paths, result),
            Self::GaeBilevel(gae) => gae.estimate(batch, paths, result),
            Self::Grpo(grpo) => {
                grpo.estimate(batch, paths, result);
                Ok(())
            }
            Self::Lua(lua) => lua.estimate(batch, paths, result),
        }
    }
}

/// The files that are estimators.
fn files() -> impl Iterator<Item = &'static AlgorithmFile> {
    algorithms::all().iter().filter(|file| file.advantage)
}

/// Rewards to advantages: GRPO or GAE in Rust, or a file of `lua/algorithms`.
#[derive(Clone, Debug)]
pub struct Estimator {
    name: &'static str,
    formula: EstimatorFormula,
}

impl Estimator {
    pub fn names() -> Vec<&'static str> {
        HOST.iter().map(|host| host.name).chain(files().map(|file| file.name)).collect()
    }

    /// Every estimator, as docs/reference/algorithms.md lists it.
    pub fn reference() -> impl Iterator<Item = ReferenceRow> {
        let row = |name, paper, about, formula: &EstimatorFormula| {
            let needs = formula.needs().iter().filter_map(|need| need.words()).collect();
            ReferenceRow { name, paper, about, options: formula.options(), needs }
        };
        let of_file = move |file: &'static AlgorithmFile| {
            let formula = EstimatorFormula::Lua(LuaEstimator::new(file, &Value::Null).ok()?);
            Some(row(file.name, &file.paper, &file.about, &formula))
        };
        let of_host = move |host: &HostEstimator| row(host.name, host.paper, host.about, &host.formula);
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
            return Ok(Self { name: file.name, formula: EstimatorFormula::Lua(LuaEstimator::new(file, options)?) });
        }
        let mut options = table(name, options)?;
        let host = HOST.iter().find(|host| host.name == name);
        let host = host.ok_or_else(|| unknown("estimator", name, &Self::names()))?;
        let formula = host.formula.read(name, &mut options)?;
        refuse_rest(name, &options, &formula.options().keys().cloned().collect::<Vec<_>>())?;
        formula.check(name)?;
        Ok(Self { name: host.name, formula })
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
        match &self.formula {
            EstimatorFormula::Gae(_) => Level::Step,
            EstimatorFormula::GaeToken(_) | EstimatorFormula::GaeBilevel(_) => Level::Token,
            EstimatorFormula::Grpo(_) => Level::Trajectory,
            EstimatorFormula::Lua(lua) => lua.function.level,
        }
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
        self.formula.estimate(&batch, &batch.compared(self.needs()), &mut advantages)?;
        advantages.share(rows);
        Ok(advantages)
    }
}
