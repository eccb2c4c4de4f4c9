//! The Hub over real sockets: requests, files on disk, and error messages.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod failures;
pub(crate) mod server;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{DataFiles, DownloadEvent, Hub, ModelId, Watch};
use crate::error::{Error, Kind, Result};
use crate::net::Client;
use server::{Repo, Server, etag};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The files of a small model; the weights are long enough for partial downloads.
fn tiny() -> Repo {
    Repo::new(&[
        (".gitattributes", b"*.bin lfs"),
        ("README.md", b"# Tiny"),
        ("config.json", b"{\"model_type\": \"qwen2\"}"),
        ("generation_config.json", b"{}"),
        ("model.safetensors", &weights()),
        ("pytorch_model.bin", b"a pickle"),
        ("tokenizer.json", b"{\"version\": \"1.0\"}"),
        ("tokenizer_config.json", b"{}"),
    ])
}

fn weights() -> Vec<u8> {
    (0..200_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// A Hub at `url` with a cache in `dir`, and short waits.
fn hub(url: &str, dir: &Path, more: &[(&str, &str)]) -> Hub {
    let mut environment: HashMap<&str, String> = more.iter().map(|&(name, value)| (name, value.to_owned())).collect();
    environment.insert("HF_ENDPOINT", url.to_owned());
    environment.insert("HF_HOME", dir.display().to_string());
    let mut hub = Hub::with(&|name| environment.get(name).cloned()).unwrap();
    hub.remote.pause = Duration::from_millis(2);
    hub
}

fn fetch(hub: &Hub, id: &str) -> Result<PathBuf> {
    hub.fetch(&ModelId::parse(id).unwrap(), &Watch { event: &|_| (), stop: &|| false })
}

/// Downloads a model and returns its notes.
fn fetch_noting(hub: &Hub, id: &str) -> (Result<PathBuf>, Vec<String>) {
    let notes = Mutex::new(Vec::new());
    let event = |event: DownloadEvent<'_>| {
        if let DownloadEvent::Note(note) = event {
            notes.lock().unwrap().push(note.to_owned());
        }
    };
    let fetched = hub.fetch(&ModelId::parse(id).unwrap(), &Watch { event: &event, stop: &|| false });
    (fetched, notes.into_inner().unwrap())
}

/// Every path below `dir` with its text, link target, or length.
fn tree(dir: &Path) -> Vec<String> {
    let mut entries = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(dir).unwrap().display().to_string();
            if let Ok(target) = fs::read_link(&path) {
                entries.push(format!("{name} -> {}", target.display()));
            } else if path.is_dir() {
                folders.push(path);
            } else if name.contains("refs/") {
                entries.push(format!("{name} = {}", fs::read_to_string(&path).unwrap()));
            } else {
                entries.push(format!("{name}: {} bytes", fs::metadata(&path).unwrap().len()));
            }
        }
    }
    entries.sort();
    entries
}

#[test]
fn the_hub_cache_has_the_layout_of_huggingface_hub() {
    let (dir, repo) = (tempfile::tempdir().unwrap(), tiny());
    let server = Server::start(repo.clone());
    let hub = hub(&server.url, dir.path(), &[]);
    let fetched = fetch(&hub, "org/tiny").unwrap();
    assert_eq!(fetched, dir.path().join("hub/models--org--tiny/snapshots").join(COMMIT));
    let wanted =
        ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    let mut expected = vec!["CACHEDIR.TAG: 87 bytes".to_owned(), format!("models--org--tiny/refs/main = {COMMIT}")];
    for name in wanted {
        let bytes = &repo.files.iter().find(|(file, _)| file == name).unwrap().1;
        let sum = etag(name, bytes);
        expected.push(format!(".locks/models--org--tiny/{sum}.lock: 0 bytes"));
        expected.push(format!("models--org--tiny/blobs/{sum}: {} bytes", bytes.len()));
        expected.push(format!("models--org--tiny/snapshots/{COMMIT}/{name} -> ../../blobs/{sum}"));
        assert_eq!(&fs::read(fetched.join(name)).unwrap(), bytes, "{name}");
    }
    expected.sort();
    // Two files with the same content are one blob.
    expected.dedup();
    assert_eq!(tree(&dir.path().join("hub")), expected);

    // The second time, one request shows that nothing changed.
    let before = server.requests().len();
    assert_eq!(fetch(&hub, "org/tiny").unwrap(), fetched);
    let lines: Vec<String> = server.requests()[before..].iter().map(|request| request.path.clone()).collect();
    assert_eq!(lines, ["/api/models/org/tiny/revision/main"]);
}

