//! Server-sent events: a message when files of runs have changed. The page then requests what it
//! shows. Files are looked at once a second: a run may be on a network file system, which reports
//! no changes of other machines.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::Response;
use hyper::body::{Bytes, Frame};
use hyper::header::{CONTENT_TYPE, HeaderValue};

use super::View;

/// Time between two looks at the files.
const EVERY: Duration = Duration::from_secs(1);
/// Looks without a change after which a comment is sent, so that a lost connection is noticed.
const SILENT: u32 = 15;

pub(super) fn stream(
    view: Arc<View>,
) -> Response<http_body_util::combinators::UnsyncBoxBody<Bytes, std::convert::Infallible>> {
    let start = (view, None::<serde_json::Value>);
    let frames = stream::unfold(start, |(view, last)| async move {
        let mut silent = 0;
        loop {
            let reader = Arc::clone(&view);
            let now = tokio::task::spawn_blocking(move || reader.signatures()).await.unwrap_or_default();
            if last.as_ref() != Some(&now) {
                let text = format!("data: {now}\n\n");
                return Some((Ok(Frame::data(Bytes::from(text))), (view, Some(now))));
            }
            silent += 1;
            if silent == SILENT {
                return Some((Ok(Frame::data(Bytes::from_static(b":\n\n"))), (view, last)));
            }
            tokio::time::sleep(EVERY).await;
        }
    });
    let mut reply = Response::new(StreamBody::new(frames).boxed_unsync());
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    reply
}
