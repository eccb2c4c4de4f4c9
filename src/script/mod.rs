//! The only module that knows Lua: VM, limits, sandbox, the r1 API.
