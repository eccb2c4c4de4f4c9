//! The processes of a run, its ranks, and how they divide the work (docs/lab/decisions/0032). Every
//! rank runs the same loop with the same numbers; rank 0 alone writes the run directory.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tch::{Kind as Dtype, Tensor, no_grad_guard};

use super::image_exchange::ImageExchange;
use crate::error::{Error, Kind, Result};
use crate::mdp::Trajectory;
use crate::model::Model;
use crate::process_group::ProcessGroup;
use crate::script::Script;
use crate::telemetry::{Metrics, counted};
use crate::vision::Images;

/// The ranks of a run. The default is a run of one process.
#[derive(Clone, Debug, Default)]
pub struct Ranks {
    group: Option<Arc<ProcessGroup>>,
    ended: Arc<AtomicBool>,
    /// Number of the last ranks, which sample for the others; 0: all sample.
    samplers: usize,
    /// Number of barriers so far, the same on all ranks.
    barriers: Arc<AtomicU64>,
    /// The images of this rank; `None` for a policy that reads text only.
    images: Option<Arc<ImageExchange>>,
}

impl Ranks {
    /// The ranks of a process group. `ended` becomes true when another process is known to have
    /// ended.
    pub fn new(group: ProcessGroup, ended: Arc<AtomicBool>) -> Self {
        Self { group: Some(Arc::new(group)), ended, ..Self::default() }
    }

    /// The connections to the other ranks.
    pub(super) fn group(&self) -> Option<&Arc<ProcessGroup>> {
        self.group.as_ref()
    }

