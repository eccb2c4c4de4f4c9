//! Images in messages, tool results, rows and context policies.

use std::path::Path;
use std::sync::Arc;

use insta::assert_snapshot;
use serde_json::json;

use super::mcp::FIXTURE;
use super::*;
use crate::mdp::{Content, Message, Observation, Part};
use crate::script::{Failure, Record, Split, State, Strictness};
use crate::text::Renderer;
use crate::vision::{DecodeLimits, Images, Processor, VideoProcessor, VideoStyle};

/// A renderer of a policy that reads images. A token is 16 x 16 pixels.
pub(super) fn renderer() -> Arc<Renderer> {
    let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/r1-nano");
    let renderer = Renderer::load(&nano, "hermes").unwrap();
    let json = json!({
        "patch_size": 8, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        "size": { "shortest_edge": 256, "longest_edge": 65536 },
    });
    let videos = VideoProcessor::from_json(&json, VideoStyle::Timestamps).unwrap();
    let images = Images::new(Processor::from_json(&json).unwrap(), DecodeLimits::default()).with_videos(Some(videos));
    renderer.tokenizer().set_images_of_another_model(Arc::new(images));
    Arc::new(renderer)
}

pub(super) fn worker(bench: &Bench, renderer: &Arc<Renderer>) -> Worker {
    Worker::new(&bench.load(&[]).unwrap(), Some(Arc::clone(renderer))).unwrap()
}

/// The hash and the PNG file of an image of one colour.
pub(super) fn image(renderer: &Renderer, (width, height): (usize, usize), colour: u8) -> (String, Vec<u8>) {
    let images = renderer.images().unwrap();
    let number = images.add_rgb(&vec![colour; width * height * 3], width).unwrap();
    let image = images.image(number).unwrap();
    (image.hash.clone(), image.bytes().unwrap().into_owned())
}

pub(super) fn base64(file: &[u8]) -> String {
    base64::Engine::encode(&base64::prelude::BASE64_STANDARD, file)
}

pub(super) fn messages(worker: &Worker, state: &State) -> Vec<Message> {
    match run(worker.observe(state, 100_000)).unwrap() {
        Observation::Messages(messages) => messages,
        other => panic!("{other:?}"),
    }
}

/// Each part of a message's content: its text, or the hash of its image.
pub(super) fn parts(message: &Message) -> Vec<String> {
    let Content::Parts(parts) = &message.content else { return vec![message.content.text()] };
    let shown = |part: &Part| match part {
        Part::Text { text } => text.clone(),
        Part::Image { hash } | Part::Video { hash } => hash.clone(),
    };
    parts.iter().map(shown).collect()
}

pub(super) fn reset(worker: &Worker, task: &Json) -> Result<State, Failure> {
    run(worker.reset(task, 0))
}

const SHOWS: &str = "
    local env = r1.env {
      reset = function(task) return { messages = { { role = 'user', content = task.content } } } end,
      step = function(state)
        r1.push(state.messages, r1.user { { type = 'image', path = 'shot.png' } })
        return { reward = 0 }
      end,
    }
    return r1.recipe { env = env, needs = { 'fs:.' }, trainer = r1.grpo {} }";

