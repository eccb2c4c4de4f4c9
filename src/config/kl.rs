//! Settings of the KL penalty: `kl = { coef = 0.001, kind = "k3" }`.

use crate::schema::{choices, section};

section! {
    /// KL penalty to the reference policy: the policy at the start of the run, or the base model of
    /// the adapter.
    pub struct Kl: "trainer.kl." {
        /// Coefficient of the KL penalty to the reference policy (the policy at the start of the
        /// run); 0 is off.
        coef: f64 = 0.0, range("≥ 0"), reload(Reload::Switch);
        /// Estimator of the KL divergence.
        kind: KlKind = KlKind::K3, needs("trainer.kl.coef", Is::Positive);
        /// Uses the gradient of k2 for every kind.
        straight_through: bool = false,
            needs("trainer.kl.coef", Is::Positive), needs("trainer.kl.place", Is::OneOf(&["loss"]));
        /// The KL penalty is a term of the loss, or is subtracted from the reward of each token.
        place: KlPlace = KlPlace::Loss, needs("trainer.kl.coef", Is::Positive);
        /// Target KL of an adaptive coefficient; 0 is a fixed coefficient.
        target: f64 = 0.0, unit("nats per token"), range("≥ 0");
        /// Trajectories over which the coefficient adapts.
        horizon: f64 = 10_000.0, unit("trajectories"), range("> 0"), needs("trainer.kl.target", Is::Positive);
    }
}

choices! {
    /// Estimators of KL(policy || reference) at a token, where d = `logp` - `logp_ref`
    /// (<http://joschu.net/blog/kl-approx.html>).
    pub enum KlKind {
        /// d: unbiased, noisy, may be negative.
        K1 = "k1",
        /// |d|.
        Abs = "abs",
        /// d^2 / 2: biased, little noise; its gradient is an unbiased one of the KL on samples of
        /// the policy.
        K2 = "k2",
        /// exp(-d) + d - 1: unbiased, never negative, less noise than k1.
        K3 = "k3",
    }
}

choices! {
    /// The place where the KL penalty is applied.
    pub enum KlPlace {
        Loss = "loss",
        Reward = "reward",
    }
}
