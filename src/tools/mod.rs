//! Host tools: interpreters and their sandbox.
