//! The worst differences from the reference implementations, as the table of docs/lab/rl-parity.md:
//! `R1_UPDATE=1` prints it (`just rl-parity`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Worst differences by function and package.
#[derive(Default)]
pub(super) struct Parity(BTreeMap<(String, String), Worst>);

#[derive(Clone, Copy, Default)]
struct Worst {
    difference: f64,
    tolerance: f64,
    cases: usize,
}

impl Parity {
    /// Asserts that `got` is `want` within `tolerance * (1 + |want|)`, and records the worst
    /// difference on that scale.
    #[track_caller]
    pub(super) fn compare(&mut self, function: &str, by: &str, got: &[f64], want: &[f64], tolerance: f64, what: &str) {
        assert_eq!(got.len(), want.len(), "{what}");
        let worst = self.0.entry((function.to_owned(), by.to_owned())).or_default();
        worst.cases += 1;
        worst.tolerance = worst.tolerance.max(tolerance);
        for (got, want) in got.iter().zip(want) {
            let difference = (got - want).abs() / (1.0 + want.abs());
            assert!(difference <= tolerance, "{what}: {got} for {want}");
            worst.difference = worst.difference.max(difference);
        }
    }

    /// Prints the table with `R1_UPDATE=1`; otherwise checks that docs/lab/rl-parity.md has the
    /// same functions, references and tolerances (the differences vary with the machine).
    pub(super) fn page(&self) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/lab/rl-parity.md");
        let table = self.table();
        if std::env::var_os("R1_UPDATE").is_some() {
            print!("\n{table}");
            return;
        }
        let without = |page: &str| -> Vec<Vec<String>> {
            let rows = page.lines().filter(|line| line.starts_with("| `"));
            rows.map(|row| row.split('|').enumerate().filter(|(i, _)| *i != 4).map(|(_, cell)| cell.into()).collect())
                .collect()
        };
        assert_eq!(
            without(&std::fs::read_to_string(&path).unwrap()),
            without(&table),
            "docs/lab/rl-parity.md is out of date: `just rl-parity` rewrites it"
        );
    }

    fn table(&self) -> String {
        let mut table =
            String::from("| function | reference | cases | worst difference | held to |\n|---|---|---|---|---|\n");
        for ((function, by), worst) in &self.0 {
            let Worst { difference, tolerance, cases } = worst;
            // To one digit: the last bits depend on the machine.
            let difference = if *difference == 0.0 { "0".to_owned() } else { format!("{difference:.0e}") };
            let _ = writeln!(table, "| `{function}` | {by} | {cases} | {difference} | {tolerance:e} |");
        }
        table
    }
}
