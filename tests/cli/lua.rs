//! `r1 lua`: programs in the host, with tokenizers, templates and models.

use super::{directory, piped, printed, r1, shown};

/// Runs `-e code` with the tiny model and `files`; returns the output.
fn run(code: &str) -> String {
    let dir = directory(&[("lib.lua", "return { twice = function(x) return 2 * x end }")], true);
    let output = r1(dir.path(), &["lua", "-e", code]).output().unwrap();
    shown(dir.path(), &output)
}

#[test]
fn lua_programs_print_returned_values() {
    assert_eq!(
        run("return 1 + 1, 'text', { a = { 1, 2 } }, 1/0, require('lib').twice(4)"),
        "exit: 0\n--- stdout\n2\ntext\n{\"a\":[1,2]}\ninf\n8"
    );
    assert_eq!(run("print('a', 1, {1}) io.write('b', 2, '\\n')"), "exit: 0\n--- stdout\na\t1\t[1]\nb2");
    // Bytes that are not text.
    assert_eq!(run("print('a\\xff', 'b')"), "exit: 0\n--- stdout\na\u{fffd}\tb");
    assert_eq!(run("io.write('a\\xff')"), "exit: 0\n--- stdout\na\u{fffd}");
    // There is no reason, so nothing is printed in its place.
    assert_eq!(run("return r1.json.decode('[1]')"), "exit: 0\n--- stdout\n[1]");
    assert_eq!(run("return nil, 1, nil, nil"), "exit: 0\n--- stdout\nnull\n1");
    assert_eq!(run("return nil"), "exit: 0\n--- stdout\nnull");
    assert_eq!(run("os.exit(7)"), "exit: 7");
    assert_eq!(run("pcall(os.exit, 7) return 'went on'"), "exit: 0\n--- stdout\nwent on");
}

#[test]
fn lua_program_errors_name_the_line_and_the_call_stack() {
    assert_eq!(
        run("local function f(x) return x.y end\nlocal function g() return (f(nil)) end\nprint(g())"),
        "exit: 3\n--- stderr\nerror: attempt to index nil with 'y'\n  --> -e:1\n  hint: called from -e:2 in g, -e:3"
    );
    assert_eq!(
        run("r1.model('model'):logprobs({1, 9999})"),
        "exit: 3\n--- stderr\nerror: token id 9999 is outside the vocabulary of 263\n  --> -e:1"
    );
    assert_eq!(
        run("local m = r1.model('model')\nm:logprob({1})"),
        "exit: 3\n--- stderr\nerror: `model.logprob` does not exist\n  --> -e:2\n  hint: did you mean `logprobs`?"
    );
    assert!(
        run("return r1.model('nowhere-at-all')").contains("exit: 5"),
        "{}",
        run("return r1.model('nowhere-at-all')")
    );
}

#[test]
fn lua_programs_read_standard_input_and_arguments() {
    let dir = directory(&[("echo.lua", "local v = r1.json.decode(io.read('a')) return v.n * 2, arg, ...")], false);
    let output = piped(r1(dir.path(), &["lua", "echo.lua", "a", "-b", "--c=1"]), "{\"n\": 21}");
    assert_eq!(shown(dir.path(), &output), "exit: 0\n--- stdout\n42\n[\"a\",\"-b\",\"--c=1\"]\na\n-b\n--c=1");
    let output = piped(r1(dir.path(), &["lua", "-"]), "return 'from stdin'");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "from stdin\n");
}

