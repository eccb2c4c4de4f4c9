//! The gated delta rule (arXiv:2412.06464) over packed rows, in plain libtorch operations.
//!
//! Each head has a state S `[Dk, Dv]` per sequence, an associative memory from keys to values. A
//! token decays it by exp(g), then writes its value in place of what the memory has for its key,
//! at the rate β: S ← exp(g) S, S ← S + k (β (v - kᵀ S))ᵀ. Its output is qᵀ S.
//!
//! The rule is computed block by block, as in the paper: within a block, the writes of its tokens
//! are the solution of a triangular system (the UT transform), so that a block is a few products
//! of matrices, and only the states between blocks are computed in order. A block of one token is
//! the rule itself.

use tch::{Device, Kind, Tensor};

use super::batch::starts;
use super::plain::Arithmetic;
use crate::native::upload;
use r1_base::error::Result;

/// Tokens of a block, as in the paper.
pub(super) const BLOCK: i64 = 64;

/// Added to squared norms of queries and keys.
const NORM_EPS: f64 = 1e-6;

/// Rows of tokens in blocks. Rows are in the order of decreasing length, so that the rows with a
/// block at any step are the first ones; blocks are in the order of steps.
#[derive(Debug)]
pub(super) struct DeltaBlocks {
    /// Tokens of a block.
    size: i64,
    /// [blocks * size]: token of each place, or the number of tokens for padding; `None` if these
    /// are the tokens in order.
    tokens: Option<Tensor>,
    /// `[T]`: place of each token.
    places: Tensor,
    /// Number of blocks of each step.
    counts: Vec<i64>,
    /// Row of each place in the order of lengths.
    pub order: Tensor,
}

impl DeltaBlocks {
    /// Blocks of rows without empty ones; `single` computes token by token.
    pub(super) fn new(lengths: &[i64], single: bool, device: Device) -> Result<Self> {
        let longest = lengths.iter().copied().max().unwrap_or(1);
        let size = if single { 1 } else { BLOCK.min(longest.max(1)) };
        let mut order: Vec<usize> = (0..lengths.len()).filter(|&row| lengths[row] > 0).collect();
        order.sort_by_key(|&row| std::cmp::Reverse(lengths[row]));
        let starts = starts(lengths);
        let total: i64 = lengths.iter().sum();
        let (mut tokens, mut places, mut counts) = (Vec::new(), vec![0; total as usize], Vec::new());
        for step in 0.. {
            let before = step * size;
            let count = order.iter().take_while(|&&row| lengths[row] > before).count();
            if count == 0 {
                break;
            }
            counts.push(count as i64);
            for &row in &order[..count] {
                for token in before..before + size {
                    if token < lengths[row] {
                        places[(starts[row] + token) as usize] = tokens.len() as i64;
                        tokens.push(starts[row] + token);
                    } else {
                        tokens.push(total);
                    }
                }
            }
        }
        let uploaded = |list: &[i64]| -> Result<Tensor> { upload(&Tensor::f_from_slice(list)?, device) };
        let in_order = tokens.iter().copied().eq(0..total);
        let order: Vec<i64> = order.into_iter().map(|row| row as i64).collect();
        Ok(Self {
            size,
            tokens: if in_order { None } else { Some(uploaded(&tokens)?) },
            places: uploaded(&places)?,
            counts,
            order: uploaded(&order)?,
        })
    }

    /// `[T, …]` to `[blocks * size, …]`, with zeros for padding.
    fn take(&self, x: &Tensor) -> Result<Tensor> {
        let Some(tokens) = &self.tokens else { return Ok(x.shallow_clone()) };
        let mut zero = x.size();
        zero[0] = 1;
        let zero = Tensor::f_zeros(zero, (x.kind(), x.device()))?;
        Ok(Tensor::f_cat(&[x, &zero], 0)?.f_index_select(0, tokens)?)
    }

    /// The inverse of [`take`](Self::take).
    fn spread(&self, x: &Tensor) -> Result<Tensor> {
        if self.tokens.is_none() { Ok(x.shallow_clone()) } else { Ok(x.f_index_select(0, &self.places)?) }
    }

    /// First block and number of blocks of each step.
    fn steps(&self) -> impl Iterator<Item = (i64, i64)> + use<'_> {
        self.counts.iter().scan(0, |first, &count| {
            *first += count;
            Some((*first - count, count))
        })
    }
}

/// Inputs of the rule, in at least f32.
pub(super) struct DeltaInputs {
    /// [T, value heads, Dk]
    pub q: Tensor,
    pub k: Tensor,
    /// [T, value heads, Dv]
    pub v: Tensor,
    /// [T, value heads]: the logarithm of the decay, and β.
    pub g: Tensor,
    pub beta: Tensor,
}

