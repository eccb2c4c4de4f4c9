//! The training loops, read top to bottom.
