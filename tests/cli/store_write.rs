//! `r1.store.write`: trajectories of programs in Parquet.

use std::sync::LazyLock;

use r1::store::read_trajectories;

use super::recipe::recipe;
use super::{directory, fail, succeed};

static RECIPE: LazyLock<String> = LazyLock::new(|| {
    let reward = "function(state, outcome) return { outcome = #outcome.text % 2, drawn = { value = math.random(), weight = 0 } } end";
    recipe(&[("reward", reward), ("sampling", "{ max_new_tokens = 6, top_k = 20 }"), ("checkpoint", "{ every = 0 }")])
});

#[test]
fn trajectories_written_from_lua_equal_those_read() {
    let program = r#"
local all = r1.store.trajectories("a", 1, { ids = true })
-- A copy, with everything that the tables do not hold from the run.
r1.store.write("runs/a/trajectories/step-000002.parquet", all, { from = "a" })
-- Edited: other rewards, one left out, no token ids in the tables.
local edited = r1.store.trajectories("a", 1)
table.remove(edited, 1)
for _, one in ipairs(edited) do one.steps[1].reward = 7 end
r1.store.write("edited.parquet", edited, { from = "runs/a" })
-- Of one's own, without a run.
r1.store.write("own.parquet", {
  { id = "1-0-0", task = { prompt = "Say 4" }, messages = { r1.user("Say 4"), r1.assistant("I say 4") },
    steps = { { text = "I say 4", reward = 1, prompt_ids = { 1, 2 }, response_ids = { 3 }, logprobs = { -0.5 } } } },
})
local own = r1.store.trajectories("own.parquet", nil, { ids = true })
assert(#own == 1 and own[1].reward == 1 and own[1].steps[1].logprobs[1] == -0.5 and own[1].messages[2].content == "I say 4")
print(r1.store.trajectories("edited.parquet")[1].reward)
"#;
    let dir = directory(&[("a.lua", &RECIPE), ("p.lua", program)], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "trainer.steps=1"]);
    assert_eq!(succeed(dir.path(), &["lua", "p.lua"]).trim(), "7");
    let step = |number: u64| {
        read_trajectories(&dir.path().join(format!("runs/a/trajectories/step-{number:06}.parquet"))).unwrap()
    };
    assert_eq!(step(1), step(2));
    assert!(step(1)[0].steps[0].logprobs.len() > 1 && !step(1)[0].steps[0].support.is_whole());
    let edited = read_trajectories(&dir.path().join("edited.parquet")).unwrap();
    assert_eq!((edited.len(), edited[0].total_reward().to_bits()), (3, 7.0_f64.to_bits()));
    let ids = |all: &[r1::mdp::Trajectory]| all[0].steps[0].response_ids.clone();
    assert_eq!((ids(&edited), edited[0].seed), (ids(&step(1)[1..]), step(1)[1].seed));
    // The written trajectories can be replayed.
    succeed(dir.path(), &["replay", "runs/a"]);

    for (code, message) in [
        ("r1.store.write('own.parquet', {})", "the file exists"),
        ("r1.store.write('own.txt', {})", "is not a Parquet file"),
        ("r1.store.write('x.parquet', { { id = '1', rewrd = 1 } })", "trajectory 1: a trajectory has no field `rewrd`"),
        (
            "r1.store.write('x.parquet', { { id = '1', steps = { { response_ids = { 1 } } } } })",
            "0 logprobs for 1 response_ids",
        ),
        ("r1.store.write('x.parquet', { {} })", "a trajectory has an `id`"),
        ("r1.store.write('x.parquet', { { id = '1', status = 'fine' } })", "a field has the wrong type"),
    ] {
        let error = fail(dir.path(), &["lua", "-e", code]);
        assert!(error.contains(message), "{code}: {error}");
    }
    assert!(!dir.path().join("x.parquet").exists());
}
