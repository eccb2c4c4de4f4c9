//! Sampling of training rows by their past success: rows of a band of success rates, or weighted by
//! the recipe's function `row_weight`.
//!
//! Rows are visited in the order of the data (order.rs). A visited row is drawn with a probability
//! that depends on its earlier trajectories; otherwise its turn passes. So every epoch still visits
//! each row once, and the shares of several datasets hold for visits. A row without trajectories is
//! always drawn. verl's curriculum samplers and prime-rl's difficulty pools also skip rows that are
//! solved always or never, whose groups have no advantages.
//!
//! Draws depend on the data, the seed, and the counts after the last step, which checkpoints
//! contain: a resumed run draws the same rows.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::order::Order;
use crate::config::Curriculum as Settings;
use crate::error::{Error, Kind, Result};
use crate::eval::score;
use crate::mdp::Trajectory;
use crate::script::{Script, Worker};
use crate::store::{read_json, trainer_state};
use crate::telemetry::{Metrics, Reporter};

/// The file of a checkpoint's `trainer_state`.
const FILE: &str = "curriculum.json";
/// Visits after which the row with the largest probability is drawn.
const MOST_VISITS: u64 = 10_000;

pub(crate) struct Curriculum {
    settings: Settings,
    /// The virtual machine of the function `row_weight`, if the recipe has one.
    worker: Option<Worker>,
    done: CurriculumState,
    /// Draws since the last step, in the order of their groups.
    drawn: Vec<CurriculumDraw>,
    /// Groups and outcomes of the trajectories since the last step.
    pending: Vec<(u64, u64, f64)>,
}

#[derive(Clone, Copy, Debug)]
struct CurriculumDraw {
    group: u64,
    row: u64,
    /// Number of visits of the run after it.
    visits: u64,
}

/// The state after a step, which a checkpoint contains.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct CurriculumState {
    /// Visits of rows since the start of the run.
    visits: u64,
    /// Number of usable rows.
    rows: u64,
    /// Of each row that was sampled.
    counts: BTreeMap<u64, RowCounts>,
}

/// The trajectories of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
struct RowCounts {
    /// Number of successes, or the sum of an accuracy between 0 and 1.
    successes: f64,
    attempts: f64,
}

impl Curriculum {
    /// The curriculum of a recipe, continued from a checkpoint; `None` if it has none. A run whose
    /// checkpoint has no counts begins with the row after `position` draws.
    ///
    /// # Errors
    /// [`Kind::Script`] for a band without rates; [`Kind::Store`] for a damaged file.
    pub(crate) fn open(
        script: &Script,
        order: &Order,
        checkpoint: Option<&Path>,
        position: u64,
        reporter: &Reporter,
    ) -> Result<Option<Self>> {
        let settings = script.settings.data.curriculum.clone();
        if !settings.has_band() && !script.row_weight {
            return Ok(None);
        }
        if settings.low > settings.high {
            let message = format!("data.curriculum.low is {} and data.curriculum.high {}", settings.low, settings.high);
            let error = Error::new(Kind::Script, message).about_setting("data.curriculum.low");
            return Err(script.placed(error.hint("a success rate between them is drawn: low is at most high")));
        }
        let rows = order.rows();
        let mut done = CurriculumState { visits: position, rows, ..CurriculumState::default() };
        let path = checkpoint.map(|checkpoint| trainer_state(checkpoint).join(FILE)).filter(|path| path.exists());
        if let Some(path) = path {
            let saved: CurriculumState = read_json(&path)?;
            if saved.rows == rows {
                done = saved;
            } else {
                reporter.warn(&format!(
                    "data.train has {rows} usable rows and had {} before: the success rates of rows start again",
                    saved.rows
                ));
                done.visits = saved.visits;
            }
        }
        let worker = script.row_weight.then(|| Worker::new(script, None)).transpose()?;
        Ok(Some(Self { settings, worker, done, drawn: Vec::new(), pending: Vec::new() }))
    }

    /// Uses the function of a new version of the script.
    pub(crate) fn reload(&mut self, script: &Script) -> Result<()> {
        if self.worker.is_some() && script.row_weight {
            self.worker = Some(Worker::new(script, None)?);
        }
        Ok(())
    }

