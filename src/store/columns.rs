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
    pub(super) fold: ColumnFold,
    /// The columns of a file that it is made of.
    pub(super) read: &'static [&'static str],
}

/// How the values are made of the rows of a trajectory.
#[derive(Clone, Copy, Debug)]
pub(super) enum ColumnFold {
    /// The training step of the file.
    File,
    /// The value of the first row.
    Number,
    Text,
    Json,
    /// The name of the column, if a row is true; no text otherwise, so that a condition can
    /// be `dropped` or `not dropped`.
    Flag,
    /// The same, if an update had the trajectory.
    Trained,
    /// The text of the last row.
    LastText,
    /// The number of rows that are steps.
    Steps,
    /// Sampled tokens, for a server as it counts them.
    Tokens,
    /// Calls of tools that the policy made and the recipe has.
    Calls,
    /// The mean over the steps that have a value.
    Mean,
    /// The mean over the items of the lists of all steps.
    MeanOfItems,
    /// The largest difference of two lists.
    Mismatch,
    /// A list of the values of the steps.
    Numbers,
    Texts,
    /// The lists of the steps as one.
    Joined,
}

const fn column(
    name: &'static str,
    fold: ColumnFold,
    read: &'static [&'static str],
    about: &'static str,
) -> TrajectoryColumn {
    TrajectoryColumn { name, about, fold, read }
}

/// The columns of trajectories, in order.
#[rustfmt::skip] // a line for each
pub const TRAJECTORY_COLUMNS: &[TrajectoryColumn] = &[
    column("id", ColumnFold::Text, &["id"], "STEP-GROUP-SAMPLE, of evaluations eval-STEP-ROW-SAMPLE"),
    column("step", ColumnFold::File, &[], "training step"),
    column("group", ColumnFold::Number, &["group"], "number of the group in its step"),
    column("sample", ColumnFold::Number, &["sample"], "number within the group"),
    column("task_index", ColumnFold::Number, &["task_index"], "row of the dataset"),
    column("task", ColumnFold::Json, &["task"], "the row itself"),
    column("status", ColumnFold::Text, &["status"], "terminated, truncated, or a failure"),
    column("truncated_by", ColumnFold::Text, &["truncated_by"], "the limit of a truncated trajectory"),
    column("dropped", ColumnFold::Flag, &["dropped"], "`dropped` if trainer.filter dropped its group"),
    column("trained", ColumnFold::Trained, &["loss_mask", "advantage"], "`trained` if it was in an update of its step"),
    column("reward", ColumnFold::Number, &["total_reward"], "sum of the rewards of the steps"),
    column("outcome_reward", ColumnFold::Number, &["outcome_reward"], "the result of the recipe's `reward`"),
    column("reward_parts", ColumnFold::Json, &["reward_parts"], "named components of the reward"),
    column("rewards", ColumnFold::Numbers, &["reward"], "reward of each step"),
    column("advantage", ColumnFold::Mean, &["advantage"], "mean over the steps"),
    column("advantages", ColumnFold::Numbers, &["advantage"], "advantage of each step"),
    column("steps", ColumnFold::Steps, &["step"], "number of steps"),
    column("tokens", ColumnFold::Tokens, &["tokens"], "number of sampled tokens"),
    column("tool_calls", ColumnFold::Calls, &["tools"], "calls of tools that the recipe has"),
    column("tools", ColumnFold::Joined, &["tools"], "the calls: name, arguments, output, ok, reward, seconds"),
    column("mismatch", ColumnFold::Mismatch, &["learner_logprobs", "logprobs"], "largest |learner's - sampler's log-probability| of a token"),
    column("entropy", ColumnFold::MeanOfItems, &["entropies"], "mean over the sampled tokens"),
    column("value", ColumnFold::MeanOfItems, &["values"], "the critic's, mean over the sampled tokens"),
    column("clipped", ColumnFold::MeanOfItems, &["clipped"], "share of tokens whose ratio was clipped"),
    column("finish_reason", ColumnFold::LastText, &["finish_reason"], "why the last reply ended"),
    column("reply", ColumnFold::LastText, &["text"], "the last reply"),
    column("replies", ColumnFold::Texts, &["text"], "the replies of all steps"),
    column("messages", ColumnFold::Json, &["messages"], "the conversation at the end"),
    column("error", ColumnFold::Text, &["error"], "message of a failure"),
    column("seconds", ColumnFold::Number, &["seconds"], "wall time of the rollout"),
    column("retries", ColumnFold::Number, &["retries"], "retries after failures"),
    column("parent", ColumnFold::Text, &["parent"], "id of the trajectory that it branches from"),
    column("forked_at", ColumnFold::Number, &["forked_at"], "number of steps shared with its parent"),
    column("policy_version", ColumnFold::Number, &["policy_version"], "updates of the sampling weights"),
    column("script_hash", ColumnFold::Text, &["script_hash"], "version of the script"),
];

impl TrajectoryColumn {
    /// The columns to read of a file that has those of these names.
    pub(super) fn read_of(&self, has: impl Fn(&str) -> bool) -> &'static [&'static str] {
        match self.fold {
            // Files of earlier versions have no number of tokens.
            ColumnFold::Tokens if !has("tokens") => &["response_ids", "server"],
            _ => self.read,
        }
    }

    /// The column of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        TRAJECTORY_COLUMNS.iter().find(|column| column.name == name)
    }

    pub fn kind(&self) -> ColumnKind {
        match self.fold {
            ColumnFold::Text | ColumnFold::LastText | ColumnFold::Flag | ColumnFold::Trained => ColumnKind::Text,
            ColumnFold::Json | ColumnFold::Numbers | ColumnFold::Texts | ColumnFold::Joined => ColumnKind::Json,
            _ => ColumnKind::Number,
        }
    }
}
