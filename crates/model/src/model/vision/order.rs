//! The order of patches in a vision tower, and what attends to what.

use std::collections::BTreeMap;

use tch::{Device, Tensor};

use super::VisionConfig;
use crate::native::upload;
use r1_base::error::Result;

/// The order in which patches are computed, and what attends to what.
pub(super) struct PatchOrder {
    /// Row and column of each patch in its frame.
    pub positions: Vec<[i64; 2]>,
    /// Numbers of the merged squares, window by window.
    pub squares: Vec<i64>,
    /// Numbers of patches of the windows, and of the frames.
    pub windows: Vec<i64>,
    pub frames: Vec<i64>,
}

impl PatchOrder {
    /// `grids` are frames, rows and columns of patches of each image or video.
    pub(super) fn new(config: &VisionConfig, grids: &[[usize; 3]]) -> Self {
        let merge = config.merge;
        let side = config.window_side();
        let mut order = Self { positions: Vec::new(), squares: Vec::new(), windows: Vec::new(), frames: Vec::new() };
        let mut first = 0;
        for &[frames, rows, columns] in grids {
            let (down, right) = (rows / merge, columns / merge);
            for _ in 0..frames {
                order.frames.push((rows * columns) as i64);
                for (top, left) in
                    (0..down).step_by(side).flat_map(|top| (0..right).step_by(side).map(move |left| (top, left)))
                {
                    let before = order.squares.len();
                    for row in top..(top + side).min(down) {
                        for column in left..(left + side).min(right) {
                            order.squares.push((first + row * right + column) as i64);
                            let inside =
                                (0..merge * merge).map(|at| [row * merge + at / merge, column * merge + at % merge]);
                            order.positions.extend(inside.map(|position| position.map(|number| number as i64)));
                        }
                    }
                    order.windows.push(((order.squares.len() - before) * merge * merge) as i64);
                }
                first += down * right;
            }
        }
        order
    }
}

/// Segments of equal length are attended to together.
pub(super) struct AttentionSegments {
    /// For each length: the rows of its segments, and their number.
    groups: Vec<(i64, Tensor)>,
    /// The places of all rows in the concatenation of the groups.
    back: Tensor,
}

impl AttentionSegments {
    pub(super) fn new(lengths: &[i64], device: Device) -> Result<Self> {
        let mut by_length: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        let mut at = 0;
        for &length in lengths {
            by_length.entry(length).or_default().extend(at..at + length);
            at += length;
        }
        let rows: Vec<i64> = by_length.values().flatten().copied().collect();
        let back = upload(&Tensor::f_from_slice(&rows)?.f_argsort(0, false)?, device)?;
        let group = |(length, rows): (i64, Vec<i64>)| Ok((length, upload(&Tensor::f_from_slice(&rows)?, device)?));
        Ok(Self { groups: by_length.into_iter().map(group).collect::<Result<_>>()?, back })
    }

    /// Attention in both directions within each segment; all `[P, H, D]`.
    pub(super) fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let (heads, size) = (q.size()[1], q.size()[2]);
        let mut all = Vec::with_capacity(self.groups.len());
        for (length, rows) in &self.groups {
            let part = |x: &Tensor| x.f_index_select(0, rows)?.f_view([-1, *length, heads, size])?.f_transpose(1, 2);
            let seen = Tensor::f_scaled_dot_product_attention(
                &part(q)?,
                &part(k)?,
                &part(v)?,
                None::<&Tensor>,
                0.0,
                false,
                None,
                false,
            )?;
            all.push(seen.f_transpose(1, 2)?.f_reshape([-1, heads, size])?);
        }
        Ok(Tensor::f_cat(&all, 0)?.f_index_select(0, &self.back)?)
    }
}
