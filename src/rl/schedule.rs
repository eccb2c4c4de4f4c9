//! Learning-rate schedules.

use std::f64::consts::PI;

use crate::config::Decay;

/// A learning rate for every step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    pub base: f64,
    /// Steps of the warm-up. Step `s` has `(s + 1) / warmup` of the base rate, so that the first
    /// update already changes the weights (in other systems its rate is often 0, which wastes a
    /// rollout) and the last step of the warm-up has the full rate.
    pub warmup: usize,
    /// The schedule after the warm-up. Cosine is half a period (arXiv:1608.03983).
    pub decay: Decay,
    /// Number of steps after which the decay reaches its floor.
    pub total: usize,
    /// The floor, as a share of the base rate.
    pub floor: f64,
}

impl Schedule {
    /// The learning rate of `step`, counted from 0. After the last step of a decay it stays at the
    /// floor.
    pub fn at(&self, step: usize) -> f64 {
        if step < self.warmup {
            return self.base * (step + 1) as f64 / self.warmup as f64;
        }
        match self.decay {
            Decay::Constant => self.base,
            Decay::Linear => self.base * (1.0 + (self.floor - 1.0) * self.progress(step)),
            Decay::Cosine => {
                let height = 0.5 * (1.0 + (PI * self.progress(step)).cos());
                self.base * (self.floor + (1.0 - self.floor) * height)
            }
        }
    }

    /// 0 at the first step after the warm-up, 1 at the last one.
    fn progress(&self, step: usize) -> f64 {
        let span = self.total.saturating_sub(self.warmup + 1);
        let done = step - self.warmup;
        if span == 0 { f64::from(u8::from(done > 0)) } else { (done as f64 / span as f64).min(1.0) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)]

    use super::*;

    /// The rates of `steps` steps; the decay ends after `total` at `floor`.
    fn rates(warmup: usize, (decay, total, floor): (Decay, usize, f64), steps: usize) -> Vec<f64> {
        let schedule = Schedule { base: 8.0, warmup, decay, total, floor };
        (0..steps).map(|step| schedule.at(step)).collect()
    }

    #[test]
    fn constant_and_warm_up() {
        assert_eq!(rates(0, (Decay::Constant, 3, 0.0), 3), [8.0; 3]);
        assert_eq!(rates(4, (Decay::Constant, 6, 0.0), 6), [2.0, 4.0, 6.0, 8.0, 8.0, 8.0]);
    }

    #[test]
    fn linear_ends_at_the_floor() {
        assert_eq!(rates(2, (Decay::Linear, 7, 0.0), 8), [4.0, 8.0, 8.0, 6.0, 4.0, 2.0, 0.0, 0.0]);
        assert_eq!(rates(0, (Decay::Linear, 3, 0.5), 4), [8.0, 6.0, 4.0, 4.0]);
    }

    #[test]
    fn cosine_ends_at_the_floor() {
        let got = rates(0, (Decay::Cosine, 5, 0.0), 6);
        let half = 0.5_f64.sqrt() / 2.0;
        for (got, want) in got.iter().zip([1.0, 0.5 + half, 0.5, 0.5 - half, 0.0, 0.0]) {
            assert!((got - 8.0 * want).abs() < 1e-14, "{got} {want}");
        }
        assert_eq!(rates(1, (Decay::Cosine, 4, 0.25), 5), [8.0, 8.0, 5.0, 2.0, 2.0]);
    }

    #[test]
    fn a_run_of_warm_up_alone_does_not_divide_by_zero() {
        assert_eq!(rates(2, (Decay::Cosine, 2, 0.0), 4), [4.0, 8.0, 8.0, 0.0]);
        assert_eq!(rates(5, (Decay::Linear, 2, 0.0), 2), [1.6, 3.2]);
    }
}
