//! Tokenizers in the Hugging Face layout (`tokenizer.json` and its side files), based on the
//! `tokenizers` crate.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::error::{Error, Kind, Result};

/// The files of a tokenizer; [`Tokenizer::save`] writes them unchanged.
const FILES: [&str; 6] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
];

/// A tokenizer with the files it was loaded from.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    files: BTreeMap<String, Vec<u8>>,
    /// The source, for error messages.
    origin: String,
    vocab_size: usize,
    cache: Mutex<Cache>,
}

/// Caches the ids of texts. The trajectories of a group share their prompt, and a context policy
/// counts the same messages repeatedly; tokenizing takes about a millisecond per kilobyte.
#[derive(Default)]
struct Cache {
    ids: HashMap<String, Arc<[u32]>>,
    bytes: usize,
}

/// The cache is cleared at this size.
const CACHE_BYTES: usize = 16 << 20;

/// Maximum size of one file in bytes; the largest known has 35 MB.
const MOST_BYTES: u64 = 256 << 20;

/// Maximum growth of a text by normalization; writing spaces as `▁` gives 3.
const MOST_GROWTH: f64 = 64.0;

/// Part of a tokenizer that turns a short text into gigabytes.
enum Unbounded {
    EmptyPattern { part: &'static str },
    Growth { part: &'static str, growth: f64 },
}

impl std::fmt::Display for Unbounded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::EmptyPattern { part } => write!(f, "its {part} looks for an empty pattern"),
            Self::Growth { part, growth } => {
                write!(f, "its {part} may make a text {growth:.0} times longer; at most {MOST_GROWTH} is read")
            }
        }
    }
}

/// Refuses a tokenizer whose chained replacements turn a short text into gigabytes.
fn bounded(tokenizer: &Value) -> Result<(), Unbounded> {
    fn has_empty_pattern(part: &Value) -> bool {
        match part {
            Value::Object(fields) => fields.iter().any(|(name, value)| {
                let empty = ["String", "Regex"].iter().any(|kind| value[*kind] == "");
                (name == "pattern" && (empty || value == "")) || has_empty_pattern(value)
            }),
            Value::Array(parts) => parts.iter().any(has_empty_pattern),
            _ => false,
        }
    }
    fn growth(part: &Value) -> f64 {
        let children = ["normalizers", "pretokenizers", "decoders", "processors"].map(|name| part[name].as_array());
        let own = match (part["type"].as_str(), part["content"].as_str()) {
            (Some("Replace"), Some(content)) => {
                let pattern = part["pattern"]["String"].as_str().map_or(0, str::len);
                (content.len() as f64 / pattern.max(1) as f64).max(1.0)
            }
            _ => 1.0,
        };
        children.into_iter().flatten().flatten().fold(own, |product, child| product * growth(child))
    }
    for part in ["normalizer", "pre_tokenizer", "decoder"] {
        if has_empty_pattern(&tokenizer[part]) {
            return Err(Unbounded::EmptyPattern { part });
        }
        let growth = growth(&tokenizer[part]);
        if growth > MOST_GROWTH {
            return Err(Unbounded::Growth { part, growth });
        }
    }
    Ok(())
}

