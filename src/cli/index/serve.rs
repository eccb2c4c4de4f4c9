//! `r1 index serve`.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::json;
use tokio::sync::Semaphore;

use super::super::args::OutputArgs;
use super::super::index_args::ServeArgs;
use super::super::{PORT_HINT, interrupted, listen_on, print, print_json};
use crate::error::{Error, Kind, Result};
use crate::net::{ServedRequest, ServedResponse, ServerLimits, serve};
use crate::search::{Index, SearchOptions, SearchRequest, respond};
use crate::telemetry::ctrl_c;

pub(super) fn run(args: &ServeArgs, output: OutputArgs) -> Result<()> {
    let options = args.how.options(args.k.map_or(1, usize::from))?;
    let index = Arc::new(Index::open_with(&args.directory, args.how.models.checkpoints()?.kept())?);
    index.check(&options)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::new(Kind::Internal, format!("can't start the runtime: {error}")))?;
    let served = runtime.block_on(listen(args, output, index, options));
    // Searches in progress do not delay the end.
    runtime.shutdown_background();
    served
}

async fn listen(args: &ServeArgs, output: OutputArgs, index: Arc<Index>, options: SearchOptions) -> Result<()> {
    let (listener, address) = listen_on(SocketAddr::new(args.host, args.port), PORT_HINT).await?;
    let url = format!("http://{address}");
    if output.json {
        print_json(json!({ "index": args.directory, "url": url, "retrieve": format!("{url}/retrieve") }))?;
    } else if !output.quiet {
        print(&format!("serving {} on {url}/retrieve; Ctrl-C ends it\n", args.directory.display()))?;
    }
    let k = args.k.map(usize::from);
    // Searches are CPU-bound: more concurrent ones than processors would only use memory.
    let permits = Arc::new(Semaphore::new(std::thread::available_parallelism().map_or(1, usize::from)));
    let handler = move |request: ServedRequest| {
        let (index, permits, options) = (Arc::clone(&index), Arc::clone(&permits), options.clone());
        async move {
            let permit = permits.acquire_owned().await;
            let searched = tokio::task::spawn_blocking(move || {
                let ServedRequest { method, path, query, body } = &request;
                let response = respond(&index, &options, k, &SearchRequest { method, path, query, body });
                drop(permit);
                response
            });
            let (status, body) = searched.await.unwrap_or_else(|_| (500, json!({ "detail": "the search failed" })));
            ServedResponse { status, body: body.to_string().into_bytes() }
        }
    };
    let limits = ServerLimits::new(usize::try_from(args.max_body << 10).unwrap_or(usize::MAX));
    serve(listener, limits, handler, interrupted(ctrl_c())).await;
    Ok(())
}
