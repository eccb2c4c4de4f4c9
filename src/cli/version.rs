//! `r1 version` and `r1 --version`.

use std::sync::LazyLock;

use serde_json::json;

use super::{print, print_json};
use crate::config::DeviceChoice;
use crate::error::Result;
use crate::native;

const R1: &str = env!("CARGO_PKG_VERSION");

/// The output of `--version` after `r1`.
pub(super) fn line() -> &'static str {
    static LINE: LazyLock<String> = LazyLock::new(|| format!("{R1} (libtorch {})", native::libtorch_version()));
    &LINE
}

pub(super) fn run(json: bool) -> Result<()> {
    let device = native::device(DeviceChoice::Auto)?;
    let graphs = native::cuda_graphs(device).unwrap_or_else(|| "available".to_owned());
    let device = format!("{device:?}").to_lowercase();
    let threads = native::thread_count();
    if json {
        let versions = json!({
            "event": "version", "r1": R1, "libtorch": native::libtorch_version(), "device": device,
            "threads": threads, "cpu": native::cpu_name(), "kernels": native::kernels(), "cuda_graphs": graphs,
        });
        return print_json(versions);
    }
    let (cpu, kernels) = (native::cpu_name(), native::kernels());
    print(&format!("r1 {}\ndevice {device}\nthreads {threads}\ncpu {cpu}\ninstruction set {kernels}\n", line()))
}