impl Tokenizer {
    /// Loads `tokenizer.json` and its side files from a model directory.
    pub fn load(dir: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        for name in FILES {
            let path = dir.join(name);
            let io = |error: &std::io::Error| Error::io(Kind::Model, "read the tokenizer", &path, error);
            match std::fs::metadata(&path) {
                Ok(found) if !found.is_file() => {
                    return Err(Error::new(Kind::Model, "this is not a regular file").at_path(&path));
                }
                Ok(found) if found.len() > MOST_BYTES => {
                    let message =
                        format!("the file has {} bytes; no tokenizer's has more than {MOST_BYTES}", found.len());
                    return Err(Error::new(Kind::Model, message).at_path(&path));
                }
                Ok(_) => {
                    files.insert(name.to_owned(), std::fs::read(&path).map_err(|error| io(&error))?);
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(io(&error)),
            }
        }
        if !files.contains_key("tokenizer.json") {
            return Err(Error::new(Kind::Model, "there is no tokenizer.json").at_path(dir).hint(
                "older models have only vocab.json or tokenizer.model: load them once with transformers' \
                 AutoTokenizer and save_pretrained, which writes tokenizer.json",
            ));
        }
        Self::from_files(files, dir.display().to_string())
    }

    /// A tokenizer from the contents of its files, by name.
    pub(super) fn from_files(files: BTreeMap<String, Vec<u8>>, origin: String) -> Result<Self> {
        let place = |name: &str| format!("{origin}/{name}");
        let json = files
            .get("tokenizer.json")
            .ok_or_else(|| Error::new(Kind::Model, "there is no tokenizer.json").at(&origin))?;
        let bad = |why: &dyn std::fmt::Display| {
            Error::new(Kind::Model, format!("can't read the tokenizer: {why}")).at(place("tokenizer.json"))
        };
        let parsed: Value = serde_json::from_slice(json).map_err(|error| bad(&error))?;
        bounded(&parsed).map_err(|why| bad(&why))?;
        // The library may panic on invalid files: report it as an error in the file.
        let read = std::panic::catch_unwind(|| tokenizers::Tokenizer::from_bytes(json));
        let mut inner = read.map_err(|_| bad(&"its parts contradict each other"))?.map_err(|error| bad(&error))?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| bad(&error))?;
        let vocabulary = inner.get_vocab(true);
        let vocab_size = vocabulary.values().max().map_or(0, |&id| id as usize + 1);
        if vocab_size > 16 * vocabulary.len() + (1 << 16) {
            return Err(bad(&format!(
                "it has {} tokens, and one of them has the id {}",
                vocabulary.len(),
                vocab_size - 1
            )));
        }
        let new = Self { inner, files, origin, vocab_size, cache: Mutex::default() };
        // Report a damaged side file now, not at the first prompt.
        new.json("tokenizer_config.json")?;
        new.json("generation_config.json")?;
        Ok(new)
    }