    /// The rows of the groups `numbers` of a step. What was drawn for these groups before is
    /// replaced.
    ///
    /// # Errors
    /// Errors of the function `row_weight`.
    pub(crate) fn draw(&mut self, order: &Order, seed: u64, numbers: std::ops::Range<u64>) -> Result<Vec<u64>> {
        self.forget(numbers.start);
        let mut rows = Vec::new();
        for group in numbers {
            let visits = self.drawn.last().map_or(self.done.visits, |drawn| drawn.visits);
            let drawn = self.next(order, seed, group, visits)?;
            rows.push(drawn.row);
            self.drawn.push(drawn);
        }
        Ok(rows)
    }

    /// Drops draws and outcomes of the groups from this one on, of a rollout that failed.
    pub(crate) fn forget(&mut self, first: u64) {
        self.drawn.retain(|drawn| drawn.group < first);
        self.pending.retain(|(group, ..)| *group < first);
    }

    fn next(&self, order: &Order, seed: u64, group: u64, before: u64) -> Result<CurriculumDraw> {
        let mut best: Option<(f64, u64)> = None;
        let visits = order.rows().clamp(1, MOST_VISITS);
        for visit in before..before + visits {
            let row = order.at(visit, seed);
            let weight = self.weight(row)?;
            if weight >= 1.0 || uniform(seed, visit) < weight {
                return Ok(CurriculumDraw { group, row, visits: visit + 1 });
            }
            if best.is_none_or(|(visits, _)| weight > visits) {
                best = Some((weight, row));
            }
        }
        let row = best.map_or_else(|| order.at(before, seed), |(_, row)| row);
        Ok(CurriculumDraw { group, row, visits: before + visits })
    }

    /// The probability that a visited row is drawn.
    fn weight(&self, row: u64) -> Result<f64> {
        let RowCounts { successes, attempts } = self.done.counts.get(&row).copied().unwrap_or_default();
        if attempts < self.settings.min_attempts as f64 {
            return Ok(1.0);
        }
        if let Some(worker) = &self.worker {
            return worker.row_weight(row, successes, attempts);
        }
        let rate = successes / attempts;
        let inside = (self.settings.low..=self.settings.high).contains(&rate);
        Ok(if inside { 1.0 } else { self.settings.outside })
    }

    /// Notes the outcomes of trajectories of this step. Failed ones say nothing about the row.
    pub(crate) fn note(&mut self, trajectories: &[Trajectory], accuracy: &str) {
        let counted = trajectories.iter().filter(|trajectory| !trajectory.status.is_failure());
        self.pending.extend(counted.map(|rollout| (rollout.group, rollout.task_index, score(rollout, accuracy))));
    }

    /// Ends a step: its draws and outcomes count.
    pub(crate) fn advance(&mut self) {
        if let Some(drawn) = self.drawn.last() {
            self.done.visits = drawn.visits;
        }
        let mut rows: BTreeMap<u64, RowCounts> = BTreeMap::new();
        for (_, row, success) in self.pending.drain(..) {
            let counts = rows.entry(row).or_default();
            counts.successes += success;
            counts.attempts += 1.0;
        }
        for (row, new) in rows {
            let counts = self.done.counts.entry(row).or_default();
            counts.successes = counts.successes * self.settings.memory + new.successes;
            counts.attempts = counts.attempts * self.settings.memory + new.attempts;
        }
        self.drawn.clear();
    }

    /// The metrics of a step, before [`Curriculum::advance`].
    pub(crate) fn log(&self, metrics: &mut Metrics) {
        let visits = self.drawn.last().map_or(self.done.visits, |drawn| drawn.visits) - self.done.visits;
        metrics.set("data/skipped_rows", visits.saturating_sub(self.drawn.len() as u64) as f64);
        let counts = &self.done.counts;
        metrics.set("data/sampled_share", counts.len() as f64 / self.done.rows.max(1) as f64);
        if !counts.is_empty() {
            let rates: f64 =
                counts.values().map(|counts| counts.successes / counts.attempts.max(f64::MIN_POSITIVE)).sum();
            metrics.set("data/success_rate", rates / counts.len() as f64);
        }
    }

    /// The counts for a checkpoint's folder `trainer_state`: name of the file and its bytes.
    pub(crate) fn file(&self) -> Result<(&'static str, Vec<u8>)> {
        let text = serde_json::to_string(&self.done)
            .map_err(|error| Error::new(Kind::Internal, format!("can't write the counts as JSON: {error}")))?;
        Ok((FILE, text.into_bytes()))
    }
}