    /// The number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.group.as_ref().map_or(0, |group| group.rank())
    }

    /// The number of processes.
    pub fn size(&self) -> usize {
        self.group.as_ref().map_or(1, |group| group.size())
    }

    /// Whether this is rank 0, which writes the run directory.
    pub(crate) fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// The ranks with the roles of `rollout.async.ranks`: the last `samplers` ranks sample, and the
    /// others learn. 0: all do both.
    ///
    /// # Errors
    /// `Kind::Usage` if no rank is left to learn.
    pub(crate) fn with_samplers(&self, samplers: usize) -> Result<Self> {
        if samplers > 0 && samplers >= self.size() {
            let message = format!(
                "rollout.async.ranks is {samplers}, and there are {}",
                counted(self.size(), "process", "processes")
            );
            return Err(Error::new(Kind::Usage, message).hint("start more with --nproc: the others learn"));
        }
        Ok(Self { samplers, ..self.clone() })
    }

    /// The ranks of a policy that reads images, if there are `images`.
    #[must_use]
    pub(crate) fn with_images(&self, images: Option<&Arc<Images>>) -> Self {
        Self { images: images.map(|images| Arc::new(ImageExchange::new(images))), ..self.clone() }
    }

    /// Whether there are ranks that only sample.
    pub(crate) fn have_roles(&self) -> bool {
        self.samplers > 0
    }

    /// Whether this rank computes updates.
    pub(crate) fn learns(&self) -> bool {
        self.rank() < self.learners()
    }

    /// The number of ranks that compute updates.
    pub(crate) fn learners(&self) -> usize {
        self.size() - self.samplers
    }

    /// The ranks that compute updates, for one of them; otherwise this process alone. All learners
    /// call it at the same time.
    pub(crate) fn of_learners(&self) -> Result<Self> {
        match &self.group {
            Some(group) if self.have_roles() && self.learns() => {
                let group = Some(Arc::new(group.first("learners", self.learners())?));
                Ok(Self { group, ended: Arc::clone(&self.ended), ..Self::default() })
            }
            Some(_) if self.have_roles() => Ok(Self::default()),
            _ => Ok(self.clone()),
        }
    }

    /// A barrier that does not block: the caller polls it. All ranks call this in the same order.
    /// The barrier is complete when `expected` ranks have entered it; this rank does if it
    /// `enters`.
    pub(crate) fn barrier(&self, expected: usize, enters: bool) -> Result<Barrier> {
        let number = self.barriers.fetch_add(1, Ordering::Relaxed);
        let barrier = Barrier {
            group: self.group.clone(),
            counter: format!("r1/barrier/{number}"),
            expected,
            polled: Cell::new(Instant::now()),
        };
        if enters && let Some(group) = &self.group {
            group.add_to(&barrier.counter, 1)?;
        }
        Ok(barrier)
    }

    /// Broadcasts the tensors of rank 0 into the tensors of all ranks.
    pub(crate) fn broadcast_tensors(&self, tensors: &[Tensor]) -> Result<()> {
        self.group.as_ref().map_or(Ok(()), |group| group.broadcast_tensors(tensors, 0))
    }

    /// How long a rank waits for others.
    pub(crate) fn timeout(&self) -> Duration {
        self.group.as_ref().map_or(Duration::ZERO, |group| group.timeout())
    }

    /// Whether the rollout in progress is useless, because another process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// The values of all ranks, by rank.
    ///
    /// # Errors
    /// `Kind::Device` if another process has ended or does not answer in time. The other functions
    /// have the same error.
    pub(crate) fn gather<T: Serialize + DeserializeOwned>(&self, value: T) -> Result<Vec<T>> {
        let Some(group) = &self.group else { return Ok(vec![value]) };
        let failed = |error: String| Error::new(Kind::Internal, format!("can't exchange a value: {error}"));
        let bytes = rmp_serde::to_vec_named(&value).map_err(|error| failed(error.to_string()))?;
        let read = |bytes: &Vec<u8>| rmp_serde::from_slice(bytes).map_err(|error| failed(error.to_string()));
        group.gather(&bytes)?.iter().map(read).collect()
    }

    /// The value of rank 0.
    pub(crate) fn of_first<T: Serialize + DeserializeOwned>(&self, value: T) -> Result<T> {
        if self.group.is_none() {
            return Ok(value);
        }
        // A list: an option of an option would be read as one option.
        let all = self.gather(if self.is_first() { vec![value] } else { Vec::new() })?;
        all.into_iter().flatten().next().ok_or_else(|| Error::new(Kind::Internal, "rank 0 sent no value"))
    }

    /// The largest value of a rank.
    pub(crate) fn largest<T: Serialize + DeserializeOwned + Ord>(&self, value: T) -> Result<T> {
        let largest = self.gather(value)?.into_iter().max();
        largest.ok_or_else(|| Error::new(Kind::Internal, "there is no rank"))
    }

    /// The result of a part of the work on each rank; if it failed on one of them, its error on
    /// all. An interruption comes before other errors.
    pub(crate) fn all_of<T: Serialize + DeserializeOwned>(&self, part: Result<T>) -> Result<Vec<T>> {
        if self.group.is_none() {
            return Ok(vec![part?]);
        }
        let local = part.as_ref().err().cloned();
        let sent = part.map_err(|error| RankError {
            kind: error.kind,
            message: error.message,
            location: error.place,
            hint: error.hint,
        });
        let all = self.gather(sent)?;
        let interrupted = |part: &&std::result::Result<T, RankError>| {
            part.as_ref().is_err_and(|error| error.kind == Kind::Interrupted)
        };
        if let Some(Err(error)) = all.iter().find(interrupted) {
            return Err(Error::new(Kind::Interrupted, error.message.clone()));
        }
        local.map_or(Ok(()), Err)?;
        let of_rank = |(rank, part): (usize, std::result::Result<T, RankError>)| {
            part.map_err(|RankError { kind, message, location, hint }| Error {
                kind,
                message: format!("rank {rank}: {message}"),
                subject: None,
                place: location,
                hint,
            })
        };
        all.into_iter().enumerate().map(of_rank).collect()
    }

    /// As [`all_of`](Self::all_of), for trajectories. Every rank gets all images of the others, and
    /// the trajectories have the numbers that images have on this rank.
    pub(crate) fn all_trajectories<T: Serialize + DeserializeOwned>(
        &self,
        part: Result<(Vec<Trajectory>, T)>,
    ) -> Result<Vec<(Vec<Trajectory>, T)>> {
        let (Some(images), Some(group)) = (&self.images, &self.group) else { return self.all_of(part) };
        let received = images.receive(group)?;
        let part = images.insert(received).and(part).and_then(|(mut trajectories, more)| {
            let hashes = images.hashes(&mut trajectories)?;
            Ok((hashes, trajectories, more))
        });
        let renumbered = |(hashes, mut trajectories, more): (HashMap<u32, String>, Vec<Trajectory>, T)| {
            images.renumber(&mut trajectories, &hashes)?;
            Ok((trajectories, more))
        };
        self.all_of(part)?.into_iter().map(renumbered).collect()
    }

    /// The time and the size of what the step exchanged.
    pub(crate) fn log(&self, metrics: &mut Metrics) {
        if let Some(group) = &self.group {
            let traffic = group.traffic();
            metrics.set("time/exchange", traffic.seconds);
            metrics.set("time/exchange_overlapped", traffic.overlapped);
            metrics.set("throughput/exchanged", traffic.bytes as f64 / f64::from(1 << 20));
        }
    }

    /// The number of ranks that sample.
    pub(crate) fn sampling(&self) -> usize {
        if self.have_roles() { self.samplers } else { self.size() }
    }

    /// Whether this rank samples the part `number` of `count` parts.
    pub(crate) fn samples(&self, number: usize, count: usize) -> bool {
        number * self.sampling() / count.max(1) + self.size() - self.sampling() == self.rank()
    }

    /// Refuses ranks with other weights: they were loaded from another model, or processors that
    /// compute differently have changed them.
    ///
    /// # Errors
    /// `Kind::Usage` names the first rank.
    pub(crate) fn require_same_weights(&self, model: &Model) -> Result<()> {
        if self.group.is_none() {
            return Ok(());
        }
        let sum = checksum(&model.parameters())?;
        self.require_same_facts(&[("checksum of the weights".to_owned(), format!("{sum:016x}"))])
    }

    /// Loads something on all ranks. If ranks have different versions, because a file was edited
    /// meanwhile, all load it again. Versions that stay different are for `require_same` to refuse.
    ///
    /// # Errors
    /// Errors of `load`.
    pub(crate) fn load<T>(&self, load: impl Fn() -> Result<T>, version: impl Fn(&T) -> &str) -> Result<T> {
        let mut attempts = 0;
        loop {
            let loaded = load();
            attempts += 1;
            let versions = self.gather(loaded.as_ref().map_or(String::new(), |loaded| version(loaded).to_owned()))?;
            if attempts == LOADS || versions.iter().all(|version| *version == versions[0]) {
                return loaded;
            }
            std::thread::sleep(BETWEEN_LOADS);
        }
    }

    /// Refuses ranks with other facts, each with a name.
    ///
    /// # Errors
    /// `Kind::Usage` names the first difference.
    pub(crate) fn require_same_facts(&self, facts: &[(String, String)]) -> Result<()> {
        self.group.as_ref().map_or(Ok(()), |group| group.require_same(facts))
    }

    /// Refuses ranks with another script, other settings or another checkpoint.
    ///
    /// # Errors
    /// `Kind::Usage` names the first difference.
    pub(crate) fn require_same(&self, script: &Script, checkpoint: Option<u64>) -> Result<()> {
        let step = checkpoint.map_or("none".to_owned(), |step| step.to_string());
        let mut facts =
            vec![("version of the script".to_owned(), script.hash.clone()), ("checkpoint".to_owned(), step)];
        flatten("", &serde_json::json!(script.settings), &mut facts);
        self.require_same_facts(&facts)
    }
}

