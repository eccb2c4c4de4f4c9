//! Arguments of `r1 traj`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use super::completers::runs;
use super::recorded::Id;
use crate::store::{ColumnKind, TRAJECTORY_COLUMNS};

/// List, search, compare, export and check the stored trajectories of a run
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(super) struct TrajArgs {
    #[command(subcommand)]
    pub(super) command: TrajCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum TrajCommand {
    Ls(LsArgs),
    Show(TrajShowArgs),
    Where(WhereArgs),
    Grep(GrepArgs),
    Diff(DiffArgs),
    Top(TopArgs),
    Stats(TrajStatsArgs),
    Export(ExportArgs),
    Verify(VerifyArgs),
    Account(AccountArgs),
}

/// Training steps, with both ends: `12`, `10..20`, `10..` or `..20`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepRange {
    pub(super) first: u64,
    pub(super) last: u64,
}

/// A text that is no range of steps.
#[derive(Debug, thiserror::Error)]
#[error("must be a step or a range, such as 12, 10..20, 10.. or ..20")]
pub(super) struct InvalidRange;

impl FromStr for StepRange {
    type Err = InvalidRange;

    fn from_str(text: &str) -> Result<Self, InvalidRange> {
        let number = |text: &str, missing: u64| match text {
            "" => Ok(missing),
            text => text.parse::<u64>().map_err(|_| InvalidRange),
        };
        let (first, last) = if let Some((first, last)) = text.split_once("..") {
            (number(first, 0)?, number(last, u64::MAX)?)
        } else {
            let step = text.parse().map_err(|_| InvalidRange)?;
            (step, step)
        };
        if first <= last { Ok(Self { first, last }) } else { Err(InvalidRange) }
    }
}

/// The trajectories that a command reads.
#[derive(Debug, Args)]
pub(super) struct SelectionArgs {
    /// A run: its directory, or its name
    #[arg(add = runs())]
    pub(super) run: PathBuf,
    /// The trajectories of evaluations instead of training
    #[arg(long)]
    pub(super) eval: bool,
    /// Only these training steps: 12, 10..20, 10.. or ..20, with both ends
    #[arg(long, value_name = "RANGE", conflicts_with = "last")]
    pub(super) steps: Option<StepRange>,
    /// Only the last N steps of the run; 0: all
    #[arg(long, value_name = "N", default_value = "0")]
    pub(super) last: usize,
    /// Directory of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub(super) runs_dir: PathBuf,
}

/// List trajectories, the newest at the end
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 traj ls retool                        the last 50 trajectories
  r1 traj ls retool --steps 12             those of a step
  r1 traj ls retool --eval --limit 0       all trajectories of evaluations")]
pub(super) struct LsArgs {
    #[command(flatten)]
    pub(super) selection: SelectionArgs,
    /// Number of trajectories; 0: all
    #[arg(long, short = 'n', value_name = "N", default_value = "50")]
    pub(super) limit: usize,
}

/// Show trajectories: rewards, conversation, steps and tool calls, or every token
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 traj show retool 12-3-0               one trajectory; 12-3 is its group
  r1 traj show retool eval-12-3-0          one of an evaluation
  r1 traj show retool 12-3-0 --tokens --by logprob")]
pub(super) struct TrajShowArgs {
    /// A run: its directory, or its name
    #[arg(add = runs())]
    pub(super) run: PathBuf,
    /// Trajectories: STEP-GROUP-SAMPLE, STEP-GROUP or STEP; of evaluations eval-STEP…
    #[arg(value_name = "ID", required = true)]
    pub(super) ids: Vec<Id>,
    /// Print every token, with colour by its origin
    #[arg(long)]
    pub(super) tokens: bool,
    /// The number below each sampled token
    #[arg(long, value_name = "NUMBER", requires = "tokens", default_value = "advantage")]
    pub(super) by: TokenNumber,
    /// Print long messages and outputs in full
    #[arg(long)]
    pub(super) whole: bool,
    /// Directory of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub(super) runs_dir: PathBuf,
}

