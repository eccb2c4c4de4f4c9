//! Every integration test, in one binary so that libtorch is linked once.

#![allow(clippy::format_collect, clippy::type_complexity, clippy::needless_for_each)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, clippy::unnecessary_debug_formatting)]

mod architecture;
mod cli;
mod docs;
mod hostile;
mod python_files;
mod sandbox;
