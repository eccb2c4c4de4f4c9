//! Videos compared with transformers and Pillow (tests/golden/vision/videos/videos.py), and bad
//! input.
#![allow(clippy::unwrap_used, clippy::float_cmp)]

use std::collections::BTreeMap;

use r1_base::error::Kind;
use serde_json::{Value, json};

use crate::tests::{SplitMix, golden, processor};
use crate::{DecodeLimits, Images, RgbImage, VideoProcessor, VideoStyle, decode_frames, store_columns, store_images};

const POSITIONS: VideoStyle = VideoStyle::Positions { per_second: 4.0 };

fn file(name: &str) -> Vec<u8> {
    std::fs::read(golden().join("videos").join(name)).unwrap()
}

fn settings(min: usize, max: usize, patch: usize) -> Value {
    json!({
        "video_processor_type": "Qwen3VLVideoProcessor", "size": { "shortest_edge": min, "longest_edge": max },
        "patch_size": patch, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "fps": 2,
    })
}

fn images(min: usize, max: usize, patch: usize, style: VideoStyle) -> Images {
    let videos = VideoProcessor::from_json(&settings(min, max, patch), style).unwrap();
    Images::new(processor(min, max, patch), DecodeLimits::default()).with_videos(Some(videos))
}

/// Adds frames of this size.
fn frames(images: &Images, count: usize, height: usize, width: usize) -> Vec<u32> {
    let mut random = SplitMix(count as u64);
    let frames = (0..count).map(|_| random.pixels(0, height, width));
    frames.map(|frame| images.add_rgb(&frame.data, frame.width).unwrap()).collect()
}

#[test]
fn sizes_and_times_of_videos_are_those_of_transformers() {
    let all: Value = serde_json::from_slice(&file("videos.json")).unwrap();
    let cases = all["sizes"].as_array().unwrap();
    assert_eq!(cases.len(), 200);
    for case in cases {
        let [count, height, width, patch, min, max, frame_height, frame_width, all_height, all_width] =
            std::array::from_fn(|index| case[index].as_u64().unwrap() as usize);
        let (fps, text) = (case[10].as_f64().unwrap(), case[11].as_str().unwrap());
        for (style, height_there, width_there) in
            [(POSITIONS, frame_height, frame_width), (VideoStyle::Timestamps, all_height, all_width)]
        {
            let images = images(min, max, patch, style);
            let pixels = vec![0; 3 * width * height];
            let frame = images.add_rgb(&pixels, width).unwrap();
            let video = images.add_video(&vec![frame; count], fps).unwrap();
            let grid = images.image(video).unwrap().grid;
            assert_eq!([grid.rows * patch, grid.columns * patch], [height_there, width_there], "{case}");
            assert_eq!(grid.frames, count.div_ceil(2));
            let pieces = images.text(video).unwrap();
            assert_eq!(pieces.iter().map(|(_, tokens)| tokens).sum::<usize>(), images.tokens(video).unwrap());
            let all: String = pieces.iter().map(|(text, _)| text.as_str()).collect();
            let times = all.replace("<|vision_start|>", "").replace("<|vision_end|>", "");
            assert_eq!(times, if style == POSITIONS { "" } else { text });
        }
    }
}

