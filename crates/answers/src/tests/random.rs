//! Properties of comparisons, and hostile answers in bounded time.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use super::*;

/// Longest time of three comparisons; unoptimised code is slower.
const LIMIT: Duration = Duration::from_secs(if cfg!(debug_assertions) { 5 } else { 1 });

/// An expression, and the same expression with one digit changed.
fn expression() -> impl Strategy<Value = (String, String)> {
    let digit = |digit: u8| char::from(b'0' + digit % 10);
    let number = (1_u8..9, 0_u8..9, any::<bool>(), 1_u8..9).prop_map(move |(a, b, long, step)| {
        let plain = if long { format!("{a}{b}") } else { b.to_string() };
        let changed = if long { format!("{a}{}", digit(b + step)) } else { digit(b + step).to_string() };
        (plain, changed)
    });
    number.prop_recursive(4, 20, 2, |inside| {
        prop_oneof![
            (inside.clone(), 1_u8..9).prop_map(|((a, b), n)| (format!("{a}+{n}"), format!("{b}+{n}"))),
            (inside.clone(), 1_u8..9).prop_map(|((a, b), n)| (format!("{n}x-({a})"), format!("{n}x-({b})"))),
            (inside.clone(), 1_u8..9)
                .prop_map(|((a, b), n)| { (format!("\\frac{{{a}}}{{{n}}}"), format!("\\frac{{{b}}}{{{n}}}")) }),
            inside.clone().prop_map(|(a, b)| (format!("({a})\\sqrt{{2}}"), format!("({b})\\sqrt{{2}}"))),
            inside.clone().prop_map(|(a, b)| (format!("({a}, 7)"), format!("({b}, 7)"))),
            inside.clone().prop_map(|(a, b)| (format!("[{a}, \\infty)"), format!("[{b}, \\infty)"))),
            inside.prop_map(|(a, b)| (
                format!("\\begin{{pmatrix}} {a} & 1 \\end{{pmatrix}}"),
                format!("\\begin{{pmatrix}} {b} & 1 \\end{{pmatrix}}")
            )),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_math_answer_equals_itself_and_not_a_changed_one((one, other) in expression()) {
        prop_assert!(math_equal(&one, &one), "{one}");
        prop_assert!(math_equal(&format!(" ${one}$. "), &one), "{one}");
        prop_assert!(math_equal(&format!("so it is \\boxed{{{one}}}!"), &one), "{one}");
        prop_assert!(!math_equal(&one, &other), "{one} is {other}");
        prop_assert!(!math_equal(&other, &one), "{other} is {one}");
    }

    #[test]
    fn integer_answers_are_exact(value in 1_u128..u128::MAX / 2, step in 1_u128..1000) {
        let (one, other) = (value.to_string(), (value + step).to_string());
        prop_assert!(math_equal(&one, &(one.clone() + ".0")));
        prop_assert!(!math_equal(&one, &other));
        let equal = math_equal(&(one + "\\sqrt{2}"), &(other + "\\sqrt{2}"));
        prop_assert!(!equal);
    }

    #[test]
    fn fraction_answers_are_exact(a in 1_i64..100_000, b in 1_i64..100_000, c in 1_i64..1000) {
        let frac = |a: i64, b: i64| format!("\\frac{{{a}}}{{{b}}}");
        let plain = format!("{a}/{b}");
        prop_assert!(math_equal(&frac(a * c, b * c), &plain));
        prop_assert!(!math_equal(&frac(a, b), &frac(a, b + 1)));
        // Six decimals equal the fraction only if it has no more.
        let rounded = format!("{:.6}", a as f64 / b as f64);
        prop_assert_eq!(math_equal(&rounded, &plain), (a * 1_000_000) % b == 0);
    }

    #[test]
    fn the_order_of_answer_and_reference_matters_only_for_intervals(a in ".{0,12}", b in ".{0,12}") {
        prop_assert_eq!(math_equal(&a, &b), math_equal(&b, &a));
    }
}

/// Random text from fragments of the grammar is compared in bounded time without a panic; an answer
/// equals itself.
#[test]
fn hostile_math_answers_take_bounded_time() {
    const PIECES: &[&str] = &[
        "1",
        "2",
        "9",
        "23",
        "0.5",
        "1e9",
        "99999",
        "x",
        "y",
        "e",
        "i",
        "\\pi",
        "+",
        "-",
        "*",
        "/",
        "^",
        "^{",
        "}",
        "{",
        "(",
        ")",
        "[",
        "]",
        "\\{",
        "\\}",
        "|",
        "!",
        ",",
        ", ",
        ";",
        "=",
        "<",
        "\\le",
        "\\in",
        "\\cup",
        "\\pm",
        "\\frac",
        "\\sqrt",
        "\\sqrt[",
        "\\sin",
        "\\log_",
        "\\ln",
        "\\binom",
        "\\text{",
        "\\text{ cm}",
        "\\boxed{",
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "\\\\",
        "&",
        "%",
        "$",
        "$$",
        "\\(",
        "\\)",
        "\\[",
        "\\]",
        " ",
        " is ",
        "answer is ",
        " million",
        "^\\circ",
        "\\overline{3}",
        "0.\\overline",
        "f(",
        "_",
        "and",
        "é",
        "½",
        "²",
        "\n",
        "\\",
        "apples",
    ];
    let seconds = std::env::var("R1_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let mut below = |count: usize| (random.next_u64() % count as u64) as usize;
    while Instant::now() < end {
        let mut sides = [String::new(), String::new()];
        for side in &mut sides {
            for _ in 0..below(40) {
                let piece = PIECES[below(PIECES.len())];
                let times = if below(30) == 0 { 1 + below(400) } else { 1 };
                side.push_str(&piece.repeat(times));
            }
        }
        let [a, b] = &sides;
        let begin = Instant::now();
        let equal = math_equal(a, b);
        let took = begin.elapsed();
        assert!(took < LIMIT / 2, "{took:?} for {a:?} and {b:?}");
        assert!(math_equal(a, a) || read(a).is_none(), "{a:?} is not itself");
        if equal {
            assert!(math_equal(b, b), "{b:?}");
        }
    }
}

#[test]
fn long_and_nested_math_answers_take_bounded_time() {
    let texts = [
        "(".repeat(300_000),
        "{".repeat(1900),
        "\\sqrt{".repeat(250),
        "\\text{".repeat(100_000),
        "f(".repeat(900),
        "9^".repeat(900) + "9",
        format!("{}{}", "2^{".repeat(300), "}".repeat(300)),
        "99999999!".repeat(50),
        "9".repeat(1900) + "^{99}",
        format!("{}/{}", "7".repeat(900), "3".repeat(900)),
        "1/3+".repeat(400) + "1",
        "x/3+".repeat(400) + "1",
        (1..400).map(|n| format!("1/{n}")).collect::<Vec<_>>().join("+"),
        "\\pm 1".repeat(200),
        "1,".repeat(900) + "1",
        format!("{}{}", "\\{1,".repeat(300), "\\}".repeat(300)),
        "\\( ".repeat(50_000) + "\n\\)",
        "$ ".repeat(50_000),
        "\\boxed{".repeat(50_000),
        "\\boxed{1}".repeat(50_000),
        "answer is ".repeat(50_000),
        "\\log_{1.0000001} 10^{300}".to_owned(),
        "\\binom{9999}{400}".to_owned(),
        "1e99999".to_owned(),
        format!("0.\\overline{{{}}}", "1".repeat(1500)),
    ];
    for text in &texts {
        let begin = Instant::now();
        math_equal(text, &format!("{text} "));
        math_equal(text, &format!("{text}+x"));
        math_equal(&format!("{text}+\\sqrt{{2}}"), &format!("{text}+\\sqrt{{3}}"));
        let took = begin.elapsed();
        assert!(took < LIMIT, "{took:?} for {}", &text[..20.min(text.len())]);
    }
}
