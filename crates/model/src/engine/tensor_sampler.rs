//! Sampling of the next tokens of a batch as tensor operations, on the device of the logits, which
//! stay there.
//!
//! The distribution, its order and the random numbers are the same as in [`super::sampler`]: the
//! token is the inverse of the cumulative distribution at the request's uniform number, by id, or
//! from the most to the least likely token where top-k, top-p or min-p exclude tokens. Sums are in
//! f64. Equal probabilities give equal tokens in both samplers. The softmax of another device
//! rounds differently, which changes a token only if its bound in the cumulative distribution is
//! next to the uniform number.

use tch::{Device, Kind, Tensor};

use crate::model::softmax;
use r1_base::error::Result;
use r1_base::mdp::Sampling;

/// Tokens whose probabilities are added before the search, which then reads V / BLOCK sums and one
/// block.
const BLOCK: i64 = 128;

/// The rows of a batch that are sampled greedily.
pub(super) enum Greedy {
    All,
    None,
    /// `[n, 1]` bool
    Some(Tensor),
}

/// Draws from probabilities `[n, V]` f32 at uniform numbers `[n, 1]` f64, which rows that are not
/// greedy need. Gives ids `[n, 1]` i64, `[n, 3]` of [`packed`], and the mass `[n, 1]` f64. No
/// operation waits for the device.
pub(super) fn whole(p: &Tensor, uniform: Option<&Tensor>, greedy: &Greedy) -> Result<(Tensor, Tensor, Tensor)> {
    let [count, vocab] = [p.size()[0], p.size()[1]];
    let padding = (BLOCK - vocab % BLOCK) % BLOCK;
    let padded = if padding > 0 { p.f_constant_pad_nd([0, padding])? } else { p.shallow_clone() };
    let blocks = padded.f_view([count, -1, BLOCK])?;
    // [n, V / BLOCK]
    let sums = blocks.f_sum_dim_intlist(&[2][..], false, Kind::Double)?.f_cumsum(1, None)?;
    let mass = last(&sums)?;
    let sampled = |uniform: &Tensor| -> Result<Tensor> {
        let target = uniform.f_mul(&mass)?;
        let block = place_of(&sums, &mass, &target)?;
        // The part of the target within its block.
        let before = sums.f_constant_pad_nd([1, 0])?.f_gather(1, &block, false)?;
        let index = block.f_unsqueeze(2)?.f_expand([-1, -1, BLOCK], false)?;
        let inside = blocks.f_gather(1, &index, false)?.f_squeeze_dim(1)?.f_cumsum(1, Kind::Double)?;
        let offset = place_of(&inside, &last(&inside)?, &target.f_sub(&before)?)?;
        Ok(block.f_mul_scalar(BLOCK)?.f_add(&offset)?)
    };
    let id = match (greedy, uniform) {
        (Greedy::None, Some(uniform)) => sampled(uniform)?,
        (Greedy::Some(greedy), Some(uniform)) => p.f_argmax(1, true)?.f_where_self(greedy, &sampled(uniform)?)?,
        _ => p.f_argmax(1, true)?,
    };
    let numbers = packed(&id, &p.f_gather(1, &id, false)?, &mass, None)?;
    Ok((id, numbers, mass))
}

/// What cuts tokens off, per row.
pub(super) struct Bounds {
    /// `[n, 1]` i64: the most tokens, by top-k.
    pub(super) limits: Tensor,
    /// `[n, 1]` f64: see [`top_p`].
    pub(super) top_p: Tensor,
    /// `[n, 1]` f64
    pub(super) min_p: Tensor,
}

/// The most tokens that top-k keeps.
pub(super) fn limit(sampling: &Sampling, vocab: i64) -> i64 {
    match sampling.top_k as i64 {
        0 => vocab,
        top_k => top_k.min(vocab),
    }
}

/// The fraction of the mass that top-p keeps; infinite if it keeps all.
pub(super) fn top_p(sampling: &Sampling) -> f64 {
    if sampling.top_p < 1.0 { sampling.top_p } else { f64::INFINITY }
}

/// As [`whole`], from the most likely tokens of which the bounds cut some off. `ranked` has all
/// tokens within the limits.
pub(super) fn cut(ranked: &Ranked, bounds: &Bounds, uniform: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
    let within = ranked.places.f_unsqueeze(0)?.f_lt_tensor(&bounds.limits)?;
    let kept = ranked.values.f_mul(&within)?.f_to_kind(Kind::Double)?;
    let sums = kept.f_cumsum(1, None)?;
    // The smallest set with at least the fraction top_p of the mass.
    let sufficient = count(&sums.f_lt_tensor(&last(&sums)?.f_mul(&bounds.top_p)?)?)?.f_add_scalar(1)?;
    let least = kept.f_narrow(1, 0, 1)?.f_mul(&bounds.min_p)?;
    let likely = count(&kept.f_ge_tensor(&least)?)?;
    let kept = bounds.limits.f_minimum(&sufficient)?.f_minimum(&likely)?.f_clamp_min(1)?;
    let mass = sums.f_gather(1, &kept.f_sub_scalar(1)?, false)?;
    let rank = place_of(&sums, &mass, &uniform.f_mul(&mass)?)?;
    let (id, chosen) = (ranked.ids.f_gather(1, &rank, false)?, ranked.values.f_gather(1, &rank, false)?);
    let numbers = packed(&id, &chosen, &mass, Some(&kept))?;
    Ok((id, numbers, mass))
}

