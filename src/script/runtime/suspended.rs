//! Calls of Lua functions that may suspend, and how they are dropped early.
//!
//! mlua resets the Luau thread of a call that is dropped while it is suspended, or after it has
//! failed. The reset reallocates the thread's stack outside of any protected call, so a failing
//! allocation aborts the process. A script can cause this: it fills its memory limit inside `pcall`
//! and holds a suspended call. The memory limit is therefore lifted while calls are dropped
//! ([`with_room`]); only a few hundred bytes per thread are allocated then.
//!
//! A call inside a host function is dropped with it, possibly by the collector. mlua does not reset
//! threads then, and the limit cannot be changed. So a call lifts the limit itself only if it has
//! ended, or if it is the outermost one, which no Lua object holds. Code that drops a suspended
//! call calls [`with_room`].

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use mlua::{FromLuaMulti, Function, IntoLuaMulti, Lua, WeakLua};

/// A call of a Lua function, which may suspend and may be dropped at any time.
pub(crate) struct Suspended<R> {
    lua: WeakLua,
    outermost: bool,
    /// `None` once the call has ended.
    future: Option<Pin<Box<dyn Future<Output = mlua::Result<R>>>>>,
}

impl<R: FromLuaMulti + 'static> Suspended<R> {
    /// Prepares a call from within a host function; it begins at the first poll.
    pub(crate) fn inner(lua: &Lua, function: &Function, args: impl IntoLuaMulti) -> Self {
        Self { lua: lua.weak(), outermost: false, future: Some(Box::pin(function.call_async::<R>(args))) }
    }

    /// Prepares a call by the host.
    pub(crate) fn outermost(lua: &Lua, function: &Function, args: impl IntoLuaMulti) -> Self {
        let mut call = Self::inner(lua, function, args);
        call.outermost = true;
        call
    }
}

impl<R> Suspended<R> {
    /// Drops the call early.
    pub(crate) fn end(&mut self) {
        match self.lua.try_upgrade() {
            Some(lua) => with_room(&lua, || self.future = None),
            None => self.future = None,
        }
    }
}

impl<R> Future for Suspended<R> {
    type Output = mlua::Result<R>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.future else { return Poll::Pending };
        let polled = future.as_mut().poll(cx);
        if polled.is_ready() {
            self.end();
        }
        polled
    }
}

impl<R> Drop for Suspended<R> {
    fn drop(&mut self) {
        if self.outermost && self.future.is_some() {
            self.end();
        }
    }
}

/// Runs `drop`, which drops suspended calls, without a memory limit. Not for destructors of Lua
/// objects.
pub(crate) fn with_room(lua: &Lua, drop: impl FnOnce()) {
    // 0: no limit. Fails only without an allocator of mlua, which every virtual machine here has.
    let limit = lua.set_memory_limit(0);
    drop();
    if let Ok(limit) = limit {
        let _ = lua.set_memory_limit(limit);
    }
}
