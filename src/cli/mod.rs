//! The command line: one file per subcommand.

/// Parses the arguments, runs the subcommand, turns its result into an exit code.
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
