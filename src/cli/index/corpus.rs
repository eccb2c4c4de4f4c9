//! The corpus of an index: rows of dataset files, or the files of a folder with text.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde_json::{Map, Value as Json, json};
use sha2::{Digest, Sha256};

use super::super::index_args::BuildArgs;
use crate::data::{Dataset, find, listed};
use crate::error::{Error, Kind, Result};
use crate::hub::{DataFiles, Hub, ModelId};
use crate::hub::{Fetching, watched};
use crate::search::{Chunks, Passage, PassageFields};
use crate::telemetry::{Interrupt, Reporter};

/// Rows that become passages, and their size.
pub(super) struct Corpus {
    pub(super) source: CorpusSource,
    chunks: Option<Chunks>,
}

pub(super) enum CorpusSource {
    Rows {
        data: Dataset,
        fields: PassageFields,
    },
    /// Text files: those below a folder, sorted by path, or those that were named (the folder is
    /// then empty).
    Texts {
        folder: PathBuf,
        files: Vec<PathBuf>,
    },
}

impl Corpus {
    pub(super) fn open(args: &BuildArgs, reporter: &Reporter, interrupt: Interrupt) -> Result<Self> {
        let chunks = chunks(args)?;
        Ok(Self { source: CorpusSource::open(args, reporter, interrupt)?, chunks })
    }

    /// The passages of a row: one, or its chunks.
    pub(super) fn passages(&self, row: u64) -> Result<Vec<Passage>> {
        let passage = self.source.passage(row)?;
        Ok(match self.chunks {
            Some(chunks) => chunks.of(passage),
            None => vec![passage],
        })
    }

    /// The identity of the corpus: an interrupted build is resumed only for an equal one.
    pub(super) fn identity(&self) -> Result<Json> {
        let mut identity = self.source.identity()?;
        if let Some(Chunks { words: chunk_words, overlap }) = self.chunks {
            identity["chunk_words"] = json!(chunk_words);
            identity["chunk_overlap"] = json!(overlap);
        }
        Ok(identity)
    }
}

/// The size of chunks, if long passages are split.
fn chunks(args: &BuildArgs) -> Result<Option<Chunks>> {
    let Some(chunk_words) = args.chunk_words else { return Ok(None) };
    if args.chunk_overlap >= chunk_words {
        let why = format!("--chunk-overlap is {}, and a chunk has {chunk_words} words", args.chunk_overlap);
        return Err(Error::new(Kind::Usage, why).hint("give fewer words than --chunk-words"));
    }
    Ok(Some(Chunks { words: chunk_words as usize, overlap: args.chunk_overlap as usize }))
}

/// Extensions of text files.
const TEXTS: [&str; 2] = ["txt", "md"];

fn is_text(path: &Path) -> bool {
    path.extension().is_some_and(|end| TEXTS.iter().any(|ending| end == *ending))
}

impl CorpusSource {
    fn open(args: &BuildArgs, reporter: &Reporter, interrupt: Interrupt) -> Result<Self> {
        let files = if let Some(name) = &args.hf {
            fetch(name, args, reporter, interrupt)?
        } else {
            let named = args.corpus.iter().filter(|path| is_text(path)).count();
            if named > 0 && named < args.corpus.len() {
                return Err(Error::new(Kind::Usage, "the corpus mixes text files with other files")
                    .at_path(args.corpus.iter().find(|path| !is_text(path)).unwrap_or(&args.out))
                    .hint("build an index of .txt and .md files, or of dataset files"));
            }
            let folder_files = match &args.corpus[..] {
                all if named > 0 => Some((PathBuf::new(), all.to_vec())),
                [folder] if folder.is_dir() => texts(folder)?.map(|files| (folder.clone(), files)),
                _ => None,
            };
            if let Some((folder, files)) = folder_files {
                if args.id_field.is_some() || args.text_field.is_some() || args.title_field.is_some() {
                    return Err(Error::new(Kind::Usage, "the corpus is a folder of text files, which have no columns")
                        .at_path(args.corpus.first().unwrap_or(&args.out))
                        .hint("the id of a passage is the path of its file, its title the first heading"));
                }
                return Ok(Self::Texts { folder, files });
            }
            find(&args.corpus, Path::new("."), None)?
        };
        let fields = PassageFields {
            id: args.id_field.clone(),
            title: args.title_field.clone(),
            text: args.text_field.clone(),
            number_rows: args.number_rows,
        };
        Ok(Self::Rows { data: Dataset::open(&files, None, &BTreeMap::new())?, fields })
    }

    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Rows { data, .. } => data.len(),
            Self::Texts { files, .. } => files.len() as u64,
        }
    }

    /// The place of a row, for messages.
    pub(super) fn place(&self, row: u64) -> String {
        match self {
            Self::Rows { data, .. } => data.place(row),
            Self::Texts { files, .. } => at(files, row).map(|path| path.display().to_string()).unwrap_or_default(),
        }
    }

    fn passage(&self, row: u64) -> Result<Passage> {
        match self {
            Self::Rows { data, fields } => fields.passage(row, data.fields(row)?),
            Self::Texts { folder, files } => {
                let path = at(files, row).map_or(folder.as_path(), PathBuf::as_path);
                text_file(folder, path)
            }
        }
    }

    fn identity(&self) -> Result<Json> {
        match self {
            Self::Rows { data, fields } => {
                let files: Vec<Json> = data.paths().map(identity).collect::<Result<_>>()?;
                Ok(json!({ "files": files, "rows": data.len(), "fields": fields }))
            }
            Self::Texts { folder, files } => {
                let mut hash = Sha256::new();
                for path in files {
                    hash.update(identity(path)?.to_string());
                }
                Ok(json!({ "folder": folder, "rows": files.len(), "sha256": format!("{:x}", hash.finalize()) }))
            }
        }
    }
}

