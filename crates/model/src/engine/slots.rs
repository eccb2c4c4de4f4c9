//! Slot table: the tokens of each cache slot, their conversation, and the slot of a new request.
//!
//! Bookkeeping without tensors. A slot is busy while a request runs in it. Afterwards it is
//! reserved for the next request of the same conversation, until the conversation is released or
//! the slot is evicted (least recently used first). The tokens of a released slot can still be
//! reused as a prefix.
//!
//! A slot is evicted only while less than half of the slots are busy. Otherwise, with more
//! conversations than slots, new conversations would evict those that wait for a tool, and every
//! turn would compute its whole prompt again.

use std::collections::HashSet;

use r1_base::mdp::Routing;

/// Slots of the key-value cache.
#[derive(Debug)]
#[allow(clippy::struct_field_names)] // it is what the struct holds
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// Number of experts recorded per token; 0 without recording.
    width: usize,
    /// Number of assigned requests; the time of the LRU order.
    clock: u64,
}

#[derive(Debug)]
struct Slot {
    /// Tokens whose keys and values are in the cache, from position 0.
    ids: Vec<u32>,
    /// Experts of these tokens, if recorded.
    experts: Vec<u16>,
    hold: Hold,
    used: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Free,
    /// Reserved for the next request of the conversation.
    Warm(u64),
    Busy {
        conversation: u64,
        released: bool,
    },
}

/// The largest number of the first tokens of a slot that a sequence can go on from, by slot and
/// limit ([`KvCache::reachable`](crate::model::KvCache::reachable)).
pub(super) type Reachable<'a> = &'a dyn Fn(usize, usize) -> usize;

impl Slots {
    pub(super) fn new(count: usize) -> Self {
        let slot = || Slot { ids: Vec::new(), experts: Vec::new(), hold: Hold::Free, used: 0 };
        Self { slots: (0..count).map(|_| slot()).collect(), width: 0, clock: 0 }
    }

    /// Enables recording of `width` experts per token and clears the slots.
    pub(super) fn record_routing(&mut self, width: usize) {
        self.clear();
        self.width = width;
    }

    /// Experts of the tokens computed in a slot.
    pub(super) fn routing(&self, slot: usize) -> Routing {
        Routing { start: 0, width: self.width as u32, experts: self.slots[slot].experts.clone() }
    }

    /// Tokens computed in a slot.
    pub(super) fn ids(&self, slot: usize) -> &[u32] {
        &self.slots[slot].ids
    }

    /// The conversations that have a reserved slot.
    pub(super) fn reserved(&self) -> HashSet<u64> {
        let owner = |slot: &Slot| if let Hold::Warm(owner) = slot.hold { Some(owner) } else { None };
        self.slots.iter().filter_map(owner).collect()
    }

    /// Assigns a slot to a request: the reserved slot of its conversation, else the free slot with
    /// the longest common prefix, else, while less than half of the slots are busy, the least
    /// recently used reserved slot; `None` if there is none of these. The slot keeps the common
    /// prefix, except for the prompt's last token, whose logits must be computed.
    pub(super) fn assign_slot(&mut self, conversation: u64, prompt: &[u32], reachable: Reachable<'_>) -> Option<usize> {
        let kept = |index: usize, slot: &Slot| {
            let limit = shared(&slot.ids, prompt).min(prompt.len().saturating_sub(1));
            reachable(index, limit)
        };
        let is_own_slot = |slot: &Slot| slot.hold == Hold::Warm(conversation);
        let free = |slot: &Slot| slot.hold == Hold::Free;
        let index =
            self.most_kept(kept, is_own_slot).or_else(|| self.most_kept(kept, free)).or_else(|| self.evictable())?;
        self.clock += 1;
        let slot = &mut self.slots[index];
        let keep = kept(index, slot);
        slot.ids.truncate(keep);
        slot.experts.truncate(keep * self.width);
        slot.hold = Hold::Busy { conversation, released: false };
        slot.used = self.clock;
        Some(index)
    }

    /// Slot with the longest prefix of `prompt`, and its length.
    pub(super) fn longest_prefix(&self, prompt: &[u32], reachable: Reachable<'_>) -> (usize, usize) {
        let lengths = self.slots.iter().map(|slot| shared(&slot.ids, prompt)).enumerate();
        let lengths = lengths.map(|(index, length)| (index, reachable(index, length)));
        lengths.fold((0, 0), |best, (index, length)| if length > best.1 { (index, length) } else { best })
    }

