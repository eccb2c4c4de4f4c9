//! Images in the tokens of a model: their positions (M-RoPE, arXiv:2409.12191) and embeddings.
//!
//! All tokens of an image have its id (`r1_base::mdp::image_id`). A token has three positions:
//! time, row and column. For a token of text they are equal. An image of r rows and c columns
//! advances the positions of the text after it by the larger of both; a video, whose frames have
//! several times, to the one after its largest position. In models with plain rotary embeddings,
//! the tokens of each tile of an image are one row, and the column is the position.

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use r1_base::error::{self, Error, Result};
use r1_base::mdp::{FIRST_IMAGE_ID, image_number};
use r1_vision::{Images, TokenGrid};
use tch::{Device, Tensor};

use super::decoder::Residual;
use super::layers::AdapterUse;
use super::{ImageFeatures, Model, Span, VisionTower};
use crate::native::upload;

/// An image in a sequence, a tile of it, or frames of a video.
#[derive(Clone, Copy, Debug)]
struct ImageRun {
    number: u32,
    /// The token of the image with which it begins.
    offset: usize,
    /// Its first token in the sequence.
    start: usize,
    /// Position of its first token.
    position: i64,
    grid: TokenGrid,
}

impl ImageRun {
    /// The token after it.
    fn end(&self) -> usize {
        self.start + self.grid.tokens()
    }

    /// Time of a frame.
    fn time(&self, frame: usize) -> usize {
        (frame as f32 * self.grid.interval) as usize
    }

    /// Position of the token after it.
    fn next_position(&self) -> i64 {
        let TokenGrid { frames, rows, columns, .. } = self.grid;
        self.position + rows.max(columns).max(self.time(frames - 1) + 1) as i64
    }
}

/// The images of a sequence.
#[derive(Clone, Debug, Default)]
pub(super) struct SequenceImages {
    runs: Vec<ImageRun>,
}

/// The positions and images of tokens, on the host.
#[derive(Debug, Default)]
struct PlacedTokens {
    /// Time, row and column of each token.
    positions: Vec<[i64; 3]>,
    /// For tokens of images: the token, the image, and the number within the image.
    images: Vec<(i64, u32, i64)>,
}

/// Tokens with images among them, on the device.
#[derive(Debug)]
pub(super) struct ImageTokens {
    /// `[T, 3]` i64, `[T]` for plain rotary embeddings.
    pub positions: Tensor,
    /// The images, each once.
    pub numbers: Vec<u32>,
    /// `[N]` i64: the tokens of images.
    tokens: Tensor,
    /// `[N]` i64: their rows in the embeddings of the images in this order.
    rows: Tensor,
    /// `[N, E]` for each of the first layers, to whose output they are added at these tokens. Set
    /// by [`Model::embed_with`].
    pub deep: RefCell<Vec<Tensor>>,
}

impl ImageTokens {
    /// x `[T, E]` after a layer, with what images add to it.
    pub(super) fn after_layer(&self, layer: usize, x: Residual) -> Result<Residual> {
        let deep = self.deep.borrow();
        let Some(added) = deep.get(layer) else { return Ok(x) };
        Ok(Residual { x: x.x.f_index_add(0, &self.tokens, added)?, delta: x.delta })
    }

    /// Replaces the deep features by leaves of another graph, and returns both.
    pub(super) fn cut(&self) -> Result<Vec<(Tensor, Tensor)>> {
        let graph = self.deep.take();
        let leaf = |x: Tensor| -> Result<(Tensor, Tensor)> {
            let leaf = x.f_detach()?.f_set_requires_grad(true)?;
            Ok((x, leaf))
        };
        let both = graph.into_iter().map(leaf).collect::<Result<Vec<_>>>()?;
        self.deep.replace(both.iter().map(|(_, leaf)| leaf.shallow_clone()).collect());
        Ok(both)
    }
}

impl SequenceImages {
    /// Adds the positions of `ids`, tokens `start..` of the sequence, to `placed`. Images that
    /// begin at these tokens or later are forgotten first.
    ///
    /// # Errors
    /// `Kind::Internal` for an unknown image, and one with too few tokens.
    fn place(&mut self, start: usize, ids: &[u32], images: &Images, placed: &mut PlacedTokens) -> Result<()> {
        self.runs.retain(|run| run.start < start);
        for (index, &id) in (start..).zip(ids) {
            let current = self.runs.last().copied();
            let shift = current.map_or(0, |run| run.next_position() - run.end() as i64);
            let within = current.filter(|run| index < run.end());
            let Some(number) = image_number(id) else {
                if let Some(run) = within {
                    return Err(incomplete(&run, index));
                }
                placed.positions.push([index as i64 + shift; 3]);
                continue;
            };
            let run = match within {
                Some(run) if run.number == number => run,
                Some(run) => return Err(incomplete(&run, index)),
                None => {
                    let grid = images.token_grid(number)?;
                    // The next tile or frame of the image, if there is one.
                    let last = current.filter(|run| run.number == number);
                    let next = last.map_or(0, |run| run.offset + run.grid.tokens());
                    let offset = if next < images.tokens(number)? { next } else { 0 };
                    let run = ImageRun { number, offset, start: index, position: index as i64 + shift, grid };
                    self.runs.push(run);
                    run
                }
            };
            let within = index - run.start;
            let (frame, row) = (within / run.grid.columns / run.grid.rows, within / run.grid.columns % run.grid.rows);
            placed.images.push((placed.positions.len() as i64, number, (run.offset + within) as i64));
            let axes = [run.time(frame), row, within % run.grid.columns];
            placed.positions.push(axes.map(|at| run.position + at as i64));
        }
        Ok(())
    }