#[test]
fn text_files_are_downloaded_without_weights_and_keep_a_complete_model() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(tiny());
    let quiet = Watch { event: &|_| (), stop: &|| false };
    let id = ModelId::parse("org/tiny").unwrap();
    let text = hub(&server.url, dir.path(), &[]).fetch_text(&id, &quiet).unwrap();
    assert!(text.join("tokenizer.json").is_file() && !text.join("model.safetensors").exists());
    let offline = hub(&server.url, dir.path(), &[("HF_HUB_OFFLINE", "1")]);
    assert_eq!(offline.fetch_text(&id, &quiet).unwrap(), text);
    assert!(offline.fetch(&id, &quiet).unwrap_err().message.contains("not all of it"));
    assert_eq!(fetch(&hub(&server.url, dir.path(), &[]), "org/tiny").unwrap(), text);

    // Text files of a newer commit do not replace the older model.
    let mut newer = tiny();
    newer.commit = "f".repeat(40);
    let server = Server::start(newer);
    let text = hub(&server.url, dir.path(), &[]).fetch_text(&id, &quiet).unwrap();
    assert!(text.ends_with("f".repeat(40)));
    assert!(offline.fetch(&id, &quiet).unwrap().ends_with(COMMIT));

    let server = Server::start(Repo::new(&[("adapter_config.json", b"{}"), ("adapter_model.safetensors", b"x")]));
    let error = hub(&server.url, dir.path(), &[]).fetch_text(&id, &quiet).unwrap_err();
    assert!(error.message.contains("no tokenizer.json") && error.hint.unwrap().contains("base model"));
}

#[test]
fn a_gguf_file_is_downloaded_with_the_tokenizer_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Repo::new(&[
        ("README.md", b"# Tiny"),
        ("m-Q4_0.gguf", &weights()),
        ("m-Q8_0.gguf", b"another"),
        ("tokenizer.json", b"{}"),
    ]));
    let online = hub(&server.url, dir.path(), &[]);
    let path = fetch(&online, "org/tiny:q4_0").unwrap();
    assert!(path.ends_with(format!("snapshots/{COMMIT}/m-Q4_0.gguf")) && fs::read(&path).unwrap() == weights());
    assert!(path.with_file_name("tokenizer.json").is_file() && !path.with_file_name("m-Q8_0.gguf").exists());
    let offline = hub(&server.url, dir.path(), &[("HF_HUB_OFFLINE", "1")]);
    let id = ModelId::parse("org/tiny:m-Q4_0.gguf").unwrap();
    assert_eq!((fetch(&offline, "org/tiny:Q4_0").unwrap(), offline.cached(&id)), (path.clone(), Some(path)));
    assert!(fetch(&offline, "org/tiny:Q8_0").unwrap_err().message.contains("not all of it"));
    let error = fetch(&online, "org/tiny").unwrap_err();
    assert!(error.message.contains("GGUF files and no safetensors") && error.hint.unwrap().contains(":m-Q4_0.gguf"));
}

#[test]
fn the_hub_token_is_sent_only_to_the_hub() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(tiny());
    fs::write(dir.path().join("token"), "hf_file\n").unwrap();
    fetch(&hub(&server.url, dir.path(), &[]), "org/tiny").unwrap();
    let request = server.requests();
    for one in &request {
        let sent = one.headers.get("authorization").map(String::as_str);
        assert_eq!(sent, (!one.at_file_server).then_some("Bearer hf_file"), "{one:?}");
    }
    assert!(request.iter().any(|one| one.at_file_server));
    // HF_TOKEN takes precedence over the file; both can be disabled.
    let shown = |more: &[(&str, &str)]| {
        let before = server.requests().len();
        fetch(&hub(&server.url, dir.path(), more), "org/tiny").unwrap();
        server.requests()[before].headers.get("authorization").cloned()
    };
    assert_eq!(shown(&[("HF_TOKEN", " hf_own ")]).as_deref(), Some("Bearer hf_own"));
    assert_eq!(shown(&[("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
    let hub = hub(&server.url, dir.path(), &[("HF_TOKEN", "hf_secret")]);
    assert!(!format!("{hub:?}").contains("hf_secret"));
}

#[test]
fn a_redirect_to_a_renamed_model_keeps_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::changed(tiny(), |request, _, response| {
        if request.path.contains("/org/old/") || request.path.starts_with("/org/old/") {
            return server::Response::new(307, "").with("Location", &request.path.replace("org/old", "org/tiny"));
        }
        response
    });
    let fetched = fetch(&hub(&server.url, dir.path(), &[("HF_TOKEN", "t")]), "org/old").unwrap();
    assert!(fetched.ends_with(format!("models--org--old/snapshots/{COMMIT}")));
    assert_eq!(fs::read(fetched.join("model.safetensors")).unwrap(), weights());
    assert!(
        server.requests().iter().filter(|one| !one.at_file_server).all(|one| one.headers.contains_key("authorization"))
    );
}

#[test]
fn a_broken_download_resumes_at_its_last_byte() {
    let dir = tempfile::tempdir().unwrap();
    // Cut twice; the second time the server is silent but connected.
    let server = Server::changed(tiny(), |request, before, mut response| {
        if request.at_file_server && before < 2 {
            response.cut = Some([70_000, 60_000][before]);
            response.stall = Duration::from_secs([0, 600][before]);
        }
        response
    });
    let (bytes, lost) = (AtomicU64::new(0), AtomicU64::new(0));
    let event = |event: DownloadEvent<'_>| match event {
        DownloadEvent::Bytes(more) => drop(bytes.fetch_add(more, Ordering::Relaxed)),
        DownloadEvent::Lost(less) => drop(lost.fetch_add(less, Ordering::Relaxed)),
        _ => {}
    };
    let id = ModelId::parse("org/tiny").unwrap();
    let mut hub = hub(&server.url, dir.path(), &[]);
    // Long enough for a slow machine.
    hub.remote.client = Client::new(Duration::from_secs(3)).unwrap();
    let fetched = hub.fetch(&id, &Watch { event: &event, stop: &|| false }).unwrap();
    assert_eq!(fs::read(fetched.join("model.safetensors")).unwrap(), weights());
    let ranges: Vec<_> = server
        .requests()
        .iter()
        .filter(|one| one.at_file_server)
        .map(|one| one.headers.get("range").cloned())
        .collect();
    assert_eq!(ranges, [None, Some("bytes=70000-".to_owned()), Some("bytes=130000-".to_owned())]);
    let blobs = fetched.join("../../blobs");
    let all: usize = fs::read_dir(blobs).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap().len()).sum();
    assert_eq!((bytes.into_inner(), lost.into_inner()), (all as u64, 0));
}

