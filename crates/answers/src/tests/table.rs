//! The table of pairs (tests/golden/answers/pairs.jsonl): every verdict is the one decided by hand.

use std::collections::BTreeMap;

use super::*;

#[test]
fn verdicts_of_the_table_of_pairs() {
    let (mut accepted, mut refused) = (Vec::new(), Vec::new());
    let mut traps = 0;
    // Pairs of each kind, and the correct answers that Math-Verify refuses.
    let mut pairs: BTreeMap<String, usize> = BTreeMap::new();
    let mut refused_elsewhere = 0;
    for row in golden("pairs.jsonl") {
        let (answer, reference) = (text(&row, "answer"), text(&row, "reference"));
        let equal = row["equal"].as_bool().unwrap();
        traps += usize::from(!equal);
        *pairs.entry(text(&row, "kind").to_owned()).or_default() += 1;
        refused_elsewhere +=
            usize::from(equal && row["math_verify"].as_array().unwrap().iter().all(|verdict| *verdict == false));
        match (math_equal(answer, reference), equal) {
            (true, false) => accepted.push((answer.to_owned(), reference.to_owned())),
            (false, true) => refused.push((answer.to_owned(), reference.to_owned())),
            _ => {}
        }
    }
    assert!(accepted.is_empty(), "wrong answers are accepted: {accepted:#?}");
    assert!(refused.is_empty(), "correct answers are refused: {refused:#?}");
    assert!(traps >= 600 && pairs.values().sum::<usize>() >= 1200, "{traps} traps, {pairs:?}");
    assert!(refused.len() < refused_elsewhere);
}
