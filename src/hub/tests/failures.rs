//! Failed downloads: error messages and the files they leave.

use super::server::{Received, Response};
use super::*;

/// The error of a download whose responses are changed.
fn refused(
    change: impl Fn(&Received, usize, Response) -> Response + Send + Sync + 'static,
) -> (Error, Vec<String>, Server) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::changed(tiny(), change);
    let error = fetch(&hub(&server.url, dir.path(), &[]), "org/tiny").unwrap_err();
    assert_eq!(error.kind, Kind::Model, "{error}");
    let left = if dir.path().join("hub").exists() { tree(&dir.path().join("hub")) } else { Vec::new() };
    (error, left, server)
}

#[test]
fn hub_error_responses_have_distinct_messages() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(tiny());
    let error_of = |id: &str, more: &[(&str, &str)]| {
        let error = fetch(&hub(&server.url, dir.path(), more), id).unwrap_err();
        assert_eq!(error.kind, Kind::Model);
        format!("{error}").replace(&server.url, "HUB")
    };
    insta::assert_snapshot!(error_of("org/none", &[]), @r"
    there is no model `org/none` on HUB
      hint: check the spelling; if it is private or gated, set HF_TOKEN to a token that may read it
    ");
    insta::assert_snapshot!(error_of("org/none", &[("HF_TOKEN", "t")]), @r"
    there is no model `org/none` on HUB
      hint: check the spelling; if it is private or gated, set HF_TOKEN to a token that may read it
    ");
    insta::assert_snapshot!(error_of("org/tiny@v9", &[]), @r"
    `org/tiny` has no revision `v9`
      hint: its branches and tags are at HUB/org/tiny/tree/main
    ");
    assert!(tree(dir.path()).is_empty());
    let gated = Server::changed(tiny(), |request, _, response| match request.headers.get("authorization") {
        _ if request.path.starts_with("/api") => response,
        None => Response::new(401, "").with("X-Error-Code", "GatedRepo"),
        Some(token) if token == "Bearer stranger" => Response::new(403, "").with("X-Error-Code", "GatedRepo"),
        Some(_) => Response::new(401, "").with("X-Error-Message", "Invalid credentials in Authorization header"),
    });
    let error_of = |more: &[(&str, &str)]| {
        let error = fetch(&hub(&gated.url, dir.path(), more), "org/tiny").unwrap_err();
        format!("{error}").replace(&gated.url, "HUB")
    };
    insta::assert_snapshot!(error_of(&[]), @r"
    `org/tiny` is gated: its owners require accepting their terms
      hint: accept the terms at HUB/org/tiny, then set HF_TOKEN to a token of your account
    ");
    insta::assert_snapshot!(error_of(&[("HF_TOKEN", "stranger")]), @r"
    `org/tiny` is gated: its owners require accepting their terms
      hint: accept the terms at HUB/org/tiny with the account that the token (HF_TOKEN) belongs to
    ");
    insta::assert_snapshot!(error_of(&[("HF_TOKEN", "old")]), @r"
    the Hub refuses the token for `org/tiny`: Invalid credentials in Authorization header
      hint: create a token with read access at https://huggingface.co/settings/tokens and set HF_TOKEN
    ");
}

#[test]
fn busy_hub_servers_are_retried() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::changed(tiny(), |request, before, response| match before {
        0 if request.path.starts_with("/api") => Response::new(429, "slow down").with("Retry-After", "0"),
        0 | 1 if request.at_file_server => Response::new(503, ""),
        _ => response,
    });
    fetch(&hub(&server.url, dir.path(), &[]), "org/tiny").unwrap();
    assert_eq!(server.lines(true).len(), 3);
    // Retries and waits are limited.
    let (error, _, server) = refused(|_, _, _| Response::new(429, "").with("Retry-After", "0"));
    assert_eq!(error.message, "the Hub can't serve `org/tiny` now: the Hub responds with 429 (too many requests)");
    assert_eq!(server.requests().len(), 5);
    let (_, _, server) = refused(|_, _, _| Response::new(429, "").with("Retry-After", "86400"));
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn the_retry_after_header_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::changed(tiny(), |request, before, response| match before {
        0 if request.path.starts_with("/api") => Response::new(429, "").with("Retry-After", "1"),
        _ => response,
    });
    let begun = std::time::Instant::now();
    let (fetched, notes) = fetch_noting(&hub(&server.url, dir.path(), &[]), "org/tiny");
    fetched.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert_eq!(notes, ["the Hub responds with 429 (too many requests); trying again in 1 s"]);
}

#[test]
fn damaged_downloads_are_detected_and_removed() {
    // A byte is changed in transit, with the right length: after two attempts the download fails.
    let (error, left, server) = refused(|request, _, mut response| {
        if request.at_file_server {
            response.body[1000] ^= 1;
        }
        response
    });
    assert!(error.message.starts_with("model.safetensors of `org/tiny` was received damaged: its checksum"), "{error}");
    assert_eq!(server.lines(true).len(), 2);
    let sum = etag("model.safetensors", &weights());
    assert!(!left.iter().any(|line| line.contains("blobs/") && line.contains(&sum)), "{left:?}");
    assert!(!left.iter().any(|line| line.contains("refs/")), "{left:?}");
    // Small files have git's checksum.
    let (error, _, _) = refused(|request, _, mut response| {
        if request.path.ends_with("/config.json") && request.method == "GET" {
            response.body[3] ^= 1;
        }
        response
    });
    assert!(error.message.starts_with("config.json of `org/tiny` was received damaged"), "{error}");
    // A server that never stops sending.
    let (error, _, _) = refused(|request, _, mut response| {
        if request.at_file_server {
            response.body.extend(vec![0; 100]);
        }
        response
    });
    assert!(error.message.contains("longer than announced"), "{error}");
}

#[test]
fn an_unusable_partial_download_starts_again() {
    let sum = etag("model.safetensors", &weights());
    for (left, ignores_ranges) in [
        (vec![7_u8; 50_000], false),
        (vec![7; 300_000], false),
        (weights()[..50_000].to_vec(), true),
        (weights(), false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let blobs = dir.path().join("hub/models--org--tiny/blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(format!("{sum}.incomplete")), &left).unwrap();
        let server = Server::changed(tiny(), move |request, _, response| {
            if request.at_file_server && ignores_ranges { Response::new(200, weights()) } else { response }
        });
        let fetched = fetch(&hub(&server.url, dir.path(), &[]), "org/tiny").unwrap();
        assert_eq!(fs::read(fetched.join("model.safetensors")).unwrap(), weights());
        // A complete partial file is verified and not downloaded again.
        assert_eq!(server.lines(true).is_empty(), left == weights());
        assert!(!blobs.join(format!("{sum}.incomplete")).exists());
    }
}

#[test]
fn downloads_over_a_broken_connection_end_after_a_few_attempts() {
    let (error, left, server) = refused(|request, _, mut response| {
        if request.at_file_server {
            response.cut = Some(0);
        }
        response
    });
    assert!(error.message.starts_with("can't fetch `org/tiny`"), "{error}");
    assert_eq!(server.lines(true).len(), 5);
    // Other files, downloaded concurrently, are kept for the next attempt.
    assert!(left.iter().any(|line| line.contains("blobs/") && !line.ends_with(": 0 bytes")), "{left:?}");
}

#[test]
fn the_hub_cache_is_used_offline() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(tiny());
    let gone = "http://127.0.0.1:9";
    let error = fetch(&hub(gone, dir.path(), &[]), "org/tiny").unwrap_err();
    assert!(
        error.kind == Kind::Model && error.message.starts_with("can't fetch `org/tiny` from http://127"),
        "{error}"
    );
    let offline = [("HF_HUB_OFFLINE", "1")];
    let error = fetch(&hub(&server.url, dir.path(), &offline), "org/tiny").unwrap_err();
    assert_eq!(error.message, "`org/tiny` is not in the cache, or not all of it, and HF_HUB_OFFLINE is set");
    assert!(server.requests().is_empty());

    let fetched = fetch(&hub(&server.url, dir.path(), &[]), "org/tiny").unwrap();
    let before = server.requests().len();
    for id in ["org/tiny", &format!("org/tiny@{COMMIT}")] {
        assert_eq!(fetch(&hub(&server.url, dir.path(), &offline), id).unwrap(), fetched);
        let (again, notes) = fetch_noting(&hub(gone, dir.path(), &[]), id);
        assert_eq!(again.unwrap(), fetched);
        assert!(notes.iter().any(|note| note.contains("using the copy in the cache")), "{notes:?}");
        // The wait for an absent server is short.
        let mut patient = hub(gone, dir.path(), &[]);
        patient.remote.pause = Duration::from_secs(1);
        let (_, notes) = fetch_noting(&patient, id);
        assert_eq!(notes.iter().filter(|note| note.contains("trying again")).count(), 1, "{notes:?}");
    }
    assert_eq!(server.requests().len(), before);
    // A refusal of a reachable server is final.
    let strict = Server::changed(tiny(), |_, _, _| Response::new(401, ""));
    assert!(fetch(&hub(&strict.url, dir.path(), &[]), "org/tiny").is_err());
    // An incomplete model counts as missing.
    fs::remove_file(fetched.join("model.safetensors")).unwrap();
    assert!(fetch(&hub(&server.url, dir.path(), &offline), "org/tiny").is_err());
}

#[test]
fn file_names_outside_the_cache_are_refused() {
    for name in ["../../../.bashrc", "/etc/passwd", "a/../../b", "model\\..\\x"] {
        let mut repo = tiny();
        repo.files.push((name.to_owned(), b"x".to_vec()));
        let (dir, server) = (tempfile::tempdir().unwrap(), Server::start(repo));
        let error = fetch(&hub(&server.url, dir.path(), &[]), "org/tiny").unwrap_err();
        assert!(error.message.contains("a path outside the repository"), "{error}");
        assert_eq!(server.requests().len(), 1);
        assert!(tree(dir.path()).is_empty());
    }
    let (error, left, _) = refused(|request, _, mut response| {
        if request.method == "HEAD" {
            response.headers.retain(|(name, _)| !name.to_lowercase().contains("etag"));
            return response.with("ETag", "\"../../../../x\"");
        }
        response
    });
    assert!(error.message.contains("ETag can't be the name of a file"), "{error}");
    assert!(!left.iter().any(|line| line.contains("blobs/")), "{left:?}");
    let (error, left, _) = refused(|_, _, response| {
        let body = String::from_utf8_lossy(&response.body).replace(COMMIT, "../../../x");
        Response { body: body.into_bytes(), ..response }
    });
    assert!(error.message.contains("does not respond like a Hub server: no commit"), "{error}");
    assert!(left.is_empty());
}

#[test]
fn hub_redirects_are_limited() {
    for location in ["file:///etc/passwd", "", "gopher://x/y"] {
        let (error, _, _) = refused(move |request, _, response| {
            if request.path.starts_with("/api") { Response::new(302, "").with("Location", location) } else { response }
        });
        assert!(error.message.contains("a redirect that can't be followed"), "{error}");
    }
    let (error, _, _) = refused(|request, _, _| Response::new(302, "").with("Location", &request.path));
    assert!(error.message.contains("too many redirects"), "{error}");
}

#[test]
fn pickles_are_never_downloaded() {
    let mut repo = tiny();
    repo.files.retain(|(name, _)| name != "model.safetensors");
    let (dir, server) = (tempfile::tempdir().unwrap(), Server::start(repo));
    let error = fetch(&hub(&server.url, dir.path(), &[]), "org/tiny").unwrap_err();
    assert!(error.message.contains("pytorch_model.bin only: a pickle"), "{error}");
    assert!(error.hint.unwrap().contains("save_pretrained"));
    assert_eq!(server.lines(false), ["GET /api/models/org/tiny/revision/main"]);
}

#[test]
fn a_server_that_is_not_a_hub_is_an_error() {
    for body in
        ["<html>", "{}", r#"{"sha": 3, "siblings": []}"#, r#"{"sha": "0123456789abcdef0123456789abcdef01234567"}"#]
    {
        let (error, _, _) = refused(move |_, _, _| Response::new(200, body));
        assert!(error.message.contains("does not respond like a Hub server"), "{error}");
    }
}

#[test]
fn a_server_without_ranges_that_disconnects_is_not_retried_forever() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::changed(tiny(), |request, _, response| {
        if request.at_file_server {
            // Always the complete file from its first byte, and always cut at the same place.
            Response { cut: Some(50), ..Response::new(200, weights()) }
        } else {
            response
        }
    });
    let hub = hub(&server.url, dir.path(), &[]);
    let (fetched, notes) = fetch_noting(&hub, "org/tiny");
    let error = fetched.unwrap_err();
    assert!(error.to_string().contains("model.safetensors"), "{error}");
    let request = server.requests().iter().filter(|request| request.at_file_server && request.method == "GET").count();
    assert!(request <= 8, "request {request} times");
    assert!(notes.iter().any(|note| note.starts_with("model.safetensors was interrupted after 50 of ")), "{notes:?}");
}

#[test]
fn overflowing_file_sizes_do_not_pass_the_disk_space_check() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::changed(tiny(), |request, _, response| {
        if request.method != "HEAD" || !request.path.contains("safetensors") && !request.path.contains("config.json") {
            return response;
        }
        // Twice 2^63 overflows to 0.
        let sum = if request.path.contains("safetensors") { "a" } else { "b" }.repeat(64);
        let mut odd = Response::new(302, "").with("Location", "/nowhere");
        odd.headers.retain(|(name, _)| name != "X-Linked-ETag");
        odd.with("X-Linked-ETag", &format!("\"{sum}\"")).with("X-Linked-Size", &(1_u64 << 63))
    });
    let error = fetch(&hub(&server.url, dir.path(), &[]), "org/tiny").unwrap_err();
    assert!(error.kind == Kind::Store && error.message.contains("are free"), "{error}");
}

#[test]
fn partial_downloads_of_other_processes_are_removed_when_the_blob_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(tiny());
    let blobs = dir.path().join("hub/models--org--tiny/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let sum = etag("model.safetensors", &weights());
    let (old, new) = (blobs.join(format!("{sum}.4711.incomplete")), blobs.join(format!("{sum}.0815.incomplete")));
    let other = blobs.join("of-another-file.incomplete");
    for path in [&old, &new, &other] {
        fs::write(path, "left").unwrap();
    }
    let long_ago = std::time::SystemTime::now() - Duration::from_hours(48);
    for path in [&old, &other] {
        fs::File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
    }
    fetch(&hub(&server.url, dir.path(), &[]), "org/tiny").unwrap();
    assert!(!old.exists() && new.exists() && other.exists());
}
