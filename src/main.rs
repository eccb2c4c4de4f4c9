//! Entry point: runs the command line and returns its exit code.

fn main() -> std::process::ExitCode {
    r1::cli::main()
}
