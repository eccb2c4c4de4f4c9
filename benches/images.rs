//! r1's side of `images.py`: a JSON object on a line of stdin, an answer on a line of stdout.
//!
//! `images DIR` prepares images: `DIR/NAME.json` is a processor, and `DIR/files` has the images.
//!
//! - `{"processor": NAME, "format": "png", "decode": true}`: seconds for all images of a format,
//!   one after the other, and the sum of their values
//!
//! `images DIR model` reads the model in DIR.
//!
//! - `{"image": FILE, "before": IDS, "after": IDS, "check": false}`: seconds from the file of an
//!   image between tokens of text to the first new token, and those of the image's patches
//! - the same with `"check": true`: logits after the last token

#![allow(clippy::print_stdout)]

use std::collections::HashMap;
use std::fs;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use r1::engine::{Engine, EngineOptions, TokenBytes, channel};
use r1::mdp::{Policy, Request, Sampling, StreamSeed, image_id};
use r1::model::{Model, Packed};
use r1::vision::{DecodeLimits, Images, Processor, RgbImage, decode};
use r1::{Error, Kind, Result};
use serde::Deserialize;
use serde_json::{Value, json};

/// Tokens of a sequence at most.
const CONTEXT: usize = 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Preprocessing {
    processor: String,
    format: String,
    decode: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Prefill {
    image: PathBuf,
    before: Vec<u32>,
    after: Vec<u32>,
    check: bool,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, model @ ..] = &arguments[..] else {
        return Err(Error::new(Kind::Usage, "this is one side of a comparison").hint("run `just bench-images`"));
    };
    let dir = PathBuf::from(dir);
    if model.is_empty() { answer(&mut Files::new(dir)) } else { answer(&mut Prefills::open(&dir)?) }
}

/// One side of a measurement.
trait Measured {
    fn measure(&mut self, question: &str) -> Result<Value>;
}

fn answer(measured: &mut impl Measured) -> Result<()> {
    println!("{}", json!({ "ready": true }));
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| internal(&error))?;
        println!("{}", measured.measure(&line)?);
    }
    Ok(())
}

/// Images to prepare.
struct Files {
    dir: PathBuf,
    /// By format: the files, and their pixels.
    read: HashMap<String, Vec<(Vec<u8>, RgbImage)>>,
}

impl Files {
    fn new(dir: PathBuf) -> Self {
        Self { dir, read: HashMap::new() }
    }

    fn read(&self, format: &str) -> Result<Vec<(Vec<u8>, RgbImage)>> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(self.dir.join("files")).map_err(|error| internal(&error))? {
            let path = entry.map_err(|error| internal(&error))?.path();
            if path.extension().is_some_and(|extension| extension == format) {
                paths.push(path);
            }
        }
        paths.sort();
        let image = |path: PathBuf| {
            let file = fs::read(&path).map_err(|error| internal(&error))?;
            let pixels = decode(&file, &DecodeLimits::default())?;
            Ok((file, pixels))
        };
        paths.into_iter().map(image).collect()
    }
}

impl Measured for Files {
    fn measure(&mut self, question: &str) -> Result<Value> {
        let question: Preprocessing = serde_json::from_str(question).map_err(|error| internal(&error))?;
        let processor = processor(&self.dir.join(format!("{}.json", question.processor)))?;
        if !self.read.contains_key(&question.format) {
            self.read.insert(question.format.clone(), self.read(&question.format)?);
        }
        let (mut seconds, mut sum) = (0.0, 0.0);
        for (file, pixels) in &self.read[&question.format] {
            let begin = Instant::now();
            let patches = if question.decode {
                processor.image(&decode(file, &DecodeLimits::default())?)?
            } else {
                processor.image(pixels)?
            };
            seconds += begin.elapsed().as_secs_f64();
            sum += patches.values.iter().map(|value| f64::from(*value)).sum::<f64>();
        }
        Ok(json!({ "seconds": seconds, "sum": sum }))
    }
}

/// A model and its images.
struct Prefills {
    images: Arc<Images>,
    model: Rc<Model>,
    engine: Engine,
}

impl Prefills {
    fn open(dir: &Path) -> Result<Self> {
        let images = Arc::new(Images::new(processor(&dir.join("preprocessor_config.json"))?, DecodeLimits::default()));
        let mut model = Model::load(dir, tch::Device::Cpu, tch::Kind::Float)?;
        model.set_images(Arc::clone(&images));
        let model = Rc::new(model);
        let vocabulary = Arc::new(TokenBytes::new(Vec::new()));
        let options = EngineOptions::sized(&model.config, model.cache_options(), 1, CONTEXT);
        let engine = Engine::new(Rc::clone(&model), vocabulary, options)?;
        Ok(Self { images, model, engine })
    }
}

impl Measured for Prefills {
    fn measure(&mut self, question: &str) -> Result<Value> {
        let question: Prefill = serde_json::from_str(question).map_err(|error| internal(&error))?;
        let number = self.images.add(&fs::read(&question.image).map_err(|error| internal(&error))?)?;
        let image = vec![image_id(number); self.images.tokens(number)?];
        let ids = [question.before, image, question.after].concat();
        if question.check {
            let _guard = tch::no_grad_guard();
            let hidden = self.model.forward(&Packed::from_rows(&[&ids], self.model.device())?)?;
            let logits = self.model.logits(&hidden.f_narrow(0, ids.len() as i64 - 1, 1)?)?;
            let logits: Vec<f32> = Vec::try_from(logits.f_view([-1])?)?;
            return Ok(json!({ "logits": logits, "tokens": ids.len() }));
        }
        let begin = Instant::now();
        self.images.patches(number)?;
        let patches = begin.elapsed().as_secs_f64();
        self.engine.clear_cache()?;
        let begin = Instant::now();
        let (client, queue) = channel();
        let reply = client.submit(Request {
            prompt_ids: ids,
            sampling: Arc::new(Sampling { temperature: 0.0, max_new_tokens: 1, ..Sampling::default() }),
            stop_ids: Arc::default(),
            seed: StreamSeed::default(),
            conversation: 0,
            chat: None,
        });
        drop(client);
        self.engine.serve(queue)?;
        let seconds = begin.elapsed().as_secs_f64();
        let token = reply.blocking_recv().map_err(|error| internal(&error))??.token_ids;
        Ok(json!({ "seconds": seconds, "patches": patches, "token": token }))
    }
}

fn processor(path: &Path) -> Result<Processor> {
    let file = fs::read(path).map_err(|error| internal(&error))?;
    Processor::from_json(&serde_json::from_slice(&file).map_err(|error| internal(&error))?)
}

fn internal(error: &dyn std::fmt::Display) -> Error {
    Error::new(Kind::Internal, error.to_string())
}
