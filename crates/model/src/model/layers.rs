//! Parameters of a model, as a tree with the names of the checkpoint.

use tch::{Device, Kind, Tensor};

use super::Config;
use super::config::{ExpertStorage, Experts, Norms, Router, SharedExpert};
use super::experts::GroupedExperts;
use super::lora::Lora;
use super::mixers::Mixer;
use super::plain::Arithmetic;
use super::stacked::{Stack, stacks};
use super::vision::{TOWER, VisionTower};
use crate::native::Arena;
use r1_base::error::Result;

/// The use of a model's adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdapterUse {
    /// Computed beside the weights.
    Beside,
    /// Merged into copies of the weights, in sampling.
    Merged,
    Disabled,
}

/// A weight `[out, in]` with an optional bias `[out]`.
#[derive(Debug)]
pub(super) struct Linear {
    pub weight: Tensor,
    pub bias: Option<Tensor>,
    pub lora: Option<Lora>,
    /// A copy of the weight with the adapter merged in, for sampling.
    pub merged: Option<Tensor>,
}

impl Linear {
    pub(super) fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { weight, bias, lora: None, merged: None }
    }

    /// x `[T, in]` to `[T, out]`.
    pub(super) fn apply(&self, x: &Tensor, adapter: AdapterUse, arithmetic: Arithmetic) -> Result<Tensor> {
        let output = arithmetic.linear(x, self.weight(adapter), self.bias.as_ref())?;
        self.adapted(output, x, adapter, arithmetic)
    }

    /// The weight, or the one with the adapter merged in.
    pub(super) fn weight(&self, adapter: AdapterUse) -> &Tensor {
        self.merged.as_ref().filter(|_| adapter == AdapterUse::Merged).unwrap_or(&self.weight)
    }

    /// Adds the adapter's contribution to `output`, the projection of x without it, if it is
    /// computed beside the weights.
    pub(super) fn adapted(
        &self,
        output: Tensor,
        x: &Tensor,
        adapter: AdapterUse,
        arithmetic: Arithmetic,
    ) -> Result<Tensor> {
        match self.lora.as_ref().filter(|_| adapter == AdapterUse::Beside) {
            Some(lora) => lora.add_to(&output, x, arithmetic),
            None => Ok(output),
        }
    }
}

/// Allocates the merged weights of projections of one input that have an adapter, or drops them.
/// Projections that are stored together have their merged weights in one matrix, too.
pub(super) fn set_merged<const N: usize>(parts: [&mut Linear; N], stack: Option<&mut Stack>, on: bool) -> Result<()> {
    let on = on && parts.iter().any(|part| part.lora.is_some());
    let all = match &stack {
        Some(stack) if on => Some(stack.weight.f_detach_copy()?),
        _ => None,
    };
    let mut first = 0;
    for part in parts {
        let outputs = part.weight.size()[0];
        part.merged = match &all {
            Some(all) => Some(all.f_narrow(0, first, outputs)?),
            None if on && part.lora.is_some() => Some(part.weight.f_detach_copy()?),
            None => None,
        };
        first += outputs;
    }
    if let Some(stack) = stack {
        stack.merged = all;
    }
    Ok(())
}

