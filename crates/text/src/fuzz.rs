//! Fuzz tests of untrusted input: chat templates, tokenizers and replies. `R1_FUZZ_SECONDS` is the
//! time per test (default 2). The code under test must not panic, hang or run out of memory; each
//! finding becomes a regression test elsewhere.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use serde_json::{Value, json};

use super::{Format, Template, Tokenizer, train_tokenizer};
use crate::reference_data::optional_reference_data;
use r1_base::error::Kind;

/// A seeded random generator; the time limit decides how many values are drawn.
struct Dice(ChaCha8Rng);

impl Dice {
    fn below(&mut self, count: usize) -> usize {
        (self.0.next_u64() % count.max(1) as u64) as usize
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Prints the seed of a failed case.
struct SeedOnPanic(u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("with seed {}", self.0);
        }
    }
}

/// CPU time of this thread, without other work of the machine.
fn computed() -> Duration {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let begin = *BEGIN;
    // Linux's counter in nanoseconds; elsewhere the wall clock.
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let count = text.split(' ').next().and_then(|count| count.parse().ok());
    count.map_or_else(|| begin.elapsed(), Duration::from_nanos)
}

/// Calls `check` with new random numbers until the time is up, and at least a few times.
fn repeat_with_seeds(check: impl Fn(&mut Dice)) {
    let seconds = std::env::var("R1_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut seed = 0;
    while Instant::now() < end || seed < 20 {
        let begin = computed();
        let on_panic = SeedOnPanic(seed);
        check(&mut Dice(ChaCha8Rng::seed_from_u64(seed)));
        drop(on_panic);
        let took = computed().saturating_sub(begin);
        assert!(took < Duration::from_secs(30), "seed {seed} took {took:?}");
        seed += 1;
    }
}

/// Mutates a few pieces of a text: removes, repeats, swaps, or inserts one of another text.
fn mutate(dice: &mut Dice, pieces: &mut Vec<String>, others: &[String]) {
    for _ in 0..=dice.below(4) {
        let at = dice.below(pieces.len());
        match dice.below(5) {
            _ if pieces.is_empty() => pieces.push(dice.pick(others).clone()),
            0 => drop(pieces.remove(at)),
            1 => pieces.insert(at, pieces[at].clone()),
            2 => {
                let other = dice.below(pieces.len());
                pieces.swap(at, other);
            }
            3 => pieces.insert(at, dice.pick(others).clone()),
            _ => {
                let piece = &mut pieces[at];
                let cut = piece.char_indices().map(|(at, _)| at).nth(dice.below(piece.len())).unwrap_or(0);
                piece.truncate(cut);
            }
        }
    }
}

/// A template in pieces that each begin with a tag.
fn pieces(source: &str) -> Vec<String> {
    let mut cuts: Vec<usize> =
        ["{%", "{{", "{#"].iter().flat_map(|tag| source.match_indices(tag)).map(|(at, _)| at).collect();
    cuts.extend([0, source.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|cut| source[cut[0]..cut[1]].to_owned()).collect()
}

#[test]
fn mutated_templates_render_or_give_an_error() {
    const HOSTILE: [&str; 12] = [
        "{% for a in range(99999) %}",
        "{{ 'x' * 99999999 }}",
        "{{ messages | tojson(indent=999) }}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{% set x = x + x %}",
        "{% set messages = messages + messages %}",
        "{{ messages[-99999999999999999999] }}",
        "{{ messages[::0] }}",
        "{{ ''.join(messages) }}",
        "{{ -9223372036854775808 // -1 }}",
        "{{ none.a.b }}",
        "{{ 'é'[0:1] | indent(999, true) | title | trim('é') }}",
    ];
    let mut sources = vec![train_tokenizer::TEMPLATE.to_owned()];
    if let Some(dir) = optional_reference_data("chat-templates/templates") {
        let mut paths: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        sources.extend(paths.iter().filter_map(|path| std::fs::read_to_string(path).ok()));
    }
    let mut others: Vec<String> = sources.iter().flat_map(|source| pieces(source)).collect();
    others
        .extend(HOSTILE.iter().flat_map(|piece| vec![(*piece).to_owned(); others.len() / 100 + 1]).collect::<Vec<_>>());
    let call = json!({"type": "function", "id": "call00001", "function": {"name": "f", "arguments": {"a": "é"}}});
    let messages = json!([
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "c", "reasoning_content": "r", "tool_calls": [call]},
        {"role": "tool", "content": "t", "name": "f", "tool_call_id": "call00001"},
        {"role": "assistant", "content": "<think>a</think>b"},
    ]);
    let tools = [json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}})];
    repeat_with_seeds(|dice| {
        let source: &String = dice.pick(&sources);
        let mut parts = pieces(source);
        mutate(dice, &mut parts, &others);
        let source = parts.concat();
        let rendered = Template::new(&source, None, "t.jinja", "<s>", "</s>").and_then(|template| {
            let tools = (dice.below(2) == 0).then_some(&tools[..]);
            template.render(&messages, tools, dice.below(2) == 0)
        });
        if let Err(error) = rendered {
            assert!(
                error.place.as_deref().is_some_and(|location| location.starts_with("t.jinja")),
                "{error}\n{source}"
            );
        }
    });
}

