//! Token ids of images.
//!
//! An image takes the place of several tokens, whose embeddings a vision tower computes. All of
//! them have one id, which names the image: [`FIRST_IMAGE_ID`] plus its number in the run. Equal
//! ids are therefore equal inputs of the model, also for images (docs/lab/decisions/0037).

/// Ids of a vocabulary are smaller.
pub const FIRST_IMAGE_ID: u32 = 1 << 31;

/// The id of the tokens of image `number`.
pub const fn image_id(number: u32) -> u32 {
    FIRST_IMAGE_ID + number
}

/// The number of the image of an id; `None` for a token of the vocabulary.
pub const fn image_number(id: u32) -> Option<u32> {
    id.checked_sub(FIRST_IMAGE_ID)
}