#[test]
fn lua_programs_encode_and_decode_text() {
    assert_eq!(
        run("local t = r1.text.tokenizer('model')
             local ids = t:encode('I say 4<|im_end|>')
             return t:decode(ids), t:decode(ids, { skip_special_tokens = true }), ids[#ids] == t:id('<|im_end|>')"),
        "exit: 0\n--- stdout\nI say 4<|im_end|>\nI say 4\ntrue"
    );
    assert_eq!(
        run("local t = r1.text.template('model')
             local m = { r1.user('q'), r1.assistant('a') }
             local ids, mask = t:encode(m)
             local own = {}
             for i, id in ipairs(ids) do if mask[i] then own[#own + 1] = id end end
             return t:render({ r1.user('q') }, { add_generation_prompt = true }),
               r1.text.tokenizer('model'):decode(own), #ids == #mask"),
        "exit: 0\n--- stdout\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n\na<|im_end|>\ntrue"
    );
    assert_eq!(
        run("return r1.text.template('{{ bos_token }}{% for m in messages %}{{ m.role[0] }}{{ loud }}{% endfor %}',
               { bos_token = '^' }):render({ r1.user('q') }, { loud = '!' })"),
        "exit: 0\n--- stdout\n^u!"
    );
}

/// A template with a tokenizer renders the prompts of rollouts: tools in their order, and content
/// that the template drops.
#[test]
fn r1_template_renders_the_prompts_of_rollouts() {
    let template = "{% for t in tools %}{{ t | list }}{{ t.function.parameters | list }}{% endfor %}\
                    {% for m in messages %}<|im_start|>{{ m.role }}\\n{{ m.content }}<|im_end|>\\n{% endfor %}\
                    {% if add_generation_prompt %}<|im_start|>assistant\\n{% endif %}";
    let config = format!("{{\"eos_token\": \"<|im_end|>\", \"chat_template\": \"{template}\"}}");
    let recipe = "local t = r1.tool { name = 'find', description = 'd', parameters = { query = 'string', n = 'integer' }, \
                  run = function() return 'x' end }\n\
                  return r1.recipe { policy = { model = 'model' }, env = r1.env { tools = { t } }, \
                  reward = function() return 0 end, data = { train = { rows = { { prompt = 'q' } } } }, trainer = r1.grpo {} }";
    let dir = directory(&[("x.lua", recipe)], true);
    std::fs::write(dir.path().join("model/tokenizer_config.json"), config).unwrap();
    let code = r#"
        local script, template, tokenizer = r1.script("x.lua"), r1.text.template("model"), r1.text.tokenizer("model")
        local attempt = script:reset { row = 0 }
        attempt:step("a")
        local prompt = tokenizer:decode(attempt:finish().steps[1].prompt_ids)
        local options = { tools = script.tools, add_generation_prompt = true }
        assert(template:render({ r1.user("q") }, options) == prompt, template:render({ r1.user("q") }, options))
        assert(prompt:find("['type', 'function']['type', 'properties', 'required']", 1, true), prompt)
        -- The text has the parts that the template drops, as in a rollout.
        local messages = { r1.user("q"), { role = "assistant", content = "a", reasoning_content = "hm",
          tool_calls = { { name = "find", arguments = { query = "x" } } } } }
        local text = template:render(messages)
        assert(tokenizer:decode((template:encode(messages))) == text)
        assert(text:find("hm", 1, true) and text:find('"query": "x"', 1, true), text)
        -- JSON keeps what tables do not.
        local json = '[{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [{"name": "find", '
          .. '"arguments": {"z": null, "a": 9007199254740993}}]}]'
        text = template:render(json)
        assert(text:find('{"z": null, "a": 9007199254740993}', 1, true), text)
        assert(tokenizer:decode((template:encode(json))) == text)
        local bare = r1.text.template("{{ messages[0].x | tojson }}{{ tools | tojson }}")
        assert(bare:render('[{"x": {"z": null, "a": 9007199254740993}}]', { tools = '[{"b": 1, "a": 2}]' })
          == '{"z": null, "a": 9007199254740993}[{"b": 1, "a": 2}]')
        local ok, why = pcall(template.render, template, "[{")
        return tostring(why):match("takes a list of messages, or its JSON") "#;
    let output = r1(dir.path(), &["lua", "-e", code]).output().unwrap();
    assert_eq!(shown(dir.path(), &output), "exit: 0\n--- stdout\ntakes a list of messages, or its JSON");
}

/// `:encode` takes the same arguments as `:render`, and its ids decode to the same text.
#[test]
fn r1_template_encodes_conversations_as_rendered() {
    let template = "{{ mood }}{% if tools %}[{{ tools | length }} tools]{% endif %}\
                    {% for m in messages %}<|im_start|>{{ m.role }}\\n{{ m.content }}<|im_end|>\\n{% endfor %}\
                    {% if add_generation_prompt %}<|im_start|>assistant\\n\
                    {% if enable_thinking is false %}<think>\\n\\n</think>\\n\\n{% endif %}{% endif %}";
    let config = format!("{{\"eos_token\": \"<|im_end|>\", \"chat_template\": \"{template}\"}}");
    let dir = directory(&[], true);
    std::fs::write(dir.path().join("model/tokenizer_config.json"), config).unwrap();
    let code = "local template, tokenizer = r1.text.template('model'), r1.text.tokenizer('model')
         local one = { r1.user('q') }
         local two = { r1.user('q'), r1.assistant('a'), r1.user('r') }
         local tools = { { type = 'function', ['function'] = { name = 'f' } } }
         local seen = {}
         for _, messages in ipairs { one, two } do
           for _, options in ipairs { {}, { add_generation_prompt = true }, { enable_thinking = false },
               { enable_thinking = false, add_generation_prompt = true }, { tools = tools, mood = 'calm' }, {} } do
             local text = template:render(messages, options)
             local ids, mask = template:encode(messages, options)
             assert(tokenizer:decode(ids) == text, text)
             seen[text] = true
             local own = {}
             for i, id in ipairs(ids) do if mask[i] then own[#own + 1] = id end end
             assert(tokenizer:decode(own) == (messages == two and 'a<|im_end|>' or ''), tokenizer:decode(own))
           end
         end
         local count = 0
         for _ in pairs(seen) do count = count + 1 end
         return count, template:render(one, { enable_thinking = false, add_generation_prompt = true })";
    let output = r1(dir.path(), &["lua", "-e", code]).output().unwrap();
    assert_eq!(
        shown(dir.path(), &output),
        "exit: 0\n--- stdout\n8\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>"
    );
}

#[test]
fn tokenizers_and_templates_are_opened_by_model_name() {
    assert_eq!(
        run("local t = r1.text.tokenizer('r1-nano')
             local ids = r1.text.template('r1-nano'):encode({ r1.user('2+3') }, { add_generation_prompt = true })
             return t:decode(ids) == r1.text.template('r1-nano'):render({ r1.user('2+3') }, { add_generation_prompt = true })"),
        "exit: 0\n--- stdout\ntrue"
    );
    assert_eq!(
        run("return r1.text.tokenizer('nano')"),
        "exit: 5\n--- stderr\nerror: there is no model `nano`\n  --> -e:1\n  hint: give a directory, a Hub id such as \
         Qwen/Qwen2.5-1.5B-Instruct, or `r1-nano` for the embedded model"
    );
    let wrong = run("return r1.text.template('model', { fromat = 'hermes' })");
    assert!(wrong.contains("did you mean `format`") && wrong.contains("--> -e:1"), "{wrong}");
    let recipe = "r1.text.tokenizer('r1-nano') return r1.recipe {}";
    let dir = directory(&[("a.lua", recipe)], false);
    let reported = printed(dir.path(), &["check", "a.lua"]);
    assert!(
        reported.contains("names of models are for programs (`r1 lua`)") && reported.contains("a.lua:1"),
        "{reported}"
    );
}

#[test]
fn lua_programs_parse_replies_as_rollouts_do() {
    assert_eq!(
        run("local reply = '<think>\\nhm\\n</think>\\n\\nSee.\\n<tool_call>\\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\\n</tool_call>'
             local tools = { { name = 'add', parameters = { type = 'object', properties = { a = { type = 'string' } } } } }
             local read = r1.text.parse_tool_calls('hermes', reply)
             local checked = r1.text.parse_tool_calls('hermes', reply, { tools = tools })
             return read, checked.errors,
               r1.text.parse_tool_calls('retool', '<code>\\nprint(1)\\n</code>', { code_tool = 'run' }).calls,
               r1.text.parse_tool_calls('hermes', 'a</think>b', { thinking = true }).reasoning"),
        "exit: 0\n--- stdout\n\
         {\"calls\":[{\"name\":\"add\",\"arguments\":{\"a\":1}}],\"content\":\"See.\",\"errors\":[],\"reasoning\":\"hm\"}\n\
         [\"arguments.a must be string, got 1\"]\n\
         [{\"name\":\"run\",\"arguments\":{\"code\":\"print(1)\"}}]\na"
    );
    assert_eq!(
        run("r1.text.parse_tool_calls('hermez', '')"),
        "exit: 3\n--- stderr\nerror: r1.text.parse_tool_calls: unknown format `hermez`\n  --> -e:1\n  hint: did you mean `hermes`?"
    );
}

/// Scores, logits and samples of a model are consistent.
#[test]
fn r1_model_computes_logprobs_and_samples() {
    assert_eq!(
        run("local m = r1.model('model')
             local ids = { 5, 6, 7, 8 }
             local logprobs, top = m:logprobs(ids, { top = 3 })
             local logits = m:logits(ids)
             assert(#logprobs == 3 and #top == 3 and #top[1] == 3 and #logits == 4 and #logits[1] == m:config().vocab_size)
             for i = 1, 3 do
               local most, sum = -math.huge, 0
               for _, z in ipairs(logits[i]) do most = math.max(most, z) end
               for _, z in ipairs(logits[i]) do sum = sum + math.exp(z - most) end
               local expected = logits[i][ids[i + 1] + 1] - most - math.log(sum)
               assert(math.abs(logprobs[i] - expected) < 1e-5, logprobs[i] .. ' ' .. expected)
               assert(math.abs(top[i][1].logprob - (logits[i][top[i][1].id + 1] - most - math.log(sum))) < 1e-5)
             end
             local a = m:generate(ids, { temperature = 0, max_new_tokens = 4, ignore_eos = true })
             assert(#a.token_ids == 4 and #a.logprobs == 4 and a.finish_reason == 'length')
             local whole = table.clone(ids)
             for _, id in ipairs(a.token_ids) do whole[#whole + 1] = id end
             local scored = m:logprobs(whole)
             for i = 1, 4 do assert(math.abs(scored[3 + i] - a.logprobs[i]) < 1e-4) end
             local d = m:generate(ids, { temperature = 0, max_new_tokens = 4, ignore_eos = true, top_logprobs = 2,
               min_p = 0.1, repetition_penalty = 1.2, logit_bias = { [5] = -100, [1] = 0, ['6'] = 0.5 } })
             assert(#d.top_logprobs == 4 and #d.top_logprobs[1] == 2 and d.top_logprobs[1][1].id == d.token_ids[1])
             local b = m:generate({ r1.user('Say 4') }, { seed = 3, max_new_tokens = 5 })
             local c = m:generate({ r1.user('Say 4') }, { seed = 3, max_new_tokens = 5 })
             return r1.json.encode(b.token_ids) == r1.json.encode(c.token_ids), m:config().model_type"),
        "exit: 0\n--- stdout\ntrue\nqwen2"
    );
}

#[test]
fn invalid_sampling_settings_are_refused_by_name() {
    for (field, received) in [
        ("top_k = -1", "`sampling.top_k` must be a whole number, 0 or more, got the number -1"),
        (
            "seed = 'x'",
            "`sampling.seed` must be a whole number from 0 to 2^53, or its digits as text, got the text \"x\"",
        ),
        ("stop = 'x'", "`sampling.stop` must be a list, got the text \"x\""),
        ("logit_bias = { x = 1 }", "`sampling.logit_bias` must be a table by token id, got a table"),
        ("logit_bias = { [5] = 'x' }", "generate: `logit_bias[5]` must be a number, got the text \"x\""),
        ("logit_bias = { [5] = 1, ['5'] = 1 }", "generate: `logit_bias` has two values for id 5"),
        ("logit_bias = 5", "generate: `logit_bias` must be numbers by token id, got the number 5"),
        (
            "logit_bias = { ['9999'] = 1 }",
            "sampling.logit_bias names token id 9999, outside the model's vocabulary of 263",
        ),
        ("stop_ids = { 9999 }", "token id 9999 is outside the vocabulary of 263"),
    ] {
        let reported = run(&format!("r1.model('model'):generate({{ 5, 6 }}, {{ {field} }})"));
        let wanted = format!("--- stderr\nerror: {received}\n  --> -e:1");
        assert!(reported.split_once('\n').unwrap().1.starts_with(&wanted), "{reported}");
    }
    assert_eq!(
        run("r1.model('model', { dtype = 'f8' })"),
        "exit: 3\n--- stderr\nerror: `policy.dtype` is \"f8\"; it is one of `auto`, `f32`, `bf16`\n  --> -e:1"
    );
    // Longer than any clock runs.
    let code = "for _, seconds in ipairs { 1e18, 1e300 } do
        local options = { max_seconds = seconds, max_new_tokens = 2, ignore_eos = true }
        print(#r1.model('model'):generate({ 5, 6 }, options).token_ids)
      end";
    assert_eq!(run(code), "exit: 0\n--- stdout\n2\n2");
}

/// A directory without a tokenizer can be used with ids.
#[test]
fn r1_model_without_a_tokenizer_takes_ids() {
    let dir = directory(&[], true);
    std::fs::remove_file(dir.path().join("model/tokenizer.json")).unwrap();
    let code = "local m = r1.model('model')
                print(#m:generate({ 1, 2 }, { max_new_tokens = 3, ignore_eos = true }).token_ids)
                m:generate('text')";
    let output = r1(dir.path(), &["lua", "-e", code]).output().unwrap();
    assert_eq!(
        shown(dir.path(), &output),
        "exit: 3\n--- stdout\n3\n--- stderr\n\
         error: the model has no tokenizer.json, so it takes token ids only\n  --> -e:3"
    );
}

#[test]
fn r1_rl_computes_value_losses_and_entropies() {
    // Half the squared error, clipped at 0.5; the second entry is inside the range.
    let clipped = run("local found = r1.rl.value_loss({ 1, 0.25 }, { 0, 0 }, { 2, 0 }, { clip = 0.5 })
             return found.loss, found.clip_frac, found.gradient");
    assert_eq!(clipped, "exit: 0\n--- stdout\n0.578125\n0.5\n[0,0.125]");
    assert_eq!(
        run("local two, four = table.unpack(r1.rl.entropy({ { 3, 3 }, { 0, 0, 0, 0 } }))
             return math.abs(two - math.log(2)) < 1e-12, math.abs(four - math.log(4)) < 1e-12"),
        "exit: 0\n--- stdout\ntrue\ntrue"
    );
    // The temperature divides logits as in the sampler: logits 2 and 0 at 2 equal 1 and 0 at 1.
    assert_eq!(
        run(
            "local a, b = r1.rl.entropy({ { 2, 0 } }, 2)[1], r1.rl.entropy({ { 1, 0 } })[1] return math.abs(a - b) < 1e-15"
        ),
        "exit: 0\n--- stdout\ntrue"
    );
    assert!(run("r1.rl.value_loss({ 1 }, { 0, 0 }, { 2 })").contains("1 values, 2 old ones and 1 returns"));
    assert!(run("r1.rl.value_loss({ 1 }, { 0 }, { 2 }, { clp = 1 })").contains("did you mean clip"));
    assert!(run("r1.rl.entropy({ {} })").contains("there are no logits"));
    // Sums that overflow are an error, not nil.
    let huge = run(
        "local function row(n, r) return { group = 1, trajectory = n, step = 1, mask = { 1 }, rewards = { r } } end
             return r1.rl.advantages('grpo', { row(1, 1.7e308), row(2, -1.7e308) }).advantages",
    );
    assert!(!huge.starts_with("exit: 0") && huge.contains("an advantage is"), "{huge}");
}

#[test]
fn r1_rl_computes_estimators_and_losses() {
    assert_eq!(
        run("local rows = {
               { group = 1, trajectory = 1, step = 1, mask = { 1, 1 }, rewards = { 0, 1 } },
               { group = 1, trajectory = 2, step = 1, mask = { 1, 0 }, rewards = { 0 } },
             }
             return r1.rl.advantages('grpo', rows, { normalize = 'none' }).advantages"),
        "exit: 0\n--- stdout\n[[0.5,0.5],[-0.5,0]]"
    );
    // Half of the tokens have ratio 1 and advantage 2, the other half advantage -1: the gradient is
    // -A / 2.
    assert_eq!(
        run("local row = { group = 1, trajectory = 1, step = 1, mask = { 1, 1 }, logp = { -1, -2 }, logp_old = { -1, -2 },
                           advantages = { 2, -1 } }
             local found = r1.rl.loss('ppo', { row })
             return found.loss, found.gradient, found.metrics.ratio_max"),
        "exit: 0\n--- stdout\n-0.5\n[[-1,0.5]]\n1"
    );
    // Every field, and the gradient compared with finite differences.
    assert_eq!(
        run("local function row(trajectory, step, last, logp)
               return { group = 1, trajectory = trajectory, step = step, mask = { 1, 0, 1 }, rewards = { 0, 0, last },
                        values = { 0.2, 0, 0.4 }, logp = logp, logp_old = { -1, -9, -2 }, logp_ref = { -1.5, -9, -1.5 } }
             end
             local rows = { row(1, 1, 1, { -0.9, -9, -2.3 }), row(1, 2, 0, { -1.1, -9, -1.6 }), row(2, 1, -1, { -1, -9, -2 }),
                            row(3, 1, 7, { -1, -9, -2 }) }
             rows[2].terminated, rows[3].truncated, rows[3].next_value = true, true, 0.5
             rows[4].status = 'tool_timeout'
             local found = r1.rl.advantages('gae', rows, { gamma = 0.9, lambda = 0.8, whiten = 'none' })
             -- By hand: -0.2; 1 + 0.9 * 0.2 - 0.2 + 0.72 * -0.2; -1 + 0.9 * 0.5 - 0.2; a failure has none.
             local want = { 0.836, -0.2, -0.75, 0 }
             for i, own in ipairs(found.advantages) do
               assert(math.abs(own[1] - want[i]) < 1e-12 and own[2] == 0 and own[3] == own[1], i)
               rows[i].advantages = own
             end
             assert(found.counted[3] and not found.counted[4] and math.abs(found.returns[1][1] - 1.036) < 1e-12)
             local options = { kl_coef = 0.1, kl = 'k2', loss_agg = 'seq-mean-token-mean' }
             local whole, worst = r1.rl.loss('ppo', rows, options), 0
             for i, row in ipairs(rows) do
               for k = 1, 3 do
                 local function at(by)
                   local before = row.logp[k]
                   row.logp[k] = before + by
                   local loss = r1.rl.loss('ppo', rows, options).loss
                   row.logp[k] = before
                   return loss
                 end
                 worst = math.max(worst, math.abs((at(1e-6) - at(-1e-6)) / 2e-6 - whole.gradient[i][k]))
               end
               assert(whole.gradient[i][2] == 0)
             end
             return worst < 1e-8, whole.metrics.kl > 0, whole.metrics.clipfrac_low"),
        "exit: 0\n--- stdout\ntrue\ntrue\n0"
    );
    let wrong = run("r1.rl.advantages('grpo', { { group = 1, trajectry = 1, mask = { 1 }, rewards = { 1 } } })");
    assert!(wrong.contains("unknown field `trajectry`") && wrong.contains("did you mean `trajectory`"), "{wrong}");
    let wrong = run("r1.rl.advantages('grpo', { { group = 1, mask = { 1, 2 }, rewards = { 1 } } })");
    assert!(wrong.contains("`mask` contains 2") && wrong.contains("row 1"), "{wrong}");
    let wrong = run("r1.rl.advantages('grop', {})");
    assert!(wrong.contains("did you mean grpo?") && wrong.contains("--> -e:1"), "{wrong}");
    let wrong = run("r1.rl.loss('ppo', { { mask = { 1 } } })");
    assert!(wrong.contains("exit: 3") && wrong.contains("`logp`"), "{wrong}");
    // One number per step; invalid fields are named, with the program's line.
    assert_eq!(
        run("local function row(trajectory, reward) return { trajectory = trajectory, mask = { 0, 1 }, rewards = reward, values = 0.5, terminated = true } end
             return r1.rl.advantages('gae', { row(1, 1), row(2, 0) }, { whiten = 'none' }).advantages"),
        "exit: 0\n--- stdout\n[[0,0.5],[0,-0.5]]"
    );
    for (row, message) in [
        ("{ group = 1.5, mask = { 1 } }", "row 1: `group` must be a whole number, 0 or more, got 1.5"),
        (
            "{ mask = { 1 }, rewards = 'x' }",
            "row 1: `rewards` must be a number, or a list of one for each token, got \"x\"",
        ),
        ("{ mask = { 1 }, logp = { 'x' } }", "row 1: `logp` must be a list with a number for each token, got [\"x\"]"),
        ("{ rewards = { 1 } }", "row 1: there is no `mask`"),
        ("7", "row 1: a row is a table, not 7"),
        ("{ mask = { 1 }, status = 'odd' }", "row 1: unknown variant `odd`"),
        ("{ mask = { 1, 1, 1 }, rewards = { 1, 2 } }", "trajectory 0 step 0: `rewards` has 2 entries for 3 tokens"),
    ] {
        let wrong = run(&format!("r1.rl.advantages('grpo', {{ {row} }})"));
        let message = format!("exit: 3\n--- stderr\nerror: r1.rl.advantages: {message}");
        assert!(wrong.starts_with(&message) && wrong.contains("--> -e:1"), "{wrong}");
    }
}
