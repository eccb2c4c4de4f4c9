use super::*;

#[test]
fn operators_become_calls_where_python_computes_something_else() {
    for (text, wanted) in [
        // Tuples.
        (" (1, 2) ", " r1_tuple([1, 2]) "),
        ("()", "r1_tuple([])"),
        ("1, 2", "r1_tuple([1, 2])"),
        ("x in ('a', 'b') and (y)", "x in r1_tuple(['a', 'b']) and (y)"),
        ("f((1, 2), a=(3, '(,)'))", "f(r1_tuple([1, 2]), a=r1_tuple([3, '(,)']))"),
        ("[(1, 2)][(0)]", "[r1_tuple([1, 2])][(0)]"),
        ("{'a': (1,)}", "{'a': r1_tuple([1,])}"),
        // Texts that are joined.
        ("'a' ~ x", "'a' ~ (x)|string"),
        ("x.y[0] ~ f(a ~ b, 1)", "(x.y[0])|string ~ (f((a)|string ~ (b)|string, 1))|string"),
        ("a ~ -1 ~ 1.5e-3 - 2", "(a)|string ~ (-1)|string ~ (1.5e-3)|string - 2"),
        (
            "x ~ y|join(', ') if z else 'q' ~ {'a': '~'}",
            "(x)|string ~ (y|join(', '))|string if z else 'q' ~ ({'a': '~'})|string",
        ),
        // Sums and products.
        ("a + b + 'c'", "(a)|r1_term + (b)|r1_term + 'c'"),
        ("a * b", "(a )|r1_times( b)"),
        ("' ' * (n*2)", "(' ' )|r1_times( ((n)|r1_times(2)))"),
        ("[1] * 2 * 3", "(([1] )|r1_times( 2) )|r1_times( 3)"),
        ("-2 ** 3 * [1, ']'] in 'z'", "(-2 ** 3 )|r1_times( [1, ']']) in 'z'"),
        ("a // -2 % b", "((a)|r1_floor_divide( -2 ))|r1_modulo( b)"),
        ("x.y[1:]", "((x.y)|r1_sliced)[1:]"),
        ("'abc'[::-1]", "'abc'[::-1]"),
        // Comparisons.
        ("a == b", "(a )|r1_same( b)"),
        ("not a != (b, c)", "not not (a )|r1_same( r1_tuple([b, c]))"),
        ("a.b == 'x' and c != 1", "a.b == 'x' and c != 1"),
        ("x < -2", "(x )|r1_less( -2)"),
        ("x >= 'a'", "x >= 'a'"),
        ("1 < a <= 3", "1 < (a)|r1_plain <= 3"),
        ("(1,) not in x", "not (r1_tuple([1,]) )|r1_in( x)"),
        ("a in b", "(a )|r1_in( b)"),
        ("a in 'b' and 'a' not in b and a in ['b']", "a in 'b' and 'a' not in b and a in ['b']"),
        ("1 and a and b", "(1)|r1_held and a and b"),
        ("a and 1 or none and 2", "a and 1 or (none)|r1_held and 2"),
    ] {
        let translated = translate(text, ExpressionPart::Expression);
        // Where an operand ends, blanks do not matter.
        let plain = |text: &str| text.replace(" )", ")").replace("( ", "(");
        assert_eq!(translated.as_deref().map(plain), Some(plain(wanted)), "{text}");
    }
    for text in [
        "f(1, 2)",
        "x is in (1, 2)",
        "x is not in (1, 2)",
        "x is divisibleby 3 and y",
        "x.f(1, 2)",
        "f(1)(2, 3)",
        "(f(1, 2))",
        "([1, 2])",
        "x|join(', ')",
        "'(1, 2)'",
        "'a' ~ 'b'",
        "f(*rest, **named)",
        "a ~ b|safe + c",
        "x if y else z",
        "a.0[b].c|d(e=1)|f",
    ] {
        assert_eq!(translate(text, ExpressionPart::Expression).as_deref(), Some(text));
    }
    for text in ["", "a *", "a * )", "~", "(", "f(a b)", "'x", "a b", "[1 2]", "{1}", "+a"] {
        assert_eq!(translate(text, ExpressionPart::Expression), None, "{text}");
    }
    assert_eq!(translate(" a, b ", ExpressionPart::Loop), None);
    let each = " (items)|r1_each if x is odd recursive ";
    assert_eq!(translate(" items if x is odd recursive ", ExpressionPart::Loop).as_deref(), Some(each));
    for (part, text) in [
        (ExpressionPart::Assignments, " a = 1, b = x|y "),
        (ExpressionPart::Call, " f(a, b='x,y')"),
        (ExpressionPart::Call, "(user) f(x)"),
    ] {
        assert_eq!(translate(text, part).as_deref(), Some(text));
    }
}
