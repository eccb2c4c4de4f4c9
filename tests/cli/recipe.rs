//! Recipes for the tiny model. A test names the fields that matter to it; the others have defaults.

/// Fields of a recipe with their values in Lua.
pub(crate) type Fields<'a> = [(&'a str, &'a str)];

/// One step for each task; replies of odd length are rewarded, so that rewards differ.
const DEFAULTS: &Fields<'_> = &[
    ("env", r#"r1.env { format = "retool" }"#),
    ("reward", "function(state, outcome) return #outcome.text % 2 end"),
    ("policy", r#"{ model = "model" }"#),
    (
        "data",
        r#"{ train = r1.data.generate { count = 8, row = function(index) return { prompt = "Say " .. math.random(99) } end } }"#,
    ),
    ("sampling", "{ max_new_tokens = 6 }"),
    ("trainer", "r1.grpo { steps = 2, group_size = 2, groups_per_step = 2, lr = 1e-3 }"),
];

/// `env`: two replies for each task, with a reward for each.
pub(crate) const TWO_STEPS: &str = r#"r1.env {
    format = "retool",
    max_steps = 2,
    reset = function(task) return { messages = { r1.user(task.prompt) } } end,
    step = function(state, action)
      r1.push(state.messages, r1.assistant(action))
      r1.push(state.messages, r1.user("Go on"))
      return { reward = #action.text % 2 }
    end,
  }"#;

/// `reward`: another one than that of the steps of [`TWO_STEPS`].
pub(crate) const THIRDS: &str = "function(state, outcome) return { outcome = #outcome.text % 3 == 0 and 1 or 0 } end";

/// `data`: two held-out tasks.
pub(crate) const HELD_OUT: &str = r#"{
    train = r1.data.generate { count = 8, row = function(index) return { prompt = "Say " .. math.random(99) } end },
    eval = r1.data.generate { count = 2, row = function(index) return { prompt = "Say " .. index } end },
  }"#;

/// A recipe with these fields, one a line; the last value of a field counts. The others have their
/// defaults.
pub(crate) fn recipe(fields: &Fields<'_>) -> String {
    let mut all: Vec<(&str, &str)> = DEFAULTS.to_vec();
    for (name, value) in fields {
        match all.iter_mut().find(|(there, _)| there == name) {
            Some(field) => field.1 = value,
            None => all.push((name, value)),
        }
    }
    let lines: Vec<String> = all.iter().map(|(name, value)| format!("  {name} = {value},\n")).collect();
    format!("return r1.recipe {{\n{}}}\n", lines.concat())
}

/// The number of the first line with a text.
pub(crate) fn line_of(script: &str, text: &str) -> usize {
    script.lines().position(|line| line.contains(text)).unwrap_or_else(|| panic!("no {text} in {script}")) + 1
}
