//! Entries: the batch and the tensors of a policy loss that is written in Lua.

use super::{Entry, Param, f, p};

const X: Param = p("x", "LossTensor | number", "");
const UNIT: Param = p("unit", "\"step\" | \"trajectory\" | \"group\"", "");
const NO_PARAMS: &[Param] = &[];
const OTHER: &[Param] = &[p("other", "LossTensor | number", "")];
const TENSOR: &[(&str, &str)] = &[("LossTensor", "")];
const SCALAR: &[(&str, &str)] = &[("LossTensor", "A scalar of the mini-batch")];

const fn unary(name: &'static str, doc: &'static str) -> Entry {
    f(name, NO_PARAMS, TENSOR, doc, "")
}

const fn binary(name: &'static str, doc: &'static str) -> Entry {
    f(name, OTHER, TENSOR, doc, "")
}

pub(super) const ENTRIES: &[Entry] = &[
    f(
        "LossBatch:token_mean",
        &[X],
        SCALAR,
        "The sum over the sampled tokens of the mini-batch, divided by how many there are.",
        "local function loss(b)\n  local ratio = (b.logp - b.logp_old):exp()\n  return b:token_mean(-b.advantages * ratio)\nend",
    ),
    f(
        "LossBatch:seq_mean",
        &[X, p("unit?", "\"step\" | \"trajectory\" | \"group\"", "\"trajectory\" unless said")],
        SCALAR,
        "The mean over the tokens of a sequence, then over the sequences of the mini-batch.",
        "",
    ),
    f(
        "LossBatch:aggregate",
        &[
            X,
            p("loss_agg", "string", "token-mean, seq-mean-token-sum, seq-mean-token-mean or seq-mean-token-sum-norm"),
            p("unit?", "\"step\" | \"trajectory\" | \"group\"", "What a sequence is; \"trajectory\" unless said"),
        ],
        SCALAR,
        "As trainer.loss_agg: from a loss for each token to a scalar.",
        "",
    ),
    f("LossBatch:sum", &[X], SCALAR, "The plain sum over the sampled tokens of the mini-batch.", ""),
    f("LossBatch:count", &[UNIT], TENSOR, "For each token how many sampled tokens its sequence has.", ""),
    f(
        "LossBatch:where",
        &[p("condition", "LossTensor", "Booleans"), X, p("y", "LossTensor | number", "")],
        TENSOR,
        "x where the condition is true, y elsewhere.",
        "",
    ),
    f(
        "LossBatch:log",
        &[p("name", "string", ""), p("x", "LossTensor", "")],
        &[],
        "Writes a metric loss/NAME: the mean of a tensor over the tokens computed (booleans count as 0 and 1), or a scalar.",
        "",
    ),
    unary("LossTensor:neg", "-x."),
    unary("LossTensor:exp", "e^x."),
    unary("LossTensor:log", "The natural logarithm."),
    unary("LossTensor:sqrt", "The square root."),
    unary("LossTensor:abs", "|x|."),
    unary("LossTensor:sign", "-1, 0 or 1; no gradient."),
    unary("LossTensor:sigmoid", "1 / (1 + e^-x)."),
    unary("LossTensor:log_sigmoid", "The logarithm of the sigmoid, without overflow."),
    unary("LossTensor:detach", "The same numbers without a gradient."),
    f(
        "LossTensor:clamp",
        &[p("low?", "number", ""), p("high?", "number", "")],
        TENSOR,
        "Kept between the bounds; no gradient outside of them.",
        "",
    ),
    binary("LossTensor:min", "The smaller of two, token by token."),
    binary("LossTensor:max", "The larger of two, token by token."),
    f("LossTensor:sum", &[UNIT], TENSOR, "For each token the sum over the sampled tokens of its sequence.", ""),
    f("LossTensor:mean", &[UNIT], TENSOR, "For each token the mean over the sampled tokens of its sequence.", ""),
    binary("LossTensor:lt", "Whether it is less."),
    binary("LossTensor:le", "Whether it is less or equal."),
    binary("LossTensor:gt", "Whether it is greater."),
    binary("LossTensor:ge", "Whether it is greater or equal."),
    binary("LossTensor:eq", "Whether it is equal."),
    binary("LossTensor:ne", "Whether it differs."),
    binary("LossTensor:logical_and", "Whether both are true."),
    binary("LossTensor:logical_or", "Whether at least one is true."),
    unary("LossTensor:logical_not", "Negation of a boolean tensor."),
];
