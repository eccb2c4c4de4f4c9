//! Processes that compute together: a process group of c10d with its Gloo backend, which libtorch
//! contains.
//!
//! Ranks meet at c10d's TCP store, which rank 0 or the agent of `torchrun` runs. Sums have a fixed
//! order, so that every rank has the same bits.

use std::net::{IpAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use r1_base::error::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use tch::{Kind as Dtype, Tensor, no_grad_guard};

use crate::native::Collectives;

/// Bytes of tensors that are sent as one.
const BUCKET: usize = 32 << 20;
/// How much longer ranks wait for rank 0's decision, which waits for all ranks.
const GRACE: Duration = Duration::from_secs(5);

/// Where and as what a process joins a group.
#[derive(Clone, Debug)]
pub struct Rendezvous {
    /// Host and port of rank 0 (`MASTER_ADDR` and `MASTER_PORT`).
    pub host: String,
    pub port: u16,
    /// Number of this process, from 0.
    pub rank: usize,
    /// Number of processes.
    pub size: usize,
    /// Whether rank 0 runs the store. Otherwise another process does, such as `torchrun`.
    pub runs_store: bool,
    /// The address at which other ranks reach this one. Default: the address of the network
    /// interface that the variable GLOO_SOCKET_IFNAME names, or of the machine's name.
    pub address: Option<String>,
    /// How long a process waits for others, at the start and in each operation.
    pub timeout: Duration,
}

/// What a process exchanged with others.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeTotals {
    /// Time of the operations, waiting for other ranks included.
    pub seconds: f64,
    /// The part of it during which the process computed something else.
    pub overlapped: f64,
    /// Bytes that this rank sent.
    pub bytes: u64,
}

/// The connections of a process to the others of its group.
#[derive(Debug)]
pub struct ProcessGroup {
    collectives: Collectives,
    rank: usize,
    size: usize,
    address: Option<String>,
    timeout: Duration,
    nanoseconds: AtomicU64,
    overlapped: AtomicU64,
    bytes: AtomicU64,
}

impl ProcessGroup {
    /// Waits for all ranks and connects with them. `facts` are what has to be the same on each,
    /// with a name for each value. Rank 0 runs the store, at `listener` if that is given.
    ///
    /// # Errors
    /// `Kind::Device` names the ranks that are missing; `Kind::Usage` names the first rank and fact
    /// that differ from rank 0.
    pub fn connect(rendezvous: &Rendezvous, listener: Option<TcpListener>, facts: &[(&str, &str)]) -> Result<Self> {
        let Rendezvous { host, port, rank, size, runs_store, address, timeout } = rendezvous;
        if rank >= size {
            return Err(Error::new(Kind::Usage, format!("rank {rank} is not below the number of processes, {size}")));
        }
        let unreachable = |error: Error| {
            let first = error.message.lines().next().unwrap_or("");
            let message = format!("rank {rank} can't reach rank 0 at {host}:{port}: {first}");
            Error::new(Kind::Device, message).hint("check MASTER_ADDR and MASTER_PORT")
        };
        let listener = match listener {
            None if *rank == 0 && *runs_store => Some(listen(host, *port)?),
            listener => listener,
        };
        let collectives = Collectives::connect(host, *port, listener, *timeout).map_err(unreachable)?;
        let text = serde_json::to_string(facts).map_err(|error| Error::new(Kind::Internal, error.to_string()))?;
        let refused = if *rank == 0 {
            decide(&collectives, text, *size, *timeout)
        } else {
            // Rank 0 decides after its own time limit.
            let answer = collectives.set(&facts_of(*rank), &text);
            let answer = answer.and_then(|()| collectives.get(DECISION, *timeout + GRACE)).map_err(unreachable)?;
            collectives.set(&read_by(*rank), "").map_err(unreachable)?;
            let answer = answer.and_then(|answer| serde_json::from_str::<Option<GroupRefusal>>(&answer).ok());
            answer.ok_or_else(|| unreachable(Error::new(Kind::Device, "it does not answer")))
        };
        if let Some(GroupRefusal { is_missing, message }) = refused? {
            let kind = if is_missing { Kind::Device } else { Kind::Usage };
            let hint = "start every process with the same program, script and settings, and the address of rank 0";
            return Err(Error::new(kind, message).hint(hint));
        }
        let failed = |error| lost("connect with the other ranks", &error);
        collectives.join(address.as_deref(), *rank, *size, *timeout).map_err(failed)?;
        Ok(Self::new(collectives, (*rank, *size), address.clone(), *timeout))
    }

