//! A run with a secret: none of its files contains the value.

use super::hub::server::Response;
use super::infer::serving;
use super::recipe::{line_of, recipe};
use super::run_files::files;
use super::{directory, r1, shown};

const VALUE: &str = "value-that-must-not-be-stored-4711";

#[test]
fn no_file_of_a_run_holds_a_secret() {
    // It sends the headers back.
    let server = serving(|request, _| Response::new(200, format!("{:?}", request.headers)));
    let address = server.url.trim_start_matches("http://");
    let env = format!(
        r#"r1.env {{
    format = "retool",
    reset = function(task)
      local answer = r1.http.get("http://{address}/", {{ headers = {{ ["X-Api-Key"] = r1.secret("OWN_KEY") }} }})
      return {{ said = answer.body, messages = {{ r1.user("Hi") }} }}
    end,
  }}"#
    );
    let needs = format!("{{ 'http:{address}', 'env:OWN_KEY' }}");
    let recipe = recipe(&[("env", &env), ("needs", &needs)]) + "-- hf_abcdefghijABCDEFGHIJabcdefghij\n";
    let dir = directory(&[("a.lua", &recipe)], true);
    let output = r1(dir.path(), &["run", "a.lua", "trainer.steps=1"]).env("OWN_KEY", VALUE).output().unwrap();
    assert!(output.status.success(), "{}", shown(dir.path(), &output));
    let received = server.requests();
    assert!(received.len() >= 4 && received.iter().all(|request| request.headers["x-api-key"] == VALUE));
    for (name, bytes) in files(&dir.path().join("runs")) {
        assert!(!bytes.windows(VALUE.len()).any(|window| window == VALUE.as_bytes()), "{name} has the secret");
    }
    let text = shown(dir.path(), &output);
    assert!(!text.contains(VALUE), "{text}");
    assert!(text.contains("use the environment variable OWN_KEY"), "{text}");
    assert!(text.contains(&format!("a.lua:{} may contain an API key", line_of(&recipe, "hf_"))), "{text}");

    let output = r1(dir.path(), &["run", "a.lua", "--name", "b"]).env_remove("OWN_KEY").output().unwrap();
    let text = shown(dir.path(), &output);
    assert!(!output.status.success() && text.contains("the environment variable OWN_KEY"), "{text}");
}