    /// Appends `ids`, now in the cache, to the slot. Takes their experts from the front of
    /// `experts`, which has the experts of all tokens of the step.
    pub(super) fn extend(&mut self, slot: usize, ids: &[u32], experts: &mut &[u16]) {
        self.slots[slot].ids.extend_from_slice(ids);
        if let Some((cached, rest)) = experts.split_at_checked(ids.len() * self.width) {
            self.slots[slot].experts.extend_from_slice(cached);
            *experts = rest;
        }
    }

    /// Records that the first `length` tokens of `from` were copied to `to`, replacing its content.
    pub(super) fn copy(&mut self, from: usize, to: usize, length: usize) {
        let ids = self.slots[from].ids[..length].to_vec();
        self.slots[to].ids = ids;
        self.slots[to].experts = self.slots[from].experts[..length * self.width].to_vec();
    }

    /// Ends a request: the slot is reserved, or free if its conversation was released.
    pub(super) fn park(&mut self, slot: usize) {
        let slot = &mut self.slots[slot];
        if let Hold::Busy { conversation, released } = slot.hold {
            slot.hold = if released { Hold::Free } else { Hold::Warm(conversation) };
        }
    }

    /// Ends a failed request and clears its slot.
    pub(super) fn discard(&mut self, slot: usize) {
        self.slots[slot].ids.clear();
        self.slots[slot].experts.clear();
        self.slots[slot].hold = Hold::Free;
    }

    /// Ends a conversation and frees its slot.
    pub(super) fn release(&mut self, conversation: u64) {
        for slot in &mut self.slots {
            match &mut slot.hold {
                Hold::Warm(owner) if *owner == conversation => slot.hold = Hold::Free,
                Hold::Busy { conversation: owner, released } if *owner == conversation => *released = true,
                _ => {}
            }
        }
    }

    /// Clears the tokens of all slots. Slots of running requests stay assigned.
    pub(super) fn forget(&mut self) {
        for slot in &mut self.slots {
            slot.ids.clear();
            slot.experts.clear();
            slot.used = 0;
            if matches!(slot.hold, Hold::Warm(_)) {
                slot.hold = Hold::Free;
            }
        }
    }

    /// Clears and frees all slots.
    pub(super) fn clear(&mut self) {
        self.forget();
        for slot in &mut self.slots {
            slot.hold = Hold::Free;
        }
    }

    /// The slot among those that pass with the most tokens that are kept; the least recently used
    /// of equals.
    fn most_kept(&self, kept: impl Fn(usize, &Slot) -> usize, pass: impl Fn(&Slot) -> bool) -> Option<usize> {
        let mut best: Option<(usize, usize)> = None;
        for (index, slot) in self.slots.iter().enumerate().filter(|(_, slot)| pass(slot)) {
            let length = kept(index, slot);
            let better = best.is_none_or(|(rival, best_length)| {
                length > best_length || (length == best_length && slot.used < self.slots[rival].used)
            });
            if better {
                best = Some((index, length));
            }
        }
        best.map(|(index, _)| index)
    }

    /// The least recently used reserved slot, while less than half of the slots are busy.
    fn evictable(&self) -> Option<usize> {
        let busy = self.slots.iter().filter(|slot| matches!(slot.hold, Hold::Busy { .. })).count();
        if 2 * busy >= self.slots.len() {
            return None;
        }
        let reserved = self.slots.iter().enumerate().filter(|(_, slot)| matches!(slot.hold, Hold::Warm(_)));
        reserved.min_by_key(|(_, slot)| slot.used).map(|(index, _)| index)
    }
}

