//! Every loss by its name.

use super::formula::Formula;
use super::lua::{LuaLoss, declared};
use super::ratios::Clip;
use super::terms::{TERMS, Terms};
use crate::algorithms::{self, AlgorithmFile};
use crate::error::Result;
use crate::rl::options::take_from;

/// A loss: the row of docs/reference/algorithms.md, its formula with the published options, and its
/// terms.
#[derive(Clone, Debug)]
pub struct Loss {
    pub name: &'static str,
    /// Its paper, or the system that defines it.
    pub paper: &'static str,
    pub about: &'static str,
    pub formula: Formula,
    pub terms: Terms,
}

const PPO: Loss = Loss {
    name: "ppo",
    paper: "arXiv:1707.06347",
    about: "the clipped ratio, with a dual clip (arXiv:1912.09729)",
    formula: Formula::Ppo(Clip { low: 0.2, high: 0.2, dual: Some(3.0) }),
    terms: TERMS,
};

/// The names of all losses.
pub fn names() -> Vec<&'static str> {
    let files = algorithms::all().iter().filter(|file| file.is_loss()).map(|file| file.name);
    std::iter::once(PPO.name).chain(files).collect()
}

pub fn all() -> impl Iterator<Item = Loss> {
    names().into_iter().filter_map(|name| find(name).ok().flatten())
}

/// The loss with this name.
///
/// # Errors
/// Errors of its file.
pub fn find(name: &str) -> Result<Option<Loss>> {
    if name == PPO.name {
        return Ok(Some(PPO));
    }
    algorithms::find(name).filter(|file| file.is_loss()).map_or(Ok(None), of_file)
}

fn of_file(file: &'static AlgorithmFile) -> Result<Option<Loss>> {
    let AlgorithmFile { name, paper, about, .. } = file;
    let (formula, terms) = match &file.loss {
        None => return Ok(None),
        Some(algorithms::FileLoss::Own) => {
            let (mut terms, _) = declared(file);
            (Formula::Lua(LuaLoss::new(file)), take_from(name, &mut terms, &TERMS)?)
        }
        Some(algorithms::FileLoss::Of((other, options))) => {
            let Some(other) = find(other)? else { return Ok(None) };
            let mut options = options.clone();
            let terms = take_from(name, &mut options, &other.terms)?;
            (other.formula.read(name, &mut options, &terms)?, terms)
        }
    };
    Ok(Some(Loss { name, paper, about, formula, terms }))
}