    /// Keeps the images of the first `length` tokens.
    fn truncated(&self, length: usize) -> Self {
        Self { runs: self.runs.iter().copied().filter(|run| run.start < length).collect() }
    }
}

fn incomplete(run: &ImageRun, index: usize) -> Error {
    let (tokens, present) = (run.grid.tokens(), index - run.start);
    Error::new(error::Kind::Internal, format!("image {} has {tokens} tokens, and the sequence {present}", run.number))
}

impl PlacedTokens {
    /// The tokens with these numbers only.
    fn select(self, tokens: &[i64]) -> Self {
        let mut images = HashMap::new();
        for (token, number, offset) in self.images {
            images.insert(token, (number, offset));
        }
        let positions = tokens.iter().map(|&token| self.positions[token as usize]).collect();
        let each =
            (0..).zip(tokens).filter_map(|(index, token)| images.get(token).map(|image| (index, image.0, image.1)));
        Self { positions, images: each.collect() }
    }

    /// The same on the device, with one position for each token if `flat`.
    fn upload(self, images: &Images, device: Device, flat: bool) -> Result<ImageTokens> {
        let (mut numbers, mut first, mut end) = (Vec::new(), HashMap::new(), 0);
        for &(_, number, _) in &self.images {
            if first.insert(number, 0).is_none() {
                numbers.push(number);
            }
        }
        for &number in &numbers {
            first.insert(number, end);
            end += images.tokens(number)? as i64;
        }
        let tensor = |values: Vec<i64>| upload(&Tensor::f_from_slice(&values)?, device);
        let positions = tensor(self.positions.into_iter().flatten().collect())?.f_view([-1, 3])?;
        Ok(ImageTokens {
            positions: if flat { positions.f_select(1, 2)? } else { positions },
            tokens: tensor(self.images.iter().map(|(token, ..)| *token).collect())?,
            rows: tensor(self.images.iter().map(|(_, number, offset)| first[number] + offset).collect())?,
            numbers,
            deep: RefCell::default(),
        })
    }
}

/// Embeddings of images for generation, and the images in each slot of a cache.
#[derive(Debug, Default)]
pub(super) struct CachedImages {
    slots: Vec<SequenceImages>,
    features: HashMap<u32, ImageFeatures>,
    /// The images with features, the oldest first.
    order: VecDeque<u32>,
}

/// Numbers in the embeddings of a cache before the oldest are removed.
const CACHED_NUMBERS: usize = 64 << 20;

impl CachedImages {
    fn slot(&mut self, slot: usize) -> &mut SequenceImages {
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, SequenceImages::default);
        }
        &mut self.slots[slot]
    }

    /// Copies the images of the first `length` tokens of a slot to another one.
    pub(super) fn copy(&mut self, from: usize, to: usize, length: usize) {
        let copied = self.slot(from).truncated(length);
        *self.slot(to) = copied;
    }

    /// Drops the embeddings, which depend on the weights.
    pub(super) fn forget(&mut self) {
        self.features.clear();
        self.order.clear();
    }

    /// Features of images, one after the other. Each is computed alone, so that it does not depend
    /// on the others.
    fn features(&mut self, model: &Model, numbers: &[u32]) -> Result<ImageFeatures> {
        for &number in numbers {
            if let Entry::Vacant(vacant) = self.features.entry(number) {
                vacant.insert(model.image_features(&[number])?);
                self.order.push_back(number);
            }
        }
        let all: Vec<&ImageFeatures> = numbers.iter().filter_map(|number| self.features.get(number)).collect();
        let joined = |part: &dyn Fn(&ImageFeatures) -> Tensor| {
            Tensor::f_cat(&all.iter().map(|one| part(one)).collect::<Vec<_>>(), 0)
        };
        let layers = all.first().map_or(0, |first| first.deep.len());
        let features = ImageFeatures {
            embeddings: joined(&|one| one.embeddings.shallow_clone())?,
            deep: (0..layers)
                .map(|layer| Ok(joined(&|one| one.deep[layer].shallow_clone())?))
                .collect::<Result<_>>()?,
        };
        let size = |one: &ImageFeatures| (1 + one.deep.len()) * one.embeddings.numel();
        let mut held: usize = self.features.values().map(size).sum();
        while held > CACHED_NUMBERS
            && let Some(oldest) = self.order.pop_front()
        {
            held -= self.features.remove(&oldest).as_ref().map_or(0, size);
        }
        Ok(features)
    }
}

impl Model {
    /// Sets the images that ids of images refer to.
    pub fn set_images(&mut self, images: Arc<Images>) {
        self.images = Some(images);
    }

