//! r1's side of `decode.py`: decode and prefill of a model of a real shape, and the machine's
//! limits.
//!
//! `decode DIR f32|bf16 [cuda [eager]]` (eager: without CUDA graphs) answers JSON lines:
//!
//! - `{"batch": B, "prompt": P, "new": N}`: seconds to sample N tokens greedily after P prompt
//!   tokens, for B sequences
//! - `{"check": B, "prompt": P, "new": N}`: B sequences of different lengths, half of them greedy,
//!   that start one after the other in the same batch: their ids, the difference of their
//!   log-probabilities from a forward pass over the whole sequence, the largest batch, and the
//!   share of steps that were CUDA graphs
//! - `{"host": B, "new": N}`: microseconds of the host for a decode step of B sequences whose
//!   launch does nothing, with a small model in place of DIR
//! - `{"kernels": true}`: r1's CUDA kernels compared with libtorch's operations, for shapes of
//!   large models too if true, and why the model does without some of them
//! - `{}`: memory bandwidth (bytes/s) and the rate of libtorch's matrix product on the model's
//!   largest layer (multiply-adds/s, times 2)

#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::io::BufRead;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use r1::config::DeviceChoice;
use r1::engine::{Engine, EngineOptions, SamplingMode, TokenBytes, channel};
use r1::mdp::{Policy, Request, Sampling, StreamSeed};
use r1::model::{Config, Model, Packed, check_kernels};
use r1::{Error, Kind, Result, native};
use serde::Deserialize;
use serde_json::{Value, json};
use tch::{Device, Kind as Type, Tensor};

/// Maximum number of sequences; each has a slot of the cache.
const SLOTS: usize = 64;
/// Maximum tokens per sequence.
const CONTEXT: usize = 1088;

#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Question {
    Generate { batch: u64, prompt: u32, new: usize },
    Check { check: u64, prompt: u32, new: usize },
    Host { host: u64, new: usize },
    Kernels { kernels: bool },
    Limits {},
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, dir, kind, rest @ ..] = &arguments[..] else {
        return Err(Error::new(Kind::Usage, "this is one side of a comparison").hint("run `just bench-decode`"));
    };
    let kind = if kind == "bf16" { Type::BFloat16 } else { Type::Float };
    let cuda = rest.first().is_some_and(|name| name == "cuda");
    let device = native::device(if cuda { DeviceChoice::Cuda } else { DeviceChoice::Cpu })?;
    let mut model = Model::load(&PathBuf::from(dir), device, kind)?;
    model.set_graphs(rest.get(1).is_none_or(|name| name != "eager"));
    let model = Rc::new(model);
    let vocab = model.config.vocab_size as u32;
    let vocabulary = Arc::new(TokenBytes::new(Vec::new()));
    let options = EngineOptions::sized(&model.config, model.cache_options(), SLOTS, CONTEXT);
    let mut engine = Engine::new(Rc::clone(&model), vocabulary, options)?;
    println!("{}", json!({ "ready": true }));
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| internal(&error))?;
        let question: Question = serde_json::from_str(&line).map_err(|error| internal(&error))?;
        let answer = match question {
            Question::Limits {} => limits(&model, kind)?,
            Question::Kernels { kernels: large } => kernels(&model, large)?,
            Question::Check { check: batch, prompt, new } => check(&mut engine, &model, batch, prompt, new)?,
            Question::Host { host: batch, new } => host(batch, new)?,
            Question::Generate { batch, prompt, new } => generate(&mut engine, vocab, batch, prompt, new)?,
        };
        println!("{answer}");
    }
    Ok(())
}

