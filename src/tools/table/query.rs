//! A query on a new thread. SQLite checks the time of a query from time to time; a query that does
//! not end soon after its time is abandoned: the caller goes on, and the thread ends at the next
//! check.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::unbounded_channel;

use super::query_error::Why;
use super::{Cell, QueryError, QueryLimits, QueryResult, Tables};
use crate::clock::Clock;
use crate::error::{Error, Kind, Result};
use crate::tools::thread;

type QueryOutcome = Result<Result<QueryResult, QueryError>>;

/// Time after the limit at which a query is abandoned.
const GRACE: Duration = Duration::from_millis(500);

/// Interval at which a blocked caller looks at its own limit.
const LOOK: Duration = Duration::from_millis(5);

enum QueryEvent {
    /// The thread has started.
    Thread(Clock),
    /// The query has a connection, and its time begins.
    Begins,
    /// With the CPU time of the thread.
    Ended(QueryOutcome, Duration),
}

/// Cancels a query when the caller no longer waits for it.
struct Cancel(Arc<AtomicBool>);

impl Drop for Cancel {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Tables {
    /// Starts a query, which sends its events to `report`.
    fn start(
        self: &Arc<Self>,
        sql: String,
        params: Vec<Cell>,
        limits: QueryLimits,
        report: impl Fn(QueryEvent) + Send + 'static,
    ) -> Result<Cancel> {
        let (tables, cancelled) = (Arc::clone(self), Arc::new(AtomicBool::new(false)));
        let cancelled_flag = Arc::clone(&cancelled);
        thread::start("r1-sql", move || {
            let clock = Clock::of_this_thread();
            report(QueryEvent::Thread(clock));
            let outcome = tables.database().map(|database| {
                let result = database.query(&sql, &params, &limits, &cancelled_flag, || report(QueryEvent::Begins));
                result.map_err(|error| error.with_tables(&tables.infos))
            });
            report(QueryEvent::Ended(outcome, Duration::from_nanos(clock.now())));
        })?;
        Ok(Cancel(cancelled))
    }

    /// Runs a query. Waiting for a connection is not part of its time.
    ///
    /// # Errors
    /// [`Kind::Data`] if the database could not be built; the inner error is a query that failed.
    pub(crate) async fn query(self: &Arc<Self>, sql: String, limits: QueryLimits) -> QueryOutcome {
        let limit = limits.time.saturating_add(GRACE);
        let late = Why::Time(limits.time);
        let (sender, mut events) = unbounded_channel();
        let report = move |event| drop(sender.send(event));
        let _cancel = self.start(sql, Vec::new(), limits, report)?;
        let mut end = None;
        loop {
            let event = match end {
                None => events.recv().await,
                Some(end) => match tokio::time::timeout_at(end, events.recv()).await {
                    Ok(event) => event,
                    Err(_) => return Ok(Err(late.into())),
                },
            };
            match event {
                Some(QueryEvent::Thread(_)) => {}
                Some(QueryEvent::Begins) => end = tokio::time::Instant::now().checked_add(limit),
                Some(QueryEvent::Ended(outcome, _)) => return outcome,
                None => return Err(stopped()),
            }
        }
    }

    /// Runs a query and blocks. `spend` gets the CPU time of the query so far, from time to time,
    /// and returns whether the query may go on. `wait` is the longest wait for a connection.
    ///
    /// # Errors
    /// As [`Tables::query`].
    pub(crate) fn query_blocking(
        self: &Arc<Self>,
        sql: String,
        params: Vec<Cell>,
        limits: QueryLimits,
        wait: Duration,
        mut spend: impl FnMut(Duration) -> bool,
    ) -> QueryOutcome {
        let time = limits.time;
        let (sender, events) = channel();
        let report = move |event| drop(sender.send(event));
        let _cancel = self.start(sql, params, limits, report)?;
        let (mut clock, mut late) = (None::<Clock>, Why::Busy(wait));
        let mut end = Instant::now().checked_add(wait);
        loop {
            match events.recv_timeout(LOOK) {
                Ok(QueryEvent::Thread(thread_clock)) => clock = Some(thread_clock),
                Ok(QueryEvent::Begins) => {
                    (late, end) = (Why::Time(time), Instant::now().checked_add(time.saturating_add(GRACE)));
                }
                Ok(QueryEvent::Ended(outcome, used)) => {
                    spend(used);
                    return outcome;
                }
                Err(RecvTimeoutError::Disconnected) => return Err(stopped()),
                Err(RecvTimeoutError::Timeout) => {
                    let used = clock.map_or(0, |clock| clock.now());
                    if !spend(Duration::from_nanos(used)) {
                        return Ok(Err(Why::Time(time).into()));
                    }
                    if end.is_some_and(|end| Instant::now() >= end) {
                        return Ok(Err(late.into()));
                    }
                }
            }
        }
    }
}

fn stopped() -> Error {
    Error::new(Kind::Internal, "the thread of a query stopped")
}
