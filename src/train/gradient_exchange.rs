//! The exchange of gradients with the other processes, in a thread beside the backward pass.

use std::mem;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tch::Tensor;

use crate::error::{Error, Kind, Result};
use crate::process_group::ProcessGroup;

/// Buckets that wait for the exchange, at most: their gradients take memory.
const WAITING: usize = 2;

/// Gradients with the numbers of their tensors, which are exchanged together.
type Bucket = Vec<(usize, Tensor)>;

/// Sums buckets of gradients over the processes, in the order in which they are added.
pub(super) struct GradientExchange {
    group: Arc<ProcessGroup>,
    /// The process that keeps the sum of each tensor; `None` if all do.
    owners: Option<Arc<Vec<usize>>>,
    /// Bytes of a bucket.
    capacity: usize,
    bucket: Bucket,
    bytes: usize,
    thread: Option<ExchangeThread>,
    /// Buckets for [`finish`](Self::finish), without a thread.
    later: Vec<Bucket>,
    /// How long this process has waited for the thread.
    waited: Duration,
}

struct ExchangeThread {
    buckets: Sender<Bucket>,
    sums: Receiver<Result<Bucket>>,
    /// Number of buckets that were sent and did not come back.
    waiting: usize,
    /// Returns the time of the exchange.
    thread: JoinHandle<Duration>,
}

impl GradientExchange {
    pub(super) fn new(
        group: &Arc<ProcessGroup>,
        owners: Option<Vec<usize>>,
        capacity: usize,
        in_background: bool,
    ) -> Self {
        let owners = owners.map(Arc::new);
        let thread = in_background.then(|| ExchangeThread::start(group, owners.as_ref()));
        let (group, waited) = (Arc::clone(group), Duration::ZERO);
        Self { group, owners, capacity, bucket: Vec::new(), bytes: 0, thread, later: Vec::new(), waited }
    }

    /// Adds the gradient of a tensor. Sums that have arrived are added to `sums`.
    pub(super) fn add(&mut self, number: usize, gradient: Tensor, sums: &mut [Option<Tensor>]) -> Result<()> {
        self.bytes += gradient.numel() * gradient.kind().elt_size_in_bytes();
        self.bucket.push((number, gradient));
        if self.bytes >= self.capacity { self.send(sums) } else { Ok(()) }
    }

    /// Sends what was added.
    pub(super) fn send(&mut self, sums: &mut [Option<Tensor>]) -> Result<()> {
        let bucket = mem::take(&mut self.bucket);
        self.bytes = 0;
        if bucket.is_empty() {
            return Ok(());
        }
        let Some(thread) = &mut self.thread else {
            self.later.push(bucket);
            return Ok(());
        };
        // If the thread has ended, its error is the next one that is received.
        let _ = thread.buckets.send(bucket);
        thread.waiting += 1;
        while self.thread.as_ref().is_some_and(|thread| thread.waiting > WAITING) {
            self.receive(sums)?;
        }
        Ok(())
    }

    /// Waits for the sum of one bucket.
    fn receive(&mut self, sums: &mut [Option<Tensor>]) -> Result<()> {
        let Some(thread) = &mut self.thread else { return Ok(()) };
        let began = Instant::now();
        let received = thread.sums.recv();
        thread.waiting -= 1;
        self.waited += began.elapsed();
        let bucket = received.map_err(|_| Error::new(Kind::Internal, "the exchange of gradients has ended"))??;
        self.keep(bucket, sums)
    }

    /// Adds the sums of tensors that this process keeps.
    fn keep(&self, bucket: Bucket, sums: &mut [Option<Tensor>]) -> Result<()> {
        let keeps = |number: usize| self.owners.as_ref().is_none_or(|owners| owners[number] == self.group.rank());
        let kept = bucket.into_iter().filter(|(number, _)| keeps(*number));
        kept.into_iter().try_for_each(|(number, sum)| add_to(&mut sums[number], Some(sum)))
    }

    /// Waits for all sums.
    pub(super) fn finish(mut self, sums: &mut [Option<Tensor>]) -> Result<()> {
        self.send(sums)?;
        for bucket in mem::take(&mut self.later) {
            sum(&self.group, self.owners.as_deref(), &bucket)?;
            self.keep(bucket, sums)?;
        }
        while self.thread.as_ref().is_some_and(|thread| thread.waiting > 0) {
            self.receive(sums)?;
        }
        let time = self.thread.take().map_or(Duration::ZERO, ExchangeThread::end);
        self.group.add_overlapped(time.saturating_sub(self.waited));
        Ok(())
    }
}

impl Drop for GradientExchange {
    /// Other operations of the group wait for the thread.
    fn drop(&mut self) {
        self.thread.take().map(ExchangeThread::end);
    }
}

impl ExchangeThread {
    fn start(group: &Arc<ProcessGroup>, owners: Option<&Arc<Vec<usize>>>) -> Self {
        let (buckets, received) = channel::<Bucket>();
        let (sent, sums) = channel();
        let (group, owners) = (Arc::clone(group), owners.cloned());
        let thread = std::thread::spawn(move || {
            let mut time = Duration::ZERO;
            for bucket in received {
                let began = Instant::now();
                let summed = sum(&group, owners.as_deref(), &bucket).map(|()| bucket);
                time += began.elapsed();
                let failed = summed.is_err();
                if sent.send(summed).is_err() || failed {
                    break;
                }
            }
            time
        });
        Self { buckets, sums, waiting: 0, thread }
    }

    /// Ends the thread after its current bucket, and returns the time of the exchange.
    fn end(self) -> Duration {
        drop((self.buckets, self.sums));
        self.thread.join().unwrap_or_default()
    }
}

/// Replaces gradients by their sum over the processes.
fn sum(group: &ProcessGroup, owners: Option<&Vec<usize>>, bucket: &Bucket) -> Result<()> {
    let tensors = bucket.iter().map(|(number, tensor)| (*number, tensor.shallow_clone()));
    match owners {
        Some(owners) => {
            group.sum_for_owners(&tensors.map(|(number, tensor)| (owners[number], tensor)).collect::<Vec<_>>())
        }
        None => group.sum(&tensors.map(|(_, tensor)| tensor).collect::<Vec<_>>()),
    }
}

/// Adds a gradient to a sum.
pub(super) fn add_to(sum: &mut Option<Tensor>, gradient: Option<Tensor>) -> Result<()> {
    let _guard = tch::no_grad_guard();
    match (&mut *sum, gradient) {
        (Some(sum), Some(gradient)) => {
            let _ = sum.f_add_(&gradient)?;
        }
        (None, gradient) => *sum = gradient,
        (Some(_), None) => {}
    }
    Ok(())
}