/// A node of the parameter tree.
#[derive(Debug)]
pub(super) enum ParameterNode<'a> {
    Norm(&'a Tensor),
    /// A tensor with the name of the node.
    Bare(&'a Tensor),
    Linear(&'a Linear),
}

/// A gated feed-forward block.
#[derive(Debug)]
pub(super) struct Mlp {
    pub gate: Linear,
    /// None if the rows of both are one projection, `gate`.
    pub up: Option<Linear>,
    /// Gate and up, if they are stored together.
    pub gate_up: Option<Stack>,
    pub down: Linear,
}

/// The feed-forward block of a layer.
#[derive(Debug)]
pub(super) enum Block {
    Dense(Mlp),
    Sparse {
        /// [experts, E]
        router: Linear,
        /// `[experts]`, in at least f32 and without a gradient: what is added to scores for the
        /// choice of experts.
        correction: Option<Tensor>,
        experts: Vec<Mlp>,
        /// Their weights as one tensor each, if they are stored together.
        grouped: Option<GroupedExperts>,
        /// Their tensors in a checkpoint.
        storage: ExpertStorage,
        /// The expert of all tokens.
        shared: Option<Box<SharedBlock>>,
    },
}

/// An expert that processes every token.
#[derive(Debug)]
pub(super) struct SharedBlock {
    pub mlp: Mlp,
    /// `[1, E]`
    pub gate: Option<Linear>,
}

/// One decoder layer. Norms are `[E]`.
#[derive(Debug)]
pub(super) struct Layer {
    pub input_norm: Option<Tensor>,
    pub mixer: Mixer,
    /// On the output of attention.
    pub after_attention: Option<Tensor>,
    pub before_block: Option<Tensor>,
    pub block: Block,
    /// On the output of the feed-forward block.
    pub after_block: Option<Tensor>,
}

#[derive(Debug)]
pub(super) struct Parameters {
    pub embed: Tensor,
    pub layers: Vec<Layer>,
    pub norm: Tensor,
    /// A shallow clone of `embed` when tied.
    pub lm_head: Tensor,
    pub tied: bool,
    pub vision: Option<VisionTower>,
    /// Names that differ from Llama's.
    renamed: &'static [(&'static str, &'static str)],
    /// Name of `norm` in the checkpoint.
    last_norm: &'static str,
}

/// Creates uninitialised parameters that require gradients.
pub(super) struct Maker {
    options: (Kind, Device),
    arena: Arena,
    /// Whether projections of one input are stored as one matrix.
    stacked: bool,
}

/// Creates projections of one input.
pub(super) struct Siblings<'a> {
    maker: &'a Maker,
    pub(super) stack: Option<Stack>,
    inputs: usize,
    biased: bool,
    /// Outputs so far.
    end: usize,
}

impl Siblings<'_> {
    pub(super) fn linear(&mut self, outputs: usize) -> Result<Linear> {
        let first = self.end;
        self.end += outputs;
        match &self.stack {
            Some(stack) => stack.part(first, outputs),
            None => self.maker.linear(outputs, self.inputs, self.biased),
        }
    }
}

