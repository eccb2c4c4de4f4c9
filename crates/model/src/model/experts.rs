//! Mixtures of experts: expert by expert, or all experts in one product without a copy to the host.

use tch::{Device, Kind, Tensor};

use super::Model;
use super::config::{Experts, Router};
use super::decoder::With;
use super::layers::{Linear, Mlp, SharedBlock};
use super::plain::Arithmetic;
use super::stacked::Stack;
use crate::native::{self, Arena};
use r1_base::error::Result;

/// The weights of all experts of a layer, which the experts' own are views of. They are not tracked
/// by autograd.
#[derive(Debug)]
pub(super) struct GroupedExperts {
    /// [experts, 2 * inner, E]: gate and up of each.
    gate_up: Tensor,
    /// [experts, E, inner]
    down: Tensor,
}

impl GroupedExperts {
    /// Uninitialised weights of experts, and the experts.
    pub(super) fn new(
        arena: &Arena,
        options: (Kind, Device),
        [count, hidden, inner]: [usize; 3],
        biased: bool,
    ) -> Result<(Self, Vec<Mlp>)> {
        let _guard = tch::no_grad_guard();
        let take = |rows: usize, inputs: usize| arena.take(&[rows as i64, inputs as i64], options);
        let (gate_up, down) = (take(count * 2 * inner, hidden)?, take(count * hidden, inner)?);
        let bias = |outputs: usize| -> Result<Option<Tensor>> {
            if biased { Ok(Some(arena.take(&[outputs as i64], options)?)) } else { Ok(None) }
        };
        let all_down = Stack::new(down.shallow_clone(), bias(count * hidden)?);
        let experts = (0..count)
            .map(|expert| {
                let weights = gate_up.f_narrow(0, (expert * 2 * inner) as i64, 2 * inner as i64)?;
                let both = Stack::new(weights, bias(2 * inner)?);
                let (gate, up) = (both.part(0, inner)?, both.part(inner, inner)?);
                Ok(Mlp { gate, up: Some(up), gate_up: Some(both), down: all_down.part(expert * hidden, hidden)? })
            })
            .collect::<Result<_>>()?;
        let [count, hidden, inner] = [count, hidden, inner].map(|size| size as i64);
        let gate_up = gate_up.f_view([count, 2 * inner, hidden])?;
        Ok((Self { gate_up, down: down.f_view([count, hidden, inner])? }, experts))
    }
}

impl Model {
    /// Whether experts are computed in one product: on CUDA in bf16, without adapters on them.
    pub(super) fn groups_experts(&self) -> bool {
        let adapted = self
            .lora()
            .is_some_and(|adapter| ["gate_proj", "up_proj", "down_proj"].iter().any(|name| adapter.targets(name)));
        self.grouped_experts && !adapted
    }

    /// A mixture of experts over h `[T, E]`. With routing replay, the current router computes the
    /// weights of the given experts.
    pub(super) fn mixture(
        &self,
        (router, correction): (&Linear, Option<&Tensor>),
        (experts, grouped): (&[Mlp], Option<&GroupedExperts>),
        shape: Option<Experts>,
        h: &Tensor,
        with: With<'_>,
    ) -> Result<Tensor> {
        let With { arithmetic, routes, .. } = with;
        let (chosen, normalised) = shape.map_or((1, false), |shape| (shape.chosen, shape.normalised));
        let wide = if h.kind() == Kind::Double { Kind::Double } else { Kind::Float };
        let kind = shape.map_or(Router::Softmax, |shape| shape.router);
        let (mut shares, ids) = if let Router::Sigmoid { groups, top_groups, .. } = kind {
            // In f32, as in transformers.
            let x = h.f_to_kind(wide)?;
            let adapter = self.adapter_use(with);
            let logits = arithmetic.linear(&x, &router.weight(adapter).f_to_kind(wide)?, None)?;
            let logits = router.adapted(logits, &x, adapter, arithmetic)?;
            let all = arithmetic.sigmoid(&logits)?;
            let selection = match correction {
                Some(correction) => all.f_detach()?.f_add(correction)?,
                None => all.f_detach()?,
            };
            routes.choose(&all, &of_best_groups(selection, groups as i64, top_groups as i64)?, chosen)?
        } else {
            let all = router.apply(h, self.adapter_use(with), arithmetic)?.f_softmax(-1, wide)?;
            routes.choose(&all, &all, chosen)?
        };
        if normalised {
            shares = shares.f_div(&shares.f_sum_dim_intlist(-1, true, None)?.f_add_scalar(1e-20)?)?;
        }
        if let Router::Sigmoid { scaling, .. } = kind {
            shares = shares.f_mul_scalar(scaling)?;
        }
        let (shares, ids) = (shares.f_to_kind(h.kind())?.f_flatten(0, 1)?, ids.f_flatten(0, 1)?);
        match grouped.filter(|_| self.groups_experts() && arithmetic == Arithmetic::Libtorch) {
            Some(grouped) => self.mixture_grouped(experts, grouped, h, &shares, &ids, chosen as i64),
            None => self.mixture_each(experts, h, &shares, &ids, (chosen, with)),
        }
    }

