//! Plain data of the step-level decision process, and the interface between rollouts and a policy
//! ([`Policy`]). No I/O, no tensors, no scripts.

mod chat;
pub mod conversation;
mod demonstration;
mod describe_tools;
mod error_record;
mod evaluation;
mod failing_tools;
mod generation;
mod image_ids;
mod invalid;
mod message;
mod output_file;
mod policy;
mod record;
mod routing;
mod scripted;
mod seed;
mod split;
mod step_row;
#[doc(hidden)]
pub mod testing;
mod trajectory;

pub use chat::{ChatMessage, ChatPart, ServerChat, ServerCompletion, ServerReply, Usage};
pub use demonstration::Demonstration;
pub use describe_tools::DescribeTools;
pub use error_record::ErrorRecord;
pub use evaluation::{AtK, Evaluation};
pub use failing_tools::{FailingTool, failing_tools};
pub use generation::{Completion, FinishReason, Request, Sampling, StreamSeed, Support};
pub use image_ids::{FIRST_IMAGE_ID, image_id, image_number, renumber_images};
pub use invalid::Invalid;
pub use message::{ARGUMENTS_DEPTH, Action, Content, Message, Observation, Part, Role, ToolCall};
pub use output_file::OutputFile;
pub use policy::{PendingReply, Policy, Scoring};
pub use record::{
    Answer, ExternalCall, Failed, GeneratedText, InterpreterOutput, InterpreterRequest, Outcome, SampledTokens,
};
pub use routing::Routing;
pub use scripted::Scripted;
pub use seed::{Seed, environment_seed, seed_value};
pub use split::Split;
pub use step_row::StepRow;
pub use trajectory::{CallKind, Fork, Limit, Status, Step, StepSeconds, ToolRecord, TrainedTokens, Trajectory};
