//! What a script needs from outside is checked before its first trajectory.

use super::worker::Worker;
use crate::error::{Error, Result};
use crate::script::api;
use crate::script::runtime::grants::Grants;
use crate::tools::find_program;

impl Worker {
    /// Starts the tools, so that a missing sandbox is found before the first trajectory. Otherwise
    /// they start on first use.
    ///
    /// # Errors
    /// `Kind::Tool`, with the reason, such as a declared program that is not installed;
    /// `Kind::Usage` for a declared environment variable that is not set.
    pub fn prepare(&self) -> Result<()> {
        for name in self.vm.host.grants.borrow().variables() {
            api::secret::variable(&name)?;
        }
        self.vm.host.searches.borrow().iter().try_for_each(crate::script::runtime::passages::SearchPart::prepare)?;
        let grants = self.vm.host.grants.borrow();
        self.vm.host.connections.borrow().iter().try_for_each(|connection| connection.prepare(&grants))?;
        self.vm
            .host
            .tools
            .borrow()
            .iter()
            .try_for_each(|tool| tool.host_tool().prepare(tool, &self.script.listings, &grants))?;
        if self.has_programs.get() { Ok(()) } else { self.find_programs(&grants) }
    }

    /// Finds the declared programs that no tool or connection starts: `r1.process` runs them.
    fn find_programs(&self, grants: &Grants) -> Result<()> {
        let (tools, connections) = (self.vm.host.tools.borrow(), self.vm.host.connections.borrow());
        let started = |name: &str| {
            tools.iter().any(|tool| tool.host_tool().program() == Some(name))
                || connections.iter().any(|connection| connection.program.as_deref() == Some(name))
        };
        let readable = grants.readable();
        for name in grants.programs().filter(|name| !started(name)) {
            find_program(name, &readable).map_err(|error| Error {
                message: format!("`needs` declares \"process:{name}\": {}", error.message),
                hint: error.hint.map(|hint| format!("install it, or take it out of `needs`; {hint}")),
                place: Some(self.script.place_of("needs")),
                ..error
            })?;
        }
        self.has_programs.set(true);
        Ok(())
    }
}
