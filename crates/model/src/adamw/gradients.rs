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
        let (mut parts, mut sum) = (1, optimizer.take_gradients()?);
        while let Some((_, left)) = self.sums.pop_if(|(left, _)| *left == parts) {
            (parts, sum) = (2 * parts, add(left, sum)?);
        }
        self.sums.push((parts, sum));
        Ok(())
    }

    /// Sets the sum as the gradients of the optimiser's next step.
    pub fn finish(mut self, optimizer: &mut AdamW) -> Result<()> {
        let Some((_, mut sum)) = self.sums.pop() else { return Ok(()) };
        while let Some((_, left)) = self.sums.pop() {
            sum = add(left, sum)?;
        }
        optimizer.set_gradients(sum);
        Ok(())
    }
}

fn add(left: Gradients, right: Gradients) -> Result<Gradients> {
    let _guard = no_grad_guard();
    let pair = |(left, right): (Option<Tensor>, Option<Tensor>)| match (left, right) {
        (Some(mut left), Some(right)) => Ok(Some(left.f_add_(&right)?)),
        (left, right) => Ok(left.or(right)),
    };
    left.into_iter().zip(right).map(pair).collect()
}