fn at(files: &[PathBuf], row: u64) -> Option<&PathBuf> {
    files.get(usize::try_from(row).ok()?)
}

fn fetch(name: &str, args: &BuildArgs, reporter: &Reporter, interrupt: Interrupt) -> Result<Vec<PathBuf>> {
    let id = ModelId::dataset(name)?;
    let wanted = DataFiles { splits: &[&args.split], subset: args.subset.as_deref().unwrap_or_default(), file: "" };
    let fetching = Fetching { reporter, interrupt: Some(interrupt) };
    watched(name, fetching, |watch| Hub::from_env()?.fetch_data(&id, &wanted, watch))
}

/// Bytes at both ends of a file that are part of its identity.
const ENDS: u64 = 1 << 20;

/// Path, size, time of the last change, and a hash of both ends: a corpus may be too large to be
/// hashed before every build.
fn identity(path: &Path) -> Result<Json> {
    let read = || -> std::io::Result<Json> {
        let mut file = File::open(path)?;
        let meta = file.metadata()?;
        let mut hash = Sha256::new();
        for start in [0, meta.len().saturating_sub(ENDS)] {
            file.seek(SeekFrom::Start(start))?;
            let mut end = Vec::new();
            Read::by_ref(&mut file).take(ENDS).read_to_end(&mut end)?;
            hash.update(&end);
        }
        let changed = meta.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let changed = changed.map_or(0, |since| since.as_secs());
        Ok(
            json!({ "path": path, "bytes": meta.len(), "changed": changed, "sha256_of_ends": format!("{:x}", hash.finalize()) }),
        )
    };
    read().map_err(|error| Error::io(Kind::Data, "read the corpus", path, &error))
}

/// The .txt and .md files below a folder; `None` if it also has dataset files, or only those.
fn texts(folder: &Path) -> Result<Option<Vec<PathBuf>>> {
    let (mut texts, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for path in listed(&folder).map_err(|error| Error::io(Kind::Data, "read the corpus", &folder, &error))? {
            let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            if hidden {
                continue;
            }
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else if crate::config::DataFormat::of(&path).is_some() {
                return Ok(None);
            } else if is_text(&path) {
                texts.push(path);
            }
        }
    }
    texts.sort_unstable();
    if texts.is_empty() {
        return Err(Error::new(Kind::Data, "the folder has no files that can be indexed")
            .at_path(folder)
            .hint("it reads .txt and .md, or the dataset files .jsonl, .json, .csv, .tsv, .parquet, .arrow"));
    }
    Ok(Some(texts))
}

/// A file as a passage: its path as id, and as title its first Markdown heading, or its name.
fn text_file(folder: &Path, path: &Path) -> Result<Passage> {
    let id = path.strip_prefix(folder).unwrap_or(path).display().to_string();
    crate::error::readable(path).map_err(|error| Error::io(Kind::Data, "read the file", path, &error))?;
    let bytes = std::fs::read(path).map_err(|error| Error::io(Kind::Data, "read the file", path, &error))?;
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&bytes);
    let text = crate::data::utf8(bytes, path, 1)?;
    let heading = text.lines().find_map(|line| line.strip_prefix("# ")).map(str::trim);
    let heading = heading.filter(|_| path.extension().is_some_and(|end| end == "md"));
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let title = heading.map_or_else(|| stem.into_owned(), str::to_owned);
    Ok(Passage { id, title, text: text.to_owned(), columns: Map::new() })
}
