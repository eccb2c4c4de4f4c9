//! Settings of reward shaping: `shaping = { normalize = { "state", "mean_std" } }`. The formulas
//! are in `rl::rewards`.

use crate::schema::{choices, section};

section! {
    /// Shaping of rewards before the estimator, in this order: length penalty, normalisation of
    /// outcome rewards and of process rewards, scale.
    pub struct Shaping: "trainer.shaping." {
        /// Penalty for trajectories of more than longest - buffer sampled tokens (DAPO,
        /// arXiv:2503.14476).
        overlong: Option<OverlongPenalty> = None, range("0 < buffer ≤ longest");
        /// Divides process rewards by their largest sum in the step (PRIME, arXiv:2502.01456).
        prime: bool = false;
        /// { GROUPING, METHOD }: normalises returns within state, batch or inductive by identity,
        /// mean, mean_std or asym_clip (RAGEN, arXiv:2504.20073). Process rewards of tool calls are
        /// excluded.
        normalize: Option<(Grouping, Method)> = None;
        /// Multiplies every reward.
        scale: Option<f64> = None, range("> 0");
        /// Divides rewards by the running deviation of their return with this discount.
        running: Option<f64> = None, range("0 to 1");
    }
}

section! {
    /// A penalty for long responses (DAPO, arXiv:2503.14476, eq. 13): 0 up to longest - buffer
    /// sampled tokens of a trajectory, -factor at longest, and linear between and beyond.
    pub struct OverlongPenalty: "trainer.shaping.overlong." {
        /// Sampled tokens with the penalty -factor.
        longest: usize = 0, unit("tokens"), range("≥ buffer");
        /// Tokens over which the penalty grows.
        buffer: usize = 0, unit("tokens"), range("1 to longest");
        /// Largest penalty up to longest.
        factor: f64 = 1.0, range("≥ 0");
    }
}

impl Copy for OverlongPenalty {}

choices! {
    /// Trajectories that are normalised together.
    pub enum Grouping {
        /// Returns of one group: the same task and initial state.
        State = "state",
        /// All returns of the step.
        Batch = "batch",
        /// Returns of one kind of task: the column `tag` of the row, else `data_source`.
        Inductive = "inductive",
    }
}

choices! {
    /// Normalisation of the returns of a grouping.
    pub enum Method {
        Identity = "identity",
        Mean = "mean",
        /// `(S - mean) / (std + 1e-6)` with n - 1; 0 where the deviation is at most 1e-6.
        MeanStd = "mean_std",
        /// The same, clipped to [-1, 3].
        AsymClip = "asym_clip",
    }
}
