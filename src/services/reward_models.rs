//! Reward models: loading, and scoring of conversations in batches.

use std::collections::BTreeMap;

use crate::error::{Error, Kind, Result};
use crate::hub::Fetching;
use crate::load;
use crate::model::RewardModel;
use crate::script::services::model::{Prompt, Reward, RewardScores};
use crate::script::services::request::Reply;
use crate::telemetry::Reporter;
use crate::text::{AUTO, FormatChoice, Renderer, Style};

/// Maximum number of conversations that are scored together.
pub(super) const MAX_BATCH: usize = 256;
/// Maximum number of tokens in one forward pass.
const MAX_TOKENS: usize = 16_384;

/// The open reward models.
pub(super) struct RewardModels {
    /// Shows downloads.
    reporter: Reporter,
    open: Vec<Opened>,
    /// Indices of `open` by name: every virtual machine of a run opens the model by its name.
    names: BTreeMap<String, usize>,
}

struct Opened {
    model: RewardModel,
    renderer: Renderer,
}

impl RewardModels {
    pub(super) fn new(reporter: Reporter) -> Self {
        Self { reporter, open: Vec::new(), names: BTreeMap::new() }
    }

    /// Opens a model by directory or Hub id; the number of the model.
    pub(super) fn open(&mut self, name: &str) -> Result<u64> {
        if let Some(&index) = self.names.get(name) {
            return Ok(index as u64);
        }
        let (model, dir) = load::load_reward_model(name, Fetching { reporter: &self.reporter, interrupt: None })?;
        let renderer = Renderer::load_styled(&dir, &Style::of_format(FormatChoice::named(AUTO)?))?;
        self.open.push(Opened { model, renderer });
        self.names.insert(name.to_owned(), self.open.len() - 1);
        Ok(self.open.len() as u64 - 1)
    }

    /// Scores a batch; `calls` are all for the model of the first. A call that is not valid fails
    /// alone.
    pub(super) fn answer(&self, calls: Vec<(Reward, Reply<RewardScores>)>) {
        let model = calls.first().and_then(|(first, _)| self.open.get(usize::try_from(first.model).ok()?));
        let Some(opened) = model else {
            for (_, reply) in calls {
                reply.send(Err(Error::new(Kind::Internal, "the reward model is not open")));
            }
            return;
        };
        let mut batch: Vec<(Vec<u32>, Reply<RewardScores>)> = Vec::new();
        let mut tokens = 0;
        for (call, reply) in calls {
            match opened.ids(call.prompt) {
                Ok(ids) => {
                    if tokens + ids.len() > MAX_TOKENS && !batch.is_empty() {
                        opened.score(std::mem::take(&mut batch));
                        tokens = 0;
                    }
                    tokens += ids.len();
                    batch.push((ids, reply));
                }
                Err(error) => reply.send(Err(error)),
            }
        }
        opened.score(batch);
    }
}

impl Opened {
    /// The ids of a conversation by the chat template, or of a text with the tokens that the
    /// tokenizer adds around it.
    fn ids(&self, prompt: Prompt) -> Result<Vec<u32>> {
        let tokenizer = self.renderer.tokenizer();
        let ids = match prompt {
            Prompt::Ids(ids) => ids,
            Prompt::Text(text) => tokenizer.encode_with_special(&text)?,
            Prompt::Messages(_) if self.renderer.template().is_default() => {
                return Err(Error::new(
                    Kind::Script,
                    "the reward model has no chat template, so it can't read messages",
                )
                .hint("pass the whole text as `prompt`, without `text`"));
            }
            Prompt::Messages(messages) => self.renderer.judged(&messages)?,
        };
        let (config, most) = (&self.model.trunk().config, self.model.trunk().config.longest_context());
        if ids.len() > most {
            let message = format!("the text has {} tokens, more than the reward model's context of {most}", ids.len());
            return Err(Error::new(Kind::Env, message));
        }
        if ids.is_empty() {
            return Err(Error::new(Kind::Env, "the text has no tokens"));
        }
        if let Some(id) = ids.iter().find(|id| **id as usize >= config.vocab_size) {
            let message = format!("token id {id} is outside the vocabulary of {}", config.vocab_size);
            return Err(Error::new(Kind::Script, message));
        }
        Ok(ids)
    }

    /// Scores texts in one forward pass.
    fn score(&self, batch: Vec<(Vec<u32>, Reply<RewardScores>)>) {
        let rows: Vec<&[u32]> = batch.iter().map(|(ids, _)| ids.as_slice()).collect();
        let scores = self.model.scores(&rows);
        let lengths: Vec<usize> = rows.iter().map(|row| row.len()).collect();
        match scores {
            Ok(scores) => {
                for (((_, reply), scores), tokens) in batch.into_iter().zip(scores).zip(lengths) {
                    let scores: Vec<f64> = scores.into_iter().map(f64::from).collect();
                    reply.send(if scores.iter().any(|score| score.is_nan()) {
                        let nan = Error::new(Kind::Numeric, "the reward model returned NaN");
                        Err(nan.hint("are its weights damaged?"))
                    } else {
                        Ok(RewardScores { scores, tokens })
                    });
                }
            }
            Err(error) => batch.into_iter().for_each(|(_, reply)| reply.send(Err(error.clone()))),
        }
    }
}
