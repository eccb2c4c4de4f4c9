//! docs/parity.md: the differences measured by the parity tests, written by `just parity`.

use std::fmt::Write as _;
use std::path::PathBuf;

use tch::{Kind, Tensor};

use super::families::{Case, LOGITS, Measure, WAYS, cases, forward_and_backward, greedy, ways};
use super::{distance, lora, pack};
use crate::model::{Model, Span};
use crate::native;

const HEAD: &str = "\
# Parity with transformers

Written by `just parity`; not by hand. Models of every family and rotary variant with random weights, as transformers 5.17
and torch 2.11 compute them (`tests/golden/models/make.py`), and as r1 does: in f32 on the CPU, by the native code and by plain
libtorch operations, the worse of the two. Worst absolute differences.

- *logits*, *loss*: against transformers; *gradients*: relative difference of the norm, the worst tensor
- *greedy*: tokens of 64 that are not those of transformers
- *cache*: logits of prefill in two pieces and decoding token by token, against a full forward pass
- *packing*, *batching*: logits of rows computed together, against each alone; in one pass, and through the cache
- *padding*: logits of rows padded on the left and on the right under a mask, against those without padding

";

const LARGE: &str = "\
A real shape with random weights: as transformers initialises them, and several times as large, which gives logits of the size
that trained models have. The logits of every 64th token are compared. *of the largest*: the difference as a share of the largest
logit. *to f64*: how far the logits of each side, computed in f32, are from those of the same weights in f64; *libtorch to f64*:
those of r1 by plain libtorch operations.

These differences come from rounding: f32 has 24 bits, and the rounding error of a layer passes through all later layers,
so that differences grow with the logits. Neither side is exact: both are about as far from f64. Their
difference must be at most 1e-4, or 4 times the distance of transformers from f64 if that is more.

";

/// Heading of the section written by exchange.py.
const EXCHANGE: &str = "## Checkpoints, both ways";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/parity.md")
}