fn generate(engine: &mut Engine, vocab: u32, batch: u64, prompt: u32, new: usize) -> Result<Value> {
    engine.clear_cache()?;
    let (client, queue) = channel();
    let sampling = Arc::new(Sampling { temperature: 0.0, max_new_tokens: new, ..Sampling::default() });
    let begin = Instant::now();
    let replies: Vec<_> = (0..batch)
        .map(|conversation| {
            client.submit(Request {
                // No two prompts share a prefix.
                prompt_ids: (0..prompt).map(|index| (conversation as u32 + 1 + index * 13) % vocab).collect(),
                sampling: Arc::clone(&sampling),
                stop_ids: Arc::default(),
                seed: StreamSeed::default(),
                conversation,
                chat: None,
            })
        })
        .collect();
    drop(client);
    let stats = engine.serve(queue)?;
    let seconds = begin.elapsed().as_secs_f64();
    for reply in replies {
        reply.blocking_recv().map_err(|error| internal(&error))??;
    }
    Ok(json!({ "seconds": seconds, "model": stats.model_seconds }))
}

/// Time of the host for a step: planning, inputs, reading the tokens and ending responses, without
/// the work of a device and the calls of its driver.
fn host(batch: u64, new: usize) -> Result<Value> {
    let config = Config {
        vocab_size: 512,
        hidden_size: 32,
        intermediate_size: 32,
        num_hidden_layers: 1,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: 16,
        max_position_embeddings: 2048,
        ..Config::default()
    };
    let mut model = Model::init(config, Device::Cpu, Type::Float, 1)?;
    model.use_gpu_paths();
    model.stub_launches();
    let model = Rc::new(model);
    let options = EngineOptions::sized(&model.config, model.cache_options(), batch as usize, 2048);
    let mut engine = Engine::new(model, Arc::new(TokenBytes::new(Vec::new())), options)?;
    engine.set_sampling(SamplingMode::Ahead);
    let mut seconds = [0.0; 3];
    // The prompts, and the first step of each size, are computed. The first round is a warm-up, in
    // which the cache gets its size.
    for (seconds, new) in seconds.iter_mut().zip([new + 2, 2, new + 2]) {
        let (client, queue) = channel();
        let sampling =
            Arc::new(Sampling { max_new_tokens: new, stop: vec!["a stop string".to_owned()], ..Sampling::default() });
        let replies: Vec<_> = (0..batch)
            .map(|conversation| {
                client.submit(Request {
                    prompt_ids: (0..8).map(|index| (conversation as u32 * 7 + index) % 512).collect(),
                    sampling: Arc::clone(&sampling),
                    stop_ids: Arc::new(vec![1000]),
                    seed: StreamSeed { seed: 1, trajectory: conversation, step: 0 },
                    conversation,
                    chat: None,
                })
            })
            .collect();
        drop(client);
        let begin = Instant::now();
        engine.serve(queue)?;
        *seconds = begin.elapsed().as_secs_f64();
        for reply in replies {
            let sampled = reply.blocking_recv().map_err(|error| internal(&error))??.token_ids.len();
            if sampled != new {
                return Err(Error::new(Kind::Internal, format!("{sampled} of {new} tokens were sampled")));
            }
        }
        engine.clear_cache()?;
    }
    Ok(json!({ "microseconds": (seconds[2] - seconds[1]) / new as f64 * 1e6 }))
}

