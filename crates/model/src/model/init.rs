//! Initial weights of a new model.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use tch::{Device, Kind, Tensor};

use super::layers::Parameters;
use super::vision::TOWER;
use super::{Config, Model};
use r1_base::error::Result;

impl Model {
    /// Initial weights: normal with `initializer_range`, norms 1, biases 0; the seed decides.
    pub fn init(config: Config, device: Device, kind: Kind, seed: u64) -> Result<Self> {
        config.check()?;
        let parameters = Parameters::empty(&config, device, kind)?;
        let norm = if config.zero_centred_norms { 0.0 } else { 1.0 };
        let _guard = tch::no_grad_guard();
        for (stream, (name, mut tensor)) in (0..).zip(parameters.named()) {
            if name.ends_with("linear_attn.norm.weight") || name.ends_with("dt_bias") {
                let _ = tensor.f_fill_(1.0)?;
            } else if name.ends_with("norm.weight") || is_norm_of_tower(&name) {
                let _ = tensor.f_fill_(if name.starts_with(TOWER) { 1.0 } else { norm })?;
            } else if name.ends_with("A_log") {
                // Decay rates between 0.01 and 16.
                let rates = Tensor::f_arange(tensor.numel() as i64, (Kind::Double, device))?.f_add_scalar(0.5)?;
                let rates = rates.f_mul_scalar(15.99 / tensor.numel() as f64)?.f_add_scalar(0.01)?;
                tensor.f_copy_(&rates.f_log()?)?;
            } else if name.ends_with("bias") {
                let _ = tensor.f_fill_(0.0)?;
            } else {
                let mut random = ChaCha8Rng::seed_from_u64(seed);
                random.set_stream(stream);
                let values = normal(&mut random, tensor.numel(), config.initializer_range);
                tensor.f_copy_(&Tensor::f_from_slice(&values)?.f_view_as(&tensor)?)?;
            }
        }
        Self::new(config, parameters, device, kind)
    }
}

/// Whether a parameter is the weight of a norm of a vision tower.
fn is_norm_of_tower(name: &str) -> bool {
    const NORMS: [&str; 5] = ["norm1.weight", "norm2.weight", ".ln_q.weight", ".norm.weight", "layernorm.weight"];
    name.starts_with(TOWER) && NORMS.iter().any(|end| name.ends_with(end))
}

/// `count` draws of a normal distribution with mean 0 (Box-Muller in f64, for the same rounding on
/// every machine).
fn normal(random: &mut ChaCha8Rng, count: usize, deviation: f64) -> Vec<f32> {
    let mut uniform = || (random.next_u64() >> 11) as f64 * (-53f64).exp2();
    let mut values = Vec::with_capacity(count + 1);
    while values.len() < count {
        let radius = (-2.0 * (1.0 - uniform()).ln()).sqrt() * deviation;
        let (sin, cos) = (std::f64::consts::TAU * uniform()).sin_cos();
        values.extend([(radius * cos) as f32, (radius * sin) as f32]);
    }
    values.truncate(count);
    values
}
