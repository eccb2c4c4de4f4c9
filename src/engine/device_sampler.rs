//! Sampling within a decode step: settings and random numbers of every slot are on the device.
//!
//! Tokens are those of [`super::tensor_sampler`]. The random number of a token is the one of its
//! place in the response, which the device computes from its position: the host writes the numbers
//! of the next [`BLOCK`] places in advance, so that a step needs no other input of the host.
//!
//! Requests with penalties, biases, cut-off tokens or recorded sets are sampled a step at a time
//! (`advance`).

use tch::{Device, Kind, Tensor};

use super::running::Running;
use super::tensor_sampler::{Greedy, softmax_of, whole};
use crate::error::Result;
use crate::mdp::Sampling;
use crate::model::{Model, select, upload};

/// Random numbers of a slot that are on the device.
pub(super) const BLOCK: usize = 32;

/// Columns before the random numbers: position of the first token's logits, factor of the logits,
/// 1 for greedy sampling.
const SETTINGS: usize = 3;

/// Settings and random numbers by slot.
#[derive(Debug)]
pub(super) struct DeviceSampler {
    /// [slots + 1, SETTINGS + BLOCK] f64; the last row is of padding sequences.
    table: Tensor,
    /// Whether the softmax is that of the CPU kernels, which reads the logits on the host.
    by_kernels: bool,
    device: Device,
}

/// The kinds of sampling in a step, which decide its operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kinds {
    pub(super) greedy: bool,
    pub(super) sampled: bool,
}

impl Kinds {
    pub(super) fn add(&mut self, sampling: &Sampling) {
        let greedy = sampling.temperature == 0.0;
        self.greedy |= greedy;
        self.sampled |= !greedy;
    }

    /// A number for the operations of these kinds.
    pub(super) fn key(self) -> u64 {
        u64::from(self.greedy) + 2 * u64::from(self.sampled)
    }
}

/// Whether the device samples with these settings.
pub(super) fn supports(sampling: &Sampling) -> bool {
    !sampling.penalises() && sampling.logit_bias.is_empty() && !sampling.cuts() && sampling.top_logprobs == 0
}

impl DeviceSampler {
    pub(super) fn new(model: &Model, slots: usize) -> Result<Self> {
        let device = model.device();
        let table = Tensor::f_zeros([slots as i64 + 1, (SETTINGS + BLOCK) as i64], (Kind::Double, Device::Cpu))?;
        let by_kernels = device == Device::Cpu;
        #[cfg(test)]
        let by_kernels = by_kernels && !crate::native::meta::is_on();
        Ok(Self { table: upload(&table, device)?, by_kernels, device })
    }

    /// Writes settings and the random numbers from the next token on, for requests in their slots.
    pub(super) fn set(&mut self, requests: &[&Running]) -> Result<()> {
        let slots: Vec<i64> = requests.iter().map(|running| running.slot as i64).collect();
        let mut numbers: Vec<f64> = Vec::with_capacity(requests.len() * (SETTINGS + BLOCK));
        for running in requests {
            let Sampling { temperature, .. } = *running.request.sampling;
            let greedy = temperature == 0.0;
            let first = running.request.prompt_ids.len().saturating_sub(1);
            // The factor is rounded to f32, as in the other samplers.
            let scale = if greedy { 1.0 } else { f64::from((1.0 / temperature) as f32) };
            numbers.extend([first as f64, scale, f64::from(u8::from(greedy))]);
            let token = running.sampled();
            numbers.extend(std::iter::repeat_n(0.0, token % BLOCK));
            numbers.extend(running.uniforms(token).take(BLOCK - token % BLOCK));
        }
        let rows = Tensor::f_from_slice(&numbers)?.f_view([slots.len() as i64, (SETTINGS + BLOCK) as i64])?;
        let slots = upload(&Tensor::f_from_slice(&slots)?, self.device)?;
        let _ = self.table.f_index_copy_(0, &slots, &upload(&rows, self.device)?)?;
        Ok(())
    }

    /// Samples from logits `[N, V]` of slots `[N]` at positions `[N]`, which are the tokens before:
    /// ids `[N, 1]` i64, and ids and log-probabilities `[N, 3]` f64, which
    /// the host reads a step later.
    pub(super) fn draw(
        &self,
        logits: &Tensor,
        slots: &Tensor,
        positions: &Tensor,
        kinds: Kinds,
    ) -> Result<Vec<Tensor>> {
        let rows = select(&self.table, 0, slots)?;
        let column = |at: usize| rows.f_narrow(1, at as i64, 1);
        let scales = column(1)?.f_to_kind(Kind::Float)?;
        let p = softmax_of(logits, &scales, self.by_kernels)?;
        let uniform = if kinds.sampled {
            let token = positions.f_unsqueeze(1)?.f_sub(&column(0)?)?.f_remainder(BLOCK as i64)?;
            Some(rows.f_gather(1, &token.f_add_scalar(SETTINGS as i64)?.f_to_kind(Kind::Int64)?, false)?)
        } else {
            None
        };
        let greedy = match kinds {
            Kinds { sampled: false, .. } => Greedy::All,
            Kinds { greedy: false, .. } => Greedy::None,
            Kinds { .. } => Greedy::Some(column(2)?.f_gt(0.5)?),
        };
        let (id, numbers, _) = whole(&p, uniform.as_ref(), &greedy)?;
        Ok(vec![id, numbers])
    }
}
