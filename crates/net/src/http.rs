//! HTTP for scripts: one exchange with redirects, within limits; only public addresses unless a
//! host is allowed by name.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use super::{Client, Fault, FullResponse, WebRequest, escape, host_and_port, is_public, origin, redirect};
use r1_base::error::{Error, Result};

/// Longest wait for the next byte; the whole exchange has its own limit.
const READ_TIMEOUT: Duration = Duration::from_mins(2);
const REDIRECTS: usize = 8;

#[derive(Clone, Debug, PartialEq)]
pub struct HttpRequest {
    pub method: &'static str,
    pub url: String,
    pub headers: Vec<(String, String)>,
    /// Names of secret headers, which are only sent to the first host.
    pub secrets: Vec<String>,
    pub body: Option<Vec<u8>>,
    pub timeout: Duration,
    /// Maximum bytes of the response body.
    pub max_bytes: usize,
}

/// A response with any status.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpResponse {
    pub status: u16,
    /// Names in lower case; values of the same name joined by `, `.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The URL after redirects.
    pub url: String,
}

/// The allowed addresses of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedAddresses {
    /// Any address.
    Anywhere,
    /// Only public addresses.
    Public,
    Nowhere,
}

/// Supported methods.
pub const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"];

/// Appends `name=value` to the query of a URL.
pub fn url_with_query(url: &str, name: &str, value: &str) -> String {
    let (base, fragment) = url.split_once('#').map_or((url, ""), |(base, fragment)| (base, fragment));
    let between = if base.contains('?') { '&' } else { '?' };
    let hash = if fragment.is_empty() { "" } else { "#" };
    format!("{base}{between}{}={}{hash}{fragment}", escape(name, false), escape(value, false))
}

/// The reason why there is no response, as a message for the author of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpError {
    /// The requested host has an address that is not public, and only public ones are allowed.
    NotPublic(String),
    /// Any other failure, including a redirect to such a host: the server chooses redirects, the
    /// script does not.
    Failed(String),
}

impl From<String> for HttpError {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// Sends one request. `reach` returns the allowed addresses for a host and port, also for
/// redirects.
///
/// # Errors
/// The reason why there is no response.
pub async fn http(
    request: HttpRequest,
    reach: &dyn Fn(&str, u16) -> AllowedAddresses,
) -> Result<HttpResponse, HttpError> {
    let limit = request.timeout;
    let seconds = limit.as_secs_f64();
    tokio::time::timeout(limit, follow(request, reach))
        .await
        .unwrap_or_else(|_| Err(HttpError::Failed(format!("no response after {seconds} s"))))
}

async fn follow(
    mut request: HttpRequest,
    reach: &dyn Fn(&str, u16) -> AllowedAddresses,
) -> Result<HttpResponse, HttpError> {
    for hop in 0..=REDIRECTS {
        let response = exchange(&request, reach, hop > 0).await?;
        let location = response.headers.get("location").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let Some(location) = location.filter(|_| matches!(response.status, 301..=303 | 307 | 308)) else {
            return Ok(answer(request.url, &response));
        };
        let next =
            redirect(&request.url, &location).ok_or_else(|| format!("can't follow a redirect to {location:?}"))?;
        // Secrets are not sent to other hosts.
        if origin(&next) != origin(&request.url) {
            let secret = |name: &String| {
                ["authorization", "cookie", "proxy-authorization"].contains(&name.to_lowercase().as_str())
                    || request.secrets.contains(name)
            };
            request.headers.retain(|(name, _)| !secret(name));
        }
        if response.status == 303 || (matches!(response.status, 301 | 302) && request.method == "POST") {
            request.method = if request.method == "HEAD" { "HEAD" } else { "GET" };
            request.body = None;
        }
        request.url = next;
    }
    Err(HttpError::Failed("too many redirects".to_owned()))
}

async fn exchange(
    request: &HttpRequest,
    reach: &dyn Fn(&str, u16) -> AllowedAddresses,
    redirected: bool,
) -> Result<FullResponse, HttpError> {
    let (host, port) = host_and_port(&request.url)
        .ok_or_else(|| format!("`{}` is not a URL: it must begin with http:// or https://", request.url))?;
    let anywhere = match reach(&host, port) {
        AllowedAddresses::Anywhere => true,
        AllowedAddresses::Public => false,
        AllowedAddresses::Nowhere if redirected => {
            return Err(format!("a redirect leads to {host}, which is not allowed").into());
        }
        AllowedAddresses::Nowhere => return Err(format!("{host} is not allowed").into()),
    };
    // With a proxy the host's address is not resolved here.
    if is_private_host(&host) && !anywhere {
        return Err(format!("{host} is not a public address").into());
    }
    let client = client(anywhere).map_err(|error| HttpError::Failed(error.to_string()))?;
    let headers = request.headers.iter().map(|(name, value)| (Cow::from(name.clone()), value.clone())).collect();
    let outgoing = WebRequest { method: request.method, url: request.url.clone(), headers, body: request.body.clone() };
    client.exchange(outgoing, request.max_bytes).await.map_err(|fault| match fault {
        Fault::NotPublic(why) if !redirected => HttpError::NotPublic(why),
        Fault::Absent(why) | Fault::Broken(why) | Fault::NotPublic(why) => HttpError::Failed(why),
        Fault::Stopped => HttpError::Failed("stopped".to_owned()),
    })
}

/// Whether a host's name is not public: a private address, or this machine.
pub fn is_private_host(host: &str) -> bool {
    let local = |_| host == "localhost" || host.ends_with(".localhost");
    host.parse::<IpAddr>().map_or_else(local, |ip| !is_public(ip))
}

fn answer(url: String, response: &FullResponse) -> HttpResponse {
    let mut headers: Vec<(String, String)> = Vec::new();
    for (name, value) in &response.headers {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        match headers.iter_mut().find(|(present, _)| present == name.as_str()) {
            Some((_, all)) => {
                all.push_str(", ");
                all.push_str(&value);
            }
            None => headers.push((name.as_str().to_owned(), value)),
        }
    }
    headers.sort();
    HttpResponse { status: response.status, headers, body: response.body.clone(), url }
}

/// The client for any address, or the client for public addresses only.
fn client(anywhere: bool) -> Result<&'static Client, &'static Error> {
    static CLIENTS: [OnceLock<Result<Client>>; 2] = [const { OnceLock::new() }; 2];
    let new = || if anywhere { Client::new(READ_TIMEOUT) } else { Client::public(READ_TIMEOUT) };
    CLIENTS[usize::from(anywhere)].get_or_init(new).as_ref()
}