/// A number from 0 to 1 that depends only on the seed and the visit.
fn uniform(seed: u64, visit: u64) -> f64 {
    let mut hash = Sha256::new();
    hash.update(b"curriculum");
    hash.update(seed.to_le_bytes());
    hash.update(visit.to_le_bytes());
    let digest = hash.finalize();
    let bits = digest.iter().take(8).fold(0_u64, |all, byte| all << 8 | u64::from(*byte));
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::script::DataPart;

    fn order(rows: u64) -> Order {
        Order::new(&[DataPart { name: String::new(), weight: None, rows, generated: false }], &[]).unwrap()
    }

    fn curriculum(settings: Settings) -> Curriculum {
        Curriculum { settings, worker: None, done: CurriculumState::default(), drawn: Vec::new(), pending: Vec::new() }
    }

    const BAND: Settings = Settings { low: 0.25, high: 0.75, outside: 0.0, min_attempts: 1, memory: 1.0 };

    /// Outcomes as trajectories would note them.
    fn note(curriculum: &mut Curriculum, group: u64, row: u64, successes: &[f64]) {
        curriculum.pending.extend(successes.iter().map(|success| (group, row, *success)));
    }

    #[test]
    fn rows_outside_of_the_band_are_skipped() {
        let (mut rows, order) = (curriculum(BAND), order(6));
        let first = rows.draw(&order, 3, 0..6).unwrap();
        assert_eq!(first, (0..6).map(|position| order.at(position, 3)).collect::<Vec<u64>>());
        // Row 0 is solved always, row 1 never, the others sometimes.
        for (group, row) in (0..).zip(first) {
            let outcome: &[f64] = match row {
                0 => &[1.0, 1.0],
                1 => &[0.0, 0.0],
                _ => &[1.0, 0.0],
            };
            note(&mut rows, group, row, outcome);
        }
        rows.advance();
        let second = rows.draw(&order, 3, 0..8).unwrap();
        assert!(second.iter().all(|row| *row > 1), "{second:?}");
        // The rows that are left come in the order of the data.
        let expected: Vec<u64> = (6..).map(|position| order.at(position, 3)).filter(|row| *row > 1).take(8).collect();
        assert_eq!(second, expected);
    }

    #[test]
    fn a_draw_ends_if_no_row_is_inside() {
        let (mut rows, order) = (curriculum(Settings { outside: 0.0, ..BAND }), order(3));
        for row in 0..3 {
            note(&mut rows, row, row, &[1.0]);
        }
        rows.advance();
        assert_eq!(rows.draw(&order, 1, 0..2).unwrap().len(), 2);
    }

    #[test]
    fn rows_outside_return_with_their_probability() {
        let (mut rows, order) = (curriculum(Settings { outside: 0.25, ..BAND }), order(100));
        for row in 0..50 {
            note(&mut rows, row, row, &[1.0]);
        }
        rows.advance();
        let drawn = rows.draw(&order, 1, 0..4000).unwrap();
        let outside = drawn.iter().filter(|row| **row < 50).count() as f64 / 4000.0;
        // 50 rows with probability 1/4 and 50 with 1: a share of 1/5.
        assert!((outside - 0.2).abs() < 0.02, "{outside}");
    }

    #[test]
    fn a_repeated_rollout_draws_the_same_rows_and_counts_once() {
        let (mut rows, order) = (curriculum(BAND), order(20));
        let first = rows.draw(&order, 1, 0..4).unwrap();
        let more = rows.draw(&order, 1, 4..6).unwrap();
        note(&mut rows, 5, more[1], &[1.0]);
        assert_eq!(rows.draw(&order, 1, 4..6).unwrap(), more);
        assert!(rows.pending.is_empty());
        rows.forget(4);
        rows.advance();
        assert_eq!(rows.draw(&order, 1, 0..2).unwrap(), more);
        assert_eq!(rows.done.visits, first.len() as u64);
    }

    #[test]
    fn earlier_counts_fade_with_the_memory() {
        let mut rows = curriculum(Settings { memory: 0.5, ..BAND });
        note(&mut rows, 0, 7, &[0.0, 0.0, 0.0, 0.0]);
        rows.advance();
        note(&mut rows, 0, 7, &[1.0, 1.0]);
        rows.advance();
        assert_eq!(rows.done.counts[&7], RowCounts { successes: 2.0, attempts: 4.0 });
    }
}
