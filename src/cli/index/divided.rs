//! An encoder that several processes divide among themselves: rank 0 builds the index, and each
//! process encodes some of the texts.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Result;
use crate::search::{EncoderOptions, TextEncoder};
use crate::train::Ranks;

pub(super) struct DividedEncoder {
    encoder: Arc<dyn TextEncoder>,
    ranks: Ranks,
    finished: AtomicBool,
}

impl DividedEncoder {
    /// The encoder of rank 0.
    ///
    /// # Errors
    /// `Kind::Usage` if a process has another model.
    pub(super) fn new(encoder: Arc<dyn TextEncoder>, ranks: &Ranks) -> Result<Self> {
        require_same(encoder.as_ref(), ranks)?;
        Ok(Self { encoder, ranks: ranks.clone(), finished: AtomicBool::new(false) })
    }

    /// Ends the other processes' [`serve`]. Nothing is encoded afterwards.
    pub(super) fn finish(&self) {
        if !self.finished.swap(true, Ordering::Relaxed) {
            // A process that has ended needs no message.
            let _ = self.ranks.of_first(Vec::<Vec<String>>::new());
        }
    }
}

impl Drop for DividedEncoder {
    fn drop(&mut self) {
        self.finish();
    }
}

impl TextEncoder for DividedEncoder {
    fn sha256(&self) -> &str {
        self.encoder.sha256()
    }

    fn directory(&self) -> &Path {
        self.encoder.directory()
    }

    fn options(&self) -> &EncoderOptions {
        self.encoder.options()
    }

    fn dimension(&self) -> usize {
        self.encoder.dimension()
    }

    fn is_on_gpu(&self) -> bool {
        self.encoder.is_on_gpu()
    }

    fn encode(&self, texts: &[String]) -> Result<Vec<f32>> {
        self.encoder.encode(texts)
    }

    fn batches_at_once(&self) -> usize {
        self.ranks.size()
    }

    fn encode_batches(&self, batches: &[Vec<String>]) -> Result<Vec<Vec<f32>>> {
        encode_shares(self.encoder.as_ref(), &self.ranks, &self.ranks.of_first(batches.to_vec())?)
    }
}

/// What the other processes do until rank 0 has encoded all texts.
///
/// # Errors
/// Errors of the encoder, of any process; `Kind::Device` if another process has ended.
pub(super) fn serve(encoder: &dyn TextEncoder, ranks: &Ranks) -> Result<()> {
    require_same(encoder, ranks)?;
    loop {
        let batches: Vec<Vec<String>> = ranks.of_first(Vec::new())?;
        if batches.is_empty() {
            return Ok(());
        }
        encode_shares(encoder, ranks, &batches)?;
    }
}

/// Each process encodes the batch with its number; all get the vectors of all batches.
fn encode_shares(encoder: &dyn TextEncoder, ranks: &Ranks, batches: &[Vec<String>]) -> Result<Vec<Vec<f32>>> {
    let share = batches.get(ranks.rank()).map_or(Ok(Vec::new()), |texts| encoder.encode(texts));
    let mut all = ranks.all_of(share)?;
    all.truncate(batches.len());
    Ok(all)
}

fn require_same(encoder: &dyn TextEncoder, ranks: &Ranks) -> Result<()> {
    ranks.require_same_facts(&[("encoder".to_owned(), encoder.sha256().to_owned())])
}
