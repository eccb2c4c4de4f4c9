//! Requests to the Hub: listing, file metadata, redirects, retries, and error responses.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::Value;

use super::id::{ModelId, etag, is_commit};
use super::{DownloadEvent, Watch, stopped};
use crate::error::{Error, Kind, Result};
use crate::net::{self, Client, Fault, Response, WebRequest};

/// Attempts to connect to an absent server: a second one in case the network is just starting.
const ATTEMPTS_WHEN_ABSENT: u32 = 2;
/// Longest wait between two attempts that a server may request.
const LONGEST_WAIT: Duration = Duration::from_mins(5);
const REDIRECTS: usize = 8;
/// Maximum size of a repository's listing in bytes.
const LISTING: usize = 64 << 20;
/// Longest time of such a response.
const LISTING_TIME: Duration = Duration::from_mins(5);

/// A Hub server.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    pub(super) client: Client,
    /// `https://huggingface.co`, without a trailing slash.
    pub(super) endpoint: String,
    pub(super) token: Option<AccessToken>,
    /// Attempts of one request without progress.
    pub(super) tries: u32,
    /// Wait before the second attempt; doubled for each further one.
    pub(super) pause: Duration,
}

/// A secret; never printed.
#[derive(Clone)]
pub(super) struct AccessToken(String);

impl std::fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

impl AccessToken {
    /// A token without surrounding white space; `None` if it is empty.
    pub(super) fn new(text: &str) -> Result<Option<Self>> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        if text.bytes().any(|byte| !byte.is_ascii_graphic()) {
            return Err(Error::new(Kind::Usage, "the Hub token (HF_TOKEN) has characters that are invalid in tokens"));
        }
        Ok(Some(Self(text.to_owned())))
    }
}

/// The reason why a request failed.
#[derive(Debug)]
pub(super) struct HubFailure {
    pub(super) error: Error,
    /// No response, or a server error: a cached copy may be used.
    pub(super) away: bool,
}

impl From<Error> for HubFailure {
    fn from(error: Error) -> Self {
        Self { error, away: false }
    }
}

impl From<HubFailure> for Error {
    fn from(failure: HubFailure) -> Self {
        failure.error
    }
}

/// The files of a repository at a commit.
#[derive(Debug)]
pub(super) struct RepositoryListing {
    pub(super) commit: String,
    pub(super) names: Vec<String>,
}

/// The metadata of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) name: String,
    /// The name of the blob: the SHA-256 of large files, git's SHA-1 of small ones.
    pub(super) etag: String,
    pub(super) size: Option<u64>,
}

impl Remote {
    pub(super) fn file_url(&self, id: &ModelId, commit: &str, file: &str) -> String {
        format!("{}/{}/resolve/{commit}/{}", self.endpoint, id.page(), net::escape(file, true))
    }

    /// The commit of a revision, and its files.
    pub(super) fn list(&self, id: &ModelId, watch: &Watch<'_>) -> Result<RepositoryListing, HubFailure> {
        let revision = net::escape(&id.revision, false);
        let url = format!("{}/api/{}s/{}/revision/{revision}", self.endpoint, id.kind.noun(), id.name);
        let response = self.request("GET", &url, None, id, watch)?;
        let bytes = response.bytes(LISTING, LISTING_TIME, watch.stop).map_err(|fault| self.away(id, &fault))?;
        let odd = |what: &str| {
            Error::new(id.kind.error(), format!("{} does not respond like a Hub server: {what}", self.endpoint))
                .hint("HF_ENDPOINT sets the server")
        };
        let answer: Value = serde_json::from_slice(&bytes).map_err(|_| odd("its listing is not JSON"))?;
        let commit = answer["sha"].as_str().filter(|sha| is_commit(sha)).ok_or_else(|| odd("no commit"))?.to_owned();
        let files = answer["siblings"].as_array().ok_or_else(|| odd("no list of files"))?;
        let names = files.iter().map(|file| file["rfilename"].as_str().map(str::to_owned)).collect::<Option<_>>();
        Ok(RepositoryListing { commit, names: names.ok_or_else(|| odd("a file without a name"))? })
    }

