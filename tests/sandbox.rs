//! Programs that behave and programs that don't, through the public API of the Python tool.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use r1::tools::{Output, Python, PythonOptions};

fn run(python: &Python, code: &str) -> Output {
    block_on(python.run(code, ""))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn arithmetic() {
    let python = Python::new(PythonOptions::default()).unwrap();
    let output = run(&python, "print(6 * 7)");
    assert_eq!((output.text.as_str(), output.ok), ("42", true));
}

#[test]
#[ignore = "a measurement"]
fn round_trip() {
    let python = Python::new(PythonOptions::default()).unwrap();
    let mut times = Vec::new();
    for _ in 0..200 {
        let start = std::time::Instant::now();
        run(&python, "print(6 * 7)");
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    println!("median {:.2} ms, 90% {:.2} ms", times[100], times[180]);
}
