//! Published datasets that `r1 data get` downloads: the only list of their names, sources,
//! revisions, licences and columns.
//!
//! A revision is a commit where a published one is known; otherwise it is a branch, and the commit
//! is recorded at the download (`dataset.json`). Licences are those that the publishers state.

use std::path::Path;

use super::mapping::{self, Mapping};
use crate::error::{Error, Kind, Result, suggest};

/// A published dataset.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) name: &'static str,
    /// Other names for it.
    pub(crate) aliases: &'static [&'static str],
    /// One line for `r1 data list`.
    pub(crate) about: &'static str,
    /// Its repository on the Hugging Face Hub.
    pub(crate) hub: &'static str,
    /// A commit, a branch, or another reference of the Hub.
    pub(crate) revision: &'static str,
    /// The folder of the files, or empty.
    pub(crate) subset: &'static str,
    pub(crate) splits: &'static [SplitFiles],
    pub(crate) licence: &'static str,
    /// The publication or the page of the data.
    pub(crate) source: &'static str,
    /// verl's `data_source`, which selects the scoring function there.
    pub(crate) data_source: &'static str,
    /// verl's `ability`.
    pub(crate) ability: &'static str,
    /// The columns of the rows that are written.
    pub(crate) columns: &'static str,
    /// The source repeats rows, which are written once.
    pub(crate) repeated: bool,
    pub(crate) mapping: Mapping,
}

/// A split of a published dataset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SplitFiles {
    /// The name of the file that is written.
    pub(crate) name: &'static str,
    /// The split on the Hub.
    pub(crate) split: &'static str,
    /// File names instead, or empty; `*` matches any text.
    pub(crate) file: &'static str,
    /// Number of rows that are published, for `r1 data list`; 0: not stated.
    pub(crate) rows: u64,
}

const fn split(name: &'static str, split: &'static str, rows: u64) -> SplitFiles {
    SplitFiles { name, split, file: "", rows }
}

const fn file(name: &'static str, file: &'static str, rows: u64) -> SplitFiles {
    SplitFiles { name, split: "", file, rows }
}

/// The fields that most datasets share.
const PLAIN: Published = Published {
    name: "",
    aliases: &[],
    about: "",
    hub: "",
    revision: "main",
    subset: "",
    splits: &[],
    licence: "not stated",
    source: "",
    data_source: "",
    ability: "math",
    columns: "problem, answer",
    repeated: false,
    mapping: mapping::as_it_is,
};

/// The branch with the Hub's own Parquet files of a dataset that is published as a program.
const CONVERTED: &str = "refs/convert/parquet";

