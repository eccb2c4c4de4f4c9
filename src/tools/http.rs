//! HTTP for scripts: one exchange, redirects followed, within limits; public addresses unless a host is allowed by name.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use crate::error::Result;
use crate::net::{self, Client, Fault, Request, Whole, is_public};

/// Longest wait for the next byte; the whole exchange has a limit of its own.
const SILENCE: Duration = Duration::from_mins(2);
const REDIRECTS: usize = 8;

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpRequest {
    pub method: &'static str,
    pub url: String,
    pub headers: Vec<(String, String)>,
    /// Names of headers with secrets, which no other host than the first is sent.
    pub secrets: Vec<String>,
    pub body: Option<Vec<u8>>,
    pub timeout: Duration,
    /// Most bytes of the answer's body.
    pub max_bytes: usize,
}

/// What was answered, whatever its status.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpAnswer {
    pub status: u16,
    /// Names in small letters; values of the same name joined by `, `.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Where redirects led.
    pub url: String,
}

/// How far a host may be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Wherever it lies.
    Anywhere,
    /// If its addresses are public.
    Public,
    Nowhere,
}

/// Methods that can be asked for.
pub const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"];

/// The host and port of an address; `None` if it is none.
pub fn url_target(url: &str) -> Option<(String, u16)> {
    net::host_and_port(url)
}

/// Text as it stands in the query of an address.
pub fn url_escape(text: &str) -> String {
    net::escape(text, false)
}

/// An address with one more `name=value` in its query.
pub fn url_with_query(url: &str, name: &str, value: &str) -> String {
    let (base, fragment) = url.split_once('#').map_or((url, ""), |(base, fragment)| (base, fragment));
    let between = if base.contains('?') { '&' } else { '?' };
    let hash = if fragment.is_empty() { "" } else { "#" };
    format!("{base}{between}{}={}{hash}{fragment}", net::escape(name, false), net::escape(value, false))
}

/// Why there is no answer, in words for the script's author.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The host that was asked leads to an address that is not public, and may be reached if it is public only.
    NotPublic(String),
    /// Anything else, a redirect to such a host included: whoever answers decides where redirects lead.
    Failed(String),
}

impl From<String> for NoAnswer {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// Carries out one request. `reach` says for a host and port how far it may go, of redirects too.
///
/// # Errors
/// Why there is no answer.
pub async fn http(request: HttpRequest, reach: &dyn Fn(&str, u16) -> Reach) -> Result<HttpAnswer, NoAnswer> {
    let limit = request.timeout;
    let seconds = limit.as_secs_f64();
    tokio::time::timeout(limit, follow(request, reach))
        .await
        .unwrap_or_else(|_| Err(NoAnswer::Failed(format!("no answer after {seconds} s"))))
}

async fn follow(mut request: HttpRequest, reach: &dyn Fn(&str, u16) -> Reach) -> Result<HttpAnswer, NoAnswer> {
    for hop in 0..=REDIRECTS {
        let whole = exchange(&request, reach, hop > 0).await?;
        let location = whole.headers.get("location").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let Some(location) = location.filter(|_| matches!(whole.status, 301..=303 | 307 | 308)) else {
            return Ok(answer(request.url, &whole));
        };
        let next =
            net::redirect(&request.url, &location).ok_or_else(|| format!("can't follow a redirect to {location:?}"))?;
        // Secrets stay with the host they were meant for.
        if net::origin(&next) != net::origin(&request.url) {
            let secret = |name: &String| {
                ["authorization", "cookie", "proxy-authorization"].contains(&name.to_lowercase().as_str())
                    || request.secrets.contains(name)
            };
            request.headers.retain(|(name, _)| !secret(name));
        }
        if whole.status == 303 || (matches!(whole.status, 301 | 302) && request.method == "POST") {
            request.method = if request.method == "HEAD" { "HEAD" } else { "GET" };
            request.body = None;
        }
        request.url = next;
    }
    Err(NoAnswer::Failed("too many redirects".to_owned()))
}

async fn exchange(
    request: &HttpRequest,
    reach: &dyn Fn(&str, u16) -> Reach,
    redirected: bool,
) -> Result<Whole, NoAnswer> {
    let (host, port) = net::host_and_port(&request.url)
        .ok_or_else(|| format!("`{}` is no address: it begins with http:// or https://", request.url))?;
    let anywhere = match reach(&host, port) {
        Reach::Anywhere => true,
        Reach::Public => false,
        Reach::Nowhere if redirected => return Err(format!("a redirect leads to {host}, which is not allowed").into()),
        Reach::Nowhere => return Err(format!("{host} is not allowed").into()),
    };
    // Through a proxy no address is looked up here.
    if is_inside(&host) && !anywhere {
        return Err(format!("{host} is no public address").into());
    }
    let client = client(anywhere)?;
    let headers = request.headers.iter().map(|(name, value)| (Cow::from(name.clone()), value.clone())).collect();
    let asked = Request { method: request.method, url: request.url.clone(), headers, body: request.body.clone() };
    client.exchange(asked, request.max_bytes).await.map_err(|fault| match fault {
        Fault::NotPublic(why) if !redirected => NoAnswer::NotPublic(why),
        Fault::Absent(why) | Fault::Broken(why) | Fault::NotPublic(why) => NoAnswer::Failed(why),
        Fault::Stopped => NoAnswer::Failed("stopped".to_owned()),
    })
}

/// Whether the name of a host says that it is not public: a private address, or this machine.
pub fn is_inside(host: &str) -> bool {
    let local = |_| host == "localhost" || host.ends_with(".localhost");
    host.parse::<IpAddr>().map_or_else(local, |ip| !is_public(ip))
}

fn answer(url: String, whole: &Whole) -> HttpAnswer {
    let mut headers: Vec<(String, String)> = Vec::new();
    for (name, value) in &whole.headers {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        match headers.iter_mut().find(|(own, _)| own == name.as_str()) {
            Some((_, all)) => {
                all.push_str(", ");
                all.push_str(&value);
            }
            None => headers.push((name.as_str().to_owned(), value)),
        }
    }
    headers.sort();
    HttpAnswer { status: whole.status, headers, body: whole.body.clone(), url }
}

/// The client that reaches anywhere, or the one that reaches public addresses only.
fn client(anywhere: bool) -> Result<&'static Client, String> {
    static CLIENTS: [OnceLock<Result<Client>>; 2] = [const { OnceLock::new() }; 2];
    let new = || if anywhere { Client::new(SILENCE) } else { Client::public(SILENCE) };
    CLIENTS[usize::from(anywhere)].get_or_init(new).as_ref().map_err(ToString::to_string)
}