#[test]
fn an_interrupted_download_is_resumed_by_the_next_run() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::changed(tiny(), |request, before, mut response| {
        if request.at_file_server && before == 0 {
            response.cut = Some(90_000);
            response.stall = Duration::from_mins(10);
        }
        response
    });
    let hub = hub(&server.url, dir.path(), &[]);
    let bytes = AtomicU64::new(0);
    let event = |event: DownloadEvent<'_>| {
        if let DownloadEvent::Bytes(more) = event {
            bytes.fetch_add(more, Ordering::Relaxed);
        }
    };
    let stop = || bytes.load(Ordering::Relaxed) >= 90_000;
    let error = hub.fetch(&ModelId::parse("org/tiny").unwrap(), &Watch { event: &event, stop: &stop }).unwrap_err();
    assert_eq!(error.kind, Kind::Interrupted);
    let part =
        dir.path().join("hub/models--org--tiny/blobs").join(etag("model.safetensors", &weights()) + ".incomplete");
    let kept = fs::metadata(&part).unwrap().len();
    assert!(kept > 0 && kept <= 90_000, "{kept}");
    let fetched = fetch(&hub, "org/tiny").unwrap();
    assert_eq!(fs::read(fetched.join("model.safetensors")).unwrap(), weights());
    assert!(!part.exists());
    let last = server.requests().into_iter().rfind(|one| one.at_file_server).unwrap();
    assert_eq!(last.headers["range"], format!("bytes={kept}-"));
}

#[test]
fn the_shards_of_the_index_are_downloaded() {
    let dir = tempfile::tempdir().unwrap();
    let index =
        br#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    let mut repo = Repo::new(&[
        ("config.json", b"{}"),
        ("tokenizer.json", b"{ }"),
        ("consolidated.safetensors", b"the same again"),
        ("model-00001-of-00002.safetensors", b"one"),
        ("model-00002-of-00002.safetensors", b"two"),
        ("model.safetensors.index.json", index),
        ("onnx/model.onnx", b"x"),
    ]);
    repo.revisions = vec!["v1.0".to_owned(), "refs/pr/2".to_owned()];
    let server = Server::start(repo);
    let hub = hub(&server.url, dir.path(), &[]);
    let fetched = fetch(&hub, "org/tiny@v1.0").unwrap();
    let mut names: Vec<_> = fs::read_dir(&fetched).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json"
        ]
    );
    fetch(&hub, "org/tiny@refs/pr/2").unwrap();
    fetch(&hub, &format!("org/tiny@{COMMIT}")).unwrap();
    let refs: Vec<String> =
        tree(&dir.path().join("hub/models--org--tiny")).into_iter().filter(|line| line.starts_with("refs")).collect();
    assert_eq!(refs, [format!("refs/refs/pr/2 = {COMMIT}"), format!("refs/v1.0 = {COMMIT}")]);
}

