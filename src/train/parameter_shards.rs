//! Weights that are divided among the processes by layers while gradients are computed (ZeRO-3,
//! arXiv:1910.02054). A process has the weights of its own layers, and of the layer that is
//! computed.

use std::collections::BTreeMap;
use std::sync::Arc;

use tch::Tensor;

use crate::error::Result;
use crate::model::{Model, WithoutKernels, layer_of};
use crate::native::{release_storage, restore_storage};
use crate::process_group::ProcessGroup;

/// The layers of a model, which computes them without the CPU kernels. All processes call its
/// functions in the same order.
pub(super) struct ParameterShards {
    /// `None` for one process, whose bits are those of several.
    group: Option<Arc<ProcessGroup>>,
    _without_kernels: WithoutKernels,
    layers: Vec<DividedLayer>,
}

struct DividedLayer {
    owner: usize,
    parameters: Vec<Tensor>,
    /// Tensors without memory, with the sizes of their storages.
    freed: Vec<(Tensor, i64)>,
}

impl ParameterShards {
    /// Frees the memory of the layers of other processes.
    pub(super) fn release(group: Option<&Arc<ProcessGroup>>, model: &Model) -> Result<Self> {
        let mut by_layer: BTreeMap<usize, Vec<Tensor>> = BTreeMap::new();
        for (name, tensor) in model.parameters() {
            if let Some(layer) = layer_of(&name) {
                by_layer.entry(layer).or_default().push(tensor);
            }
        }
        let (count, processes) = (model.config.num_hidden_layers, group.map_or(1, |group| group.size()));
        let layer = |(layer, parameters)| {
            let owner = owner_of_layer(layer, count, processes);
            DividedLayer { owner, parameters, freed: Vec::new() }
        };
        let layers = by_layer.into_iter().map(layer).collect();
        let mut all = Self { group: group.cloned(), layers, _without_kernels: model.without_kernels() };
        (0..all.layers.len()).try_for_each(|layer| all.free(layer))?;
        Ok(all)
    }

    /// Receives the weights of a layer from their owner.
    pub(super) fn gather(&mut self, layer: usize) -> Result<()> {
        let layer = &mut self.layers[layer];
        for (tensor, bytes) in layer.freed.drain(..) {
            restore_storage(&tensor, bytes)?;
        }
        self.group.as_ref().map_or(Ok(()), |group| group.broadcast_tensors(&layer.parameters, layer.owner))
    }

    /// Frees the memory of a layer of another process.
    pub(super) fn free(&mut self, layer: usize) -> Result<()> {
        let layer = &mut self.layers[layer];
        if self.group.as_ref().is_some_and(|group| layer.owner != group.rank()) {
            for parameter in &layer.parameters {
                let bytes = release_storage(parameter)?;
                if bytes > 0 {
                    layer.freed.push((parameter.shallow_clone(), bytes));
                }
            }
        }
        Ok(())
    }

    /// The exchange of a forward and a backward pass that only the other processes compute.
    pub(super) fn serve_pass(&mut self) -> Result<()> {
        for layer in (0..self.layers.len()).chain((0..self.layers.len()).rev()) {
            self.gather(layer)?;
            self.free(layer)?;
        }
        Ok(())
    }

    /// Receives the weights of all layers.
    pub(super) fn restore(mut self) -> Result<()> {
        (0..self.layers.len()).try_for_each(|layer| self.gather(layer))
    }
}

impl Drop for ParameterShards {
    /// After an error the weights of other processes are not known: they become NaN, which no
    /// checkpoint is written with.
    fn drop(&mut self) {
        let _guard = tch::no_grad_guard();
        for (tensor, bytes) in self.layers.iter_mut().flat_map(|layer| layer.freed.drain(..)) {
            if restore_storage(&tensor, bytes).is_ok() {
                let _ = tensor.shallow_clone().f_fill_(f64::NAN);
            }
        }
    }
}

/// The process that has a layer.
pub(super) fn owner_of_layer(layer: usize, layers: usize, processes: usize) -> usize {
    layer * processes / layers.max(1)
}
