#![allow(clippy::unwrap_used, clippy::float_cmp)]
//! Ranks are threads here; each has its own connections.

use std::thread;

use super::*;

fn rendezvous(rank: usize, size: usize, port: u16, seconds: u64) -> Rendezvous {
    let host = "127.0.0.1".to_owned();
    let (address, timeout) = (Some(host.clone()), Duration::from_secs(seconds));
    Rendezvous { address, host, port, rank, size, runs_store: true, timeout }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// What each rank returns.
fn ranks<T: Send + 'static>(size: usize, run: impl Fn(&ProcessGroup) -> T + Clone + Send + 'static) -> Vec<T> {
    let port = free_port();
    let start = |rank| {
        let run = run.clone();
        thread::spawn(move || run(&ProcessGroup::connect(&rendezvous(rank, size, port, 30), None, &[]).unwrap()))
    };
    let threads: Vec<_> = (0..size).map(start).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn bytes_of_all_ranks_arrive_in_order() {
    let all = ranks(3, |group| {
        let bytes = vec![group.rank() as u8; group.rank() * 1000];
        (group.gather(&bytes).unwrap(), group.gather(&[]).unwrap(), group.broadcast(&[7, group.rank() as u8]).unwrap())
    });
    for (gathered, empty, sent) in all {
        assert_eq!(gathered, [vec![], vec![1_u8; 1000], vec![2; 2000]]);
        assert!(empty.iter().all(Vec::is_empty) && empty.len() == 3);
        assert_eq!(sent, [7, 0]);
    }
}

/// The first two of three ranks have a sum of their own, while the third takes the weights of rank
/// 0 and sees a counter.
#[test]
fn some_ranks_are_a_group_of_their_own() {
    let all = ranks(3, |group| {
        let rank = group.rank() as f32;
        let sum = (group.rank() < 2).then(|| {
            let learners = group.first("learners", 2).unwrap();
            let sum = Tensor::from_slice(&[rank + 1.0]);
            learners.sum(&[sum.shallow_clone()]).unwrap();
            Vec::<f32>::try_from(sum).unwrap()
        });
        let tensors = [Tensor::from_slice(&[rank, rank + 0.5]).view([1, 2]), Tensor::from_slice(&[rank * 3.0])];
        group.broadcast_tensors(&tensors, 0).unwrap();
        let taken: Vec<f32> =
            tensors.iter().flat_map(|tensor| Vec::<f32>::try_from(tensor.flatten(0, -1)).unwrap()).collect();
        group.add_to("counter", 1).unwrap();
        while group.add_to("counter", 0).unwrap() < 3 {}
        (sum, taken, group.add_to("another", 0).unwrap())
    });
    for (rank, (sum, taken, another)) in all.into_iter().enumerate() {
        assert_eq!(sum, (rank < 2).then(|| vec![3.0]));
        assert_eq!((taken, another), (vec![0.0, 0.5, 0.0], 0));
    }
}

/// Three processes that divide the state have the weights and the state of one that does not.
#[test]
fn a_divided_optimiser_has_the_weights_and_the_state_of_a_whole_one() {
    use crate::adamw::{AdamW, AdamWOptions};

    let weights = |kind: Dtype| -> Vec<(String, Tensor)> {
        let sizes: [&[i64]; 5] = [&[7, 3], &[40, 2], &[5], &[1], &[64, 3]];
        let tensor = |(number, size): (usize, &&[i64])| {
            let count: i64 = size.iter().product();
            let values = (Tensor::arange(count, (Dtype::Float, tch::Device::Cpu)) * (number as f64 + 0.3)).sin();
            (format!("w{number}"), values.view(*size).to_kind(kind).set_requires_grad(true))
        };
        sizes.iter().enumerate().map(tensor).collect()
    };
    for kind in [Dtype::Float, Dtype::BFloat16] {
        let train = move |optimizer: &mut AdamW, all: &[(String, Tensor)], exchange: &dyn Fn(&mut AdamW)| {
            for step in 1..=3 {
                optimizer.zero_grad();
                // One tensor has no gradient.
                let terms =
                    all.iter().take(4).map(|(_, weight)| weight.to_kind(Dtype::Float).square().sum(Dtype::Float));
                (terms.reduce(|sum, term| sum + term).unwrap() * f64::from(step)).backward();
                optimizer.step(0.1, 1.0).unwrap();
                exchange(optimizer);
            }
        };
        let options = AdamWOptions { weight_decay: 0.1, ..AdamWOptions::default() };
        let plain = weights(kind);
        let mut whole =
            AdamW::new(plain.iter().map(|(name, w)| (name.clone(), w.shallow_clone())).collect(), options).unwrap();
        train(&mut whole, &plain, &|_| ());
        let bytes = |all: &[(String, Tensor)]| -> Vec<(String, Vec<f32>)> {
            let of = |(name, tensor): &(String, Tensor)| {
                (name.clone(), Vec::<f32>::try_from(tensor.to_kind(Dtype::Float).flatten(0, -1)).unwrap())
            };
            all.iter().map(of).collect()
        };
        let expected = (bytes(&plain), bytes(&whole.state()));
        let all = ranks(3, move |group| {
            let exchange = |sent: &Tensor| group.gather_tensor(sent);
            let mine = weights(kind);
            let copies = || mine.iter().map(|(name, w)| (name.clone(), w.shallow_clone())).collect();
            let mut optimizer = AdamW::new(copies(), options).unwrap();
            optimizer.divide(group.rank(), 3, |_| None).unwrap();
            let held: usize = optimizer.state().iter().map(|(_, tensor)| tensor.numel()).sum();
            train(&mut optimizer, &mine, &|optimizer| optimizer.exchange_weights(3, &exchange).unwrap());
            let state = optimizer.whole_state(3, &exchange).unwrap();
            // A saved state is loaded in parts.
            let mut again = AdamW::new(copies(), options).unwrap();
            again.divide(group.rank(), 3, |_| None).unwrap();
            again.load_state(state.iter().map(|(name, t)| (name.clone(), t.shallow_clone())).collect()).unwrap();
            let loaded = bytes(&again.whole_state(3, &exchange).unwrap());
            (bytes(&mine), bytes(&state), loaded, held)
        });
        let total: usize = whole.state().iter().map(|(_, tensor)| tensor.numel()).sum();
        for (mine, state, loaded, held) in all {
            assert_eq!((&mine, &state), (&expected.0, &expected.1));
            assert_eq!(loaded, expected.1);
            assert!(held > 0 && held < total * 3 / 4, "{held} of {total}");
        }
    }
}

#[test]
fn sums_have_the_bits_of_a_tree_on_every_rank() {
    // Each order of these has another sum in f32.
    let values = [1e8_f32, 1.0, -1e8, 3.0, 0.25];
    for size in 1..=5 {
        let all = ranks(size, move |group| {
            // The second tensor is larger than a bucket; the third is not contiguous.
            let large = Tensor::full(
                [(BUCKET / 4 + 3) as i64],
                f64::from(values[group.rank()]),
                (Dtype::Float, tch::Device::Cpu),
            );
            let wide = Tensor::arange(6, (Dtype::Float, tch::Device::Cpu)).view([2, 3]).transpose(0, 1)
                * (group.rank() as f64 + 1.0);
            let tensors = [Tensor::from_slice(&[values[group.rank()], 1.0]), large, wide];
            group.sum(&tensors).unwrap();
            let first = Vec::<f32>::try_from(&tensors[0]).unwrap();
            let large = [0, (BUCKET / 4 + 2) as i64].map(|at| tensors[1].double_value(&[at]) as f32);
            let wide = Vec::<f32>::try_from(tensors[2].contiguous().flatten(0, -1)).unwrap();
            (first, large, wide)
        });
        let pair = |low: usize| match size - low {
            1 => values[low],
            _ => values[low] + values[low + 1],
        };
        let expected = match size {
            1 | 2 => pair(0),
            3 | 4 => pair(0) + pair(2),
            _ => (pair(0) + pair(2)) + pair(4),
        };
        let factor = (1..=size).sum::<usize>() as f32;
        for (first, large, wide) in all {
            assert_eq!(first, [expected, size as f32]);
            assert_eq!(large, [expected; 2]);
            assert_eq!(wide, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0].map(|value: f32| value * factor));
        }
    }
}

