//! A test file in Lua: the file runs once and registers its tests, which then run one by one.

use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use mlua::{Function, Value};

use crate::config::Limits;
use crate::error::Result;
use crate::script::api;
use crate::script::api::test::none_found;
use crate::script::recipe::load::directory;
use crate::script::runtime::failure::Failure;
use crate::script::runtime::host::{Call, EntryPoint, Host, ProgramApi};
use crate::script::runtime::log::Echo;
use crate::script::runtime::place::definition;
use crate::script::runtime::sources::SourceOrigin;
use crate::script::runtime::vm::Vm;

/// A loaded test file.
pub struct Suite {
    vm: Vm,
    limits: Limits,
    cases: Vec<(String, Function)>,
}

#[derive(Debug)]
pub struct TestVerdict {
    pub seconds: f64,
    pub failure: Option<Failure>,
    /// Expected and actual value, one entry per line, if an assertion compared two values.
    pub sides: Option<(String, String)>,
}

impl Suite {
    /// Runs the file, which registers its tests.
    ///
    /// # Errors
    /// [`Kind::Script`](crate::Kind::Script) with the line if the file fails, or has no tests.
    pub(crate) async fn load(
        path: &Path,
        source: &str,
        programs: Option<Rc<dyn ProgramApi>>,
        echo: Echo,
    ) -> Result<Self> {
        let limits = Limits { cpu: 60.0, wait: 600.0, memory: 4096, trajectory: 4096, text: 64, ..Limits::default() };
        let host = Host::for_suite(programs, echo);
        let vm = api::program_vm(limits.clone(), SourceOrigin::Disk(directory(path)), Rc::clone(&host), &[])?;
        let failed = |failure: Failure| failure.error.at_path(path);
        let function = vm.compile(path, source).map_err(failed)?;
        vm.call::<Value>(&Call::new(EntryPoint::Load, (0, 0), &limits), &function, ()).await.map_err(failed)?;
        let cases = host.cases.as_ref().map(|cases| std::mem::take(&mut cases.borrow_mut().tests)).unwrap_or_default();
        if cases.is_empty() {
            return Err(none_found(path));
        }
        Ok(Self { vm, limits, cases })
    }

    /// The names of the tests, and their places.
    pub fn names(&self) -> Vec<(&str, String)> {
        self.cases.iter().map(|(name, body)| (name.as_str(), definition(body).unwrap_or_default())).collect()
    }

    /// Runs one test, by its index in [`Suite::names`].
    pub async fn run(&self, index: usize) -> TestVerdict {
        let started = Instant::now();
        let call = Call::new(EntryPoint::Test, (index as u64, 0), &self.limits);
        let ended = match self.cases.get(index) {
            Some((_, body)) => self.vm.call::<Value>(&call, body, ()).await.map(drop),
            None => Ok(()),
        };
        let sides = self.vm.host.cases.as_ref().and_then(|cases| cases.borrow_mut().sides.take());
        let failure = ended.err();
        let sides = sides.filter(|_| failure.is_some());
        TestVerdict { seconds: started.elapsed().as_secs_f64(), failure, sides }
    }
}
