//! Tests of tables.
#![allow(clippy::unwrap_used)]
use std::fs;

use serde_json::{Value, json};

use super::*;
use crate::store::write_curation;
use crate::view::shown::tests::written;

fn pairs(text: &[(&str, &str)]) -> Vec<(String, String)> {
    let named = [("run", "demo")];
    named.iter().chain(text).map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn ids(page: &Value) -> Vec<&str> {
    page["rows"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect()
}

#[test]
fn trajectories_are_filtered_sorted_and_sent_in_pages() {
    let root = tempfile::tempdir().unwrap();
    let path = written(root.path(), "demo");
    let view = View::new(&[], root.path()).unwrap();
    let page = |query: &[(&str, &str)]| view.trajectories(Query(&pairs(query))).unwrap();
    let all = page(&[]);
    assert_eq!(
        (ids(&all), &all["total"], &all["rows"][0]["step"]),
        (vec!["2-0-0", "1-0-0", "1-0-1"], &json!(3), &json!(2))
    );
    assert_eq!(ids(&page(&[("sort", "reward")])), ["1-0-1", "2-0-0", "1-0-0"]);
    // A missing advantage is last.
    assert_eq!(ids(&page(&[("sort", "-advantage")]))[0], "1-0-0");
    let some = page(&[("where", "reward > 0"), ("sort", "-reward"), ("offset", "1"), ("limit", "1")]);
    assert_eq!((ids(&some), &some["matching"]), (vec!["2-0-0"], &json!(2)));
    assert_eq!(ids(&page(&[("step", "2")])), ["2-0-0"]);
    assert_eq!(page(&[("split", "eval")])["total"], 0);
    for wrong in [("where", "rewards < 1"), ("sort", "x"), ("split", "x"), ("offset", "x"), ("run", "x")] {
        let mut query = pairs(&[]);
        query.insert(0, (wrong.0.to_owned(), wrong.1.to_owned()));
        assert_eq!(view.trajectories(Query(&query)).unwrap_err().kind, Kind::Usage, "{wrong:?}");
    }
    // Notes are columns, and change a selection that was made before.
    assert!(ids(&page(&[("where", "excluded or quality > 2")])).is_empty());
    assert_eq!(ids(&page(&[("where", "not excluded and #messages == 2")])), ["2-0-0"]);
    let tags = vec!["odd".to_owned()];
    let notes = Curation { id: "1-0-1".to_owned(), quality: Some(3), tags, exclude: true, ..Curation::default() };
    write_curation(&path, &notes).unwrap();
    let both = page(&[("where", "table.find(tags, 'odd') and excluded and reward < 0 and status == 'terminated'")]);
    assert_eq!(ids(&both), ["1-0-1"]);
    let noted = page(&[("where", "excluded or quality > 2")]);
    assert_eq!((ids(&noted), &noted["rows"][0]["notes"]["quality"]), (vec!["1-0-1"], &json!(3)));
    // A damaged file does not hide the others.
    fs::write(path.join("trajectories/step-000002.parquet"), "x").unwrap();
    let rest = page(&[]);
    assert_eq!((ids(&rest).len(), rest["damaged"].as_array().unwrap().len()), (2, 1));
}

#[test]
fn groups_have_the_statistics_of_their_trajectories() {
    let root = tempfile::tempdir().unwrap();
    written(root.path(), "demo");
    let view = View::new(&[], root.path()).unwrap();
    let page = |query: &[(&str, &str)]| view.groups(Query(&pairs(query)));
    let all = page(&[("sort", "-std")]).unwrap();
    let first = &all["rows"][0];
    assert_eq!((&all["matching"], &first["count"], &first["step"]), (&json!(2), &json!(2), &json!(1)));
    let of = |name: &str| first[name].as_f64().unwrap();
    assert_eq!((of("mean"), of("std"), of("min"), of("max"), of("tokens")), (0.0, 1.0, -1.0, 1.0, 2.5));
    let one = page(&[("where", "reward > 0.5")]).unwrap();
    assert_eq!((&one["matching"], &one["rows"][0]["count"]), (&json!(1), &json!(1)));
    assert_eq!(page(&[("sort", "reward")]).unwrap_err().kind, Kind::Usage);
}
