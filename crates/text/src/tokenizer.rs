//! Tokenizers in the Hugging Face layout (`tokenizer.json` and its side files), based on the
//! `tokenizers` crate.

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::Value;

use super::images::{self, ImageText};
use r1_base::error::{Error, Kind, Result};
use r1_vision::IMAGE_TOKENS;

/// The files of a tokenizer; [`Tokenizer::save`] writes them unchanged.
const FILES: [&str; 9] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
];

/// The folder of chat templates with names, as transformers writes it.
pub(super) const TEMPLATES: &str = "additional_chat_templates";

/// The chat templates with names in a model directory: `additional_chat_templates/tool_use.jinja`.
/// Empty if it has no such folder.
///
/// # Errors
/// [`Kind::Model`] for a folder that can't be read.
pub fn named_templates(dir: &Path) -> Result<Vec<String>> {
    let folder = dir.join(TEMPLATES);
    let failed = |error: &std::io::Error| Error::io(Kind::Model, "read the chat templates", &folder, error);
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Vec::new()),
        Err(error) => return Err(failed(&error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(|error| failed(&error))?.file_name();
        if let Some(name) = name.to_str().filter(|name| name.ends_with(".jinja")) {
            names.push(format!("{TEMPLATES}/{name}"));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// A tokenizer with the files it was loaded from.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    files: BTreeMap<String, Vec<u8>>,
    /// The source, for error messages.
    origin: String,
    vocab_size: usize,
    cache: Mutex<TokenCache>,
    pub(super) images: OnceLock<ImageText>,
}

/// Caches the ids of texts. The trajectories of a group share their prompt, and a context policy
/// counts the same messages repeatedly; tokenizing takes about a millisecond per kilobyte.
#[derive(Default)]
struct TokenCache {
    ids: HashMap<String, Arc<[u32]>>,
    bytes: usize,
}

/// The cache is cleared at this size.
const CACHE_BYTES: usize = 16 << 20;

/// Maximum size of one file in bytes; the largest known has 35 MB.
const MOST_BYTES: u64 = 256 << 20;

/// Maximum growth of a text by normalization; writing spaces as `▁` gives 3.
const MOST_GROWTH: f64 = 64.0;

/// Refuses a tokenizer whose chained replacements turn a short text into gigabytes, or whose
/// decoder panics.
fn bounded(tokenizer: &Value, bad: impl Fn(&dyn std::fmt::Display) -> Error) -> Result<()> {
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
        let factor = match (part["type"].as_str(), part["content"].as_str()) {
            (Some("Replace"), Some(content)) => {
                let pattern = part["pattern"]["String"].as_str().map_or(0, str::len);
                (content.len() as f64 / pattern.max(1) as f64).max(1.0)
            }
            _ => 1.0,
        };
        children.into_iter().flatten().flatten().fold(factor, |product, child| product * growth(child))
    }
    fn strips_ends(part: &Value) -> bool {
        let is_strip = part["type"] == "Strip" && part["stop"].as_u64().is_some_and(|stop| stop > 0);
        is_strip || part["decoders"].as_array().is_some_and(|parts| parts.iter().any(strips_ends))
    }
    if strips_ends(&tokenizer["decoder"]) {
        // The library's decoder panics for tokens that are shorter than what it strips.
        return Err(bad(&"its decoder strips the end of tokens (`Strip` with a `stop`), which is not supported"));
    }
    for part in ["normalizer", "pre_tokenizer", "decoder"] {
        if has_empty_pattern(&tokenizer[part]) {
            return Err(bad(&format!("its {part} has an empty pattern")));
        }
        let growth = growth(&tokenizer[part]);
        if growth > MOST_GROWTH {
            let limit = format!("at most {MOST_GROWTH} is read");
            return Err(bad(&format!("its {part} may make a text {growth:.0} times longer; {limit}")));
        }
    }
    Ok(())
}

impl Tokenizer {
    /// Loads `tokenizer.json` and its side files from a model directory.
    pub fn load(dir: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        for name in FILES.into_iter().map(str::to_owned).chain(named_templates(dir)?) {
            let path = dir.join(&name);
            let io = |error: &std::io::Error| Error::io(Kind::Model, "read the tokenizer", &path, error);
            match std::fs::metadata(&path) {
                Ok(metadata) if !metadata.is_file() => {
                    return Err(Error::new(Kind::Model, "this is not a regular file").at_path(&path));
                }
                Ok(metadata) if metadata.len() > MOST_BYTES => {
                    let message =
                        format!("the file has {} bytes; no tokenizer's has more than {MOST_BYTES}", metadata.len());
                    return Err(Error::new(Kind::Model, message).at_path(&path));
                }
                Ok(_) => {
                    files.insert(name, std::fs::read(&path).map_err(|error| io(&error))?);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
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
        let path = |name: &str| format!("{origin}/{name}");
        let json = files
            .get("tokenizer.json")
            .ok_or_else(|| Error::new(Kind::Model, "there is no tokenizer.json").at(&origin))?;
        let bad = |why: &dyn std::fmt::Display| {
            Error::new(Kind::Model, format!("can't read the tokenizer: {why}")).at(path("tokenizer.json"))
        };
        let parsed: Value = serde_json::from_slice(json).map_err(|error| bad(&error))?;
        bounded(&parsed, bad)?;
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
        let (cache, images) = (Mutex::default(), OnceLock::new());
        let new = Self { inner, files, origin, vocab_size, cache, images };
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
            *cache = TokenCache::default();
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

    /// As [`encode_with_special`](Self::encode_with_special), with at most `limit` ids: the end of
    /// the text is left out, the tokens around it stay.
    ///
    /// # Errors
    /// [`Kind::Model`] if the tokenizer can't encode the text.
    pub fn encode_truncated(&self, text: &str, limit: usize) -> Result<Vec<u32>> {
        let encoded = self.guarded(format_args!("a text of {} bytes", text.len()), || {
            let mut encoding = self.inner.encode_fast(text, false)?;
            let room = limit.saturating_sub(self.tokens_around(false));
            encoding.truncate(room, 0, tokenizers::TruncationDirection::Right);
            self.inner.post_process(encoding, None, true)
        })?;
        Ok(encoded.get_ids().to_vec())
    }

    /// The ids of two texts as one row, with the tokens that `tokenizer.json` adds to a pair, and
    /// the type of every token (0 for the first text, 1 for the second). Of the longer text the end
    /// is left out until there are at most `limit` ids, as with `truncation=True` in transformers.
    ///
    /// # Errors
    /// [`Kind::Model`] if the tokenizer can't encode the texts, or `limit` leaves no room for them.
    pub fn encode_pair(&self, first: &str, second: &str, limit: usize) -> Result<(Vec<u32>, Vec<u32>)> {
        let joined = self.guarded(format_args!("two texts of {} bytes", first.len() + second.len()), || {
            let (first, second) = (self.inner.encode_fast(first, false)?, self.inner.encode_fast(second, false)?);
            let room = limit.checked_sub(self.tokens_around(true)).filter(|room| *room > 0);
            let max_length = room.ok_or("there is no room for them")?;
            let params = tokenizers::TruncationParams { max_length, ..tokenizers::TruncationParams::default() };
            let (first, second) = tokenizers::utils::truncation::truncate_encodings(first, Some(second), &params)?;
            self.inner.post_process(first, second, true)
        })?;
        Ok((joined.get_ids().to_vec(), joined.get_type_ids().to_vec()))
    }

    /// The number of tokens that `tokenizer.json` adds around a text or a pair.
    fn tokens_around(&self, is_pair: bool) -> usize {
        self.inner.get_post_processor().map_or(0, |part| tokenizers::PostProcessor::added_tokens(part, is_pair))
    }

    fn encoding(&self, text: &str, special: bool) -> Result<tokenizers::Encoding> {
        self.guarded(format_args!("a text of {} bytes", text.len()), || self.inner.encode_fast(text, special))
    }

    /// The library may panic on invalid files here too: report it as an error in the file.
    fn guarded<T>(&self, what: std::fmt::Arguments<'_>, encode: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
        let encoded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(encode));
        let encoded = encoded.unwrap_or_else(|_| Err("the tokenizer's parts contradict each other".into()));
        encoded.map_err(|why| Error::new(Kind::Model, format!("can't encode {what}: {why}")).at(&self.origin))
    }

    /// The text of ids. Invalid UTF-8 (a character cut in the middle) becomes U+FFFD; unknown ids
    /// are skipped. `skip_special` removes tokens marked as special (`<|im_end|>`); other added
    /// tokens (`<tool_call>`) stay.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let text = |run: Option<&[u32]>| match run {
            Some(ids) => self.inner.decode(ids, skip_special).unwrap_or_default(),
            None if skip_special => String::new(),
            None => self.images.get().map_or(IMAGE_TOKENS[1], ImageText::token).to_owned(),
        };
        images::runs(ids).map(text).collect()
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

    /// The added tokens' texts, and whether they are marked as special.
    pub(super) fn added_tokens(&self) -> Vec<(String, bool)> {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        added.values().map(|token| (token.content.clone(), token.special)).collect()
    }

    /// Writes the files into a model directory, byte for byte as they were read.
    pub fn save(&self, dir: &Path) -> Result<()> {
        for (name, bytes) in &self.files {
            let path = dir.join(name);
            let folder = path.parent().unwrap_or(dir);
            std::fs::create_dir_all(folder)
                .map_err(|error| Error::io(Kind::Store, "make the directory", folder, &error))?;
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

    /// A token of tokenizer_config.json (`eos_token`, `bos_token`).
    pub(super) fn named_token(&self, name: &str) -> Result<Option<String>> {
        let config = self.json("tokenizer_config.json")?;
        Ok(config.get(name).and_then(content).map(str::to_owned))
    }

    /// The tokens with names that chat templates may print, as in transformers: the usual ones of
    /// tokenizer_config.json (`pad_token`), or of special_tokens_map.json in the layout without
    /// `added_tokens_decoder`, and the named ones of `extra_special_tokens`. Empty ones are left
    /// out.
    pub(super) fn named_tokens(&self) -> Result<BTreeMap<String, String>> {
        const NAMES: [&str; 7] =
            ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
        let config = self.json("tokenizer_config.json")?;
        let older = if config.get("added_tokens_decoder").is_some() {
            Value::Null
        } else {
            self.json("special_tokens_map.json")?
        };
        let named = NAMES.into_iter().filter_map(|name| {
            let token = config.get(name).filter(|token| !token.is_null()).or_else(|| older.get(name))?;
            Some((name.to_owned(), content(token)?.to_owned()))
        });
        let extra = config.get("extra_special_tokens").and_then(Value::as_object).into_iter().flatten();
        let extra = extra.filter_map(|(name, token)| Some((name.clone(), content(token)?.to_owned())));
        Ok(extra.chain(named).filter(|(_, token)| !token.is_empty()).collect())
    }
}

/// The text of a token of the configuration: a string, or an object with `content`.
fn content(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// The encoding of bytes in a vocabulary.
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
mod tests;
