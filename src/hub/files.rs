//! Selects the files that a model needs: configuration, tokenizer, template, weights in
//! safetensors. Other files are not downloaded, pickles in particular.

use std::collections::BTreeSet;

use serde_json::Value;

use super::id::is_path;
use crate::error::{Error, Kind, Result, suggest};

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
pub(super) const TOKENIZER: &str = "tokenizer.json";
const ADAPTER: &str = "adapter_model.safetensors";

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DownloadPlan {
    /// Configuration, tokenizer, template.
    pub(super) small: Vec<String>,
    /// The index of the shards, if the weights are sharded.
    pub(super) index: Option<String>,
    /// The weights, if there is no index.
    pub(super) weights: Vec<String>,
}

/// Selects from the file names of a repository.
///
/// # Errors
/// [`Kind::Model`] if a name would leave the cache, or if there are no weights in a supported
/// format.
pub(super) fn plan(names: &[String]) -> Result<DownloadPlan> {
    check(names, Kind::Model)?;
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    let mut plan = DownloadPlan { small: small(names), ..DownloadPlan::default() };
    if has(SINGLE) {
        plan.weights.push(SINGLE.to_owned());
    } else if has(INDEX) {
        plan.index = Some(INDEX.to_owned());
    }
    if has(ADAPTER) {
        plan.weights.push(ADAPTER.to_owned());
    }
    if plan.weights.is_empty() && plan.index.is_none() {
        return Err(no_weights(names));
    }
    if !has("config.json") && !has("adapter_config.json") {
        return Err(Error::new(Kind::Model, "the repository has weights and no config.json"));
    }
    Ok(plan)
}

/// The GGUF file of a repository with this path, or whose name ends with it (`Q4_K_M`).
///
/// # Errors
/// [`Kind::Model`] if a name would leave the cache, or if no file or more than one has this name.
pub(super) fn gguf(names: &[String], wanted: &str) -> Result<String> {
    check(names, Kind::Model)?;
    let files: Vec<&String> = names.iter().filter(|name| name.ends_with(".gguf")).collect();
    if let Some(name) = files.iter().find(|name| **name == wanted) {
        return Ok((*name).clone());
    }
    let ends = |name: &str| {
        let (stem, end) = (name.trim_end_matches(".gguf").to_lowercase(), wanted.to_lowercase());
        stem.strip_suffix(&end).is_some_and(|start| start.ends_with(['-', '_', '.']))
    };
    let matching: Vec<&str> = files.iter().map(|name| name.as_str()).filter(|name| ends(name)).collect();
    match matching.as_slice() {
        [name] => Ok((*name).to_owned()),
        [] => Err(Error::new(Kind::Model, format!("the repository has no GGUF file `{wanted}`"))
            .hint(suggest(wanted, files.iter().map(|name| name.as_str())))),
        several => {
            Err(Error::new(Kind::Model, format!("{} GGUF files of the repository are `{wanted}`", several.len()))
                .hint(format!("name one: {}", several.join(", "))))
        }
    }
}

/// The files of a tokenizer beside a GGUF file.
pub(super) fn beside(names: &[String]) -> Vec<String> {
    if names.iter().any(|name| name == TOKENIZER) { small(names) } else { Vec::new() }
}

/// The files for text: tokenizer, template and configuration.
///
/// # Errors
/// [`Kind::Model`] if a name would leave the cache, or if there is no tokenizer in a supported
/// format.
pub(super) fn text(names: &[String]) -> Result<Vec<String>> {
    check(names, Kind::Model)?;
    if !names.iter().any(|name| name == TOKENIZER) {
        return Err(Error::new(Kind::Model, format!("the repository has no {TOKENIZER}")).hint(
            "an adapter's tokenizer is in the repository of its base model; older models are loaded once with \
             transformers' AutoTokenizer and saved, which writes it",
        ));
    }
    Ok(small(names))
}

