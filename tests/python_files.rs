//! Files and packages of the Python tool: files in and out, what is kept of them, installed
//! packages.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::redundant_closure_for_method_calls)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use r1::error::Kind;
use r1::tools::python::{InputFile, LastValue, PythonCall};
use r1::tools::{Output, Python, PythonOptions};

const LONG: f64 = 30.0;

fn options() -> PythonOptions {
    PythonOptions { timeout: LONG, keep_files: true, ..PythonOptions::default() }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn run(python: &Python, code: &str, files: &[InputFile]) -> Output {
    block_on(python.call(PythonCall { code, files, ..PythonCall::default() })).unwrap()
}

fn file(name: &str, content: &[u8]) -> InputFile {
    InputFile { name: name.to_owned(), content: Arc::from(content) }
}

fn names(output: &Output) -> Vec<(&str, u64, bool)> {
    output.files.iter().map(|file| (file.name.as_str(), file.size, file.has_content())).collect()
}

#[test]
fn files_go_into_a_python_program_and_come_out_of_it() {
    for namespaces in [true, false] {
        let python = Python::new(PythonOptions { namespaces, ..options() }).unwrap();
        let files = [file("t.csv", b"a,b\n1,2\n"), file("data/raw.bin", &[0, 255, 10]), file("empty.txt", b"")];
        let output = run(&python, "print(open('t.csv').read(), list(open('data/raw.bin', 'rb').read()))", &files);
        assert_eq!((output.text.as_str(), output.ok, output.files.len()), ("a,b\n1,2\n [0, 255, 10]", true, 0));
        let code = "open('out.txt', 'w').write('hi')\nimport os\nos.makedirs('d')\n\
                    open('d/raw.bin', 'wb').write(bytes([0, 255]))\nopen('t.csv', 'a').write('3,4\\n')\nprint('done')";
        let output = run(&python, code, &files);
        assert_eq!(output.text, "done\n[file d/raw.bin, 2 B]\n[file out.txt, 2 B]\n[file t.csv, 12 B]");
        let content: Vec<Vec<u8>> = output.files.iter().filter_map(|file| file.content()).collect();
        assert_eq!(content, [vec![0, 255], b"hi".to_vec(), b"a,b\n1,2\n3,4\n".to_vec()]);
        // A failed program has files too; the next one does not see them.
        let output = run(&python, "open('a', 'w').write('x')\n1 / 0", &[]);
        assert_eq!((output.text.as_str(), output.ok), ("ZeroDivisionError: division by zero\n[file a, 1 B]", false));
        assert_eq!(run(&python, "import os\nos.listdir('.')", &[]).text, "[]");
    }
}

#[test]
fn a_python_session_gets_its_files_once_and_reports_what_changes() {
    let python = Python::new(options()).unwrap();
    let files = [file("t.txt", b"given")];
    let ask = |code: &str| {
        let call = PythonCall { code, files: &files, session: Some(1), ..PythonCall::default() };
        block_on(python.call(call)).unwrap()
    };
    assert_eq!(ask("open('t.txt', 'w').write('changed') and None").text, "[file t.txt, 7 B]");
    assert_eq!((ask("open('t.txt').read()").text.as_str(), ask("1").files.len()), ("'changed'", 0));
    // A new interpreter has the files again.
    assert!(!ask("import os\nos._exit(1)").ok);
    assert_eq!(ask("open('t.txt').read()").text, "'given'");
}

#[test]
fn hostile_files_of_a_python_program_are_limited() {
    let limits = PythonOptions { files_bytes: 1000, disk_mb: 8, ..options() };
    for namespaces in [true, false] {
        let python = Python::new(PythonOptions { namespaces, ..limits.clone() }).unwrap();
        let output = run(&python, "open('big', 'w').write('x' * 5000)\nopen('c', 'w').write('y' * 900)\nprint(1)", &[]);
        assert_eq!(output.text, "1\n[file big, 4.9 KiB, too large to keep]\n[file c, 900 B]");
        let output = run(&python, "import os\nos.symlink('/etc/passwd', 'p')\nprint(1)", &[]);
        assert_eq!((output.text.as_str(), names(&output)), ("1", vec![]));
        let output = run(&python, "for i in range(500): open('f%03d' % i, 'w').write('x')", &[]);
        assert!(output.ok && output.files.len() == 64, "{}", output.files.len());
        let output =
            run(&python, "open('a\\nb', 'w').write('x')\nopen('\\udcff', 'w').write('y')\nopen('n' * 250, 'w')", &[]);
        assert!(
            output.files.iter().all(|file| file.name.len() <= 600 && !file.name.contains('\n')),
            "{:?}",
            names(&output)
        );
        // A program that changes its current directory.
        let output = run(
            &python,
            "import os\nos.mkdir('d')\nos.chdir('d')\nopen('x', 'w').write('1')\nopen('../y', 'w')\nos.chdir('/')",
            &[],
        );
        assert_eq!(output.text, "[file d/x, 1 B]\n[file y, 0 B]");
        // A program that damages the modules that list its files only damages its own result.
        let output =
            run(&python, "import os\nos.listdir = None\nos.lstat = None\nopen('x', 'w').write('x')\nprint(1)", &[]);
        assert!(output.text.starts_with('1') || !output.ok, "{}", output.text);
        // A report that claims more files than it may.
        let output = run(&python, "import os\nos.write(200, b'D' + bytes([255]) * 8)", &[]);
        assert!(!output.ok, "{}", output.text);
        assert_eq!(run(&python, "print(2)", &[]).text, "2");
    }
    let python = Python::new(limits).unwrap();
    let large = [file("large", &vec![0; 9 << 20])];
    let error = block_on(python.call(PythonCall { code: "1", files: &large, ..PythonCall::default() })).unwrap_err();
    assert_eq!(
        (error.kind, error.message.as_str()),
        (Kind::Tool, "the files of the Python tool have 9 MiB and `disk` is 8 MiB")
    );
}

#[test]
fn the_last_value_is_shown_after_output_if_wanted() {
    for (last_value, expected) in
        [(LastValue::Auto, ["a", "5"]), (LastValue::Always, ["a\n5", "5"]), (LastValue::Never, ["a", ""])]
    {
        let python = Python::new(PythonOptions { timeout: LONG, last_value, ..PythonOptions::default() }).unwrap();
        assert_eq!(["print('a')\n5", "5"].map(|code| run(&python, code, &[]).text), expected, "{last_value:?}");
    }
}

/// A virtual environment with a package of one module; its distribution has another name.
fn environment(dir: &Path) -> PathBuf {
    let output = std::process::Command::new("python3")
        .args(["-c", "import sys; print(sys.executable); print('%d.%d' % sys.version_info[:2])"])
        .output()
        .unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let (python, version) = output.trim().split_once('\n').unwrap();
    let site = dir.join(format!("lib/python{version}/site-packages"));
    std::fs::create_dir_all(dir.join("bin")).unwrap();
    std::fs::create_dir_all(site.join("tiny_sums")).unwrap();
    std::fs::create_dir_all(site.join("tiny_tools-1.0.dist-info")).unwrap();
    let home = Path::new(python).canonicalize().unwrap().parent().unwrap().display().to_string();
    std::fs::write(dir.join("pyvenv.cfg"), format!("home = {home}\n")).unwrap();
    std::fs::write(site.join("tiny_sums/__init__.py"), "def add(a, b): return a + b\n").unwrap();
    std::fs::write(
        site.join("tiny_tools-1.0.dist-info/METADATA"),
        "Metadata-Version: 2.1\nName: tiny-tools\nVersion: 1.0\n",
    )
    .unwrap();
    std::fs::write(site.join("tiny_tools-1.0.dist-info/RECORD"), "tiny_sums/__init__.py,,\n").unwrap();
    std::os::unix::fs::symlink(python, dir.join("bin/python3")).unwrap();
    dir.join("bin/python3")
}

#[test]
fn packages_of_the_host_are_found_by_import_name_or_by_pip_name() {
    let dir = tempfile::tempdir().unwrap();
    let interpreter = environment(dir.path());
    let with = |packages: &[&str]| {
        let packages = packages.iter().map(|name| (*name).to_owned()).collect();
        Python::new(PythonOptions { interpreter: interpreter.clone(), packages, ..options() })
    };
    for name in ["tiny_sums", "tiny-sums", "tiny-tools"] {
        let python = with(&[name]).unwrap();
        assert_eq!(run(&python, "import sys\n'tiny_sums' in sys.modules", &[]).text, "True", "{name}");
        assert_eq!(run(&python, "import tiny_sums\ntiny_sums.add(2, 3)", &[]).text, "5");
    }
    let error = with(&["tiny-tools", "no-such-package", "json", "other_missing"]).unwrap_err();
    assert!(
        error
            .message
            .starts_with("the Python packages `no-such-package`, `other_missing` are not installed for Python 3."),
        "{error}"
    );
    assert!(
        error
            .hint
            .as_ref()
            .unwrap()
            .starts_with(&format!("{} -m pip install no-such-package other_missing;", interpreter.display()))
    );
    let error = with(&["os; evil"]).unwrap_err();
    assert!(error.message.contains("\"os; evil\" is not the name of a package"), "{error}");
}

/// The interpreter of `just test-python-packages`, which has numpy, pandas and matplotlib.
fn with_packages() -> PathBuf {
    std::env::var_os("R1_PYTHON_PACKAGES").expect("R1_PYTHON_PACKAGES names a Python with packages").into()
}

#[test]
#[ignore = "needs numpy, pandas and matplotlib: just test-python-packages"]
fn numpy_pandas_and_plots_run_in_the_sandbox() {
    let packages = vec!["numpy".to_owned(), "pandas".to_owned()];
    let with_plots =
        PythonOptions { interpreter: with_packages(), packages, plots: true, memory_mb: 2048, ..options() };
    let python = Python::new(with_plots).unwrap();
    let files = [file("t.csv", b"name,n\na,1\nb,5\n")];
    let output = run(&python, "import pandas as pd\npd.read_csv('t.csv')['n'].sum()", &files);
    assert_eq!((output.text.as_str(), output.ok), ("np.int64(6)", true));
    assert_eq!(run(&python, "import numpy as np\nnp.linalg.inv(np.eye(2) * 2)[0, 0]", &[]).text, "np.float64(0.5)");
    let code =
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nplt.figure()\nplt.plot([2, 1])\nprint('ok')";
    let output = run(&python, code, &[]);
    assert_eq!(
        names(&output).iter().map(|file| file.0).collect::<Vec<_>>(),
        ["plot_1.png", "plot_2.png"],
        "{}",
        output.text
    );
    assert!(output.text.starts_with("ok\n[file plot_1.png, "), "{}", output.text);
    assert!(output.files.iter().all(|file| file.content().unwrap().starts_with(b"\x89PNG")));
}

#[test]
#[ignore = "measures; needs numpy: just test-python-packages"]
fn start_times_with_and_without_numpy() {
    let measure = |packages: &[&str]| {
        let packages: Vec<String> = packages.iter().map(|name| (*name).to_owned()).collect();
        let imports: String = packages.iter().fold(String::new(), |text, name| text + "import " + name.as_str() + "\n");
        let imported =
            PythonOptions { interpreter: with_packages(), memory_mb: 2048, site_packages: true, ..options() };
        let warm = PythonOptions { packages, ..imported.clone() };
        let took = |options: PythonOptions| {
            let started = Instant::now();
            let python = Python::new(options).unwrap();
            let start = started.elapsed().as_secs_f64();
            run(&python, &imports, &[]);
            let mut calls: Vec<f64> = (0..20)
                .map(|_| {
                    let started = Instant::now();
                    assert!(run(&python, &imports, &[]).ok);
                    started.elapsed().as_secs_f64() * 1e3
                })
                .collect();
            calls.sort_by(f64::total_cmp);
            (start, calls[10])
        };
        (took(imported), took(warm))
    };
    for packages in [&["numpy"][..], &["numpy", "pandas"], &["numpy", "pandas", "matplotlib.pyplot"]] {
        let (cold, warm) = measure(packages);
        println!(
            "{packages:?}: start {:.2} s, call that imports {:.1} ms; imported before: start {:.2} s, call {:.1} ms",
            cold.0, cold.1, warm.0, warm.1
        );
    }
}