#[test]
fn dataset_files_are_cached_next_to_models() {
    let dir = tempfile::tempdir().unwrap();
    let mut repo = Repo::new(&[
        ("README.md", b"# Data"),
        ("data/test.jsonl", b"{}"),
        ("data/train-00001-of-00002.parquet", b"two"),
        ("data/train-00000-of-00002.parquet", b"one"),
    ]);
    repo.kind = "datasets";
    let server = Server::start(repo);
    let id = ModelId::dataset("org/tiny").unwrap();
    let fetch = |more: &[(&str, &str)], split: &str| {
        let wanted = DataFiles { splits: &[split], ..DataFiles::default() };
        hub(&server.url, dir.path(), more).fetch_data(&id, &wanted, &Watch { event: &|_| (), stop: &|| false })
    };
    let paths = fetch(&[], "train").unwrap();
    let read: Vec<_> = paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    assert_eq!(read, ["one", "two"]);
    assert!(paths[0].starts_with(dir.path().join("hub/datasets--org--tiny/snapshots").join(COMMIT)));
    assert!(!server.requests().iter().any(|request| request.path.contains("test.jsonl")));
    // Without the Hub the cached files are used if none is missing.
    let request = server.requests().len();
    assert_eq!(fetch(&[("HF_HUB_OFFLINE", "1")], "train").unwrap(), paths);
    assert_eq!(fetch(&[("HF_HUB_OFFLINE", "1")], "test").unwrap_err().kind, Kind::Data);
    fs::remove_file(&paths[1]).unwrap();
    assert_eq!(fetch(&[("HF_HUB_OFFLINE", "1")], "train").unwrap_err().kind, Kind::Data);
    assert_eq!(server.requests().len(), request);
    let error = fetch(&[], "validation").unwrap_err();
    assert!(error.message.contains("no split `validation`"), "{error}");
    let none = ModelId::dataset("org/none").unwrap();
    let error = hub(&server.url, dir.path(), &[]).fetch_data(
        &none,
        &DataFiles::default(),
        &Watch { event: &|_| (), stop: &|| false },
    );
    assert!(error.unwrap_err().message.starts_with("there is no dataset `org/none`"));
}

#[test]
fn a_file_without_a_content_length_is_downloaded() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::changed(tiny(), |request, _, mut response| {
        response.headers.retain(|(name, _)| name != "X-Linked-Size");
        response.no_length = request.method == "HEAD";
        response
    });
    let fetched = fetch(&hub(&server.url, dir.path(), &[]), "org/tiny").unwrap();
    assert_eq!(fs::read(fetched.join("model.safetensors")).unwrap(), weights());
}

#[test]
fn concurrent_processes_download_each_file_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::changed(tiny(), |request, _, mut response| {
        if request.at_file_server {
            response.pieces = response.body.chunks(20_000).map(<[u8]>::to_vec).collect();
        }
        response
    });
    std::thread::scope(|scope| {
        for _ in 0..2 {
            // Each has its own file handles, so locks work as between processes.
            let hub = hub(&server.url, dir.path(), &[]);
            scope.spawn(move || {
                let fetched = fetch(&hub, "org/tiny").unwrap();
                assert_eq!(fs::read(fetched.join("model.safetensors")).unwrap(), weights());
            });
        }
    });
    assert_eq!(server.lines(true).len(), 1, "{:?}", server.lines(true));
}

#[test]
fn hub_settings_come_from_the_environment() {
    let with = |pairs: &[(&str, &str)]| {
        let map: HashMap<String, String> = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Hub::with(&|name| map.get(name).cloned())
    };
    let cache = |pairs: &[(&str, &str)]| with(pairs).unwrap().cache.display().to_string();
    assert_eq!(cache(&[("HOME", "/h")]), "/h/.cache/huggingface/hub");
    assert_eq!(cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), "/x/huggingface/hub");
    assert_eq!(cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "~/models")]), "/h/models/hub");
    assert_eq!(cache(&[("HF_HOME", "/m"), ("HF_HUB_CACHE", "/c")]), "/c");
    let hub = with(&[("HF_HOME", "/m"), ("HF_ENDPOINT", "https://mirror.org/hf/")]).unwrap();
    assert_eq!((hub.remote.endpoint.as_str(), hub.offline), ("https://mirror.org/hf", false));
    assert!(with(&[("HF_HOME", "/m"), ("HF_HUB_OFFLINE", "True")]).unwrap().offline);
    let refused = |pairs: &[(&str, &str)]| with(pairs).map(drop).map_err(|error: Error| error.kind);
    assert_eq!(refused(&[("HF_HOME", "/m"), ("HF_ENDPOINT", "mirror.org")]), Err(Kind::Usage));
    assert_eq!(refused(&[("HF_HOME", "/m"), ("HF_TOKEN", "a\u{7}b")]), Err(Kind::Usage));
    assert_eq!(refused(&[]), Err(Kind::Usage));
}
