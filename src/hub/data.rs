//! Selects the files of a split in a dataset repository: JSON lines, JSON, CSV or Parquet, by the
//! conventions of the Hugging Face Hub.
//!
//! A split is the name of a folder (`train/0.parquet`) or part of a file name
//! (`train-00000-of-00002.parquet`, `my_train.csv`); a subset is a folder. A repository without
//! split names has one split, `train`.

use super::files::check;
use crate::error::{Error, Kind, Result, suggest};
use crate::glob::matches;

/// The part of a dataset to download.
#[derive(Clone, Copy, Debug, Default)]
pub struct DataFiles<'a> {
    /// Names of the split; the first one that the dataset has is used.
    pub splits: &'a [&'a str],
    /// The folder of the files, or empty.
    pub subset: &'a str,
    /// File names instead, or empty; `*` matches any text.
    pub file: &'a str,
}

/// Extensions of files with rows, the preferred first.
const ENDINGS: [&str; 12] = [
    ".parquet",
    ".arrow",
    ".jsonl",
    ".jsonl.zst",
    ".jsonl.gz",
    ".ndjson",
    ".csv",
    ".csv.gz",
    ".tsv",
    ".json",
    ".json.zst",
    ".json.gz",
];

/// Names of the splits.
const NAMES: [&[&str]; 3] =
    [&["train", "training"], &["validation", "valid", "val", "dev", "eval"], &["test", "testing", "eval"]];

/// Selects from the file names of a repository, in the order of their rows.
///
/// # Errors
/// [`Kind::Data`] with the available names, if no file or more than one selection matches.
pub(super) fn choose(names: &[String], wanted: &DataFiles<'_>) -> Result<Vec<String>> {
    check(names, Kind::Data)?;
    let mut data: Vec<&str> = names.iter().map(String::as_str).filter(|name| has_rows(name)).collect();
    data.sort_unstable();
    if !wanted.file.is_empty() {
        let matching: Vec<&str> = data.iter().copied().filter(|name| matches(wanted.file, name)).collect();
        if matching.is_empty() {
            return Err(Error::new(Kind::Data, format!("the dataset has no file `{}`", wanted.file))
                .hint(suggest(wanted.file, data.iter().copied())));
        }
        return Ok(owned(&matching));
    }
    if data.is_empty() {
        return Err(Error::new(Kind::Data, "the dataset has no files in a supported format")
            .hint(format!("supported: {}", ENDINGS.join(", "))));
    }
    if !wanted.subset.is_empty() {
        data.retain(|name| folders(name).any(|folder| folder == wanted.subset));
        if data.is_empty() {
            return Err(Error::new(Kind::Data, format!("the dataset has no subset `{}`", wanted.subset))
                .hint(available("folders", &subsets(names))));
        }
    }
    let nameless = || NAMES.iter().all(|names| named(&data, names[0]).is_empty());
    let mut splits = wanted.splits.iter().map(|split| match (*split, named(&data, split)) {
        ("train", files) if files.is_empty() && nameless() => ("train", data.clone()),
        files => files,
    });
    let Some((split, files)) = splits.find(|(_, files)| !files.is_empty()) else {
        let split = wanted.splits.join("` or `");
        return Err(Error::new(Kind::Data, format!("the dataset has no split `{split}`"))
            .hint(format!("{}; `file` names one", available("files", &owned(&data)))));
    };
    // The same rows may exist in several formats.
    let ending = ENDINGS.iter().find(|ending| files.iter().any(|name| name.ends_with(**ending))).copied();
    let files: Vec<&str> =
        files.into_iter().filter(|name| ending.is_some_and(|ending| name.ends_with(ending))).collect();
    let of = subsets(&owned(&files));
    if of.len() > 1 {
        return Err(Error::new(Kind::Data, format!("the dataset has the split `{split}` more than once"))
            .hint(format!("choose with `subset`: {}", of.join(", "))));
    }
    Ok(owned(&files))
}

