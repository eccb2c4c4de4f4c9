//! The small C++ file over libtorch for what tch does not bind, and its safe Rust face.

/// The version of the libtorch that r1 was built against, such as `2.11.0`.
pub fn libtorch_version() -> &'static str {
    env!("R1_LIBTORCH_VERSION")
}
