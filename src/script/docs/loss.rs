//! Declarations: the batch and the tensors of a policy loss written in Lua.

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
        "The sum over the sampled tokens of the mini-batch, divided by their number.",
        "local function loss(b)\n  local ratio = (b.logp - b.logp_old):exp()\n  return b:token_mean(-b.advantages * ratio)\nend",
    ),
    f(
        "LossBatch:seq_mean",
        &[X, p("unit?", "\"step\" | \"trajectory\" | \"group\"", "Default: \"trajectory\"")],
        SCALAR,
        "The mean over the tokens of a sequence, then over the sequences of the mini-batch.",
        "",
    ),
    f(
        "LossBatch:aggregate",
        &[
            X,
            p("loss_agg", "string", "token-mean, seq-mean-token-sum, seq-mean-token-mean or seq-mean-token-sum-norm"),
            p("unit?", "\"step\" | \"trajectory\" | \"group\"", "Unit of a sequence; default: \"trajectory\""),
        ],
        SCALAR,
        "Aggregates a loss per token to a scalar, like trainer.loss_agg.",
        "",
    ),
    f("LossBatch:sum", &[X], SCALAR, "The sum over the sampled tokens of the mini-batch.", ""),
    f("LossBatch:count", &[UNIT], TENSOR, "For each token the number of sampled tokens of its sequence.", ""),
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
        "Logs the metric loss/NAME: the mean of a tensor over the computed tokens (booleans count as 0 and 1), or a scalar.",
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
    unary("LossTensor:detach", "The same values without gradient."),
    f(
        "LossTensor:clamp",
        &[p("low?", "number", ""), p("high?", "number", "")],
        TENSOR,
        "Clamps to the bounds; no gradient outside of them.",
        "",
    ),
    binary("LossTensor:min", "Elementwise minimum."),
    binary("LossTensor:max", "Elementwise maximum."),
    f("LossTensor:sum", &[UNIT], TENSOR, "For each token the sum over the sampled tokens of its sequence.", ""),
    f("LossTensor:mean", &[UNIT], TENSOR, "For each token the mean over the sampled tokens of its sequence.", ""),
    binary("LossTensor:lt", "Elementwise <."),
    binary("LossTensor:le", "Elementwise <=."),
    binary("LossTensor:gt", "Elementwise >."),
    binary("LossTensor:ge", "Elementwise >=."),
    binary("LossTensor:eq", "Elementwise ==."),
    binary("LossTensor:ne", "Elementwise ~=."),
    binary("LossTensor:logical_and", "Elementwise logical and."),
    binary("LossTensor:logical_or", "Elementwise logical or."),
    unary("LossTensor:logical_not", "Elementwise logical not."),
];
