//! The tokenizer of a GGUF file, as the files that [`Tokenizer`](crate::Tokenizer) reads.
//!
//! The metadata has a vocabulary, merges or scores, types of tokens, the name of a pre-tokenizer
//! and a chat template. Byte-level BPE (`gpt2`) and SentencePiece's (`llama`) are supported. Names
//! of pre-tokenizers are llama.cpp's (`llama_vocab`). A name that is not known is refused, because
//! another pre-tokenizer gives other ids.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Map, Value, json};

use r1_base::error::{Error, Kind, Result};

/// Types of tokens.
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
const UNUSED: u64 = 5;

/// Maximum of the sum of the squared lengths of tokens, in bytes, of a vocabulary whose merges are
/// derived.
const MAX_SQUARES: usize = 1 << 30;

/// Words, and digits in groups of up to three.
const UP_TO_THREE_DIGITS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The words of GPT-2, and the patterns of pre-tokenizers: their names in llama.cpp, the pattern,
/// and whether a whole word that is a token is not merged from its characters.
const PATTERNS: [(&[&str], &str, bool); 5] = [
    (
        &["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        UP_TO_THREE_DIGITS,
        true,
    ),
    (&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], UP_TO_THREE_DIGITS, false),
    (
        &["qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan"],
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        false,
    ),
    (
        &["gpt-4o", "llama4"],
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        false,
    ),
    (
        &["tekken"],
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        true,
    ),
];
/// Pre-tokenizers with the words of GPT-2.
const PLAIN: [&str; 5] = ["gpt-2", "gpt2", "olmo", "mpt", "granite-docling"];
/// Pre-tokenizers that split every digit off, before the words of GPT-2.
const DIGITS: [&str; 5] = ["smollm", "starcoder", "refact", "command-r", "codeshell"];

/// Hint of every error: a tokenizer that replaces the tokenizer of the metadata.
const BESIDE: &str =
    "put the tokenizer.json and tokenizer_config.json of the model beside the file; they are used then";

/// The files of the tokenizer that the metadata of a GGUF file describes, by name: tokenizer.json,
/// tokenizer_config.json with the chat template, generation_config.json.
///
/// # Errors
/// `Kind::Model` if the metadata has no tokenizer, an unsupported one, or contradicts itself.
pub fn tokenizer_files(metadata: &Map<String, Value>) -> Result<BTreeMap<String, Vec<u8>>> {
    let vocabulary = Vocabulary::read(metadata)?;
    let kind = metadata.get("tokenizer.ggml.model").and_then(Value::as_str).unwrap_or_default();
    let (parts, adds_bos) = match kind {
        "gpt2" => byte_level(&vocabulary, metadata)?,
        "llama" => sentence_piece(&vocabulary, metadata)?,
        _ => return Err(refused(format!("the tokenizer is of the kind {kind:?}; gpt2 and llama are supported"))),
    };
    let flag = |name: &str| metadata.get(&format!("tokenizer.ggml.{name}")).and_then(Value::as_bool);
    let adds_bos = flag("add_bos_token").unwrap_or(adds_bos);
    let adds_eos = flag("add_eos_token").unwrap_or(false);
    let (bos, eos) = (vocabulary.token("bos_token_id")?, vocabulary.token("eos_token_id")?);
    let around = post_processor(bos.filter(|_| adds_bos), eos.filter(|_| adds_eos));
    let mut tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": vocabulary.added(),
        "normalizer": null, "pre_tokenizer": null, "post_processor": around, "decoder": null,
    });
    for (name, part) in parts {
        tokenizer[name] = part;
    }

    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false,
        "add_bos_token": adds_bos, "add_eos_token": adds_eos,
    });
    for (field, name) in [
        ("bos_token_id", "bos_token"),
        ("eos_token_id", "eos_token"),
        ("unknown_token_id", "unk_token"),
        ("padding_token_id", "pad_token"),
    ] {
        config[name] = vocabulary.token(field)?.map_or(Value::Null, |(_, token)| token.into());
    }
    if let Some(template) = chat_template(metadata) {
        config["chat_template"] = template;
    }
    let mut ends: Vec<u64> = Vec::new();
    for field in ["eos_token_id", "eot_token_id"] {
        ends.extend(vocabulary.token(field)?.map(|(id, _)| id).filter(|id| !ends.contains(id)));
    }
    let mut generation = json!({});
    if !ends.is_empty() {
        generation["eos_token_id"] = json!(ends);
    }
    let file = |name: &str, content: &Value| (name.to_owned(), content.to_string().into_bytes());
    Ok(BTreeMap::from([
        file("tokenizer.json", &tokenizer),
        file("tokenizer_config.json", &config),
        file("generation_config.json", &generation),
    ]))
}

fn refused(message: String) -> Error {
    Error::new(Kind::Model, message).hint(BESIDE)
}

/// A part of a message.
fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(60).collect::<String>())
}