/// All of them, by name.
pub(crate) const CATALOG: &[Published] = &[
    Published {
        name: "2wikimultihopqa",
        aliases: &["2wiki"],
        about: "questions over two or more Wikipedia pages",
        hub: "framolfese/2WikiMultihopQA",
        revision: "fe713bfbd1afbca1a65246741a75890405d56a3a",
        splits: &[split("train", "train", 167_454), split("validation", "validation", 12_576)],
        licence: "Apache-2.0",
        source: "arXiv:2011.01060",
        data_source: "searchR1_2wikimultihopqa",
        ability: "fact-reasoning",
        columns: "id, question, answers, type, paragraphs",
        mapping: mapping::hotpotqa,
        ..PLAIN
    },
    Published {
        name: "aime24",
        aliases: &["aime-2024", "aime2024"],
        about: "the 30 problems of AIME 2024",
        hub: "HuggingFaceH4/aime_2024",
        revision: "2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
        splits: &[split("test", "train", 30)],
        licence: "not stated; problems: Mathematical Association of America",
        source: "https://artofproblemsolving.com/wiki/index.php/2024_AIME_I",
        data_source: "aime2024",
        columns: "id, problem, answer, solution",
        mapping: mapping::aime,
        ..PLAIN
    },
    Published {
        name: "aime25",
        aliases: &["aime-2025", "aime2025"],
        about: "the 30 problems of AIME 2025",
        hub: "math-ai/aime25",
        revision: "563bb8404243c5f09de6ec262f2db674fe5bce9b",
        splits: &[split("test", "test", 30)],
        licence: "not stated; problems: Mathematical Association of America",
        source: "https://artofproblemsolving.com/wiki/index.php/2025_AIME_I",
        data_source: "aime2025",
        columns: "id, problem, answer",
        mapping: mapping::aime,
        ..PLAIN
    },
    Published {
        name: "autoscholarquery",
        aliases: &["pasa", "auto-scholar-query"],
        about: "paper search: questions with the papers that answer them (PaSa); gated",
        hub: "CarlanLark/pasa-dataset",
        revision: "232428b0c867268c3b8ded90db4d98c1b30501d6",
        splits: &[
            file("train", "AutoScholarQuery/train.jsonl", 33_551),
            file("validation", "AutoScholarQuery/dev.jsonl", 1_000),
            file("test", "AutoScholarQuery/test.jsonl", 1_000),
        ],
        licence: "CC BY-NC-SA 4.0",
        source: "arXiv:2501.10120",
        data_source: "autoscholarquery",
        ability: "paper-search",
        columns: "id, question, answers, arxiv_ids, published_time",
        mapping: mapping::pasa,
        ..PLAIN
    },
    Published {
        name: "countdown",
        aliases: &["countdown-tasks", "countdown-tasks-3to4"],
        about: "3 or 4 numbers and a target for an arithmetic expression",
        hub: "Jiayi-Pan/Countdown-Tasks-3to4",
        splits: &[split("train", "train", 490_364)],
        source: "https://github.com/Jiayi-Pan/TinyZero",
        data_source: "countdown",
        columns: "target, nums",
        mapping: mapping::countdown,
        ..PLAIN
    },
    Published {
        name: "dapo-math-17k",
        aliases: &["dapo", "dapo-math"],
        about: "competition problems with integer answers (DAPO, ReTool)",
        hub: "BytedTsinghua-SIA/DAPO-Math-17k",
        revision: "65877096c24ffa7abc4e4fa5edb95cf3413a5674",
        splits: &[split("train", "train", 17_917)],
        licence: "Apache-2.0",
        source: "arXiv:2503.14476",
        data_source: "math_dapo",
        repeated: true,
        mapping: mapping::dapo,
        ..PLAIN
    },
    Published {
        name: "gsm8k",
        about: "grade-school word problems",
        hub: "openai/gsm8k",
        revision: "740312add88f781978c0658806c59bc2815b9866",
        subset: "main",
        splits: &[split("train", "train", 7_473), split("test", "test", 1_319)],
        licence: "MIT",
        source: "arXiv:2110.14168",
        data_source: "openai/gsm8k",
        columns: "problem, answer, solution",
        mapping: mapping::gsm8k,
        ..PLAIN
    },
    Published {
        name: "hotpotqa",
        aliases: &["hotpot-qa", "hotpot"],
        about: "questions over two Wikipedia pages, with distractors",
        hub: "hotpotqa/hotpot_qa",
        revision: "1908d6afbbead072334abe2965f91bd2709910ab",
        subset: "distractor",
        splits: &[split("train", "train", 90_447), split("validation", "validation", 7_405)],
        licence: "CC BY-SA 4.0",
        source: "arXiv:1809.09600",
        data_source: "searchR1_hotpotqa",
        ability: "fact-reasoning",
        columns: "id, question, answers, type, level, paragraphs",
        mapping: mapping::hotpotqa,
        ..PLAIN
    },
    Published {
        name: "math-500",
        aliases: &["math", "math500"],
        about: "500 problems of the test split of MATH",
        hub: "HuggingFaceH4/MATH-500",
        revision: "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
        splits: &[split("test", "test", 500)],
        licence: "MIT (MATH)",
        source: "arXiv:2305.20050",
        data_source: "HuggingFaceH4/MATH-500",
        columns: "id, problem, answer, solution, subject, level",
        mapping: mapping::math_500,
        ..PLAIN
    },
    Published {
        name: "metamathqa",
        aliases: &["metamath"],
        about: "rewritten problems of GSM8K and MATH (RAGEN)",
        hub: "meta-math/MetaMathQA",
        revision: "aa4f34d3d2d3231299b5b03d9b3e5a20da45aa18",
        splits: &[file("train", "MetaMathQA-395K.json", 395_000)],
        licence: "MIT",
        source: "arXiv:2309.12284",
        data_source: "metamathqa",
        columns: "problem, answer, solution, type",
        mapping: mapping::metamathqa,
        ..PLAIN
    },
    Published {
        name: "musique",
        about: "questions of 2 to 4 hops",
        hub: "dgslibisey/MuSiQue",
        revision: "c8f4f8c9465fb69d31a8eae894c3fd509c4ca321",
        splits: &[
            file("train", "musique_ans_v1.0_train.jsonl", 19_938),
            file("validation", "musique_ans_v1.0_dev.jsonl", 2_417),
        ],
        licence: "CC BY 4.0",
        source: "arXiv:2108.00573",
        data_source: "searchR1_musique",
        ability: "fact-reasoning",
        columns: "id, question, answers, paragraphs",
        mapping: mapping::musique,
        ..PLAIN
    },
    Published {
        name: "retool-sft",
        about: "2,000 conversations with a code interpreter, for a cold start",
        hub: "JoeYing/ReTool-SFT",
        splits: &[split("train", "train", 2_000)],
        source: "arXiv:2504.11536",
        data_source: "retool_sft",
        columns: "messages, tools",
        ..PLAIN
    },
    Published {
        name: "tabfact",
        aliases: &["tab-fact"],
        about: "statements about Wikipedia tables, true or false",
        hub: "wenhu/tab_fact",
        revision: CONVERTED,
        subset: "tab_fact",
        splits: &[
            split("train", "train", 92_283),
            split("validation", "validation", 12_792),
            split("test", "test", 12_779),
        ],
        licence: "CC BY 4.0",
        source: "arXiv:1909.02164",
        data_source: "tabfact",
        ability: "table",
        columns: "id, question, answer, table",
        mapping: mapping::tabfact,
        ..PLAIN
    },
    Published {
        name: "wikitablequestions",
        aliases: &["wtq", "wiki-table-questions"],
        about: "questions over Wikipedia tables",
        hub: "stanfordnlp/wikitablequestions",
        revision: CONVERTED,
        subset: "default",
        splits: &[
            split("train", "train", 11_321),
            split("validation", "validation", 2_831),
            split("test", "test", 4_344),
        ],
        licence: "CC BY-SA 4.0",
        source: "arXiv:1508.00305",
        data_source: "wikitablequestions",
        ability: "table",
        columns: "id, question, answers, table",
        mapping: mapping::wikitablequestions,
        ..PLAIN
    },
];

