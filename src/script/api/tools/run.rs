//! Runs one tool call: cache lookup, concurrency limit, retries.

use std::rc::Rc;
use std::time::Instant;

use mlua::Lua;
use serde_json::{Value as Json, json};
use tokio::sync::OwnedSemaphorePermit;

use super::super::args::raise;
use super::host_tool::{AttemptResult, CallAttempt, ValidatedCall, digests};
use crate::error::{Error, Kind};
use crate::script::runtime::host::{Call, Host};
use crate::script::runtime::shared_calls::{CachedResult, FirstCall};
use crate::script::runtime::tool::CacheScope;
use crate::tools::Output;

pub(crate) struct CallResult {
    pub(crate) output: Output,
    /// The process reward, if the tool returned one.
    pub(crate) reward: Option<f64>,
    pub(crate) retries: u32,
    pub(crate) cached: bool,
}

impl ValidatedCall {
    pub(crate) async fn run(&self, lua: &Lua, call: &Rc<Call>, host: &Host) -> mlua::Result<CallResult> {
        let limits = &self.tool.limits;
        let mut first = None;
        if let Some(scope) = limits.cache {
            first = self.first(scope, call, host).await;
            if let Some(cached) = self.cached(scope, call, host)? {
                return Ok(cached);
            }
        }
        let permit = self.permit(call, host).await?;
        let started = Instant::now();
        let mut retries = 0;
        let attempt = loop {
            let attempt = self.tool.host_tool().call(&CallAttempt { lua, call, host, of: self }).await?;
            let AttemptResult { output, retryable, .. } = &attempt;
            if output.ok || retries == limits.retries || !(output.timed_out || *retryable) {
                break attempt;
            }
            // A replay does not wait.
            if !call.record.is_replay() {
                tokio::time::sleep(limits.backoff.saturating_mul(1 << retries.min(20))).await;
            }
            retries += 1;
        };
        drop(permit);
        let AttemptResult { mut output, reward, .. } = attempt;
        if retries > 0 {
            output.seconds = started.elapsed().as_secs_f64();
        }
        if let Some(scope) = limits.cache.filter(|_| output.ok && !call.record.is_replay()) {
            self.keep(
                scope,
                call,
                host,
                CachedResult { text: output.text.clone(), images: output.images.clone(), reward },
            );
        }
        drop(first);
        Ok(CallResult { output, reward, retries, cached: false })
    }

    /// The inputs of the call: the request of the record, whose text is the key of the cache.
    fn request(&self) -> Json {
        let mut request = json!({ "tool": self.tool.name, "arguments": sorted(&self.arguments) });
        if !self.prelude.is_empty() {
            request["prelude"] = json!(self.prelude);
        }
        if !self.files.is_empty() {
            request["files"] = json!(digests(&self.files));
        }
        if let Some(kwargs) = &self.kwargs {
            request["kwargs"] = sorted(kwargs);
        }
        request
    }

    /// A cached result. It may come from another trajectory, so it is recorded.
    fn cached(&self, scope: CacheScope, call: &Call, host: &Host) -> mlua::Result<Option<CallResult>> {
        let request = self.request();
        let key = request.to_string();
        let look = || {
            Ok(match (scope, &call.session) {
                (CacheScope::Run, _) => host.shared.borrow().cache().get(&key),
                (CacheScope::Trajectory, Some(session)) => session.cache.borrow().get(&key),
                (CacheScope::Trajectory, None) => None,
            })
        };
        let result: Option<CachedResult> = call.external_now("cache", request, look).map_err(raise)?;
        Ok(result.map(|CachedResult { text, images, reward }| {
            let output = Output { text, images, ok: true, ..Output::default() };
            CallResult { output, reward, retries: 0, cached: true }
        }))
    }

    fn keep(&self, scope: CacheScope, call: &Call, host: &Host, result: CachedResult) {
        let key = self.request().to_string();
        match (scope, &call.session) {
            (CacheScope::Run, _) => host.shared.borrow().cache().put(&key, result),
            (CacheScope::Trajectory, Some(session)) => session.cache.borrow_mut().put(&key, result),
            (CacheScope::Trajectory, None) => {}
        }
    }

    /// Waits while an equal call is running, so that equal calls run once. If that call fails, all
    /// that waited run at once.
    async fn first(&self, scope: CacheScope, call: &Call, host: &Host) -> Option<FirstCall> {
        // Calls of tools that call tools could wait for each other.
        if call.record.is_replay() || call.outer_tools().next().is_some() {
            return None;
        }
        let running = match (scope, &call.session) {
            (CacheScope::Run, _) => host.shared.borrow().running.clone(),
            (CacheScope::Trajectory, session) => session.as_ref()?.running.clone(),
        };
        running.first(&self.request().to_string()).await
    }

    /// Waits for the tool's concurrency limit. A tool that calls itself already holds a permit.
    async fn permit(&self, call: &Call, host: &Host) -> mlua::Result<Option<OwnedSemaphorePermit>> {
        let limit = self.tool.limits.concurrency;
        let is_inside_itself = || call.outer_tools().any(|tool| *tool == *self.tool.name);
        if limit == 0 || call.record.is_replay() || is_inside_itself() {
            return Ok(None);
        }
        let permits = host.shared.borrow().permits(&self.tool.name, limit);
        let permit = permits.acquire_owned().await;
        permit.map(Some).map_err(|error| raise(Error::new(Kind::Internal, format!("a tool's turn: {error}"))))
    }
}

/// JSON with sorted object keys, so that equal arguments are equal text.
fn sorted(value: &Json) -> Json {
    match value {
        Json::Object(fields) => {
            let fields: std::collections::BTreeMap<&String, Json> =
                fields.iter().map(|(name, value)| (name, sorted(value))).collect();
            Json::Object(fields.into_iter().map(|(name, value)| (name.clone(), value)).collect())
        }
        Json::Array(items) => items.iter().map(sorted).collect(),
        other => other.clone(),
    }
}
