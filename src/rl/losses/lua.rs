//! A loss in Lua: its options, and the graph of its function.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::terms::{TERMS, Terms};
use crate::algorithms::{AlgorithmFile, LossGraph};
use crate::error::Result;
use crate::rl::options::names;

#[derive(Clone, Debug)]
pub struct LuaLoss {
    /// The file that declares it; `None` for the function of a recipe.
    pub(in crate::rl) file: Option<&'static AlgorithmFile>,
    pub(super) options: Map<String, Value>,
    pub(in crate::rl) graph: Arc<LossGraph>,
}

impl LuaLoss {
    /// Its options have the defaults of `file`; [`LuaLoss::read`] traces it.
    pub(super) fn new(file: &'static AlgorithmFile) -> Self {
        let (_, options) = declared(file);
        Self { file: Some(file), options, graph: Arc::default() }
    }

    pub(super) fn read(&self, loss: &str, rest: &mut Map<String, Value>, terms: &Terms) -> Result<Self> {
        let Some(file) = self.file else { return Ok(self.clone()) };
        for (name, value) in &self.options {
            rest.entry(name.clone()).or_insert_with(|| value.clone());
        }
        let mut all = file.take_options(loss, rest)?;
        let mut options = all.clone();
        options.retain(|name, _| self.options.contains_key(name));
        all.insert("ratio_over".to_owned(), serde_json::to_value(terms.ratio_over).unwrap_or_default());
        Ok(Self { file: self.file, options, graph: Arc::new(file.loss_graph(&all)?) })
    }
}

/// The defaults of a file: the options that every loss has, and the options that the file declares.
pub(super) fn declared(file: &AlgorithmFile) -> (Map<String, Value>, Map<String, Value>) {
    let terms = names(&TERMS);
    let defaults = file.options.iter().map(|option| (option.name.clone(), option.default.clone()));
    defaults.partition(|(name, _)| terms.contains(name))
}
