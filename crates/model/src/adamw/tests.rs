//! Tests of the optimiser.
#![allow(clippy::unwrap_used, clippy::float_cmp)]

use tch::Device;

use super::*;

fn parameters(dtype: Dtype) -> Vec<(String, Tensor)> {
    let tensor = |size: &[i64]| {
        let count: i64 = size.iter().product();
        let values = Tensor::arange(count, (Dtype::Float, Device::Cpu)).cos();
        values.view(size).to_kind(dtype).set_requires_grad(true)
    };
    vec![("matrix".to_owned(), tensor(&[4, 6])), ("gain".to_owned(), tensor(&[6]))]
}

/// Sets gradients that depend on the weights and the step.
fn backward(parameters: &[(String, Tensor)], step: usize) {
    for (_, tensor) in parameters {
        ((tensor - step as f64).square() * 0.3).sum(Dtype::Float).backward();
    }
}

fn bits(parameters: &[(String, Tensor)]) -> Vec<u64> {
    let all = parameters.iter().map(|(_, tensor)| tensor.detach().to_kind(Dtype::Double).flatten(0, -1));
    Vec::<f64>::try_from(Tensor::cat(&all.collect::<Vec<_>>(), 0)).unwrap().into_iter().map(f64::to_bits).collect()
}

fn run(optimizer: &mut AdamW, parameters: &[(String, Tensor)], steps: std::ops::Range<usize>) {
    for step in steps {
        optimizer.zero_grad();
        backward(parameters, step);
        optimizer.step(0.01, 1.0).unwrap();
    }
}

fn optimizer(parameters: &[(String, Tensor)]) -> AdamW {
    let shared = parameters.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect();
    AdamW::new(shared, AdamWOptions { weight_decay: 0.1, ..AdamWOptions::default() }).unwrap()
}

/// The sum of parts is `((0 + 1) + (2 + 3)) + 4`, also for weights in bf16, and for a tensor that
/// has a gradient in some parts only.
#[test]
fn parts_of_a_batch_are_added_as_a_tree() {
    let values = [1e8_f32, 1.0, -1e8, 3.0, 0.25];
    for dtype in [Dtype::Float, Dtype::BFloat16] {
        let parameters = parameters(dtype);
        let (mut optimizer, mut tree) = (optimizer(&parameters), GradientTree::default());
        for (part, value) in values.into_iter().enumerate() {
            (&parameters[0].1 * f64::from(value)).sum(Dtype::Float).backward();
            if part == 3 {
                parameters[1].1.sum(Dtype::Float).backward();
            }
            // The last part is not in the tree.
            if part < 4 {
                tree.push(&mut optimizer).unwrap();
                assert!(!parameters[0].1.grad().defined());
            }
        }
        let all: Vec<usize> = (0..optimizer.tensors()).collect();
        let gradients = tree.complete(&mut optimizer, &all).unwrap();
        assert!(!parameters[0].1.grad().defined());
        let in_type = |value: f32| Tensor::from_slice(&[value]).to_kind(dtype).to_kind(Dtype::Float).double_value(&[0]);
        let parts = values.map(|value| in_type(value) as f32);
        let sum = ((parts[0] + parts[1]) + (parts[2] + parts[3])) + parts[4];
        let first = |gradient: &Option<Tensor>| gradient.as_ref().unwrap().flatten(0, -1).double_value(&[0]) as f32;
        let seen: Vec<f32> = gradients.iter().map(first).collect();
        assert_eq!(seen, [sum, 1.0], "{dtype:?}");
        optimizer.set_gradients(gradients);
        assert!(optimizer.grad_norm().unwrap() > 0.0);
    }
}

#[test]
fn a_resumed_run_of_adamw_is_bitwise_equal() {
    for dtype in [Dtype::Float, Dtype::BFloat16, Dtype::Double] {
        let straight = parameters(dtype);
        run(&mut optimizer(&straight), &straight, 0..7);

        let stopped = parameters(dtype);
        let mut first = optimizer(&stopped);
        run(&mut first, &stopped, 0..3);
        let file = tempfile::NamedTempFile::new().unwrap();
        Tensor::write_safetensors(&first.state(), file.path()).unwrap();

        let resumed: Vec<(String, Tensor)> = stopped
            .iter()
            .map(|(name, tensor)| (name.clone(), tensor.detach().copy().set_requires_grad(true)))
            .collect();
        let mut second = optimizer(&resumed);
        second.load_state(Tensor::read_safetensors(file.path()).unwrap().into_iter().collect()).unwrap();
        run(&mut second, &resumed, 3..7);
        assert_eq!(bits(&resumed), bits(&straight), "{dtype:?}");
        assert_ne!(bits(&resumed), bits(&stopped), "{dtype:?}");
    }
}

