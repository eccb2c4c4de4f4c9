//! Parity with transformers and Pillow (tests/golden/vision has the scripts), and bad input.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use r1_base::error::Kind;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use serde_json::{Value, json};

use crate::{
    DecodeLimits, Grid, ImageBytes, ImageSizes, Images, Processor, RgbImage, decode, smart_resize, store_columns,
    store_images,
};

pub(crate) fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/vision")
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(golden().join(name)).unwrap()
}

/// The settings of Qwen2-VL.
pub(crate) fn processor(min: usize, max: usize, patch: usize) -> Processor {
    Processor::from_json(&json!({
        "image_processor_type": "Qwen2VLImageProcessorFast", "size": { "shortest_edge": min, "longest_edge": max },
        "patch_size": patch, "temporal_patch_size": 2, "merge_size": 2, "resample": 3,
        "image_mean": [0.481_454_66, 0.457_827_5, 0.408_210_73], "image_std": [0.268_629_54, 0.261_302_58, 0.275_777_11],
    }))
    .unwrap()
}

/// The generator of processor.py.
pub(crate) struct SplitMix(pub u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn pixels(&mut self, kind: usize, height: usize, width: usize) -> RgbImage {
        let count = height * width * 3;
        let data = if kind == 0 {
            let bytes = (0..count.div_ceil(8)).flat_map(|_| self.next().to_le_bytes());
            bytes.collect::<Vec<u8>>()[..count].to_vec()
        } else {
            let pixel = |at: usize| {
                let (row, column) = (at / width, at % width);
                let values = match kind {
                    1 => [row * 3 + column, column * 7, row + column * 2],
                    _ => [(row / 3 + column / 5) % 2 * 255; 3],
                };
                values.map(|value| (value % 256) as u8)
            };
            (0..height * width).flat_map(pixel).collect()
        };
        RgbImage { width, height, data }
    }
}

fn checksum(values: &[f32]) -> u64 {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    u64::from(crc32c::crc32c(&bytes))
}

/// Grids and all values have the bits of transformers' processor.
#[test]
fn patches_have_the_bits_of_the_reference() {
    let cases: Vec<Vec<u64>> = serde_json::from_slice(&file("processor.json")).unwrap();
    let (mut random, mut compared) = (SplitMix(7), 0);
    let mut cases = cases.into_iter().peekable();
    for index in 0..300 {
        let sizes = [1 + random.next() % 160, 1 + random.next() % 160];
        let min = [56 * 56, 4 * 28 * 28, 28 * 28][(random.next() % 3) as usize];
        let max = [100_352, 50_176, 28 * 28 * 16][(random.next() % 3) as usize];
        let patch = [14, 16][(random.next() % 2) as usize];
        let image = random.pixels(index % 3, sizes[0] as usize, sizes[1] as usize);
        let head = [sizes[0], sizes[1], min, max, patch];
        let Some(case) = cases.next_if(|case| case[..5] == head) else { continue };
        let patches = processor(min as usize, max as usize, patch as usize).image(&image).unwrap();
        let Grid { frames, rows, columns, .. } = patches.grid;
        assert_eq!((frames, vec![rows as u64, columns as u64]), (1, case[5..7].to_vec()), "{case:?}");
        assert_eq!(checksum(&patches.values), case[7], "{case:?}");
        compared += 1;
    }
    assert!(cases.next().is_none() && compared >= 295, "{compared}");
}

/// The same for the tiles of Idefics3 and SmolVLM.
#[test]
fn tiles_have_the_bits_of_the_reference() {
    let cases: Vec<[u64; 10]> = serde_json::from_slice(&file("tiles.json")).unwrap();
    assert_eq!(cases.len(), 300);
    let mut random = SplitMix(11);
    for (index, case) in cases.into_iter().enumerate() {
        let [height, width, patch, merge, tile, longest, divided, rows, columns, expected] = case;
        // The generator of processor.py has drawn the sizes of the case.
        for _ in 0..6 {
            random.next();
        }
        let image = random.pixels(index % 3, height as usize, width as usize);
        let processor = tiles(
            patch,
            merge,
            &json!({
                "size": { "longest_edge": longest }, "max_image_size": { "longest_edge": tile },
                "do_image_splitting": divided == 1, "resample": 1,
            }),
        );
        let patches = processor.unwrap().image(&image).unwrap();
        assert_eq!(patches.grid.tiles, [rows as usize, columns as usize], "{case:?}");
        assert_eq!(patches.grid.frames as u64, rows * columns + 1, "{case:?}");
        assert_eq!(checksum(&patches.values), expected, "{case:?}");
    }
}