/// A number of a sampled token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum TokenNumber {
    Advantage,
    /// Log-probability when it was sampled
    Logprob,
    /// Learner's less sampler's log-probability
    Mismatch,
    Entropy,
    /// Of the critic
    Value,
    /// Training target of the critic
    Return,
    /// Log-probability under the reference policy
    Reference,
}

/// List the trajectories for which a Luau expression holds
#[derive(Debug, Args)]
#[command(after_help = where_help())]
pub(super) struct WhereArgs {
    #[command(flatten)]
    pub(super) selection: SelectionArgs,
    /// A Luau expression over the columns below
    #[arg(value_name = "EXPRESSION", allow_hyphen_values = true)]
    pub(super) condition: String,
    /// Number of trajectories; 0: all
    #[arg(long, short = 'n', value_name = "N", default_value = "50")]
    pub(super) limit: usize,
}

/// The columns of an expression, for the help.
fn where_help() -> String {
    let kind = |kind: ColumnKind| match kind {
        ColumnKind::Number => "",
        ColumnKind::Text => ", text",
        ColumnKind::Json => ", a table",
    };
    let line = |column: &crate::store::TrajectoryColumn| {
        format!("  {:<16}{}{}\n", column.name, column.about, kind(column.kind()))
    };
    let columns: String = TRAJECTORY_COLUMNS.iter().map(line).collect();
    format!(
        "Examples:
  r1 traj where retool 'reward < 0 and steps > 3'
  r1 traj where retool 'status == \"env_error\" and error:find(\"timeout\")'
  r1 traj where retool 'task.level == 5 and #tools == 0' --last 10

Only the named columns are read. Columns:
{columns}
A number that is not stored is NaN, of which no comparison is true; a text is nil."
    )
}

/// Search the messages of trajectories for a regular expression
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 traj grep retool 'I (cannot|can.t)'
  r1 traj grep retool error --role tool -i
  r1 traj grep retool wait --where 'reward > 0' --last 10")]
pub(super) struct GrepArgs {
    #[command(flatten)]
    pub(super) selection: SelectionArgs,
    /// A regular expression, which is searched in each line of a message and in tool calls
    #[arg(value_name = "PATTERN", allow_hyphen_values = true)]
    pub(super) pattern: String,
    /// Ignore upper and lower case
    #[arg(long, short)]
    pub(super) ignore_case: bool,
    /// Only messages of this role: system, user, assistant or tool
    #[arg(long, value_name = "ROLE", value_parser = ["system", "user", "assistant", "tool"])]
    pub(super) role: Option<String>,
    /// Only trajectories for which this Luau expression holds
    #[arg(long = "where", value_name = "EXPRESSION")]
    pub(super) condition: Option<String>,
    /// Number of lines; 0: all
    #[arg(long, short = 'n', value_name = "N", default_value = "50")]
    pub(super) limit: usize,
}

/// Compare two trajectories: fields, tokens and conversation
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 traj diff retool 12-3-0 12-3-1
  r1 traj diff retool 12-3-0 retool-2:12-3-0     the second one is of another run")]
pub(super) struct DiffArgs {
    /// A run: its directory, or its name
    #[arg(add = runs())]
    pub(super) run: PathBuf,
    /// A trajectory
    #[arg(value_name = "ID")]
    pub(super) first: Id,
    /// The trajectory that it is compared with
    #[arg(value_name = "[RUN:]ID")]
    pub(super) second: String,
    /// Directory of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub(super) runs_dir: PathBuf,
}

/// List the trajectories with the highest numbers
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 traj top retool --by reward --lowest
  r1 traj top retool --by mismatch --last 5      where sampler and learner differ most
  r1 traj top retool --by length --where 'reward > 0'")]