/// Refuses names that would leave the cache.
pub(super) fn check(names: &[String], kind: Kind) -> Result<()> {
    let Some(name) = names.iter().find(|name| !is_path(name)) else { return Ok(()) };
    Err(Error::new(kind, format!("the repository has a file named {name:?}, a path outside the repository"))
        .hint("nothing was downloaded; do not trust this repository"))
}

fn small(names: &[String]) -> Vec<String> {
    let mut small: Vec<String> = names.iter().filter(|name| is_small(name)).cloned().collect();
    small.sort();
    small
}

fn is_small(name: &str) -> bool {
    let json = |stem: &str| name == format!("{stem}.json");
    if let Some(template) = name.strip_prefix("additional_chat_templates/") {
        return template.ends_with(".jinja") && !template.contains('/');
    }
    if name.contains('/') {
        return false;
    }
    let (stem, end) = name.split_once('.').unwrap_or((name, ""));
    ["config", "generation_config", "adapter_config", "special_tokens_map", "added_tokens", "vocab"]
        .into_iter()
        .any(json)
        || name == "merges.txt"
        || (stem.starts_with("tokenizer") && matches!(end, "json" | "model"))
        || (stem.starts_with("chat_template") && matches!(end, "jinja" | "json"))
}

fn no_weights(names: &[String]) -> Error {
    let ends = |ends: &[&str]| names.iter().find(|name| ends.iter().any(|end| name.ends_with(end)));
    let convert = "convert it once, with transformers: AutoModelForCausalLM.from_pretrained(…).save_pretrained(DIR)";
    if let Some(name) = ends(&[".bin", ".pt", ".pth", ".ckpt", ".pkl"]) {
        return Error::new(
            Kind::Model,
            format!(
                "the repository has its weights as {name} only: a pickle, which can run any program when it is read"
            ),
        )
        .hint(convert);
    }
    if let Some(name) = ends(&[".gguf"]) {
        return Error::new(Kind::Model, "the repository has GGUF files and no safetensors")
            .hint(format!("name a file after a colon, as in ORG/NAME:{name}"));
    }
    if let Some(name) = ends(&[".onnx", ".h5", ".msgpack", ".npz"]) {
        return Error::new(Kind::Model, format!("the repository has its weights as {name}, which is not supported"))
            .hint("use the repository that it was converted from, with weights in safetensors");
    }
    Error::new(Kind::Model, format!("the repository has no weights: no {SINGLE}, no {INDEX}"))
}

