//! One declaration makes the struct, the defaults, the reader, the reference, the reload and the
//! editor's type.

#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::{Field, Reload, Section, Setting, Time, Written, choices, read, section};

choices! {
    /// A choice.
    enum Shape {
        Round = "round",
        LongAndThin = "long_and_thin",
    }
}

section! {
    /// A table inside.
    struct Inner: "outer.inner." {
        /// How deep.
        depth: usize = 3, range("≥ 1");
    }
}

section! {
    /// An example. It is one.
    struct Outer: "outer.", unit("steps") {
        /// Learning rate
        /// of nothing.
        rate: f64 = 1e-6, range("≥ 0"), unit("");
        /// Time.
        wait: f64 as Time = 60.0, restart();
        /// The shape.
        shape: Shape = Shape::Round;
        /// What is inside.
        inner: Inner = Inner::default();
        /// What may be missing.
        spare: Option<Inner> = None, restart();
        /// Names.
        names: Vec<String> = Vec::new();
    }
}

#[test]
fn a_declaration_is_all_there_is_to_a_setting() {
    let usual = Outer::default();
    assert_eq!((usual.rate, usual.inner.depth, Outer::FIELDS[0]), (1e-6, 3, "rate"));
    let all = Outer::listed();
    let paths: Vec<&str> = all.iter().map(|setting| setting.path).collect();
    let expected = [
        "outer.rate",
        "outer.wait",
        "outer.shape",
        "outer.inner.depth",
        "outer.spare",
        "outer.inner.depth",
        "outer.names",
    ];
    assert_eq!(paths, expected);
    let rate = &all[0];
    assert_eq!((rate.kind.as_str(), rate.default.as_str(), rate.range, rate.unit), ("number", "1e-6", "≥ 0", ""));
    assert_eq!((rate.doc, rate.reload), ("Learning rate of nothing.", Reload::NextStep));
    assert_eq!(rate.summary(), "Learning rate of nothing (default 1e-6, ≥ 0).");
    assert_eq!((all[1].default.as_str(), all[1].unit, all[1].reload), ("60", "steps", Reload::Restart));
    assert_eq!(all[2].kind, "\"round\" | \"long_and_thin\"");
    assert_eq!((Outer::about().as_str(), Outer::declared()[4].lua.as_str()), ("An example. It is one.", "Inner"));
}

#[test]
fn values_are_read_over_defaults_and_refused_by_name() {
    let read = |json| read("outer", &json, &Outer::default()).map_err(|misfit| misfit.to_string());
    let all =
        read(json!({ "rate": 1, "wait": "2min", "shape": "long_and_thin", "inner": { "depth": 9 }, "names": {} }));
    let all = all.unwrap();
    assert_eq!((all.rate, all.wait, all.shape, all.inner.depth), (1.0, 120.0, Shape::LongAndThin, 9));
    assert_eq!(read(json!({ "spare": {} })).unwrap().spare, Some(Inner::default()));
    assert_eq!(read(serde_json::Value::Null), Ok(Outer::default()));
    let back: Outer = serde_json::from_value(serde_json::to_value(&all).unwrap()).unwrap();
    assert_eq!(back, all);
    for (json, message) in [
        (json!({ "ratte": 1 }), "unknown field `outer.ratte`"),
        (json!({ "inner": { "x": 1 } }), "unknown field `outer.inner.x`"),
        (json!({ "rate": "fast" }), "`outer.rate` must be a number, got the text \"fast\""),
        (
            json!({ "spare": { "depth": -1 } }),
            "`outer.spare.depth` must be a whole number, 0 or more, got the number -1",
        ),
        (json!({ "shape": "square" }), "`outer.shape` is \"square\"; it is one of `round`, `long_and_thin`"),
        (json!({ "names": ["a", 2] }), "`outer.names[2]` must be text, got the number 2"),
        (json!({ "wait": true }), "`outer.wait` must be a number of seconds, or text such as \"5s\", got true"),
        (json!([1]), "`outer` must be a table, got a list of 1"),
    ] {
        assert_eq!(read(json).unwrap_err(), message);
    }
}

#[test]
fn a_reload_keeps_what_waits_for_a_restart() {
    let old = Outer::default();
    let new = Outer { rate: 1.0, wait: 1.0, inner: Inner { depth: 8 }, spare: Some(Inner::default()), ..old.clone() };
    let merged = <Outer as Section>::reloaded(&old, &new);
    assert_eq!(merged, Outer { rate: 1.0, inner: Inner { depth: 8 }, ..old });
}

#[test]
fn text_behind_a_key_is_read_by_the_type() {
    assert_eq!(Setting::of::<String>("name", "A name.", &String::new()).value("7"), json!("7"));
    assert_eq!(Written::Text.value("\"a b\""), json!("a b"));
    assert_eq!(<f64 as Field>::WRITTEN.value("2e-6"), json!(2e-6));
    assert_eq!(Written::Json.value("250ms"), json!("250ms"));
    assert_eq!(Written::TextOrTable.value("7"), json!("7"));
    assert_eq!(Written::TextOrTable.value("[1, 3]"), json!([1, 3]));
}
