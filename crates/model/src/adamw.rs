//! AdamW (arXiv:1711.05101) over named tensors, in place, with global-norm clipping.
//!
//! Moments are f32 (f64 for f64 weights); weights in bf16 or f16 have an f32 master copy, so that
//! updates smaller than their last bit accumulate. The arithmetic is libtorch's own, fused. The
//! same gradients give the same bits.

use std::collections::HashMap;

use tch::{Kind as Dtype, Tensor, no_grad_guard};

use crate::native;
use r1_base::error::{Error, Kind, Result};

mod gradients;
mod partition;

pub use self::gradients::GradientTree;
pub use self::partition::Exchange;

/// Maximum bytes of gradients in the type of the moments at a time.
const COPIED: usize = 256 << 20;

/// Constants of a run; the learning rate comes with every step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWOptions {
    /// Decay rates of the first and second moment.
    pub betas: (f64, f64),
    pub eps: f64,
    /// Weights shrink by `lr * weight_decay` per step.
    pub weight_decay: f64,
    /// Excludes gains and biases (tensors of fewer than two dimensions) from weight decay.
    pub decay_matrices_only: bool,
}

impl Default for AdamWOptions {
    fn default() -> Self {
        Self { betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0, decay_matrices_only: true }
    }
}

/// Settings of some tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// In place of [`AdamWOptions::weight_decay`], also for gains and biases.
    pub weight_decay: Option<f64>,
    /// The learning rate is multiplied by this; 0 freezes.
    pub rate: f64,
}

/// Name of the update count in a saved state.
const STEP: &str = "step";

/// The optimiser. Tensors are shared with the model, which reads the updated values.
#[derive(Debug)]
pub struct AdamW {
    options: AdamWOptions,
    slots: Vec<ParameterSlot>,
    /// Updates so far.
    step: i64,
    /// The part whose state is here, if several processes divide the state.
    part: Option<usize>,
}

#[derive(Debug)]
struct ParameterSlot {
    name: String,
    /// The part that has its state.
    owner: usize,
    /// The tensor that the model uses; `backward` adds its gradient.
    weight: Tensor,
    weight_decay: f64,
    rate: f64,
    /// For weights of less precision than the moments.
    master: Option<Tensor>,
    /// The gradients of earlier micro-batches of such weights, or of a sum of several parts of the
    /// batch, in the type of the moments.
    sum: Option<Tensor>,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
}

impl AdamW {
    /// Tracks every tensor that requires a gradient; frozen ones are left out.
    pub fn new(parameters: Vec<(String, Tensor)>, options: AdamWOptions) -> Result<Self> {
        Self::with_groups(parameters, options, |_| None)
    }

    /// [`AdamW::new`] with the settings that `group_of` returns for the names of some tensors.
    pub fn with_groups(
        parameters: Vec<(String, Tensor)>,
        options: AdamWOptions,
        group_of: impl Fn(&str) -> Option<Group>,
    ) -> Result<Self> {
        let _guard = no_grad_guard();
        let mut slots = Vec::new();
        for (name, weight) in parameters.into_iter().filter(|(_, weight)| weight.requires_grad()) {
            let dtype = if weight.kind() == Dtype::Double { Dtype::Double } else { Dtype::Float };
            let master = if weight.kind() == dtype { None } else { Some(weight.f_detach()?.f_to_kind(dtype)?) };
            let zeros = || Tensor::f_zeros(weight.size(), (dtype, weight.device()));
            let (exp_avg, exp_avg_sq) = (zeros()?, zeros()?);
            let group = group_of(&name);
            let default_decay =
                if options.decay_matrices_only && weight.dim() < 2 { 0.0 } else { options.weight_decay };
            let weight_decay = group.and_then(|group| group.weight_decay).unwrap_or(default_decay);
            let rate = group.map_or(1.0, |group| group.rate);
            let owner = 0;
            slots.push(ParameterSlot {
                name,
                owner,
                weight,
                weight_decay,
                rate,
                master,
                sum: None,
                exp_avg,
                exp_avg_sq,
            });
        }
        Ok(Self { options, slots, step: 0, part: None })
    }