    /// The output of the expert of all tokens.
    pub(super) fn shared_expert(&self, shared: &SharedBlock, h: &Tensor, with: With<'_>) -> Result<Tensor> {
        let out = self.feed_forward(&shared.mlp, h, with)?;
        let Some(gate) = &shared.gate else { return Ok(out) };
        let gate = gate.apply(h, self.adapter_use(with), with.arithmetic)?;
        Ok(out.f_mul(&with.arithmetic.sigmoid(&gate)?)?)
    }

    /// Each expert processes its tokens in order; sums run over experts in order. The host reads
    /// the experts of the tokens. `shares` and `ids` `[T * chosen]`.
    fn mixture_each(
        &self,
        experts: &[Mlp],
        h: &Tensor,
        shares: &Tensor,
        ids: &Tensor,
        (chosen, with): (usize, With<'_>),
    ) -> Result<Tensor> {
        // Indices into the flat [T * chosen] list, by expert.
        let mut places = vec![Vec::new(); experts.len()];
        for (index, id) in (0i64..).zip(Vec::<i64>::try_from(ids)?) {
            if let Some(indices) = usize::try_from(id).ok().and_then(|id| places.get_mut(id)) {
                indices.push(index);
            }
        }
        let mut out = h.f_zeros_like()?;
        for (expert, places) in experts.iter().zip(places).filter(|(_, places)| !places.is_empty()) {
            let places = native::upload(&Tensor::f_from_slice(&places)?, h.device())?;
            let tokens = places.f_floor_divide_scalar(chosen as i64)?;
            let output = self.feed_forward(expert, &h.f_index_select(0, &tokens)?, with)?;
            let output = output.f_mul(&shares.f_index_select(0, &places)?.f_unsqueeze(1)?)?;
            out = out.f_index_add(0, &tokens, &output)?;
        }
        Ok(out)
    }

    /// Tokens are sorted by expert on the device, and one product computes each projection of all
    /// experts. Experts without tokens get gradients of 0.
    fn mixture_grouped<'a>(
        &self,
        experts: &'a [Mlp],
        grouped: &GroupedExperts,
        h: &Tensor,
        shares: &Tensor,
        ids: &Tensor,
        chosen: i64,
    ) -> Result<Tensor> {
        let order = ids.f_argsort_stable(true, 0, false)?;
        let counts = Tensor::f_zeros([experts.len() as i64], (Kind::Int64, h.device()))?;
        let ends = counts.f_scatter_add(0, ids, &ids.f_ones_like()?)?.f_cumsum(0, Kind::Int)?;
        let x = h.f_index_select(0, &order.f_floor_divide_scalar(chosen)?)?;
        let both_of = |expert: &'a Mlp| std::iter::once(&expert.gate).chain(&expert.up);
        let leaves: Vec<&Tensor> = experts.iter().flat_map(both_of).map(|linear| &linear.weight).collect();
        let sorted_ids = ids.f_index_select(0, &order)?;
        // Adds the biases of each token's expert.
        let biased = |product: Tensor, linears: Vec<&Linear>| -> Result<Tensor> {
            let biases: Vec<&Tensor> = linears.into_iter().filter_map(|linear| linear.bias.as_ref()).collect();
            if biases.is_empty() {
                return Ok(product);
            }
            let all = Tensor::f_cat(&biases, 0)?.f_view([experts.len() as i64, -1])?;
            Ok(product.f_add(&all.f_index_select(0, &sorted_ids)?)?)
        };
        let both = native::grouped_linear(&x, &grouped.gate_up, &ends, &leaves)?;
        let both = biased(both, experts.iter().flat_map(both_of).collect())?;
        let halves = both.f_chunk(2, 1)?;
        let inner = self.gated(&halves[0], &halves[1], Arithmetic::Libtorch)?;
        let leaves: Vec<&Tensor> = experts.iter().map(|expert| &expert.down.weight).collect();
        let out = native::grouped_linear(&inner, &grouped.down, &ends, &leaves)?;
        let out = biased(out, experts.iter().map(|expert| &expert.down).collect())?;
        let out = out.f_mul(&shares.f_index_select(0, &order)?.f_unsqueeze(1)?)?;
        // Back in the order of the tokens, so that sums have a fixed order.
        let sorted = out.f_zeros_like()?.f_index_copy(0, &order, &out)?;
        let wide = if h.kind() == Kind::Double { Kind::Double } else { Kind::Float };
        let sum = sorted.f_view([-1, chosen, h.size()[1]])?.f_sum_dim_intlist(1, false, wide)?;
        Ok(sum.f_to_kind(h.kind())?)
    }
}

/// Scores of experts `[T, experts]`, in groups of equal size. Outside the `top` groups with the
/// largest sums of two scores they are -inf.
fn of_best_groups(scores: Tensor, groups: i64, top: i64) -> Result<Tensor> {
    if groups == top {
        return Ok(scores);
    }
    let grouped = scores.f_view([scores.size()[0], groups, -1])?;
    let sums = grouped.f_topk(2, -1, true, true)?.0.f_sum_dim_intlist(-1, false, None)?;
    let best = sums.f_topk(top, -1, true, true)?.1;
    let others = sums.f_ones_like()?.f_scatter_value(1, &best, 0.0)?.f_to_kind(Kind::Bool)?.f_unsqueeze(-1)?;
    Ok(grouped.f_masked_fill(&others, f64::NEG_INFINITY)?.f_view_as(&scores)?)
}
