//! Gradients of parts of a batch, added in a fixed order.

use tch::{Tensor, no_grad_guard};

use super::AdamW;
use r1_base::error::Result;

/// The gradient of each tensor of an optimiser; `None` for tensors that had none.
type Gradients = Vec<Option<Tensor>>;

/// Sums gradients of the parts of a batch in the order of a binary tree, `((0 + 1) + (2 + 3))`, so
/// that the bits of the sum do not depend on how many processes compute the parts. It holds at most
/// one sum per level.
#[derive(Debug, Default)]
pub struct GradientTree {
    /// Sums with the number of their parts, which decreases.
    sums: Vec<(usize, Gradients)>,
}

impl GradientTree {
    /// Adds the gradients of the next part, and removes them from the optimiser's tensors.
    pub fn push(&mut self, optimizer: &mut AdamW) -> Result<()> {
        let all: Vec<usize> = (0..optimizer.tensors()).collect();
        let (mut parts, mut sum) = (1, optimizer.take_gradients(&all)?);
        while let Some((_, left)) = self.sums.pop_if(|(left, _)| *left == parts) {
            let pairs = left.into_iter().zip(sum);
            (parts, sum) = (2 * parts, pairs.map(|(left, right)| add(left, right)).collect::<Result<_>>()?);
        }
        self.sums.push((parts, sum));
        Ok(())
    }

    /// The sum of some tensors' gradients with those of the last part, which are removed from the
    /// tensors. The results are in the order of `tensors`.
    pub fn complete(&mut self, optimizer: &mut AdamW, tensors: &[usize]) -> Result<Gradients> {
        let mut last = optimizer.take_gradients(tensors)?;
        for (_, left) in self.sums.iter_mut().rev() {
            for (sum, &tensor) in last.iter_mut().zip(tensors) {
                *sum = add(left[tensor].take(), sum.take())?;
            }
        }
        Ok(last)
    }

    /// Drops all sums.
    pub fn clear(&mut self) {
        self.sums.clear();
    }
}

fn add(left: Option<Tensor>, right: Option<Tensor>) -> Result<Option<Tensor>> {
    let _guard = no_grad_guard();
    match (left, right) {
        (Some(mut left), Some(right)) => Ok(Some(left.f_add_(&right)?)),
        (left, right) => Ok(left.or(right)),
    }
}
