//! Size of the engine: number of slots, tokens per slot, memory of the cache.

use tch::{Device, Kind};

use crate::model::{Config, KvCache, Model, available_memory};
use r1_base::error::{self, Error, Result};

/// Cache memory if the free memory of the machine is unknown: 8 GiB.
const FALLBACK_MEMORY: u64 = 8 << 30;

/// Multiplications of one layer that a slow machine computes in 50 ms.
const PATIENCE: usize = 4_000_000_000;

/// Size of an [`Engine`](super::Engine).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Maximum number of requests in flight; each has a slot of the key-value cache.
    pub slots: usize,
    /// Maximum length of prompt plus response, tokens; at most the model's
    /// [`Config::longest_context`].
    pub capacity: usize,
    /// Maximum number of prompt tokens per model call, which bounds the delay of running responses.
    pub prefill_tokens: usize,
    /// Maximum memory of the cache, bytes. It starts small and grows with the sequences.
    pub memory: u64,
}

impl EngineOptions {
    /// Options for `concurrency` requests of `max_context` tokens each (0: the model's limit), for
    /// a model with this type ([`Model::cache_kind`](crate::model::Model::cache_kind)) and device
    /// of the cache. The number of slots is reduced to fit into half of the free memory;
    /// [`Engine::new`](super::Engine::new) fails if not even one fits.
    pub fn sized(config: &Config, cache: (Kind, Device), concurrency: usize, max_context: usize) -> Self {
        let memory = usable(available_memory(cache.1), 0);
        Self::sized_within(config, cache.0, concurrency, max_context, memory)
    }

    /// As [`sized`](Self::sized), for a process that alternates sampling and learning on one
    /// device:
    /// `held` more bytes are in use in both, and `learning` bytes while it learns. True: the cache
    /// is released while the process learns ([`Engine::sleep`](super::Engine::sleep)), because
    /// otherwise not all requests fit beside the memory for learning.
    pub fn sized_for_training(
        config: &Config,
        cache: (Kind, Device),
        concurrency: usize,
        max_context: usize,
        needs: (u64, u64),
    ) -> (Self, bool) {
        Self::sized_within_free(config, cache.0, available_memory(cache.1), (concurrency, max_context), needs)
    }

    /// [`sized_for_training`](Self::sized_for_training) for a device with `free` bytes, which need
    /// not be there.
    pub fn sized_within_free(
        config: &Config,
        kind: Kind,
        free: Option<u64>,
        (concurrency, max_context): (usize, usize),
        needs: (u64, u64),
    ) -> (Self, bool) {
        let sized = |memory| Self::sized_within(config, kind, concurrency, max_context, memory);
        Self::shared(free, needs, sized, |options| options.bytes(config, kind))
    }

    /// [`sized_for_training`](Self::sized_for_training) for a device with `free` bytes.
    fn shared(
        free: Option<u64>,
        (held, learning): (u64, u64),
        sized: impl Fn(u64) -> Self,
        bytes: impl Fn(&Self) -> u64,
    ) -> (Self, bool) {
        let beside = sized(usable(free, held.saturating_add(learning)));
        let alone = sized(usable(free, held));
        let learns = free.is_some_and(|free| free.saturating_sub(held) >= learning);
        let fits = bytes(&alone) <= beside.memory;
        if learns && !fits { (alone, true) } else { (beside, false) }
    }

    fn sized_within(config: &Config, kind: Kind, concurrency: usize, max_context: usize, memory: u64) -> Self {
        let capacity =
            if max_context == 0 { config.default_context() } else { max_context.min(config.longest_context()) };
        let mut options = Self { slots: 1, capacity, prefill_tokens: 2048, memory };
        if config.turns_by_length(capacity) {
            // Dynamic rotary scaling depends on the length of each chunk, so prompts are not split.
            options.prefill_tokens = capacity.max(2048);
        }
        let fitting = options.memory / options.bytes(config, kind).max(1);
        options.slots = concurrency.min(usize::try_from(fitting).unwrap_or(usize::MAX)).max(1);
        options
    }

    /// Size for one interactive request at a time. On the CPU, prompts are split into chunks of
    /// about 50 ms per layer, so that [`Engine::generate`](super::Engine::generate) stops quickly.
    pub fn for_chat(model: &Model, max_context: usize) -> Self {
        let config = &model.config;
        let mut options = Self::sized(config, model.cache_options(), 1, max_context);
        if model.device() == Device::Cpu && !config.turns_by_length(options.capacity) {
            let heads = 2 * (config.num_attention_heads + config.num_key_value_heads) * config.head_dim;
            let delta = config.delta.map_or(0, |delta| delta.channels() + 2 * delta.values());
            let conv = config.short_conv.map_or(0, |_| 4 * config.hidden_size);
            let heads = heads.max(delta).max(conv);
            let inner = config.experts.as_ref().map_or(config.intermediate_size, |e| e.chosen * e.intermediate_size);
            let weights = config.hidden_size * (heads + 3 * inner);
            options.prefill_tokens = (PATIENCE / weights.max(1)).clamp(64, options.prefill_tokens);
        }
        options
    }

    /// Maximum size of the cache, bytes.
    pub fn bytes(&self, config: &Config, kind: Kind) -> u64 {
        let token =
            2 * config.attention_layers() * config.num_key_value_heads * config.head_dim * kind.elt_size_in_bytes();
        self.slots as u64 * (token as u64 * self.rows() as u64 + KvCache::state_bytes(config, kind))
    }

    /// Maximum tokens per slot: the capacity rounded up to the allocation unit of the cache.
    pub(super) fn rows(&self) -> usize {
        self.capacity.next_multiple_of(KvCache::GRAIN)
    }

