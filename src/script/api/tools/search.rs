//! `r1.tools.search`: a search tool of the policy, over an index or a retrieval server.

use std::time::{Duration, Instant};

use futures_util::future::LocalBoxFuture;
use mlua::{Lua, Value};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::super::args::{fail, raise, refused};
use super::super::argument::Whole;
use super::super::arguments::{Arguments, arguments};
use super::super::search_index::{Hits, HowArguments, named, searched};
use super::declaration::{ToolArguments, text_parameter};
use super::host_tool::{AttemptResult, CallAttempt, HostTool};
use super::limits::LimitArguments;
use crate::error::{Error, Kind, Result};
use crate::net::host_and_port;
use crate::script::runtime::grants::Grants;
use crate::script::runtime::host::Host;
use crate::script::runtime::passages::SearchPart;
use crate::script::runtime::servers::Listings;
use crate::script::runtime::tool::{Run, SearchSource, SearchTool, Tool, ToolHandle};
use crate::search::{Mode, SearchOptions, as_text, query_search_server, search_url};
use crate::tools::Output;

const NAME: &str = "r1.tools.search";
/// Default number of passages, as in Search-R1.
const HITS: u64 = 3;
const TIMEOUT: Duration = Duration::from_secs(10);

arguments! {
    /// Arguments of `r1.tools.search`.
    pub(crate) struct SearchArguments {
        index: Option<String>;
        url: Option<String>;
        k: Hits = Whole(HITS);
        timeout: Duration = TIMEOUT;
        + how: HowArguments;
        + tool: ToolArguments;
        + limits: LimitArguments;
    }
}

/// `r1.tools.search { index = DIR | url = URL, k =, … }`.
pub(super) fn declare(lua: &Lua, host: &Host, value: &Value) -> mlua::Result<ToolHandle> {
    let SearchArguments { index, url, k, timeout, how, tool, limits } = SearchArguments::read(lua, NAME, value)?;
    let (options, written) = how.options(lua, NAME, host, &k)?;
    let source = match (index, url) {
        (Some(index), None) => {
            let passages = named(host, index);
            host.searches.borrow_mut().push(SearchPart::Index(passages.clone()));
            SearchSource::Index(passages)
        }
        (None, Some(url)) if options != SearchOptions::new(options.k, Mode::Sparse) => {
            let names = ["mode", "ef", "exact", "rerank"];
            let of_index = |name: &&str| written.get(*name).is_some_and(|value| value != Mode::Sparse.name());
            let name = names.into_iter().find(of_index).unwrap_or("mode");
            let why = format!("`{name}` applies to indexes; the server at {url} has its own search options");
            return Err(refused(lua, NAME, name, why));
        }
        (None, Some(url)) => {
            let url = search_url(&url);
            if host_and_port(&url).is_none() {
                let why = format!("`url` is \"{url}\"; it must begin with http:// or https://");
                return Err(refused(lua, NAME, "url", why));
            }
            SearchSource::Url(url)
        }
        _ => return Err(fail(lua, NAME, "needs either `index`, a directory, or `url`, a retrieval server")),
    };
    let parameters = text_parameter("query", "What to search for");
    let run = Run::Search(SearchTool { source, options, written, timeout });
    let description = "Searches a collection of passages and returns the best ones.";
    Ok(tool.tool(lua, "search", description, parameters, limits.into(), run))
}

/// The result of one attempt, as recorded.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SearchResult {
    text: String,
    ok: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    timed_out: bool,
    /// Another attempt may succeed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    retryable: bool,
    seconds: f64,
}

impl SearchResult {
    fn failed(message: &str, started: Instant) -> Self {
        let (text, seconds) = (format!("Error: {message}"), started.elapsed().as_secs_f64());
        Self { text, ok: false, timed_out: false, retryable: false, seconds }
    }
}