fn tiles(patch: u64, merge: u64, change: &Value) -> r1_base::Result<Processor> {
    let mut all = json!({
        "image_processor_type": "SmolVLMImageProcessor", "patch_size": patch, "merge_size": merge,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    });
    all.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    Processor::from_json(&all)
}

#[test]
fn the_text_of_tiles_has_rows_and_columns() {
    let sizes = json!({ "size": { "longest_edge": 64 }, "max_image_size": { "longest_edge": 32 } });
    let processor = tiles(8, 2, &sizes).unwrap();
    let text = |width, height| processor.text(processor.grid(width, height).unwrap());
    let around = "<fake_token_around_image>";
    let piece = |text: &str, tokens: usize| (text.replace('*', around), tokens);
    let expected = [
        piece("*<row_1_col_1>", 4),
        piece("*<row_1_col_2>", 4),
        piece("\n*<row_2_col_1>", 4),
        piece("*<row_2_col_2>", 4),
        piece("\n\n*<global-img>", 4),
        piece("*", 0),
    ];
    assert_eq!(text(60, 60), expected);
    let whole = json!({ "max_image_size": { "longest_edge": 32 }, "do_image_splitting": false });
    let whole = tiles(8, 2, &whole).unwrap();
    assert_eq!(whole.text(whole.grid(60, 60).unwrap()), [piece("*<global-img>", 4), piece("*", 0)]);
}

#[test]
fn unsupported_tiles_are_refused() {
    for (change, message) in [
        (json!({ "resample": 3 }), "`resample` = 3 is not supported"),
        (json!({ "max_image_size": { "longest_edge": 24 } }), "a tile has a multiple of 2 patches of 8 pixels"),
        (json!({ "size": { "longest_edge": 5000 } }), "they are at most 4096"),
        (json!({ "size": { "height": 5 } }), "missing field `longest_edge`"),
        (json!({ "image_processor_type": "SmolVLMImageProcessorSlow" }), "`SmolVLMImageProcessorSlow` is not"),
    ] {
        let error = tiles(8, 2, &change).unwrap_err();
        assert!(error.kind == Kind::Model && error.message.contains(message), "{error}");
    }
}

#[test]
fn long_and_empty_images_are_refused() {
    let error = smart_resize((3, 700), 28, (3136, 100_352)).unwrap_err();
    assert_eq!(error.message, "the image has 700 x 3 pixels: one side is more than 200 times the other");
    assert!(smart_resize((0, 7), 28, (3136, 100_352)).is_err());
    assert_eq!(smart_resize((1, 200), 28, (3136, 100_352)).unwrap(), (28, 812));
}

#[test]
fn unsupported_processors_are_refused() {
    let of = |change: Value| {
        let mut all = json!({ "patch_size": 14, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5] });
        all.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        Processor::from_json(&all)
    };
    assert_eq!(of(json!({})).unwrap().sizes, ImageSizes::Pixels { min: 56 * 56, max: 28 * 28 * 1280 });
    for (change, message) in [
        (json!({ "image_processor_type": "CLIPImageProcessor" }), "image_processor_type `CLIPImageProcessor` is not"),
        (json!({ "patch_size": 0 }), "patch_size, temporal_patch_size"),
        (json!({ "min_pixels": 10, "max_pixels": 9 }), "patch_size, temporal_patch_size"),
        (json!({ "resample": 2 }), "`resample` = 2 is not supported"),
        (json!({ "do_rescale": false }), "`do_rescale` = false is not supported"),
        (json!({ "image_std": [0.5, 0.0, 0.5] }), "`image_std` has a 0"),
        (json!({ "image_mean": [0.5] }), "invalid length 1"),
        (json!({ "patch_size": "big" }), "invalid type"),
    ] {
        let error = of(change).unwrap_err();
        assert!(error.kind == Kind::Model && error.message.contains(message), "{error}");
    }
}

