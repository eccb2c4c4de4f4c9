//! `r1 doc`: the declarations in the terminal.

use super::cli_snapshot;

#[test]
fn doc_shows_a_function_with_its_options_and_an_example() {
    cli_snapshot!(["doc", "r1.re.find"], @r#"
    exit: 0
    --- stdout
    r1.re.find(text, pattern, from?) -> number?, number?, ...string

      Finds the first match of a regular expression, like string.find. Patterns have the syntax of
      Rust's regex crate: no backreferences, no look-around, time linear in the text. Positions count
      bytes.

      text     string
      pattern  string
      from?    number  Start position; default: 1

      returns
        number?  Start of the match
        number?  End of the match
        ...string  Groups

      example
        r1.re.find("a 12 b", "(\\d)(\\d)")  --> 3, 4, "1", "2"

      since 0.1
    "#);
    cli_snapshot!(["doc", "process.run"], @r#"
    exit: 0
    --- stdout
    r1.process.run(argv, options?) -> ProcessResult?, string?

      Runs a program in a sandbox. It can read system directories and directories declared with
      "fs:DIR", and write to a temporary working directory. It has no access to the network or to other
      processes. Recipes must declare it: needs = { "process:NAME" }.

      argv        {string | number}            Program and arguments; searched in /usr/local/bin, /usr/bin and /bin
      options?    table
        input?    string                       Standard input
        timeout?  number | string              Seconds, or text such as "500ms"; default: 10
        memory?   number | string              Maximum memory per process; default: "512MiB"
        disk?     number | string              Maximum size of its working directory; default: "64MiB"
        output?   number                       Maximum bytes kept per output stream (beginning and end); default: 64 KiB
        env?      {[string]: string | Secret}  Environment variables

      returns
        ProcessResult?
        string?                      Error message if the program did not start

      example
        local sorted = r1.process.run({ "sort", "-n" }, { input = "3\n1\n2\n" })
        sorted.out  --> "1\n2\n3\n"

      since 0.1
    "#);
}

#[test]
fn doc_shows_a_namespace_and_methods() {
    cli_snapshot!(["doc", "r1.json"], @r#"
    exit: 0
    --- stdout
    r1.json.encode  A value as JSON
    r1.json.decode  JSON as a value
    r1.json.null    JSON's null in a list, and in a table that a script makes
    "#);
    cli_snapshot!(["doc", "Model"], @r#"
    exit: 0
    --- stdout
    Model:generate  Samples a response
    Model:logprobs  Log-probabilities of token ids
    Model:logits    Logits at every position
    Model:config    The model's config.json
    "#);
}

#[test]
fn doc_shows_modules_and_their_functions() {
    let here = std::path::Path::new(".");
    let folder = super::succeed(here, &["doc", "@r1/rewards"]);
    assert!(folder.starts_with("require(\"@r1/rewards\")\n\n  All rewards in one table"), "{folder}");
    assert!(folder.contains("\n@r1/rewards/qa.f1 "), "{folder}");
    let module = super::succeed(here, &["doc", "@r1/rewards/format"]);
    assert!(module.contains("\n\n  Sources: the format rewards of DeepSeek-R1"), "{module}");
    assert!(module.contains("@r1/rewards/format.tag_share  The share of opening and closing tags"), "{module}");
    let function = super::succeed(here, &["doc", "@r1/rewards/format.tag_share"]);
    assert!(function.starts_with("@r1/rewards/format.tag_share(text, tags)\n\n  The share"), "{function}");
    assert!(function.contains("\n\n  Gamed by: tags without content"), "{function}");
    assert_eq!(super::succeed(here, &["doc", "tag_share"]), function);
    let call = super::succeed(here, &["doc", "env_http"]);
    assert!(call.contains("\n  returns a function: (given)\n\n  Makes an environment."), "{call}");
    let all = super::succeed(here, &["doc"]);
    assert!(all.contains("\nModules: require(NAME), r1 doc NAME\n") && all.contains("\n@r1/vote "), "{all}");
    let json = super::succeed(here, &["doc", "@r1/vote", "--json"]);
    let printed: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(printed["entries"][0]["name"], "@r1/vote.majority");
    let unknown = super::fail(here, &["doc", "@r1/reward"]);
    assert!(unknown.contains("did you mean `@r1/rewards`"), "{unknown}");
}

#[test]
fn a_type() {
    cli_snapshot!(["doc", "ToolResult"], @r#"
    exit: 0
    --- stdout
    ToolResult

      The result of a tool call.

      name      string
      content   string                                            Text shown to the policy
      ok        boolean
      kind?     string                                            bad_arguments, excess, unknown or malformed for a call that did not run
      reward    number                                            Process reward
      call_id?  string
      files?    {{name: string, size: number, content: string?}}  Files that a program wrote, with keep_files of r1.tools.python; `content` is nil if they are too large to keep
      images?   {Part}                                            Images for a policy that reads images; r1.observation shows them after the text
    "#);
}

#[test]
fn doc_shows_a_setting_and_a_section() {
    cli_snapshot!(["doc", "limits.memory"], @r#"
    exit: 0
    --- stdout
    limits.memory

      Memory of one script worker.

      type     integer or string
      unit     MiB
      range    > 0
      default  512
      changes  next group
    "#);
    cli_snapshot!(["doc", "trainer.kl"], @r#"
    exit: 0
    --- stdout
    trainer.kl.coef              0       Coefficient of the KL penalty to the reference policy (the policy at the start of the run); 0 is off.
    trainer.kl.kind              "k3"    Estimator of the KL divergence.
    trainer.kl.straight_through  false   Uses the gradient of k2 for every kind.
    trainer.kl.place             "loss"  The KL penalty is a term of the loss, or is subtracted from the reward of each token.
    trainer.kl.target            0       Target KL of an adaptive coefficient; 0 is a fixed coefficient.
    trainer.kl.horizon           10000   Trajectories over which the coefficient adapts.
    "#);
    // Reinforcement learning and supervised fine-tuning each have one.
    let both = super::succeed(std::path::Path::new("."), &["doc", "trainer.lr"]);
    assert!(both.contains("default  1e-6") && both.contains("trainer.lr (sft)") && both.contains("1e-5"), "{both}");
    // A function and a section of settings.
    let env = super::succeed(std::path::Path::new("."), &["doc", "env"]);
    assert!(env.starts_with("r1.env(") && env.contains("env.max_steps"), "{env}");
    let json = super::succeed(std::path::Path::new("."), &["doc", "limits.cpu", "--json"]);
    let printed: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&printed[0]["unit"], &printed[0]["default"]), (&"seconds".into(), &"1".into()));
    let near = super::fail(std::path::Path::new("."), &["doc", "trainer.leraning_rate"]);
    assert!(near.contains("there is no function, type, module or setting") && near.contains("`trainer.lr`"), "{near}");
    let needs = super::succeed(std::path::Path::new("."), &["doc", "trainer.final_lr"]);
    assert!(needs.contains("needs    trainer.decay = \"linear\" or \"cosine\""), "{needs}");
}

#[test]
fn doc_refuses_unknown_names() {
    cli_snapshot!(["doc", "r1.http.gett"], @r#"
    exit: 2
    --- stderr
    error: there is no function, type, module or setting `r1.http.gett`
      hint: did you mean `r1.http.get`?
    "#);
    cli_snapshot!(["doc", "xyzzy"], @r#"
    exit: 2
    --- stderr
    error: there is no function, type, module or setting `xyzzy`
      hint: `r1 doc` lists them all
    "#);
}

#[test]
fn doc_prints_json() {
    cli_snapshot!(["doc", "r1.clock", "--json"], @r#"
    exit: 0
    --- stdout
    {"name":"r1.clock","params":[],"returns":[["number","Seconds since 1970"]],"doc":"Returns the current time. It is recorded, so a replay returns the recorded time.","example":"","since":"0.1","scope":"anywhere","value":false}
    "#);
}

#[test]
fn doc_shows_the_file_of_an_algorithm() {
    let dir = super::directory(&[], false);
    let page = super::succeed(dir.path(), &["doc", "dro"]);
    assert!(
        page.starts_with("--- DRO (direct reward optimisation") && page.contains("return r1.algorithm {"),
        "{page}"
    );
    let json: serde_json::Value = serde_json::from_str(&super::succeed(dir.path(), &["doc", "dro", "--json"])).unwrap();
    assert_eq!((json["algorithm"].as_str(), json["paper"].as_str()), (Some("dro"), Some("arXiv:2405.19107")));
    assert_eq!(json["source"].as_str(), Some(page.as_str()));
    // `grpo` and `ppo` are functions, too.
    let page = super::succeed(dir.path(), &["doc", "grpo"]);
    assert!(page.contains("r1.grpo(settings") && page.contains("--- GRPO (arXiv:2402.03300)"), "{page}");
    let error = super::fail(dir.path(), &["doc", "gsop"]);
    assert!(error.contains("did you mean `gspo`"), "{error}");
}
