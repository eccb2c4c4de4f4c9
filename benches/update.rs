//! r1's side of `update.py`: time and memory of policy updates.
//!
//! `update '{"dir": DIR, "rows": [[prompt, sampled], …], …}'` runs an update `repetitions` times
//! and prints a JSON object: seconds of each, computed tokens, peak memory, and memory between
//! updates.

#![allow(clippy::print_stdout)]

use std::path::PathBuf;
use std::time::Instant;

use r1::adamw::{self, AdamW};
use r1::config::{DeviceChoice, Learner};
use r1::mdp::Sampling;
use r1::model::{Model, Packed, peak_memory, resident_memory};
use r1::rl::pack::Row;
use r1::train::{Objective, Shards, Update};
use r1::{Error, Kind, Result, native};
use serde::Deserialize;
use serde_json::json;
use tch::Tensor;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    dir: PathBuf,
    /// In f32 on the CPU, in bf16 on a GPU.
    #[serde(default = "cpu")]
    device: DeviceChoice,
    /// Trajectories: alternating numbers of environment tokens and sampled tokens.
    trajectories: Vec<Vec<usize>>,
    /// One row per step instead of one row per trajectory.
    #[serde(default)]
    separate: bool,
    tokens_per_batch: usize,
    #[serde(default)]
    checkpointing: bool,
    /// One forward and backward pass with full logits, instead of an update.
    #[serde(default)]
    whole_logits: bool,
    repetitions: usize,
}

fn cpu() -> DeviceChoice {
    DeviceChoice::Cpu
}

fn main() -> Result<()> {
    let Some(question) = std::env::args().nth(1) else {
        return Err(Error::new(Kind::Usage, "this is one side of a comparison").hint("run `just bench-update`"));
    };
    let question: Question = serde_json::from_str(&question).map_err(|error| internal(&error))?;
    native::return_memory();
    let device = native::device(question.device)?;
    let kind = if device.is_cuda() { tch::Kind::BFloat16 } else { tch::Kind::Float };
    let mut model = Model::load(&question.dir, device, kind)?;
    model.set_checkpointing(question.checkpointing);
    let vocab = model.config.vocab_size as u32;
    let mut rows: Vec<Row> = question
        .trajectories
        .iter()
        .enumerate()
        .flat_map(|(number, turns)| rows(turns, number, vocab, question.separate))
        .collect();
    for row in &mut rows {
        row.advantages = vec![if row.trajectory.is_multiple_of(2) { 1.0 } else { -1.0 }; row.len()];
    }
    let learner = Learner { tokens_per_batch: question.tokens_per_batch, ..Learner::default() };
    let objective = Objective::new(&learner, &Sampling::default(), false)?;
    let mut optimizer = AdamW::new(model.parameters(), adamw::AdamWOptions::default())?;
    let (mut seconds, mut tokens, mut held) = (Vec::new(), 0, 0);
    for _ in 0..=question.repetitions {
        let begin = Instant::now();
        if question.whole_logits {
            optimizer.zero_grad();
            whole(&model, &rows)?;
            optimizer.step(1e-6, 1.0)?;
        } else {
            let (objective, learner) = (&objective, &learner);
            let shards = &Shards::default();
            let update = Update { model: &model, objective, learner, temperature: 1.0, kl_coef: 0.0, lr: 1e-6, shards };
            tokens = update.step(&mut optimizer, &rows)?.tokens;
        }
        seconds.push(begin.elapsed().as_secs_f64());
        optimizer.zero_grad();
        held = resident_memory().unwrap_or(0);
    }
    let peak = native::device_peak(device).or_else(peak_memory);
    let parameters: usize = model.parameters().iter().map(|(_, tensor)| tensor.numel()).sum();
    let answer = json!({
        "seconds": &seconds[1..], "tokens": tokens, "peak": peak, "held": held, "parameters": parameters,
        "sampled": rows.iter().map(Row::sampled).sum::<usize>(),
    });
    println!("{answer}");
    Ok(())
}

/// Rows of a trajectory with alternating numbers of tokens, the environment's first.
fn rows(turns: &[usize], trajectory: usize, vocab: u32, separate: bool) -> Vec<Row> {
    let mut all = Vec::new();
    let mut row = Row { ids: vec![], loss_mask: vec![], logprobs: vec![], steps: vec![], trajectory, ..Row::default() };
    for (turn, &count) in turns.iter().enumerate() {
        let (sampled, step) = (turn % 2 == 1, (turn / 2) as u32);
        for _ in 0..count {
            let index = row.ids.len() as u32;
            row.ids.push((trajectory as u32 * 7919 + index * 104_729 + index * index * 31) % vocab.min(30_000));
            row.loss_mask.push(sampled);
            row.logprobs.push(if sampled { -12.0 } else { 0.0 });
            row.steps.push(step);
        }
        if separate && sampled {
            all.push(row.clone());
            row.loss_mask.fill(false);
            row.logprobs.fill(0.0);
        }
    }
    if !separate {
        all.push(row);
    }
    all
}

/// A pass over all rows at once, with one chunk of log-probabilities.
fn whole(model: &Model, rows: &[Row]) -> Result<()> {
    let ids: Vec<&[u32]> = rows.iter().map(|row| row.ids.as_slice()).collect();
    let (mut places, mut targets, mut start) = (Vec::new(), Vec::new(), 0);
    for row in rows {
        for at in (1..row.len()).filter(|&at| row.loss_mask[at]) {
            places.push((start + at - 1) as i64);
            targets.push(i64::from(row.ids[at]));
        }
        start += row.len();
    }
    let pass = model.learn(&Packed::from_rows(&ids, model.device())?)?;
    let hidden = pass.hidden().f_index_select(0, &Tensor::f_from_slice(&places)?)?;
    let (logp, _) = model.logprobs(&hidden, &Tensor::f_from_slice(&targets)?, 1.0, targets.len())?;
    pass.backward(&logp.f_mean(tch::Kind::Float)?)
}

fn internal(error: &dyn std::fmt::Display) -> Error {
    Error::new(Kind::Internal, error.to_string())
}