#[test]
fn updates_below_the_last_bit_of_bf16_accumulate() {
    let weight = Tensor::from_slice(&[256.0_f32]).to_kind(Dtype::BFloat16).set_requires_grad(true);
    let mut optimizer = AdamW::new(vec![("w".to_owned(), weight.shallow_clone())], AdamWOptions::default()).unwrap();
    for _ in 0..10 {
        optimizer.zero_grad();
        weight.sum(Dtype::Float).backward();
        optimizer.step(0.1, 0.0).unwrap(); // bf16 has steps of 1 below 256
    }
    assert_eq!(weight.double_value(&[0]), 255.0);
    let state: HashMap<String, Tensor> = optimizer.state().into_iter().collect();
    assert!((state["w.master"].double_value(&[0]) - 255.0).abs() < 1e-3);
}

#[test]
fn a_bad_gradient_is_named_and_nothing_changes() {
    for bad in [f64::NAN, f64::INFINITY] {
        let parameters = parameters(Dtype::Float);
        let mut optimizer = optimizer(&parameters);
        run(&mut optimizer, &parameters, 0..2);
        let before = (bits(&parameters), bits(&optimizer.state()));
        optimizer.zero_grad();
        backward(&parameters, 2);
        (parameters[1].1.get(3) * bad).backward();
        let error = optimizer.step(0.01, 1.0).unwrap_err();
        assert_eq!((error.kind, error.place.as_deref()), (Kind::Numeric, Some("tensor gain")));
        assert_eq!((bits(&parameters), bits(&optimizer.state())), before);
    }
}

#[test]
fn only_matrices_have_weight_decay_by_default() {
    for (decay_matrices_only, gain) in [(true, 1.0), (false, 0.9)] {
        let tensor = |size: &[i64]| Tensor::ones(size, (Dtype::Double, Device::Cpu)).set_requires_grad(true);
        let parameters = vec![("matrix".to_owned(), tensor(&[2, 2])), ("gain".to_owned(), tensor(&[2]))];
        let shared = parameters.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect();
        let options = AdamWOptions { weight_decay: 0.5, decay_matrices_only, ..AdamWOptions::default() };
        let mut optimizer = AdamW::new(shared, options).unwrap();
        for (_, tensor) in &parameters {
            (tensor * 0.0).sum(Dtype::Double).backward();
        }
        assert_eq!(optimizer.step(0.2, 1.0).unwrap(), 0.0);
        assert_eq!(parameters[0].1.double_value(&[0, 0]), 0.9);
        assert_eq!(parameters[1].1.double_value(&[0]), gain);
    }
}

#[test]
fn the_defaults_are_those_of_the_paper_without_decay() {
    let weight = Tensor::from_slice(&[2.0_f64]).view([1, 1]).set_requires_grad(true);
    let mut optimizer = AdamW::new(vec![("w".to_owned(), weight.shallow_clone())], AdamWOptions::default()).unwrap();
    let (mut want, mut first, mut second) = (2.0_f64, 0.0_f64, 0.0_f64);
    for (step, gradient) in [1.0_f64, -3.0, 0.5].into_iter().enumerate() {
        optimizer.zero_grad();
        (&weight * gradient).sum(Dtype::Double).backward();
        optimizer.step(0.1, 0.0).unwrap();
        let n = step as i32 + 1;
        first = 0.9 * first + 0.1 * gradient;
        second = 0.999 * second + 0.001 * gradient * gradient;
        want -= 0.1 * (first / (1.0 - 0.9_f64.powi(n))) / ((second / (1.0 - 0.999_f64.powi(n))).sqrt() + 1e-8);
        assert!((weight.double_value(&[0, 0]) - want).abs() < 1e-12, "{step}");
    }
}

#[test]
fn gradients_of_many_micro_batches_are_added_up_in_f32() {
    let weight = Tensor::ones([1 << 14], (Dtype::BFloat16, Device::Cpu)).set_requires_grad(true);
    let mut optimizer = AdamW::new(vec![("w".to_owned(), weight.shallow_clone())], AdamWOptions::default()).unwrap();
    tch::manual_seed(3);
    let common = Tensor::randn([1 << 14], (Dtype::Float, Device::Cpu));
    let parts: Vec<Tensor> = (0..32)
        .map(|_| {
            let gradient: Tensor = Tensor::randn([1 << 14], (Dtype::Float, Device::Cpu)) * 5.0 + &common;
            gradient.to_kind(Dtype::BFloat16)
        })
        .collect();
    let exact = parts.iter().fold(Tensor::zeros([1 << 14], (Dtype::Double, Device::Cpu)), |sum, part| sum + part);
    let mut error = |in_f32: bool| {
        optimizer.zero_grad();
        for part in &parts {
            (&weight * part).sum(Dtype::Float).backward();
            if in_f32 {
                optimizer.accumulate().unwrap();
                assert!(!weight.grad().defined());
            }
        }
        let norm = optimizer.grad_norm().unwrap();
        assert!((norm / exact.norm().double_value(&[]) - 1.0).abs() < 2e-2);
        let summed = optimizer.slots[0].gradient().unwrap();
        ((summed - &exact).norm() / exact.norm()).double_value(&[])
    };
    let (bf16, f32) = (error(false), error(true));
    assert!(bf16 > 3e-3 && f32 < 1e-6, "bf16 {bf16:e}, f32 {f32:e}");
    // The last micro-batch may have its gradient still in the weight.
    (&weight * &parts[0]).sum(Dtype::Float).backward();
    let both = optimizer.slots[0].gradient().unwrap();
    assert!((both - (&exact + &parts[0])).norm().double_value(&[]) < 1e-2);
    optimizer.step(0.1, 1.0).unwrap();
    optimizer.zero_grad();
    assert_eq!(optimizer.grad_norm().unwrap(), 0.0);
}