/// A barrier that the caller polls.
pub(crate) struct Barrier {
    group: Option<Arc<ProcessGroup>>,
    /// Key of the store with the number of ranks that have entered.
    counter: String,
    expected: usize,
    /// When the store was polled last.
    polled: Cell<Instant>,
}

impl Barrier {
    /// Whether the expected ranks have entered. Polls the store once in [`POLL_INTERVAL`].
    ///
    /// # Errors
    /// `Kind::Device` if rank 0 has ended.
    pub(crate) fn is_complete(&self) -> Result<bool> {
        let Some(group) = &self.group else { return Ok(true) };
        if self.polled.get().elapsed() <= POLL_INTERVAL {
            return Ok(false);
        }
        self.polled.set(Instant::now());
        Ok(group.add_to(&self.counter, 0)? >= self.expected as i64)
    }
}

const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Times that a script is loaded, at most, until all ranks have the same version.
const LOADS: usize = 10;
const BETWEEN_LOADS: Duration = Duration::from_millis(100);

/// Values of each tensor in a checksum: the first ones.
const CHECKED: i64 = 64;

/// A checksum of the first values of each tensor.
fn checksum(parameters: &[(String, Tensor)]) -> Result<u64> {
    let _guard = no_grad_guard();
    let first = |(_, tensor): &(String, Tensor)| -> Result<Tensor> {
        let flat = tensor.f_flatten(0, -1)?;
        Ok(flat.f_narrow(0, 0, CHECKED.min(flat.numel() as i64))?.f_to_kind(Dtype::Float)?)
    };
    let values = parameters.iter().map(first).collect::<Result<Vec<_>>>()?;
    let values = Vec::<f32>::try_from(Tensor::f_cat(&values, 0)?)?;
    Ok(values.into_iter().fold(0, |sum: u64, value| sum.wrapping_mul(0x0100_0193).wrapping_add(value.to_bits().into())))
}