/// The shards listed in an index.
///
/// # Errors
/// [`Kind::Model`] for an index that is damaged or lists files that the repository does not have.
pub(super) fn shards(index: &[u8], names: &[String]) -> Result<Vec<String>> {
    let bad = |why: String| Error::new(Kind::Model, format!("{INDEX} {why}"));
    let index: Value = serde_json::from_slice(index).map_err(|error| bad(format!("is not JSON: {error}")))?;
    let map = index["weight_map"].as_object().ok_or_else(|| bad("has no `weight_map`".to_owned()))?;
    let mut shards = BTreeSet::new();
    for file in map.values() {
        let name = file.as_str().filter(|name| {
            is_path(name) && name.ends_with(".safetensors") && names.iter().any(|listed| listed == name)
        });
        shards.insert(
            name.ok_or_else(|| bad(format!("names {file}, which is not a file of the repository")))?.to_owned(),
        );
    }
    if shards.is_empty() {
        return Err(bad("lists no files".to_owned()));
    }
    Ok(shards.into_iter().collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn only_needed_model_files_are_downloaded() {
        let listed = names(&[
            ".gitattributes",
            "README.md",
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "vocab.json",
            "merges.txt",
            "chat_template.jinja",
            "additional_chat_templates/tool_use.jinja",
            "additional_chat_templates/notes.md",
            "model.safetensors",
            "model.safetensors.index.json",
            "consolidated.safetensors",
            "pytorch_model.bin",
            "original/params.json",
            "onnx/model.onnx",
            "tokenizer.pkl",
            "tokenizer/evil.bin",
            "training_args.bin",
        ]);
        let plan = plan(&listed).unwrap();
        assert_eq!(
            plan.small,
            [
                "additional_chat_templates/tool_use.jinja",
                "chat_template.jinja",
                "config.json",
                "generation_config.json",
                "merges.txt",
                "tokenizer.json",
                "tokenizer_config.json",
                "vocab.json"
            ]
        );
        assert_eq!((plan.index, plan.weights), (None, names(&["model.safetensors"])));
    }

    #[test]
    fn shards_and_adapters_are_selected() {
        let listed =
            names(&["config.json", "model.safetensors.index.json", "model-1.safetensors", "model-2.safetensors"]);
        let plan_of = plan(&listed).unwrap();
        assert_eq!((plan_of.index.as_deref(), plan_of.weights.len()), (Some(INDEX), 0));
        let index =
            br#"{"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}}"#;
        assert_eq!(shards(index, &listed).unwrap(), ["model-1.safetensors", "model-2.safetensors"]);
        let adapter = plan(&names(&["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"])).unwrap();
        assert_eq!(adapter.weights, ["adapter_model.safetensors"]);
        assert_eq!(adapter.small, ["adapter_config.json"]);
    }

    #[test]
    fn hostile_shard_indices_are_refused() {
        let listed = names(&["config.json", "x.bin", "model-1.safetensors"]);
        for index in [
            "{",
            "{}",
            "[]",
            r#"{"weight_map": {}}"#,
            r#"{"weight_map": {"a": 3}}"#,
            r#"{"weight_map": {"a": "../../x.safetensors"}}"#,
            r#"{"weight_map": {"a": "x.bin"}}"#,
            r#"{"weight_map": {"a": "other.safetensors"}}"#,
        ] {
            assert!(shards(index.as_bytes(), &listed).is_err_and(|error| error.kind == Kind::Model), "{index}");
        }
    }

    #[test]
    fn gguf_files_are_found_by_name_or_type() {
        let listed = names(&["README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m.q8_0.gguf", "sub/m-F16.gguf"]);
        for (wanted, file) in [("m-Q8_0.gguf", "m-Q8_0.gguf"), ("q4_k_m", "m-Q4_K_M.gguf"), ("F16", "sub/m-F16.gguf")] {
            assert_eq!(gguf(&listed, wanted).unwrap(), file);
        }
        let message = |wanted: &str| gguf(&listed, wanted).unwrap_err().to_string();
        assert!(message("Q8_0").contains("2 GGUF files of the repository are `Q8_0`"), "{}", message("Q8_0"));
        assert!(message("Q5_K").contains("the repository has no GGUF file `Q5_K`"), "{}", message("Q5_K"));
        assert!(message("README.md").contains("no GGUF file"));
        assert!(beside(&listed).is_empty());
        assert_eq!(beside(&names(&["tokenizer.json", "m.gguf", "x.bin"])), ["tokenizer.json"]);
    }

    #[test]
    fn pickles_and_unknown_weight_formats_are_refused() {
        let error = plan(&names(&["config.json", "pytorch_model.bin"])).unwrap_err();
        assert!(error.message.contains("pytorch_model.bin only: a pickle"), "{error}");
        let error = plan(&names(&["config.json", "model-Q4.gguf"])).unwrap_err();
        assert!(error.hint.unwrap().contains("ORG/NAME:model-Q4.gguf"));
        let error = plan(&names(&["config.json", "model.onnx"])).unwrap_err();
        assert!(error.message.contains("model.onnx"), "{error}");
        let error = plan(&names(&["config.json"])).unwrap_err();
        assert!(error.message.contains("no weights"), "{error}");
        let error = plan(&names(&["config.json", "model.safetensors", "../../.bashrc"])).unwrap_err();
        assert!(error.message.contains("a path outside the repository"), "{error}");
    }
}