    /// The ids of a text. Special tokens in the text become their ids; no tokens are added around
    /// it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let cache = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ids) = cache().ids.get(text) {
            return Ok(ids.to_vec());
        }
        let encoding = self.encoding(text, false)?;
        let ids: Arc<[u32]> = encoding.get_ids().into();
        let mut cache = cache();
        let size = text.len() + 4 * ids.len();
        if cache.bytes + size > CACHE_BYTES {
            *cache = Cache::default();
        }
        cache.bytes += size;
        cache.ids.insert(text.to_owned(), Arc::clone(&ids));
        drop(cache);
        Ok(ids.to_vec())
    }

    /// As [`encode`](Self::encode), with the tokens that `tokenizer.json` adds around a text (such
    /// as a beginning-of-sequence token).
    pub fn encode_with_special(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.encoding(text, true)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The library may panic on invalid files here too: report it as an error in the file.
    fn encoding(&self, text: &str, special: bool) -> Result<tokenizers::Encoding> {
        let bad = |why: &dyn std::fmt::Display| {
            let message = format!("can't encode a text of {} bytes: {why}", text.len());
            Error::new(Kind::Model, message).at(&self.origin)
        };
        let encode = std::panic::AssertUnwindSafe(|| self.inner.encode_fast(text, special));
        let encoded =
            std::panic::catch_unwind(encode).map_err(|_| bad(&"the tokenizer's parts contradict each other"))?;
        encoded.map_err(|error| bad(&error))
    }

    /// The text of ids. Invalid UTF-8 (a character cut in the middle) becomes U+FFFD; unknown ids
    /// are skipped. `skip_special` removes tokens marked as special (`<|im_end|>`); other added
    /// tokens (`<tool_call>`) stay.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        self.inner.decode(ids, skip_special).unwrap_or_default()
    }

    /// The bytes of each id, `[vocab_size]`; ids without a token are empty. The bytes of a text's
    /// ids concatenate to the text (except for the space that SentencePiece models add in front).
    pub fn token_bytes(&self) -> Vec<Vec<u8>> {
        let spelling = Spelling::of(&self.inner);
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        let mut bytes = vec![Vec::new(); self.vocab_size];
        for (token, id) in self.inner.get_vocab(true) {
            let Some(slot) = bytes.get_mut(id as usize) else { continue };
            *slot = match added.get(&id) {
                Some(added) => added.content.as_bytes().to_vec(),
                None => spelling.bytes(&token),
            };
        }
        bytes
    }

    /// The largest id plus one. A model's `vocab_size` may be larger (padding), never smaller.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The id of a token as written in the vocabulary.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The text of `id` if it is an added token (special or not).
    pub(super) fn added_token(&self, id: u32) -> Option<String> {
        self.inner.get_added_vocabulary().get_added_tokens_decoder().get(&id).map(|token| token.content.clone())
    }

    /// The special tokens' texts.
    pub(super) fn special_tokens(&self) -> Vec<String> {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        let mut tokens: Vec<String> = added
            .values()
            .filter(|token| token.special && !token.content.is_empty())
            .map(|token| token.content.clone())
            .collect();
        // Longer ones first: one may be part of another.
        tokens.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
        tokens
    }

    /// Writes the files into a model directory, byte for byte as they were read.
    pub fn save(&self, dir: &Path) -> Result<()> {
        std::fs::create_dir_all(dir).map_err(|error| Error::io(Kind::Store, "make the directory", dir, &error))?;
        for (name, bytes) in &self.files {
            let path = dir.join(name);
            std::fs::write(&path, bytes)
                .map_err(|error| Error::io(Kind::Store, "write the tokenizer", &path, &error))?;
        }
        Ok(())
    }

    /// The source: a directory or a description.
    pub(super) fn origin(&self) -> &str {
        &self.origin
    }

    /// The text of a side file, if it exists.
    pub(super) fn file(&self, name: &str) -> Option<String> {
        self.files.get(name).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    /// A side file parsed as JSON; `Null` if it does not exist.
    pub(super) fn json(&self, name: &str) -> Result<Value> {
        match self.files.get(name) {
            None => Ok(Value::Null),
            Some(bytes) => serde_json::from_slice(bytes).map_err(|error| {
                Error::new(Kind::Model, format!("not valid JSON: {error}")).at(format!("{}/{name}", self.origin))
            }),
        }
    }

    /// A token of tokenizer_config.json (`eos_token`, `bos_token`): a string, or an object with
    /// `content`.
    pub(super) fn named_token(&self, name: &str) -> Result<Option<String>> {
        let config = self.json("tokenizer_config.json")?;
        let token = config.get(name);
        let content = token.and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
        Ok(content.map(str::to_owned))
    }
}

/// How a vocabulary encodes bytes.
enum Spelling {
    /// GPT-2's printable alphabet, one character per byte.
    Bytes(HashMap<char, u8>),
    /// SentencePiece: `▁` is a space, `<0x0A>` a byte.
    SentencePiece,
    /// As written.
    Plain,
}

impl Spelling {
    fn of(tokenizer: &tokenizers::Tokenizer) -> Self {
        // Read from the decoder's JSON form, which is the crate's stable interface.
        let decoder = serde_json::to_value(tokenizer.get_decoder()).unwrap_or_default();
        let pre_tokenizer = serde_json::to_value(tokenizer.get_pre_tokenizer()).unwrap_or_default();
        if has_type(&decoder, "ByteLevel") || (decoder.is_null() && has_type(&pre_tokenizer, "ByteLevel")) {
            return Self::Bytes(byte_alphabet());
        }
        if has_type(&decoder, "ByteFallback") || has_type(&decoder, "Metaspace") {
            return Self::SentencePiece;
        }
        Self::Plain
    }