impl Maker {
    /// For projections with `outputs` in total.
    pub(super) fn siblings(&self, outputs: usize, inputs: usize, biased: bool) -> Result<Siblings<'_>> {
        let take = |shape: &[usize]| {
            let shape: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
            self.arena.take(&shape, self.options)
        };
        let stack = if self.stacked {
            let bias = if biased { Some(take(&[outputs])?) } else { None };
            Some(Stack::new(take(&[outputs, inputs])?, bias))
        } else {
            None
        };
        Ok(Siblings { maker: self, stack, inputs, biased, end: 0 })
    }

    pub(super) fn leaf(&self, shape: &[usize]) -> Result<Tensor> {
        let shape: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
        Ok(self.arena.take(&shape, self.options)?.f_set_requires_grad(true)?)
    }

    pub(super) fn linear(&self, outputs: usize, inputs: usize, biased: bool) -> Result<Linear> {
        let bias = if biased { Some(self.leaf(&[outputs])?) } else { None };
        Ok(Linear::new(self.leaf(&[outputs, inputs])?, bias))
    }

    fn mlp(&self, hidden: usize, inner: usize, biased: bool) -> Result<Mlp> {
        let mut both = self.siblings(2 * inner, hidden, biased)?;
        let (gate, up) = (both.linear(inner)?, Some(both.linear(inner)?));
        Ok(Mlp { gate, up, gate_up: both.stack, down: self.linear(hidden, inner, biased)? })
    }

    fn block(&self, config: &Config, experts: Option<Experts>) -> Result<Block> {
        let hidden = config.hidden_size;
        let Some(experts) = experts else {
            if config.joint.gate_up {
                let (inner, biased) = (config.intermediate_size, config.biases.mlp);
                let (gate, down) = (self.linear(2 * inner, hidden, biased)?, self.linear(hidden, inner, biased)?);
                return Ok(Block::Dense(Mlp { gate, up: None, gate_up: None, down }));
            }
            return Ok(Block::Dense(self.mlp(hidden, config.intermediate_size, config.biases.mlp)?));
        };
        let Experts { count, intermediate_size: inner, biased, storage, .. } = experts;
        let router = self.linear(count, hidden, biased)?;
        let correction = match experts.router {
            Router::Sigmoid { .. } => {
                let kind = if self.options.0 == Kind::Double { Kind::Double } else { Kind::Float };
                Some(self.arena.take(&[count as i64], (kind, self.options.1))?.f_zero_()?)
            }
            Router::Softmax => None,
        };
        let shared = |shared: SharedExpert| -> Result<Box<SharedBlock>> {
            let gate = if shared.gated { Some(self.linear(1, hidden, false)?) } else { None };
            Ok(Box::new(SharedBlock { mlp: self.mlp(hidden, shared.intermediate_size, false)?, gate }))
        };
        let shared = experts.shared.map(shared).transpose()?;
        if self.stacked {
            let (grouped, experts) = GroupedExperts::new(&self.arena, self.options, [count, hidden, inner], biased)?;
            return Ok(Block::Sparse { router, correction, experts, grouped: Some(grouped), storage, shared });
        }
        let each = (0..count).map(|_| self.mlp(hidden, inner, biased));
        let experts = each.collect::<Result<_>>()?;
        Ok(Block::Sparse { router, correction, experts, grouped: None, storage, shared })
    }

    fn layer(&self, config: &Config, index: usize) -> Result<Layer> {
        let hidden = config.hidden_size;
        let norm = |wanted: bool| wanted.then(|| self.leaf(&[hidden])).transpose();
        let before = || norm(config.norms != Norms::After);
        let after = || norm(config.norms != Norms::Before);
        Ok(Layer {
            input_norm: before()?,
            mixer: Mixer::new(self, config, index)?,
            after_attention: after()?,
            before_block: before()?,
            block: self.block(config, config.experts.filter(|_| config.layer(index).sparse))?,
            after_block: after()?,
        })
    }
}

impl Parameters {
    /// Uninitialised parameters of the configured shapes.
    pub(super) fn empty(config: &Config, device: Device, kind: Kind) -> Result<Self> {
        Self::empty_as(config, device, kind, stacks(device))
    }

    /// As [`empty`](Self::empty); `stacked` stores projections of one input as one matrix.
    pub(super) fn empty_as(config: &Config, device: Device, kind: Kind, stacked: bool) -> Result<Self> {
        let maker = Maker { options: (kind, device), arena: Arena::new(), stacked };
        let shape = [config.vocab_size, config.hidden_size];
        let layers = (0..config.num_hidden_layers).map(|index| maker.layer(config, index)).collect::<Result<_>>()?;
        let embed = maker.leaf(&shape)?;
        let tied = config.tie_word_embeddings;
        let lm_head = if tied { embed.shallow_clone() } else { maker.leaf(&shape)? };
        let (renamed, last_norm) = (config.architecture.renamed(), config.architecture.last_norm());
        let tower = config.vision.as_ref().map(|vision| VisionTower::empty(vision.tower.clone(), device, kind));
        let (norm, vision) = (maker.leaf(&[config.hidden_size])?, tower.transpose()?);
        Ok(Self { embed, layers, norm, lm_head, tied, vision, renamed, last_norm })
    }