impl DeltaInputs {
    /// Outputs [T, value heads, Dv], and the states [rows, value heads, Dk, Dv] after the rows.
    /// States are in the order of `blocks`.
    pub(super) fn apply(
        &self,
        blocks: &DeltaBlocks,
        state: Tensor,
        arithmetic: Arithmetic,
    ) -> Result<(Tensor, Tensor)> {
        let scale = (self.k.size()[2] as f64).powf(-0.5);
        let q = blocks.take(&normalised(&self.q)?.f_mul_scalar(scale)?)?;
        let k = blocks.take(&normalised(&self.k)?)?;
        let [v, g, beta] = [&self.v, &self.g, &self.beta].map(|x| blocks.take(x));
        let all = Self { q, k, v: v?, g: g?, beta: beta? };
        let (outputs, states) =
            if blocks.size == 1 { all.by_token(blocks, state, arithmetic)? } else { all.by_block(blocks, state)? };
        Ok((blocks.spread(&outputs)?, states))
    }

    /// Token by token. The result of a row does not depend on other rows (bitwise).
    fn by_token(&self, blocks: &DeltaBlocks, state: Tensor, arithmetic: Arithmetic) -> Result<(Tensor, Tensor)> {
        let decay = arithmetic.pointwise(&self.g, |g| Ok(g.f_exp()?))?;
        let mut states = States::new(state);
        let mut outputs = Vec::with_capacity(blocks.counts.len());
        for (first, count) in blocks.steps() {
            let part = |x: &Tensor| x.f_narrow(0, first, count);
            // Rates [rows, heads, 1, 1], keys and queries [rows, heads, Dk, 1].
            let rate = |x: &Tensor| part(x)?.f_unsqueeze(-1)?.f_unsqueeze(-1);
            let column = |x: &Tensor| part(x)?.f_unsqueeze(-1);
            let (k, v) = (column(&self.k)?, part(&self.v)?.f_unsqueeze(-2)?);
            let state = states.first(count)?.f_mul(&rate(&decay)?)?;
            let recalled = state.f_mul(&k)?.f_sum_dim_intlist(-2, true, None)?;
            let written = v.f_sub(&recalled)?.f_mul(&rate(&self.beta)?)?;
            let state = state.f_add(&k.f_mul(&written)?)?;
            outputs.push(state.f_mul(&column(&self.q)?)?.f_sum_dim_intlist(-2, false, None)?);
            states.now = state;
        }
        Ok((Tensor::f_cat(&outputs, 0)?, states.finish()?))
    }

    /// Block by block.
    fn by_block(&self, blocks: &DeltaBlocks, state: Tensor) -> Result<(Tensor, Tensor)> {
        let size = blocks.size;
        // [blocks, heads, size, …]
        let each = |x: &Tensor| -> Result<Tensor> {
            let mut shape = vec![-1, size];
            shape.extend(&x.size()[1..]);
            Ok(x.f_view(&shape[..])?.f_transpose(1, 2)?)
        };
        let (q, k, v, beta) = (each(&self.q)?, each(&self.k)?, each(&self.v)?, each(&self.beta)?.f_unsqueeze(-1)?);
        let sum = each(&self.g)?.f_cumsum(-1, None)?;
        // Decay from token j to token i of a block, 0 for j > i: [blocks, heads, i, j].
        let later = Tensor::f_ones([size, size], (Kind::Bool, q.device()))?.f_triu(1)?;
        let between = sum.f_unsqueeze(-1)?.f_sub(&sum.f_unsqueeze(-2)?)?;
        let between = between.f_masked_fill(&later, f64::NEG_INFINITY)?.f_exp()?;
        let since_start = sum.f_exp()?.f_unsqueeze(-1)?;
        let last = sum.f_narrow(-1, size - 1, 1)?;
        let until_end = last.f_sub(&sum)?.f_exp()?.f_unsqueeze(-1)?;
        let whole = last.f_exp()?.f_unsqueeze(-1)?;

        let keys = k.f_transpose(-1, -2)?;
        let rated = k.f_mul(&beta)?;
        let system = rated.f_matmul(&keys)?.f_mul(&between)?;
        let wanted = Tensor::f_cat(&[v.f_mul(&beta)?, rated.f_mul(&since_start)?], -1)?;
        // The diagonal is 1, whatever it has.
        let solved = system.f_linalg_solve_triangular(&wanted, false, true, true)?;
        let (values, width) = (self.v.size()[2], self.k.size()[2]);
        let (written, read) = (solved.f_narrow(-1, 0, values)?, solved.f_narrow(-1, values, width)?);
        let scores = q.f_matmul(&keys)?.f_mul(&between)?;
        let (q, keys) = (q.f_mul(&since_start)?, k.f_mul(&until_end)?.f_transpose(-1, -2)?);

        let mut states = States::new(state);
        let mut outputs = Vec::with_capacity(blocks.counts.len());
        for (first, count) in blocks.steps() {
            let part = |x: &Tensor| x.f_narrow(0, first, count);
            let state = states.first(count)?;
            let written = part(&written)?.f_sub(&part(&read)?.f_matmul(&state)?)?;
            outputs.push(part(&q)?.f_matmul(&state)?.f_add(&part(&scores)?.f_matmul(&written)?)?);
            states.now = state.f_mul(&part(&whole)?)?.f_add(&part(&keys)?.f_matmul(&written)?)?;
        }
        let outputs = Tensor::f_cat(&outputs, 0)?.f_transpose(1, 2)?;
        Ok((outputs.f_reshape([-1, outputs.size()[2], values])?, states.finish()?))
    }
}

