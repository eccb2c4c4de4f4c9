//! The columns of trajectories: what each is, and of which columns of a file it is made.

/// What a column has for each trajectory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// A number; NaN if it is not stored.
    Number,
    Text,
    /// Structured data, as JSON text.
    Json,
}

/// A column of trajectories.
#[derive(Debug)]
pub struct TrajectoryColumn {
    pub name: &'static str,
    pub about: &'static str,
    pub(super) source: ColumnSource,
}

/// How the values are made of the columns of a file.
#[derive(Clone, Copy, Debug)]
pub(super) enum ColumnSource {
    /// The training step of the file.
    Step,
    /// Of the first row.
    Number(&'static str),
    Text(&'static str),
    Json(&'static str),
    /// Of the last row.
    LastText(&'static str),
    /// The number of rows that are steps.
    Steps,
    /// Sampled tokens, for a server as it counts them.
    Tokens,
    /// Calls of tools that the policy made and the recipe has.
    Calls,
    /// The mean over the steps that have a value.
    Mean(&'static str),
    /// The mean over the items of the lists of all steps.
    MeanOfItems(&'static str),
    /// The largest difference of the learner's and the sampler's log-probability.
    Mismatch,
    /// The values of the steps.
    Numbers(&'static str),
    Texts(&'static str),
    /// The lists of the steps as one.
    Joined(&'static str),
}

const fn column(name: &'static str, source: ColumnSource, about: &'static str) -> TrajectoryColumn {
    TrajectoryColumn { name, about, source }
}

/// The columns of trajectories, in order.
pub const TRAJECTORY_COLUMNS: &[TrajectoryColumn] = &[
    column("id", ColumnSource::Text("id"), "STEP-GROUP-SAMPLE, of evaluations eval-STEP-ROW-SAMPLE"),
    column("step", ColumnSource::Step, "training step"),
    column("group", ColumnSource::Number("group"), "number of the group in its step"),
    column("sample", ColumnSource::Number("sample"), "number within the group"),
    column("task_index", ColumnSource::Number("task_index"), "row of the dataset"),
    column("task", ColumnSource::Json("task"), "the row itself"),
    column("status", ColumnSource::Text("status"), "terminated, truncated, or a failure"),
    column("truncated_by", ColumnSource::Text("truncated_by"), "the limit of a truncated trajectory"),
    column("reward", ColumnSource::Number("total_reward"), "sum of the rewards of the steps"),
    column("outcome_reward", ColumnSource::Number("outcome_reward"), "the result of the recipe's `reward`"),
    column("reward_parts", ColumnSource::Json("reward_parts"), "named components of the reward"),
    column("rewards", ColumnSource::Numbers("reward"), "reward of each step"),
    column("advantage", ColumnSource::Mean("advantage"), "mean over the steps"),
    column("advantages", ColumnSource::Numbers("advantage"), "advantage of each step"),
    column("steps", ColumnSource::Steps, "number of steps"),
    column("tokens", ColumnSource::Tokens, "number of sampled tokens"),
    column("tool_calls", ColumnSource::Calls, "calls of tools that the recipe has"),
    column("tools", ColumnSource::Joined("tools"), "the calls: name, arguments, output, ok, reward, seconds"),
    column("mismatch", ColumnSource::Mismatch, "largest |learner's - sampler's log-probability| of a token"),
    column("entropy", ColumnSource::MeanOfItems("entropies"), "mean over the sampled tokens"),
    column("value", ColumnSource::MeanOfItems("values"), "the critic's, mean over the sampled tokens"),
    column("clipped", ColumnSource::MeanOfItems("clipped"), "share of tokens whose ratio was clipped"),
    column("finish_reason", ColumnSource::LastText("finish_reason"), "why the last reply ended"),
    column("reply", ColumnSource::LastText("text"), "the last reply"),
    column("replies", ColumnSource::Texts("text"), "the replies of all steps"),
    column("messages", ColumnSource::Json("messages"), "the conversation at the end"),
    column("error", ColumnSource::Text("error"), "message of a failure"),
    column("seconds", ColumnSource::Number("seconds"), "wall time of the rollout"),
    column("retries", ColumnSource::Number("retries"), "retries after failures"),
    column("parent", ColumnSource::Text("parent"), "id of the trajectory that it branches from"),
    column("forked_at", ColumnSource::Number("forked_at"), "number of steps shared with its parent"),
    column("policy_version", ColumnSource::Number("policy_version"), "updates of the sampling weights"),
    column("script_hash", ColumnSource::Text("script_hash"), "version of the script"),
];

impl TrajectoryColumn {
    /// The column of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        TRAJECTORY_COLUMNS.iter().find(|column| column.name == name)
    }

    pub fn kind(&self) -> ColumnKind {
        match self.source {
            ColumnSource::Text(_) | ColumnSource::LastText(_) => ColumnKind::Text,
            ColumnSource::Json(_) | ColumnSource::Numbers(_) | ColumnSource::Texts(_) | ColumnSource::Joined(_) => {
                ColumnKind::Json
            }
            _ => ColumnKind::Number,
        }
    }

    /// The columns of the file that it is made of.
    pub(super) fn read(&'static self) -> &'static [&'static str] {
        match &self.source {
            ColumnSource::Step => &[],
            ColumnSource::Steps => &["step"],
            ColumnSource::Tokens => &["response_ids", "server"],
            ColumnSource::Calls => &["tools"],
            ColumnSource::Mismatch => &["learner_logprobs", "logprobs"],
            ColumnSource::Number(name)
            | ColumnSource::Text(name)
            | ColumnSource::Json(name)
            | ColumnSource::LastText(name)
            | ColumnSource::Mean(name)
            | ColumnSource::MeanOfItems(name)
            | ColumnSource::Numbers(name)
            | ColumnSource::Texts(name)
            | ColumnSource::Joined(name) => std::slice::from_ref(name),
        }
    }
}