fn table(out: &mut String, first: &str, rows: &[(String, Vec<Measure>)]) {
    let Some((_, columns)) = rows.first() else { return };
    let names: Vec<&str> = columns.iter().map(|(what, ..)| *what).collect();
    writeln!(out, "| {first} | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len())).unwrap();
    let number = |(what, worst, _): &Measure| match *what {
        "greedy" => worst.to_string(),
        "largest logit" => format!("{worst:.1}"),
        _ => format!("{worst:.1e}"),
    };
    let mut worst = columns.clone();
    for (name, measures) in rows {
        let shown: Vec<String> = measures.iter().map(number).collect();
        writeln!(out, "| {name} | {} |", shown.join(" | ")).unwrap();
        for (all, own) in worst.iter_mut().zip(measures) {
            all.1 = all.1.max(own.1);
        }
    }
    let shown: Vec<String> = worst.iter().map(number).collect();
    writeln!(out, "| **worst** | {} |\n", shown.join(" | ")).unwrap();
}

/// The shape of Qwen2.5-0.5B: some logits, greedy decoding, the cache, and the f32 rounding errors
/// of both sides, which are larger for large logits.
fn large(case: &Case) -> Vec<Measure> {
    let _guard = tch::no_grad_guard();
    let model = case.model();
    let rows = case.rows();
    let ids: Vec<i64> = case.get("ids");
    let whole = |model: &Model| model.logits(&model.forward(&pack(&rows)).unwrap()).unwrap();
    let full = whole(&model);
    let some = |all: &Tensor| all.index_select(0, &case.places()).index_select(1, &Tensor::from_slice(&ids));
    let found = some(&full);
    let plain = some(&model.logits(&model.forward_plain(&pack(&rows)).unwrap()).unwrap());
    let logits = distance(&found, &case.logits);
    let (prompt, expected): (Vec<u32>, Vec<u32>) = (case.get("prompt"), case.get("greedy"));
    let mut cache = model.new_cache(1, prompt.len() + expected.len()).unwrap();
    let mut next = model.step(&mut cache, &[Span { slot: 0, start: 0, ids: &prompt }]).unwrap();
    let mut reply = Vec::new();
    for at in 0..expected.len() {
        reply.push(next.argmax(-1, false).int64_value(&[0]) as u32);
        next = model.step(&mut cache, &[Span { slot: 0, start: prompt.len() + at, ids: &reply[at..] }]).unwrap();
    }
    let differ = reply.iter().zip(&expected).filter(|(a, b)| a != b).count() as f64;
    let row = &rows[0];
    let half = row.len() / 2;
    let mut decode = 0f64;
    let mut start = 0;
    for end in std::iter::once(half).chain(half + 1..=row.len()) {
        let own = model.step(&mut cache, &[Span { slot: 0, start, ids: &row[start..end] }]).unwrap();
        decode = decode.max(distance(&own.get(0), &full.get(end as i64 - 1)));
        start = end;
    }
    drop((model, cache));
    let exact = some(&whole(&case.model_in(Kind::Double)));
    let (own, theirs) = (distance(&found, &exact), distance(&case.logits, &exact));
    let (largest, libtorch) = (case.logits.abs().max().double_value(&[]), distance(&plain, &exact));
    vec![
        ("largest logit", largest, f64::INFINITY),
        ("logits", logits, LOGITS.max(4.0 * theirs)),
        ("of the largest", logits / largest, 1e-5),
        ("greedy", differ, 0.0),
        ("cache", decode, WAYS.max(theirs)),
        ("r1 to f64", own, LOGITS.max(4.0 * theirs)),
        ("libtorch to f64", libtorch, f64::INFINITY),
        ("transformers to f64", theirs, f64::INFINITY),
    ]
}

#[test]
#[ignore = "takes 6 GB of memory and some minutes; `just parity`"]
fn parity_table() {
    let mut out = HEAD.to_owned();
    let small = |case: Case| {
        let measures = [forward_and_backward(&case), greedy(&case), ways(&case)].concat();
        (case.name, measures)
    };
    let families: Vec<_> = cases("golden").into_iter().map(small).collect();
    table(&mut out, "family and variant", &families);
    let adapters: Vec<_> = cases("golden_lora").iter().map(|case| (case.name.clone(), lora::measure(case))).collect();
    out.push_str("Adapters, against PEFT 0.21: loaded; and merged, against themselves before.\n\n");
    table(&mut out, "adapter", &adapters);
    let shapes: Vec<_> = cases("golden_large").iter().map(|case| (case.name.clone(), large(case))).collect();
    out.push_str(LARGE);
    table(&mut out, "shape", &shapes);
    writeln!(out, "Kernels of the machine: {}; libtorch {}.", native::kernels(), native::libtorch_version()).unwrap();
    // Keeps the section written by tests/golden/models/exchange.py.
    let before = std::fs::read_to_string(path()).unwrap();
    if let Some(at) = before.find(EXCHANGE) {
        write!(out, "\n{}", &before[at..]).unwrap();
    }
    std::fs::write(path(), out).unwrap();
    for (name, measures) in families.iter().chain(&adapters).chain(&shapes) {
        for (what, worst, most) in measures {
            assert!(worst <= most, "{name}: {what} {worst:e}");
        }
    }
}

#[test]
fn parity_table_has_every_case() {
    let text = std::fs::read_to_string(path()).unwrap();
    for case in ["golden", "golden_lora", "golden_large"].into_iter().flat_map(cases) {
        assert!(
            text.contains(&format!("| {} |", case.name)),
            "{} is not in docs/parity.md: run `just parity`",
            case.name
        );
        assert_eq!(case.logits.kind(), Kind::Float);
    }
    assert!(text.contains(EXCHANGE), "the checkpoints of transformers are not in docs/parity.md: run `just parity`");
}