/// Sequences of different lengths in one batch, compared with forward passes.
fn check(engine: &mut Engine, model: &Model, batch: u64, prompt: u32, new: usize) -> Result<Value> {
    // The cache is allocated again, and steps are recorded again unless it has the same addresses.
    engine.sleep()?;
    let vocab = model.config.vocab_size as u32;
    let (client, queue) = channel();
    let requests: Vec<Request> = (0..batch)
        .map(|conversation| {
            let length = prompt / 2 + (conversation as u32 * 7) % prompt.max(1);
            let sampling = Sampling {
                temperature: if conversation % 2 == 0 { 0.0 } else { 1.0 },
                top_p: if conversation % 3 == 0 { 0.9 } else { 1.0 },
                max_new_tokens: new / 2 + (conversation as usize * 5) % new.max(1) + 1,
                ..Sampling::default()
            };
            Request {
                prompt_ids: (0..=length).map(|index| (conversation as u32 * 31 + 1 + index * 13) % vocab).collect(),
                sampling: Arc::new(sampling),
                stop_ids: Arc::default(),
                seed: StreamSeed { seed: 1, trajectory: conversation, step: 0 },
                conversation,
                chat: None,
            }
        })
        .collect();
    let replies: Vec<_> = requests.iter().map(|request| client.submit(request.clone())).collect();
    drop(client);
    let stats = engine.serve(queue)?;
    let (mut ids, mut worst, mut sum, mut count) = (Vec::new(), 0.0_f64, 0.0, 0);
    let _guard = tch::no_grad_guard();
    for (request, reply) in requests.iter().zip(replies) {
        let completion = reply.blocking_recv().map_err(|error| internal(&error))??;
        let (begin, tokens) = (request.prompt_ids.len(), completion.token_ids.len());
        let whole = [&request.prompt_ids[..], &completion.token_ids].concat();
        let hidden = model.forward(&Packed::from_rows(&[&whole], model.device())?)?;
        let hidden = hidden.f_narrow(0, begin as i64 - 1, tokens as i64)?;
        let targets: Vec<i64> = completion.token_ids.iter().map(|&id| i64::from(id)).collect();
        let targets = Tensor::f_from_slice(&targets)?.f_to_device(model.device())?;
        let ends: Vec<i64> = (0..tokens)
            .scan(0, |end, index| {
                *end += completion.support.of(index).len() as i64;
                Some(*end)
            })
            .collect();
        let support: Vec<i64> =
            (0..tokens).flat_map(|index| completion.support.of(index)).map(|&id| i64::from(id)).collect();
        let support = (Tensor::f_from_slice(&support)?, Tensor::f_from_slice(&ends)?);
        let (scored, _) = model.logprobs_among(&hidden, &targets, Some(&support), 1.0, 256)?;
        for (sampled, scored) in completion.logprobs.iter().zip(Vec::<f32>::try_from(scored)?) {
            let off = f64::from((sampled - scored).abs());
            (worst, sum, count) = (worst.max(off), sum + off, count + 1);
        }
        ids.push(completion.token_ids);
    }
    Ok(json!({
        "ids": ids, "worst": worst, "mean": sum / f64::from(count.max(1)), "max_batch": stats.max_batch,
        "graph_share": stats.graph_share(),
    }))
}

fn kernels(model: &Model, large: bool) -> Result<Value> {
    let checks = check_kernels(model.device(), large)?;
    let checks: Vec<Value> = checks
        .iter()
        .map(|it| {
            json!({ "kernel": it.kernel, "case": it.case, "difference": it.difference, "limit": it.limit,
                    "agrees": it.agrees() })
        })
        .collect();
    Ok(json!({ "checks": checks, "failure": model.kernels_failure() }))
}

/// Best of several repetitions, to exclude other load on the machine.
fn limits(model: &Model, kind: Type) -> Result<Value> {
    let best = |work: &dyn Fn() -> Result<Tensor, tch::TchError>| -> Result<f64> {
        let mut best = f64::INFINITY;
        for _ in 0..8 {
            let begin = Instant::now();
            drop(black_box(work()?));
            best = best.min(begin.elapsed().as_secs_f64());
        }
        Ok(best)
    };
    let many = Tensor::f_ones([1 << 28], (Type::Float, Device::Cpu))?;
    let reading = best(&|| many.f_sum(Type::Float))?;
    drop(many);
    let (rows, hidden, inner) = (512, model.config.hidden_size as i64, 2 * model.config.intermediate_size as i64);
    let a = Tensor::f_ones([rows, hidden], (kind, Device::Cpu))?;
    let b = Tensor::f_ones([inner, hidden], (kind, Device::Cpu))?;
    let product = best(&|| a.f_linear::<Tensor>(&b, None))?;
    Ok(json!({
        "bytes_per_second": (1u64 << 30) as f64 / reading,
        "flops": 2.0 * (rows * hidden * inner) as f64 / product,
    }))
}

fn internal(error: &dyn std::fmt::Display) -> Error {
    Error::new(Kind::Internal, error.to_string())
}
