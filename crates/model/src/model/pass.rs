//! A forward pass for training, and its backward pass.
//!
//! With activation checkpointing (arXiv:1604.06174), only the inputs of the layers are kept, and
//! backward recomputes each layer. Gradients are bitwise equal. They are also equal with
//! [`LayerHooks`], for which the graph is cut between the layers.

use tch::{Kind, Tensor, no_grad_guard};

use super::decoder::{Angles, BatchRows, Residual, scaled};
use super::{Model, Packed};
use crate::native;
use r1_base::error::Result;

/// What is done around the computation of each layer, such as an exchange of gradients while the
/// other layers are computed. The default does nothing.
pub trait LayerHooks {
    /// Called before a layer is computed, in the forward pass and if backward recomputes it.
    fn before(&mut self, _layer: usize) -> Result<()> {
        Ok(())
    }

    /// Called after the forward pass of a layer.
    fn after_forward(&mut self, _layer: usize) -> Result<()> {
        Ok(())
    }

    /// Called when the gradients of a layer's parameters are complete, from the last layer to the
    /// first.
    fn after_backward(&mut self, _layer: usize) -> Result<()> {
        Ok(())
    }
}

/// Hooks that do nothing.
struct NoHooks;

impl LayerHooks for NoHooks {}

/// Hidden states, and the state of backward.
#[derive(Debug)]
pub struct Pass<'a> {
    hidden: Tensor,
    layers: Layers<'a>,
}

/// The state of the layers for backward.
#[derive(Debug)]
enum Layers<'a> {
    /// A part of the graph of the hidden states.
    InGraph,
    Recomputed(Box<Recomputed<'a>>),
    Cut(Cut),
}

/// Inputs for the recomputation of the layers.
#[derive(Debug)]
struct Recomputed<'a> {
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

/// The graphs of the embedding and of each layer. The output of each one is a leaf of the next one.
#[derive(Debug)]
struct Cut {
    outputs: Vec<Residual>,
    leaves: Vec<Residual>,
    /// What images add to the outputs of the first layers: in the graph of the embedding, and as
    /// leaves.
    deep: Vec<(Tensor, Tensor)>,
}

impl Model {
    /// [`forward`](Self::forward) for training. Call backward on the pass, not on the loss.
    pub fn learn(&self, batch: &Packed) -> Result<Pass<'_>> {
        // The CPU kernels have their own checkpointing.
        if self.checkpointing && self.native_f32().is_none() {
            return self.learn_recomputed(batch, &mut NoHooks);
        }
        Ok(Pass { hidden: self.forward(batch)?, layers: Layers::InGraph })
    }

    /// [`learn`](Self::learn) for [`Pass::backward_by_layer`].
    pub fn learn_by_layer(&self, batch: &Packed) -> Result<Pass<'_>> {
        if self.checkpointing || self.native_f32().is_some() {
            return self.learn(batch);
        }
        let rows = self.rows(batch)?;
        let angles = self.angles_of(batch, &rows)?;
        let mut output = Residual::new(self.embed_rows(&rows.take(&batch.ids)?, &rows)?);
        let deep = rows.cut_images()?;
        let (mut outputs, mut leaves) = (Vec::new(), Vec::new());
        for index in 0..self.parameters.layers.len() {
            let leaf = output.leaf()?;
            let next = self.row_layer(index, &leaf, &angles, &rows)?;
            outputs.push(std::mem::replace(&mut output, next));
            leaves.push(leaf);
        }
        let last = output.leaf()?;
        let hidden = scaled(self.add_norm(&last, &self.parameters.norm)?.0, self.config.logits_scale)?;
        outputs.push(output);
        leaves.push(last);
        Ok(Pass { hidden: rows.spread(&hidden)?, layers: Layers::Cut(Cut { outputs, leaves, deep }) })
    }

    /// [`learn`](Self::learn) with activation checkpointing, in libtorch's operations also where
    /// there are CPU kernels. `hooks` may free the weights of a layer after its forward pass.
    pub fn learn_recomputed(&self, batch: &Packed, hooks: &mut dyn LayerHooks) -> Result<Pass<'_>> {
        let rows = self.rows(batch)?;
        let (angles, ids) = (self.angles_of(batch, &rows)?, rows.take(&batch.ids)?);
        let mut inputs = Vec::with_capacity(self.parameters.layers.len());
        let last = {
            let _guard = no_grad_guard();
            let mut x = self.embed_rows(&ids, &rows)?;
            for index in 0..self.parameters.layers.len() {
                hooks.before(index)?;
                let next = self.row_layer(index, &Residual::new(x.shallow_clone()), &angles, &rows)?.sum()?;
                hooks.after_forward(index)?;
                inputs.push(std::mem::replace(&mut x, next));
            }
            x
        };
        let last = last.f_set_requires_grad(true)?;
        let hidden = rows.spread(&scaled(self.norm(&last, &self.parameters.norm)?, self.config.logits_scale)?)?;
        let layers = Layers::Recomputed(Box::new(Recomputed { model: self, ids, rows, angles, inputs, last }));
        Ok(Pass { hidden, layers })
    }
}