    fn new(collectives: Collectives, (rank, size): (usize, usize), address: Option<String>, timeout: Duration) -> Self {
        let [nanoseconds, overlapped, bytes] = [const { AtomicU64::new(0) }; 3];
        Self { collectives, rank, size, address, timeout, nanoseconds, overlapped, bytes }
    }

    /// The first `size` ranks as a group of their own, which these call at the same time. `name` is
    /// new.
    ///
    /// # Errors
    /// As [`gather`](Self::gather).
    pub fn first(&self, name: &str, size: usize) -> Result<Self> {
        let of = (self.rank, size);
        let part = self.collectives.part(name, self.address.as_deref(), of, self.timeout);
        let part = part.map_err(|error| lost("connect with some of the ranks", &error))?;
        Ok(Self::new(part, of, self.address.clone(), self.timeout))
    }

    /// Adds to a counter that all ranks see, and returns its value. A new one is 0.
    ///
    /// # Errors
    /// As [`gather`](Self::gather).
    pub fn add_to(&self, counter: &str, amount: i64) -> Result<i64> {
        self.collectives.add(counter, amount).map_err(|error| lost("reach the store of rank 0", &error))
    }

    /// The number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of processes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// How long this process waits for others in an operation.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What was exchanged since the last call.
    pub fn traffic(&self) -> ExchangeTotals {
        let seconds = |time: &AtomicU64| Duration::from_nanos(time.swap(0, Ordering::Relaxed)).as_secs_f64();
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        ExchangeTotals { seconds: seconds(&self.nanoseconds), overlapped: seconds(&self.overlapped), bytes }
    }

    /// Adds time of operations during which the process computed something else.
    pub fn add_overlapped(&self, time: Duration) {
        self.overlapped.fetch_add(nanoseconds(time), Ordering::Relaxed);
    }

    /// Adds what was exchanged with the same ranks through other connections, which count from 0
    /// again.
    pub fn add_traffic_of(&self, other: &Self) {
        self.nanoseconds.fetch_add(other.nanoseconds.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        self.bytes.fetch_add(other.bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }

    fn timed<T>(&self, sends: usize, operation: impl FnOnce() -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let done = operation();
        self.nanoseconds.fetch_add(nanoseconds(began.elapsed()), Ordering::Relaxed);
        self.bytes.fetch_add(sends as u64, Ordering::Relaxed);
        done
    }

    /// The tensors of all ranks.
    fn tensors(&self, what: &str, tensor: &Tensor) -> Result<Tensor> {
        let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes() * (self.size - 1);
        self.timed(bytes, || self.collectives.gather(tensor, self.size).map_err(|error| lost(what, &error)))
    }

    /// The tensors of all ranks, on the CPU, as the rows of one. They have the same shape and type.
    ///
    /// # Errors
    /// As [`gather`](Self::gather).
    pub fn gather_tensor(&self, tensor: &Tensor) -> Result<Tensor> {
        self.tensors("exchange the state of the optimiser", tensor)
    }

    /// Compares facts, with a name for each value, over all ranks.
    ///
    /// # Errors
    /// `Kind::Usage` on every rank names the first rank and fact that differ from rank 0.
    pub fn require_same(&self, facts: &[(String, String)]) -> Result<()> {
        let text = serde_json::to_string(facts).map_err(|error| Error::new(Kind::Internal, error.to_string()))?;
        let all = self.gather(text.as_bytes())?;
        let all: Vec<(usize, String)> =
            all.iter().map(|text| String::from_utf8_lossy(text).into_owned()).enumerate().collect();
        difference(&all).map_or(Ok(()), |message| {
            Err(Error::new(Kind::Usage, message).hint("start every process with the same script and settings"))
        })
    }

    /// The bytes of all ranks, by rank.
    ///
    /// # Errors
    /// `Kind::Device` if another process has ended or does not answer in time. The other operations
    /// have the same error.
    pub fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lengths = self.tensors("exchange data", &Tensor::from_slice(&[bytes.len() as i64]))?;
        let lengths = Vec::<i64>::try_from(lengths.f_flatten(0, -1)?)?;
        let longest = lengths.iter().copied().max().unwrap_or(0).max(1);
        let mut padded = bytes.to_vec();
        padded.resize(longest as usize, 0);
        let all = self.tensors("exchange data", &Tensor::from_slice(&padded))?;
        let part = |(rank, length): (usize, &i64)| -> Result<Vec<u8>> {
            let part = all.f_get(rank as i64)?.f_narrow(0, 0, *length)?;
            Ok(Vec::<u8>::try_from(part)?)
        };
        lengths.iter().enumerate().map(part).collect()
    }

    /// The bytes of rank 0. The bytes of other ranks are ignored.
    pub fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        let mut all = self.gather(if self.rank == 0 { bytes } else { &[] })?;
        Ok(all.swap_remove(0))
    }

