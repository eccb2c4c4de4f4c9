//! Images in the messages of a state, and in the rows of tasks: they are stored, and replaced by
//! their hashes.

use std::rc::Rc;

use mlua::{Function, Table, Value};
use serde_json::Value as Json;

use super::worker::Worker;
use crate::error::Result;
use crate::script::api::image;
use crate::script::runtime::failure::Failure;
use crate::script::runtime::host::Call;
use crate::script::runtime::place::at_function;
use crate::vision::store_columns;

impl Worker {
    /// Stores the images of `state.messages` after `call` of `function`. After `reset`, `task` is
    /// its argument, and whether each image of its row needs a place in the messages.
    ///
    /// # Errors
    /// An image that can't be read, at the line of `function`.
    pub(super) fn store_images(
        &self,
        (call, function): (&Rc<Call>, &Function),
        state: &Table,
        task: Option<(&Value, bool)>,
    ) -> Result<(), Failure> {
        let Ok(Value::Table(list)) = state.raw_get("messages") else { return Ok(()) };
        let lua = &self.vm.lua;
        let stored: Result<Table, Failure> = match task {
            Some((task, required)) => {
                let place_images = image::function(lua, "place")?;
                self.vm.call_now(call, &place_images, (&list, "state.messages", task, required))
            }
            None => self.vm.call_now(call, &image::function(lua, "store")?, (&list, "state.messages")),
        };
        let placed = |failure: Failure| Failure { error: at_function(function, failure.error), ..failure };
        let stored = stored.map_err(placed)?;
        if stored != list {
            state.raw_set("messages", stored)?;
        }
        Ok(())
    }

    /// The messages that a context function returned, whose images are stored.
    ///
    /// # Errors
    /// An image that can't be read.
    pub(super) fn stored(&self, call: &Rc<Call>, list: &Table) -> Result<Table> {
        let store = image::function(&self.vm.lua, "store").map_err(|error| Failure::from(error).error)?;
        self.vm.call_now(call, &store, (list, "messages")).map_err(|failure| failure.error)
    }

    /// Stores the images of a row if the policy reads images: the task of a trajectory has hashes.
    ///
    /// # Errors
    /// As [`store_columns`].
    pub(super) fn store_row_images(&self, row: &mut Json) -> Result<()> {
        match self.vm.host.renderer.as_ref().and_then(|renderer| renderer.images()) {
            Some(images) => store_columns(row, images),
            None => Ok(()),
        }
    }
}