    /// Drops all gradients and frees their memory.
    pub fn zero_grad(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.sum = None);
        // Does not fail for trainable tensors; a tensor that kept its gradient must have it zeroed.
        if native::forget_gradients(self.slots.iter().map(|slot| &slot.weight)).is_err() {
            self.slots.iter_mut().for_each(|slot| slot.weight.zero_grad());
        }
    }

    /// Adds the gradients of weights in bf16 and f16 to sums in f32. Call it after each of several
    /// micro-batches: `backward` adds to a gradient in the type of the weight, and in bf16 the sum
    /// of 32 micro-batches is off by 6e-3 of its norm.
    pub fn accumulate(&mut self) -> Result<()> {
        let _guard = no_grad_guard();
        for slot in self.slots.iter_mut().filter(|slot| slot.master.is_some()) {
            let gradient = slot.weight.grad();
            if !gradient.defined() {
                continue;
            }
            match &mut slot.sum {
                Some(sum) => {
                    let _ = sum.f_add_(&gradient)?;
                }
                None => slot.sum = Some(gradient.f_to_kind(slot.exp_avg.kind())?),
            }
            native::forget_gradients(std::iter::once(&slot.weight))?;
        }
        Ok(())
    }

    /// The number of tensors.
    pub fn tensors(&self) -> usize {
        self.slots.len()
    }

    /// The names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.slots.iter().map(|slot| slot.name.as_str())
    }

    /// Removes the gradients of all micro-batches from some tensors, and returns them in the type
    /// of the moments; `None` for a tensor without one.
    pub fn take_gradients(&mut self, tensors: &[usize]) -> Result<Vec<Option<Tensor>>> {
        let _guard = no_grad_guard();
        let mut gradients = Vec::with_capacity(tensors.len());
        for &number in tensors {
            let slot = &mut self.slots[number];
            let total = slot.total()?;
            gradients.push(match total {
                Some(gradient) => Some(gradient.f_to_kind(slot.exp_avg.kind())?.f_contiguous()?),
                None => None,
            });
            slot.sum = None;
        }
        native::forget_gradients(tensors.iter().map(|&number| &self.slots[number].weight))?;
        Ok(gradients)
    }

    /// Zeros in the place of the gradient of a tensor that has none.
    pub fn no_gradient(&self, tensor: usize) -> Result<Tensor> {
        let slot = &self.slots[tensor];
        Ok(Tensor::f_zeros(slot.weight.size(), (slot.exp_avg.kind(), slot.weight.device()))?)
    }

    /// Sets the gradients of the next step, by tensor.
    pub fn set_gradients(&mut self, gradients: Vec<Option<Tensor>>) {
        for (slot, gradient) in self.slots.iter_mut().zip(gradients) {
            slot.sum = gradient;
        }
    }

    /// One update from the accumulated gradients, which are first scaled down together to a norm of
    /// `max_norm` at most (0 is off). Returns the norm before that. The gradients afterwards are
    /// undefined: drop them.
    ///
    /// A tensor without a gradient is updated as if its gradient were 0 (weight decay and momentum
    /// apply), because an update must not depend on whether it had a gradient before the last
    /// resume.
    ///
    /// # Errors
    /// [`Kind::Numeric`] names the first tensor whose gradient contains NaN or infinity. Nothing
    /// has changed then: drop the gradients and continue, or stop.
    pub fn step(&mut self, lr: f64, max_norm: f64) -> Result<f64> {
        self.step_with_norms(lr, max_norm, Ok)
    }

    /// [`step`](Self::step) with the gradients of the tensors whose state is here. `exchange` gets
    /// the norms of the gradients by tensor, 0 for other tensors, and returns all of them.
    pub fn step_with_norms(
        &mut self,
        lr: f64,
        max_norm: f64,
        exchange: impl FnOnce(Vec<f64>) -> Result<Vec<f64>>,
    ) -> Result<f64> {
        let _guard = no_grad_guard();
        let norm = self.total_norm(&exchange(self.gradient_norms()?)?)?;
        // As in torch.nn.utils.clip_grad_norm_.
        let scale = if max_norm > 0.0 { (max_norm / (norm + 1e-6)).min(1.0) } else { 1.0 };
        self.step += 1;
        // Tensors with the same settings are updated together, in groups that limit the copies of
        // their gradients.
        let mut rest = self.slots.as_slice();
        while let Some(first) = rest.first() {
            if !self.has_state(first) {
                rest = &rest[1..];
                continue;
            }
            let alike = |slot: &ParameterSlot| slot.settings() == first.settings() && self.has_state(slot);
            let mut bytes = 0;
            let fits = |slot: &&ParameterSlot| {
                bytes += slot.copied();
                alike(slot) && bytes <= COPIED
            };
            let (together, after) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            rest = after;
            self.update(together, lr, scale)?;
        }
        Ok(norm)
    }

    fn update(&self, slots: &[ParameterSlot], lr: f64, scale: f64) -> Result<()> {
        let Some(first) = slots.first() else { return Ok(()) };
        let gradients = slots.iter().map(ParameterSlot::gradient).collect::<Result<Vec<_>>>()?;
        let of = |(slot, gradient)| -> [&Tensor; 4] {
            let slot: &ParameterSlot = slot;
            [slot.master.as_ref().unwrap_or(&slot.weight), gradient, &slot.exp_avg, &slot.exp_avg_sq]
        };
        let tensors: Vec<[&Tensor; 4]> = slots.iter().zip(&gradients).map(of).collect();
        let (beta1, beta2) = self.options.betas;
        let settings = native::AdamWConstants {
            lr: lr * first.rate,
            beta1,
            beta2,
            eps: self.options.eps,
            weight_decay: first.weight_decay,
            scale,
            step: self.step,
        };
        native::adamw(&tensors, &settings)?;
        for slot in slots {
            if let Some(master) = &slot.master {
                slot.weight.shallow_clone().f_copy_(master)?;
            }
        }
        Ok(())
    }

    /// The global norm of all gradients.
    ///
    /// # Errors
    /// [`Kind::Numeric`] names the first tensor whose gradient contains NaN or infinity.
    pub fn grad_norm(&self) -> Result<f64> {
        self.total_norm(&self.gradient_norms()?)
    }

    /// The norm of each tensor's gradient, 0 without one.
    fn gradient_norms(&self) -> Result<Vec<f64>> {
        let _guard = no_grad_guard();
        let (mut numbers, mut norms) = (Vec::new(), Vec::new());
        for (number, slot) in self.slots.iter().enumerate() {
            if let Some(gradient) = slot.total()? {
                numbers.push(number);
                norms.push(gradient.f_norm_scalaropt_dtype(2.0, slot.exp_avg.kind())?);
            }
        }
        let mut all = vec![0.0; self.slots.len()];
        if !norms.is_empty() {
            // One transfer from the device for all tensors.
            let norms = Vec::<f64>::try_from(Tensor::f_stack(&norms, 0)?.f_to_kind(Dtype::Double)?)?;
            numbers.into_iter().zip(norms).for_each(|(number, norm)| all[number] = norm);
        }
        Ok(all)
    }

    fn total_norm(&self, norms: &[f64]) -> Result<f64> {
        if let Some((slot, _)) = self.slots.iter().zip(norms).find(|(_, norm)| !norm.is_finite()) {
            return Err(Error::new(Kind::Numeric, "a gradient contains NaN or infinity")
                .at(format!("tensor {}", slot.name))
                .hint("lower the learning rate, or check the rewards; this optimiser step was not taken"));
        }
        Ok(norms.iter().map(|norm| norm * norm).sum::<f64>().sqrt())
    }

    /// Everything but the weights, as tensors to be saved: `step` and, for each weight,
    /// `NAME.exp_avg`, `NAME.exp_avg_sq` and, where it has low precision, `NAME.master`. Of a state
    /// that is divided, the part of this process. Shallow copies: write them before the next step.
    pub fn state(&self) -> Vec<(String, Tensor)> {
        let mut state = vec![(STEP.to_owned(), Tensor::from_slice(&[self.step]))];
        for slot in self.slots.iter().filter(|slot| self.has_state(slot)) {
            let parts = slot.state().map(|(part, tensor)| (format!("{}.{part}", slot.name), tensor.shallow_clone()));
            state.extend(parts);
        }
        state
    }

    /// Restores a saved [`AdamW::state`]; the continued run is bitwise equal to an uninterrupted
    /// one.
    ///
    /// # Errors
    /// [`Kind::Store`] names a tensor that is missing, too many, or has another shape or type.
    /// Nothing has changed then.
    pub fn load_state(&mut self, mut state: HashMap<String, Tensor>) -> Result<()> {
        let _guard = no_grad_guard();
        let step = take(&mut state, STEP, &(vec![1], Dtype::Int64))?.f_int64_value(&[0])?;
        let mut loaded = Vec::with_capacity(self.slots.len());
        for slot in &self.slots {
            let like = (slot.weight.size(), slot.exp_avg.kind());
            let mut take = |part: &str| take(&mut state, &format!("{}.{part}", slot.name), &like);
            let (exp_avg, exp_avg_sq) = (take("exp_avg")?, take("exp_avg_sq")?);
            let master = slot.master.as_ref().map(|_| take("master")).transpose()?;
            loaded.push((exp_avg, exp_avg_sq, master));
        }
        if let Some(name) = state.keys().min() {
            return Err(damaged(name, "is not one of this model's"));
        }
        self.step = step;
        let part = self.part;
        let here = |slot: &ParameterSlot| part.is_none_or(|part| part == slot.owner);
        for (slot, (exp_avg, exp_avg_sq, master)) in self.slots.iter_mut().zip(loaded).filter(|(slot, _)| here(slot)) {
            slot.exp_avg.f_copy_(&exp_avg)?;
            slot.exp_avg_sq.f_copy_(&exp_avg_sq)?;
            if let (Some(current), Some(master)) = (&mut slot.master, master) {
                current.f_copy_(&master)?;
            }
        }
        Ok(())
    }
}