    /// Reads the images of another model.
    pub fn share_images(&mut self, other: &Self) {
        self.images.clone_from(&other.images);
    }

    /// The tower and the images; an error for a model or a run without them.
    fn seeing(&self) -> Result<(&VisionTower, &Images)> {
        let missing = |what: &str| Error::new(error::Kind::Internal, format!("an image is given, and {what}"));
        let tower = self.parameters.vision.as_ref().ok_or_else(|| missing("the model does not read images"))?;
        Ok((tower, self.images.as_deref().ok_or_else(|| missing("the run has none"))?))
    }

    /// Whether the model has read images: the positions of a text depend on the images before it.
    pub(super) fn has_images(&self) -> bool {
        self.parameters.vision.is_some() && self.images.as_ref().is_some_and(|images| !images.is_empty())
    }

    /// Whether tokens of images have one position, like text.
    fn is_flat(&self) -> bool {
        self.config.ropes.iter().all(|rope| rope.sections.is_none())
    }

    /// Features of images, one after the other. Differentiable.
    fn image_features(&self, numbers: &[u32]) -> Result<ImageFeatures> {
        let (tower, images) = self.seeing()?;
        let (mut values, mut grids) = (Vec::new(), Vec::new());
        for &number in numbers {
            let patches = images.patches(number)?;
            grids.push([patches.grid.frames, patches.grid.rows, patches.grid.columns]);
            values.push(Tensor::f_from_slice(&patches.values)?.f_view([patches.grid.patches() as i64, -1])?);
        }
        let adapter = if self.adapter_disabled.get() { AdapterUse::Disabled } else { AdapterUse::Beside };
        tower.forward(&upload(&Tensor::f_cat(&values, 0)?, self.device)?, &grids, adapter)
    }

    /// The images of packed rows; `None` without any. `selected` are the tokens that are computed,
    /// all if `None`.
    pub(super) fn row_images(
        &self,
        ids: &[i64],
        lengths: &[i64],
        selected: Option<&[i64]>,
    ) -> Result<Option<ImageTokens>> {
        if !ids.iter().any(|id| *id >= i64::from(FIRST_IMAGE_ID)) {
            return Ok(None);
        }
        let (_, images) = self.seeing()?;
        let (mut placed, mut rest) = (PlacedTokens::default(), ids);
        for &length in lengths {
            let (row, after) = rest.split_at(rest.len().min(length as usize));
            let row: Vec<u32> = row.iter().map(|&id| id as u32).collect();
            SequenceImages::default().place(0, &row, images, &mut placed)?;
            rest = after;
        }
        let placed = match selected {
            Some(tokens) => placed.select(tokens),
            None => placed,
        };
        placed.upload(images, self.device, self.is_flat()).map(Some)
    }

    /// The images of spans; `None` if their sequences have none.
    pub(super) fn span_images(&self, cached: &mut CachedImages, items: &[Span<'_>]) -> Result<Option<ImageTokens>> {
        let Some(images) = self.images.as_deref().filter(|_| self.parameters.vision.is_some()) else { return Ok(None) };
        let (mut placed, mut any) = (PlacedTokens::default(), false);
        for span in items {
            let sequence = cached.slot(span.slot);
            sequence.place(span.start, span.ids, images, &mut placed)?;
            any |= !sequence.runs.is_empty();
        }
        if any { placed.upload(images, self.device, self.is_flat()).map(Some) } else { Ok(None) }
    }

    /// Embeddings `[T, E]` of ids `[T]` with images among them.
    pub(super) fn embed_with(
        &self,
        ids: &Tensor,
        images: Option<&ImageTokens>,
        cached: Option<&mut CachedImages>,
    ) -> Result<Tensor> {
        let images = images.filter(|images| !images.numbers.is_empty());
        let (Some(images), Some(vision)) = (images, &self.config.vision) else { return self.embed(ids) };
        let is_image = ids.f_ge(i64::from(FIRST_IMAGE_ID))?;
        let x = self.embed(&ids.f_masked_fill(&is_image, i64::from(vision.image_token))?)?;
        let features = match cached {
            Some(cached) => cached.features(self, &images.numbers)?,
            None => self.image_features(&images.numbers)?,
        };
        let taken = |all: &Tensor| -> Result<Tensor> { Ok(all.f_index_select(0, &images.rows)?.f_to_kind(x.kind())?) };
        images.deep.replace(features.deep.iter().map(taken).collect::<Result<_>>()?);
        let rows = taken(&features.embeddings)?;
        Ok(x.f_index_put(&[Some(&images.tokens)], &rows, false)?)
    }
}

/// Angles `[T, R / 2]` at positions `[T, 3]` from `[T, 3, R / 2]`: pair i has the one of its axis.
pub(super) fn by_axis(angles: &Tensor, axes: &[i64], device: Device) -> Result<Tensor> {
    let index = upload(&Tensor::f_from_slice(axes)?, device)?.f_view([1, 1, -1])?;
    let index = index.f_expand([angles.size()[0], 1, -1], false)?;
    Ok(angles.f_gather(1, &index, false)?.f_squeeze_dim(1)?)
}