impl Published {
    fn is_called(&self, name: &str) -> bool {
        let plain = |name: &str| name.to_ascii_lowercase().replace('_', "-");
        plain(self.name) == plain(name) || self.aliases.iter().any(|alias| plain(alias) == plain(name))
    }
}

/// The dataset with a name or an alias, in any case.
///
/// # Errors
/// [`Kind::Usage`] for an unknown name, with the nearest ones.
pub(crate) fn published(name: &str) -> Result<&'static Published> {
    CATALOG.iter().find(|dataset| dataset.is_called(name)).ok_or_else(|| {
        let known = CATALOG.iter().flat_map(|dataset| dataset.aliases.iter().copied().chain([dataset.name]));
        let near = crate::error::nearest(name, known.clone());
        // Without a near one the list has the names alone.
        let hint = if near.is_empty() {
            suggest(name, CATALOG.iter().map(|dataset| dataset.name))
        } else {
            suggest(name, known)
        };
        Error::new(Kind::Usage, format!("there is no dataset `{name}`"))
            .hint(format!("{hint}; r1 data list shows all; another dataset of the Hub is data.train.hf=ORG/NAME"))
    })
}

/// How to get the missing file of a published dataset: for a path with its name in a folder or in
/// the file.
pub(crate) fn hint_for(missing: &Path) -> Option<String> {
    let stem = |part: &std::ffi::OsStr| Some(part.to_str()?.split('.').next()?.to_owned());
    let parts: Vec<String> = missing.iter().filter_map(stem).collect();
    let (dataset, folder) = parts.iter().enumerate().rev().find_map(|(place, part)| {
        let dataset = CATALOG.iter().find(|dataset| dataset.is_called(part))?;
        // The last part is the file.
        let folder = (place + 1 < parts.len()).then(|| missing.iter().take(place + 1).collect::<std::path::PathBuf>());
        Some((dataset, folder))
    })?;
    let name = dataset.name;
    let split = dataset.splits.first().map_or("train", |split| split.name);
    Some(match folder {
        Some(folder) if folder != Path::new("data").join(name) => {
            format!("r1 data get {name} --out {} downloads it", folder.display())
        }
        Some(_) => format!("r1 data get {name} downloads it"),
        None => format!("r1 data get {name} downloads it to data/{name}/{split}.jsonl"),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::hub::ModelId;

    #[test]
    fn catalog_is_sorted_and_complete() {
        assert!(CATALOG.is_sorted_by(|a, b| a.name < b.name));
        let mut names: Vec<&str> =
            CATALOG.iter().flat_map(|own| own.aliases.iter().copied().chain([own.name])).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        for dataset in CATALOG {
            ModelId::dataset(&format!("{}@{}", dataset.hub, dataset.revision)).unwrap();
            assert!(!dataset.splits.is_empty() && !dataset.about.is_empty() && !dataset.source.is_empty());
            assert!(!dataset.data_source.is_empty() && !dataset.licence.is_empty());
        }
    }

    #[test]
    fn datasets_have_aliases_and_unknown_names_the_nearest() {
        assert_eq!(published("MATH").unwrap().name, "math-500");
        assert_eq!(published("2wiki").unwrap().name, "2wikimultihopqa");
        assert_eq!(published("dapo_math_17k").unwrap().name, "dapo-math-17k");
        let hint = |name: &str| published(name).unwrap_err().hint.unwrap();
        assert!(hint("gsm8").starts_with("did you mean `gsm8k`?"), "{}", hint("gsm8"));
        assert!(hint("zzz").starts_with("known: `2wikimultihopqa`, `aime24`"), "{}", hint("zzz"));
    }

    #[test]
    fn missing_files_name_the_command_that_fetches_them() {
        let hint = |path: &str| hint_for(Path::new(path));
        assert_eq!(hint("data/gsm8k/train.jsonl").unwrap(), "r1 data get gsm8k downloads it");
        assert_eq!(
            hint("../sets/hotpotqa/train.jsonl").unwrap(),
            "r1 data get hotpotqa --out ../sets/hotpotqa downloads it"
        );
        assert_eq!(hint("aime24.jsonl").unwrap(), "r1 data get aime24 downloads it to data/aime24/test.jsonl");
        assert_eq!(hint("data/mine/train.jsonl"), None);
    }
}