    /// Requests the metadata of a file. Large files are redirected; their metadata is in the
    /// redirect response.
    pub(super) fn head(&self, id: &ModelId, commit: &str, file: &str, watch: &Watch<'_>) -> Result<Meta, HubFailure> {
        let response = self.request("HEAD", &self.file_url(id, commit, file), None, id, watch)?;
        let odd = |what: &str| {
            Error::new(id.kind.error(), format!("{} does not respond like a Hub server: {what}", self.endpoint))
                .at(format!("{id}/{file}"))
        };
        if response.header("x-repo-commit").is_some_and(|served| served != commit) {
            return Err(odd("the file is of another commit").into());
        }
        let linked = response.header("x-linked-etag");
        let tag = linked.or_else(|| response.header("etag")).ok_or_else(|| odd("the file has no ETag"))?;
        let etag = etag(tag).ok_or_else(|| odd("the file's ETag can't be the name of a file"))?;
        let length = response.header("x-linked-size");
        let plain = || response.header("content-length").filter(|_| linked.is_none() && response.status == 200);
        let size = length.or_else(plain).and_then(|size| size.parse().ok());
        Ok(Meta { name: file.to_owned(), etag, size })
    }

    /// Requests the bytes of a file from `start` on.
    pub(super) fn open(
        &self,
        id: &ModelId,
        commit: &str,
        file: &str,
        start: u64,
        watch: &Watch<'_>,
    ) -> Result<Response, HubFailure> {
        let range = (start > 0).then(|| format!("bytes={start}-"));
        self.request("GET", &self.file_url(id, commit, file), range.as_deref(), id, watch)
    }

    /// Retries until there is a response; an error status becomes an error.
    fn request(
        &self,
        method: &'static str,
        url: &str,
        range: Option<&str>,
        id: &ModelId,
        watch: &Watch<'_>,
    ) -> Result<Response, HubFailure> {
        let (mut tried, mut tries) = (0, self.tries);
        loop {
            tried += 1;
            let (why, wait, away) = match self.follow(method, url, range, watch) {
                Ok(response) => match response.status {
                    200..=399 | 416 => return Ok(response),
                    408 | 429 | 500 | 502..=504 => {
                        let wait = response.header("retry-after").and_then(|wait| wait.parse().ok());
                        (status_message(response.status), wait.map(Duration::from_secs), true)
                    }
                    _ => return Err(self.refused(id, response, watch).into()),
                },
                Err(Fault::Stopped) => return Err(stopped().into()),
                Err(fault) => {
                    if matches!(fault, Fault::Absent(_)) {
                        tries = tries.min(ATTEMPTS_WHEN_ABSENT);
                    }
                    let failure = self.away(id, &fault);
                    if tried >= tries {
                        return Err(failure);
                    }
                    (failure.error.message, None, true)
                }
            };
            let wait = wait.unwrap_or(self.pause * 2_u32.saturating_pow(tried - 1));
            if tried >= tries || wait > LONGEST_WAIT {
                let error = Error::new(id.kind.error(), format!("the Hub can't serve `{id}` now: {why}"))
                    .hint("try again later; what was fetched is kept");
                return Err(HubFailure { error, away });
            }
            if wait >= Duration::from_secs(1) {
                (watch.event)(DownloadEvent::Note(&format!("{why}; trying again in {} s", wait.as_secs())));
            }
            net::pause(wait, watch.stop).map_err(|_| stopped())?;
        }
    }