    /// Refuses invalid sizes.
    pub(super) fn check(&self, config: &Config, kind: Kind) -> Result<()> {
        let refuse = |message: String| Error::new(error::Kind::Usage, message);
        for (name, value) in [("slots", self.slots), ("prefill tokens", self.prefill_tokens)] {
            if value == 0 {
                return Err(refuse(format!("an engine with 0 {name} can't generate")));
            }
        }
        let limit = config.longest_context();
        if self.capacity < 2 || self.capacity > limit {
            return Err(refuse(format!(
                "a context of {} tokens is outside 2 to {limit}, the limit of the model",
                self.capacity
            )));
        }
        let bytes = self.bytes(config, kind);
        if bytes > self.memory {
            return Err(Error::new(
                error::Kind::Device,
                format!(
                    "the key-value cache of {} slots x {} tokens takes {}, more than the limit of {}",
                    self.slots,
                    self.capacity,
                    megabytes(bytes),
                    megabytes(self.memory)
                ),
            )
            .hint(
                "lower rollout.concurrency or policy.max_context; for training on CUDA also trainer.tokens_per_batch, or \
                 set trainer.gradient_checkpointing",
            ));
        }
        Ok(())
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

/// Half of the free memory of the device, without what is reserved.
fn usable(free: Option<u64>, reserved: u64) -> u64 {
    free.map_or(FALLBACK_MEMORY, |bytes| bytes.saturating_sub(reserved) / 2)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn cache_bytes_count_keys_and_values_of_every_layer() {
        let config = Config::default();
        let options = EngineOptions { slots: 10, capacity: 100, prefill_tokens: 1, memory: u64::MAX };
        // 2 x 4 layers x 2 heads x 48 x 4 bytes, 10 slots of 128 tokens (100 rounded up to 64s)
        assert_eq!(options.bytes(&config, Kind::Float), 2 * 4 * 2 * 48 * 4 * 10 * 128);
        assert_eq!(options.bytes(&config, Kind::BFloat16), 2 * 4 * 2 * 48 * 2 * 10 * 128);
    }

    #[test]
    fn too_large_cache_is_refused_with_its_size() {
        let config = Config::default();
        let options = EngineOptions { slots: 1000, capacity: 1024, prefill_tokens: 2048, memory: 1 << 30 };
        let error = options.check(&config, Kind::Float).unwrap_err();
        assert_eq!(error.kind, error::Kind::Device);
        assert_eq!(
            error.message,
            "the key-value cache of 1000 slots x 1024 tokens takes 3000 MiB, more than the limit of 1024 MiB"
        );
        let long = EngineOptions { slots: 1, capacity: 2000, ..options };
        assert!(long.check(&config, Kind::Float).unwrap_err().message.contains("2000 tokens is outside 2 to 1024"));
    }

    #[test]
    fn reserved_memory_is_not_the_cache() {
        let gib = 1 << 30;
        assert_eq!(usable(Some(124 * gib), 0), 62 * gib);
        assert_eq!(usable(Some(124 * gib), 100 * gib), 12 * gib);
        assert_eq!(usable(Some(124 * gib), 130 * gib), 0);
        assert_eq!(usable(None, 130 * gib), FALLBACK_MEMORY);
        // With nothing left, not even one slot fits.
        let (config, cache) = (Config::default(), (Kind::Float, Device::Cpu));
        let (none, _) = EngineOptions::sized_for_training(&config, cache, 8, 0, (u64::MAX, 0));
        assert_eq!((none.slots, none.check(&config, Kind::Float).unwrap_err().kind), (1, error::Kind::Device));
    }

    /// A GPU of 80 GiB. The cache is released for learning only if that gives more slots.
    #[test]
    fn a_cache_is_released_for_learning_if_not_all_slots_fit_beside_it() {
        let (config, kind, gib) = (Config::default(), Kind::Float, 1_u64 << 30);
        // 3 MiB for each slot.
        let size = |slots, held: u64, learning: u64| {
            let sized = |memory| EngineOptions::sized_within(&config, kind, slots, 1024, memory);
            EngineOptions::shared(Some(80 * gib), (held * gib, learning * gib), sized, |options| {
                options.bytes(&config, kind)
            })
        };
        let of = |(options, released): (EngineOptions, bool)| (options.slots, options.memory / gib, released);
        // All slots fit beside 20 + 30 GiB.
        assert_eq!(of(size(1000, 20, 30)), (1000, 15, false));
        // Beside 58 GiB there is room for 341 slots, without an update for 10240.
        assert_eq!(of(size(1000, 20, 58)), (1000, 30, true));
        assert_eq!(of(size(20_000, 20, 58)), (10_240, 30, true));
        // An update that does not fit by itself is refused with its cache, as without sleep.
        let (options, released) = size(1000, 20, 61);
        assert!(!released && options.memory == 0 && options.check(&config, kind).is_err());
    }

    #[test]
    fn default_engine_size_fits_memory_and_model() {
        let config = Config { max_position_embeddings: 1 << 20, num_hidden_layers: 80, ..Config::default() };
        let options = EngineOptions::sized(&config, (Kind::Float, Device::Cpu), 100_000, 0);
        assert!(options.slots < 100_000 && options.capacity == 1 << 20);
        if options.slots > 1 {
            options.check(&config, Kind::Float).unwrap();
        }
        assert_eq!(EngineOptions::sized(&config, (Kind::Float, Device::Cpu), 8, 500).capacity, 500);
        assert_eq!(EngineOptions::sized(&Config::default(), (Kind::Float, Device::Cpu), 8, 5000).capacity, 1024);
    }
}
