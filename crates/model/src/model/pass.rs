//! A forward pass for training, and its backward pass.
//!
//! With activation checkpointing (arXiv:1604.06174), only the inputs of the layers are kept, and
//! backward recomputes each layer. Gradients are bitwise equal.

use tch::{Kind, Tensor, no_grad_guard};

use super::decoder::{Angles, BatchRows, Residual, scaled};
use super::{Model, Packed};
use r1_base::error::Result;

/// Hidden states, and the state of backward.
#[derive(Debug)]
pub struct Pass<'a> {
    hidden: Tensor,
    again: Option<Again<'a>>,
}

/// Inputs for the recomputation of the layers.
#[derive(Debug)]
struct Again<'a> {
    model: &'a Model,
    /// Ids of distinct tokens.
    ids: Tensor,
    rows: BatchRows,
    angles: Angles,
    /// Input of each layer, `[D, E]` for D distinct tokens.
    inputs: Vec<Tensor>,
    /// Output of the last layer: a leaf of the graph of the loss.
    last: Tensor,
}

impl Model {
    /// [`forward`](Self::forward) for training. Call backward on the pass, not on the loss.
    pub fn learn(&self, batch: &Packed) -> Result<Pass<'_>> {
        // The CPU kernels have their own checkpointing.
        if !self.checkpointing || self.native_f32().is_some() {
            return Ok(Pass { hidden: self.forward(batch)?, again: None });
        }
        let rows = self.rows(batch)?;
        let (angles, ids) = (self.angles_of(batch, &rows)?, rows.take(&batch.ids)?);
        let mut inputs = Vec::with_capacity(self.parameters.layers.len());
        let last = {
            let _guard = no_grad_guard();
            let mut x = self.embed(&ids)?;
            for index in 0..self.parameters.layers.len() {
                let next = self.row_layer(index, &Residual::new(x.shallow_clone()), &angles, &rows)?.sum()?;
                inputs.push(std::mem::replace(&mut x, next));
            }
            x
        };
        let last = last.f_set_requires_grad(true)?;
        let hidden = rows.spread(&scaled(self.norm(&last, &self.parameters.norm)?, self.config.logits_scale)?)?;
        let again = Again { model: self, ids, rows, angles, inputs, last };
        Ok(Pass { hidden, again: Some(again) })
    }
}

impl Pass<'_> {
    /// Hidden states `[T, E]` after the final norm.
    pub fn hidden(&self) -> &Tensor {
        &self.hidden
    }

    /// Accumulates the gradients of a loss, a function of the hidden states, in the parameters.
    pub fn backward(self, loss: &Tensor) -> Result<()> {
        loss.f_backward()?;
        let Some(Again { model, ids, rows, angles, mut inputs, last }) = self.again else { return Ok(()) };
        drop(self.hidden);
        let mut gradient = last.grad();
        drop(last);
        while let (Some(input), true) = (inputs.pop(), gradient.defined()) {
            let input = input.f_set_requires_grad(true)?;
            let residual = Residual::new(input.shallow_clone());
            let output = model.row_layer(inputs.len(), &residual, &angles, &rows)?.sum()?;
            pull(&output, &gradient)?;
            gradient = input.grad();
        }
        // A frozen embedding has no graph.
        if gradient.defined() && model.parameters.embed.requires_grad() {
            pull(&model.embed(&ids)?, &gradient)?;
        }
        Ok(())
    }
}

/// Backward from `output` with the given gradient.
fn pull(output: &Tensor, gradient: &Tensor) -> Result<()> {
    let wide = if output.kind() == Kind::Double { Kind::Double } else { Kind::Float };
    Ok(output.f_mul(gradient)?.f_sum(wide)?.f_backward()?)
}
