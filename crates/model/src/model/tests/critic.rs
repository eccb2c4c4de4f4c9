//! Tests of the critic.

use tch::{Device, Kind, Tensor};

use super::{pack, rows, tiny};
use crate::model::{Critic, Model, Packed};

fn batch() -> (Packed, Tensor) {
    (pack(&rows(&[5, 3], 53)), Tensor::from_slice(&[1_i64, 4, 7]))
}

#[test]
fn critic_starts_at_zero_and_fits_its_targets() {
    for separate in [true, false] {
        let policy = tiny(true, Kind::Float);
        let critic = Critic::new(&policy, separate.then(|| tiny(true, Kind::Float))).unwrap();
        let (batch, at) = batch();
        let values = |grad: bool| {
            let hidden = critic.trunk().unwrap_or(&policy).forward(&batch).unwrap();
            let values = critic.values(&hidden, &at).unwrap();
            if grad { values } else { values.detach() }
        };
        assert_eq!(Vec::<f64>::try_from(values(false)).unwrap(), [0.0; 3]);
        let wanted = Tensor::from_slice(&[1.0_f32, -0.5, 0.25]);
        let mut optimizer =
            crate::adamw::AdamW::new(critic.parameters(), crate::adamw::AdamWOptions::default()).unwrap();
        for _ in 0..200 {
            optimizer.zero_grad();
            (values(true) - &wanted).square().mean(Kind::Float).backward();
            optimizer.step(0.01, 0.0).unwrap();
        }
        let off = (values(false) - &wanted).abs().max().double_value(&[]);
        assert!(off < 0.05, "own {separate}: {off}");
    }
}

#[test]
fn critic_is_saved_and_loaded() {
    let policy = tiny(true, Kind::Float);
    let critic = Critic::new(&policy, Some(tiny(true, Kind::Float))).unwrap();
    tch::no_grad(|| {
        for (_, mut tensor) in critic.parameters().into_iter().filter(|(name, _)| name.starts_with("score.")) {
            let ramp = Tensor::arange(tensor.numel() as i64, (Kind::Float, Device::Cpu)).view_as(&tensor);
            tensor.copy_(&ramp);
        }
    });
    let dir = tempfile::tempdir().unwrap();
    critic.save(dir.path()).unwrap();
    let trunk = Model::load(dir.path(), Device::Cpu, Kind::Float).unwrap();
    let mut loaded = Critic::new(&policy, Some(trunk)).unwrap();
    loaded.load_head(dir.path()).unwrap();
    let (batch, at) = batch();
    let values = |critic: &Critic| critic.values(&critic.trunk().unwrap().forward(&batch).unwrap(), &at).unwrap();
    assert_eq!(values(&critic), values(&loaded));
    // A value head of another width is refused.
    Tensor::write_safetensors(
        &[("score.weight", Tensor::zeros([1, 3], (Kind::Float, Device::Cpu)))],
        dir.path().join("value_head.safetensors"),
    )
    .unwrap();
    let error = loaded.load_head(dir.path()).unwrap_err().to_string();
    assert!(error.contains("score.weight") && error.contains('3'), "{error}");
}
