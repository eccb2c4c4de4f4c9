//! Sampling within a decode step: settings and random numbers of every slot are on the device.
//!
//! It samples the same tokens as [`super::tensor_sampler`]. The random number of a token depends on
//! its place in the response, which the device computes from its position: the host writes the
//! numbers of the next [`BLOCK`] places in advance, so that a step needs no other input of the
//! host. The ids of a sequence, for the repetition penalty, are a row of flags that a step extends.

use tch::{Device, Kind, Tensor};

use super::running::Running;
use super::sampler::Drawn;
use super::tensor_sampler::{
    Bounds, Greedy, Ranked, cut, cuts, limit, list, penalise, scale, softmax_of, top_p, whole,
};
use crate::model::{upload, zeros};
use r1_base::error::Result;
use r1_base::mdp::Sampling;

/// Random numbers of a slot that are on the device.
pub(super) const BLOCK: usize = 32;

/// Columns before the random numbers.
const SETTINGS: usize = 8;
/// Position of the first token's logits.
const FIRST: i64 = 0;
/// Factor of the logits.
const SCALE: i64 = 1;
/// 1 for greedy sampling.
const GREEDY: i64 = 2;
/// 1 where tokens are cut off, by the three columns after it.
const CUT: i64 = 3;
const LIMIT: i64 = 4;
const TOP_P: i64 = 5;
const MIN_P: i64 = 6;
/// Divisor of the repetition penalty.
const PENALTY: i64 = 7;

/// The most biases of a request that the device adds.
#[cfg(not(test))]
const BIASES: usize = 512;
#[cfg(test)]
const BIASES: usize = 8;

/// The ids of kept tokens that a step copies to the host for every row. If a row has more, the host
/// reads the others from the device.
#[cfg(not(test))]
const IDS: i64 = 256;
#[cfg(test)]
const IDS: i64 = 4;

/// Settings and random numbers by slot.
#[derive(Debug)]
pub(super) struct DeviceSampler {
    /// [slots + 1, SETTINGS + BLOCK] f64; the last row is of padding sequences.
    table: Tensor,
    /// [slots + 1, V] bool: the ids of each sequence, once a request has a repetition penalty.
    seen: Option<Tensor>,
    /// [slots + 1, BIASES] i64 and f32: ids and their biases, 0 without, once a request has some.
    biases: Option<[Tensor; 2]>,
    /// Whether the CPU kernels compute the softmax, which reads the logits on the host.
    by_kernels: bool,
    device: Device,
    /// `[V]` i64: the ids of the vocabulary.
    vocabulary: Tensor,
}

/// The kinds of sampling in a step, which decide its operations.
#[expect(clippy::struct_excessive_bools, reason = "each is a part of the operations")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kinds {
    greedy: bool,
    /// Over the whole vocabulary.
    sampled: bool,
    penalised: bool,
    biased: bool,
    /// The most tokens of a row within its top-k, rounded up; 0 if no row cuts tokens off.
    cut: i64,
    /// The most recorded log-probabilities of a row, rounded up.
    top: i64,
}

impl Kinds {
    pub(super) fn add(&mut self, sampling: &Sampling, vocab: i64) {
        // Few numbers, so that few graphs are recorded.
        let rounded = |count: i64| (count as u64).next_power_of_two().min(vocab as u64) as i64;
        if sampling.temperature == 0.0 {
            self.greedy = true;
        } else if cuts(sampling, vocab) {
            self.cut = self.cut.max(rounded(limit(sampling, vocab)));
        } else {
            self.sampled = true;
        }
        if sampling.top_logprobs > 0 {
            self.top = self.top.max(rounded(sampling.top_logprobs as i64));
        }
        self.penalised |= sampling.penalises();
        self.biased |= !sampling.logit_bias.is_empty();
    }

    /// A number for the operations of these kinds.
    pub(super) fn key(self) -> u64 {
        let flags = [self.greedy, self.sampled, self.penalised, self.biased];
        let flags = flags.into_iter().rev().fold(0, |all, flag| 2 * all + u64::from(flag));
        flags + ((self.cut as u64) << 4) + ((self.top as u64) << 36)
    }

    /// Columns of ids after the three numbers of a draw.
    fn ids(self) -> i64 {
        self.cut.min(IDS).max(self.top)
    }
}

/// Whether the device samples with these settings.
pub(super) fn supports(sampling: &Sampling) -> bool {
    sampling.logit_bias.len() <= BIASES
}

impl DeviceSampler {
    pub(super) fn new(vocab: usize, device: Device, slots: usize) -> Result<Self> {
        let table = Tensor::f_zeros([slots as i64 + 1, (SETTINGS + BLOCK) as i64], (Kind::Double, Device::Cpu))?;
        let by_kernels = device == Device::Cpu;
        let by_kernels = by_kernels && !crate::native::meta::is_on();
        let vocabulary = Tensor::f_arange(vocab as i64, (Kind::Int64, Device::Cpu))?;
        let (table, vocabulary) = (upload(&table, device)?, upload(&vocabulary, device)?);
        Ok(Self { table, seen: None, biases: None, by_kernels, device, vocabulary })
    }

