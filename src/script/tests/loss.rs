//! A policy loss in Lua: its traced graph, and the messages for invalid ones.

use insta::assert_snapshot;

use super::*;
use crate::config::{Input, Over, Shape};

/// A recipe whose loss has this body; its first line is line 2.
fn with(body: &str) -> String {
    format!(
        "return r1.recipe {{ env = r1.env {{}}, reward = function() return 0 end, loss = function(b, options)\n{body}\nend,\n\
         trainer = r1.grpo {{}} }}"
    )
}

#[test]
fn a_loss_is_traced_to_a_graph() {
    let bench = Bench::new(&with(
        "local ratio = (b.logp - b.logp_old):clamp(-20, 20):exp()\n\
         local push = -b.advantages\n\
         local loss = (push * ratio):max(push * ratio:clamp(0.8, 1 + (options.high or 0.28)))\n\
         b:log('clip_frac', ratio:gt(1.28):logical_and(b.advantages:gt(0)))\n\
         return b:where(b.advantages:lt(0), loss:min(push * 3), loss)",
    ));
    let graph = bench.load(&[]).unwrap().loss.unwrap();
    assert_eq!(graph.nodes[graph.result].shape, Shape::Tokens);
    assert!(graph.vanishes_without_advantages() && graph.reads(Input::LogpOld) && !graph.reads(Input::LogpRef));
    assert_eq!((graph.together(), graph.logged.len(), graph.logged[0].0.as_str()), (Over::Step, 1, "clip_frac"));
    assert!(graph.location.ends_with("x.lua:1") && graph.nodes[3].location.ends_with("x.lua:2"), "{graph:?}");
    // An option of the command line reaches the function, and the graph is another one.
    let other = bench.load(&["trainer.loss={\"name\": \"custom\", \"high\": 0.5}"]).unwrap().loss.unwrap();
    assert_ne!(graph.nodes, other.nodes);
    // A built-in loss leaves the function alone.
    assert!(bench.load(&["trainer.loss=ppo"]).unwrap().loss.is_none());
}

#[test]
fn pairs_keep_their_group_together() {
    let bench = Bench::new(&with(
        "local margin = (b.advantages * (b.logp - b.logp_ref)):sum('group')\n\
         return b:seq_mean(-(0.1 * margin):log_sigmoid(), 'group')",
    ));
    let graph = bench.load(&[]).unwrap().loss.unwrap();
    assert_eq!((graph.together(), graph.nodes[graph.result].shape), (Over::Group, Shape::Total));
    assert!(graph.reads(Input::LogpRef) && !graph.vanishes_without_advantages());
}