    /// Replaces each tensor by its sum over the ranks, with the same bits on each. Ranks are added
    /// in the order of a binary tree: `(0 + 1) + (2 + 3)`. The tensors have one type. Those on a
    /// GPU are sent through the host's memory.
    pub fn sum(&self, tensors: &[Tensor]) -> Result<()> {
        in_buckets(tensors, |bucket| self.tree(bucket))
    }

    /// As [`sum`](Self::sum), for the rank that owns each tensor: the tensors of other ranks have
    /// undefined values afterwards. The sums have the same bits. On 2, 4, 8, … ranks each sends
    /// every value at most once (reduce-scatter by recursive halving).
    pub fn sum_for_owners(&self, tensors: &[(usize, Tensor)]) -> Result<()> {
        if !self.size.is_power_of_two() {
            let all: Vec<Tensor> = tensors.iter().map(|(_, tensor)| tensor.shallow_clone()).collect();
            return self.sum(&all);
        }
        let mut by_owner: Vec<&(usize, Tensor)> = tensors.iter().collect();
        by_owner.sort_by_key(|(owner, _)| *owner);
        let mut rest = by_owner.as_slice();
        while !rest.is_empty() {
            let (bucket, after) = rest.split_at(bucket_end(rest.iter().map(|(_, tensor)| tensor)));
            rest = after;
            self.halve(bucket)?;
        }
        Ok(())
    }

    /// Recursive halving: in each round a rank sends the values of owners that are on the other
    /// side, and adds the values that it receives for its own side.
    fn halve(&self, bucket: &[&(usize, Tensor)]) -> Result<()> {
        let _guard = no_grad_guard();
        let owned = |owner: usize| bucket.iter().filter(move |(other, _)| *other == owner).map(|(_, tensor)| tensor);
        let flat = |owner: usize| -> Result<Option<Tensor>> {
            let all = owned(owner).map(|tensor| tensor.f_flatten(0, -1)).collect::<Result<Vec<_>, _>>()?;
            let cat = |all: &[Tensor]| Tensor::f_cat(all, 0)?.f_to_device(tch::Device::Cpu);
            Ok(if all.is_empty() { None } else { Some(cat(&all)?) })
        };
        let mut parts = (0..self.size).map(flat).collect::<Result<Vec<_>>>()?;
        let mut bit = 1;
        while bit < self.size {
            let (mut sent, mut kept) = (Vec::new(), Vec::new());
            for (owner, part) in parts.iter_mut().enumerate() {
                if (owner ^ self.rank) & bit == 0 { kept.extend(part.as_mut()) } else { sent.extend(part.take()) }
            }
            let count = kept.iter().map(|part| part.numel() as i64).sum();
            let none = Tensor::f_zeros([0], (bucket[0].1.kind(), tch::Device::Cpu))?;
            let sent = if sent.is_empty() { none } else { Tensor::f_cat(&sent, 0)? };
            let received = self.exchange(&sent, bit, count)?;
            let mut at = 0;
            for part in kept {
                let length = part.numel() as i64;
                let _ = part.f_add_(&received.f_narrow(0, at, length)?)?;
                at += length;
            }
            bit <<= 1;
        }
        let Some(sum) = &parts[self.rank] else { return Ok(()) };
        copy_back(sum, owned(self.rank))
    }