/// An error of a rank, for the other ones.
#[derive(Serialize, Deserialize)]
struct RankError {
    kind: Kind,
    message: String,
    location: Option<String>,
    hint: Option<String>,
}

/// The settings by their dotted names.
fn flatten(name: &str, value: &Value, facts: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let name = if name.is_empty() { field.clone() } else { format!("{name}.{field}") };
                flatten(&name, value, facts);
            }
        }
        value => facts.push((name.to_owned(), value.to_string())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::TcpListener;

    use super::*;
    use crate::mdp::{image_id, image_number, testing};
    use crate::process_group::Rendezvous;
    use crate::vision::{DecodeLimits, Processor, decode};

    /// A rank, which a thread is here.
    fn connected(rank: usize, size: usize, port: u16, listener: Option<TcpListener>) -> Ranks {
        let (host, timeout) = ("127.0.0.1".to_owned(), Duration::from_secs(30));
        let address = Some(host.clone());
        let rendezvous = Rendezvous { host, port, rank, size, runs_store: true, address, timeout };
        Ranks::new(ProcessGroup::connect(&rendezvous, listener, &[]).unwrap(), Arc::default())
    }

    #[test]
    fn the_last_ranks_sample() {
        let alone = Ranks::default();
        assert!(alone.samples(3, 4) && alone.learns() && !alone.have_roles());
        let refused = alone.with_samplers(1).unwrap_err();
        assert!(refused.message.contains("rollout.async.ranks is 1, and there are 1 process"), "{refused}");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let rank = |rank: usize, listener: Option<TcpListener>| {
            std::thread::spawn(move || {
                let ranks = connected(rank, 3, port, listener).with_samplers(2).unwrap();
                let (first, second) = (ranks.barrier(1, ranks.learns()).unwrap(), ranks.barrier(4, true).unwrap());
                while !first.is_complete().unwrap() {}
                std::thread::sleep(POLL_INTERVAL * 2);
                let shares: Vec<usize> = (0..5).filter(|number| ranks.samples(*number, 5)).collect();
                let sizes = (ranks.learners(), ranks.of_learners().unwrap().size());
                // Every rank answers before the store ends.
                let is_complete = second.is_complete().unwrap();
                ranks.gather(()).unwrap();
                (ranks.learns(), shares, sizes, is_complete)
            })
        };
        let all = [rank(0, Some(listener)), rank(1, None), rank(2, None)].map(|rank| rank.join().unwrap());
        let expected = [(true, vec![]), (false, vec![0, 1, 2]), (false, vec![3, 4])];
        for (one, (learns, shares)) in all.into_iter().zip(expected) {
            assert_eq!(one, (learns, shares, (1, 1), false));
        }
    }

    /// The colours of an image name it here.
    #[test]
    fn images_travel_with_trajectories_and_get_the_numbers_of_the_rank() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let rank = |rank: usize, listener: Option<TcpListener>| {
            std::thread::spawn(move || {
                let json = serde_json::json!({ "patch_size": 8, "image_mean": [0, 0, 0], "image_std": [1, 1, 1] });
                let images = Images::new(Processor::from_json(&json).unwrap(), DecodeLimits::default());
                let images = Arc::new(images);
                let ranks = connected(rank, 3, port, listener).with_images(Some(&images));
                let id = |color: u8| image_id(images.add_rgb(&[color; 3 * 64 * 64], 64).unwrap());
                let color = |number: u32| {
                    let image = images.image(number).unwrap();
                    u32::from(decode(&image.bytes().unwrap(), &DecodeLimits::default()).unwrap().data[0])
                };
                let exchange = |colors: &[u8]| -> Vec<Vec<u32>> {
                    let prompt: Vec<u32> = colors.iter().map(|&color| id(color)).collect();
                    let local = Ok((vec![testing::trajectory(vec![testing::step(&prompt, &[3])])], colors.len()));
                    let colors = |(mut all, count): (Vec<Trajectory>, usize)| {
                        let ids = all.remove(0).steps.remove(0).prompt_ids;
                        assert_eq!(ids.len(), count);
                        ids.into_iter().map(|id| color(image_number(id).unwrap())).collect()
                    };
                    ranks.all_trajectories(local).unwrap().into_iter().map(colors).collect()
                };
                // Images that this rank has drawn are numbered before images that it receives.
                let alone = [10 + rank as u8, 20 + rank as u8];
                let first = exchange(&[&alone[..], &[5], &[[6], [6], [7]][rank]].concat());
                let second = exchange(&[[20], [12], [30]][rank]);
                let third = exchange(&[30, 6]);
                let received = ranks.all_trajectories(Ok((Vec::new(), ()))).unwrap().len();
                (alone.map(|color| id(color) - image_id(0)), first, second, third, received, images.since(0).len())
            })
        };
        let all = [rank(0, Some(listener)), rank(1, None), rank(2, None)].map(|rank| rank.join().unwrap());
        let first = vec![vec![10, 20, 5, 6], vec![11, 21, 5, 6], vec![12, 22, 5, 7]];
        let second = vec![vec![20], vec![12], vec![30]];
        for one in all {
            assert_eq!(one, ([0, 1], first.clone(), second.clone(), vec![vec![30, 6]; 3], 3, 10));
        }
    }

    /// Rank 1 reads the file after an edit that rank 0 has not seen.
    #[test]
    fn versions_that_differ_are_loaded_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let rank = |rank: usize, listener: Option<TcpListener>| {
            std::thread::spawn(move || {
                let ranks = connected(rank, 2, port, listener);
                let loads = Cell::new(0);
                let load = || {
                    loads.set(loads.get() + 1);
                    Ok(if rank == 1 || loads.get() == 3 { "new" } else { "old" })
                };
                let same = ranks.load(load, |version| version).unwrap();
                let never = ranks.load(|| Ok(rank), |rank| ["a", "b"][*rank]).unwrap();
                (same, loads.get(), never)
            })
        };
        let all = [rank(0, Some(listener)), rank(1, None)].map(|rank| rank.join().unwrap());
        assert_eq!(all, [("new", 3, 0), ("new", 3, 1)]);
    }

    #[test]
    fn a_checksum_changes_with_the_order_of_tensors() {
        let one = ("a".to_owned(), Tensor::from_slice(&[1.0_f32, 2.0]));
        let two = ("b".to_owned(), Tensor::zeros([9, 9], (Dtype::BFloat16, tch::Device::Cpu)) + 0.5);
        let sum = |all: &[&(String, Tensor)]| {
            checksum(&all.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect::<Vec<_>>())
                .unwrap()
        };
        assert_eq!(sum(&[&one, &two]), sum(&[&one, &two]));
        assert_ne!(sum(&[&one, &two]), sum(&[&two, &one]));
    }

    #[test]
    fn settings_are_compared_by_name() {
        let mut facts = Vec::new();
        flatten("", &serde_json::json!({ "seed": 1, "trainer": { "lr": 0.1, "betas": [0.9, 0.99] } }), &mut facts);
        let names: Vec<&str> = facts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["seed", "trainer.lr", "trainer.betas"]);
        assert_eq!(facts[2].1, "[0.9,0.99]");
    }
}
