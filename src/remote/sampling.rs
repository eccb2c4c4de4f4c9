//! Sampling parameters of a request to a server.

use serde_json::{Map, Value};

use crate::mdp::Sampling;

/// Sampling parameters; the server has defaults for those that are `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerSampling {
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<usize>,
    pub min_p: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub max_tokens: Option<usize>,
    pub seed: Option<u64>,
    pub stop: Vec<String>,
    /// Variables of the chat template, which some OpenAI-compatible servers accept.
    pub template_kwargs: Map<String, Value>,
}

impl ServerSampling {
    /// The parameters of a recipe. Those that are off are left out. There is no seed: the samples
    /// of a task would be equal on servers that use it.
    pub fn of(sampling: &Sampling, template_kwargs: &Map<String, Value>) -> Self {
        Self {
            temperature: Some(sampling.temperature),
            top_p: Some(sampling.top_p).filter(|&p| p < 1.0),
            top_k: Some(sampling.top_k).filter(|&k| k > 0),
            min_p: Some(sampling.min_p).filter(|&p| p > 0.0),
            repetition_penalty: sampling.penalises().then_some(sampling.repetition_penalty),
            max_tokens: Some(sampling.max_new_tokens),
            seed: None,
            stop: sampling.stop.clone(),
            template_kwargs: template_kwargs.clone(),
        }
    }
}