    /// Sends values to the rank whose number differs in `bit`, and receives `count` values.
    fn exchange(&self, sent: &Tensor, bit: usize, count: i64) -> Result<Tensor> {
        let bytes = sent.numel() * sent.kind().elt_size_in_bytes();
        let exchange = || self.collectives.exchange(sent, self.rank ^ bit, count);
        self.timed(bytes, || exchange().map_err(|error| lost("sum gradients", &error)))
    }

    /// Broadcasts the tensors of the rank `from` into the tensors of all ranks. They have one type.
    pub fn broadcast_tensors(&self, tensors: &[Tensor], from: usize) -> Result<()> {
        in_buckets(tensors, |bucket| {
            let bytes = bucket.numel() * bucket.kind().elt_size_in_bytes();
            let sends = if self.rank == from { bytes * (self.size - 1) } else { 0 };
            let broadcast = || self.collectives.broadcast(&bucket, from).map_err(|error| lost("send tensors", &error));
            self.timed(sends, broadcast)?;
            Ok(bucket)
        })
    }

    fn tree(&self, mut sum: Tensor) -> Result<Tensor> {
        if !self.size.is_power_of_two() {
            return in_pairs(self.tensors("sum gradients", &sum)?.f_unbind(0)?);
        }
        // With the rank whose number differs in one bit. A sum of two numbers does not depend on
        // their order, so that both ranks have the same bits.
        let mut bit = 1;
        while bit < self.size {
            let _ = sum.f_add_(&self.exchange(&sum, bit, sum.numel() as i64)?)?;
            bit <<= 1;
        }
        Ok(sum)
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Replaces tensors by what `exchange` makes of them: several at a time as one flat tensor on the
/// CPU.
fn in_buckets(tensors: &[Tensor], exchange: impl Fn(Tensor) -> Result<Tensor>) -> Result<()> {
    let _guard = no_grad_guard();
    let mut rest = tensors;
    while !rest.is_empty() {
        let (bucket, after) = rest.split_at(bucket_end(rest.iter()));
        rest = after;
        let flat: Vec<Tensor> =
            bucket.iter().map(|tensor| tensor.f_flatten(0, -1)).collect::<std::result::Result<_, _>>()?;
        let done = exchange(Tensor::f_cat(&flat, 0)?.f_to_device(tch::Device::Cpu)?)?;
        copy_back(&done, bucket.iter())?;
    }
    Ok(())
}

/// Number of the first tensors that are sent together.
fn bucket_end<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> usize {
    let mut bytes = 0;
    let fits = |tensor: &&Tensor| {
        bytes += tensor.numel() * tensor.kind().elt_size_in_bytes();
        bytes <= BUCKET
    };
    tensors.take_while(fits).count().max(1)
}

/// Copies the values of a flat tensor into tensors, one after the other.
fn copy_back<'a>(flat: &Tensor, tensors: impl Iterator<Item = &'a Tensor>) -> Result<()> {
    let mut at = 0;
    for tensor in tensors {
        let length = tensor.numel() as i64;
        tensor.shallow_clone().f_copy_(&flat.f_narrow(0, at, length)?.f_view_as(tensor)?)?;
        at += length;
    }
    Ok(())
}

/// The sum in the order of a binary tree.
fn in_pairs(mut tensors: Vec<Tensor>) -> Result<Tensor> {
    while tensors.len() > 1 {
        let pair = |pair: &[Tensor]| match pair {
            [one, two] => one.f_add(two),
            pair => Ok(pair[0].shallow_clone()),
        };
        tensors = tensors.chunks(2).map(pair).collect::<std::result::Result<_, _>>()?;
    }
    tensors.pop().map_or_else(|| Ok(Tensor::f_zeros([0], (Dtype::Float, tch::Device::Cpu))?), Ok)
}

/// The socket of the store: reachable from other machines only if `host` is not this machine's
/// loopback address.
fn listen(host: &str, port: u16) -> Result<TcpListener> {
    let is_loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let listener = if is_loopback {
        TcpListener::bind((host, port))
    } else {
        TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)))
    };
    listener.map_err(|error| {
        Error::new(Kind::Device, format!("rank 0 can't listen at {host}:{port}: {error}"))
            .hint("choose another MASTER_PORT")
    })
}