#[test]
fn a_video_has_pairs_of_frames() {
    let images = images(28 * 28, 100_352, 14, POSITIONS);
    let numbers = frames(&images, 3, 60, 90);
    let video = images.add_video(&numbers, 2.0).unwrap();
    assert_eq!((video, images.add_video(&numbers, 2.0).unwrap(), images.add_video(&numbers, 1.0).unwrap()), (3, 3, 4));
    assert_eq!((images.tokens(video).unwrap(), images.image(video).unwrap().grid.frames), (2 * 2 * 3, 2));
    let grid = images.token_grid(video).unwrap();
    assert_eq!((grid.frames, grid.rows, grid.columns, grid.interval), (2, 2, 3, 4.0));
    assert_eq!(images.text(video).unwrap(), [("<|vision_start|>".to_owned(), 12), ("<|vision_end|>".to_owned(), 0)]);
    // The mean and deviation are the ones of the videos, not of the images.
    let one = images.patches(images.add_video(&numbers[..1], 2.0).unwrap()).unwrap();
    let patches = images.patches(video).unwrap();
    let last = images.patches(images.add_video(&numbers[2..], 2.0).unwrap()).unwrap();
    // The second pair is the last frame twice, which is what one frame is.
    assert!(patches.values[last.values.len()..] == last.values[..]);
    // The first frame of the first pair, the second one of the second frame.
    let second = images.patches(images.add_video(&numbers[1..2], 2.0).unwrap()).unwrap();
    assert_eq!(patches.values[..196], one.values[..196]);
    assert_eq!(patches.values[196..392], second.values[..196]);
    assert_ne!(one.values[..196], second.values[..196]);
    // The frames of a pair follow a time, and each pair is one grid of tokens.
    let images = self::images(28 * 28, 100_352, 14, VideoStyle::Timestamps);
    let video = images.add_video(&frames(&images, 3, 60, 90), 2.0).unwrap();
    let text = |text: &str, tokens| (text.to_owned(), tokens);
    let expected = [
        text("<0.2 seconds><|vision_start|>", 6),
        text("<|vision_end|><1.0 seconds><|vision_start|>", 6),
        text("<|vision_end|>", 0),
    ];
    assert_eq!(images.text(video).unwrap(), expected);
    assert_eq!(images.token_grid(video).unwrap().tokens(), 6);
}

