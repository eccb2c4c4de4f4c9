//! `r1.rl`: estimators and losses on plain data.

use crate::error::Result;
use crate::rl::plain;
use crate::script::services::rl::{
    Advantages, AdvantagesReport, CriticTargets, Entropy, Loss, LossFunction, LossReport, RlCall, ValueLoss,
    ValueLossReport,
};

pub(super) fn answer(call: RlCall) {
    match call {
        RlCall::Advantages(request, reply) => reply.send(advantages(&request)),
        RlCall::Loss(request, reply) => reply.send(loss(&request)),
        RlCall::ValueLoss(request, reply) => reply.send(value_loss(&request)),
        RlCall::Entropy(Entropy { logits, temperature }, reply) => reply.send(plain::entropy(&logits, temperature)),
    }
}

fn advantages(Advantages { name, rows, options }: &Advantages) -> Result<AdvantagesReport> {
    let found = plain::advantages(name, rows, options)?;
    let critic = found.targets.iter().flatten().any(|is_target| *is_target);
    let critic = critic.then_some(CriticTargets { returns: found.returns, targets: found.targets });
    Ok(AdvantagesReport { advantages: found.advantages, counted: found.counted, critic })
}

fn loss(Loss { loss, rows, options }: &Loss) -> Result<LossReport> {
    let plain::PlainLoss { loss, gradient, metrics } = match loss {
        LossFunction::Named(name) => plain::loss(name, rows, options)?,
        LossFunction::Custom(graph) => plain::custom_loss(graph, rows, options)?,
    };
    Ok(LossReport { loss, gradient, metrics })
}

fn value_loss(ValueLoss { values, values_old, returns, options }: &ValueLoss) -> Result<ValueLossReport> {
    let plain::ValueReport { loss, gradient, clip_frac } = plain::value_loss(values, values_old, returns, options)?;
    Ok(ValueLossReport { loss, gradient, clip_frac })
}