/// Rank 0 compares the facts of all ranks, and all of them get the result.
fn decide(store: &Collectives, facts: String, size: usize, timeout: Duration) -> Result<Option<GroupRefusal>> {
    let began = Instant::now();
    let (mut all, mut missing) = (vec![(0, facts)], Vec::new());
    for rank in 1..size {
        match store.get(&facts_of(rank), timeout.saturating_sub(began.elapsed()))? {
            Some(facts) => all.push((rank, facts)),
            None => missing.push(rank.to_string()),
        }
    }
    let refusal = if missing.is_empty() {
        difference(&all).map(|message| GroupRefusal { is_missing: false, message })
    } else {
        let ranks = if missing.len() == 1 { "rank" } else { "ranks" };
        let (missing, seconds) = (missing.join(", "), timeout.as_secs_f64());
        let message = format!("{ranks} {missing} of {size} did not start within {seconds} s");
        Some(GroupRefusal { is_missing: true, message })
    };
    let text = serde_json::to_string(&refusal).map_err(|error| Error::new(Kind::Internal, error.to_string()))?;
    store.set(DECISION, &text)?;
    if refusal.is_some() {
        // The store ends with this process.
        for (rank, _) in &all[1..] {
            store.get(&read_by(*rank), GRACE)?;
        }
    }
    Ok(refusal)
}

/// Why the ranks do not form a group.
#[derive(Serialize, Deserialize)]
struct GroupRefusal {
    is_missing: bool,
    message: String,
}

/// Key of the store with rank 0's decision, a [`GroupRefusal`] or null.
const DECISION: &str = "r1/decision";

fn facts_of(rank: usize) -> String {
    format!("r1/facts/{rank}")
}

/// Key of a rank that has read the decision.
fn read_by(rank: usize) -> String {
    format!("r1/read/{rank}")
}

/// The error for an operation that other processes did not take part in.
fn lost(what: &str, error: &Error) -> Error {
    let first = error.message.lines().next().unwrap_or("");
    Error::new(Kind::Device, format!("can't {what}: {first}"))
        .hint("another process of the run has ended or does not answer; see its output")
}

/// The first fact of a rank that differs from rank 0's.
fn difference(all: &[(usize, String)]) -> Option<String> {
    let read = |text: &str| serde_json::from_str::<Vec<(String, String)>>(text).unwrap_or_default();
    let first = read(&all[0].1);
    all.iter().find_map(|(rank, facts)| {
        let facts = read(facts);
        let (name, value) = first.iter().find(|fact| !facts.contains(fact))?;
        let other = facts.iter().find(|(other, _)| other == name).map_or("none", |(_, value)| value);
        Some(format!("rank {rank} has another {name} than rank 0: {other} instead of {value}"))
    })
}

#[cfg(test)]
mod tests;
