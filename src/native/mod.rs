//! The small C++ file over libtorch for what tch does not bind, and its safe Rust face.