#[test]
fn messages_have_images_in_every_form() {
    let (bench, renderer) = (Bench::new(SHOWS), renderer());
    let (hash, png) = image(&renderer, (32, 32), 7);
    std::fs::write(bench.dir.path().join("shot.png"), &png).unwrap();
    let worker = worker(&bench, &renderer);
    let url = format!("data:image/png;base64,{}", base64(&png));
    let pixels = json!({ "$r1": "bytes", "value": base64(&[200; 3 * 256]) });
    let square = image(&renderer, (16, 16), 200).0;
    for (form, wanted) in [
        (json!({ "type": "image", "path": "shot.png" }), &hash),
        (json!({ "type": "image", "base64": base64(&png) }), &hash),
        (json!({ "type": "image", "data": base64(&png), "mimeType": "image/png" }), &hash),
        (json!({ "type": "image", "url": url }), &hash),
        (json!({ "type": "image", "bytes": { "$r1": "bytes", "value": base64(&png) } }), &hash),
        (json!({ "type": "image", "rgb": pixels, "width": 16 }), &square),
        (json!({ "type": "image", "image": url }), &hash),
        (json!({ "type": "image", "image": { "path": "shot.png" } }), &hash),
        (json!({ "type": "image_url", "image_url": { "url": url } }), &hash),
        (json!({ "type": "image", "hash": hash }), &hash),
    ] {
        let content = json!([form, { "type": "text", "text": "?" }]);
        let state = reset(&worker, &json!({ "content": content })).unwrap_or_else(|why| panic!("{form}: {why}"));
        assert_eq!(parts(&messages(&worker, &state)[0]), [wanted.as_str(), "?"], "{form}");
        let snapshot = state.snapshot().unwrap();
        assert_eq!(snapshot["state"]["messages"][0]["content"][0], json!({ "type": "image", "hash": wanted }));
    }
}

#[test]
fn a_file_is_read_when_it_is_shown_and_a_replay_does_not_need_it() {
    let (bench, renderer) = (Bench::new(SHOWS), renderer());
    let ((first, one), (second, two)) = (image(&renderer, (32, 32), 1), image(&renderer, (32, 32), 2));
    let path = bench.dir.path().join("shot.png");
    let worker = worker(&bench, &renderer);
    let task = json!({ "content": [{ "type": "image", "path": "shot.png" }] });
    let play = |record: &Record, files: [Option<&[u8]>; 2]| {
        run(async {
            let write = |file: Option<&[u8]>| match file {
                Some(file) => std::fs::write(&path, file).unwrap(),
                None => drop(std::fs::remove_file(&path)),
            };
            write(files[0]);
            let state = worker.reset_as(Split::Train, &task, 0, record).await.unwrap();
            write(files[1]);
            worker.step(&state, &action("look")).await.unwrap();
            state
        })
    };
    let record = Record::live();
    let state = play(&record, [Some(&one), Some(&two)]);
    let shown: Vec<String> = messages(&worker, &state).iter().flat_map(parts).collect();
    assert_eq!(shown, [first.as_str(), second.as_str()]);
    let again = Record::replay(record.exchanges(), Strictness::Exact);
    let replayed = play(&again, [None, None]);
    assert_eq!(again.close(), None);
    assert_eq!(messages(&worker, &replayed), messages(&worker, &state));
}

