//! Images in tiles, as Idefics3 and SmolVLM read them: the image is enlarged or reduced to a number
//! of squares, and the whole image follows as one more square.

use r1_base::error::{Error, Kind, Result};
use serde::Deserialize;
use serde_json::Value;

use crate::{Filter, RgbImage, resize};

/// Pixels along each side to which an image is bounded at last, as in the reference.
const LARGEST: usize = 4096;

/// Sizes of tiles, in pixels along each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileSizes {
    /// The longer side of an image that is divided.
    pub longest: usize,
    pub tile: usize,
    /// Whether images are divided; otherwise each is one tile.
    pub divided: bool,
}

/// The fields of `preprocessor_config.json` that only these processors have.
#[derive(Deserialize)]
struct TileFields {
    size: Option<LongestEdge>,
    max_image_size: Option<LongestEdge>,
    do_image_splitting: Option<bool>,
    resample: Option<u8>,
}

#[derive(Deserialize)]
struct LongestEdge {
    longest_edge: usize,
}

impl TileSizes {
    /// Reads `preprocessor_config.json`; `patch` and `merge` are the sizes of the vision tower.
    pub(crate) fn from_json(json: &Value, patch: usize, merge: usize) -> Result<Self> {
        let wrong = |message: String| Error::new(Kind::Model, message).at("preprocessor_config.json");
        let fields = TileFields::deserialize(json).map_err(|error| wrong(error.to_string()))?;
        if let Some(resample) = fields.resample.filter(|resample| *resample != 1) {
            return Err(wrong(format!("`resample` = {resample} is not supported")).hint("1 is Lanczos"));
        }
        let tile = fields.max_image_size.map_or(364, |size| size.longest_edge);
        let longest = fields.size.map_or(4 * 364, |size| size.longest_edge);
        let side = tile / patch;
        if side == 0 || !side.is_multiple_of(merge) || longest == 0 || longest > LARGEST || tile > LARGEST {
            let message = format!(
                "`size` is {longest} and `max_image_size` {tile}: they are at most {LARGEST}, and a tile has a \
                 multiple of {merge} patches of {patch} pixels along each side"
            );
            return Err(wrong(message));
        }
        Ok(Self { longest, tile, divided: fields.do_image_splitting.unwrap_or(true) })
    }

    /// Rows and columns of tiles of an image of this size; 0 for an image that is one tile.
    pub(crate) fn grid(self, width: usize, height: usize) -> [usize; 2] {
        let tiles = self.whole(self.resized(width, height)).map(|side| side / self.tile);
        if !self.divided || tiles == [1, 1] { [0, 0] } else { tiles }
    }

    /// Height and width of an image with the longer side `longest`. Lengths are rounded as in the
    /// reference.
    fn resized(self, width: usize, height: usize) -> [usize; 2] {
        let ratio = width as f64 / height as f64;
        let even = |side: f64| (side as usize + side as usize % 2).max(1);
        if width >= height {
            [even(self.longest as f64 / ratio), self.longest]
        } else {
            [self.longest, even(self.longest as f64 * ratio)]
        }
    }

    /// Height and width of an image that is divided, multiples of a tile.
    fn whole(self, [height, width]: [usize; 2]) -> [usize; 2] {
        let ratio = width as f64 / height as f64;
        let multiple = |side: usize| side.div_ceil(self.tile) * self.tile;
        if width >= height {
            let width = multiple(width);
            [multiple((width as f64 / ratio) as usize), width]
        } else {
            let height = multiple(height);
            [height, multiple((height as f64 * ratio) as usize)]
        }
    }

    /// The tiles of an image, row by row, and the whole image at the end.
    pub(crate) fn tiles(self, image: &RgbImage) -> Vec<RgbImage> {
        let lanczos = |image: &RgbImage, [height, width]: [usize; 2]| resize(image, width, height, Filter::Lanczos);
        let size = self.resized(image.width, image.height);
        let image = lanczos(image, size);
        let one = [self.tile, self.tile];
        if !self.divided {
            return vec![lanczos(&image, one)];
        }
        let image = lanczos(&image, self.whole(size));
        let [rows, columns] = [image.height, image.width].map(|side| side / self.tile);
        if rows * columns == 1 {
            return vec![image];
        }
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let mut tiles: Vec<RgbImage> = places.map(|(row, column)| self.cut(&image, row, column)).collect();
        tiles.push(lanczos(&image, one));
        tiles
    }

    fn cut(self, image: &RgbImage, row: usize, column: usize) -> RgbImage {
        let (tile, channels) = (self.tile, image.data.len() / (image.width * image.height));
        let lines = (row * tile..(row + 1) * tile).map(|line| (line * image.width + column * tile) * channels);
        let data = lines.flat_map(|start| &image.data[start..start + tile * channels]).copied().collect();
        RgbImage { width: tile, height: tile, data }
    }
}

/// The texts of a divided image before the tokens of each tile and of the whole image.
pub(crate) fn texts([rows, columns]: [usize; 2]) -> Vec<String> {
    let mut all = Vec::new();
    for row in 1..=rows {
        for column in 1..=columns {
            let line = if row > 1 && column == 1 { "\n" } else { "" };
            all.push(format!("{line}{AROUND}<row_{row}_col_{column}>"));
        }
    }
    let lines = if all.is_empty() { "" } else { "\n\n" };
    all.push(format!("{lines}{AROUND}<global-img>"));
    all
}

/// Before each tile, and after the last one.
pub(crate) const AROUND: &str = "<fake_token_around_image>";
/// In the place of the tokens of a tile; chat templates print it for an image.
pub const TILE_TOKEN: &str = "<image>";