    /// Allocates the weights of sampling with a merged adapter, in which it is not yet merged, or
    /// drops them.
    pub(super) fn set_merged(&mut self, on: bool) -> Result<()> {
        let _guard = tch::no_grad_guard();
        for layer in &mut self.layers {
            layer.mixer.set_merged(on)?;
            match &mut layer.block {
                Block::Dense(mlp) => mlp.set_merged(on)?,
                Block::Sparse { router, experts, shared, .. } => {
                    set_merged([router], None, on)?;
                    if let Some(shared) = shared {
                        let SharedBlock { mlp, gate } = shared.as_mut();
                        mlp.set_merged(on)?;
                        gate.iter_mut().try_for_each(|gate| set_merged([gate], None, on))?;
                    }
                    experts.iter_mut().try_for_each(|expert| expert.set_merged(on))?;
                }
            }
        }
        Ok(())
    }

    /// Checkpoint keys and shallow clones, without a tied head.
    pub(super) fn named(&self) -> Vec<(String, Tensor)> {
        let mut all = vec![("model.embed_tokens.weight".to_owned(), self.embed.shallow_clone())];
        self.walk(&mut |name, part| match part {
            ParameterNode::Norm(weight) => all.push((format!("{name}.weight"), weight.shallow_clone())),
            ParameterNode::Bare(tensor) => all.push((name.to_owned(), tensor.shallow_clone())),
            ParameterNode::Linear(linear) => {
                all.push((format!("{name}.weight"), linear.weight.shallow_clone()));
                all.extend(linear.bias.iter().map(|bias| (format!("{name}.bias"), bias.shallow_clone())));
            }
        });
        all.push((self.last_norm.to_owned(), self.norm.shallow_clone()));
        if !self.tied {
            all.push(("lm_head.weight".to_owned(), self.lm_head.shallow_clone()));
        }
        let tower = self.vision.iter().flat_map(VisionTower::parameters);
        all.extend(tower.map(|(name, tensor)| (format!("{TOWER}{name}"), tensor)));
        all
    }

    /// Visits every part of the layers with its name.
    pub(super) fn walk<'a>(&'a self, f: &mut dyn FnMut(&str, ParameterNode<'a>)) {
        for (index, layer) in self.layers.iter().enumerate() {
            layer.walk(&mut |name, part| f(&self.name(index, name), part));
        }
    }

    /// The checkpoint's name of a part of a layer.
    pub(super) fn name(&self, index: usize, name: &str) -> String {
        layer_name(self.renamed, index, name)
    }

    /// Every projection of the layers and of the vision tower with its name.
    pub(super) fn linears_mut(&mut self) -> Vec<(String, &mut Linear)> {
        let renamed = self.renamed;
        let layers = self.layers.iter_mut().enumerate().flat_map(|(index, layer)| {
            let linears = layer.linears_mut();
            linears.into_iter().map(move |(name, linear)| (layer_name(renamed, index, &name), linear))
        });
        let tower = self.vision.iter_mut().flat_map(VisionTower::linears_mut);
        layers.chain(tower.map(|(name, linear)| (format!("{TOWER}{name}"), linear))).collect()
    }
}

/// The checkpoint's name of a part of a layer, from its name in Llama.
fn layer_name(renamed: &[(&str, &str)], index: usize, name: &str) -> String {
    let rest = |ours: &str| name.strip_prefix(ours).filter(|rest| rest.is_empty() || rest.starts_with('.'));
    let renamed = renamed.iter().find_map(|(ours, theirs)| rest(ours).map(|rest| format!("{theirs}{rest}")));
    format!("model.layers.{index}.{}", renamed.as_deref().unwrap_or(name))
}

/// The number of the layer that a parameter belongs to, by its name.
pub fn layer_of(name: &str) -> Option<usize> {
    let (_, after) = name.split_once("model.layers.")?;
    after.split('.').next()?.parse().ok()
}