#[test]
fn wrong_images_in_messages_are_errors_of_the_environment() {
    let (bench, renderer) = (Bench::new(SHOWS), renderer());
    bench.file("notes.png", "just text");
    let reading = worker(&bench, &renderer);
    let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/r1-nano");
    let text = worker(&bench, &Arc::new(Renderer::load(&nano, "hermes").unwrap()));
    let why = |worker: &Worker, content: Json| {
        let failure = reset(worker, &json!({ "content": content })).err().unwrap();
        assert_eq!(failure.status, crate::mdp::Status::EnvError);
        bench.show(failure.error)
    };
    let notes = json!([{ "type": "text", "text": "" }, { "type": "image", "path": "notes.png" }]);
    assert_snapshot!(why(&reading, notes), @r"
    state.messages[1].content[2]: this is text, not an image
      --> x.lua:3
      hint: PNG, JPEG, WebP and GIF are read
    ");
    for (part, expected) in [
        (json!({ "type": "image", "path": "missing.png" }), "state.messages[1].content[1]: missing.png: No such file"),
        (json!({ "type": "image", "path": "/etc/shot.png" }), r#"hint: add needs = { "fs:/etc/shot.png" }"#),
        (json!({ "type": "image_url", "image_url": { "url": "https://x.org/a.png" } }), "which are not fetched"),
        (json!({ "type": "image" }), "an image has `path` (a file)"),
    ] {
        let shown = why(&reading, json!([part]));
        assert!(shown.contains(expected) && shown.contains("--> x.lua:3"), "{shown}");
    }
    let shown = why(&text, json!([{ "type": "image", "path": "notes.png" }]));
    assert!(shown.contains("the policy reads text only"), "{shown}");
    let state = reset(&reading, &json!({ "content": "x" })).unwrap();
    let shown = bench.show(run(reading.step(&state, &action("look"))).unwrap_err().error);
    assert!(shown.contains("state.messages[2].content[1]: shot.png: No such file"), "{shown}");
}

#[test]
fn marks_in_texts_are_the_places_of_a_rows_images() {
    let source = |reset: &str| {
        format!(
            "local env = r1.env {{ {reset} step = function() return {{ done = true }} end }}
             return r1.recipe {{ env = env, trainer = r1.grpo {{}}, data = {{ train = r1.data.generate {{
               count = 1, seed = 1, row = function()
                 local one = {{ rgb = string.rep('\\1', 768), width = 16 }}
                 local two = {{ rgb = string.rep('\\2', 768), width = 16 }}
                 return {{ images = {{ one, two }}, problem = 'A<image>B<image>',
                           prompt = {{ r1.system '<image>', r1.user '<image>?' }} }}
               end }} }} }}"
        )
    };
    let renderer = renderer();
    let [one, two] = [1, 2].map(|colour| image(&renderer, (16, 16), colour).0);
    let with_reset = |messages: &str| format!("reset = function(task) return {{ messages = {messages} }} end,");
    let shown = |reset: &str| {
        let bench = Bench::new(&source(reset));
        let worker = worker(&bench, &renderer);
        let row = worker.row(Split::Train, 0).unwrap();
        assert_eq!(row["images"][1], json!({ "type": "image", "hash": two }));
        let state = self::reset(&worker, &row).map_err(|failure| bench.show(failure.error))?;
        Ok::<_, String>(messages(&worker, &state).iter().map(parts).collect::<Vec<_>>())
    };
    assert_eq!(shown("").unwrap(), [vec![one.clone()], vec![two.clone(), "?".to_owned()]]);
    let with_text = with_reset("{ r1.user('Answer. ' .. task.problem) }");
    assert_eq!(shown(&with_text).unwrap(), [["Answer. A", one.as_str(), "B", &two]]);
    // A part without an image is a place too, and a recipe may place the images itself.
    let bare = with_reset("{ r1.user { { type = 'image' }, { type = 'image' }, { type = 'text', text = '?' } } }");
    assert_eq!(shown(&bare).unwrap(), [[one.as_str(), &two, "?"]]);
    assert_eq!(shown(&with_reset("{ r1.user { r1.image(task.images[2]) } }")).unwrap(), [[two.clone()]]);
    assert_snapshot!(shown(&with_reset("{ r1.user '<image>' }")).unwrap_err(), @r"
    the row has 2 images, and the messages have 1 <image>
      --> x.lua:1
    ");
    let many = shown(&with_reset("{ r1.user '<image><image><image>' }")).unwrap_err();
    assert!(many.starts_with("the messages have more <image> than the row has images: 2"), "{many}");
    let flow = "flow = function(task, policy) policy:generate { r1.user(task.problem) } end,";
    let bench = Bench::new(&source(flow).replace("step = function() return { done = true } end", ""));
    let worker = worker(&bench, &renderer);
    let state = reset(&worker, &worker.row(Split::Train, 0).unwrap()).unwrap();
    assert_eq!(parts(&messages(&worker, &state)[0]), ["A", one.as_str(), "B", &two]);
    // A policy that reads text only.
    let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/r1-nano");
    let (bench, text) = (Bench::new(&source("")), Arc::new(Renderer::load(&nano, "hermes").unwrap()));
    let worker = self::worker(&bench, &text);
    let shown = bench.show(reset(&worker, &worker.row(Split::Train, 0).unwrap()).err().unwrap().error);
    assert!(shown.contains("the policy reads text only"), "{shown}");
}

/// A recipe whose `step` shows the results of its calls.
fn with_tools(tools: &str, needs: &str) -> Bench {
    Bench::new(&format!(
        "local env = r1.env {{
           tools = {{ {tools} }},
           reset = function() return {{ messages = {{ r1.user 'x' }} }} end,
           step = function(state, action)
             for _, result in r1.call_tools(action.tool_calls) do r1.push(state.messages, r1.observation(result)) end
             return {{ reward = 0 }}
           end,
         }}
         return r1.recipe {{ env = env, needs = {{ {needs} }}, trainer = r1.grpo {{}} }}"
    ))
}

/// The parts of the result of each call, in one action, live and in a replay.
fn results(bench: &Bench, renderer: &Arc<Renderer>, calls: &[(&str, Json)]) -> Vec<Vec<String>> {
    let worker = worker(bench, renderer);
    let mut action = action("");
    action.tool_calls = calls.iter().map(|(name, arguments)| call(name, arguments.clone())).collect();
    let play = |record: &Record| {
        run(async {
            let state = worker.reset_as(Split::Train, &json!({}), 0, record).await.unwrap();
            worker.step(&state, &action).await.unwrap();
            state
        })
    };
    let record = Record::live();
    let live = messages(&worker, &play(&record));
    let again = Record::replay(record.exchanges(), Strictness::Exact);
    assert_eq!(messages(&worker, &play(&again)), live);
    assert_eq!(again.close(), None);
    live[1..].iter().map(parts).collect()
}

#[test]
fn tools_in_lua_return_images() {
    let renderer = renderer();
    let (hash, png) = image(&renderer, (32, 32), 7);
    let bench = with_tools(
        "r1.tool { name = 'look', parameters = { path = 'string' }, cache = true, run = function(arguments)
           return { 'the board', { type = 'image', path = arguments.path }, { type = 'text', text = 'done' } }
         end },
         r1.tool { name = 'data', run = function() return { { type = 'image', url = 'https://x.org/a.png' } } end }",
        "'fs:.'",
    );
    std::fs::write(bench.dir.path().join("a.png"), &png).unwrap();
    bench.file("b.png", "no image");
    let look = |path: &str| ("look", json!({ "path": path }));
    let calls = [look("a.png"), look("b.png"), look("missing.png"), ("data", json!({}))];
    let shown = results(&bench, &renderer, &calls);
    assert_eq!(shown[0], ["the board\ndone", &hash]);
    assert_eq!(shown[1], ["the board\n[image of the tool look is not shown: this is text, not an image]\ndone"]);
    assert!(shown[2][0].contains("missing.png: No such file"), "{shown:?}");
    assert_eq!(shown[3], [r#"[{"type":"image","url":"https://x.org/a.png"}]"#]);
    let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/r1-nano");
    let text = Arc::new(Renderer::load(&nano, "hermes").unwrap());
    let wanted = "the board\n[image of the tool look: the policy reads text only]\ndone";
    assert_eq!(results(&bench, &text, &[look("a.png")])[0], [wanted]);
}

#[test]
fn images_of_mcp_tools_are_shown() {
    let renderer = renderer();
    let (hash, png) = image(&renderer, (32, 32), 7);
    let bench = with_tools(&format!("r1.tools.mcp {{ command = {{ 'python3', '{FIXTURE}' }} }}"), "'process:python3'");
    let block = json!({ "type": "image", "data": base64(&png), "mimeType": "image/png" });
    let reply = json!({ "content": [{ "type": "text", "text": "shot" }, block] });
    let text = format!(r#"{{"jsonrpc":"2.0","id":ID,"result":{reply}}}"#);
    let shown = results(&bench, &renderer, &[("raw", json!({ "text": text }))]);
    assert_eq!(shown, [[format!("shot\n[image image/png, {} bytes]", png.len()), hash]]);
    let shown = results(&bench, &renderer, &[("picture", json!({}))]);
    assert!(shown[0][0].ends_with("a note\n[image 1 is not shown: this is text, not an image]"), "{shown:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn images_that_a_program_wrote_are_shown() {
    let renderer = renderer();
    let (hash, png) = image(&renderer, (32, 32), 7);
    let bench = with_tools("r1.tools.python { keep_files = true, timeout = 60 }", "");
    let code = format!(
        "import base64\nopen('plot.png', 'wb').write(base64.b64decode('{}'))\nopen('bad.png', 'w').write('x')\nopen('a.txt', 'w').write('x')",
        base64(&png)
    );
    let shown = results(&bench, &renderer, &[("python", json!({ "code": code }))]);
    assert_eq!(shown[0][1..], [hash]);
    assert!(shown[0][0].contains("[bad.png is not shown: this is text, not an image]"), "{shown:?}");
}

#[test]
fn context_policies_count_drop_and_reduce_images() {
    let renderer = renderer();
    let source = |context: &str| {
        format!(
            "local env = r1.env {{
               reset = function()
                 local content, tool = {{}}, {{ {{ type = 'text', text = 'seen' }} }}
                 for k = 1, 3 do content[k] = {{ type = 'image', rgb = string.rep(string.char(k), 128 * 128 * 3), width = 128 }} end
                 tool[2] = content[3]
                 return {{ notes = {{}}, messages = {{ r1.user(content), {{ role = 'tool', content = tool }}, r1.user '?' }} }}
               end,
               step = function() return {{ done = true }} end,
             }}
             return r1.recipe {{ env = env, context = function(state) {context} end, trainer = r1.grpo {{}} }}"
        )
    };
    let hashes = [1, 2, 3].map(|colour| image(&renderer, (128, 128), colour).0);
    let shown = |context: &str| {
        let bench = Bench::new(&source(context));
        let worker = worker(&bench, &renderer);
        let state = reset(&worker, &json!({})).unwrap();
        messages(&worker, &state).iter().map(parts).collect::<Vec<_>>()
    };
    let [_, two, three] = &hashes;
    let gone = "[image removed]";
    // An image of 128 x 128 pixels has 64 tokens, and tokens of the text around it, which are
    // letters for this tokenizer.
    let counted = shown("return { r1.user(tostring(r1.context(state.messages):tokens())) }");
    let without =
        shown("return { r1.user(tostring(r1.context(state.messages):drop_images({ keep = 0, text = '' }):tokens())) }");
    let [counted, without] = [counted, without].map(|shown| shown[0][0].parse::<usize>().unwrap());
    assert!(counted >= without + 4 * 64 && counted < without + 4 * 90, "{counted} {without}");
    let dropped = shown("return r1.context(state.messages):drop_images { keep = 2 }");
    assert_eq!(dropped[0], [gone, gone, three]);
    assert_eq!(dropped[1], ["seen", three]);
    let over = shown("return r1.context(state.messages):drop_images { keep = 0, over = 330 }");
    assert_eq!(
        (&over[0], &over[1]),
        (&vec![gone.to_owned(), two.clone(), three.clone()], &vec!["seen".to_owned(), three.clone()])
    );
    // Images count for windows, too.
    assert_eq!(shown("return r1.context(state.messages):keep_first(0):drop_oldest_until(150)").len(), 2);
    let results = shown("return r1.context(state.messages):drop_tool_results { keep = 0 }");
    assert_eq!(results[1], ["(result left out)"]);
    let results = shown("return r1.context(state.messages):shorten_tool_results { keep = 0, head = 0 }");
    assert_eq!(results[1].last(), Some(three));
    let reduced = shown(
        "return r1.context(state.messages):map(function(message)
           if message.role == 'user' and type(message.content) == 'table' then
             message.content = { r1.image(message.content[1], { max_pixels = 1024 }) }
           end
           return message
         end)",
    );
    assert_eq!(reduced[0], [image(&renderer, (32, 32), 1).0]);
}