/// Mutates every number and string of a small tokenizer, one at a time and several at once.
#[test]
fn mutated_tokenizers_load_or_give_an_error() {
    const FILES: [&str; 2] = ["tokenizer.json", "tokenizer_config.json"];
    fn places<'a>(value: &'a mut Value, out: &mut Vec<&'a mut Value>) {
        match value {
            Value::Object(fields) => fields.values_mut().for_each(|field| places(field, out)),
            // For a long list only the first and last items are tried.
            Value::Array(items) => {
                let last = items.len().saturating_sub(1);
                items
                    .iter_mut()
                    .enumerate()
                    .filter(|(at, _)| *at < 3 || *at == last)
                    .for_each(|(_, item)| places(item, out));
            }
            leaf => out.push(leaf),
        }
    }
    let dir = tempfile::tempdir().unwrap();
    super::testing::small_tokenizer().save(dir.path()).unwrap();
    let read = |name: &str| serde_json::from_slice::<Value>(&std::fs::read(dir.path().join(name)).unwrap()).unwrap();
    let originals = FILES.map(read);
    let values = [
        json!(4_294_967_295_u32),
        json!(-1),
        json!(1e300),
        json!("x".repeat(5000)),
        json!("(a+)+$"),
        json!("(?:a{999}){999}"),
        json!(""),
        json!([]),
        json!({}),
        Value::Null,
        json!({"type": "Sequence", "normalizers": vec![json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaa"}); 30]}),
        json!({"type": "Split", "pattern": {"Regex": "(a*)*b"}, "behavior": "Isolated", "invert": false}),
        json!({"type": "Unigram", "unk_id": 9, "vocab": [["a", 0.0]], "byte_fallback": false}),
    ];
    repeat_with_seeds(|dice| {
        let mut changed = originals.clone();
        for file in &mut changed {
            for _ in 0..dice.below(3) {
                let mut fields = Vec::new();
                places(file, &mut fields);
                let at = dice.below(fields.len());
                *fields.swap_remove(at) = dice.pick(&values).clone();
            }
            if let (Value::Object(fields), 0) = (&mut *file, dice.below(3)) {
                let at = dice.below(fields.len());
                if let Some((_, field)) = fields.iter_mut().nth(at) {
                    *field = dice.pick(&values).clone();
                }
            }
        }
        let files = FILES.iter().zip(&changed).map(|(name, file)| ((*name).to_owned(), file.to_string().into_bytes()));
        match Tokenizer::from_files(files.collect(), "t".to_owned()) {
            Err(error) => assert!(error.kind == Kind::Model && error.to_string().len() < 9000, "{error}"),
            Ok(tokenizer) => {
                let ids =
                    tokenizer.encode("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa the answer is 12 é<code>").unwrap_or_default();
                tokenizer.decode(&ids, false);
                assert!(tokenizer.token_bytes().len() == tokenizer.vocab_size());
                drop(Template::of(&tokenizer));
            }
        }
    });
}

#[test]
fn mutated_replies_are_parsed() {
    let values = [json!(1), json!("\"}</tool_call>"), json!([true, null, {"é": -0.5}]), json!({}), Value::Null];
    let names = ["f", "get_weather", "a.b"];
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters":
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}}})];
    repeat_with_seeds(|dice| {
        let written = Format::all().map(|format| {
            let calls: Vec<_> = (0..=dice.below(2))
                .map(|_| r1_base::mdp::ToolCall {
                    id: None,
                    name: (*dice.pick(&names)).to_owned(),
                    arguments: json!({"a": dice.pick(&values), "code": dice.pick(&values)}),
                })
                .collect();
            format.write("<think>\nhm\n</think>\n\nText.".to_owned(), &calls).unwrap()
        });
        let written: Vec<String> = written.collect();
        let letters = |text: &str| -> Vec<String> {
            text.split_inclusive(|letter: char| !letter.is_alphanumeric()).map(str::to_owned).collect()
        };
        let (one, other): (&String, &String) = (dice.pick(&written), dice.pick(&written));
        let (mut parts, others) = (letters(one), letters(other));
        mutate(dice, &mut parts, &others);
        let text = parts.concat();
        for format in Format::all() {
            let begun = dice.below(2) == 0;
            let whole = format.read(&text, begun, "python", &tools).unwrap();
            let mut stream = format.stream(begun, "python", &tools);
            for part in &parts {
                stream.push(part);
            }
            assert_eq!(stream.finish().unwrap().1, whole, "{format:?} of {text:?}");
        }
    });
}

/// Metadata of GGUF files with random values is refused with a message, or makes a tokenizer.
#[test]
fn mutated_gguf_metadata_is_refused_or_read() {
    let values = [
        Value::Null,
        json!(0),
        json!(-1),
        json!(u64::MAX),
        json!(1e300),
        json!("gpt2"),
        json!("llama"),
        json!("qwen2"),
        json!([]),
        json!([[]]),
        json!(["a", "", "\u{2581}", " "]),
        json!([0.5, null, -1e300]),
    ];
    let kinds = ["gpt2", "llama"].map(crate::gguf::tests::metadata);
    repeat_with_seeds(|dice| {
        let mut fields = dice.pick(&kinds).clone();
        for _ in 0..=dice.below(3) {
            let at = dice.below(fields.len());
            let Some((_, field)) = fields.iter_mut().nth(at) else { continue };
            match field.as_array_mut().filter(|list| !list.is_empty()) {
                Some(list) if dice.below(3) > 0 => {
                    let at = dice.below(list.len());
                    list[at] = dice.pick(&values).clone();
                }
                _ => *field = dice.pick(&values).clone(),
            }
        }
        let loaded = crate::tokenizer_files(&fields).and_then(|files| Tokenizer::from_files(files, "t".to_owned()));
        match loaded {
            Err(error) => assert!(error.kind == Kind::Model && error.to_string().len() < 9000, "{error}"),
            Ok(tokenizer) => {
                tokenizer.decode(&tokenizer.encode("ab  1 <tool>é").unwrap_or_default(), false);
                assert!(tokenizer.token_bytes().len() == tokenizer.vocab_size());
                drop(Template::of(&tokenizer));
            }
        }
    });
}
