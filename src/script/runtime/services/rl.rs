//! Calls of `r1.rl`: estimators and losses over plain numbers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::request::calls;
use crate::config::LossGraph;
use crate::mdp::StepRow;

calls! {
    /// Estimators and losses. Options are those of the estimator or loss with this name.
    pub enum RlCall {
        /// Advantages of steps by an estimator.
        Advantages { name: String, rows: Vec<StepRow>, options: Json } -> AdvantagesReport;
        /// A loss of steps, and its gradient.
        Loss { loss: LossFunction, rows: Vec<StepRow>, options: Json } -> LossReport;
        /// The critic's loss over lists with one entry per position.
        ValueLoss {
            values: Vec<f64>,
            values_old: Vec<f64>,
            returns: Vec<f64>,
            options: Json,
        } -> ValueLossReport;
        /// Entropies, nats, of the distributions that lists of logits give.
        Entropy { logits: Vec<Vec<f64>>, temperature: f64 } -> Vec<f64>;
    }
}

/// A loss by name, or a function of the script.
#[derive(Clone, Debug, Deserialize)]
pub enum LossFunction {
    Named(String),
    Custom(LossGraph),
}

/// Advantages, shaped like the rows.
#[derive(Clone, Debug, Serialize)]
pub struct AdvantagesReport {
    pub advantages: Vec<Vec<f64>>,
    /// Rows that are trained on.
    pub counted: Vec<bool>,
    #[serde(flatten)]
    pub critic: Option<CriticTargets>,
}

/// The values that the critic of an estimator learns to predict.
#[derive(Clone, Debug, Serialize)]
pub struct CriticTargets {
    pub returns: Vec<Vec<f64>>,
    /// The places where `returns` are targets.
    pub targets: Vec<Vec<bool>>,
}

/// A loss, its gradient with respect to `logp`, shaped like the rows, and its metrics.
#[derive(Clone, Debug, Serialize)]
pub struct LossReport {
    pub loss: f64,
    pub gradient: Vec<Vec<f64>>,
    pub metrics: BTreeMap<String, f64>,
}

/// The critic's loss, its gradient with respect to `values`, and the share of clipped entries.
#[derive(Clone, Debug, Serialize)]
pub struct ValueLossReport {
    pub loss: f64,
    pub gradient: Vec<f64>,
    pub clip_frac: f64,
}
