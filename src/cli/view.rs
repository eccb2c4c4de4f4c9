//! `r1 view`: pages about runs in a browser, or a static copy of them.

use std::fmt::Write;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::json;

use super::args::OutputArgs;
use super::view_args::ViewArgs;
use super::{PORT_HINT, interrupted, listen_on, print, print_json};
use crate::error::{Error, Kind, Result};
use crate::telemetry::ctrl_c;
use crate::view::{View, export, serve};

/// Environment variable with the token of the address.
const TOKEN: &str = "R1_VIEW_TOKEN";
/// Shortest token that can be set.
const SHORTEST: usize = 16;

pub(super) fn run(args: &ViewArgs, output: OutputArgs) -> Result<()> {
    if args.runs.is_empty() && !args.runs_dir.is_dir() {
        return Err(Error::new(Kind::Store, "there is no directory of runs")
            .at_path(&args.runs_dir)
            .hint("`r1 run SCRIPT` makes it; --runs-dir DIR is another one"));
    }
    let view = View::new(&args.runs, &args.runs_dir)?;
    if let Some(directory) = &args.export {
        let reporter = output.reporter_beside_json();
        let last = args.last.map(|last| last as usize);
        let exported = export(&view, directory, last, |run| reporter.info(&format!("writing {run}")))?;
        let (files, bytes, trajectories) = (exported.files, exported.bytes, exported.trajectories);
        if output.json {
            return print_json(json!({
                "event": "export", "directory": directory, "files": files, "bytes": bytes, "trajectories": trajectories,
            }));
        }
        let page = directory.join("index.html");
        return print(&format!("{trajectories} trajectories in {files} files; open {}\n", page.display()));
    }
    let token = token()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::new(Kind::Internal, format!("can't start the runtime: {error}")))?;
    let served = runtime.block_on(listen(args, output, Arc::new(view), token));
    // Streams of events do not delay the end.
    runtime.shutdown_background();
    served
}

async fn listen(args: &ViewArgs, output: OutputArgs, view: Arc<View>, token: String) -> Result<()> {
    let (listener, address) = listen_on(SocketAddr::new(args.host, args.port), PORT_HINT).await?;
    let url = format!("http://{address}/{token}/");
    if output.json {
        print_json(json!({ "event": "view", "url": url }))?;
    } else {
        if !address.ip().is_loopback() {
            output.reporter().warn("everyone who can read the traffic to this address sees the token: there is no TLS");
        }
        print(&format!("{url}\n"))?;
        if !output.quiet {
            output.reporter().info("open this address in a browser; Ctrl-C ends it");
        }
    }
    serve(listener, view, token, interrupted(ctrl_c())).await;
    Ok(())
}

/// The token of the address: random, or the one of the environment.
///
/// # Errors
/// [`Kind::Usage`] for one that an address can't have, or that is easily guessed.
fn token() -> Result<String> {
    if let Some(token) = std::env::var_os(TOKEN).filter(|token| !token.is_empty()) {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let token = token.into_string().ok().filter(|token| token.len() >= SHORTEST && token.bytes().all(is_allowed));
        let why = format!("{TOKEN} must have {SHORTEST} or more characters, only letters, digits, - and _");
        return token.ok_or_else(|| Error::new(Kind::Usage, why));
    }
    let mut bytes = [0_u8; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| Error::io(Kind::Internal, "read random bytes from", "/dev/urandom", &error))?;
    Ok(bytes.iter().fold(String::new(), |mut token, byte| {
        let _ = write!(token, "{byte:02x}");
        token
    }))
}
