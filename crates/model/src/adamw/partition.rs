//! The state of an optimiser, divided among processes (ZeRO-1, arXiv:1910.02054). Each process
//! updates the weights whose state it has; the others receive them.

use tch::{Kind as Dtype, Tensor, no_grad_guard};

use super::{AdamW, ParameterSlot, STEP};
use r1_base::error::Result;

/// Maximum bytes that a process sends at a time.
const BUCKET: usize = 32 << 20;

/// Sends a tensor of one dimension to all processes; returns the tensors of all of them as the rows
/// of one. All processes send the same number of values.
pub type Exchange<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;

impl AdamW {
    /// Keeps the state of part `part` of `parts` parts of the weights. `owner_of` names the part of
    /// a tensor; the parts of others have about the same number of values. Called before the first
    /// step.
    pub fn divide(&mut self, part: usize, parts: usize, owner_of: impl Fn(&str) -> Option<usize>) -> Result<()> {
        let total: usize = self.slots.iter().map(|slot| slot.weight.numel()).sum();
        let mut before = 0;
        for slot in &mut self.slots {
            // The part of the middle of the tensor.
            let count = slot.weight.numel();
            let by_size = (2 * before + count) * parts / (2 * total).max(1);
            slot.owner = owner_of(&slot.name).unwrap_or(by_size);
            before += count;
            if slot.owner != part {
                let empty = |tensor: &Tensor| Tensor::f_zeros([0], (tensor.kind(), tensor.device()));
                (slot.exp_avg, slot.exp_avg_sq) = (empty(&slot.exp_avg)?, empty(&slot.exp_avg_sq)?);
                slot.master = slot.master.as_ref().map(empty).transpose()?;
            }
        }
        self.part = Some(part);
        Ok(())
    }

    /// Whether the state of a weight is here.
    pub(super) fn has_state(&self, slot: &ParameterSlot) -> bool {
        self.part.is_none_or(|part| part == slot.owner)
    }

    /// The part that has the state of a tensor.
    pub fn owner(&self, tensor: usize) -> usize {
        self.slots[tensor].owner
    }

    /// Whether the state is divided.
    pub fn is_divided(&self) -> bool {
        self.part.is_some()
    }

    /// After a step: sends the weights that this process has updated, and receives the others.
    pub fn exchange_weights(&mut self, parts: usize, exchange: Exchange<'_>) -> Result<()> {
        let _guard = no_grad_guard();
        let all: Vec<(usize, &Tensor)> = self.slots.iter().map(|slot| (slot.owner, &slot.weight)).collect();
        self.exchange(&all, parts, exchange, &mut |number, values| {
            let weight = &self.slots[number].weight;
            Ok(weight.shallow_clone().f_copy_(&values.f_view_as(weight)?).map(drop)?)
        })
    }

    /// The [`state`](Self::state) of all parts, on the CPU.
    pub fn whole_state(&self, parts: usize, exchange: Exchange<'_>) -> Result<Vec<(String, Tensor)>> {
        let _guard = no_grad_guard();
        let mut state = vec![(STEP.to_owned(), Tensor::from_slice(&[self.step]))];
        for slot in &self.slots {
            for (name, tensor) in slot.state() {
                // Of another part it is empty here.
                let like = Tensor::f_empty(slot.weight.size(), (tensor.kind(), tch::Device::Cpu))?;
                let tensor = if self.has_state(slot) { tensor.shallow_clone() } else { like.shallow_clone() };
                self.exchange(&[(slot.owner, &tensor)], parts, exchange, &mut |_, values| {
                    Ok(like.shallow_clone().f_copy_(&values.f_view_as(&like)?).map(drop)?)
                })?;
                state.push((format!("{}.{name}", slot.name), like));
            }
        }
        Ok(state)
    }

    /// Sends the values of tensors from their owners to all. `receive` gets the number of each
    /// tensor with its values.
    fn exchange(
        &self,
        all: &[(usize, &Tensor)],
        parts: usize,
        exchange: Exchange<'_>,
        receive: &mut dyn FnMut(usize, &Tensor) -> Result<()>,
    ) -> Result<()> {
        let kind = all.first().map_or(Dtype::Float, |(_, tensor)| tensor.kind());
        let size = |number: &usize| all[*number].1.numel();
        // The tensors of each process that are sent together, in rounds.
        let mut rounds: Vec<Vec<Vec<usize>>> = Vec::new();
        for owner in 0..parts {
            let (mut round, mut bytes) = (0, 0);
            for number in (0..all.len()).filter(|number| all[*number].0 == owner) {
                let more = size(&number) * kind.elt_size_in_bytes();
                if bytes > 0 && bytes + more > BUCKET {
                    (round, bytes) = (round + 1, 0);
                }
                bytes += more;
                if rounds.len() <= round {
                    rounds.resize(round + 1, vec![Vec::new(); parts]);
                }
                rounds[round][owner].push(number);
            }
        }
        let part = self.part.unwrap_or(0);
        for round in rounds {
            let longest = round.iter().map(|numbers| numbers.iter().map(size).sum::<usize>()).max().unwrap_or(0);
            let sent = Tensor::f_zeros([longest as i64], (kind, tch::Device::Cpu))?;
            let mut at = 0;
            for number in &round[part] {
                let (tensor, length) = (all[*number].1, size(number) as i64);
                sent.f_narrow(0, at, length)?.f_copy_(&tensor.f_flatten(0, -1)?)?;
                at += length;
            }
            let received = exchange(&sent)?;
            for (owner, numbers) in round.iter().enumerate() {
                let (row, mut at) = (received.f_get(owner as i64)?, 0);
                for number in numbers {
                    let length = size(number) as i64;
                    receive(*number, &row.f_narrow(0, at, length)?)?;
                    at += length;
                }
            }
        }
        Ok(())
    }
}
