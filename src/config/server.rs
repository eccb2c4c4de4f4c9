//! What a policy behind a server excludes: training, and the start of a reply.

use super::{PolicySettings, Settings};
use crate::error::{Error, Kind, Result};

/// Refuses the start of a reply, which servers do not accept.
///
/// # Errors
/// [`Kind::Usage`].
pub fn refuse_reply_prefix(settings: &Settings) -> Result<()> {
    if settings.environments().iter().all(|(_, env)| env.reply_prefix.is_empty()) {
        return Ok(());
    }
    let message = "env.reply_prefix needs a model in this process: servers do not accept the start of a reply";
    Err(Error::new(Kind::Usage, message).hint("leave out --api-base, or set env.reply_prefix to \"\""))
}

/// Refuses a server where the weights of the policy are needed.
///
/// # Errors
/// [`Kind::Usage`].
pub fn refuse_server(policy: &PolicySettings) -> Result<()> {
    if policy.api_base.is_empty() {
        return Ok(());
    }
    let message = format!(
        "policy.api_base is {}: a server gives no weights and no log-probabilities, so its model can't be trained",
        policy.api_base
    );
    Err(Error::new(Kind::Usage, message)
        .about_setting("policy.api_base")
        .hint("leave policy.api_base out; r1 eval and r1 infer take a server"))
}