    fn bytes(&self, token: &str) -> Vec<u8> {
        match self {
            Self::Bytes(alphabet) => {
                let bytes: Option<Vec<u8>> = token.chars().map(|letter| alphabet.get(&letter).copied()).collect();
                bytes.unwrap_or_else(|| token.as_bytes().to_vec())
            }
            Self::SentencePiece => match fallback_byte(token) {
                Some(byte) => vec![byte],
                None => token.replace('\u{2581}', " ").into_bytes(),
            },
            Self::Plain => token.as_bytes().to_vec(),
        }
    }
}

/// Whether a decoder or pre-tokenizer, or a member of its sequence, has this type.
fn has_type(value: &Value, name: &str) -> bool {
    if value.get("type").and_then(Value::as_str) == Some(name) {
        return true;
    }
    ["decoders", "pretokenizers"]
        .iter()
        .filter_map(|key| value.get(key)?.as_array())
        .flatten()
        .any(|inner| has_type(inner, name))
}

/// `<0x0A>` -> 10.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// GPT-2's alphabet: printable Latin-1 characters are themselves, other bytes are characters from
/// U+0100 on.
fn byte_alphabet() -> HashMap<char, u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 0x100;
    (0..=255u8)
        .filter_map(|byte| {
            let letter = if printable(byte) {
                char::from(byte)
            } else {
                next += 1;
                char::from_u32(next - 1)?
            };
            Some((letter, byte))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::reference_data::reference_data;
    use crate::text::testing::small_tokenizer;

    #[test]
    fn decoding_encoded_text_returns_the_text() {
        let tokenizer = small_tokenizer();
        for text in [
            "",
            "Hello, world!\n\n  x = [1, 23];\t\r\n",
            "日本語 é é 👋🏽\u{0}\u{7f}\u{a0}",
            "<|im_start|>user\n<code>a</code><|im_end|>",
            "< |im_end|> <code",
        ] {
            let ids = tokenizer.encode(text).unwrap();
            assert_eq!(tokenizer.decode(&ids, false), text);
        }
    }

    #[test]
    fn malicious_tokenizer_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        small_tokenizer().save(dir.path()).unwrap();
        let path = dir.path().join("tokenizer.json");
        let original: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let refused = |change: &dyn Fn(&mut Value)| {
            let mut changed = original.clone();
            change(&mut changed);
            std::fs::write(&path, changed.to_string()).unwrap();
            let error = Tokenizer::load(dir.path()).err().unwrap();
            assert!(error.place.unwrap().ends_with("tokenizer.json"));
            error.message
        };
        let twice = serde_json::json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
        let bomb = refused(&|json| {
            json["normalizer"] = serde_json::json!({"type": "Sequence", "normalizers": vec![twice.clone(); 20]});
        });
        assert!(bomb.ends_with("its normalizer may make a text 1048576 times longer; at most 64 is read"), "{bomb}");
        for pattern in [serde_json::json!({"String": ""}), serde_json::json!({"Regex": ""})] {
            let empty = refused(&|json| {
                json["normalizer"] = serde_json::json!({"type": "Replace", "pattern": pattern, "content": "x"});
            });
            assert!(empty.ends_with("its normalizer looks for an empty pattern"), "{empty}");
        }
        let far = refused(&|json| json["model"]["vocab"]["a"] = 4_000_000_000_u32.into());
        assert!(far.contains("one of them has the id 4000000000"), "{far}");
        let cut = refused(&|json| json["model"]["merges"] = serde_json::json!([["no", "such"]]));
        assert!(cut.starts_with("can't read the tokenizer"), "{cut}");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(Tokenizer::load(dir.path()).err().unwrap().message.contains("not a regular file"));
    }

    #[test]
    fn added_tokens_have_one_id_and_only_special_ones_are_skipped() {
        let tokenizer = small_tokenizer();
        let ids = tokenizer.encode("<|im_start|><code>1</code><|im_end|>").unwrap();
        let spelled: Vec<String> = ids.iter().map(|&id| tokenizer.decode(&[id], false)).collect();
        assert_eq!(spelled, ["<|im_start|>", "<code>", "1", "</code>", "<|im_end|>"]);
        assert_eq!(tokenizer.decode(&ids, true), "<code>1</code>");
        assert_eq!(tokenizer.id_of("<|im_end|>"), Some(2));
        assert_eq!(tokenizer.id_of("no such token"), None);
    }

    #[test]
    fn token_bytes_concatenate_to_the_text() {
        let tokenizer = small_tokenizer();
        let bytes = tokenizer.token_bytes();
        assert_eq!(bytes.len(), tokenizer.vocab_size());
        assert!(bytes.iter().all(|bytes| !bytes.is_empty()));
        proptest::proptest!(|(text in "(\\PC|[ \\n\\t\\x00-\\x7f]|<code>|</code>|<\\|im_end\\|>|é|👋🏽){0,40}")| {
            let ids = tokenizer.encode(&text).unwrap();
            let joined: Vec<u8> = ids.iter().flat_map(|&id| bytes[id as usize].clone()).collect();
            proptest::prop_assert_eq!(String::from_utf8(joined).unwrap(), text);
        });
    }

    #[test]
    fn sentencepiece_tokens_decode_to_spaces_and_bytes() {
        let spelling = Spelling::SentencePiece;
        assert_eq!(spelling.bytes("<0x0A>"), b"\n");
        assert_eq!(spelling.bytes("<0xE2>"), [0xE2]);
        assert_eq!(spelling.bytes("\u{2581}a"), b" a");
        assert_eq!(spelling.bytes("<0xZZ>"), b"<0xZZ>");
    }

    #[test]
    fn tokenizer_files_are_saved_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let tokenizer = small_tokenizer();
        tokenizer.save(dir.path()).unwrap();
        let again = Tokenizer::load(dir.path()).unwrap();
        assert_eq!(again.files, tokenizer.files);
        let text = "Same ids 123 <code>";
        assert_eq!(again.encode(text).unwrap(), tokenizer.encode(text).unwrap());
        std::fs::write(dir.path().join("tokenizer_config.json"), "{\"eos_token\": ").unwrap();
        let error = Tokenizer::load(dir.path()).err().unwrap();
        assert_eq!(error.kind, Kind::Model);
        assert!(error.to_string().contains("tokenizer_config.json"), "{error}");
        std::fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
        let error = Tokenizer::load(dir.path()).err().unwrap();
        assert!(error.to_string().starts_with("there is no tokenizer.json"), "{error}");
    }

    /// Texts with their ids from Qwen's tokenizer, computed with tiktoken and with transformers.
    #[test]
    #[ignore = "needs the reference data: just test-data"]
    fn real_tokenizers_agree_with_recorded_ids() {
        let dir = reference_data("tokenizers-configs");
        let tokenizer = Tokenizer::load(&dir.join("qwen3")).unwrap();
        let bytes = tokenizer.token_bytes();
        let mut checked = 0;
        for line in std::fs::read_to_string(dir.join("token_goldens.jsonl")).unwrap().lines().step_by(3) {
            let row: Value = serde_json::from_str(line).unwrap();
            let text = row["text"].as_str().unwrap();
            let with_added = row.get("qwen3_with_added_tokens").filter(|ids| !ids.is_null());
            let expected: Vec<u32> = serde_json::from_value(with_added.unwrap_or(&row["qwen_plain"]).clone()).unwrap();
            assert_eq!(tokenizer.encode(text).unwrap(), expected, "{text:?}");
            let joined: Vec<u8> = expected.iter().flat_map(|&id| bytes[id as usize].clone()).collect();
            assert_eq!(String::from_utf8_lossy(&joined), tokenizer.decode(&expected, false));
            checked += 1;
        }
        assert!(checked > 100, "{checked}");
    }
}
