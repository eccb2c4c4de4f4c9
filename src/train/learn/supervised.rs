//! One step of supervised training: forward, loss, backward, one AdamW step.

use super::score::{logprobs_at_once, packed};
use crate::adamw::AdamW;
use crate::config::Sft;
use crate::error::{Error, Kind, Result};
use crate::model::Model;
use crate::native;
use crate::rl::pack::{MicroBatch, Row, micro_batches};
use crate::train::gradient_sum::GradientSum;
use crate::train::shards::Shards;

/// The result of a supervised step.
pub(crate) struct SupervisedStats {
    /// Nats per trained token.
    pub(crate) loss: f64,
    pub(crate) grad_norm: f64,
    /// Number of computed tokens, and of trained ones among them.
    pub(crate) tokens: usize,
    pub(crate) trained: usize,
    /// Conversations, and the tokens of the longest one.
    pub(crate) rows: usize,
    pub(crate) longest: usize,
    /// Share of the capacity of the micro-batches (`trainer.tokens_per_batch` each) that is used.
    pub(crate) fill: f64,
}

/// Forward, loss, backward, one AdamW step. `release` is called before the weights change: a
/// checkpoint may still read them while the gradients are computed.
pub(crate) fn update(
    model: &Model,
    optimizer: &mut AdamW,
    rows: &[Row],
    (sft, shards): (&Sft, &Shards),
    lr: f64,
    release: impl FnOnce() -> Result<()>,
) -> Result<SupervisedStats> {
    let trained: usize = rows.iter().map(Row::sampled).sum();
    if trained == 0 {
        return Err(
            Error::new(Kind::Data, "no token of the batch is an assistant's").hint("check the roles of `messages`")
        );
    }
    optimizer.zero_grad();
    let (mut losses, mut local) = (Vec::new(), Vec::new());
    let chunk = logprobs_at_once(model.config.vocab_size, model.device());
    let all = micro_batches(rows, sft.tokens_at_once(), shards.count());
    let mut sum = GradientSum::new(shards, optimizer, all.len(), Some(model))?;
    while let Some(number) = sum.next(optimizer)? {
        let batch = MicroBatch::new(rows, &all[number], model.config.vocab_size, model.device())?;
        let packed = packed(&batch);
        local.push((number, packed.ids.numel()));
        let pass = sum.learn(model, &packed)?;
        let hidden = pass.hidden().f_index_select(0, &batch.predict)?;
        let (logp, _) = model.logprobs(&hidden, &batch.targets, 1.0, chunk)?;
        // Divided by the tokens of the whole batch, so that micro-batches add up to its mean.
        let loss = logp.f_sum(tch::Kind::Float)?.f_div_scalar(-(trained as f64))?;
        losses.push(loss.f_detach()?.f_to_kind(tch::Kind::Double)?);
        sum.backward(pass, &loss, optimizer)?;
    }
    sum.finish(optimizer)?;
    // The only wait for the device before the wait for the gradient norm.
    let losses = native::read_numbers(&losses)?;
    let local = local.into_iter().zip(losses).map(|((number, tokens), loss)| (number, (tokens, loss)));
    let all: Vec<(usize, f64)> = shards.gather(local.collect())?;
    if let Some((_, value)) = all.iter().find(|(_, loss)| !loss.is_finite()) {
        return Err(Error::new(Kind::Numeric, format!("the loss is {value}"))
            .hint("the weights have not been changed; lower trainer.lr"));
    }
    release()?;
    let grad_norm = shards.step(optimizer, lr, sft.max_grad_norm)?;
    let loss = all.iter().map(|(_, loss)| loss).sum();
    let tokens = all.iter().map(|(tokens, _)| tokens).sum();
    let room: usize = all.iter().map(|(tokens, _)| sft.tokens_at_once().max(*tokens)).sum();
    let longest = rows.iter().map(Row::len).max().unwrap_or(0);
    let fill = tokens as f64 / room as f64;
    Ok(SupervisedStats { loss, grad_norm, tokens, trained, rows: rows.len(), longest, fill })
}
