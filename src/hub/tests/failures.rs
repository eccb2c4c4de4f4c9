//! What is said, and what is left on disk, when a fetch can't be.

use super::server::{Answer, Asked};
use super::*;

/// The error of a fetch from a hub whose answers are changed.
fn refused(change: impl Fn(&Asked, usize, Answer) -> Answer + Send + Sync + 'static) -> (Error, Vec<String>, Server) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::changed(tiny(), change);
    let error = fetch(&hub(&server.url, dir.path(), &[]), "org/tiny").unwrap_err();
    assert_eq!(error.kind, Kind::Model, "{error}");
    let left = if dir.path().join("hub").exists() { tree(&dir.path().join("hub")) } else { Vec::new() };
    (error, left, server)
}

#[test]
fn refusals_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(tiny());
    let said = |id: &str, more: &[(&str, &str)]| {
        let error = fetch(&hub(&server.url, dir.path(), more), id).unwrap_err();
        assert_eq!(error.kind, Kind::Model);
        format!("{error}").replace(&server.url, "HUB")
    };
    insta::assert_snapshot!(said("org/none", &[]), @r"
    there is no model `org/none` on HUB
      hint: check the spelling; if it is private or gated, set HF_TOKEN to a token that may read it
    ");
    insta::assert_snapshot!(said("org/none", &[("HF_TOKEN", "t")]), @r"
    there is no model `org/none` on HUB
      hint: check the spelling; if it is private or gated, set HF_TOKEN to a token that may read it
    ");
    insta::assert_snapshot!(said("org/tiny@v9", &[]), @r"
    `org/tiny` has no revision `v9`
      hint: its branches and tags are at HUB/org/tiny/tree/main
    ");
    assert!(tree(dir.path()).is_empty());
    let gated = Server::changed(tiny(), |asked, _, answer| match asked.headers.get("authorization") {
        _ if asked.path.starts_with("/api") => answer,
        None => Answer::new(401, "").with("X-Error-Code", "GatedRepo"),
        Some(token) if token == "Bearer stranger" => Answer::new(403, "").with("X-Error-Code", "GatedRepo"),
        Some(_) => Answer::new(401, "").with("X-Error-Message", "Invalid credentials in Authorization header"),
    });
    let said = |more: &[(&str, &str)]| {
        let error = fetch(&hub(&gated.url, dir.path(), more), "org/tiny").unwrap_err();
        format!("{error}").replace(&gated.url, "HUB")
    };
    insta::assert_snapshot!(said(&[]), @r"
    `org/tiny` is gated: its owners ask who uses it
      hint: accept the terms at HUB/org/tiny, then set HF_TOKEN to a token of your account
    ");
    insta::assert_snapshot!(said(&[("HF_TOKEN", "stranger")]), @r"
    `org/tiny` is gated: its owners ask who uses it
      hint: accept the terms at HUB/org/tiny with the account that the token (HF_TOKEN) belongs to
    ");
    insta::assert_snapshot!(said(&[("HF_TOKEN", "old")]), @r"
    the hub refuses the token for `org/tiny`: Invalid credentials in Authorization header
      hint: make a token that may read it at https://huggingface.co/settings/tokens and set HF_TOKEN
    ");
}

#[test]
fn busy_servers_are_asked_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::changed(tiny(), |asked, before, answer| match before {
        0 if asked.path.starts_with("/api") => Answer::new(429, "slow down").with("Retry-After", "0"),
        0 | 1 if asked.at_store => Answer::new(503, ""),
        _ => answer,
    });
    fetch(&hub(&server.url, dir.path(), &[]), "org/tiny").unwrap();
    assert_eq!(server.lines(true).len(), 3);
    // Not for ever, and not for longer than anyone waits.
    let (error, _, server) = refused(|_, _, _| Answer::new(429, "").with("Retry-After", "0"));
    assert_eq!(error.message, "the hub can't give `org/tiny` now: the hub answers 429 (too many requests)");
    assert_eq!(server.asked().len(), 5);
    let (_, _, server) = refused(|_, _, _| Answer::new(429, "").with("Retry-After", "86400"));
    assert_eq!(server.asked().len(), 1);
}

#[test]
fn retry_after_is_heeded() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::changed(tiny(), |asked, before, answer| match before {
        0 if asked.path.starts_with("/api") => Answer::new(429, "").with("Retry-After", "1"),
        _ => answer,
    });
    let begun = std::time::Instant::now();
    let (fetched, notes) = fetch_noting(&hub(&server.url, dir.path(), &[]), "org/tiny");
    fetched.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert_eq!(notes, ["the hub answers 429 (too many requests); trying again in 1 s"]);
}

#[test]
fn damage_is_found_and_nothing_of_it_is_kept() {
    // A byte is changed on the way, of the right length: twice, then it is given up.
    let (error, left, server) = refused(|asked, _, mut answer| {
        if asked.at_store {
            answer.body[1000] ^= 1;
        }
        answer
    });
    assert!(error.message.starts_with("model.safetensors of `org/tiny` arrives damaged: its checksum"), "{error}");
    assert_eq!(server.lines(true).len(), 2);
    let sum = etag("model.safetensors", &weights());
    assert!(!left.iter().any(|line| line.contains("blobs/") && line.contains(&sum)), "{left:?}");
    assert!(!left.iter().any(|line| line.contains("refs/")), "{left:?}");
    // Small files have git's checksum.
    let (error, _, _) = refused(|asked, _, mut answer| {
        if asked.path.ends_with("/config.json") && asked.method == "GET" {
            answer.body[3] ^= 1;
        }
        answer
    });
    assert!(error.message.starts_with("config.json of `org/tiny` arrives damaged"), "{error}");
    // A server that never stops sending.
    let (error, _, _) = refused(|asked, _, mut answer| {
        if asked.at_store {
            answer.body.extend(vec![0; 100]);
        }
        answer
    });
    assert!(error.message.contains("longer than the hub said"), "{error}");
}

#[test]
fn what_an_earlier_try_left_may_be_of_no_use() {
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
        let server = Server::changed(tiny(), move |asked, _, answer| {
            if asked.at_store && ignores_ranges { Answer::new(200, weights()) } else { answer }
        });
        let fetched = fetch(&hub(&server.url, dir.path(), &[]), "org/tiny").unwrap();
        assert_eq!(fs::read(fetched.join("model.safetensors")).unwrap(), weights());
        // What is whole already is checked and not fetched.
        assert_eq!(server.lines(true).is_empty(), left == weights());
        assert!(!blobs.join(format!("{sum}.incomplete")).exists());
    }
}

#[test]
fn a_connection_that_always_breaks_is_given_up() {
    let (error, left, server) = refused(|asked, _, mut answer| {
        if asked.at_store {
            answer.cut = Some(0);
        }
        answer
    });
    assert!(error.message.starts_with("can't fetch `org/tiny`"), "{error}");
    assert_eq!(server.lines(true).len(), 5);
    // What came of the other files, which are fetched side by side, is there for the next try.
    assert!(left.iter().any(|line| line.contains("blobs/") && !line.ends_with(": 0 bytes")), "{left:?}");
}

#[test]
fn without_network_the_cache_is_used() {
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
    assert!(server.asked().is_empty());

    let fetched = fetch(&hub(&server.url, dir.path(), &[]), "org/tiny").unwrap();
    let before = server.asked().len();
    for id in ["org/tiny", &format!("org/tiny@{COMMIT}")] {
        assert_eq!(fetch(&hub(&server.url, dir.path(), &offline), id).unwrap(), fetched);
        let (again, notes) = fetch_noting(&hub(gone, dir.path(), &[]), id);
        assert_eq!(again.unwrap(), fetched);
        assert!(notes.iter().any(|note| note.contains("using the copy in the cache")), "{notes:?}");
        // Nobody waits long for a hub that is not there.
        let mut patient = hub(gone, dir.path(), &[]);
        patient.remote.pause = Duration::from_secs(1);
        let (_, notes) = fetch_noting(&patient, id);
        assert_eq!(notes.iter().filter(|note| note.contains("trying again")).count(), 1, "{notes:?}");
    }
    assert_eq!(server.asked().len(), before);
    // A server that is there and says no is believed.
    let strict = Server::changed(tiny(), |_, _, _| Answer::new(401, ""));
    assert!(fetch(&hub(&strict.url, dir.path(), &[]), "org/tiny").is_err());
    // Half a model is none.
    fs::remove_file(fetched.join("model.safetensors")).unwrap();
    assert!(fetch(&hub(&server.url, dir.path(), &offline), "org/tiny").is_err());
}

#[test]
fn names_that_would_leave_the_cache_are_refused() {
    for name in ["../../../.bashrc", "/etc/passwd", "a/../../b", "model\\..\\x"] {
        let mut repo = tiny();
        repo.files.push((name.to_owned(), b"x".to_vec()));
        let (dir, server) = (tempfile::tempdir().unwrap(), Server::start(repo));
        let error = fetch(&hub(&server.url, dir.path(), &[]), "org/tiny").unwrap_err();
        assert!(error.message.contains("outside of itself"), "{error}");
        assert_eq!(server.asked().len(), 1);
        assert!(tree(dir.path()).is_empty());
    }
    let (error, left, _) = refused(|asked, _, mut answer| {
        if asked.method == "HEAD" {
            answer.headers.retain(|(name, _)| !name.to_lowercase().contains("etag"));
            return answer.with("ETag", "\"../../../../x\"");
        }
        answer
    });
    assert!(error.message.contains("ETag can't be the name of a file"), "{error}");
    assert!(!left.iter().any(|line| line.contains("blobs/")), "{left:?}");
    let (error, left, _) = refused(|_, _, answer| {
        let body = String::from_utf8_lossy(&answer.body).replace(COMMIT, "../../../x");
        Answer { body: body.into_bytes(), ..answer }
    });
    assert!(error.message.contains("does not answer as a hub: no commit"), "{error}");
    assert!(left.is_empty());
}

#[test]
fn redirects_are_not_followed_everywhere() {
    for location in ["file:///etc/passwd", "", "gopher://x/y"] {
        let (error, _, _) = refused(move |asked, _, answer| {
            if asked.path.starts_with("/api") { Answer::new(302, "").with("Location", location) } else { answer }
        });
        assert!(error.message.contains("a redirect that can't be followed"), "{error}");
    }
    let (error, _, _) = refused(|asked, _, _| Answer::new(302, "").with("Location", &asked.path));
    assert!(error.message.contains("too many redirects"), "{error}");
}

#[test]
fn pickles_are_never_fetched() {
    let mut repo = tiny();
    repo.files.retain(|(name, _)| name != "model.safetensors");
    let (dir, server) = (tempfile::tempdir().unwrap(), Server::start(repo));
    let error = fetch(&hub(&server.url, dir.path(), &[]), "org/tiny").unwrap_err();
    assert!(error.message.contains("pytorch_model.bin only: a pickle"), "{error}");
    assert!(error.hint.unwrap().contains("save_pretrained"));
    assert_eq!(server.lines(false), ["GET /api/models/org/tiny/revision/main"]);
}

#[test]
fn what_is_no_hub_is_named() {
    for body in
        ["<html>", "{}", r#"{"sha": 3, "siblings": []}"#, r#"{"sha": "0123456789abcdef0123456789abcdef01234567"}"#]
    {
        let (error, _, _) = refused(move |_, _, _| Answer::new(200, body));
        assert!(error.message.contains("does not answer as a hub"), "{error}");
    }
}

#[test]
fn a_server_that_ignores_ranges_and_breaks_off_is_not_asked_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::changed(tiny(), |asked, _, answer| {
        if asked.at_store {
            // Always the whole file from its first byte, and always cut at the same place.
            Answer { cut: Some(50), ..Answer::new(200, weights()) }
        } else {
            answer
        }
    });
    let hub = hub(&server.url, dir.path(), &[]);
    let (fetched, notes) = fetch_noting(&hub, "org/tiny");
    let error = fetched.unwrap_err();
    assert!(error.to_string().contains("model.safetensors"), "{error}");
    let asked = server.asked().iter().filter(|asked| asked.at_store && asked.method == "GET").count();
    assert!(asked <= 8, "asked {asked} times");
    assert!(notes.iter().any(|note| note.starts_with("model.safetensors broke off after 50 of ")), "{notes:?}");
}

#[test]
fn sizes_that_wrap_around_do_not_pass_the_check_for_room() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::changed(tiny(), |asked, _, answer| {
        if asked.method != "HEAD" || !asked.path.contains("safetensors") && !asked.path.contains("config.json") {
            return answer;
        }
        // Twice 2^63 is 0.
        let sum = if asked.path.contains("safetensors") { "a" } else { "b" }.repeat(64);
        let mut odd = Answer::new(302, "").with("Location", "/nowhere");
        odd.headers.retain(|(name, _)| name != "X-Linked-ETag");
        odd.with("X-Linked-ETag", &format!("\"{sum}\"")).with("X-Linked-Size", &(1_u64 << 63))
    });
    let error = fetch(&hub(&server.url, dir.path(), &[]), "org/tiny").unwrap_err();
    assert!(error.kind == Kind::Store && error.message.contains("are free"), "{error}");
}

#[test]
fn what_others_left_of_a_blob_is_removed_once_it_is_whole() {
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
