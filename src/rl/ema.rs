//! An exponential moving average of weights.

use tch::{Kind as Dtype, Tensor, no_grad_guard};

use crate::error::{Error, Kind, Result};

/// The average, in f32 (f64 for f64 weights) for weights of any type.
#[derive(Debug)]
pub struct Ema {
    decay: f64,
    updates: u64,
    slots: Vec<(String, Tensor)>,
}

/// Name of the update count in a saved state.
const UPDATES: &str = "updates";

impl Ema {
    /// Starts at the current weights.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a decay outside [0, 1).
    pub fn new(parameters: &[(String, Tensor)], decay: f64) -> Result<Self> {
        if !(0.0..1.0).contains(&decay) {
            return Err(Error::new(Kind::Usage, format!("the decay of the average is from 0 to below 1, not {decay}")));
        }
        let _guard = no_grad_guard();
        let slot = |(name, weight): &(String, Tensor)| -> Result<(String, Tensor)> {
            let dtype = if weight.kind() == Dtype::Double { Dtype::Double } else { Dtype::Float };
            // A copy even when the type stays the same.
            Ok((name.clone(), weight.f_detach()?.f_to_kind(dtype)?.f_add_scalar(0.0)?))
        };
        Ok(Self { decay, updates: 0, slots: parameters.iter().map(slot).collect::<Result<_>>()? })
    }

    /// `average = d average + (1 - d) weight` with `d = min(decay, (1 + n) / (10 + n))` at update
    /// n, counted from 1, so that the initial weights soon have little influence.
    ///
    /// # Errors
    /// [`Kind::Internal`] if these are not the parameters that it was created with.
    pub fn update(&mut self, parameters: &[(String, Tensor)]) -> Result<()> {
        let _guard = no_grad_guard();
        self.same(parameters)?;
        self.updates += 1;
        let n = self.updates as f64;
        let decay = self.decay.min((1.0 + n) / (10.0 + n));
        for ((_, average), (_, weight)) in self.slots.iter_mut().zip(parameters) {
            let weight = weight.f_detach()?.f_to_kind(average.kind())?;
            let _ = average.f_lerp_(&weight, 1.0 - decay)?;
        }
        Ok(())
    }

    /// Copies the average into the weights, for example to evaluate it, and returns the previous
    /// weights, for [`Ema::give_back`].
    ///
    /// # Errors
    /// [`Kind::Internal`] if these are not the parameters that it was created with.
    pub fn lend(&self, parameters: &mut [(String, Tensor)]) -> Result<Vec<Tensor>> {
        let _guard = no_grad_guard();
        self.same(parameters)?;
        let mut kept = Vec::with_capacity(parameters.len());
        for ((_, average), (_, weight)) in self.slots.iter().zip(parameters) {
            kept.push(weight.f_detach()?.f_add_scalar(0.0)?);
            weight.f_copy_(average)?;
        }
        Ok(kept)
    }

    /// Restores the weights that [`Ema::lend`] returned.
    pub fn give_back(parameters: &mut [(String, Tensor)], kept: &[Tensor]) -> Result<()> {
        let _guard = no_grad_guard();
        for ((_, weight), kept) in parameters.iter_mut().zip(kept) {
            weight.f_copy_(kept)?;
        }
        Ok(())
    }

    /// The average and the number of updates, to be saved. Shallow copies: write them before the
    /// next update.
    pub fn state(&self) -> Vec<(String, Tensor)> {
        let count = (UPDATES.to_owned(), Tensor::from_slice(&[self.updates as i64]));
        let average = self.slots.iter().map(|(name, average)| (name.clone(), average.shallow_clone()));
        std::iter::once(count).chain(average).collect()
    }

    /// Restores a saved [`Ema::state`].
    ///
    /// # Errors
    /// [`Kind::Store`] names a tensor that is missing or has another shape. Nothing has changed
    /// then.
    pub fn load_state(&mut self, state: &std::collections::HashMap<String, Tensor>) -> Result<()> {
        let _guard = no_grad_guard();
        let find = |name: &str, size: &[i64]| {
            state.get(name).filter(|tensor| tensor.size() == size).ok_or_else(|| {
                Error::new(
                    Kind::Store,
                    format!("the saved average does not match the model: `{name}` is missing or has another shape"),
                )
            })
        };
        let updates = find(UPDATES, &[1])?.f_int64_value(&[0])?;
        let averages =
            self.slots.iter().map(|(name, average)| find(name, &average.size())).collect::<Result<Vec<_>>>()?;
        self.updates = updates.max(0) as u64;
        for ((_, average), saved) in self.slots.iter_mut().zip(averages) {
            average.f_copy_(saved)?;
        }
        Ok(())
    }

    fn same(&self, parameters: &[(String, Tensor)]) -> Result<()> {
        let fits = self.slots.len() == parameters.len()
            && self
                .slots
                .iter()
                .zip(parameters)
                .all(|(slot, other)| slot.0 == other.0 && slot.1.size() == other.1.size());
        if fits { Ok(()) } else { Err(Error::new(Kind::Internal, "an average of other parameters")) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]

    use super::*;

    fn weight(value: f64, dtype: Dtype) -> Vec<(String, Tensor)> {
        vec![("w".to_owned(), Tensor::from_slice(&[value]).to_kind(dtype))]
    }

    fn value(parameters: &[(String, Tensor)], name: &str) -> f64 {
        parameters.iter().find(|(key, _)| key == name).unwrap().1.double_value(&[0])
    }

    #[test]
    fn the_average_follows_the_weights() {
        let mut ema = Ema::new(&weight(1.0, Dtype::Double), 0.25).unwrap();
        ema.update(&weight(2.0, Dtype::Double)).unwrap(); // d = 2/11
        let first = 2.0 / 11.0 + 2.0 * 9.0 / 11.0;
        assert!((value(&ema.state(), "w") - first).abs() < 1e-15);
        ema.update(&weight(4.0, Dtype::Double)).unwrap(); // d = 0.25 and 3/12 meet
        assert!((value(&ema.state(), "w") - (0.25 * first + 3.0)).abs() < 1e-15);
        assert!(ema.update(&[]).is_err() && Ema::new(&[], 1.0).is_err());
    }

    #[test]
    fn lent_weights_and_the_saved_average_are_restored() {
        let mut ema = Ema::new(&weight(1.0, Dtype::BFloat16), 0.9).unwrap();
        let mut now = weight(3.0, Dtype::BFloat16);
        ema.update(&now).unwrap();
        let average = value(&ema.state(), "w");
        let kept = ema.lend(&mut now).unwrap();
        assert!((now[0].1.double_value(&[0]) - average).abs() < 0.01 && now[0].1.kind() == Dtype::BFloat16);
        Ema::give_back(&mut now, &kept).unwrap();
        assert_eq!((now[0].1.double_value(&[0]), value(&ema.state(), "w")), (3.0, average));
        let mut other = Ema::new(&weight(0.0, Dtype::BFloat16), 0.9).unwrap();
        other.load_state(&ema.state().into_iter().collect()).unwrap();
        assert_eq!((value(&other.state(), "w"), value(&other.state(), "updates")), (average, 1.0));
        assert!(other.load_state(&std::collections::HashMap::new()).is_err());
    }
}