/// Length of the longest common prefix.
pub(super) fn shared(a: &[u32], b: &[u32]) -> usize {
    // Compares whole blocks first; only the differing block is compared id by id.
    const BLOCK: usize = 64;
    let equal = a.chunks_exact(BLOCK).zip(b.chunks_exact(BLOCK)).take_while(|(a, b)| a == b).count() * BLOCK;
    equal + a[equal..].iter().zip(&b[equal..]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    const ALL: Reachable<'static> = &|_, limit| limit;

    fn run(slots: &mut Slots, conversation: u64, ids: &[u32]) -> (usize, usize) {
        let index = slots.assign_slot(conversation, ids, ALL).unwrap();
        let cached = slots.ids(index).len();
        slots.extend(index, &ids[cached..], &mut &[][..]);
        slots.park(index);
        (index, cached)
    }

    #[test]
    fn conversation_reuses_its_slot() {
        let mut slots = Slots::new(3);
        let (first, cached) = run(&mut slots, 1, &[1, 2, 3]);
        assert_eq!(cached, 0);
        run(&mut slots, 2, &[9, 9]);
        assert_eq!(run(&mut slots, 1, &[1, 2, 3, 4]), (first, 3));
        assert_eq!(run(&mut slots, 1, &[1, 7, 8]), (first, 1), "a rewritten context keeps the common prefix");
    }

    #[test]
    fn last_prompt_token_is_never_taken_from_the_slot_cache() {
        let mut slots = Slots::new(1);
        run(&mut slots, 1, &[1, 2, 3]);
        assert_eq!(run(&mut slots, 1, &[1, 2, 3]).1, 2);
        assert_eq!(run(&mut slots, 1, &[1, 2]).1, 1);
    }

    #[test]
    fn least_recently_used_reserved_slot_is_evicted() {
        let mut slots = Slots::new(2);
        let (a, _) = run(&mut slots, 1, &[1, 1]);
        let (b, _) = run(&mut slots, 2, &[2, 2]);
        run(&mut slots, 1, &[1, 1, 1]);
        assert_eq!(run(&mut slots, 3, &[3]).0, b);
        assert_eq!(run(&mut slots, 1, &[1, 1, 1, 1]), (a, 3));
    }

    #[test]
    fn reserved_slots_are_not_evicted_while_half_of_the_slots_are_busy() {
        let mut slots = Slots::new(4);
        let (a, _) = run(&mut slots, 1, &[1, 1]);
        run(&mut slots, 2, &[2, 2]);
        let busy = slots.assign_slot(3, &[3], ALL).unwrap();
        slots.assign_slot(4, &[4], ALL).unwrap();
        assert_eq!(slots.reserved(), HashSet::from([1, 2]));
        assert_eq!(slots.assign_slot(5, &[5], ALL), None);
        slots.park(busy);
        assert_eq!(slots.assign_slot(5, &[5], ALL), Some(a), "one of four is busy");
    }

    #[test]
    fn busy_slots_are_never_evicted() {
        let mut slots = Slots::new(1);
        let index = slots.assign_slot(1, &[1], ALL).unwrap();
        assert_eq!(slots.assign_slot(1, &[1], ALL), None);
        slots.release(1);
        assert_eq!(slots.assign_slot(2, &[1], ALL), None);
        slots.park(index);
        assert_eq!(slots.assign_slot(2, &[1], ALL), Some(index));
    }

    #[test]
    fn released_slot_is_taken_before_a_reserved_one_and_shares_its_prefix() {
        let mut slots = Slots::new(2);
        let (a, _) = run(&mut slots, 1, &[1, 2, 3]);
        let (b, _) = run(&mut slots, 2, &[4, 5, 6]);
        slots.release(2);
        assert_eq!(slots.longest_prefix(&[4, 5, 9], ALL), (b, 2));
        assert_eq!(run(&mut slots, 3, &[4, 5, 9]), (b, 2));
        assert_eq!(run(&mut slots, 1, &[1, 2, 3, 4]), (a, 3));
    }

    #[test]
    fn shared_prefix_length_spans_blocks() {
        let a: Vec<u32> = (0..200).collect();
        for length in [0, 1, 63, 64, 65, 128, 199] {
            let mut b = a.clone();
            b[length] = 1000;
            assert_eq!(shared(&a, &b), length);
        }
        assert_eq!((shared(&a, &a), shared(&a, &a[..70])), (200, 70));
    }

    proptest! {
        /// A slot's ids are always the computed ids, and a busy slot belongs to one request.
        #[test]
        fn slot_is_exclusive_and_its_ids_are_a_prefix_of_the_prompt(
            moves in prop::collection::vec((0u8..4, 0u64..5, prop::collection::vec(0u32..3, 1..6)), 0..60),
        ) {
            let mut slots = Slots::new(3);
            let mut busy: Vec<(usize, Vec<u32>)> = Vec::new();
            for (kind, conversation, ids) in moves {
                match kind {
                    0 | 1 => if let Some(index) = slots.assign_slot(conversation, &ids, ALL) {
                        prop_assert!(busy.iter().all(|(taken, _)| *taken != index));
                        prop_assert!(slots.ids(index).len() < ids.len());
                        prop_assert!(ids.starts_with(slots.ids(index)));
                        busy.push((index, ids));
                    } else {
                        prop_assert!(busy.len() >= 2 && !slots.reserved().contains(&conversation));
                    },
                    2 => if let Some((index, ids)) = busy.pop() {
                        let (from, length) = slots.longest_prefix(&ids[..ids.len() - 1], ALL);
                        prop_assert_eq!(&slots.ids(from)[..length], &ids[..length]);
                        prop_assert!(length >= slots.ids(index).len());
                        slots.copy(from, index, length);
                        slots.extend(index, &ids[length..], &mut &[][..]);
                        prop_assert_eq!(slots.ids(index), &ids[..]);
                        slots.park(index);
                    },
                    _ => slots.release(conversation),
                }
            }
        }
    }
}