impl HostTool for SearchTool {
    fn call<'a>(&'a self, attempt: &'a CallAttempt<'a>) -> LocalBoxFuture<'a, mlua::Result<AttemptResult>> {
        Box::pin(async move {
            let arguments = &attempt.of.arguments;
            let request = request(&attempt.tool().name, self, arguments);
            let live = self::attempt(self, arguments, attempt.host);
            let result: SearchResult = attempt.call.external("search", request, live).await.map_err(raise)?;
            let SearchResult { text, ok, timed_out, retryable, seconds } = result;
            let output = Output { text: attempt.cut(text), ok, timed_out, seconds, ..Output::default() };
            Ok(AttemptResult { output, reward: None, retryable })
        })
    }

    /// Refuses a server that the recipe does not declare.
    fn check(&self, tool: &Tool, grants: &Grants) -> Result<()> {
        let SearchSource::Url(url) = &self.source else { return Ok(()) };
        let (host, port) = host_and_port(url).unwrap_or_default();
        if grants.reaches(&host, port) {
            return Ok(());
        }
        let why = format!("tool `{}`: the recipe does not declare that it sends requests to {host}:{port}", tool.name);
        let hint = format!("add needs = {{ \"http:{host}:{port}\" }} to r1.recipe");
        Err(tool.placed(Error::new(Kind::Script, why).hint(hint)))
    }

    fn prepare(&self, _: &Tool, _: &Listings, _: &Grants) -> Result<()> {
        match &self.source {
            SearchSource::Url(_) => Ok(()),
            SearchSource::Index(passages) => passages.open().and_then(|index| index.check(&self.options)),
        }
    }
}

/// The request of the record: what the result depends on.
fn request(name: &str, search: &SearchTool, arguments: &Json) -> Json {
    let source = match &search.source {
        SearchSource::Index(passages) => {
            let mut source = json!({ "index": passages.name });
            source.as_object_mut().into_iter().for_each(|source| source.extend(search.written.clone()));
            source
        }
        SearchSource::Url(url) => json!({ "url": url }),
    };
    json!({ "tool": name, "arguments": arguments, "source": source, "k": search.options.k })
}

/// Runs one search. Failures caused by the policy or a server are results; only an index that can't
/// be read is an error.
///
/// # Errors
/// [`Kind::Data`] for an index that is damaged.
async fn attempt(search: &SearchTool, arguments: &Json, host: &Host) -> Result<SearchResult> {
    let started = Instant::now();
    let query = arguments.get("query").and_then(Json::as_str).unwrap_or_default();
    if query.trim().is_empty() {
        return Ok(SearchResult::failed("the query is empty", started));
    }
    let failed = |message: &str| SearchResult::failed(message, started);
    let hits = match &search.source {
        SearchSource::Index(passages) => {
            let hits = searched(passages.clone(), vec![query.to_owned()], search.options.clone());
            match tokio::time::timeout(search.timeout, hits).await {
                Ok(Ok(mut lists)) => lists.pop().unwrap_or_default(),
                // The query is too long.
                Ok(Err(error)) if error.kind == Kind::Usage => return Ok(failed(&error.message)),
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    let why = format!("the search took longer than {} s", search.timeout.as_secs_f64());
                    return Ok(SearchResult { timed_out: true, ..failed(&why) });
                }
            }
        }
        SearchSource::Url(url) => {
            let reach = |name: &str, port: u16| host.grants.borrow().reach(name, port);
            match query_search_server(url, query, search.options.k, search.timeout, &reach).await {
                Ok(hits) => hits,
                Err(failure) => {
                    let (retryable, timed_out) = (failure.retryable, failure.timed_out);
                    return Ok(SearchResult { timed_out, retryable, ..failed(&failure.message) });
                }
            }
        }
    };
    let (text, seconds) = (as_text(&hits), started.elapsed().as_secs_f64());
    Ok(SearchResult { text, ok: true, timed_out: false, retryable: false, seconds })
}