#[test]
fn clips_have_the_frames_that_are_shown() {
    let all: Value = serde_json::from_slice(&file("videos.json")).unwrap();
    let clips: BTreeMap<String, Vec<[f64; 3]>> = serde_json::from_value(all["clips"].clone()).unwrap();
    assert_eq!(clips.len(), 9);
    for (name, expected) in clips {
        let (name, fps) = name.split_once(' ').unwrap();
        let decoded = decode_frames(&file(name), &DecodeLimits::default(), fps.parse().unwrap(), 100).unwrap();
        let mean = |frame: &RgbImage| -> [f64; 3] {
            let of = |channel: usize| frame.data.iter().skip(channel).step_by(3).map(|value| f64::from(*value));
            std::array::from_fn(|channel| of(channel).sum::<f64>() / 140.0)
        };
        assert_eq!(decoded.len(), expected.len(), "{name} {fps}");
        for (frame, expected) in decoded.iter().zip(expected) {
            // The decoder of WebP rounds when it draws a frame over another one.
            let bound = if name == "clip.webp" { 1.001 } else { 0.001 };
            let near = mean(frame).iter().zip(expected).all(|(one, other)| (one - other).abs() < bound);
            assert!(near, "{name} {fps}: {:?} {expected:?}", mean(frame));
        }
    }
    // An image is a video of one frame.
    let still = std::fs::read(golden().join("lossless.webp")).unwrap();
    assert_eq!(decode_frames(&still, &DecodeLimits::default(), 2.0, 9).unwrap().len(), 1);
    let still = std::fs::read(golden().join("grey.jpg")).unwrap();
    assert_eq!(decode_frames(&still, &DecodeLimits::default(), 2.0, 9).unwrap().len(), 1);
    assert_eq!(
        decode_frames(&std::fs::read(golden().join("alpha.png")).unwrap(), &DecodeLimits::default(), 2.0, 9)
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn bad_videos_are_refused() {
    let images = images(28 * 28, 100_352, 14, POSITIONS);
    let refused = |frames: &[u32], fps: f64| {
        let error = images.add_video(frames, fps).unwrap_err();
        assert_eq!(error.kind, Kind::Data);
        error.message
    };
    let mut numbers = frames(&images, 2, 30, 30);
    assert_eq!(refused(&[], 2.0), "the video has 0 frames; it can have 1 to 768");
    assert_eq!(refused(&[0; 769], 2.0), "the video has 769 frames; it can have 1 to 768");
    for fps in [0.0, 1e-9, -1.0, f64::NAN, f64::INFINITY] {
        assert!(refused(&numbers, fps).starts_with("`fps` of the video is"), "{fps}");
    }
    numbers.extend(frames(&images, 1, 30, 31));
    assert_eq!(refused(&numbers, 2.0), "frame 3 has 31 x 30 pixels, and the first 30 x 30");
    let clip = |file: &[u8], limits: &DecodeLimits, fps: f64| decode_frames(file, limits, fps, 20).unwrap_err().message;
    let gif = file("clip.gif");
    let limits = DecodeLimits::default();
    assert_eq!(clip(&gif, &limits, 100.0), "the video has more than 20 frames at 100 frames a second");
    // 4 frames have more pixels.
    let few = DecodeLimits { pixels: 500, ..limits };
    assert_eq!(clip(&gif, &few, 2.0), "the frames of the video have more than 500 pixels together");
    assert_eq!(
        clip(&gif, &DecodeLimits { pixels: 20, ..limits }, 2.0),
        "the image has 14 x 10 pixels, more than 20 or more than 32768 on a side"
    );
    for name in ["clip.gif", "clip.png", "clip.webp"] {
        let whole = file(name);
        for end in [0, 1, 20, whole.len() / 2, whole.len() - 30] {
            let cut = decode_frames(&whole[..end], &limits, 2.0, 20);
            assert!(cut.is_err(), "{name} {end}");
        }
    }
    assert!(images.add_video_file(b"text", Some(2.0)).unwrap_err().message.starts_with("this is text"));
    for start in [&b"\0\0\0\x20ftypisom"[..], b"\x1a\x45\xdf\xa3", b"RIFF\0\0\0\0AVI LIST"] {
        let error = images.add_video_file(start, None).unwrap_err();
        assert!(error.message.starts_with("this is a video file"), "{error}");
    }
    // A model without videos.
    let without = Images::new(processor(28 * 28, 100_352, 14), limits);
    let error = without.add_video(&[without.add(&gif).unwrap()], 2.0).unwrap_err();
    assert_eq!(error.message, "the model reads no videos");
    let wrong = json!({ "patch_size": 14, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.0, 0.5] });
    let error = VideoProcessor::from_json(&wrong, POSITIONS).unwrap_err();
    assert!(error.to_string().contains("video_preprocessor_config.json"), "{error}");
}

#[test]
fn stored_videos_are_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let new = || images(28 * 28, 100_352, 14, POSITIONS);
    let (first, gif) = (new(), file("clip.gif"));
    first.store_in(dir.path()).unwrap();
    let clip = first.add_video_file(&gif, Some(2.0)).unwrap();
    let numbers = frames(&first, 2, 30, 30);
    let video = first.add_video(&numbers, 3.0).unwrap();
    let hash = |images: &Images, number: u32| images.image(number).unwrap().hash.clone();
    let sha256 = crate::images::hash_of(&gif);
    let second = new();
    second.read_from(dir.path()).unwrap();
    for number in [clip, video] {
        assert_eq!(hash(&second, number), hash(&first, number));
        assert_eq!(second.patches(number).unwrap(), first.patches(number).unwrap());
        assert_eq!(second.text(number).unwrap(), first.text(number).unwrap());
    }
    assert_eq!((second.video_of(&sha256, 2.0), second.video_of(&sha256, 3.0)), (Some(clip), None));
    assert_eq!(second.add_video_file(&gif, Some(2.0)).unwrap(), clip);
    // A server gets the frames.
    assert_eq!(second.encoded(&hash(&second, video)).unwrap().len(), 2);
    let reduced = second.reduced(video, 500).unwrap();
    assert_eq!(second.image(reduced).unwrap().video.as_ref().unwrap().frames.len(), 2);
    assert_eq!(second.reduced(video, 1000).unwrap(), video);
    // Of another process, which has sent the frames.
    let third = new();
    for image in first.since(0) {
        third.insert((*image).clone()).unwrap();
    }
    assert_eq!(third.patches(video).unwrap(), first.patches(video).unwrap());
    // A frame is missing.
    let name = |number: u32, end: &str| dir.path().join(format!("{number:06}-{}.{end}", hash(&first, number)));
    std::fs::write(name(video, "json"), "{}").unwrap();
    assert_eq!(new().read_from(dir.path()).unwrap_err().kind, Kind::Store);
}