    /// Writes what stays as it is for a response, for requests that are new on the device.
    pub(super) fn join(&mut self, requests: &[&Running]) -> Result<()> {
        let slots: Vec<i64> = requests.iter().map(|running| running.slot as i64).collect();
        let slots = upload(&Tensor::f_from_slice(&slots)?, self.device)?;
        let rows = self.table.size()[0];
        if self.seen.is_none() && requests.iter().any(|running| running.request.sampling.penalises()) {
            self.seen = Some(zeros(&[rows, self.vocabulary.size()[0]], Kind::Bool, self.device)?);
        }
        if let Some(seen) = &self.seen {
            let (mut at, mut ids) = (Vec::new(), Vec::new());
            for running in requests {
                let penalised = running.penalised();
                at.extend(std::iter::repeat_n(running.slot as i64, penalised.len()));
                ids.extend(penalised.iter().map(|&id| i64::from(id)));
            }
            let mut seen = seen.shallow_clone();
            let _ = seen.f_index_fill_(0, &slots, 0)?;
            let at = upload(&Tensor::f_from_slice(&at)?, self.device)?;
            let ids = upload(&Tensor::f_from_slice(&ids)?, self.device)?;
            mark(&mut seen, &at, &ids)?;
        }
        let width = BIASES as i64;
        if self.biases.is_none() && requests.iter().any(|running| !running.request.sampling.logit_bias.is_empty()) {
            let empty = |kind| zeros(&[rows, width], kind, self.device);
            self.biases = Some([empty(Kind::Int64)?, empty(Kind::Float)?]);
        }
        if let Some([ids, values]) = &self.biases {
            let (mut own_ids, mut own_values): (Vec<i64>, Vec<f32>) = (Vec::new(), Vec::new());
            for (index, running) in requests.iter().enumerate() {
                let bias = &running.request.sampling.logit_bias;
                own_ids.extend(bias.keys().map(|&id| i64::from(id)));
                own_values.extend(bias.values().map(|&value| value as f32));
                own_ids.resize((index + 1) * BIASES, 0);
                own_values.resize((index + 1) * BIASES, 0.0);
            }
            let shape = [requests.len() as i64, width];
            let own_ids = upload(&Tensor::f_from_slice(&own_ids)?.f_view(shape)?, self.device)?;
            let own_values = upload(&Tensor::f_from_slice(&own_values)?.f_view(shape)?, self.device)?;
            let _ = ids.shallow_clone().f_index_copy_(0, &slots, &own_ids)?;
            let _ = values.shallow_clone().f_index_copy_(0, &slots, &own_values)?;
        }
        Ok(())
    }