/// States of the rows that have blocks left, and of those that have ended.
struct States {
    now: Tensor,
    /// The shorter rows first.
    ended: Vec<Tensor>,
}

impl States {
    fn new(now: Tensor) -> Self {
        Self { now, ended: Vec::new() }
    }

    /// States of the first `count` rows; the others have ended.
    fn first(&mut self, count: i64) -> Result<Tensor> {
        let rows = self.now.size()[0];
        if count < rows {
            self.ended.push(self.now.f_narrow(0, count, rows - count)?);
        }
        Ok(self.now.f_narrow(0, 0, count)?)
    }

    fn finish(self) -> Result<Tensor> {
        let mut all = self.ended;
        all.push(self.now);
        all.reverse();
        Ok(Tensor::f_cat(&all, 0)?)
    }
}

/// Vectors of length 1.
fn normalised(x: &Tensor) -> Result<Tensor> {
    let squares = x.f_square()?.f_sum_dim_intlist(-1, true, None)?;
    Ok(x.f_mul(&squares.f_add_scalar(NORM_EPS)?.f_rsqrt()?)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn inputs(tokens: i64) -> DeltaInputs {
        let draw = |shape: &[i64], seed: f64| {
            let count = shape.iter().product::<i64>();
            let numbers = Tensor::arange(count, (Kind::Double, Device::Cpu)) * 12.9898 + seed;
            (numbers.sin() * 43758.5453).frac().view(shape)
        };
        DeltaInputs {
            q: draw(&[tokens, 2, 5], 1.0),
            k: draw(&[tokens, 2, 5], 2.0),
            v: draw(&[tokens, 2, 3], 3.0),
            g: -draw(&[tokens, 2], 4.0).abs() * 3.0,
            beta: draw(&[tokens, 2], 5.0).sigmoid(),
        }
    }

    #[test]
    fn blocks_equal_single_tokens() {
        let lengths = [70, 1, 0, 200, 64, 129];
        let total = lengths.iter().sum::<i64>();
        let all = inputs(total);
        let run = |single: bool| {
            let blocks = DeltaBlocks::new(&lengths, single, Device::Cpu).unwrap();
            // A state for each row, as its place in the order of the lengths wants it.
            let rows = Tensor::arange(6, (Kind::Double, Device::Cpu)).view([6, 1, 1, 1]);
            let state = (rows + inputs(1).k.view([1, 2, 5, 1])).sin().expand([6, 2, 5, 3], false);
            let state = state.index_select(0, &blocks.order);
            let (out, states) = all.apply(&blocks, state, Arithmetic::Libtorch).unwrap();
            let back = blocks.order.argsort(0, false);
            (out, states.index_select(0, &back))
        };
        let (blocks, single) = (run(false), run(true));
        let off = |a: &Tensor, b: &Tensor| (a - b).abs().max().double_value(&[]);
        assert!(off(&blocks.0, &single.0) < 1e-12, "{}", off(&blocks.0, &single.0));
        assert!(off(&blocks.1, &single.1) < 1e-12);
        // By the rule, for the last row.
        let first = total - 129;
        let mut state = {
            let rows = Tensor::from(5.0f64).view([1, 1, 1, 1]);
            (rows + inputs(1).k.view([1, 2, 5, 1])).sin().expand([1, 2, 5, 3], false).squeeze_dim(0).copy()
        };
        for token in first..total {
            let unit = |x: &Tensor| {
                let x = x.get(token);
                &x / (x.square().sum_dim_intlist(-1, true, None) + NORM_EPS).sqrt()
            };
            let (q, k) = (unit(&all.q).unsqueeze(-1), unit(&all.k).unsqueeze(-1));
            state *= all.g.get(token).exp().view([2, 1, 1]);
            let error = all.v.get(token) - (&k * &state).sum_dim_intlist(1, false, None);
            state += &k * (error * all.beta.get(token).unsqueeze(-1)).unsqueeze(1);
            let out = (&q * &state).sum_dim_intlist(1, false, None) / 5f64.sqrt();
            assert!(off(&out, &single.0.get(token)) < 1e-12, "{token}");
        }
    }
}
