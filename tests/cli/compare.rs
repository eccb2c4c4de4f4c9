//! `r1 compare`: curves and final figures of runs.

use serde_json::Value;

use super::{directory, fail, succeed};

fn runs() -> tempfile::TempDir {
    let dir = directory(&[], false);
    for (name, last) in [("a", 0.75), ("b", 0.25)] {
        let run = dir.path().join("runs").join(name);
        std::fs::create_dir_all(&run).unwrap();
        let lines: Vec<String> = (1..=20)
            .map(|step| {
                let value = last * f64::from(step) / 20.0;
                let kl = if name == "a" { ",\"kl/mean\":0.5" } else { "" };
                format!(
                    "{{\"step\":{step},\"time\":1,\"rollout/accuracy\":{value},\"reward/mean\":{}{kl}}}\n",
                    value - 0.5
                )
            })
            .collect();
        std::fs::write(run.join("metrics.jsonl"), lines.concat()).unwrap();
        let config = "{\"r1\":\"0\",\"script\":{\"path\":\"x.lua\",\"hash\":\"0\"},\"seed\":0,\"settings\":{}}";
        std::fs::write(run.join("config.json"), config).unwrap();
    }
    dir
}

#[test]
fn runs_are_compared_in_tables_a_picture_and_json() {
    let dir = runs();
    let printed = succeed(dir.path(), &["compare", "a", "runs/b", "--out", "c.svg"]);
    for part in ["rollout/accuracy", "reward/mean", "kl/mean", "0.731", "0.750 at 20", "-0.487 at 1"] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    assert!(!printed.contains("eval/accuracy"), "{printed}");
    let picture = std::fs::read_to_string(dir.path().join("c.svg")).unwrap();
    assert_eq!(picture.matches("<path").count(), 5, "two metrics of two runs, one of one: {picture}");
    let json: Value = serde_json::from_str(&succeed(dir.path(), &["compare", "a", "b", "--json"])).unwrap();
    let accuracy = &json["runs"][0]["metrics"]["rollout/accuracy"];
    assert_eq!(accuracy["highest"], serde_json::json!({ "step": 20, "value": 0.75 }));
    assert_eq!(accuracy["values"].as_array().unwrap().len(), 20);
    assert!(json["runs"][1]["metrics"].get("kl/mean").is_none());
    let one = succeed(dir.path(), &["compare", "a", "b", "--metric", "kl/mean"]);
    assert!(one.contains("kl/mean") && !one.contains("reward/mean"), "{one}");
}

#[test]
fn runs_and_metrics_that_do_not_exist_are_refused() {
    let dir = runs();
    for (args, part) in [
        (&["compare", "a", "c"][..], "there is no run `c`"),
        (&["compare", "a", "--metric", "reward/meen"], "did you mean `reward/mean`?"),
        (&["compare", "a", "--out", "c.png"], "the picture is an SVG file"),
    ] {
        let refused = fail(dir.path(), args);
        assert!(refused.contains(part), "{args:?}: {refused}");
    }
    std::fs::remove_file(dir.path().join("runs/b/metrics.jsonl")).unwrap();
    let refused = fail(dir.path(), &["compare", "a", "b"]);
    assert!(refused.contains("metrics.jsonl"), "{refused}");
}
