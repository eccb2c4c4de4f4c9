//! Reward models: loading, and scoring of conversations in batches.

use std::cell::RefCell;
use std::time::Duration;

use tokio::sync::oneshot;

use super::open_model::check_vocabulary;
use crate::config::DeviceChoice;
use crate::error::{Error, Kind, Result};
use crate::hub::Fetching;
use crate::load;
use crate::model::RewardModel;
use crate::script::named_models::{ModelInput, RewardScores};
use crate::telemetry::Reporter;
use crate::text::{AUTO, FormatChoice, Renderer, Style};

/// Maximum number of tokens in one forward pass.
const MAX_TOKENS: usize = 16_384;

/// Time that a call waits for others: functions of `r1.join` and the trajectories of a group call
/// in quick succession.
const BATCH_WINDOW: Duration = Duration::from_millis(1);

/// Where the result of a text is sent.
type ScoresReply = oneshot::Sender<Result<RewardScores>>;

pub(super) struct OpenRewardModel {
    model: RewardModel,
    renderer: Renderer,
    /// Texts that the next batch scores.
    waiting: RefCell<Vec<(Vec<u32>, ScoresReply)>>,
}

impl OpenRewardModel {
    /// Opens a model by directory or Hub id.
    pub(super) fn open(name: &str, device: DeviceChoice, reporter: &Reporter) -> Result<Self> {
        let (model, dir) = load::load_reward_model(name, device, Fetching { reporter, interrupt: None })?;
        let renderer = Renderer::load_styled(&dir, &Style::of_format(FormatChoice::named(AUTO)?))?;
        Ok(Self { model, renderer, waiting: RefCell::default() })
    }

    /// Scores a conversation or a text. Concurrent calls are batched; the first of them computes.
    pub(super) async fn reward(&self, prompt: ModelInput) -> Result<RewardScores> {
        let (reply, scored) = oneshot::channel();
        let ids = self.ids(prompt)?;
        let is_first = self.waiting.borrow().is_empty();
        self.waiting.borrow_mut().push((ids, reply));
        if is_first {
            tokio::time::sleep(BATCH_WINDOW).await;
            self.score_waiting();
        }
        scored.await.map_err(|_| Error::new(Kind::Internal, "the reward model lost a text"))?
    }

    /// Scores the texts that wait, by as many forward passes as [`MAX_TOKENS`] needs.
    fn score_waiting(&self) {
        let (mut batch, mut tokens) = (Vec::new(), 0);
        for (ids, reply) in self.waiting.take() {
            if tokens + ids.len() > MAX_TOKENS && !batch.is_empty() {
                self.score(std::mem::take(&mut batch));
                tokens = 0;
            }
            tokens += ids.len();
            batch.push((ids, reply));
        }
        self.score(batch);
    }

    /// The ids of a conversation by the chat template, or of a text with the tokens that the
    /// tokenizer adds around it.
    fn ids(&self, prompt: ModelInput) -> Result<Vec<u32>> {
        let tokenizer = self.renderer.tokenizer();
        let ids = match prompt {
            ModelInput::Ids(ids) => ids,
            ModelInput::Text(text) => tokenizer.encode_with_special(&text)?,
            ModelInput::Messages(_) if self.renderer.template().is_default() => {
                let message = "the reward model has no chat template, so it can't read messages";
                return Err(Error::new(Kind::Script, message).hint("pass the whole text as `prompt`, without `text`"));
            }
            ModelInput::Messages(messages) => self.renderer.judged(&messages)?,
        };
        let (config, limit) = (&self.model.trunk().config, self.model.trunk().config.longest_context());
        if ids.len() > limit {
            let message = format!("the text has {} tokens, more than the reward model's context of {limit}", ids.len());
            return Err(Error::new(Kind::Env, message));
        }
        if ids.is_empty() {
            return Err(Error::new(Kind::Env, "the text has no tokens"));
        }
        check_vocabulary(&ids, config.vocab_size)?;
        Ok(ids)
    }

    /// Scores texts in one forward pass.
    fn score(&self, batch: Vec<(Vec<u32>, ScoresReply)>) {
        let rows: Vec<&[u32]> = batch.iter().map(|(ids, _)| ids.as_slice()).collect();
        let all = self.model.scores(&rows);
        for (index, (ids, reply)) in batch.into_iter().enumerate() {
            let scores = all.as_ref().map(|all| all[index].iter().copied().map(f64::from).collect::<Vec<_>>());
            // A caller that has stopped waits for no result.
            let _ = reply.send(match scores {
                Err(error) => Err(error.clone()),
                Ok(scores) if scores.iter().any(|score| score.is_nan()) => {
                    let nan = Error::new(Kind::Numeric, "the reward model returned NaN");
                    Err(nan.hint("are its weights damaged?"))
                }
                Ok(scores) => Ok(RewardScores { scores, tokens: ids.len() }),
            });
        }
    }
}
