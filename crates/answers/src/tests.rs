//! Pairs of answers that are equal or different, and test cases of other graders.

#![allow(clippy::unwrap_used)]

mod random;
mod table;

use std::path::Path;

use serde_json::Value;

use super::*;

/// `(answer, reference)`: equal.
const EQUAL: &[(&str, &str)] = &[
    // Order in sets and lists.
    ("1, 2", "2, 1"),
    ("\\{1, 2, 3\\}", "\\{3, 1, 2\\}"),
    ("2 and 1", "1, 2"),
    ("x = 1 or x = 2", "x = 2, x = 1"),
    ("1;2", "1,2"),
    ("(1,2), (3,4)", "(3,4), (1,2)"),
    ("1, 2", "\\{2, 1\\}"),
    ("1, 2", "(1, 2)"),
    ("5", "\\{5\\}"),
    // Signs.
    ("\\pm 2", "2, -2"),
    ("x = \\pm\\sqrt{3}", "\\sqrt3, -\\sqrt3"),
    ("1 \\pm \\sqrt{5}", "1 - \\sqrt5, 1 + \\sqrt5"),
    ("\\frac{1 \\pm \\sqrt{5}}{2}", "\\frac{1+\\sqrt5}{2}, \\frac{1-\\sqrt5}{2}"),
    ("\\{\\pm 1, 0\\}", "\\{0, -1, 1\\}"),
    // Intervals.
    ("(2,3) \\cup (0,1)", "(0,1) \\cup (2,3)"),
    ("[0, \\infty)", "[0, +\\infty)"),
    ("(-\\infty, 2) U (3, \\infty)", "(-\\infty,2)\\cup(3,\\infty)"),
    ("x \\in (0, 1)", "(0, 1)"),
    ("(0, 1]", "0 < x \\le 1"),
    ("[3, \\infty)", "x \\ge 3"),
    ("x > 3", "3 < x"),
    ("2x > 6", "x > 3"),
    // Matrices.
    ("\\begin{bmatrix} 1 & 2 \\\\ 3 & 4 \\end{bmatrix}", "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}"),
    ("\\begin{pmatrix} 0.5 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix} 1/2 \\\\ 2 \\end{pmatrix}"),
    ("\\left[\\begin{array}{cc}1&2\\\\3&4\\end{array}\\right]", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"),
    // Braces.
    ("a^{2}", "a^2"),
    ("e^{x}", "e^x"),
    ("x_{1}", "x_1"),
    ("\\frac{1}{2}", "\\frac12"),
    ("\\dfrac{a}{b}", "a/b"),
    ("2^{10}", "1024"),
    // Algebra.
    ("(x+1)^2", "x^2+2x+1"),
    ("x(x+1)", "x^2 + x"),
    ("\\frac{x^2-1}{x-1}", "x+1"),
    ("3x + 2y", "2y+3x"),
    ("\\frac{a+b}{2}", "\\frac{a}{2}+\\frac{b}{2}"),
    ("\\sqrt{8}", "2\\sqrt{2}"),
    ("\\frac{1}{\\sqrt{3}}", "\\frac{\\sqrt3}{3}"),
    ("\\sqrt{x^2+2x+1}", "\\sqrt{(x+1)^2}"),
    ("\\sin^2 x + \\cos^2 x", "1"),
    ("\\tan x", "\\frac{\\sin x}{\\cos x}"),
    ("e^{x}e^{y}", "e^{x+y}"),
    ("y = 2x + 3", "2x - y + 3 = 0"),
    ("(1+i)^2", "2i"),
    ("\\frac{1}{i}", "-i"),
    // Numbers.
    ("5!", "120"),
    ("\\binom{5}{2}", "10"),
    ("\\dbinom{10}{3}", "120"),
    ("\\log_2 8", "3"),
    ("\\log_{10} 1000", "3"),
    ("\\ln e^2", "2"),
    ("\\log_4 2", "\\frac12"),
    ("|-3|", "3"),
    ("\\lfloor 2.7 \\rfloor", "2"),
    ("\\sqrt[3]{27}", "3"),
    ("\\sqrt[3]{-8}", "-2"),
    ("8^{2/3}", "4"),
    ("2\\frac{3}{4}", "\\frac{11}{4}"),
    ("2\\frac{3}{4}", "2.75"),
    ("2 3/4", "2.75"),
    ("-1\\frac{1}{2}", "-1.5"),
    ("0.\\overline{3}", "\\frac13"),
    ("0.1\\overline{6}", "1/6"),
    ("0.\\bar{9}", "1"),
    ("1e3", "1000"),
    ("1.5 \\times 10^{3}", "1500"),
    ("1,234,567", "1234567"),
    ("12{,}345", "12345"),
    ("12\\,345", "12345"),
    ("0.4444444444444444", "\\frac{4}{9}"),
    ("3.141592653589793", "\\pi"),
    ("\\frac{\\pi}{2}", "0.5\\pi"),
    ("10\\text{ million}", "10000000"),
    ("10 million", "10,000,000"),
    ("-0", "0"),
    ("007", "7"),
    ("2\\cdot 3", "6"),
    ("2^{100}", "1267650600228229401496703205376"),
    // Units.
    ("5 cm", "5\\text{ cm}"),
    ("5 cm", "5"),
    ("5 centimeters", "5\\text{ cm}"),
    ("\\$5", "5"),
    ("5 dollars", "\\$5"),
    ("90^\\circ", "90"),
    ("90°", "90^{\\circ}"),
    ("15\\mbox{ cm}^2", "15"),
    ("50\\%", "0.5"),
    ("50\\%", "50"),
    ("50 percent", "50\\%"),
    ("x = 5 \\text{ cm}", "5"),
    // Formatting.
    ("5,", "5"),
    ("5.", "5"),
    ("**5**", "5"),
    ("The answer is 5", "5"),
    ("The answer is $\\frac12$.", "0.5"),
    ("So the final answer is: 7", "7"),
    ("\\text{5}", "5"),
    ("x = 5", "5"),
    ("5", "x = 5"),
    ("\\text{(C)}", "C"),
    ("(C)", "\\text{C}"),
    ("\\text{odd}", "odd"),
    ("Evelyn", "\\text{evelyn}"),
    ("2024-01-02", "2024-01-02"),
    ("204_5", "204_{5}"),
    ("\\left(3, \\frac{\\pi}{2}\\right)", "(3, \\pi/2)"),
    // Two statements of the answer.
    ("it is \\(\\boxed{6}\\). \\]\n\\[\n\\boxed{6}\n\\]", "6"),
    ("$\\boxed{6}$\n$$\\boxed{6}$$", "6"),
    ("\\boxed{5}.\n\\[\\boxed{6}\\]", "6"),
];

/// `(answer, reference)`: different.
const UNEQUAL: &[(&str, &str)] = &[
    // Whole numbers and decimals are exact.
    ("1048576", "1048577"),
    ("3628800", "3628801"),
    ("999999", "1000000"),
    ("(1000000,2)", "(1000001,2)"),
    ("123456789012345678901234567890", "123456789012345678901234567891"),
    ("3.14159", "\\pi"),
    ("3.1415926535897", "\\pi + 10^{-9}"),
    ("0.9999999", "1"),
    ("0.999999999999999999", "1"),
    ("0.333333", "\\frac13"),
    ("0.3333333333333", "0.33333333333333"),
    ("\\sqrt{4.0000000001}", "2"),
    ("2^{100}", "2^{100}+1"),
    ("10^{16}+\\sqrt{2}", "10^{16}"),
    ("\\sqrt{10^{30}+1}", "10^{15}"),
    // Mixed numbers.
    ("2\\frac{3}{4}", "1.5"),
    ("2 3/4", "23/4"),
    ("2 3/4", "1.5"),
    // Labels.
    ("2024-01-02", "2021"),
    ("2024-01-02", "2024-02-01"),
    ("555-1234", "-679"),
    ("01/02/2024", "1/4048"),
    ("1.2.3", "1.23"),
    ("12:30", "2/5"),
    // Names.
    ("x = 5", "y = 5"),
    ("e", "E"),
    ("x", "X"),
    ("n = 45, k = 2", "k = 45, n = 2"),
    ("2, 45", "k = 45, n = 2"),
    ("x = 5", "x = 6"),
    ("x + 1", "y + 1"),
    ("east", "seat"),
    ("no", "on"),
    // Units.
    ("10 cm", "10 m"),
    ("1 m", "1 s"),
    ("5 apples", "5 oranges"),
    ("5\\text{ apples}", "5\\text{ oranges}"),
    ("10 million", "10"),
    ("10\\text{ million}", "10"),
    ("10 million", "10 billion"),
    ("50\\%", "5000\\%"),
    ("0.5\\%", "50\\%"),
    ("5 dollars", "5 cents"),
    ("15 cm^2", "15 cm^3"),
    ("2 xy", "2"),
    // Structure.
    ("(1, 2)", "(2, 1)"),
    ("[0, 9)", "(0, 9)"),
    ("[1, 2]", "1, 2"),
    ("1, 2", "1, 3"),
    ("1, 2, 3", "1, 2"),
    ("1, 2, 3, 4, 5", "5"),
    ("5", "1, 2, 3, 4, 5"),
    ("1, 2", "1, 1, 2"),
    ("5, 5", "5"),
    ("1,234", "(1, 234)"),
    ("0, 1", "0.1"),
    ("\\pm 2", "2"),
    ("2", "\\pm 2"),
    ("1:2", "2:1"),
    ("11_2", "3_{10}"),
    ("204_5", "204"),
    ("\\begin{pmatrix} 1 & 2 \\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"),
    ("x \\ge 3", "x > 3"),
    ("x \\ge 3", "x \\le 3"),
    ("-2x > 6", "x > 3"),
    ("-2 \\le x \\le 7", "[-2, 7]"),
    ("2x + z = 1", "1"),
    ("x = 5", "x + y = 5"),
    ("f(2) < f(1)", "f(4) < f(2)"),
    ("1 = 2", "3 = 5"),
    // Algebra.
    ("x^2 + 1", "x^2 + 2"),
    ("\\sqrt{x^2}", "x"),
    ("(x+1)^2", "x^2+1"),
    ("a - b", "b - a"),
    ("\\frac{a}{b}", "\\frac{b}{a}"),
    ("2^x", "x^2"),
    ("\\sin x", "\\cos x"),
    ("\\sin x", "x"),
    ("\\log 100", "\\ln 100"),
    ("1/0", "2/0"),
    ("0/0", "0"),
    ("2^{2^{2^{2^{2^2}}}}", "2^{2^{2^{2^{2^3}}}}"),
    ("-3", "3"),
    ("--4", "-4"),
    ("2 3", "6"),
    ("2 3", "23"),
    ("5!", "5"),
    ("", ""),
    ("", "5"),
    ("I do not know", "5"),
    ("4 or 5", "5"),
    ("either 4 or 5", "5"),
    ("not 5", "5"),
    ("between 4 and 5", "5"),
    ("\\boxed{4} is wrong, \\boxed{5} is right, no: \\boxed{6}", "5"),
    ("\\boxed{5}.\n\\[\\boxed{6}\\]", "5, 6"),
];

#[test]
fn equal_math_answers_are_equal() {
    let wrong: Vec<_> = EQUAL.iter().filter(|(answer, reference)| !math_equal(answer, reference)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn different_math_answers_are_different() {
    let wrong: Vec<_> = UNEQUAL.iter().filter(|(answer, reference)| math_equal(answer, reference)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn golden(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/answers").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text<'a>(row: &'a Value, name: &str) -> &'a str {
    row[name].as_str().unwrap()
}

/// Math-Verify's own assertions.
#[test]
fn math_verify_cases() {
    let mut wrong = Vec::new();
    for row in golden("math_verify_cases.jsonl") {
        if math_equal(text(&row, "pred"), text(&row, "gold")) != row["expected"].as_bool().unwrap() {
            wrong.push(text(&row, "id").to_owned());
        }
    }
    // mv-186 expects an inequality to equal an interval, under an option that is off by default.
    // mv-217 has an unclosed box with W(n) = 1 and accepts W(x) = 1. mv-35 accepts the end of a
    // chain of numbers that are not equal, mv-109 a chain with an unknown command.
    assert_eq!(wrong, ["mv-35", "mv-109", "mv-186", "mv-217"]);
}

/// Each pair is equal near 0 and differs far from it.
#[test]
fn absolute_values_are_compared_on_both_sides_of_their_fold() {
    for (fold, line) in [
        ("|x-3|", "3-x"),
        ("|x-70|", "70-x"),
        ("|x+20|", "x+20"),
        (r"\sqrt{(x-100)^2}", "100-x"),
        ("|x^2-4|", "4-x^2"),
        ("2|t-30|+1", "61-2t"),
    ] {
        assert!(!math_equal(line, fold) && !math_equal(fold, line), "{fold}");
    }
    for (one, other) in [
        ("|x-3|", "|3-x|"),
        ("|x-3|^2", "(x-3)^2"),
        (r"\sqrt{x}\sqrt{x}", "x"),
        (r"\sqrt{(x-100)^2}", "|x-100|"),
        (r"\sqrt{x^2-100}", r"\sqrt{x-10}\sqrt{x+10}"),
        (r"\sqrt[3]{8x^3}", "2x"),
        (r"\frac{1}{\sqrt{x}+1}", r"\frac{\sqrt{x}-1}{x-1}"),
        (r"(x^4)^{1/4}", "|x|"),
        (r"\sqrt{1-x^2}", r"\sqrt{(1-x)(1+x)}"),
        (r"e^{\sqrt{x}}", r"\exp(\sqrt x)"),
    ] {
        assert!(math_equal(one, other), "{one} = {other}");
    }
}

/// Rewritten answers of MATH-500 with the verdicts of PRM800K, Hendrycks, Math-Verify and DAPO; the
/// counts are the table of docs/guide/answers.md.
#[test]
fn math_answers_agree_with_other_graders() {
    // Of a grader: both accept, both reject, only r1 accepts, only the grader accepts.
    let mut counts = [[0; 4]; 4];
    for row in &golden("math_pairs.jsonl") {
        let (answer, reference, verdicts) = (text(row, "pred"), text(row, "gold"), text(row, "graders"));
        let equal = math_equal(answer, reference);
        for (counts, verdict) in counts.iter_mut().zip(verdicts.chars()) {
            counts[match (equal, verdict == 'T') {
                (true, true) => 0,
                (false, false) => 1,
                (true, false) => 2,
                (false, true) => 3,
            }] += 1;
        }
        match verdicts {
            "TTTT" => assert!(equal, "{answer} is not {reference}"),
            // A full stop after the answer changes nothing here.
            "FFFF" if !answer.ends_with('.') => assert!(!equal, "{answer} is {reference}"),
            _ => {}
        }
    }
    let page = include_str!("../../../docs/guide/answers.md");
    for (grader, counts) in ["PRM800K", "Hendrycks", "Math-Verify 0.9.0", "DAPO, normalised text"].iter().zip(counts) {
        let row = format!("| {grader} | {} |", counts.map(|count| count.to_string()).join(" | "));
        assert!(page.contains(&row), "docs/guide/answers.md does not have the row {row}");
    }
}

/// Responses of Qwen2.5 to MATH problems, graded by its own harness.
#[test]
fn boxed_answers_of_real_responses() {
    let rows = golden("math_responses.jsonl");
    let right = |row: &&Value| {
        let equal = row["boxed"].as_str().is_some_and(|boxed| math_equal(boxed, text(row, "gold")));
        equal == row["correct"].as_bool().unwrap()
    };
    // The only difference is `10000` for `10{,}000`, which that harness rejects.
    assert_eq!(rows.iter().filter(right).count(), rows.len() - 1);
}