/// Whether all parts of numbered files exist (`train-00000-of-00002.parquet`).
pub(super) fn complete(names: &[String]) -> bool {
    names.iter().all(|name| {
        let stem = name.rsplit_once('.').map_or(name.as_str(), |(stem, _)| stem);
        let Some((_, of)) = stem.rsplit_once("-of-") else { return true };
        let count = of.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok());
        let mark = format!("-of-{of}");
        count.is_none_or(|count: usize| names.iter().filter(|name| name.contains(&mark)).count() == count)
    })
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn has_rows(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    let about = ["dataset_infos.json", "dataset_info.json", "config.json", "metadata.json", "package.json"];
    !file.starts_with('.') && !about.contains(&file) && ENDINGS.iter().any(|ending| file.ends_with(ending))
}

/// The files with a split's name in their path.
fn named<'a>(data: &[&'a str], split: &str) -> Vec<&'a str> {
    let split_names = [split];
    let called = NAMES.iter().find(|names| names[0] == split).copied().unwrap_or(&split_names);
    let has_name = |name: &&str| {
        let stem = name.rsplit_once('.').map_or(*name, |(stem, _)| stem);
        stem.split(['/', '-', '_', '.', ' ']).any(|word| called.iter().any(|called| word.eq_ignore_ascii_case(called)))
    };
    // A name of several words is matched literally.
    data.iter().copied().filter(|name| has_name(name) || (split.contains(['-', '_']) && name.contains(split))).collect()
}

fn folders(name: &str) -> impl Iterator<Item = &str> {
    name.rsplit_once('/').map_or("", |(folders, _)| folders).split('/').filter(|folder| !folder.is_empty())
}

/// The folders that distinguish files: neither `data` nor the name of a split.
fn subsets(names: &[String]) -> Vec<String> {
    let plain = |folder: &&str| *folder != "data" && !NAMES.iter().any(|names| names.contains(folder));
    let mut subsets: Vec<String> = names
        .iter()
        .filter(|name| has_rows(name))
        .map(|name| folders(name).filter(plain).collect::<Vec<_>>().join("/"))
        .collect();
    subsets.sort_unstable();
    subsets.dedup();
    subsets
}

