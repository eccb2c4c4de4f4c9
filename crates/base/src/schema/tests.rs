//! One declaration makes the struct, the defaults, the reader, the reference, the reload and the
//! editor's type.

#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::{Field, Is, Need, Reload, Section, Setting, Time, ValueSyntax, choices, read, section};

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
        names: Vec<String> = Vec::new(), needs("outer.rate", Is::Positive), needs("outer.names", Is::Set);
    }
}

#[test]
fn a_declaration_generates_all_parts_of_a_setting() {
    let defaults = Outer::default();
    assert_eq!((defaults.rate, defaults.inner.depth, Outer::FIELDS[0]), (1e-6, 3, "rate"));
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
fn a_setting_names_what_it_needs_to_have_an_effect() {
    let names = Outer::declared().pop().unwrap();
    assert_eq!(names.needs, [Need { setting: "outer.rate", is: Is::Positive }]);
    assert_eq!(names.summary(), "Names (steps, needs outer.rate > 0).");
    for (is, description, met, unmet, why) in [
        (Is::Positive, "a.b > 0", json!(0.1), json!(0), "a.b is 0"),
        (Is::Positive, "a.b > 0", json!(1), json!(0.0), "a.b is 0"),
        (Is::True, "a.b = true", json!(true), json!(false), "a.b is false"),
        (Is::Set, "a.b", json!("x"), json!(""), "a.b is empty"),
        (Is::Set, "a.b", json!([1]), json!(null), "a.b is not set"),
        (Is::OneOf(&["x"]), "a.b = \"x\"", json!("x"), json!("y"), "a.b is \"y\""),
        (Is::OneOf(&["x", "y", "z"]), "a.b = \"x\", \"y\" or \"z\"", json!("z"), json!(null), "a.b is not set"),
    ] {
        let need = Need { setting: "a.b", is };
        assert_eq!((need.words().as_str(), need.unmet(&met)), (description, None));
        assert_eq!(need.unmet(&unmet).as_deref(), Some(why));
    }
    let switch = Need { setting: "a.b.on", is: Is::True };
    assert!(switch.is_switch_of("a.b.c") && switch.is_switch_of("a.b.c.d") && !switch.is_switch_of("a.c"));
    assert!(!Need { setting: "a.on", is: Is::True }.is_switch_of("a.c"));
    assert!(!Need { setting: "a.b.kind", is: Is::OneOf(&["x"]) }.is_switch_of("a.b.c"));
}

#[test]
fn a_section_lists_its_tables() {
    let names: Vec<&str> = Outer::tables().iter().map(|table| table.name).collect();
    assert_eq!(names, ["Outer", "Inner", "Inner"]);
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
fn text_after_a_key_is_parsed_by_the_type() {
    assert_eq!(Setting::of::<String>("name", "A name.", &String::new()).value("7"), json!("7"));
    assert_eq!(ValueSyntax::Text.value("\"a b\""), json!("a b"));
    assert_eq!(<f64 as Field>::WRITTEN.value("2e-6"), json!(2e-6));
    assert_eq!(ValueSyntax::Json.value("250ms"), json!("250ms"));
    assert_eq!(ValueSyntax::TextOrTable.value("7"), json!("7"));
    assert_eq!(ValueSyntax::TextOrTable.value("[1, 3]"), json!([1, 3]));
}
