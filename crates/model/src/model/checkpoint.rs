//! The tensors of a model's checkpoint: which parameters each of them holds.

use tch::Tensor;

use super::config::ExpertStorage;
use super::layers::{Block, Linear, Mlp, Parameters};
use super::stored::StoredTensor;

impl Parameters {
    /// The tensors of a checkpoint.
    pub(super) fn stored(&self) -> Vec<StoredTensor> {
        let mut together = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            if let Block::Sparse { experts, storage: ExpertStorage::Transposed, .. } = &layer.block {
                let stored = of_experts(experts).into_iter().filter(|(_, parts)| !parts[0].is_empty());
                let name = |name| self.name(index, &format!("mlp.experts.{name}"));
                together.extend(stored.map(|(part, parts)| StoredTensor::of_experts(name(part), parts)));
            }
        }
        let single = |name: &str| together.is_empty() || !name.contains(".mlp.experts.");
        let named: Vec<_> = self.named().into_iter().filter(|(name, _)| single(name)).collect();
        let mut all = StoredTensor::all(&named);
        all.extend(together);
        all
    }
}

/// Weights and biases of experts, with their names in a checkpoint.
fn of_experts<'a>(experts: &'a [Mlp]) -> [(&'static str, Vec<Vec<Tensor>>); 4] {
    let each = |parts: &dyn Fn(&'a Mlp) -> Vec<Tensor>| experts.iter().map(parts).collect();
    let both = |expert: &'a Mlp| std::iter::once(&expert.gate).chain(&expert.up);
    let weight = |linear: &Linear| linear.weight.shallow_clone();
    let bias = |linear: &Linear| linear.bias.as_ref().map(Tensor::shallow_clone);
    [
        ("gate_up_proj", each(&|expert| both(expert).map(weight).collect())),
        ("gate_up_proj_bias", each(&|expert| both(expert).filter_map(bias).collect())),
        ("down_proj", each(&|expert| vec![weight(&expert.down)])),
        ("down_proj_bias", each(&|expert| bias(&expert.down).into_iter().collect())),
    ]
}