#[test]
fn videos_of_rows_are_read_in_all_forms() {
    let images = images(28 * 28, 100_352, 14, POSITIONS);
    let base64 = |name: &str| {
        let kind = name.split_once('.').unwrap().1;
        let text = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, file(name));
        format!("data:image/{kind};base64,{text}")
    };
    let gif = base64("clip.gif");
    let numbers = frames(&images, 2, 30, 30);
    let part = |number: u32| json!({ "type": "video", "hash": images.image(number).unwrap().hash });
    let (clip, pair) =
        (images.add_video_file(&file("clip.gif"), Some(2.0)).unwrap(), images.add_video(&numbers, 2.0).unwrap());
    let frames: Vec<Value> =
        numbers.iter().map(|number| json!({ "type": "image", "hash": images.image(*number).unwrap().hash })).collect();
    let urls: Vec<Value> = numbers
        .iter()
        .map(|number| {
            let (_, text) = images.encoded(&images.image(*number).unwrap().hash).unwrap().remove(0);
            format!("data:image/png;base64,{text}").into()
        })
        .collect();
    for (form, number) in [
        (json!({ "type": "video", "frames": frames }), pair),
        (json!({ "type": "video", "frames": frames, "fps": 2 }), pair),
        (json!({ "type": "video", "video": urls }), pair),
        (json!({ "type": "video", "url": gif }), clip),
        (json!({ "type": "video", "video": gif }), clip),
        (json!({ "type": "video_url", "video_url": { "url": gif } }), clip),
        (part(clip), clip),
    ] {
        let mut row = json!({ "messages": [{ "role": "user", "content": [form] }] });
        store_images(&mut row, &images).unwrap();
        assert_eq!(row["messages"][0]["content"], json!([part(number)]));
    }
    let text = |text: &str| json!({ "type": "text", "text": text });
    let mut row = json!({
        "videos": [gif, urls], "images": [urls[0]],
        "messages": [{ "content": "<video>a<image><video>" }, { "content": [{ "type": "text", "text": "b" }] }],
    });
    store_images(&mut row, &images).unwrap();
    assert_eq!(row["messages"][0]["content"], json!([part(clip), text("a"), frames[0], part(pair)]));
    assert!(row["videos"].is_null() && row["images"].is_null());
    let mut row = json!({ "video": urls, "messages": [{ "content": [{ "type": "video" }, text("?")] }] });
    store_images(&mut row, &images).unwrap();
    assert_eq!(row["messages"][0]["content"], json!([part(pair), text("?")]));
    let mut columns = json!({ "videos": [urls, gif, "a.mp4", { "video": "a.mp4" }], "video": { "frames": urls } });
    store_columns(&mut columns, &images).unwrap();
    assert_eq!(
        columns,
        json!({ "videos": [part(pair), part(clip), "a.mp4", { "video": "a.mp4" }], "video": part(pair) })
    );
    let refused = |row: Value| store_images(&mut row.clone(), &images).unwrap_err().message;
    let message = |text: &str| json!([{ "content": text }]);
    assert_eq!(
        refused(json!({ "videos": [gif], "messages": message("none") })),
        "the row has 1 videos, and its messages fewer `<video>`"
    );
    assert_eq!(
        refused(json!({ "videos": [gif], "messages": message("<video><video>") })),
        "a message has `<video>`, and the row no video for it"
    );
    assert!(refused(json!({ "videos": ["a.mp4"], "messages": message("<video>") })).contains("path or a URL"));
    assert!(refused(json!({ "videos": [{ "fps": 2 }], "messages": message("<video>") })).contains("has no `frames`"));
}