pub(super) struct TopArgs {
    #[command(flatten)]
    pub(super) selection: SelectionArgs,
    /// reward, advantage, mismatch, length (sampled tokens), or another column with numbers
    #[arg(long, value_name = "COLUMN", default_value = "reward")]
    pub(super) by: String,
    /// The lowest numbers instead
    #[arg(long)]
    pub(super) lowest: bool,
    /// Only trajectories for which this Luau expression holds
    #[arg(long = "where", value_name = "EXPRESSION")]
    pub(super) condition: Option<String>,
    /// Number of trajectories; 0: all
    #[arg(long, short = 'n', value_name = "N", default_value = "10")]
    pub(super) limit: usize,
}

/// Print counts and distributions: rewards, lengths, tool calls, times
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 traj stats retool
  r1 traj stats retool --where 'tool_calls > 0'
  r1 traj stats retool --all --last 10           also mismatch, entropy and others")]
pub(super) struct TrajStatsArgs {
    #[command(flatten)]
    pub(super) selection: SelectionArgs,
    /// Also the columns that are computed from a number of every token
    #[arg(long)]
    pub(super) all: bool,
    /// Only trajectories for which this Luau expression holds
    #[arg(long = "where", value_name = "EXPRESSION")]
    pub(super) condition: Option<String>,
}

/// Write trajectories in the form of other programs
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("format").required(true), after_help = "Examples:
  r1 traj export retool --sft --where 'reward >= 1' -o good.jsonl     rows of r1 sft
  r1 traj export retool --openai --where 'reward >= 1' -o tuning.jsonl
  r1 traj export retool --parquet --last 5 -o last.parquet            a file of the store
  r1 traj export retool --jsonl --eval                                one JSON object per line

--sft and --openai leave out failed trajectories, and messages after the last reply. Every format
leaves out the trajectories that a note of `r1 view` excludes.")]
#[expect(clippy::struct_excessive_bools, reason = "a switch for each format")]
pub(super) struct ExportArgs {
    #[command(flatten)]
    pub(super) selection: SelectionArgs,
    /// One object per trajectory, as r1.store.trajectories returns it
    #[arg(long, group = "format")]
    pub(super) jsonl: bool,
    /// Conversations that r1 sft reads: messages and tools
    #[arg(long, group = "format")]
    pub(super) sft: bool,
    /// The fine-tuning format of OpenAI
    #[arg(long, group = "format")]
    pub(super) openai: bool,
    /// One Parquet file in the form of the store
    #[arg(long, group = "format", requires = "out")]
    pub(super) parquet: bool,
    /// Only trajectories for which this Luau expression holds
    #[arg(long = "where", value_name = "EXPRESSION")]
    pub(super) condition: Option<String>,
    /// The file to write [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
}

/// Check every file of trajectories: checksums, ids, lengths, groups, gaps
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 traj verify retool
  r1 traj verify runs/retool --json

The exit code is 0 if everything is right, and 8 if not.")]
pub(super) struct VerifyArgs {
    /// A run: its directory, or its name
    #[arg(add = runs())]
    pub(super) run: PathBuf,
    /// Directory of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub(super) runs_dir: PathBuf,
}

/// Account for every task drawn from the data: trained, dropped, failed, or in no update
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 traj account retool
  r1 traj account runs/retool --json

Checked are the positions of the steps in the data, their groups, the rows of an epoch, and the
position of the newest checkpoint. The exit code is 0 if everything fits together, and 8 if not.")]
pub(super) struct AccountArgs {
    /// A run: its directory, or its name
    #[arg(add = runs())]
    pub(super) run: PathBuf,
    /// Directory of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub(super) runs_dir: PathBuf,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ranges_of_steps_include_both_ends() {
        let range = |text: &str| text.parse::<StepRange>().ok().map(|range| (range.first, range.last));
        assert_eq!(range("12"), Some((12, 12)));
        assert_eq!(range("3..5"), Some((3, 5)));
        assert_eq!([range("3.."), range("..5")], [Some((3, u64::MAX)), Some((0, 5))]);
        assert_eq!([range(""), range("5..3"), range("a"), range("1..2..3")], [None; 4]);
    }
}