/// The owner of a tensor has the bits of [`ProcessGroup::sum`]; ranks without tensors take part.
#[test]
fn sums_for_owners_have_the_same_bits() {
    let tensors = |rank: usize| -> Vec<Tensor> {
        let options = (Dtype::Float, tch::Device::Cpu);
        let tensor = |number: i64| {
            let values = Tensor::arange(number * 3 + 2, options) + (rank as f64 + 1.0) * (number as f64 + 0.1);
            (values.sin() * 1e3).view([1, -1])
        };
        let large = Tensor::full([(BUCKET / 4 + 3) as i64], rank as f64 + 0.1, options);
        (0..5)
            .map(tensor)
            .chain([large, Tensor::arange(6, options).view([2, 3]).transpose(0, 1) * (rank as f64)])
            .collect()
    };
    for size in 1..=5 {
        let all = ranks(size, move |group| {
            // Not in the order of the owners; rank 1 owns nothing.
            let owners = [3, 0, 2, 0, 4, 3, 2].map(|owner| if owner < group.size() { owner } else { 0 });
            let (expected, mine) = (tensors(group.rank()), tensors(group.rank()));
            group.sum(&expected).unwrap();
            let before = group.traffic().bytes;
            let pairs: Vec<_> = owners.into_iter().zip(mine.iter().map(Tensor::shallow_clone)).collect();
            group.sum_for_owners(&pairs).unwrap();
            let sent = group.traffic().bytes;
            let owned = (0..owners.len()).filter(|&number| owners[number] == group.rank());
            (owned.clone().count(), owned.filter(|&number| mine[number] == expected[number]).count(), before, sent)
        });
        assert_eq!(all.iter().map(|(owned, ..)| owned).sum::<usize>(), 7);
        let sum = |sizes: fn(&(usize, usize, u64, u64)) -> u64| all.iter().map(sizes).sum::<u64>();
        let (before, sent) = (sum(|all| all.2), sum(|all| all.3));
        assert!(![2, 4].contains(&size) || sent < before, "{size}: {sent} {before}");
        assert!(all.iter().all(|(owned, same, ..)| owned == same), "{size}: {all:?}");
    }
}

