//! Functions over models and tensors that the host provides for scripts: typed requests and
//! replies. `script::api` reads requests from Lua values and writes replies as Lua values.

pub mod env;
pub mod model;
pub(crate) mod read;
pub mod request;
pub mod rl;
pub mod training;

use std::sync::{Arc, OnceLock};

use crate::error::{Error, Kind, Result};
use crate::search::{NoModels, SearchModels};
use env::EnvCall;
use model::ModelCall;
use request::{Reply, Request};
use rl::RlCall;
use training::TrainingCall;

/// A call with the receiver of its reply.
#[derive(Debug)]
pub enum Call {
    Env(EnvCall),
    Model(ModelCall),
    Rl(RlCall),
    Training(TrainingCall),
}

macro_rules! groups {
    ($($Group:ident: $Calls:ident),+) => {
        $(impl From<$Calls> for Call {
            fn from(call: $Calls) -> Self {
                Self::$Group(call)
            }
        })+
    };
}

groups!(Env: EnvCall, Model: ModelCall, Rl: RlCall, Training: TrainingCall);

/// Functions over models, scripts and runs. They are given to the virtual machines of `r1 lua`; the
/// thread that owns the tensors runs them, or the one that runs scripts.
pub trait Services: Send + Sync {
    /// Sends a call to its thread.
    ///
    /// # Errors
    /// [`Kind::Internal`] if the thread cannot be started.
    fn send(&self, call: Call) -> Result<()>;

    /// Loads the models of searches.
    fn search_models(&self) -> &'static dyn SearchModels {
        &NoModels
    }
}

impl dyn Services + '_ {
    /// Makes a call. It is sent immediately, not when the future is polled: the close of a model is
    /// not awaited.
    ///
    /// # Errors
    /// A message for the script's author about wrong arguments or a limit of the model.
    pub fn call<R: Request<Calls: Into<Call>>>(
        &self,
        request: R,
    ) -> impl Future<Output = Result<R::Reply>> + Send + use<R> {
        let (reply, receiver) = Reply::channel();
        let sent = self.send(request.into_call(reply).into());
        async move {
            sent?;
            receiver.await.map_err(|_| Error::new(Kind::Internal, "the thread of the call has stopped"))?
        }
    }
}

static SHARED: OnceLock<Arc<dyn Services>> = OnceLock::new();

/// Lets recipes use models (`r1.generate(prompt, { model = … })`). The first call sets the services
/// of the process.
pub fn share_services(services: Arc<dyn Services>) {
    // A second one would refer to the same tensor thread.
    let _ = SHARED.set(services);
}

/// The services of recipes.
pub(crate) fn shared() -> Option<Arc<dyn Services>> {
    SHARED.get().cloned()
}
