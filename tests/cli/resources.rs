//! Resources in runs and programs: recorded by hash and compared on resume and replay; state shared
//! by trajectories.

use serde_json::Value;

use super::run_files::read_json;
use super::{directory, fail, ran};

const RECIPE: &str = r#"
local corpus = r1.resource "corpus.jsonl"
local index = r1.text.index(corpus)
local seen = 0
return r1.recipe {
  env = r1.env {
    format = "retool",
    reset = function(task)
      seen += 1
      local hit = index:search(task.prompt, 1)[1]
      return { messages = { r1.user(SHOWN) } }
    end,
    step = function(state, action) return { reward = #action.text % 2, done = true } end,
  },
  policy = { model = "model" },
  data = { train = r1.data.generate { count = 8, row = function(index) return { prompt = "Say " .. index % 2 } end } },
  sampling = { max_new_tokens = 6 },
  trainer = r1.grpo { steps = 2, group_size = 2, groups_per_step = 2, lr = 1e-3 },
}
"#;

const CORPUS: &str = "{\"text\":\"one 1\"}\n{\"text\":\"none 0\"}\n";

fn recipe(shown: &str) -> String {
    RECIPE.replace("SHOWN", shown)
}

#[test]
fn a_run_records_its_resources_and_reports_changes() {
    let dir = directory(&[("a.lua", &recipe("corpus[hit.index].text")), ("corpus.jsonl", CORPUS)], true);
    let text = ran(dir.path(), &["run", "a.lua"]);
    assert!(!text.contains("share state"), "{text}");
    let config = read_json(dir.path().join("runs/a/config.json"));
    let resource = &config["script"]["resources"][0];
    assert_eq!((&resource["path"], &resource["bytes"]), (&"corpus.jsonl".into(), &CORPUS.len().into()));
    assert_eq!(resource["sha256"].as_str().unwrap().len(), 64);
    ran(dir.path(), &["replay", "a"]);

    std::fs::write(dir.path().join("corpus.jsonl"), format!("{CORPUS}{{\"text\":\"more\"}}\n")).unwrap();
    let text = fail(dir.path(), &["replay", "a"]);
    assert!(text.contains("the resource has changed since the run read it"), "{text}");
    assert!(text.contains("--> corpus.jsonl"), "{text}");
    ran(dir.path(), &["replay", "a", "--script", "a.lua"]);
    let text = ran(dir.path(), &["run", "a.lua", "--name", "a", "--yes", "--resume", "trainer.steps=3"]);
    assert!(text.contains("corpus.jsonl has changed since the run read it; the current version is used"), "{text}");
}

#[test]
fn a_run_records_its_indexes_and_a_resumed_one_reports_another() {
    let script = recipe("wiki:search('one')[1].text")
        .replace("local seen = 0", "local seen = 0\nlocal wiki = r1.index.open 'i'")
        .replace("format = \"retool\",", "format = \"retool\", tools = { r1.tools.search { index = 'j' } },");
    let dir = directory(&[("a.lua", &script), ("corpus.jsonl", CORPUS), ("own.jsonl", "{\"text\": \"one\"}")], true);
    let build = |out: &str, more: &[&str]| {
        let args = [&["index", "build", "own.jsonl", "--number-rows", "--overwrite", "--out", out], more].concat();
        ran(dir.path(), &args)
    };
    build("i", &[]);
    build("j", &["--k1", "0.9"]);
    let indexes = || {
        let config = read_json(dir.path().join("runs/a/config.json"));
        let all = config["script"]["indexes"].as_array().unwrap().clone();
        let field = |name: &str| all.iter().map(|index| index[name].clone()).collect::<Vec<Value>>();
        (field("path"), field("sha256"))
    };
    ran(dir.path(), &["run", "a.lua"]);
    let (paths, hashes) = indexes();
    assert_eq!(paths, ["i", "j"]);
    assert!(hashes.iter().all(|hash| hash.as_str().unwrap().len() == 64) && hashes[0] != hashes[1], "{hashes:?}");
    let resumed = |steps: &str| ran(dir.path(), &["run", "a.lua", "--name", "a", "--resume", steps]);
    let text = resumed("trainer.steps=3");
    assert!(!text.contains("is not the one"), "{text}");
    build("j", &["--k1", "1.5"]);
    let text = resumed("trainer.steps=4");
    assert!(
        text.contains("warning: j is not the index or re-ranking model that the run used; the current version is used"),
        "{text}"
    );
    assert!(!text.contains("the index i"), "{text}");
    let (_, new) = indexes();
    assert!(new[0] == hashes[0] && new[1] != hashes[1], "{new:?}");
}

#[test]
fn state_shared_by_trajectories_is_detected_in_a_run() {
    let shared = recipe("corpus[hit.index].text .. seen");
    let dir = directory(&[("a.lua", &shared), ("corpus.jsonl", CORPUS)], true);
    let text = ran(dir.path(), &["run", "a.lua"]);
    assert_eq!(text.matches("trajectories share state").count(), 1, "{text}");
    assert!(text.contains("--> a.lua:8"), "{text}");
}

#[test]
fn programs_and_the_prompt_read_resources() {
    let dir = directory(&[("corpus.jsonl", CORPUS)], false);
    let source = "local corpus = r1.resource 'corpus.jsonl'\n\
                  return #corpus, r1.text.index(corpus):search('none')[1].index";
    assert_eq!(ran(dir.path(), &["lua", "-e", source]), "exit: 0\n--- stdout\n2\n2");
}

#[test]
fn check_names_resource_files_outside_the_recipe() {
    let other = directory(&[("far.jsonl", "{\"prompt\":\"x\"}\n{\"prompt\":\"y\"}\n")], false);
    let far = other.path().join("far.jsonl").display().to_string();
    let recipe = format!(
        "return r1.recipe {{ reward = function(state, outcome) return #outcome.text % 2 end, \
         data = {{ train = '{far}' }}, trainer = r1.grpo {{ group_size = 2, groups_per_step = 1, steps = 30 }} }}"
    );
    let dir = directory(&[("a.lua", &recipe), ("near.jsonl", "{\"prompt\":\"x\"}\n")], false);
    let text = ran(dir.path(), &["check", "a.lua"]);
    assert!(text.contains(&format!("it reads {far}\n")), "{text}");
    let text = ran(dir.path(), &["check", "a.lua", "data.train=near.jsonl"]);
    assert!(!text.contains("it reads"), "{text}");
}
