//! The worst differences from the reference implementations, as a table: `R1_UPDATE=1` writes
//! docs/rl-parity.md again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

const HEAD: &str = "# Agreement with reference implementations

<!-- Made by the tests: `just rl-parity` writes it again. -->

Each function of `src/rl` compared with the package that defines it, in double precision on CPU, over the fixtures that
tests/golden/rl makes with those packages: ragged trajectories of several steps with masked tokens, groups of one, equal
rewards, batches of one row and of one token, failed and truncated trajectories. A difference is |ours - theirs| /
(1 + |theirs|), of values and, for losses, of gradients; the worst of all cases is shown. *formula* is the published
definition written out in numpy or torch, where no package could be run. verl adds 1e-8 to the lengths of sequences, against
those without a token; in the single precision that it runs in nothing of it is left, so the numbers are verl's without it.

";

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

    /// Writes docs/rl-parity.md with `R1_UPDATE=1`; otherwise checks that it has the same
    /// functions, references and tolerances (the differences vary with the machine).
    pub(super) fn page(&self) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/rl-parity.md");
        let page = format!("{HEAD}{}", self.table());
        if std::env::var_os("R1_UPDATE").is_some() {
            std::fs::write(&path, page).unwrap();
            return;
        }
        let without = |page: &str| -> Vec<Vec<String>> {
            let rows = page.lines().filter(|line| line.starts_with("| `"));
            rows.map(|row| row.split('|').enumerate().filter(|(i, _)| *i != 4).map(|(_, cell)| cell.into()).collect())
                .collect()
        };
        assert_eq!(
            without(&std::fs::read_to_string(&path).unwrap()),
            without(&page),
            "docs/rl-parity.md is out of date: `just rl-parity` rewrites it"
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
