//! Every integration test, in one binary so that libtorch is linked once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, clippy::unnecessary_debug_formatting)]

mod architecture;
mod calls;
mod cli;
mod docs;
mod fork_server;
mod hostile;
mod links;
mod python_files;
#[path = "../src/reference_data.rs"]
mod reference_data;
mod sandbox;