/// Sizes, and means of the channels; lossy formats differ by a level.
#[test]
fn files_are_read_as_by_pillow() {
    let files: BTreeMap<String, [f64; 5]> = serde_json::from_slice(&file("files.json")).unwrap();
    assert_eq!(files.len(), 9);
    for (name, [width, height, expected @ ..]) in files {
        let image = decode(&file(&name), &DecodeLimits::default()).unwrap();
        assert_eq!((image.width as f64, image.height as f64), (width, height), "{name}");
        let mean = |channel: usize| {
            let values = image.data.iter().skip(channel).step_by(3);
            values.map(|value| f64::from(*value)).sum::<f64>() / (width * height)
        };
        let bound = if name.ends_with("jpg") { 1.5 } else { 0.001 };
        for (channel, expected) in expected.into_iter().enumerate() {
            assert!((mean(channel) - expected).abs() < bound, "{name}: {} {expected}", mean(channel));
        }
    }
}

/// A PNG file with this header and no pixels.
fn png_header(width: u32, height: u32) -> Vec<u8> {
    let mut chunk = b"IHDR".to_vec();
    chunk.extend(width.to_be_bytes());
    chunk.extend(height.to_be_bytes());
    chunk.extend([8, 2, 0, 0, 0]);
    let mut crc = !0_u32;
    for byte in &chunk {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
        }
    }
    let mut file = b"\x89PNG\r\n\x1a\n\0\0\0\x0d".to_vec();
    file.extend(chunk);
    file.extend((!crc).to_be_bytes());
    file.extend(b"\0\0\0\0IDAT\x35\xaf\x06\x1e");
    file
}

#[test]
fn bad_files_are_refused_with_a_message() {
    let limits = DecodeLimits { bytes: 10_000, ..DecodeLimits::default() };
    let truncated = |name: &str, part: usize| file(name)[..file(name).len() / part].to_vec();
    for (bytes, message) in [
        (vec![], "the image file is empty"),
        (b"The answer is 7.".to_vec(), "this is text, not an image"),
        (b"<svg xmlns=\"http://www.w3.org/2000/svg\"/>".to_vec(), "this is an SVG drawing, not an image"),
        (b"<?xml version=\"1.0\"?>\n<svg/>".to_vec(), "this is an SVG drawing, not an image"),
        (b"<!DOCTYPE html><html></html>".to_vec(), "this is an HTML page, not an image"),
        (b"BM\x00\x01\x02\x03\x04".to_vec(), "this is data of another format, not an image"),
        (b"%PDF-1.7\n\x80\x81".to_vec(), "this is data of another format, not an image"),
        (vec![0; 20_000], "the image file has 20000 bytes, more than 10000"),
        (truncated("alpha.png", 2), "the PNG image is damaged or not complete"),
        (truncated("lossless.webp", 2), "the WEBP image is damaged or not complete"),
        (truncated("orientation.jpg", 8), "the JPEG image is damaged or not complete"),
        (truncated("animated.gif", 8), "the GIF image is damaged or not complete"),
        (png_header(0, 10), "the PNG image is damaged or not complete"),
        (png_header(40_000, 10), "the image has more than 32768 pixels on a side"),
        (png_header(30_000, 30_000), "the image has 30000 x 30000 pixels, more than 67108864"),
    ] {
        let error = decode(&bytes, &limits).unwrap_err();
        assert!(error.kind == Kind::Data && error.message.starts_with(message), "{message}: {error}");
    }
}