/// The tokens of the metadata, with the fields that refer to them.
struct Vocabulary<'a> {
    metadata: &'a Map<String, Value>,
    tokens: Vec<&'a str>,
    /// The types of the tokens; empty if the metadata has none.
    types: Vec<u64>,
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Map<String, Value>) -> Result<Self> {
        let list = |name: &str| metadata.get(&format!("tokenizer.ggml.{name}")).and_then(Value::as_array);
        let tokens = list("tokens").ok_or_else(|| refused("the metadata has no tokenizer".to_owned()))?;
        let tokens: Option<Vec<&str>> = tokens.iter().map(Value::as_str).collect();
        let tokens = tokens.ok_or_else(|| refused("`tokenizer.ggml.tokens` is not a list of texts".to_owned()))?;
        let types: Vec<u64> = list("token_type").into_iter().flatten().map(|kind| kind.as_u64().unwrap_or(0)).collect();
        if !types.is_empty() && types.len() != tokens.len() {
            return Err(refused(format!("there are {} tokens and {} types of tokens", tokens.len(), types.len())));
        }
        let mut seen = HashSet::new();
        if let Some(twice) = tokens.iter().find(|token| !seen.insert(**token)) {
            return Err(refused(format!("the vocabulary has the token {} twice", shown(twice))));
        }
        Ok(Self { metadata, tokens, types })
    }

    fn kind(&self, id: usize) -> u64 {
        self.types.get(id).copied().unwrap_or(1)
    }

    /// The token of a field with its id.
    fn token(&self, field: &str) -> Result<Option<(u64, &'a str)>> {
        let Some(value) = self.metadata.get(&format!("tokenizer.ggml.{field}")) else { return Ok(None) };
        let token = value.as_u64().and_then(|id| Some((id, *self.tokens.get(usize::try_from(id).ok()?)?)));
        token.map(Some).ok_or_else(|| {
            refused(format!("`tokenizer.ggml.{field}` is {value}, and the vocabulary has {} tokens", self.tokens.len()))
        })
    }

    /// The tokens that are found whole in a text.
    fn added(&self) -> Value {
        let kinds = (0..self.tokens.len()).map(|id| (id, self.kind(id)));
        let added = kinds.filter(|(_, kind)| [UNKNOWN, CONTROL, USER_DEFINED].contains(kind)).map(|(id, kind)| {
            json!({
                "id": id, "content": self.tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": kind != USER_DEFINED,
            })
        });
        added.collect()
    }

    /// The ids of the tokens by their text, without those that fill the vocabulary up.
    fn ids(&self) -> Map<String, Value> {
        let is_filler = |id: usize, token: &str| self.kind(id) == UNUSED && token == format!("[PAD{id}]");
        let tokens = self.tokens.iter().enumerate().filter(|(id, token)| !is_filler(*id, token));
        tokens.map(|(id, token)| ((*token).to_owned(), json!(id))).collect()
    }
}