fn available(what: &str, names: &[String]) -> String {
    let shown: Vec<String> =
        names.iter().filter(|name| !name.is_empty()).take(12).map(|name| format!("`{name}`")).collect();
    if shown.is_empty() {
        return format!("it has no {what}");
    }
    let more = if names.len() > 12 { ", …" } else { "" };
    format!("its {what}: {}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn chosen(names: &[&str], split: &str, subset: &str, file: &str) -> Result<Vec<String>, String> {
        choose(&owned(names), &DataFiles { splits: &[split], subset, file }).map_err(|error| error.to_string())
    }

    const GSM8K: [&str; 6] = [
        ".gitattributes",
        "README.md",
        "main/test-00000-of-00001.parquet",
        "main/train-00000-of-00001.parquet",
        "socratic/test-00000-of-00001.parquet",
        "socratic/train-00000-of-00001.parquet",
    ];

    #[test]
    fn dataset_splits_and_subsets_follow_the_hub_conventions() {
        assert_eq!(chosen(&GSM8K, "train", "main", "").unwrap(), ["main/train-00000-of-00001.parquet"]);
        let shards = ["data/train-00001-of-00002.parquet", "data/train-00000-of-00002.parquet", "data/test.parquet"];
        assert_eq!(chosen(&shards, "train", "", "").unwrap(), [shards[1], shards[0]]);
        assert_eq!(chosen(&["a.jsonl", "b.jsonl", "README.md"], "train", "", "").unwrap(), ["a.jsonl", "b.jsonl"]);
        assert_eq!(chosen(&["train/0.csv", "dev/0.csv"], "validation", "", "").unwrap(), ["dev/0.csv"]);
        assert_eq!(chosen(&["Train.jsonl", "Train.parquet"], "train", "", "").unwrap(), ["Train.parquet"]);
        let packed =
            ["en/c4-train.00000-of-00002.json.gz", "en/c4-train.00001-of-00002.json.gz", "en/c4-validation.json.gz"];
        assert_eq!(chosen(&packed, "train", "", "").unwrap(), packed[..2]);
        assert_eq!(
            chosen(&["data/dapo_en-0.parquet", "data/x.parquet"], "dapo_en", "", "").unwrap(),
            ["data/dapo_en-0.parquet"]
        );
        assert_eq!(chosen(&["retrain.csv", "my_train.csv"], "train", "", "").unwrap(), ["my_train.csv"]);
        assert_eq!(chosen(&GSM8K, "x", "", "soc*/t*-of-00001.parquet").unwrap().len(), 2);
        assert_eq!(chosen(&GSM8K, "x", "", "main/test-00000-of-00001.parquet").unwrap().len(), 1);
    }

    #[test]
    fn the_first_of_several_splits_that_exists_is_chosen() {
        let chosen = |names: &[&str]| {
            let wanted = DataFiles { splits: &["validation", "test"], subset: "", file: "" };
            choose(&owned(names), &wanted).map_err(|error| error.to_string())
        };
        assert_eq!(chosen(&["train.csv", "test.csv", "dev.csv"]).unwrap(), ["dev.csv"]);
        assert_eq!(chosen(&["train.csv", "test.csv"]).unwrap(), ["test.csv"]);
        assert_eq!(chosen(&["train.csv", "eval.csv"]).unwrap(), ["eval.csv"]);
        insta::assert_snapshot!(chosen(&["train.csv"]).unwrap_err(), @"
        the dataset has no split `validation` or `test`
          hint: its files: `train.csv`; `file` names one
        ");
    }

    #[test]
    fn a_missing_dataset_file_lists_the_available_ones() {
        insta::assert_snapshot!(chosen(&GSM8K, "train", "", "").unwrap_err(), @r#"
        the dataset has the split `train` more than once
          hint: choose with `subset`: main, socratic
        "#);
        insta::assert_snapshot!(chosen(&GSM8K, "train", "maths", "").unwrap_err(), @r#"
        the dataset has no subset `maths`
          hint: its folders: `main`, `socratic`
        "#);
        insta::assert_snapshot!(chosen(&GSM8K, "validation", "main", "").unwrap_err(), @r#"
        the dataset has no split `validation`
          hint: its files: `main/test-00000-of-00001.parquet`, `main/train-00000-of-00001.parquet`; `file` names one
        "#);
        insta::assert_snapshot!(chosen(&GSM8K, "train", "", "main/tset*").unwrap_err(), @r#"
        the dataset has no file `main/tset*`
          hint: known: `main/test-00000-of-00001.parquet`, `main/train-00000-of-00001.parquet`, `socratic/test-00000-of-00001.parquet`, `socratic/train-00000-of-00001.parquet`
        "#);
        insta::assert_snapshot!(chosen(&["README.md", "x.bin"], "train", "", "").unwrap_err(), @r#"
        the dataset has no files in a supported format
          hint: supported: .parquet, .arrow, .jsonl, .jsonl.zst, .jsonl.gz, .ndjson, .csv, .csv.gz, .tsv, .json, .json.zst, .json.gz
        "#);
        assert!(chosen(&["../x.csv"], "train", "", "").unwrap_err().contains("a path outside the repository"));
    }

    #[test]
    fn missing_parts_of_a_split_are_detected() {
        assert!(complete(&owned(&["a.csv", "train-00000-of-00002.parquet", "train-00001-of-00002.parquet"])));
        assert!(!complete(&owned(&["train-00000-of-00002.parquet"])));
        assert!(complete(&owned(&["train-00000-of-00001-abc.parquet"])));
    }

    #[test]
    fn stars_match_any_file_name() {
        for (pattern, name, fits) in [
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "a", false),
            ("*", "x/y", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "aXYc", false),
            ("ab", "abc", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }
}
