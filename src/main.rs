//! Parse, dispatch, exit code.

fn main() -> std::process::ExitCode {
    r1::cli::main()
}