impl Layer {
    /// Visits every part with its name within the layer.
    fn walk<'a>(&'a self, f: &mut dyn FnMut(&str, ParameterNode<'a>)) {
        let norm = |name: &str, weight: &'a Option<Tensor>, f: &mut dyn FnMut(&str, ParameterNode<'a>)| {
            if let Some(weight) = weight {
                f(name, ParameterNode::Norm(weight));
            }
        };
        norm("input_layernorm", &self.input_norm, f);
        self.mixer.walk(f);
        match &self.block {
            Block::Dense(mlp) => mlp.walk("mlp", f),
            Block::Sparse { router, correction, experts, shared, .. } => {
                f("mlp.gate", ParameterNode::Linear(router));
                if let Some(correction) = correction {
                    f("mlp.gate.e_score_correction_bias", ParameterNode::Bare(correction));
                }
                if let Some(shared) = shared {
                    let [mlp, gate] = shared.names();
                    shared.mlp.walk(mlp, f);
                    shared.gate.iter().for_each(|linear| f(gate, ParameterNode::Linear(linear)));
                }
                for (index, expert) in experts.iter().enumerate() {
                    expert.walk(&format!("mlp.experts.{index}"), f);
                }
            }
        }
        // `post_attention_layernorm` is the norm before the block, or with norms after attention
        // that norm.
        let before =
            if self.after_attention.is_some() { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
        norm("post_attention_layernorm", &self.after_attention, f);
        norm(before, &self.before_block, f);
        norm("post_feedforward_layernorm", &self.after_block, f);
    }

    /// Every projection with its name within the layer.
    fn linears_mut(&mut self) -> Vec<(String, &mut Linear)> {
        let mut all = Vec::new();
        self.mixer.linears_mut(&mut all);
        match &mut self.block {
            Block::Dense(mlp) => mlp.linears_mut("mlp", &mut all),
            Block::Sparse { router, experts, storage, shared, .. } => {
                all.push(("mlp.gate".to_owned(), router));
                if let Some(shared) = shared {
                    let [mlp, gate] = shared.names();
                    shared.mlp.linears_mut(mlp, &mut all);
                    all.extend(shared.gate.as_mut().map(|linear| (gate.to_owned(), linear)));
                }
                // PEFT has no adapter of an expert in a tensor of all.
                let experts = if *storage == ExpertStorage::Single { experts.as_mut_slice() } else { &mut [] };
                for (index, expert) in experts.iter_mut().enumerate() {
                    expert.linears_mut(&format!("mlp.experts.{index}"), &mut all);
                }
            }
        }
        all
    }
}

impl SharedBlock {
    /// The names of the expert and of its gate: plural without a gate, as checkpoints have them.
    fn names(&self) -> [&'static str; 2] {
        [if self.gate.is_some() { "mlp.shared_expert" } else { "mlp.shared_experts" }, "mlp.shared_expert_gate"]
    }
}

impl Mlp {
    fn set_merged(&mut self, on: bool) -> Result<()> {
        match &mut self.up {
            Some(up) => set_merged([&mut self.gate, up], self.gate_up.as_mut(), on)?,
            None => set_merged([&mut self.gate], None, on)?,
        }
        set_merged([&mut self.down], None, on)
    }

    fn walk<'a>(&'a self, name: &str, f: &mut dyn FnMut(&str, ParameterNode<'a>)) {
        let mut visit = |part: &str, linear| f(&format!("{name}.{part}_proj"), ParameterNode::Linear(linear));
        visit(if self.up.is_some() { "gate" } else { "gate_up" }, &self.gate);
        if let Some(up) = &self.up {
            visit("up", up);
        }
        visit("down", &self.down);
    }

    fn linears_mut<'a>(&'a mut self, name: &str, all: &mut Vec<(String, &'a mut Linear)>) {
        let mut add = |part: &str, linear| all.push((format!("{name}.{part}_proj"), linear));
        add(if self.up.is_some() { "gate" } else { "gate_up" }, &mut self.gate);
        if let Some(up) = &mut self.up {
            add("up", up);
        }
        add("down", &mut self.down);
    }
}