/// The most likely tokens of rows, most likely first, ties by id.
pub(super) struct Ranked {
    /// [n, count] i64 and f32.
    pub(super) ids: Tensor,
    values: Tensor,
    /// `[count]` i64: 0, 1, 2, …
    places: Tensor,
}

impl Ranked {
    /// `all` are the ids of the vocabulary, `[V]` i64.
    pub(super) fn new(probabilities: &Tensor, count: i64, all: &Tensor) -> Result<Self> {
        let vocab = probabilities.size()[1];
        let places = all.f_narrow(0, 0, count.min(vocab))?;
        if count >= vocab {
            let (values, ids) = probabilities.f_sort_stable(true, 1, true)?;
            return Ok(Self { ids, values, places });
        }
        // The bits of a number that is not negative are in its order; the id decides among equals.
        let bits = probabilities.f_view_dtype(Kind::Int)?.f_to_kind(Kind::Int64)?;
        let keys = bits.f_mul_scalar(1_i64 << 32)?.f_sub(all)?;
        let (_, ids) = keys.f_topk(count, 1, true, true)?;
        Ok(Self { values: probabilities.f_gather(1, &ids, false)?, ids, places })
    }

    /// Log-probabilities `[n, top]` f32 of the most likely tokens, with the mass `[n, 1]` of all
    /// kept ones.
    pub(super) fn logprobs(&self, top: i64, mass: &Tensor) -> Result<Tensor> {
        let share = self.values.f_narrow(1, 0, top)?.f_to_kind(Kind::Double)?.f_div(mass)?;
        Ok(share.f_log()?.f_to_kind(Kind::Float)?)
    }
}

/// Whether tokens of a vocabulary of this size can be cut off.
pub(super) fn cuts(sampling: &Sampling, vocab: i64) -> bool {
    let top_k = sampling.top_k > 0 && (sampling.top_k as i64) < vocab;
    sampling.temperature > 0.0 && (top_k || sampling.top_p < 1.0 || sampling.min_p > 0.0)
}

/// Factor of the logits.
pub(super) fn scale(sampling: &Sampling) -> f32 {
    if sampling.temperature == 0.0 { 1.0 } else { (1.0 / sampling.temperature) as f32 }
}

/// Logits with the repetition penalty.
pub(super) fn penalise(logits: &Tensor, penalty: &Tensor) -> Result<Tensor> {
    Ok(logits.f_div(penalty)?.f_where_self(&logits.f_gt(0.0)?, &logits.f_mul(penalty)?)?)
}

/// Probabilities `[n, V]` f32 of logits `[n, V]` times `scales` `[n, 1]` f32: by the CPU kernels,
/// which read the numbers, or by libtorch, which does not wait for them.
pub(super) fn softmax_of(logits: &Tensor, scales: &Tensor, kernels: bool) -> Result<Tensor> {
    let logits = logits.f_to_kind(Kind::Float)?;
    if kernels {
        let mut all = list::<f32>(&logits)?;
        for (row, scale) in all.chunks_exact_mut(logits.size()[1] as usize).zip(list::<f32>(scales)?) {
            softmax(row, scale);
        }
        return Ok(Tensor::f_from_slice(&all)?.f_view_as(&logits)?);
    }
    Ok(logits.f_mul(scales)?.f_softmax(-1, Kind::Float)?)
}

/// The first place of running sums `[n, K]` that exceeds `target` `[n, 1]`; the last one with mass
/// if rounding puts the target at the total.
fn place_of(sums: &Tensor, total: &Tensor, target: &Tensor) -> Result<Tensor> {
    let past = count(&sums.f_le_tensor(target)?)?;
    Ok(past.f_minimum(&count(&sums.f_lt_tensor(total)?)?)?)
}

/// [n, 3] f64: id, log-probability, size of the support.
fn packed(id: &Tensor, p: &Tensor, mass: &Tensor, kept: Option<&Tensor>) -> Result<Tensor> {
    let logprob = p.f_to_kind(Kind::Double)?.f_div(mass)?.f_log()?;
    let id = id.f_to_kind(Kind::Double)?;
    let kept = kept.map_or_else(|| id.f_zeros_like(), |kept| kept.f_to_kind(Kind::Double))?;
    Ok(Tensor::f_cat(&[id, logprob, kept], 1)?)
}

/// Number of true entries of each row, `[n, 1]` i64.
fn count(flags: &Tensor) -> Result<Tensor> {
    Ok(flags.f_sum_dim_intlist(&[1][..], true, Kind::Int64)?)
}

/// The last column, `[n, 1]`.
fn last(sums: &Tensor) -> Result<Tensor> {
    Ok(sums.f_narrow(1, sums.size()[1] - 1, 1)?)
}

/// All numbers of a tensor, on the host.
pub(super) fn list<T: tch::kind::Element + Clone + Default>(x: &Tensor) -> Result<Vec<T>> {
    let x = x.f_contiguous()?.f_to_device(Device::Cpu)?;
    let mut all = vec![T::default(); x.numel()];
    x.f_copy_data(&mut all, x.numel())?;
    Ok(all)
}