#[test]
fn bad_losses_are_refused_at_their_line() {
    let mut reported = String::new();
    for body in [
        "return 1",
        "local ratio = b.logp - b.logp_old\nreturn ratio:expp()",
        "return b.logpp",
        "return b.mask",
        "local x = b:token_mean(b.logp)\nreturn x:exp()",
        "return b:token_mean(b.logp) + 1",
        "return b.logp + b.logp:lt(0)",
        "return b.logp:detach()",
        "return b.logp:lt(0)",
        "if b.logp < b.logp_old then return b.logp end",
        "return b.logp * 'x'",
        "return b.logp / (0 / 0)",
        "return b.logp:clamp(1, 0)",
        "return b.logp:sum()",
        "return b:seq_mean(b.logp, 'trajectroy')",
        "return b:aggregate(b.logp, 'token-men')",
        "b:log('a/b', b.logp) return b.logp",
        "return math.exp(b.logp)",
        "local x = b.logp for i = 1, 20000 do x = x + 1 end return x",
        "error('broken')",
    ] {
        reported += &format!("{}\n", refused(&with(body)));
    }
    assert_snapshot!(reported, @r#"
    loss returned the number 1; it must return a tensor of its batch
      --> x.lua:1
      hint: a loss for each token, or one number such as b:token_mean(x) (docs/guide/your-own-algorithm.md)
    loss: a tensor has no method `expp`
      --> x.lua:3
      hint: did you mean `exp`?
    loss: the batch has no tensor `logpp`
      --> x.lua:2
      hint: did you mean `logp` or `log` or `logp_old`?
    loss: the batch has no tensor `mask`
      --> x.lua:2
      hint: there is none: the batch contains only sampled tokens
    loss: `exp` takes no scalar of the mini-batch: scalars can only be added to each other and multiplied by numbers, because everything else would depend on the split into micro-batches
      --> x.lua:3
    loss: `+` takes no scalar of the mini-batch: scalars can only be added to each other and multiplied by numbers, because everything else would depend on the split into micro-batches
      --> x.lua:2
    loss: `+` takes numbers, got booleans: convert them with b:where(x, 1, 0)
      --> x.lua:2
    the loss has no gradient: it does not depend on b.logp or b.entropy
      --> x.lua:1
      hint: detach and comparisons stop gradients
    loss returned booleans
      --> x.lua:1
      hint: convert them with b:where(x, 1, 0)
    loss: Lua's comparisons return one boolean, not one per token
      --> x.lua:2
      hint: write x:lt(y), or gt, ge, ne; choose with b:where(condition, x, y)
    loss: `*` takes numbers and tensors of the batch, got the text "x"
      --> x.lua:2
    loss: `/` got the number NaN, which is not finite
      --> x.lua:2
    loss: `clamp` got a lower bound of 1 above an upper bound of 0
      --> x.lua:2
    loss: `sum` takes one of step, trajectory, group: x:sum("trajectory")
      --> x.lua:2
      hint: sums and means over the mini-batch are b:sum(x), b:token_mean(x), b:seq_mean(x)
    loss: `seq_mean` takes one of step, trajectory, group
      --> x.lua:2
      hint: did you mean `trajectory`?
    loss: `aggregate` takes one of token-mean, seq-mean-token-sum, seq-mean-token-mean, seq-mean-token-sum-norm
      --> x.lua:2
      hint: did you mean `token-mean`?
    loss: `log` takes a name of letters, digits, _ - and ., and a tensor
      --> x.lua:2
    invalid argument #1 to 'exp' (number expected, got Expression)
      --> x.lua:2
    loss: `+` exceeds the limit of 10000 values per loss
      --> x.lua:2
    broken
      --> x.lua:2
    "#);
    let option = Bench::new(&with("return b.logp * (options.beta or 1)"));
    let error = option.load(&["trainer.loss={\"name\": \"custom\", \"bta\": 2}"]).unwrap_err();
    assert_eq!(error.message, "the option `bta` is set, and the function `loss` does not read it");
    assert_eq!(error.hint.as_deref(), Some("did you mean `beta`?"));
    let loss = "loss = function(b) return b.logp end";
    let unused =
        refused(&format!("return r1.recipe {{ reward = print, {loss}, trainer = r1.grpo {{ loss = 'gspo' }} }}"));
    assert!(unused.contains("`loss` is not used: trainer.loss is \"gspo\""), "{unused}");
    let unused = refused(&format!("return r1.recipe {{ {loss}, trainer = r1.sft {{}} }}"));
    assert!(unused.contains("`loss` is not used: the trainer is r1.sft"), "{unused}");
    let bench =
        "return r1.recipe { reward = print, advantage = function() end, trainer = r1.grpo { estimator = 'rloo' } }";
    assert!(refused(bench).contains("`advantage` is not used: trainer.estimator is \"rloo\""));
    let missing = refused("return r1.recipe { reward = print, trainer = r1.grpo { loss = 'custom' } }");
    assert!(missing.contains("`trainer.loss` is the recipe's function, and the recipe has no `loss`"), "{missing}");
}

#[test]
fn the_functions_of_a_recipe_are_its_estimator_and_its_loss() {
    let functions = "advantage = function() return {} end, loss = function(b, o) return b.logp * (o.scale or 1) end";
    let is_chosen = |script: &Script| {
        let learner = script.settings.trainer.learner().unwrap();
        [learner.estimator.is_of_recipe(), learner.loss.is_of_recipe() && script.loss.is_some()]
    };
    for trainer in ["", "trainer = r1.grpo {}", "trainer = r1.trainer { algorithm = 'rloo', loss = { scale = 2 } }"] {
        let bench = Bench::new(&format!("return r1.recipe {{ reward = print, {functions}, {trainer} }}"));
        assert_eq!(is_chosen(&bench.load(&[]).unwrap()), [true, true], "{trainer}");
        // The command line may compare them with others.
        assert_eq!(is_chosen(&bench.load(&["trainer.loss=ppo"]).unwrap()), [true, false]);
        let of_r1 = bench.load(&["trainer.estimator=rloo", "trainer.loss.name=ppo"]).unwrap();
        assert_eq!(is_chosen(&of_r1), [false, false]);
    }
    let bench = Bench::new(&format!(
        "return r1.recipe {{ reward = print, {functions}, trainer = r1.grpo {{ loss = {{ scale = 2 }} }} }}"
    ));
    let loss = bench.load(&["trainer.loss.scale=3"]).unwrap().settings.trainer.learner().unwrap().loss.clone();
    assert_eq!(serde_json::json!(loss), serde_json::json!({ "name": "the recipe's function", "scale": 3 }));
}

/// A recipe with an algorithm of this definition.
fn with_algorithm(definition: &str, rest: &str) -> String {
    format!(
        "local own = r1.algorithm {{ {definition} }}\nreturn r1.recipe {{ env = r1.env {{}}, reward = function() return 0 end,\n\
         trainer = r1.trainer {{ algorithm = own }}, {rest} }}"
    )
}

#[test]
fn an_algorithm_of_a_recipe_has_an_estimator_a_loss_and_settings() {
    let source = with_algorithm(
        "critic = true, estimator = { name = 'gae', lambda = 0.9 }, trainer = { epochs = 3 },\n\
         options = { scale = { 2, above = 0 }, loss_agg = 'seq-mean-token-mean' },\n\
         loss = function(b, options) return -options.scale * b.advantages * b.logp end",
        "",
    );
    let bench = Bench::new(&source);
    let script = bench.load(&["trainer.loss.scale=3"]).unwrap();
    let crate::config::Trainer::Rl { learner, critic: true } = &script.settings.trainer else { panic!("no critic") };
    assert_eq!((learner.epochs, learner.group_size, learner.estimator.shown()), (3, 1, "gae"));
    let options = serde_json::json!({ "name": "the recipe's function", "scale": 3, "loss_agg": "seq-mean-token-mean" });
    assert_eq!(serde_json::to_value(&learner.loss).unwrap(), options);
    assert_ne!(script.loss.unwrap().nodes, bench.load(&[]).unwrap().loss.unwrap().nodes);
    let error = bench.load(&["trainer.loss.scale=0"]).unwrap_err();
    assert_eq!(error.message, "option `scale` of `trainer.loss` is above 0, not 0");
    // Another loss by name, and a function for the advantages.
    let source = with_algorithm("loss = { name = 'gspo', seq = 'step' }, advantage = function() return {} end", "");
    let script = Bench::new(&source).load(&[]).unwrap();
    let crate::config::Trainer::Rl { learner, critic: false } = &script.settings.trainer else { panic!("a critic") };
    assert_eq!((learner.estimator.shown(), learner.loss.shown()), ("the recipe's function", "gspo"));
    assert!(script.loss.is_none() && learner.loss.options["seq"] == "step");
}

#[test]
fn algorithms_of_recipes_are_refused_with_a_reason() {
    let loss = "loss = function(b) return b.logp end";
    for (definition, rest, reason) in [
        ("los = 1", "", "there is no field `los`; did you mean `loss`?"),
        ("loss = 3", "", "`loss` must not be the number 3"),
        ("loss = { seq = 'step' }", "", "`loss` is a table without `name`"),
        ("advantage = 3", "", "`advantage` is a function, got the number 3"),
        ("trainer = { lr = print }", "", "`trainer` must be a table of settings with plain values"),
        ("trainer = 3", "", "`trainer` must not be the number 3"),
        ("options = 3", "", "`options` must not be the number 3"),
        ("paper = {}", "", "`paper` must be text, got a table"),
        ("critic = 1", "", "`critic` must be true or false, got the number 1"),
        ("options = { low = {} }", "", "option `low`: the first entry is the default"),
        ("options = { low = { 1, form = 0 } }", "", "option `low`: it has no field `form`; did you mean `from`?"),
        (loss, loss, "`loss` is set, and the algorithm of the trainer has one"),
        ("loss = function(b, options) return b.logp * options.lo end", "", "the algorithm declares no option `lo`"),
    ] {
        let error = refused(&with_algorithm(definition, rest));
        assert!(error.contains(reason), "{error}");
    }
    let error = refused("return r1.algorithm(3)");
    assert!(error.contains("r1.algorithm: takes a table, got the number 3"), "{error}");
}

#[test]
fn options_of_a_function_advantage_are_those_that_the_algorithm_declares() {
    let declared = "options = { scale = { 2, above = 0 } }, needs = { 'groups', 'logp' }, level = 'step',\n\
                    advantage = function(group, options) return { options.scale } end";
    let bench = Bench::new(&with_algorithm(declared, ""));
    let script = bench.load(&["trainer.estimator.scale=3"]).unwrap();
    assert_eq!(serde_json::json!(script.advantage_options), serde_json::json!({ "scale": 3 }));
    assert_eq!(script.declared.unwrap().needs.len(), 2);
    let error = bench.load(&["trainer.estimator.scale=0"]).unwrap_err();
    assert_eq!(error.message, "option `scale` of `trainer.estimator` is above 0, not 0");
    let error = bench.load(&["trainer.estimator.scala=3"]).unwrap_err();
    assert!(error.message.contains("declares no option `scala`"), "{error}");
    assert_eq!((error.kind, error.hint.as_deref()), (crate::error::Kind::Usage, Some("did you mean `scale`?")));
    let plain = "return r1.recipe { env = r1.env {}, reward = function() return 0 end, advantage = function() end,\n\
                 trainer = r1.grpo { estimator = { lambda = 0.9 } } }";
    assert!(refused(plain).contains("the recipe's function `advantage`, and has no option `lambda`"));
    for (definition, reason) in [
        ("needs = 'groups'", "`needs` must be a list of names, got the text \"groups\""),
        ("needs = { 'group' }", "`needs` must not have the text \"group\"; did you mean `groups`?"),
        ("level = 'steps'", "`level` must not have the text \"steps\"; did you mean `step`?"),
    ] {
        let error = refused(&with_algorithm(definition, ""));
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn options_that_a_loss_declares_and_does_not_read_are_refused_when_set() {
    let declared = "options = { low = 1, loss_agg = 'token-mean' }, loss = function(b) return b.logp end";
    let bench = Bench::new(&with_algorithm(declared, ""));
    bench.load(&["trainer.loss.loss_agg=seq-mean-token-mean"]).unwrap();
    let error = bench.load(&["trainer.loss.low=2"]).unwrap_err();
    assert!(error.message.contains("`low` is set, and the function `loss` does not read it"), "{error}");
}

#[test]
fn the_clip_of_the_trainer_is_that_of_the_algorithm() {
    let declared = "options = { clip_low = { 0.1, from = 0 }, clip_high = { 0.1, from = 0 } },\n\
                    loss = function(b, o) return (b.logp - b.logp_old):clamp(-o.clip_low, o.clip_high) end";
    let bench = Bench::new(&with_algorithm(declared, ""));
    let clamp = |arguments: &[&str]| bench.load(arguments).unwrap().loss.unwrap().nodes.clone();
    let range = clamp(&["trainer.clip=[0.2, 0.3]"]);
    assert!(range == clamp(&["trainer.loss.clip_low=0.2", "trainer.loss.clip_high=0.3"]) && range != clamp(&[]));
}

#[test]
fn an_algorithm_is_not_a_recipe_and_an_edited_module_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (recipe, mine) = (dir.path().join("a.lua"), dir.path().join("mine.lua"));
    let write = |scale: u32| {
        let loss = format!("return r1.algorithm {{ loss = function(b) return {scale} * b.logp end }}");
        std::fs::write(&mine, loss).unwrap();
    };
    write(1);
    let error = Script::load(&mine, &[]).unwrap_err();
    assert_eq!(error.message, "the file is an algorithm, and not a recipe");
    assert!(error.hint.unwrap().ends_with("trainer = r1.trainer { algorithm = require(\"mine\") }"));
    let text =
        "return r1.recipe { reward = function() return 0 end, trainer = r1.trainer { algorithm = require('mine') } }";
    std::fs::write(&recipe, text).unwrap();
    let before = Script::load(&recipe, &[]).unwrap();
    write(2);
    let after = Script::load(&recipe, &[]).unwrap();
    assert_eq!(after.edited_since(&before), [mine.display().to_string()]);
    assert!(before.edited_since(&before).is_empty());
}

#[test]
fn selections_and_ratios_are_refused_with_a_reason() {
    for (body, reason) in [
        ("return b.logp * b:covariance(b.logp, b.advantages)", "a covariance is used outside of b:largest and b:draw"),
        (
            "local x = b:largest(b.logp, 0.1)\nreturn b:where(b:draw(x, 0.1), b.logp, 1)",
            "`draw` is the second selection of tokens: a loss has one at most",
        ),
        ("return b:where(b:largest(b.logp, 2), b.logp, 1)", "`largest` got the share 2, which is not from 0 to 1"),
        ("return b:where(b:draw(b.logp, 0.1), b.logp, 1)", "`draw` takes booleans"),
        ("b:ratio_stats(b.logp, 0.2, b.logp:lt(0)) return b.logp", "`ratio_stats` takes a ratio for each token"),
        ("b:ratio_stats(b:token_mean(b.logp)) return b.logp", "`ratio_stats` takes a ratio for each token"),
    ] {
        let error = refused(&with(body));
        assert!(error.contains(reason), "{error}");
    }
}
