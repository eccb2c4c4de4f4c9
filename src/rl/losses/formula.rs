//! The formula of a loss: PPO's, or the graph of a Lua function.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::lua::LuaLoss;
use super::ratios::Clip;
use super::terms::Terms;
use crate::algorithms::{AlgorithmFile, LossGraph};
use crate::error::Result;
use crate::rl::options::{fields, take_from};

/// The formula of a loss with its options.
#[derive(Clone, Debug)]
pub enum Formula {
    Ppo(Clip),
    Lua(LuaLoss),
}

impl Formula {
    /// The recipe's own function.
    pub fn of_graph(graph: Arc<LossGraph>) -> Self {
        Self::Lua(LuaLoss { file: None, options: Map::new(), graph })
    }

    pub fn options(&self) -> Map<String, Value> {
        match self {
            Self::Ppo(clip) => fields(clip),
            Self::Lua(lua) => lua.options.clone(),
        }
    }

    /// The loss with the options that a table gives, which are taken out of it, and the options of
    /// every loss.
    ///
    /// # Errors
    /// [`Kind::Usage`](crate::error::Kind::Usage) for a value of the wrong type or out of its
    /// range.
    pub fn read(&self, loss: &str, rest: &mut Map<String, Value>, terms: &Terms) -> Result<Self> {
        match self {
            Self::Ppo(clip) => {
                let clip = take_from(loss, rest, clip)?;
                clip.check(loss)?;
                Ok(Self::Ppo(clip))
            }
            Self::Lua(lua) => Ok(Self::Lua(lua.read(loss, rest, terms)?)),
        }
    }

    /// The graph of a loss in Lua.
    pub fn graph(&self) -> Option<&Arc<LossGraph>> {
        if let Self::Lua(lua) = self { Some(&lua.graph) } else { None }
    }

    /// The file that declares it.
    pub fn file(&self) -> Option<&'static AlgorithmFile> {
        if let Self::Lua(lua) = self { lua.file } else { None }
    }

    /// Whether its ratio is one number for a sequence (`ratio_over`) instead of one for each token.
    /// Options that a recipe's function does not read are refused when it is traced.
    pub fn compares_sequences(&self) -> bool {
        let reads = |file: &AlgorithmFile| file.options.iter().any(|option| option.name == "ratio_over");
        self.graph().is_some() && self.file().is_none_or(reads)
    }

    /// Whether all tokens of a sequence must have the same advantage.
    pub fn one_advantage_per_sequence(&self) -> bool {
        self.file().is_some_and(|file| file.one_advantage_per_sequence)
    }
}
