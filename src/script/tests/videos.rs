//! Videos in messages, rows and context policies.

use insta::assert_snapshot;
use serde_json::json;

use super::images::{self, base64, image, messages, parts, renderer, reset, worker};
use super::*;
use crate::mdp::Part;
use crate::script::{Record, Split, Strictness};
use crate::text::Renderer;

const SHOWS: &str = "
    local env = r1.env {
      reset = function(task) return { messages = { { role = 'user', content = task.content } } } end,
      step = function(state)
        r1.push(state.messages, r1.user { { type = 'video', path = 'clip.gif', fps = 4 } })
        return { reward = 0 }
      end,
    }
    return r1.recipe { env = env, needs = { 'fs:.' }, trainer = r1.grpo {} }";

fn clip() -> Vec<u8> {
    std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/vision/videos/clip.gif")).unwrap()
}

/// The hash of a video of images of these colours.
fn video(renderer: &Renderer, colours: &[u8], fps: f64) -> String {
    let images = renderer.images().unwrap();
    let number = |colour: &u8| images.number(&image(renderer, (32, 32), *colour).0).unwrap();
    let video = images.add_video(&colours.iter().map(number).collect::<Vec<_>>(), fps).unwrap();
    images.image(video).unwrap().hash.clone()
}

#[test]
fn messages_have_videos_in_every_form() {
    let (bench, renderer) = (Bench::new(SHOWS), renderer());
    let [(one, first), (two, second)] = [1, 2].map(|colour| image(&renderer, (32, 32), colour));
    std::fs::write(bench.dir.path().join("one.png"), &first).unwrap();
    std::fs::write(bench.dir.path().join("clip.gif"), clip()).unwrap();
    let worker = worker(&bench, &renderer);
    let (pair, slow) = (video(&renderer, &[1, 2], 2.0), video(&renderer, &[1, 2], 0.5));
    let images = renderer.images().unwrap();
    let file = images.image(images.add_video_file(&clip(), Some(2.0)).unwrap()).unwrap().hash.clone();
    let frames = json!([{ "type": "image", "path": "one.png" }, { "type": "image", "hash": two }]);
    let urls = [&first, &second].map(|file| format!("data:image/png;base64,{}", base64(file)));
    let gif = format!("data:image/gif;base64,{}", base64(&clip()));
    for (form, wanted) in [
        (json!({ "type": "video", "frames": frames }), &pair),
        (json!({ "type": "video", "frames": frames, "fps": 0.5 }), &slow),
        (json!({ "type": "video", "video": urls }), &pair),
        (json!({ "type": "video", "video": { "frames": [{ "path": "one.png" }, { "url": urls[1] }] } }), &pair),
        (json!({ "type": "video", "path": "clip.gif" }), &file),
        (json!({ "type": "video", "video": { "path": "clip.gif" } }), &file),
        (json!({ "type": "video", "bytes": { "$r1": "bytes", "value": base64(&clip()) } }), &file),
        (json!({ "type": "video_url", "video_url": { "url": gif } }), &file),
        (json!({ "type": "video", "hash": pair }), &pair),
    ] {
        let content = json!([form, { "type": "text", "text": "?" }]);
        let state = reset(&worker, &json!({ "content": content })).unwrap_or_else(|why| panic!("{form}: {why}"));
        let shown = messages(&worker, &state);
        assert_eq!(parts(&shown[0]), [wanted.as_str(), "?"], "{form}");
        assert_eq!(shown[0].content.media(), [Part::Video { hash: wanted.clone() }]);
    }
    // An image is still an image.
    let state = reset(&worker, &json!({ "content": [{ "type": "image", "path": "clip.gif" }] })).unwrap();
    assert!(matches!(messages(&worker, &state)[0].content.media()[..], [Part::Image { .. }]));
    let why = |content: Json| bench.show(reset(&worker, &json!({ "content": [content] })).err().unwrap().error);
    assert_snapshot!(why(json!({ "type": "video", "frames": [{ "hash": one }, { "path": "none.png" }] })), @r"
    state.messages[1].content[1]: frame 2: none.png: No such file or directory (os error 2)
      --> x.lua:3
    ");
    let small = image(&renderer, (16, 16), 1).0;
    for (content, expected) in [
        (json!({ "type": "video", "frames": [] }), "the video has 0 frames"),
        (json!({ "type": "video", "frames": [{ "hash": one }, { "hash": small }] }), "frame 2 has 16 x 16 pixels"),
        (json!({ "type": "video", "frames": [{ "hash": one }], "fps": 0 }), "`fps` of the video is 0"),
        (json!({ "type": "video", "fps": 2 }), "or `frames` (a list of images)"),
        (json!({ "type": "video", "url": "https://x.org/a.mp4" }), "which are not fetched"),
        (json!({ "type": "video", "bytes": "an mp4" }), "this is text, not an image"),
    ] {
        let shown = why(content);
        assert!(shown.contains(expected) && shown.contains("--> x.lua:3"), "{shown}");
    }
}

#[test]
fn a_replay_does_not_need_the_file_of_a_video() {
    let (bench, renderer) = (Bench::new(SHOWS), renderer());
    let path = bench.dir.path().join("clip.gif");
    let worker = worker(&bench, &renderer);
    let play = |record: &Record, present: bool| {
        if present {
            std::fs::write(&path, clip()).unwrap();
        } else {
            std::fs::remove_file(&path).unwrap();
        }
        run(async {
            let task = json!({ "content": [{ "type": "video", "path": "clip.gif" }] });
            let state = worker.reset_as(Split::Train, &task, 0, record).await.unwrap();
            worker.step(&state, &action("look")).await.unwrap();
            state
        })
    };
    let record = Record::live();
    let state = play(&record, true);
    let shown: Vec<String> = messages(&worker, &state).iter().flat_map(parts).collect();
    // Two frames for each second, and four.
    assert!(shown.len() == 2 && shown[0] != shown[1], "{shown:?}");
    let again = Record::replay(record.exchanges(), Strictness::Exact);
    let replayed = play(&again, false);
    assert_eq!(again.close(), None);
    assert_eq!(messages(&worker, &replayed), messages(&worker, &state));
}

#[test]
fn rows_and_context_policies_have_videos() {
    let renderer = renderer();
    let source = |reset: &str, context: &str| {
        format!(
            "local env = r1.env {{ {reset} step = function() return {{ done = true }} end }}
             return r1.recipe {{ env = env, {context} trainer = r1.grpo {{}}, data = {{ train = r1.data.generate {{
               count = 1, seed = 1, row = function()
                 local one = {{ rgb = string.rep('\\1', 3072), width = 32 }}
                 local two = {{ rgb = string.rep('\\2', 3072), width = 32 }}
                 return {{ images = {{ one }}, videos = {{ {{ one, two }}, {{ frames = {{ two, one }}, fps = 1 }} }},
                           problem = '<video>A<image>B<video>' }}
               end }} }} }}"
        )
    };
    let (one, first) = (image(&renderer, (32, 32), 1).0, video(&renderer, &[1, 2], 2.0));
    let second = video(&renderer, &[2, 1], 1.0);
    let shown = |reset: &str, context: &str| {
        let bench = Bench::new(&source(reset, context));
        let worker = worker(&bench, &renderer);
        let row = worker.row(Split::Train, 0).unwrap();
        assert_eq!(row["videos"][0], json!({ "type": "video", "hash": first }));
        let state = images::reset(&worker, &row).map_err(|failure| bench.show(failure.error))?;
        Ok::<_, String>(messages(&worker, &state).iter().map(parts).collect::<Vec<_>>())
    };
    assert_eq!(shown("", "").unwrap(), [[first.as_str(), "A", &one, "B", &second]]);
    let with_reset = |messages: &str| format!("reset = function(task) return {{ messages = {messages} }} end,");
    let bare = with_reset("{ r1.user { { type = 'video' }, { type = 'image' }, { type = 'video' } } }");
    assert_eq!(shown(&bare, "").unwrap(), [[first.as_str(), &one, &second]]);
    let chosen = with_reset("{ r1.user { task.videos[2] } }");
    assert_eq!(shown(&chosen, "").unwrap(), [[second.as_str()]]);
    let few = shown(&with_reset("{ r1.user '<video><image>' }"), "").unwrap_err();
    assert!(few.starts_with("the row has 2 videos, and the messages have 1 <video>"), "{few}");
    let many = shown(&with_reset("{ r1.user '<video><image><video><video>' }"), "").unwrap_err();
    assert!(many.starts_with("the messages have more <video> than the row has videos: 2"), "{many}");

    let context = |body: &str| format!("context = function(state) return r1.context(state.messages){body} end,");
    let gone = "[image removed]";
    let dropped = shown("", &context(":drop_images { keep = 1 }")).unwrap();
    assert_eq!(dropped, [[gone, "A", gone, "B", &second]]);
    // A video of two frames of 32 x 32 pixels has 4 tokens, and the text of a time before them.
    let tokens = |reset: &str, parts: &str| {
        let context = format!(
            "context = function(state) return {{ r1.user(tostring(r1.context({{ r1.user {{ {parts} }} }}):tokens())) }} end,"
        );
        shown(reset, &context).unwrap()[0][0].parse::<usize>().unwrap()
    };
    let frame = "{ type = 'image', rgb = string.rep('\\1', 3072), width = 32 }";
    let clip = |count: usize| format!("{{ type = 'video', frames = {{ {} }} }}", vec![frame; count].join(","));
    let [two, four] = [2, 4].map(|count| tokens("", &clip(count)));
    assert!(four > two + 4 && four < two + 80, "{two} {four}");
    let reduced = shown(
        "",
        &context(
            ":map(function(message)
           message.content = { r1.image(message.content[1], { max_pixels = 256 }) }
           return message
         end)",
        ),
    );
    let images = renderer.images().unwrap();
    let small = images.number(&reduced.unwrap()[0][0]).unwrap();
    assert_eq!(images.tokens(small).unwrap(), 1);
}
