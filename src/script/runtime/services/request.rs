//! A call as a typed request with a typed reply, and the macro that declares one.

use tokio::sync::oneshot;

use crate::error::Result;

/// The arguments of a call.
pub trait Request: Send + Sized + 'static {
    type Reply: Send + 'static;
    /// The enum of calls with a variant for this call.
    type Calls;
    fn into_call(self, reply: Reply<Self::Reply>) -> Self::Calls;
}

/// Receives the result of a call.
#[derive(Debug)]
pub struct Reply<T>(oneshot::Sender<Result<T>>);

impl<T> Reply<T> {
    /// A reply and what receives it.
    pub fn channel() -> (Self, oneshot::Receiver<Result<T>>) {
        let (sender, receiver) = oneshot::channel();
        (Self(sender), receiver)
    }

    /// Ends the call. The caller may have stopped waiting; a close does not wait.
    pub fn send(self, result: Result<T>) {
        let _ = self.0.send(result);
    }
}

/// Declares an enum of calls. A call is a struct with its arguments, the [`Request`] that relates
/// it to its reply, and a variant of the enum:
///
/// ```text
/// calls! {
///     /// Calls of open models.
///     pub enum ModelCall {
///         /// Logits of each id.
///         Logits { model: u64, ids: Vec<u32> } -> Vec<Vec<f64>>;
///     }
/// }
/// ```
macro_rules! calls {
    (
        $(#[doc = $about:literal])+
        pub enum $Calls:ident {
            $(
                $(#[doc = $doc:literal])+
                $Name:ident {
                    $($(#[$($attribute:tt)*])* $field:ident: $Type:ty),* $(,)?
                } -> $Reply:ty;
            )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug)]
        pub enum $Calls {
            $($Name($Name, $crate::script::runtime::services::request::Reply<$Reply>),)+
        }

        $(
            $(#[doc = $doc])+
            #[derive(Clone, Debug, serde::Deserialize)]
            #[serde(deny_unknown_fields)]
            pub struct $Name {
                $($(#[$($attribute)*])* pub $field: $Type,)*
            }

            impl $crate::script::runtime::services::request::Request for $Name {
                type Reply = $Reply;
                type Calls = $Calls;

                fn into_call(
                    self,
                    reply: $crate::script::runtime::services::request::Reply<$Reply>,
                ) -> $Calls {
                    $Calls::$Name(self, reply)
                }
            }
        )+
    };
}

pub(super) use calls;
