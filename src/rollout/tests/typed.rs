//! Typed replies have the tokens of sampled ones, in every format.

use super::*;
use crate::mdp::ToolCall;
use crate::text::Format;

/// A tool `python`, which formats that run code call too.
const RECIPE: &str = r#"
local python = r1.tool {
  name = "python", description = "Runs code", parameters = { code = "string" },
  run = function(args) return "ran" end,
}
return r1.recipe {
  env = r1.env { tools = { python }, format = "FORMAT", max_steps = 3 },
  reward = function() return 0 end,
  data = { train = { { problem = "go" } } },
}
"#;

/// The tokens that the engine gives for a text: up to the one that completes a stop string, or the
/// end of the turn.
fn sampled(renderer: &Renderer, text: &str) -> Vec<u32> {
    let tokenizer = renderer.tokenizer();
    let mut ids = tokenizer.encode_with_special(text).unwrap();
    ids.extend(renderer.stop_ids().first());
    let ends = |count: &usize| {
        let printed = tokenizer.decode(&ids[..*count], false);
        renderer.stop_ids().contains(&ids[*count - 1])
            || renderer.stop_strings().iter().any(|stop| printed.contains(stop))
    };
    let end = (1..=ids.len()).find(ends).unwrap();
    ids.truncate(end);
    ids
}

#[test]
fn typed_replies_have_the_tokens_of_sampled_ones() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/r1-nano");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut formats, mut in_turn) = (0, 0);
    for format in Format::all() {
        let Ok(renderer) = Renderer::load(&model, format.name()) else { continue };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lua");
        std::fs::write(&path, RECIPE.replace("FORMAT", format.name())).unwrap();
        let script = Script::load(&path, &[]).unwrap();
        let renderer = Arc::new(renderer);
        let worker = Worker::new(&script, Some(Arc::clone(&renderer))).unwrap();
        let stage = Stage { worker: &worker, renderer: &renderer };
        let call = ToolCall { id: None, name: "python".into(), arguments: serde_json::json!({ "code": "print(6*7)" }) };
        let mut texts = vec!["The answer is 42.".to_owned(), String::new(), "a <|im_end|> b".to_owned()];
        if format.can_write() {
            let written = format.write("I compute.".to_owned(), &[call]).unwrap();
            texts.extend([format!("{written} and more"), written]);
        }
        for text in texts {
            let prompts = runtime.block_on(async {
                let begin = || async {
                    let task = worker.row(Split::Train, 0).unwrap();
                    let spec = Spec::new(Split::Train, 0, &script.settings);
                    let mut attempt = Attempt::begin(stage, spec, task, &crate::script::Record::live()).await.unwrap();
                    attempt.observe(stage).await.unwrap();
                    attempt
                };
                let mut by_hand = begin().await;
                let completion = typed(stage, &by_hand, &text, FinishReason::Stop).unwrap();
                assert_eq!(completion.token_ids, sampled(&renderer, &text), "{}: {text:?}", format.name());
                let mut by_policy = begin().await;
                let ids = sampled(&renderer, &text);
                let reply = Completion { logprobs: vec![0.0; ids.len()], token_ids: ids, ..completion.clone() };
                by_hand.act(stage, completion).await.unwrap();
                by_policy.act(stage, reply).await.unwrap();
                let mut next = Vec::new();
                for attempt in [&mut by_hand, &mut by_policy] {
                    let over = attempt.over().is_some();
                    let prompt = if over { None } else { attempt.observe(stage).await.unwrap() };
                    next.push(prompt.map(|prompt| (prompt.ids.clone(), prompt.new_row)));
                }
                next
            });
            assert_eq!(prompts[0], prompts[1], "{}: {text:?}", format.name());
            if let Some((ids, false)) = &prompts[0]
                && !renderer.stop_strings().is_empty()
            {
                // The turn goes on after the result.
                let after = renderer.tokenizer().decode(ids, false);
                assert_eq!(after.matches("<|im_start|>assistant").count(), 1, "{after}");
                in_turn += 1;
            }
        }
        formats += 1;
    }
    assert!(formats >= 6 && in_turn >= 2, "{formats} formats, {in_turn} continued turns");
}
