//! The tables of docs/lab/parity.md: differences measured by the parity tests, printed by `just
//! parity-models`.

use std::fmt::Write as _;
use std::path::PathBuf;

use tch::{Kind, Tensor};

use super::families::{Case, LOGITS, Measure, WAYS, all_cases, cases, forward_and_backward, greedy, ways};
use super::{distance, lora, pack};
use crate::model::{Model, Span};

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/lab/parity.md")
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
        for (all, measure) in worst.iter_mut().zip(measures) {
            all.1 = all.1.max(measure.1);
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
    let actual = some(&full);
    let plain = some(&model.logits(&model.forward_plain(&pack(&rows)).unwrap()).unwrap());
    let logits = distance(&actual, &case.logits);
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
        let step_logits = model.step(&mut cache, &[Span { slot: 0, start, ids: &row[start..end] }]).unwrap();
        decode = decode.max(distance(&step_logits.get(0), &full.get(end as i64 - 1)));
        start = end;
    }
    drop((model, cache));
    let exact = some(&whole(&case.model_in(Kind::Double)));
    let (distance_to_f64, theirs) = (distance(&actual, &exact), distance(&case.logits, &exact));
    let (largest, libtorch) = (case.logits.abs().max().double_value(&[]), distance(&plain, &exact));
    vec![
        ("largest logit", largest, f64::INFINITY),
        ("logits", logits, LOGITS.max(4.0 * theirs)),
        ("of the largest", logits / largest, 1e-5),
        ("greedy", differ, 0.0),
        ("cache", decode, WAYS.max(theirs)),
        ("r1 to f64", distance_to_f64, LOGITS.max(4.0 * theirs)),
        ("libtorch to f64", libtorch, f64::INFINITY),
        ("transformers to f64", theirs, f64::INFINITY),
    ]
}

#[test]
#[ignore = "takes 6 GB of memory and some minutes; `just parity-models`"]
fn parity_table() {
    let small = |case: Case| {
        let measures = [forward_and_backward(&case), greedy(&case), ways(&case)].concat();
        (case.name, measures)
    };
    let families: Vec<_> = all_cases().into_iter().chain(cases("golden_delta")).map(small).collect();
    let lora = ["golden_lora", "golden_2026_lora"].into_iter().flat_map(cases);
    let adapters: Vec<_> = lora.map(|case| (case.name.clone(), lora::measure(&case))).collect();
    let shapes: Vec<_> = cases("golden_large").iter().map(|case| (case.name.clone(), large(case))).collect();
    let mut out = "\n".to_owned();
    table(&mut out, "family and variant", &families);
    table(&mut out, "adapter", &adapters);
    table(&mut out, "shape", &shapes);
    print!("{out}");
    for (name, measures) in families.iter().chain(&adapters).chain(&shapes) {
        for (what, worst, limit) in measures {
            assert!(worst <= limit, "{name}: {what} {worst:e}");
        }
    }
}

#[test]
fn parity_table_has_every_case() {
    let text = std::fs::read_to_string(path()).unwrap();
    for case in ["golden", "golden_2026", "golden_delta", "golden_lora", "golden_2026_lora", "golden_large"]
        .into_iter()
        .flat_map(cases)
    {
        assert!(
            text.contains(&format!("| {} |", case.name)),
            "{} is not in docs/lab/parity.md: run `just parity-models`",
            case.name
        );
        assert_eq!(case.logits.kind(), Kind::Float);
    }
}