#[test]
fn copies_are_counted_where_gradients_are_copied() {
    let bytes = |dtype: Dtype, with_gradient: bool| {
        let weight = Tensor::ones([3, 5], (dtype, Device::Cpu)).set_requires_grad(true);
        let optimizer = AdamW::new(vec![("w".to_owned(), weight.shallow_clone())], AdamWOptions::default()).unwrap();
        if with_gradient {
            weight.sum(Dtype::Float).backward();
        }
        optimizer.slots[0].copied()
    };
    assert_eq!([bytes(Dtype::Float, true), bytes(Dtype::Float, false), bytes(Dtype::BFloat16, true)], [0, 60, 60]);
}

#[test]
fn groups_have_their_own_decay_and_rate() {
    let tensor = || Tensor::ones([2, 2], (Dtype::Double, Device::Cpu)).set_requires_grad(true);
    let parameters: Vec<(String, Tensor)> =
        ["embed", "head", "body"].map(|name| (format!("{name}.weight"), tensor())).into();
    let shared = parameters.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect();
    let groups = |name: &str| {
        let (weight_decay, rate) = match name {
            "embed.weight" => (Some(0.0), 1.0),
            "head.weight" => (None, 0.5),
            _ => (Some(1.0), 1.0),
        };
        Some(Group { weight_decay, rate })
    };
    let options = AdamWOptions { weight_decay: 0.5, ..AdamWOptions::default() };
    let mut optimizer = AdamW::with_groups(shared, options, groups).unwrap();
    for (_, tensor) in &parameters {
        (tensor * 0.0).sum(Dtype::Double).backward();
    }
    optimizer.step(0.2, 1.0).unwrap();
    let after: Vec<f64> = parameters.iter().map(|(_, tensor)| tensor.double_value(&[0, 0])).collect();
    assert_eq!(after, [1.0, 0.95, 0.8]);
}

#[test]
fn frozen_tensors_stay() {
    let mut parameters = parameters(Dtype::Float);
    parameters.push(("frozen".to_owned(), Tensor::ones([3], (Dtype::Float, Device::Cpu))));
    let mut optimizer = optimizer(&parameters);
    run(&mut optimizer, &parameters[..2], 0..2);
    assert_eq!(parameters[2].1, Tensor::ones([3], (Dtype::Float, Device::Cpu)));
    assert_eq!(optimizer.state().len(), 1 + 2 * 2);
}

#[test]
fn a_missing_gradient_is_a_gradient_of_zero() {
    // A mini-batch without gradients, in an uninterrupted run and in one that was resumed right
    // before it.
    let straight = parameters(Dtype::Float);
    let mut first = optimizer(&straight);
    run(&mut first, &straight, 0..3);
    let resumed: Vec<(String, Tensor)> =
        straight.iter().map(|(name, tensor)| (name.clone(), tensor.detach().copy().set_requires_grad(true))).collect();
    let mut second = optimizer(&resumed);
    let state = first.state().into_iter().map(|(name, tensor)| (name, tensor.copy()));
    second.load_state(state.collect()).unwrap();
    first.zero_grad();
    for optimizer in [&mut first, &mut second] {
        assert_eq!(optimizer.step(0.01, 1.0).unwrap(), 0.0);
    }
    assert_eq!(bits(&resumed), bits(&straight));
}

#[test]
fn an_optimiser_state_of_another_model_is_refused_by_name() {
    let parameters = parameters(Dtype::Float);
    let mut optimizer = optimizer(&parameters);
    run(&mut optimizer, &parameters, 0..1);
    let saved = || -> HashMap<String, Tensor> { optimizer.state().into_iter().collect() };
    let mut missing = saved();
    missing.remove("gain.exp_avg_sq");
    let mut extra = saved();
    extra.insert("head.exp_avg".to_owned(), Tensor::from_slice(&[0.0]));
    let mut misshapen = saved();
    misshapen.insert("matrix.exp_avg".to_owned(), Tensor::from_slice(&[0.0_f32]));
    let before = bits(&optimizer.state());
    for (state, expected) in [
        (missing, "`gain.exp_avg_sq` is missing"),
        (extra, "`head.exp_avg` is not one of this model's"),
        (misshapen, "`matrix.exp_avg` is Float [1], not Float [4, 6]"),
    ] {
        let error = optimizer.load_state(state).unwrap_err();
        assert!(error.message.contains(expected), "{error}");
        assert_eq!(bits(&optimizer.state()), before);
    }
}