type Parts = Vec<(&'static str, Value)>;

/// The parts of a byte-level BPE, and whether it adds a token at the beginning unless the metadata
/// says otherwise.
fn byte_level(vocabulary: &Vocabulary<'_>, metadata: &Map<String, Value>) -> Result<(Parts, bool)> {
    let merges = metadata
        .get("tokenizer.ggml.merges")
        .ok_or_else(|| refused("the metadata has no `tokenizer.ggml.merges`".to_owned()))?;
    let name = metadata.get("tokenizer.ggml.pre").and_then(Value::as_str).unwrap_or_default();
    let bytes = |splits: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": splits});
    let sequence = |first: Value, last: Value| json!({"type": "Sequence", "pretokenizers": [first, last]});
    let pattern = PATTERNS.iter().find(|(names, ..)| names.contains(&name));
    let pre_tokenizer = match pattern {
        Some((_, pattern, _)) => {
            let split = json!({
                "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false
            });
            sequence(split, bytes(false))
        }
        None if DIGITS.contains(&name) => sequence(json!({"type": "Digits", "individual_digits": true}), bytes(true)),
        None if PLAIN.contains(&name) => bytes(true),
        None => {
            let names = PATTERNS.iter().flat_map(|(names, ..)| *names).chain(&DIGITS).chain(&PLAIN);
            let names = names.copied().collect::<Vec<_>>().join(", ");
            return Err(refused(format!(
                "the pre-tokenizer of the metadata is {}; supported are {names}",
                shown(name)
            )));
        }
    };
    let whole = pattern.is_some_and(|(.., whole)| *whole);
    let mut parts = vec![
        ("pre_tokenizer", pre_tokenizer),
        ("decoder", bytes(true)),
        (
            "model",
            json!({
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": whole,
                "vocab": vocabulary.ids(), "merges": merges,
            }),
        ),
    ];
    // The tokenizers of Qwen2 to Qwen3 normalise, which the metadata does not say.
    if name == "qwen2" {
        parts.push(("normalizer", json!({"type": "NFC"})));
    }
    Ok((parts, whole))
}

/// The parts of a SentencePiece BPE. Gemma's has no space in front of a text.
fn sentence_piece(vocabulary: &Vocabulary<'_>, metadata: &Map<String, Value>) -> Result<(Parts, bool)> {
    let is_gemma =
        metadata.get("general.architecture").and_then(Value::as_str).is_some_and(|name| name.starts_with("gemma"));
    let spaces = metadata.get("tokenizer.ggml.add_space_prefix").and_then(Value::as_bool).unwrap_or(true) && !is_gemma;
    let mut ids = vocabulary.ids();
    if is_gemma {
        // Its tokens of several spaces are written with spaces.
        let spelled =
            |token: String| if token.trim_matches(' ').is_empty() { token.replace(' ', "▁") } else { token };
        ids = ids.into_iter().map(|(token, id)| (spelled(token), id)).collect();
    }
    let merges = match metadata.get("tokenizer.ggml.merges") {
        Some(merges) => merges.clone(),
        None => derived_merges(&ids, metadata, is_gemma)?,
    };
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let mut decoders = vec![replace("▁", " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    let (normalizer, pre_tokenizer) = if is_gemma {
        let split = json!({
            "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false
        });
        (replace(" ", "▁"), split)
    } else {
        let scheme = if spaces { "first" } else { "never" };
        let spaced = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false});
        (Value::Null, spaced)
    };
    if spaces {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let unknown = vocabulary.token("unknown_token_id")?.map(|(_, token)| token);
    let parts = vec![
        ("normalizer", normalizer),
        ("pre_tokenizer", pre_tokenizer),
        ("decoder", json!({"type": "Sequence", "decoders": decoders})),
        (
            "model",
            json!({
                "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
                "vocab": ids, "merges": merges,
            }),
        ),
    ];
    Ok((parts, true))
}

/// The merges of a vocabulary with scores: every pair of tokens that is a token. Pairs with a high
/// score come first; Gemma's are in the order of its tokens.
fn derived_merges(ids: &Map<String, Value>, metadata: &Map<String, Value>, by_order: bool) -> Result<Value> {
    let scores = metadata.get("tokenizer.ggml.scores").and_then(Value::as_array);
    let id = |value: &Value| value.as_u64().unwrap_or(0);
    let score = |value: &Value| {
        if by_order { Some(-(id(value) as f64)) } else { scores?.get(id(value) as usize)?.as_f64() }
    };
    if ids.keys().map(|token| token.len() * token.len()).fold(0, usize::saturating_add) > MAX_SQUARES {
        return Err(refused("the vocabulary has tokens that are too long".to_owned()));
    }
    let by_text: HashMap<&str, u64> = ids.iter().map(|(token, value)| (token.as_str(), id(value))).collect();
    let mut merges = Vec::new();
    for (token, value) in ids {
        let score =
            score(value).ok_or_else(|| refused(format!("the token {} has no score and no merges", shown(token))))?;
        let pairs = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        let mut pairs: Vec<_> =
            pairs.filter_map(|(left, right)| Some((*by_text.get(left)?, *by_text.get(right)?, left, right))).collect();
        pairs.sort_unstable();
        let length = |text: &str| text.chars().count();
        merges
            .extend(pairs.into_iter().map(|(_, _, left, right)| ((score, length(left), length(right)), (left, right))));
    }
    merges.sort_by(|(key, _), (other, _)| other.partial_cmp(key).unwrap_or(std::cmp::Ordering::Equal));
    Ok(merges.into_iter().map(|(_, (left, right))| json!([left, right])).collect())
}

/// What is added around a text.
fn post_processor(bos: Option<(u64, &str)>, eos: Option<(u64, &str)>) -> Value {
    let special = |(_, token): (u64, &str), text: u32| json!({"SpecialToken": {"id": token, "type_id": text}});
    let piece = |name: &str, text: u32| {
        let sequence = json!({"Sequence": {"id": name, "type_id": text}});
        let before = bos.map(|token| special(token, text));
        before.into_iter().chain([sequence]).chain(eos.map(|token| special(token, text))).collect::<Vec<_>>()
    };
    let tokens: Map<String, Value> = (bos.into_iter().chain(eos))
        .map(|(id, token)| (token.to_owned(), json!({"id": token, "ids": [id], "tokens": [token]})))
        .collect();
    if tokens.is_empty() {
        return Value::Null;
    }
    let pair = [piece("A", 0), piece("B", 1)].concat();
    json!({"type": "TemplateProcessing", "single": piece("A", 0), "pair": pair, "special_tokens": tokens})
}

/// The chat template, or several with their names.
fn chat_template(metadata: &Map<String, Value>) -> Option<Value> {
    const FIELD: &str = "tokenizer.chat_template";
    let default = metadata.get(FIELD);
    let named = metadata.iter().filter_map(|(name, template)| {
        Some(json!({"name": name.strip_prefix(FIELD)?.strip_prefix('.')?, "template": template}))
    });
    let named: Vec<Value> = named.collect();
    if named.is_empty() {
        return default.cloned();
    }
    let default = default.map(|template| json!({"name": "default", "template": template}));
    Some(default.into_iter().chain(named).collect())
}

#[cfg(test)]
pub(crate) mod tests;