    /// Writes settings and the random numbers from the next token on, for requests in their slots.
    pub(super) fn set(&mut self, requests: &[&Running]) -> Result<()> {
        let slots: Vec<i64> = requests.iter().map(|running| running.slot as i64).collect();
        let mut numbers: Vec<f64> = Vec::with_capacity(requests.len() * (SETTINGS + BLOCK));
        let vocab = self.vocabulary.size()[0];
        for running in requests {
            let sampling = &running.request.sampling;
            let flag = |on: bool| f64::from(u8::from(on));
            let first = running.request.prompt_ids.len().saturating_sub(1);
            let settings: [f64; SETTINGS] = [
                first as f64,
                // Rounded to f32, as in the other samplers.
                f64::from(scale(sampling)),
                flag(sampling.temperature == 0.0),
                flag(cuts(sampling, vocab)),
                limit(sampling, vocab) as f64,
                top_p(sampling),
                sampling.min_p,
                f64::from(sampling.repetition_penalty as f32),
            ];
            numbers.extend(settings);
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
    /// ids `[N, 1]` i64; numbers `[N, C]` f64 for [`drawn`], which the host reads; and where rows
    /// can keep more tokens than the numbers have, the ids of all, `[N, cut]` i64.
    pub(super) fn draw(
        &self,
        logits: &Tensor,
        slots: &Tensor,
        positions: &Tensor,
        kinds: Kinds,
    ) -> Result<(Option<Tensor>, Vec<Tensor>)> {
        let rows = self.table.f_index_select(0, slots)?;
        let column = |at: i64| rows.f_narrow(1, at, 1);
        let logits = self.shifted(logits, slots, &column(PENALTY)?, kinds)?;
        let p = softmax_of(&logits, &column(SCALE)?.f_to_kind(Kind::Float)?, self.by_kernels)?;
        let uniform = if kinds.sampled || kinds.cut > 0 {
            let token = positions.f_unsqueeze(1)?.f_sub(&column(FIRST)?)?.f_remainder(BLOCK as i64)?;
            Some(rows.f_gather(1, &token.f_add_scalar(SETTINGS as i64)?.f_to_kind(Kind::Int64)?, false)?)
        } else {
            None
        };
        let width = kinds.cut.max(kinds.top);
        let ranked = if width > 0 { Some(Ranked::new(&p, width, &self.vocabulary)?) } else { None };
        let of_whole = || {
            let greedy = match kinds {
                Kinds { sampled: false, .. } => Greedy::All,
                Kinds { greedy: false, .. } => Greedy::None,
                Kinds { .. } => Greedy::Some(column(GREEDY)?.f_gt(0.5)?),
            };
            whole(&p, uniform.as_ref(), &greedy)
        };
        let (id, mut numbers, mass) = match (&ranked, &uniform) {
            (Some(ranked), Some(uniform)) if kinds.cut > 0 => {
                let limits = column(LIMIT)?.f_to_kind(Kind::Int64)?;
                let bounds = Bounds { limits, top_p: column(TOP_P)?, min_p: column(MIN_P)? };
                let of_cut = cut(ranked, &bounds, uniform)?;
                if kinds.sampled || kinds.greedy {
                    let (of_whole, is_cut) = (of_whole()?, column(CUT)?.f_gt(0.5)?);
                    let choose = |cut: &Tensor, whole: &Tensor| cut.f_where_self(&is_cut, whole);
                    let (id, numbers) = (choose(&of_cut.0, &of_whole.0)?, choose(&of_cut.1, &of_whole.1)?);
                    (id, numbers, choose(&of_cut.2, &of_whole.2)?)
                } else {
                    of_cut
                }
            }
            _ => of_whole()?,
        };
        if let (Some(seen), true) = (&self.seen, kinds.penalised) {
            mark(&mut seen.shallow_clone(), slots, &id.f_squeeze_dim(1)?)?;
        }
        let Some(ranked) = ranked else { return Ok((Some(id), vec![numbers])) };
        numbers = Tensor::f_cat(&[numbers, ranked.ids.f_narrow(1, 0, kinds.ids())?.f_to_kind(Kind::Double)?], 1)?;
        if kinds.top > 0 {
            numbers = Tensor::f_cat(&[numbers, ranked.logprobs(kinds.top, &mass)?.f_to_kind(Kind::Double)?], 1)?;
        }
        let rest = (kinds.cut > kinds.ids()).then_some(ranked.ids);
        Ok((Some(id), std::iter::once(numbers).chain(rest).collect()))
    }

    /// The logits in f32 with repetition penalty and bias.
    fn shifted(&self, logits: &Tensor, slots: &Tensor, penalty: &Tensor, kinds: Kinds) -> Result<Tensor> {
        let mut logits = logits.f_to_kind(Kind::Float)?;
        if let (Some(seen), true) = (&self.seen, kinds.penalised) {
            let penalised = penalise(&logits, &penalty.f_to_kind(Kind::Float)?)?;
            logits = penalised.f_where_self(&seen.f_index_select(0, slots)?, &logits)?;
        }
        if let (Some([ids, values]), true) = (&self.biases, kinds.biased) {
            logits = logits.f_scatter_add(1, &ids.f_index_select(0, slots)?, &values.f_index_select(0, slots)?)?;
        }
        Ok(logits)
    }
}

/// Sets the flags of ids `[K]` i64 of slots `[K]` i64.
fn mark(seen: &mut Tensor, slots: &Tensor, ids: &Tensor) -> Result<()> {
    let on = Tensor::f_ones([], (Kind::Bool, seen.device()))?;
    let _ = seen.f_index_put_(&[Some(slots), Some(ids)], &on, false)?;
    Ok(())
}

/// The token of a row of the numbers of [`DeviceSampler::draw`], `None` for logits that are not
/// finite. `rest` are the row's ids of all tokens that can be kept, `[cut]` i32 on the device.
pub(super) fn drawn(
    numbers: &[f64],
    kinds: Kinds,
    rest: impl FnOnce() -> Option<Tensor>,
    sampling: &Sampling,
) -> Result<Option<Drawn>> {
    let (&[id, logprob, kept, ref columns @ ..], width) = (numbers, kinds.ids() as usize) else { return Ok(None) };
    if logprob.is_nan() {
        return Ok(None);
    }
    let (ids, logprobs) = columns.split_at(width.min(columns.len()));
    let kept = kept as usize;
    let mut support: Vec<u32> = ids.iter().take(kept).map(|&id| id as u32).collect();
    if kept > width
        && let Some(rest) = rest()
    {
        support = list::<i32>(&rest.f_narrow(0, 0, kept as i64)?)?.into_iter().map(|id| id as u32).collect();
    }
    support.sort_unstable();
    let count = sampling.top_logprobs.min(if kept > 0 { kept } else { logprobs.len() });
    let top = ids.iter().zip(logprobs).take(count).map(|(&id, &logprob)| (id as u32, logprob as f32)).collect();
    Ok(Some(Drawn { id: id as u32, logprob: logprob as f32, support, top }))
}

#[cfg(test)]
mod tests;
