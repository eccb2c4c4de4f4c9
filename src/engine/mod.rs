//! Continuous-batching generation: scheduler, sampler, prefix reuse.

mod policy;

pub use policy::Policy;