impl Pass<'_> {
    /// Hidden states `[T, E]` after the final norm.
    pub fn hidden(&self) -> &Tensor {
        &self.hidden
    }

    /// Accumulates the gradients of a loss, a function of the hidden states, in the parameters.
    pub fn backward(self, loss: &Tensor) -> Result<()> {
        match self.layers {
            Layers::InGraph => Ok(loss.f_backward()?),
            _ => self.backward_by_layer(loss, &mut NoHooks),
        }
    }

    /// [`backward`](Self::backward) with hooks. The pass is one of
    /// [`learn_by_layer`](Model::learn_by_layer) or [`learn_recomputed`](Model::learn_recomputed);
    /// without CPU kernels, the hooks of a pass of [`learn`](Model::learn) are not called.
    pub fn backward_by_layer(self, loss: &Tensor, hooks: &mut dyn LayerHooks) -> Result<()> {
        match self.layers {
            Layers::InGraph => native::by_layer(&mut |layer| hooks.after_backward(layer), || Ok(loss.f_backward()?)),
            Layers::Recomputed(layers) => {
                loss.f_backward()?;
                drop(self.hidden);
                layers.backward(hooks)
            }
            Layers::Cut(layers) => {
                loss.f_backward()?;
                drop(self.hidden);
                layers.backward(hooks)
            }
        }
    }
}

impl Recomputed<'_> {
    fn backward(self, hooks: &mut dyn LayerHooks) -> Result<()> {
        let Recomputed { model, ids, rows, angles, mut inputs, last } = self;
        let mut gradient = last.grad();
        drop(last);
        let deep = rows.cut_images()?;
        while let (Some(input), true) = (inputs.pop(), gradient.defined()) {
            let input = input.f_set_requires_grad(true)?;
            let residual = Residual::new(input.shallow_clone());
            hooks.before(inputs.len())?;
            let output = model.row_layer(inputs.len(), &residual, &angles, &rows)?.sum()?;
            pull(&[(output, gradient)])?;
            hooks.after_backward(inputs.len())?;
            gradient = input.grad();
        }
        // Frozen embeddings have no graph.
        let embedded = model.embed_rows(&ids, &rows)?;
        if gradient.defined() && embedded.requires_grad() {
            let graph = rows.cut_images()?.into_iter().map(|(graph, _)| graph);
            let images = graph.zip(deep.iter().map(|(_, leaf)| leaf.grad()));
            let all = images.filter(|(graph, gradient)| graph.requires_grad() && gradient.defined());
            pull(&all.chain([(embedded, gradient)]).collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

impl Cut {
    fn backward(self, hooks: &mut dyn LayerHooks) -> Result<()> {
        let Cut { mut outputs, mut leaves, mut deep } = self;
        while let (Some(output), Some(leaf)) = (outputs.pop(), leaves.pop()) {
            let both = [Some((output.x, leaf.x)), output.delta.zip(leaf.delta)];
            // The last one is the embedding.
            let images = if outputs.is_empty() { std::mem::take(&mut deep) } else { Vec::new() };
            let both = both.into_iter().flatten().chain(images);
            let gradients = both.map(|(output, leaf)| (output, leaf.grad()));
            let with_graph: Vec<(Tensor, Tensor)> =
                gradients.filter(|(output, gradient)| output.requires_grad() && gradient.defined()).collect();
            pull(&with_graph)?;
            drop(with_graph);
            if let Some(layer) = outputs.len().checked_sub(1) {
                hooks.after_backward(layer)?;
            }
        }
        Ok(())
    }
}

impl Residual {
    /// The same values as leaves of another graph.
    fn leaf(&self) -> Result<Self> {
        let leaf = |x: &Tensor| x.f_detach()?.f_set_requires_grad(true);
        Ok(Self { x: leaf(&self.x)?, delta: self.delta.as_ref().map(leaf).transpose()? })
    }
}

/// Backward from outputs of one graph with the given gradients.
fn pull(outputs: &[(Tensor, Tensor)]) -> Result<()> {
    let mut sum: Option<Tensor> = None;
    for (output, gradient) in outputs {
        let wide = if output.kind() == Kind::Double { Kind::Double } else { Kind::Float };
        let product = output.f_mul(gradient)?.f_sum(wide)?;
        sum = Some(sum.map_or(Ok(product.shallow_clone()), |sum| sum.f_add(&product))?);
    }
    Ok(sum.map_or(Ok(()), |sum| sum.f_backward())?)
}