/// Damaged files neither panic nor take long.
#[test]
fn damaged_files_end_soon() {
    let seconds = std::env::var("R1_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let (began, mut random) = (Instant::now(), ChaCha8Rng::seed_from_u64(3));
    let names = [
        "alpha.png",
        "palette.png",
        "deep.png",
        "orientation.jpg",
        "cmyk.jpg",
        "lossless.webp",
        "animated.webp",
        "animated.gif",
    ];
    let files = names.map(file);
    let limits = DecodeLimits { pixels: 1 << 20, ..DecodeLimits::default() };
    let mut below = |count: usize| (random.next_u64() % count.max(1) as u64) as usize;
    let mut read = 0;
    while began.elapsed() < Duration::from_secs(seconds) {
        let mut bytes = files[below(files.len())].clone();
        for _ in 0..=below(8) {
            let at = below(bytes.len());
            match below(4) {
                0 => bytes[at] = below(256) as u8,
                1 => bytes.truncate(at.max(1)),
                2 => bytes.insert(at, below(256) as u8),
                _ => bytes[at..].reverse(),
            }
        }
        let one = Instant::now();
        if let Ok(image) = decode(&bytes, &limits) {
            assert_eq!(image.data.len(), image.width * image.height * 3);
            read += 1;
        }
        assert!(one.elapsed() < Duration::from_secs(5), "{:?}", one.elapsed());
    }
    assert!(read > 0);
}

fn images() -> Images {
    Images::new(processor(1024, 65_536, 8), DecodeLimits::default())
}

#[test]
fn images_are_stored_once_and_have_their_numbers_again() {
    let (first, dir) = (images(), tempfile::tempdir().unwrap());
    let dir = dir.path().join("images");
    let (alpha, grey) = (file("alpha.png"), file("grey.jpg"));
    assert_eq!([&alpha, &grey, &alpha].map(|file| first.add(file).unwrap()), [0, 1, 0]);
    first.store_in(&dir).unwrap();
    let pixels = RgbImage { width: 2, height: 3, data: (0..18).collect() };
    assert_eq!(first.add_rgb(&pixels.data, pixels.width).unwrap(), 2);
    assert_eq!(decode(&first.image(2).unwrap().bytes().unwrap(), &DecodeLimits::default()).unwrap(), pixels);
    let names = || {
        let names = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    };
    let expected = [(0, "png"), (1, "jpg"), (2, "png")];
    let expected = expected.map(|(number, end)| format!("{number:06}-{}.{end}", first.image(number).unwrap().hash));
    assert_eq!(names(), expected);
    let second = images();
    second.read_from(&dir).unwrap();
    second.store_in(&dir).unwrap();
    assert_eq!((second.add(&grey).unwrap(), second.add(&file("palette.png")).unwrap(), names().len()), (1, 3, 4));
    assert_eq!(second.patches(1).unwrap(), first.patches(1).unwrap());
    // Images of another process.
    let third = images();
    third.add(&grey).unwrap();
    let sent = first.since(0).into_iter().map(|image| third.insert((*image).clone()).unwrap());
    assert_eq!((sent.collect::<Vec<_>>(), third.since(1).len(), third.since(9).len()), (vec![1, 0, 2], 2, 0));
    assert_eq!(third.patches(1).unwrap(), first.patches(0).unwrap());
    // Files above the limit are not held in memory, but read when they are needed.
    let mut limited = images();
    limited.held_limit = alpha.len();
    limited.read_from(&dir).unwrap();
    limited.store_in(&dir).unwrap();
    let is_held = |number| matches!(limited.image(number).unwrap().file, ImageBytes::Held(_));
    assert_eq!([0, 1, 2, 3].map(is_held), [true, false, false, false]);
    assert_eq!(limited.patches(1).unwrap(), first.patches(1).unwrap());
    assert_eq!((limited.add(&file("cmyk.jpg")).unwrap(), is_held(4), names().len()), (4, false, 5));
    assert_eq!(
        limited.encoded(&first.image(1).unwrap().hash).unwrap(),
        first.encoded(&first.image(1).unwrap().hash).unwrap()
    );
    std::fs::remove_file(dir.join(&expected[1])).unwrap();
    assert_eq!(limited.patches(1).unwrap_err().kind, Kind::Store);
    assert_eq!(images().read_from(&dir).unwrap_err().kind, Kind::Store);
    images().read_from(&dir.join("missing")).unwrap();
}

#[test]
fn images_of_rows_are_read_in_all_forms() {
    let images = images();
    let png = file("alpha.png");
    let hash = images.image(images.add(&png).unwrap()).unwrap().hash.clone();
    let base64 = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, &png);
    let (url, bytes) = (format!("data:image/png;base64,{base64}"), r1_base::json::of_bytes(&png));
    let stored = json!({ "type": "image", "hash": hash });
    for part in [
        json!({ "type": "image", "bytes": bytes }),
        json!({ "type": "image", "base64": base64 }),
        json!({ "type": "image", "url": url }),
        json!({ "type": "image", "image": { "bytes": bytes, "path": "a.png" } }),
        json!({ "type": "image", "image": url }),
        json!({ "type": "image_url", "image_url": { "url": url, "detail": "low" } }),
        json!({ "type": "image_url", "image_url": url }),
        stored.clone(),
    ] {
        let mut row = json!({ "messages": [{ "role": "user", "content": [part, { "type": "text", "text": "?" }] }] });
        store_images(&mut row, &images).unwrap();
        assert_eq!(row["messages"][0]["content"], json!([stored, { "type": "text", "text": "?" }]));
    }
    let marked = |column: Value, text: &str| {
        let mut row = json!({ "images": column, "messages": [{ "role": "user", "content": text }] });
        store_images(&mut row, &images).map(|()| row)
    };
    let row = marked(json!([{ "bytes": bytes }, url]), "<image>One<image>two").unwrap();
    let text = |text: &str| json!({ "type": "text", "text": text });
    assert_eq!(row["messages"][0]["content"], json!([stored, text("One"), stored, text("two")]));
    assert!(row["images"].is_null());
    let mut bare = json!({ "image": url, "messages": [{ "content": [{ "type": "image", "text": null }, text("?")] }] });
    store_images(&mut bare, &images).unwrap();
    assert_eq!(bare["messages"][0]["content"], json!([stored, text("?")]));
    // Only files are stored; a path stays.
    let mut columns =
        json!({ "images": [{ "bytes": bytes, "path": "a.png" }, url, "a.png"], "image": "registry/name" });
    store_columns(&mut columns, &images).unwrap();
    assert_eq!(columns, json!({ "images": [stored, stored, "a.png"], "image": "registry/name" }));
    // A smaller image has about the number of pixels.
    let number = images.add(&png).unwrap();
    assert_eq!(images.reduced(number, usize::MAX).unwrap(), number);
    let smaller = images.reduced(number, 500).unwrap();
    let smaller = decode(&images.image(smaller).unwrap().bytes().unwrap(), &DecodeLimits::default()).unwrap();
    assert_eq!((smaller.width, smaller.height), (28, 17));
    let refused = |column: Value, text: &str| marked(column, text).unwrap_err().message;
    assert_eq!(refused(json!([url]), "none"), "the row has 1 images, and its messages fewer `<image>`");
    assert_eq!(refused(json!([url]), "<image><image>"), "a message has `<image>`, and the row no image for it");
    assert_eq!(
        refused(json!(["https://example.com/a.png"]), "<image>"),
        "an image is a path or a URL, which are not fetched; give its bytes"
    );
    assert!(refused(json!([{ "base64": "*" }]), "<image>").starts_with("an image is no base64"));
    assert!(refused(json!([{ "bytes": "text" }]), "<image>").starts_with("this is text"));
    assert!(refused(json!([{ "rgb": "abcd", "width": 1 }]), "<image>").starts_with("4 bytes are not rows of 1 pixels"));
    assert!(refused(json!([3]), "<image>").contains("has no `bytes`"));
    // A text with the mark is left as it is in a row without images.
    let mut row = json!({ "messages": [{ "role": "user", "content": "<image>" }] });
    store_images(&mut row, &images).unwrap();
    assert_eq!(row["messages"][0]["content"], "<image>");
}