#[test]
fn missing_ranks_are_named() {
    let began = Instant::now();
    let error = ProcessGroup::connect(&rendezvous(0, 3, free_port(), 1), None, &[]).unwrap_err();
    assert_eq!((error.kind, error.message.as_str()), (Kind::Device, "ranks 1, 2 of 3 did not start within 1 s"));
    assert!(began.elapsed() < Duration::from_secs(10));
    let error = ProcessGroup::connect(&rendezvous(1, 2, free_port(), 1), None, &[]).unwrap_err();
    assert!(error.message.starts_with("rank 1 can't reach rank 0 at 127.0.0.1:"), "{error}");
    let error = ProcessGroup::connect(&rendezvous(2, 2, free_port(), 1), None, &[]).unwrap_err();
    assert_eq!(error.kind, Kind::Usage);
}

#[test]
fn a_port_in_use_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let error = ProcessGroup::connect(&rendezvous(0, 1, port, 30), None, &[]).unwrap_err();
    assert!(error.message.starts_with(&format!("rank 0 can't listen at 127.0.0.1:{port}: ")), "{error}");
}

#[test]
fn facts_are_compared_over_all_ranks() {
    let all = ranks(3, |group| {
        let fact = |lr: &str| [("seed".to_owned(), "1".to_owned()), ("trainer.lr".to_owned(), lr.to_owned())];
        group.require_same(&fact("0.1")).unwrap();
        group.require_same(&fact(if group.rank() == 2 { "0.2" } else { "0.1" })).unwrap_err()
    });
    for error in all {
        assert_eq!(error.message, "rank 2 has another trainer.lr than rank 0: 0.2 instead of 0.1");
        assert_eq!(error.kind, Kind::Usage);
    }
}

/// As with `torchrun`, whose agent runs the store.
#[test]
fn ranks_meet_at_a_store_of_another_process() {
    let port = free_port();
    let store = Collectives::connect("127.0.0.1", port, Some(listen("127.0.0.1", port).unwrap()), GRACE).unwrap();
    let start = |rank| {
        let rendezvous = Rendezvous { runs_store: false, ..rendezvous(rank, 2, port, 30) };
        thread::spawn(move || ProcessGroup::connect(&rendezvous, None, &[]).unwrap().gather(&[rank as u8]).unwrap())
    };
    let threads: Vec<_> = [0, 1].map(start).into();
    assert!(threads.into_iter().all(|thread| thread.join().unwrap() == [[0], [1]]));
    drop(store);
}

/// The store has no password.
#[test]
fn the_store_of_a_loopback_address_listens_there_only() {
    for host in ["127.0.0.1", "localhost"] {
        assert!(listen(host, 0).unwrap().local_addr().unwrap().ip().is_loopback());
    }
    assert!(listen("node-1", 0).unwrap().local_addr().unwrap().ip().is_unspecified());
}

#[test]
fn ranks_with_other_facts_are_refused_by_all() {
    let port = free_port();
    let start = |rank: usize| {
        let script = if rank == 1 { "b2" } else { "a1" };
        thread::spawn(move || {
            let facts = [("version of r1", "0.1.0"), ("script", script)];
            ProcessGroup::connect(&rendezvous(rank, 2, port, 30), None, &facts).unwrap_err()
        })
    };
    for thread in [0, 1].map(start) {
        let error = thread.join().unwrap();
        assert_eq!(error.message, "rank 1 has another script than rank 0: b2 instead of a1");
        assert_eq!(error.kind, Kind::Usage);
    }
}

#[test]
fn a_rank_that_ends_is_an_error_for_the_others() {
    let began = Instant::now();
    let all = ranks(2, |group| (group.rank() == 0).then(|| group.gather(&[1]).map(drop)));
    let error = all[0].clone().unwrap().unwrap_err();
    assert_eq!(error.kind, Kind::Device);
    assert!(error.message.starts_with("can't exchange data: "), "{error}");
    // Not after the time limit of 30 s.
    assert!(began.elapsed() < Duration::from_secs(20));
}