impl ParameterSlot {
    /// The properties that tensors of one fused update share.
    fn settings(&self) -> (u64, u64, Dtype, tch::Device) {
        (self.weight_decay.to_bits(), self.rate.to_bits(), self.exp_avg.kind(), self.weight.device())
    }

    /// Bytes of the gradient's copy, if it needs one, or of zeros in its place.
    fn copied(&self) -> usize {
        if self.sum.is_some() {
            return 0;
        }
        if self.master.is_some() || !self.weight.grad().defined() {
            self.weight.numel() * self.exp_avg.kind().elt_size_in_bytes()
        } else {
            0
        }
    }

    /// The tensors of its state, with the last parts of their names.
    fn state(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        let moments = [("exp_avg", &self.exp_avg), ("exp_avg_sq", &self.exp_avg_sq)];
        moments.into_iter().chain(self.master.as_ref().map(|master| ("master", master)))
    }

    /// The gradient of all micro-batches, if any reached this tensor.
    fn total(&self) -> Result<Option<Tensor>> {
        let last = self.weight.grad();
        Ok(match &self.sum {
            Some(sum) if last.defined() => Some(sum.f_add(&last)?),
            Some(sum) => Some(sum.shallow_clone()),
            None => last.defined().then_some(last),
        })
    }

    /// The gradient in the type of the moments.
    fn gradient(&self) -> Result<Tensor> {
        match self.total()? {
            Some(gradient) => Ok(gradient.f_to_kind(self.exp_avg.kind())?.f_contiguous()?),
            None => Ok(Tensor::f_zeros(self.weight.size(), (self.exp_avg.kind(), self.weight.device()))?),
        }
    }
}

/// Removes `name` from a saved state and checks its shape and type.
fn take(state: &mut HashMap<String, Tensor>, name: &str, (size, kind): &(Vec<i64>, Dtype)) -> Result<Tensor> {
    let tensor = state.remove(name).ok_or_else(|| damaged(name, "is missing"))?;
    if tensor.size() != *size || tensor.kind() != *kind {
        let problem = format!("is {:?} {:?}, not {kind:?} {size:?}", tensor.kind(), tensor.size());
        return Err(damaged(name, &problem));
    }
    Ok(tensor)
}

fn damaged(name: &str, what: &str) -> Error {
    Error::new(Kind::Store, format!("the saved optimiser state does not match the model: `{name}` {what}"))
        .hint("resume with the model and the trainer settings of the checkpoint")
}

#[cfg(test)]
mod tests;