    /// One request with its redirects. The token is sent only to the endpoint's own host.
    fn follow(
        &self,
        method: &'static str,
        url: &str,
        range: Option<&str>,
        watch: &Watch<'_>,
    ) -> Result<Response, Fault> {
        let home = net::origin(&self.endpoint);
        let mut url = url.to_owned();
        for _ in 0..REDIRECTS {
            let mut headers = Vec::new();
            if let Some(AccessToken(token)) = self.token.as_ref().filter(|_| net::origin(&url) == home) {
                headers.push((Cow::from("authorization"), format!("Bearer {token}")));
            }
            headers.extend(range.map(|range| (Cow::from("range"), range.to_owned())));
            let response =
                self.client.send(WebRequest { method, url: url.clone(), headers, body: None }, watch.stop)?;
            // The metadata of a large file is in this response, not at the redirect's target.
            let is_answer = method == "HEAD" && response.headers.contains_key("x-linked-etag");
            if !matches!(response.status, 301..=303 | 307 | 308) || is_answer {
                return Ok(response);
            }
            let location = response.header("location").unwrap_or_default();
            url = net::redirect(&url, location)
                .ok_or_else(|| Fault::Broken(format!("a redirect that can't be followed, to {location:?}")))?;
        }
        Err(Fault::Broken("too many redirects".to_owned()))
    }

    pub(super) fn away(&self, id: &ModelId, fault: &Fault) -> HubFailure {
        let (Fault::Absent(why) | Fault::Broken(why) | Fault::NotPublic(why)) = fault else {
            return stopped().into();
        };
        let error = Error::new(id.kind.error(), format!("can't fetch `{id}` from {}: {why}", self.endpoint)).hint(
            "check the network (HTTPS_PROXY and SSL_CERT_FILE are used), pass a local directory, or set HF_ENDPOINT",
        );
        HubFailure { error, away: true }
    }

    /// The error message for an error response.
    fn refused(&self, id: &ModelId, response: Response, watch: &Watch<'_>) -> Error {
        let code = response.header("x-error-code").unwrap_or_default().to_owned();
        let own_words = response.header("x-error-message").map(str::to_owned);
        let status = response.status;
        let page = format!("{}/{}", self.endpoint, id.page());
        let new = |message: String| Error::new(id.kind.error(), message);
        match (status, code.as_str()) {
            (_, "GatedRepo") => new(format!("`{}` is gated: its owners require accepting their terms", id.name)).hint(
                match self.token {
                    None => format!("accept the terms at {page}, then set HF_TOKEN to a token of your account"),
                    Some(_) => {
                        format!("accept the terms at {page} with the account that the token (HF_TOKEN) belongs to")
                    }
                },
            ),
            (404, "RevisionNotFound") => new(format!("`{}` has no revision `{}`", id.name, id.revision))
                .hint(format!("its branches and tags are at {page}/tree/main")),
            (404, "EntryNotFound") => new(format!("a file of `{id}` is gone")),
            // Without access the Hub hides whether a private repository exists.
            (401 | 403, _) if self.token.is_some() && code != "RepoNotFound" => new(format!(
                "the Hub refuses the token for `{}`: {}",
                id.name,
                own_words.unwrap_or_else(|| status_message(status))
            ))
            .hint("create a token with read access at https://huggingface.co/settings/tokens and set HF_TOKEN"),
            (401 | 403 | 404, _) => new(format!("there is no {} `{}` on {}", id.kind.noun(), id.name, self.endpoint))
                .hint("check the spelling; if it is private or gated, set HF_TOKEN to a token that may read it"),
            _ => {
                let body = response.bytes(2000, LISTING_TIME, watch.stop).unwrap_or_default();
                let reason = own_words.unwrap_or_else(|| String::from_utf8_lossy(&body).trim().to_owned());
                let reason: String = reason.lines().next().unwrap_or_default().chars().take(200).collect();
                new(format!("the Hub refuses `{id}`: {} {reason}", status_message(status)).trim_end().to_owned())
            }
        }
    }
}

fn status_message(status: u16) -> String {
    let meaning = match status {
        408 => " (too slow)",
        429 => " (too many requests)",
        500..=599 => " (out of order)",
        _ => "",
    };
    format!("the Hub responds with {status}{meaning}")
}
