//! Images in messages and in rows: they are stored, and replaced by their hashes.
//!
//! A part of a message is read in the forms of r1, OpenAI's API, and Hugging Face's datasets. A row
//! can also have its images in the column `images`, in the order of the marks `<image>` in its
//! messages, as datasets for verl do.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use r1_base::error::{Error, Kind, Result};
use r1_base::json::Odd;
use serde_json::{Value, json};

use crate::Images;

/// The place of an image of the column `images`.
const MARK: &str = "<image>";

/// Stores the images of a row, and replaces them by parts with their hashes.
///
/// # Errors
/// [`Kind::Data`] for an image that can't be read, and if there are other numbers of images and of
/// marks.
pub fn store_images(row: &mut Value, images: &Images) -> Result<()> {
    let column: Vec<Value> = match (&row["images"], &row["image"]) {
        (Value::Array(list), _) => list.clone(),
        (Value::Null, Value::Null) => Vec::new(),
        (Value::Null, one) | (one, _) => vec![one.clone()],
    };
    let mut rest = column.iter();
    let messages = row.get_mut("messages").and_then(Value::as_array_mut);
    for message in messages.into_iter().flatten() {
        let content = &mut message["content"];
        if let Some(text) = content.as_str().filter(|text| !column.is_empty() && text.contains(MARK)) {
            *content = with_column(text, &mut rest, images)?;
        }
        for part in content.as_array_mut().into_iter().flatten() {
            if !column.is_empty() && is_bare(part) {
                *part = next(&mut rest, images)?;
            } else if let Some(number) = store_part(part, images)? {
                *part = stored(number, images)?;
            }
        }
    }
    if rest.next().is_some() {
        let message = format!("the row has {} images, and its messages fewer `{MARK}`", column.len());
        return Err(Error::new(Kind::Data, message));
    }
    if let Some(fields) = row.as_object_mut().filter(|_| !column.is_empty()) {
        fields.retain(|name, _| name != "images" && name != "image");
    }
    Ok(())
}

/// A text with images in the place of marks, as parts.
fn with_column<'a>(text: &str, rest: &mut impl Iterator<Item = &'a Value>, images: &Images) -> Result<Value> {
    let mut parts = Vec::new();
    for (index, piece) in text.split(MARK).enumerate() {
        if index > 0 {
            parts.push(next(rest, images)?);
        }
        if !piece.is_empty() {
            parts.push(json!({ "type": "text", "text": piece }));
        }
    }
    Ok(Value::Array(parts))
}

/// The next image of the column, as a part.
fn next<'a>(rest: &mut impl Iterator<Item = &'a Value>, images: &Images) -> Result<Value> {
    let missing = || Error::new(Kind::Data, format!("a message has `{MARK}`, and the row no image for it"));
    stored(source(rest.next().ok_or_else(missing)?, images)?, images)
}

/// Whether a part stands for an image of the row, as in datasets for TRL.
fn is_bare(part: &Value) -> bool {
    let fields = part.as_object().into_iter().flatten();
    part["type"] == "image" && fields.filter(|(_, value)| !value.is_null()).count() == 1
}

fn stored(number: u32, images: &Images) -> Result<Value> {
    Ok(json!({ "type": "image", "hash": images.image(number)?.hash }))
}

/// Stores the images in the columns `images` and `image` of a row, and replaces them by parts with
/// their hashes. Other values of these columns stay: paths, and URLs of the web.
///
/// # Errors
/// [`Kind::Data`] for an image that can't be read.
pub fn store_columns(row: &mut Value, images: &Images) -> Result<()> {
    for column in ["images", "image"] {
        let values = match row.get_mut(column) {
            Some(Value::Array(list)) => &mut list[..],
            Some(one) => std::slice::from_mut(one),
            None => &mut [],
        };
        for value in values.iter_mut().filter(|value| has_file(value)) {
            *value = stored(source(value, images)?, images)?;
        }
    }
    Ok(())
}

/// Whether a value of a column has the file of an image, or its pixels.
fn has_file(value: &Value) -> bool {
    let url = value.as_str().or_else(|| value["url"].as_str());
    ["bytes", "base64", "rgb"].iter().any(|name| !value[*name].is_null())
        || url.is_some_and(|url| url.starts_with("data:image/"))
}

/// Stores the image of a part of a message, and returns its number; `None` for other parts, and for
/// images that are stored.
///
/// # Errors
/// [`Kind::Data`] for an image that can't be read.
pub fn store_part(part: &Value, images: &Images) -> Result<Option<u32>> {
    match part["type"].as_str() {
        Some("image_url") => source(&part["image_url"], images).map(Some),
        Some("image") if !part["hash"].is_null() => Ok(None),
        Some("image") if !part["image"].is_null() => source(&part["image"], images).map(Some),
        Some("image") => source(part, images).map(Some),
        _ => Ok(None),
    }
}

/// Stores an image: text with a data URL, or a table with `url`, `base64`, `bytes`, or `rgb` and
/// `width`.
fn source(source: &Value, images: &Images) -> Result<u32> {
    let wrong = |why: &str| Err(Error::new(Kind::Data, format!("an image {why}")));
    if let Some(file) = bytes(&source["bytes"]) {
        return images.add(&file);
    }
    if let (Some(data), Some(width)) = (bytes(&source["rgb"]), source["width"].as_u64()) {
        return images.add_rgb(&data, width as usize);
    }
    let url = source.as_str().or_else(|| source["url"].as_str());
    let encoded = match (url, source["base64"].as_str()) {
        (_, Some(encoded)) => encoded,
        (Some(url), _) => match url.split_once(";base64,").filter(|_| url.starts_with("data:")) {
            Some((_, encoded)) => encoded,
            None => return wrong("is a path or a URL, which are not fetched; give its bytes"),
        },
        _ => return wrong("has no `bytes`, `base64`, data URL, or `rgb` and `width`"),
    };
    match BASE64_STANDARD.decode(encoded) {
        Ok(file) => images.add(&file),
        Err(error) => wrong(&format!("is no base64: {error}")),
    }
}

/// Bytes as plain data: text, or the tagged form of other bytes.
fn bytes(value: &Value) -> Option<Vec<u8>> {
    match (value, Odd::of(value)) {
        (Value::String(text), _) => Some(text.clone().into_bytes()),
        (_, Some(Odd::Bytes(bytes))) => Some(bytes),
        _ => None,
    }
}
