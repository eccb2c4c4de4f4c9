//! Options of tables that `rl` reads: `trainer.shaping`, `trainer.importance`, `trainer.rejection`.
//! A table without a fixed set of fields has its documentation here.

use crate::schema::Setting;

/// An option: path, type, default, range, meaning.
fn option(path: &'static str, kind: &str, default: &str, range: &'static str, doc: &'static str) -> Setting {
    Setting::new(path, kind, doc).default(default).range(range)
}

pub(super) fn options() -> Vec<Setting> {
    vec![
        option(
            "trainer.shaping.overlong",
            "table",
            "null",
            "0 < buffer ≤ longest, factor ≥ 0",
            "{ longest, buffer, factor }: penalty for trajectories of more than longest - buffer \
             sampled tokens (DAPO, arXiv:2503.14476).",
        ),
        option(
            "trainer.shaping.prime",
            "boolean",
            "false",
            "",
            "Divides process rewards by their largest sum in the step (PRIME, arXiv:2502.01456).",
        ),
        option(
            "trainer.shaping.normalize",
            "list",
            "null",
            "",
            "{ GROUPING, METHOD }: normalises returns within state, batch or inductive by \
             identity, mean, mean_std or asym_clip (RAGEN, arXiv:2504.20073).",
        ),
        option("trainer.shaping.scale", "number", "null", "> 0", "Multiplies every reward."),
        option(
            "trainer.shaping.running",
            "number",
            "null",
            "0 to 1",
            "Divides rewards by the running deviation of their return with this discount.",
        ),
        option(
            "trainer.importance.scope",
            "\"token\" | \"sequence\"",
            "\"token\"",
            "",
            "One weight per token or per sequence.",
        ),
        option("trainer.importance.cap", "number", "2", "> 0", "Truncates weights (TIS)."),
        option(
            "trainer.importance.floor",
            "number",
            "null",
            "0 < floor ≤ cap",
            "Sets weights outside [floor, cap] to 0 (IcePop).",
        ),
        option("trainer.importance.normalize", "boolean", "false", "", "Divides weights by their mean."),
        option(
            "trainer.rejection.measure",
            "string",
            "\"mean\"",
            "token, sum, mean, max",
            "Aggregation of the tokens of a sequence; token decides per token.",
        ),
        option(
            "trainer.rejection.estimate",
            "string",
            "\"k3\"",
            "k1, k2, k3",
            "Estimator of the KL divergence that is measured.",
        ),
        option("trainer.rejection.upper", "number", "0.01", "> 0", "Upper bound of the measure."),
        option(
            "trainer.rejection.lower",
            "number",
            "null",
            "> 0",
            "Lower bound of the ratio for k1; 1 / upper if left out.",
        ),
    ]
}
