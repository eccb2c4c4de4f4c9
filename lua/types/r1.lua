---@meta
-- Types of r1 for lua-language-server. Made by `r1 doc --format luacats`; changes here are lost.

---A trajectory of a group that did not fail, as the recipe's `advantage` sees it.
---@class r1.GroupMember
---@field total number Sum of `rewards`
---@field rewards number[] Of each step, shaped as `trainer.shaping` says
---@field tokens number[] Sampled tokens of each step
---@field status string terminated or truncated
---@field parts table<string, number> Named parts of the reward, unweighted
---@field task any The dataset row
---@field terminated boolean
---@field truncated boolean
---@field fork? { parent?: number, step: number } In a tree: the place of the parent in the group, steps shared
---@field values? number[] The critic's value before each step
---@field next_value? number The critic's value of what would have come after a cut

---A message in the shape of the OpenAI chat API.
---@class r1.Message
---@field role string system, user, assistant or tool
---@field content string|r1.Part[]
---@field reasoning_content? string What a thinking model wrote before its answer
---@field tool_calls? r1.ToolCall[]
---@field name? string The tool that answered
---@field tool_call_id? string

---A part of a message's content.
---@class r1.Part
---@field type string text or image
---@field text? string
---@field hash? string Of an image

---A call as the policy wrote it; one that could not be read has only `error`.
---@class r1.ToolCall
---@field name? string
---@field arguments? table<string, any>
---@field id? string
---@field error? string Why it failed: message, place, hint and frames
---@field error_fields? table<string, any> The same as data: kind, message, place, line, hint, traceback, subject

---A call as `parse` of r1.format reads it; one that can't be read has only `error`.
---@class r1.FormatCall
---@field name? string Of the tool
---@field arguments? table<string, any> By name; none unless said
---@field id? string
---@field error? string What is wrong with it, in words for the policy

---A tool's result as `result` of r1.format gets it.
---@class r1.FormatResult
---@field content string
---@field name? string The tool
---@field call_id? string

---What a call came to.
---@class r1.ToolResult
---@field name string
---@field content string What the policy is shown
---@field ok boolean
---@field reward number Process reward
---@field call_id? string

---The policy's whole reply at a step.
---@class r1.Action
---@field text string
---@field token_ids number[]
---@field tool_calls r1.ToolCall[]
---@field finish_reason string stop, stop_string, length or deadline

---What an env makes of an action.
---@class r1.StepResult
---@field reward? number
---@field done? boolean The env ends the task; final, also after a reply that was cut
---@field truncated? boolean A limit of the env's own ends it, or the reply was cut before it was whole
---@field parts? table<string, number> Named parts for the logs; other names than those of reward

---How a trajectory ended.
---@class r1.Outcome
---@field text string The last reply
---@field steps number
---@field calls number Calls of tools, with those that were not carried out
---@field terminated boolean The env ended it
---@field truncated boolean A limit ended it
---@field truncated_by? string Which: max_steps, max_tokens, context_overflow, length, deadline or env

---The sampled tokens of a mini-batch, as a loss sees them: tensors with a number for each.
---@class r1.LossBatch
---@field logp any Log-probabilities under the current weights; the gradient flows into them
---@field logp_old any Under the behaviour policy
---@field logp_ref any Under the reference policy, which is loaded where a loss reads it
---@field advantages any
---@field entropy any Of the distribution each was drawn from; with gradient
---@field weights any Of trainer.importance and trainer.rejection; 1 without them
---@field rewards any The total reward of the token's trajectory
local LossBatch = {}

---The sum over the sampled tokens of the mini-batch, divided by how many there are.
---@param x r1.LossTensor|number
---@return r1.LossTensor # A scalar of the mini-batch
function LossBatch:token_mean(x) end

---The mean over the tokens of a sequence, then over the sequences of the mini-batch.
---@param x r1.LossTensor|number
---@param unit? "step"|"trajectory"|"group" "trajectory" unless said
---@return r1.LossTensor # A scalar of the mini-batch
function LossBatch:seq_mean(x, unit) end

---As trainer.loss_agg: from a loss for each token to a scalar.
---@param x r1.LossTensor|number
---@param loss_agg string token-mean, seq-mean-token-sum, seq-mean-token-mean or seq-mean-token-sum-norm
---@param unit? "step"|"trajectory"|"group" What a sequence is; "trajectory" unless said
---@return r1.LossTensor # A scalar of the mini-batch
function LossBatch:aggregate(x, loss_agg, unit) end

---The plain sum over the sampled tokens of the mini-batch.
---@param x r1.LossTensor|number
---@return r1.LossTensor # A scalar of the mini-batch
function LossBatch:sum(x) end

---For each token how many sampled tokens its sequence has.
---@param unit "step"|"trajectory"|"group"
---@return r1.LossTensor
function LossBatch:count(unit) end

---x where the condition is true, y elsewhere.
---@param condition r1.LossTensor Booleans
---@param x r1.LossTensor|number
---@param y r1.LossTensor|number
---@return r1.LossTensor
function LossBatch:where(condition, x, y) end

---Writes a metric loss/NAME: the mean of a tensor over the tokens computed (booleans count as 0 and 1), or a scalar.
---@param name string
---@param x r1.LossTensor
function LossBatch:log(name, x) end

---The policy, as a flow sees it.
---@class r1.Policy
---@field steps number Replies so far
---@field state any Plain data that `reward` and tools get; `task` and `messages` are in it
---@field budget r1.Budget What a prompt may have
local Policy = {}

---A reply of the policy: one step of the trajectory, with its token ids and log-probabilities recorded. At a limit it raises an error, which ends the flow unless it is caught.
---@param shown r1.Context|r1.Message[]|string|{ token_ids: number[] } The prompt. Messages that continue an earlier conversation of the flow keep its sampled ids
---@param options? { max_new_tokens?: number, stop?: string|string[], tools?: string[] }
---@return r1.Action
function Policy:generate(shown, options) end

---Adds to the reward of a step.
---@param value number
---@param step? number Which reply, from 1; the last unless said
function Policy:reward(value, step) end

---What a context may have.
---@class r1.Budget
---@field tokens number Longest prompt

---A match of a regular expression, with its groups by number and name.
---@class r1.Match
---@field text string
---@field first number
---@field last number
---@field [any] any

---An answer over HTTP.
---@class r1.HttpAnswer
---@field status number
---@field headers table<string, string> Names in small letters
---@field body string
---@field url string Where redirects led

---What became of a program.
---@class r1.ProcessResult
---@field code number 128 and the signal's number if one ended it
---@field out string
---@field err string
---@field timed_out boolean
---@field seconds number

---A call of a tool as it is stored.
---@class r1.ToolUse
---@field name string
---@field arguments any
---@field kind? string bad_arguments, unknown or malformed, for a call that did not run
---@field output string What the policy was shown
---@field ok boolean
---@field reward number Process reward
---@field seconds number
---@field retries? number Tries behind the first one
---@field cached? boolean The result came from the tool's cache

---Another script, opened.
---@class r1.Script
---@field path string
---@field tools (table<string, any>)[] Schemas
---@field format string Of calls
local Script = {}

---How many rows there are.
---@param split? string train or eval
---@return number?
function Script:rows(split) end

---One row.
---@param row? number From 0
---@param split? string
---@return r1.Task
function Script:row(row, split) end

---Begins a trajectory.
---@param which? { row?: number, split?: string, task?: r1.Task, seed?: number }
---@return r1.Attempt
function Script:reset(which) end

---A run whose loop a program writes.
---@class r1.Training
---@field step number Steps done
---@field steps number trainer.steps
---@field rows number Of the training data
---@field run_dir string
---@field settings table<string, any> All settings of the recipe
local Training = {}

---Samples trajectories with the current weights, in the order of the data.
---@param options? { groups?: number, samples?: number, rows?: number[], ids?: boolean }
---@return r1.Trajectory[]
function Training:rollout(options) end

---Advantages by an estimator.
---@param trajectories (r1.Trajectory|string)[] What rollout gave, or ids; those of earlier steps too
---@param estimator? string|table<string, any> The recipe's unless said
---@return any[] # For each trajectory a list with those of each step's tokens; nil for one that failed
function Training:advantages(trajectories, estimator) end

---Learns from trajectories.
---@param trajectories (r1.Trajectory|string)[] What rollout gave, or ids; those of earlier steps too
---@param options? { advantages?: any[], returns?: any[], policy?: boolean, estimator?: string|table<string, any>, loss?: string|table<string, any>|(fun(b: r1.LossBatch, options: any): any), options?: table<string, any>, groups?: number[], lr?: number, epochs?: number, mini_batches?: number } What is left out is as the recipe says
---@return table<string, number> # Metrics: docs/metrics.md
function Training:update(trajectories, options) end

---A supervised step on conversations, with a loss over the assistant's tokens.
---@param examples ({ messages: r1.Message[], tools?: any[] })[]
---@param options? { lr?: number }
---@return table<string, number> # Metrics
function Training:sft(examples, options) end

---Log-probabilities of sampled tokens.
---@param trajectories (r1.Trajectory|string)[] What rollout gave, or ids; those of earlier steps too
---@param options? { model?: string }
---@return ((number[])[])[] # For each trajectory and step those of the sampled tokens
function Training:logprobs(trajectories, options) end

---The critic's values of the states before sampled tokens.
---@param trajectories (r1.Trajectory|string)[] What rollout gave, or ids; those of earlier steps too
---@return ((number[])[])[] # For each trajectory and step those of the sampled tokens
---@return number[] # Of what would have come next, where a limit cut the trajectory; else nil
function Training:values(trajectories) end

---Makes the policy as it is now the reference policy. Checkpoints hold it from then on.
function Training:renew_reference() end

---Evaluates the policy on the recipe's held-out tasks, and logs it.
---@return (table<string, any>)? # accuracy, reward, tasks, parts …; nil without held-out data
function Training:evaluate() end

---Adds metrics to the line of this step in metrics.jsonl.
---@param values table<string, number>
function Training:log(values) end

---Ends the step: trajectories and metrics are written, and the counters move on.
---@param values? table<string, number> As of log
---@return table<string, number> # Metrics of the step
function Training:next_step(values) end

---Writes a checkpoint, from which the run can be resumed.
---@param out? string A directory for the model alone
---@return string # The checkpoint
function Training:save(out) end

---A step of a trajectory; ids and log-probabilities are there after a rollout, and with `ids = true` from r1.store.
---@class r1.Step
---@field text string The reply
---@field reward number With process rewards; the last step has the outcome reward too
---@field finish_reason string stop, stop_string, length or deadline
---@field terminated boolean
---@field truncated boolean
---@field new_row boolean Its prompt does not extend the step before
---@field tools r1.ToolUse[]
---@field prompt_tokens number
---@field response_tokens number
---@field prompt_ids? number[]
---@field response_ids? number[]
---@field logprobs? number[] Of the response ids, under the policy that sampled them
---@field support? table<string, any> What they were drawn from, where sampling cut the distribution

---A trajectory: stored, or of r1.rollout and Attempt:finish.
---@class r1.Trajectory
---@field id string
---@field split string train, or eval: the dataset of its task
---@field group number
---@field sample number
---@field fork? { parent: string, step: number } What it was forked from, and the steps they share
---@field seed number|string Its digits as text where it is above 2^53
---@field task_index number
---@field task r1.Task
---@field status string
---@field truncated_by? string The limit that cut it
---@field retries number How often it was sampled again after a failure
---@field error? string
---@field script_hash string
---@field reward number
---@field outcome_reward number
---@field parts table<string, number> Named parts of the reward, added up over the trajectory
---@field messages r1.Message[]
---@field steps r1.Step[]
---@field record? (table<string, any>)[]
---@field branch? number Which continuation it is, of r1.rollout

---What a script returns.
---@class r1.Recipe

---An environment.
---@class r1.Env

---What a policy can call.
---@class r1.Tool

---How tool calls are written.
---@class r1.Format

---How to train.
---@class r1.Trainer

---Where tasks come from.
---@class r1.Dataset

---A file of data: a read-only list of rows.
---@class r1.Resource

---An index of texts.
---@class r1.TextIndex
local TextIndex = {}

---The texts that are most like a query, with the scores of r1.text.rank.
---@param query string
---@param k? number Texts at most (10)
---@return ({ index: integer, score: number })[] # Best first; texts that share no word with the query are left out
function TextIndex:search(query, k) end

---A view of a conversation.
---@class r1.Context
local Context = {}

---The first n messages are never dropped.
---@param n number
---@return r1.Context
function Context:keep_first(n) end

---The last n messages are never dropped.
---@param n number
---@return r1.Context
function Context:keep_last(n) end

---Drops the oldest messages that are not kept until the rest has at most so many tokens, a reply together with what a user asked right before it and the results of its calls.
---@param tokens number
---@return r1.Context
function Context:drop_oldest_until(tokens) end

---Shows the kept first messages and the last n turns. A turn is a reply, what a user asked right before it, and all behind it up to the next turn.
---@param n number
---@return r1.Context
function Context:last_turns(n) end

---Old tool results give way to a few words; their calls stay.
---@param options? { keep?: number, over?: number, text?: string }
---@return r1.Context
function Context:drop_tool_results(options) end

---Shows beginning and end of old tool results.
---@param options? { keep?: number, over?: number, head?: number, tail?: number }
---@return r1.Context
function Context:shorten_tool_results(options) end

---Puts the notes of a scratchpad that are most like a query into view.
---@param options { notes: any[], query?: string, most?: number, over?: number, title?: string, at?: "first"|"last" }
---@return r1.Context
function Context:recall(options) end

---Has the oldest messages give way to a summary when there are too many tokens. It is written once; steps go on from it.
---@param options { over: number, memory: any, to?: number, title?: string, instruction?: string, model?: string|{ url: string, name: string, key?: r1.Secret, headers?: table<string, any>, timeout?: number|string, retries?: number }, max_new_tokens?: number, train?: boolean, write?: fun(messages: r1.Message[], earlier: string?): string }
---@return r1.Context
function Context:summarize(options) end

---Shows every message as a function gives it back, or not at all where it gives nil.
---@param change fun(message: r1.Message, place: integer, count: integer): r1.Message?
---@return r1.Context
function Context:map(change) end

---How many tokens the policy would see, template and tools included.
---@return number
function Context:tokens() end

---A number, or a boolean, per response token; + - * / ^ are elementwise.
---@class r1.LossTensor
local LossTensor = {}

----x.
---@return r1.LossTensor
function LossTensor:neg() end

---e^x.
---@return r1.LossTensor
function LossTensor:exp() end

---The natural logarithm.
---@return r1.LossTensor
function LossTensor:log() end

---The square root.
---@return r1.LossTensor
function LossTensor:sqrt() end

---|x|.
---@return r1.LossTensor
function LossTensor:abs() end

----1, 0 or 1; no gradient.
---@return r1.LossTensor
function LossTensor:sign() end

---1 / (1 + e^-x).
---@return r1.LossTensor
function LossTensor:sigmoid() end

---The logarithm of the sigmoid, without overflow.
---@return r1.LossTensor
function LossTensor:log_sigmoid() end

---The same numbers without a gradient.
---@return r1.LossTensor
function LossTensor:detach() end

---Kept between the bounds; no gradient outside of them.
---@param low? number
---@param high? number
---@return r1.LossTensor
function LossTensor:clamp(low, high) end

---The smaller of two, token by token.
---@param other r1.LossTensor|number
---@return r1.LossTensor
function LossTensor:min(other) end

---The larger of two, token by token.
---@param other r1.LossTensor|number
---@return r1.LossTensor
function LossTensor:max(other) end

---For each token the sum over the sampled tokens of its sequence.
---@param unit "step"|"trajectory"|"group"
---@return r1.LossTensor
function LossTensor:sum(unit) end

---For each token the mean over the sampled tokens of its sequence.
---@param unit "step"|"trajectory"|"group"
---@return r1.LossTensor
function LossTensor:mean(unit) end

---Whether it is less.
---@param other r1.LossTensor|number
---@return r1.LossTensor
function LossTensor:lt(other) end

---Whether it is less or equal.
---@param other r1.LossTensor|number
---@return r1.LossTensor
function LossTensor:le(other) end

---Whether it is greater.
---@param other r1.LossTensor|number
---@return r1.LossTensor
function LossTensor:gt(other) end

---Whether it is greater or equal.
---@param other r1.LossTensor|number
---@return r1.LossTensor
function LossTensor:ge(other) end

---Whether it is equal.
---@param other r1.LossTensor|number
---@return r1.LossTensor
function LossTensor:eq(other) end

---Whether it differs.
---@param other r1.LossTensor|number
---@return r1.LossTensor
function LossTensor:ne(other) end

---Whether both are true.
---@param other r1.LossTensor|number
---@return r1.LossTensor
function LossTensor:logical_and(other) end

---Whether at least one is true.
---@param other r1.LossTensor|number
---@return r1.LossTensor
function LossTensor:logical_or(other) end

---Negation of a boolean tensor.
---@return r1.LossTensor
function LossTensor:logical_not() end

---The value of an environment variable, which scripts do not see.
---@class r1.Secret

---The tokenizer of a model.
---@class r1.Tokenizer
local Tokenizer = {}

---Text as token ids.
---@param text string
---@param options? { add_special_tokens?: boolean }
---@return number[]
function Tokenizer:encode(text, options) end

---Token ids as text.
---@param ids number[]
---@param options? { skip_special_tokens?: boolean }
---@return string
function Tokenizer:decode(ids, options) end

---The id of a token.
---@param token string
---@return number?
function Tokenizer:id(token) end

---How many tokens there are.
---@return number
function Tokenizer:vocab_size() end

---A chat template.
---@class r1.Template
local Template = {}

---A conversation as text. With a tokenizer it is what :encode encodes, the prompt of a rollout; a template without one prints what it prints.
---@param messages r1.Message[]|string Or their JSON
---@param options? { tools?: (table<string, any>)[]|string, add_generation_prompt?: boolean } Names it does not know are the template's own switches, such as enable_thinking
---@return string
function Template:render(messages, options) end

---A conversation as token ids, those of :render's text; needs the template of a model with a tokenizer.
---@param messages r1.Message[]|string As for :render
---@param options? { tools?: (table<string, any>)[]|string, add_generation_prompt?: boolean } As for :render
---@return number[] # Token ids
---@return boolean[] # True on what the assistant wrote
function Template:encode(messages, options) end

---The ids that end a reply.
---@return number[]
function Template:stop_ids() end

---The name of its tool-call format.
---@return string
function Template:format() end

---An open model.
---@class r1.Model
local Model = {}

---Samples a reply.
---@param prompt number[]|string|r1.Message[] Token ids, text as it is, or messages
---@param sampling? { temperature?: number, top_k?: number, top_p?: number, min_p?: number, repetition_penalty?: number, logit_bias?: table<number, number>, top_logprobs?: number, max_new_tokens?: number, max_seconds?: number, stop?: string[], stop_ids?: number[], seed?: number, ignore_eos?: boolean, tools?: (table<string, any>)[] } The defaults are the model's generation_config.json
---@return { text?: string, token_ids: number[], logprobs: number[], finish_reason: string, top_logprobs: any }
function Model:generate(prompt, sampling) end

---The log-probability of ids.
---@param ids number[]
---@param options? { top?: number, temperature?: number }
---@return number[] # Of every id but the first, given those before it
---@return (({ id: number, logprob: number })[])[] # With `top`: the likeliest at each place
function Model:logprobs(ids, options) end

---The logits behind ids; for small inputs.
---@param ids number[]
---@return (number[])[] # A list for each id
function Model:logits(ids) end

---The model's config.json.
---@return table<string, any>
function Model:config() end

---A trajectory that is played by hand.
---@class r1.Attempt
local Attempt = {}

---What the policy is shown.
---@return any # Messages, a text, or { token_ids = … }
function Attempt:observe() end

---Replies for the policy.
---@param reply string|{ text?: string, tool_calls?: r1.ToolCall[], finish_reason?: string }
---@return { reward: number, done: boolean, status?: string, text: string, tools: r1.ToolUse[] }
function Attempt:step(reply) end

---Replies with one call of a tool.
---@param name string
---@param arguments? table<string, any>
---@return table<string, any> # As of step
function Attempt:call(name, arguments) end

---Has a model reply.
---@param model r1.Model The one that the script was opened with
---@param sampling? table<string, any>
---@return table<string, any> # As of step
function Attempt:sample(model, sampling) end

---A copy of the state.
---@return any
function Attempt:state() end

---The whole reward if it ended here.
---@return number
---@return table<string, number> # Its parts
function Attempt:reward() end

---A copy that goes its own way.
---@return r1.Attempt
function Attempt:fork() end

---What it came to; it can be gone on with.
---@return r1.Trajectory
function Attempt:finish() end

---A value that a test looks at.
---@class r1.Expectation
local Expectation = {}

---It equals another value, tables entry by entry.
---@param other any
---@return r1.Expectation
function Expectation:equals(other) end

---It does not.
---@param other any
---@return r1.Expectation
function Expectation:differs(other) end

---It is a number near another.
---@param other number
---@param tolerance? number 1e-9
---@return r1.Expectation
function Expectation:near(other, tolerance) end

---It is a text with this in it, or a list with an equal item.
---@param part any
---@return r1.Expectation
function Expectation:contains(part) end

---It is a text that a pattern fits.
---@param pattern string Of Lua
---@return r1.Expectation
function Expectation:matches(pattern) end

---It is a function that raises an error, with this in its message.
---@param text? string
---@return r1.Expectation
function Expectation:raises(text) end

---A row of a dataset, with all its columns.
---@class r1.Task
---@field [any] any

---Settings of r1.env that are data; its functions stay in the VM.
---@class r1.EnvSettings
---@field format? string Tool-call format; auto is the format of the model's chat template (default "auto", auto, hermes, qwen3_coder, llama3, pythonic, mistral, deepseek_v3, deepseek_v31, harmony, retool, tir, answer, or one of r1.format).
---@field max_steps? number Steps after which a trajectory is truncated (default 8, steps, ≥ 1).
---@field max_tokens? number Response tokens after which a trajectory is truncated; 0 is no limit (default 0, tokens, ≥ 0).
---@field on_overflow? "end"|"fail" Handling of a trajectory whose context is full: end truncates and scores it, fail makes it a failure (default "end", end, fail).
---@field max_calls? number Most tool calls executed per response; 0 is no limit (default 0, calls, ≥ 0).
---@field excess_calls? "refuse"|"refuse_all"|"ignore" Handling of a response with more calls: the others are refused, all are refused, or the others are ignored (default "refuse", refuse, refuse_all, ignore).
---@field tool_choice? "auto"|"first"|"required" Responses that must call a tool: none, the first of a trajectory, or all. A missing call counts as malformed (default "auto", auto, first, required).
---@field max_result_tokens? number Maximum length of a tool result; a longer result is truncated. 0 is no limit (default 0, tokens, ≥ 0).
---@field call_rewards? r1.CallRewards Process rewards of tool calls by outcome.
---@field system? string System prompt of the default reset; empty for none.
---@field reply_prefix? string Text that every response starts with, such as `<think>`; it is part of the prompt, neither sampled nor trained on.

---Process rewards of tool calls; a reward that the tool returns takes precedence.
---@class r1.CallRewards
---@field ok? number Process reward of a call that succeeded (default 0).
---@field failed? number Process reward of a call that failed or timed out (default 0).
---@field refused? number Process reward of a call of an unknown tool, with wrong arguments, or beyond max_calls (default 0).
---@field malformed? number Process reward of a call that could not be parsed (default 0).

---The model, its type and device.
---@class r1.PolicySettings
---@field model? string The model: a directory in Hugging Face layout, a Hub id (ORG/NAME or ORG/NAME@REVISION), or r1-nano (default "r1-nano").
---@field base? string Base model of an adapter (policy.model, or a resumed run's checkpoint); if empty, the one in adapter_config.json.
---@field dtype? "auto"|"f32"|"bf16" Type of the weights in memory; auto is f32 on the CPU and bf16 on CUDA (default "auto").
---@field device? "auto"|"cpu"|"cuda" Device of the model; auto is CUDA if available (default "auto").
---@field max_context? number Longest prompt plus response; 0 is the model's limit (default 0, tokens, ≥ 0).
---@field cuda_graphs? boolean Records decode steps as CUDA graphs: one launch per step, at the cost of some memory. CUDA only (default true).
---@field template_kwargs? table<string, any> Variables of the chat template, such as enable_thinking (chat_template_kwargs in transformers).
---@field init? r1.InitModel Initialises a new Qwen2 model and trains a tokenizer on the recipe's text instead of loading them (r1 sft).
---@field lora? r1.LoraSettings Trains a low-rank adapter (LoRA, arXiv:2106.09685); the base weights are frozen.

---A Qwen2 model with fresh weights and a tokenizer trained on the recipe's own text.
---@class r1.InitModel
---@field hidden_size? number Width of the hidden states (default 192, ≥ 1).
---@field intermediate_size? number Width of the MLP (default 512, ≥ 1).
---@field num_hidden_layers? number Number of layers (default 4, ≥ 1).
---@field num_attention_heads? number Query heads per layer (default 4, ≥ 1).
---@field num_key_value_heads? number Key-value heads per layer; divides the number of query heads (default 2, ≥ 1).
---@field max_position_embeddings? number Longest prompt plus response (default 1024, tokens, ≥ 1).
---@field rope_theta? number Base of the rotary embedding (default 10000, > 0).
---@field vocab_size? number Size of the byte-level BPE vocabulary, special tokens included (default 512, tokens, ≥ 256 + special tokens).
---@field special_tokens? string[] Special tokens in addition to ChatML's, one id each.
---@field tokenizer_rows? number Rows of data.train that the tokenizer is trained on (default 4000, rows, ≥ 1).

---A new low-rank adapter (LoRA, arXiv:2106.09685), saved in PEFT's format. Training of an existing adapter (policy.model is its directory) does not need this.
---@class r1.LoraSettings
---@field rank? number Rank of the adapter (default 16, ≥ 1).
---@field alpha? number The adapter is scaled by alpha / rank, or by alpha / sqrt(rank) if rank_stabilized (default 32, > 0).
---@field rank_stabilized? boolean Scales by the square root of the rank (rsLoRA, arXiv:2312.03732) (default false).
---@field targets? string[] Projections with an adapter, by the end of their names (default ["q_proj","k_proj","v_proj","o_proj","gate_proj","up_proj","down_proj"]).

---How to sample. Defaults are the plain distribution: temperature 1, nothing cut.
---@class r1.Sampling
---@field temperature? number Divides the logits; 0 is greedy (r1 infer and r1 lua) (default 1, > 0 to train).
---@field top_k? number Samples among the k most likely tokens; 0 is off (default 0, tokens, ≥ 0).
---@field top_p? number Samples among the most likely tokens of this total probability; 1 is off (default 1, 0 < p ≤ 1).
---@field min_p? number Drops tokens less likely than this share of the most likely one (arXiv:2407.01082); 0 is off (default 0, 0 to 1).
---@field repetition_penalty? number Divides positive and multiplies negative logits of tokens that occurred before (arXiv:1909.05858); 1 is off. Refused in training (default 1, > 0).
---@field logit_bias? table<number, number> Added to the logits, by token id. Refused in training.
---@field top_logprobs? number Number of most likely tokens reported at each position (default 0, tokens, ≥ 0).
---@field max_new_tokens? number Maximum number of response tokens per step (default 256, tokens, ≥ 1).
---@field max_seconds? number|string Maximum time of one response, including its time in the queue; 0 is no limit (default 0, seconds, ≥ 0).
---@field stop? string[] Strings that end a response; the response includes them.

---How trajectories are run.
---@class r1.RolloutSettings
---@field concurrency? number Trajectories in flight at once (default 128, trajectories, ≥ 1).
---@field workers? number Threads that run the script; 0 is one per four cores (default 0, threads, ≥ 0).
---@field retries? number Maximum number of retries of a failed trajectory, each in a fresh environment (default 1, ≥ 0).
---@field max_failure_rate? number Fraction of failed trajectories in a step above which the run ends (default 0.5, 0 to 1).

---Settings of policy optimisation. The defaults are those of GRPO; [Algorithm::settings] has those of other algorithms.
---@class r1.Learner
---@field steps? number Training steps: rollouts, each followed by updates (default 100, steps, ≥ 0).
---@field group_size? number Trajectories per task; 1 for ppo, remax and reinforce_pp (default 8, trajectories, ≥ 1).
---@field groups_per_step? number Tasks per step; 128 for ppo, remax and reinforce_pp (default 16, tasks, ≥ 1).
---@field branch? r1.Branch Tree sampling: some trajectories of a group continue from states of others.
---@field estimator? string|table<string, any> Advantage estimator: a name, or a table of `name` and its options. custom is the recipe's function `advantage` (default "grpo", one of docs/training.md, or custom).
---@field shaping? table<string, any> Reward shaping before the estimator.
---@field loss? string|table<string, any> Policy loss: a name, or a table of `name` and its options. custom is the recipe's function `loss` (default "ppo", one of docs/training.md, or custom).
---@field clip? number[] { low, high }: clip range of the ratio; the default of the loss if not set (0 < low ≤ 1, high > 0).
---@field loss_agg? "token-mean"|"seq-mean-token-sum"|"seq-mean-token-mean"|"seq-mean-token-sum-norm" Aggregation of token losses; the default of the loss if not set.
---@field entropy? number Coefficient of the entropy bonus (default 0).
---@field kl? r1.Kl KL penalty to the reference policy.
---@field importance? table<string, any> Importance weights for the mismatch between sampler and learner; requires recompute_above.
---@field rejection? table<string, any> Rejects sequences that are too unlikely under the learner; requires recompute_above.
---@field lr? number Learning rate of AdamW (default 1e-6, ≥ 0).
---@field warmup? number Steps over which the learning rate rises linearly from 0 (default 0, steps, ≥ 0).
---@field decay? "constant"|"linear"|"cosine" The learning rate after the warm-up (default "constant").
---@field final_lr? number Learning rate at the end of a linear or cosine decay, as a fraction of lr (default 0, ≥ 0).
---@field weight_decay? number Decoupled weight decay of AdamW (default 0, ≥ 0).
---@field max_grad_norm? number Global gradient norm above which gradients are scaled down; 0 is off (default 1, ≥ 0).
---@field groups? r1.WeightGroup[] Parameter groups { weights, lr, weight_decay } by name (* matches anything); lr is a factor, the first match applies.
---@field freeze? string[] Frozen weights, by name (* matches anything).
---@field ema? number Decay of the exponential moving average of the weights, saved as a model in ema/; 0 is off (default 0, 0 ≤ x < 1).
---@field epochs? number Passes over the trajectories of a step (default 1, ≥ 1).
---@field mini_batches? number Optimiser steps per pass; mini-batches hold whole trajectories (default 1, ≥ 1).
---@field mini_batch_by? "trajectory"|"step" Content of a mini-batch: whole trajectories, or all steps with the same index, last index first (SeeUPO, arXiv:2602.06554) (default "trajectory").
---@field step_ratio_clip? number With mini_batch_by = step: clip range of the ratio of later steps, a factor on the advantages of earlier steps (default 0.2, 0 ≤ x < 1).
---@field tokens_per_batch? number Maximum number of tokens per micro-batch: memory against speed; results are equal up to rounding (default 4096, tokens, ≥ 1).
---@field gradient_checkpointing? boolean Keeps only the inputs of the layers and recomputes activations in the backward pass: less memory, more time (default false).
---@field routing_replay? "off"|"rollout" Mixture-of-experts models: experts that the learner uses for sampled tokens, those of its router, or those recorded during sampling (R3, arXiv:2510.11370) (default "off").
---@field filter? r1.Filter Which groups are trained on.
---@field critic? r1.CriticSettings The value model of algorithms with a critic.
---@field on_nan? "stop"|"skip" Handling of a NaN or infinite advantage, loss or gradient: stop ends the run with exit code 9, skip omits the optimiser step, reports and counts it. A NaN reward is a failure of its trajectory (default "stop").
---@field max_mismatch? number Stops the run when log-probabilities of sampler and learner differ by more; 0 is off (default 0, nats, ≥ 0).
---@field recompute_above? number Recomputes the behaviour log-probabilities with the learner when they differ by more; 0 is off (default 0, nats, ≥ 0).

---Tree sampling: some trajectories of a group start at the task, the others continue from intermediate states of those.
---@class r1.Branch
---@field roots? number Tree sampling: trajectories of a group that start at the task; the others continue from their states. 0 is off (default 0, trajectories, 0 to group_size).
---@field at? "random"|"entropy"|"first_tool"|number[] States to branch from: any, those with the least certain responses, the one after the first tool call, or those after these numbers of steps (default "random").
---@field width? number Branches per state (default 1, trajectories, ≥ 1).
---@field rounds? number Rounds of branching; branches of one round can be branched from in the next (default 1, ≥ 1).

---KL penalty to the reference policy: the policy at the start of the run, or the base model of the adapter.
---@class r1.Kl
---@field coef? number Coefficient of the KL penalty to the reference policy (the policy at the start of the run); 0 is off (default 0, ≥ 0).
---@field kind? "k1"|"abs"|"k2"|"k3" Estimator of the KL divergence (default "k3").
---@field straight_through? boolean Uses the gradient of k2 for every kind (default false).
---@field place? "loss"|"reward" The KL penalty is a term of the loss, or is subtracted from the reward of each token (default "loss").
---@field target? number Target KL of an adaptive coefficient; 0 is a fixed coefficient (default 0, nats per token, ≥ 0).
---@field horizon? number Trajectories over which the coefficient adapts (default 10000, trajectories, > 0).

---Selection of the groups that are trained on.
---@class r1.Filter
---@field uniform? boolean Replaces groups with equal rewards by new groups in the same step (dynamic sampling, DAPO, arXiv:2503.14476) (default false).
---@field refills? number Maximum number of such replacement rounds per step (default 4, ≥ 0).
---@field keep? number Fraction of groups kept: those with the largest standard deviation of rewards (StarPO-S, arXiv:2504.20073) (default 1, 0 < x ≤ 1).

---The value model of PPO.
---@class r1.CriticSettings
---@field shared? boolean The critic is a value head on the policy's hidden states instead of a separate model (default false).
---@field lr? number Learning rate of the critic (default 1e-5, ≥ 0).
---@field warmup? number Initial steps that train only the critic (default 0, steps, ≥ 0).
---@field clip? number Clip range of the value change per update; 0 is off (default 0.5, ≥ 0).
---@field weight? number Weight of the value loss with a shared critic (default 0.5, ≥ 0).
---@field privileged? string Text prepended to the critic's rows only, with {column} for columns of the dataset row; empty is off. The recipe's function privileged returns a text per step.
---@field privileged_tokens? number Maximum number of tokens of that text; a longer text ends the run (default 256, tokens, ≥ 1).

---A parameter group: the weights that match a pattern, and their settings.
---@class r1.WeightGroup
---@field weights? string Name pattern, `*` matches anything; all weights by default (default "*").
---@field weight_decay? number Replaces `trainer.weight_decay`, also for norm gains and biases.
---@field lr? number Factor on the learning rate (default 1).

---Supervised fine-tuning on the assistant tokens of messages.
---@class r1.Sft
---@field steps? number Optimiser steps (default 1000, steps, ≥ 0).
---@field batch_size? number Conversations per optimiser step (default 64, conversations, ≥ 1).
---@field lr? number Learning rate of AdamW after the warm-up (default 1e-5, ≥ 0).
---@field warmup? number Steps over which the learning rate rises linearly from 0 (default 20, steps, ≥ 0).
---@field final_lr? number Learning rate at the end of the cosine decay, as a fraction of lr (default 0.1, ≥ 0).
---@field betas? number[] Decay rates of AdamW's first and second moments (default [0.9,0.95], 0 ≤ x < 1).
---@field weight_decay? number Decoupled weight decay of AdamW (default 0, ≥ 0).
---@field max_grad_norm? number Global gradient norm above which gradients are scaled down; 0 is off (default 1, ≥ 0).
---@field tokens_per_batch? number Maximum number of tokens per forward pass (default 8192, tokens, ≥ 1).
---@field max_length? number Maximum length of a conversation; 0 is the model's context (default 0, tokens, ≥ 0).
---@field overlong? "error"|"skip"|"truncate" Handling of longer conversations: they end the run, are skipped, or are truncated (default "error").
---@field patience? number Consecutive evaluations of data.eval without a lower loss after which the run stops; 0 disables early stopping (default 0, evaluations, ≥ 0).
---@field gradient_checkpointing? boolean Keeps only the inputs of the layers and recomputes activations in the backward pass: less memory, more time (default false).

---Evaluation on data.eval.
---@class r1.EvalSettings
---@field every? number Training steps between evaluations; 0 evaluates before and after only (default 0, steps, ≥ 0).
---@field limit? number Rows evaluated of each dataset of data.eval; 0 is all (default 128, rows, ≥ 0).
---@field before? boolean Evaluates before the first step (default true).
---@field after? boolean Evaluates after the last step (default true).
---@field temperature? number Sampling temperature of evaluations; 0 is greedy (default 0, ≥ 0).
---@field top_p? number As sampling.top_p, which is the default (0 to 1).
---@field top_k? number As sampling.top_k, which is the default (tokens, ≥ 0).
---@field min_p? number As sampling.min_p, which is the default (0 to 1).
---@field max_new_tokens? number Longest response; the default is sampling.max_new_tokens (tokens, ≥ 1).
---@field max_steps? number Longest trajectory; the default is env.max_steps (steps, ≥ 1).
---@field env? string Environment of all evaluation tasks: a name in envs, or in the recipe an environment; the rows' own if empty.
---@field accuracy? string Reward part that is reported as accuracy; if empty, a task is solved when its reward is above 0.
---@field store? number Trajectories stored of each evaluation; 0 stores none (default 128, trajectories, ≥ 0).

---Checkpoints and the exported model.
---@class r1.CheckpointSettings
---@field every? number Training steps between checkpoints; 0 writes only the last (default 20, steps, ≥ 0).
---@field keep? number Number of checkpoints kept, newest first; 0 keeps all (default 2, checkpoints, ≥ 0).
---@field export? "auto"|"f32"|"bf16" Type of the weights written by --out; auto is the type of the initial model (default "auto").
---@field merge? boolean --out merges the adapter into the weights instead of writing the adapter alone (default false).

---Limits of one call into the script.
---@class r1.Limits
---@field cpu? number|string CPU time of one call into the script (default 1, seconds, > 0).
---@field wait? number|string Maximum time that one call waits for tools and other hosts (default 60, seconds, > 0).
---@field memory? number|string Memory of one script worker (default 512, MiB, > 0).
---@field trajectory? number|string Memory of one trajectory: its state, plus what one call adds to the worker's memory (default 64, MiB, > 0).
---@field text? number|string Size of one observation, and of one argument of a host function (default 4, MiB, > 0).
---@field result? number|string Size of one tool result; a longer result is truncated with a notice (default 256, KiB, ≥ 0).
---@field log? number Most lines logged by one call; further lines are dropped (default 100, lines, ≥ 0).

---What the host gives to scripts.
r1 = {}

---The version of r1.
---@type string
r1.version = nil

---What a script returns: what to train, on what, how.
---@param recipe { name?: string, seed?: number, env?: r1.Env, envs?: table<string, r1.Env>, flow?: fun(task: r1.Task, policy: r1.Policy, kwargs: table<string, any>): any, context?: fun(state: any, budget: r1.Budget): r1.Context|r1.Message[]|string|{ token_ids: number[] }, reward?: fun(state: any, outcome: r1.Outcome): number|table<string, any>, privileged?: fun(state: any, task: any): string, advantage?: fun(group: r1.GroupMember[], failed: number): any[], (any[])?, loss?: fun(b: r1.LossBatch, options: table<string, any>): any, policy?: r1.PolicySettings, cold_start?: r1.Recipe|table<string, any>, data?: { train?: r1.Dataset|string|table|r1.Task[], eval?: r1.Dataset|string|table|r1.Task[], max_prompt_tokens?: number, overlong_prompts?: string, check_rows?: number }, sampling?: r1.Sampling, rollout?: r1.RolloutSettings, trainer?: r1.Trainer, eval?: r1.EvalSettings, checkpoint?: r1.CheckpointSettings, limits?: r1.Limits, needs?: string[] }
---@return r1.Recipe
function r1.recipe(recipe) end

---An environment. Its functions hold no state: the host keeps it, copies it, takes it back.
---@param env { tools?: r1.Tool[], format?: string|r1.Format, max_steps?: number, max_tokens?: number, on_overflow?: string, max_calls?: number, excess_calls?: string, tool_choice?: string, max_result_tokens?: number, call_rewards?: { ok?: number, failed?: number, refused?: number, malformed?: number }, system?: string, reply_prefix?: string, reset?: fun(task: r1.Task, kwargs: table<string, any>): any, step?: fun(state: any, action: r1.Action): r1.StepResult, flow?: fun(task: r1.Task, policy: r1.Policy, kwargs: table<string, any>): any, context?: fun(state: any, budget: r1.Budget): r1.Context|r1.Message[]|string|{ token_ids: number[] }, reward?: fun(state: any, outcome: r1.Outcome): number|table<string, any> }
---@return r1.Env
function r1.env(env) end

---A tool-call format of the recipe's own, for env.format. Its functions must depend on their arguments alone: each thread calls its own copy.
---@param format { name?: string, parse: fun(text: string, tools: (table<string, any>)[]): (r1.FormatCall[])?, string?, write?: fun(calls: r1.FormatCall[]): string, result?: fun(results: r1.FormatResult[]): string, schema?: fun(tools: (table<string, any>)[]): string, starts?: string[], stop?: string[], same_turn?: boolean, thinking?: boolean }
---@return r1.Format
function r1.format(format) end

---A tool written in Lua. Arguments are checked before it is called; what it gives as failure becomes an observation.
---@param tool { name: string, description?: string, parameters?: table<string, any>, timeout?: number|string, retries?: number|{ times: number, backoff?: number|string }, cache?: boolean|string, concurrency?: number, max_result_tokens?: number, rewards?: { ok?: number, failed?: number, refused?: number }, run: fun(arguments: table<string, any>, call: { state: any, kwargs?: table<string, any> }): any, any, any, any }
---@return r1.Tool
function r1.tool(tool) end

r1.tools = {}

---A Python interpreter in a sandbox: no network, no files, no other processes.
---@param options? { name?: string, description?: string, timeout?: number|string, memory?: number|string, disk?: number|string, session?: boolean, site_packages?: boolean, preload?: string[], interpreter?: string, pool?: number, output_bytes?: number, cache?: boolean|string, max_result_tokens?: number, rewards?: { ok?: number, failed?: number, refused?: number }, traceback?: string, session_idle?: number, max_sessions?: number, namespaces?: boolean }
---@return r1.Tool
function r1.tools.python(options) end

---An embedded interpreter that needs nothing installed.
---@param options? { name?: string, description?: string, timeout?: number|string, operations?: number, call_depth?: number, expression_depth?: number, string_bytes?: number, array_length?: number, map_length?: number, output_bytes?: number, cache?: boolean|string, max_result_tokens?: number, rewards?: { ok?: number, failed?: number, refused?: number } }
---@return r1.Tool
function r1.tools.rhai(options) end

---Carries out the calls of a reply, all at the same time; the trajectory waits. What the policy did wrong (no such tool, wrong arguments, text that is no call) comes back as a result with ok = false.
---@param calls r1.ToolCall[] Those of action.tool_calls
---@param options? { prelude?: string, state?: any }
---@return r1.ToolResult[] # One a call, in their order
function r1.call_tools(calls, options) end

---A message of the user.
---@param content string|r1.Part[]
---@return r1.Message
function r1.user(content) end

---A system message.
---@param content string|r1.Part[]
---@return r1.Message
function r1.system(content) end

---A reply of the policy as a message.
---@param action r1.Action|string|r1.Part[] The action itself keeps its exact text
---@return r1.Message
function r1.assistant(action) end

---What a tool answered, as a message. It is never trained on.
---@param result r1.ToolResult|string
---@return r1.Message
function r1.observation(result) end

---Appends to a list.
---@param list any[]
---@param item any
---@return any[] # The list
function r1.push(list, item) end

---Writes a line to the run's log, with the place that wrote it; print does the same in a recipe. The first lines of a step are shown on the terminal, all are in `log.jsonl` of the run directory with step, trajectory and function.
---@param ... any
function r1.log(...) end

r1.data = {}

---Rows of a file with one JSON object a line, or one list of them. A plain path does the same by its ending.
---@param path string|{ path: string|string[], columns?: table<string, string>, name?: string, weight?: number, env?: string } A file, or its path and columns = { mine = "theirs" }; name, weight and env among other datasets
---@return r1.Dataset
function r1.data.jsonl(path) end

---Rows of a CSV or TSV file; the first line names the columns, cells are text.
---@param path string|{ path: string|string[], columns?: table<string, string>, name?: string, weight?: number, env?: string }
---@return r1.Dataset
function r1.data.csv(path) end

---Rows of a Parquet file. Those of verl work as they are.
---@param path string|{ path: string|string[], columns?: table<string, string>, name?: string, weight?: number, env?: string }
---@return r1.Dataset
function r1.data.parquet(path) end

---Rows of a dataset of the Hugging Face hub, fetched into the cache that Python uses. The options may also follow as r1.data.hf "ORG/NAME" { … }.
---@param name string ORG/NAME or ORG/NAME@REVISION
---@param options? { split?: string, subset?: string, file?: string, columns?: table<string, string>, name?: string, weight?: number, env?: string }
---@return r1.Dataset
function r1.data.hf(name, options) end

---Rows made by a function.
---@param rows { count: number, seed?: number, name?: string, weight?: number, env?: string, row: fun(index: integer): r1.Task }
---@return r1.Dataset
function r1.data.generate(rows) end

---A file of data that is read once per process, at the top of the script, and shared by all workers: a corpus, a dictionary. corpus[i] is row i, frozen; #corpus their number; `for i, row in corpus do` goes through them; corpus.path and corpus.hash (SHA-256) tell the file. Runs record the hash.
---@param file string|{ path: string, format?: string, columns?: table<string, string>, max_size?: number|string } The path, relative to the script's directory; format by its name unless said: jsonl, json, csv, tsv, parquet, arrow, text (a row { text = … } for each line); columns = { mine = "theirs" }; max_size in MiB or as "1GiB" (256MiB)
---@return r1.Resource
function r1.resource(file) end

---A view of a conversation: its methods change what is shown, never the messages themselves, and give it back. A context function returns it. Without further ado it keeps the messages before the first reply, and the last.
---@param messages r1.Message[]
---@return r1.Context
function r1.context(messages) end

---Has the policy, or a model by name, write a text: a summary, a judgement. Only this trajectory waits; the text is recorded for replays.
---@param prompt r1.Message[]|string Text is one message of the user
---@param options? { model?: string|{ url: string, name: string, key?: r1.Secret, headers?: table<string, any>, timeout?: number|string, retries?: number }, max_new_tokens?: number, temperature?: number, top_k?: number, top_p?: number, min_p?: number, stop?: string|string[], train?: boolean }
---@return string? # Nil if the prompt leaves no room
---@return { finish_reason: string, tokens: number }|string # Facts, or why there is none
function r1.generate(prompt, options) end

---How likely a text is as the reply to a prompt: the log-probability of each of its tokens. Only this trajectory waits; the numbers are recorded for replays.
---@param options { model?: string, prompt: r1.Message[]|string, text: string, temperature?: number }
---@return ({ logprobs: number[], sum: number, mean: number, tokens: number })? # Nil if the text leaves no room
---@return string? # Why there is none
function r1.logprobs(options) end

---Group-relative policy optimisation.
---@param settings r1.Learner docs/training.md
---@return r1.Trainer
function r1.grpo(settings) end

---Policy optimisation with a critic.
---@param settings r1.Learner
---@return r1.Trainer
function r1.ppo(settings) end

---Any algorithm by its name.
---@param settings { algorithm: string, [string]: any } The algorithm by name, and its settings
---@return r1.Trainer
function r1.trainer(settings) end

---Supervised fine-tuning on conversations: rows with `messages`, and other formats (docs/sft.md).
---@param settings r1.Sft
---@return r1.Trainer
function r1.sft(settings) end

r1.rl = {}

---The estimators of training over plain tables, in f64.
---@param name string An estimator: grpo, rloo, gae, gigpo …
---@param rows (table<string, any>)[] Steps: group, trajectory, step, mask, rewards, values, logp, shared …
---@param options? table<string, any> Of the estimator
---@return { advantages: (number[])[], counted: boolean[], returns?: (number[])[], targets?: (boolean[])[] }
function r1.rl.advantages(name, rows, options) end

---A loss of training and its gradient with respect to `logp`.
---@param loss string|(fun(b: r1.LossBatch, options: table<string, any>): any) A name: ppo, gspo, cispo …; or a function
---@param rows (table<string, any>)[] Steps with logp, logp_old and advantages
---@param options? table<string, any> Of the loss
---@return { loss: number, gradient: (number[])[], metrics: table<string, number> }
function r1.rl.loss(loss, rows, options) end

---The critic's loss, half the squared error clipped as in PPO, as a mean over all entries, and its gradient with respect to `values`.
---@param values number[] Of the critic now
---@param values_old number[] Before the update
---@param returns number[] Its targets
---@param options? { clip?: number } How far a value may move from the old one; off without it
---@return { loss: number, gradient: number[], clip_frac: number }
function r1.rl.value_loss(values, values_old, returns, options) end

---The entropy of each distribution, in nats.
---@param logits (number[])[] A list for each position
---@param temperature? number 1 unless given
---@return number[]
function r1.rl.entropy(logits, temperature) end

---The content of the last \boxed{…}, braces balanced.
---@param text string
---@return string?
function r1.last_boxed(text) end

---The content of the last <answer>…</answer>.
---@param text string
---@return string?
function r1.answer(text) end

---Whether an answer says what the reference says: numbers, algebra, sets, intervals, points, matrices, equations, units, text. Whole numbers, fractions and decimals are compared exactly: 0.333333 is not 1/3. One of two units may be left out; two different ones differ. No answer equals nothing. docs/answers.md has the rules.
---@param answer string|number|nil What is graded: a bare answer, LaTeX or plain text, or a reply that states one
---@param reference string|number|nil The right answer
---@return boolean
function r1.math_equal(answer, reference) end

---Shortens a text and says by how much.
---@param text string
---@param head number Characters of the beginning
---@param tail? number Characters of the end
---@return string
function r1.clip(text, head, tail) end

r1.json = {}

---A value as JSON. Lists are tables with keys 1..n; an empty table is an object, unless it came from JSON as a list. What came from JSON keeps its nulls, long whole numbers, floats such as 3.0 and the order of its keys (docs/luau.md).
---@param value any Plain data
---@return string
function r1.json.encode(value) end

---JSON as a value. Fields that are null are nil; whole numbers above 2^53 are text. The table remembers both for the way out.
---@param text string
---@return any # Nil if it is no JSON
---@return string? # Why not
function r1.json.decode(text) end

---JSON's null in a list, and in a table that a script makes.
---@type any
r1.json.null = nil

r1.re = {}

---The first match of a regular expression, as string.find gives it. Patterns are those of Rust's regex crate: no backreferences and no look-around, and time linear in the text. Places count bytes.
---@param text string
---@param pattern string
---@param from? number Where to begin (1)
---@return number? # First place of the match
---@return number? # Last place
---@return string ... # Its groups
function r1.re.find(text, pattern, from) end

---The groups of the first match.
---@param text string
---@param pattern string
---@param from? number
---@return string? # The first group, or all of the match where there are none
---@return string ...
function r1.re.match(text, pattern, from) end

---The first match as a table: groups by number and by name, `text`, `first` and `last`.
---@param text string
---@param pattern string
---@return r1.Match?
function r1.re.captures(text, pattern) end

---All matches as tables.
---@param text string
---@param pattern string
---@param most? number
---@return r1.Match[]
function r1.re.find_all(text, pattern, most) end

---The groups of one match after the other, for loops.
---@param text string
---@param pattern string
---@return fun()
function r1.re.gmatch(text, pattern) end

---Replaces matches.
---@param text string
---@param pattern string
---@param with string|(fun(match: r1.Match): string?) Text with $1, ${name} and $$, or a function of the match; nil leaves it
---@param most? number How many at most
---@return string
---@return number # How many were replaced
function r1.re.replace(text, pattern, with, most) end

---The parts between matches.
---@param text string
---@param pattern string
---@param most? number Parts at most
---@return string[]
function r1.re.split(text, pattern, most) end

---A pattern that matches the text and nothing else.
---@param text string
---@return string
function r1.re.escape(text) end

r1.text = {}

---Texts by likeness to a query (BM25 over words), without an index: for notes and texts that change. r1.text.index answers many queries.
---@param query string
---@param texts string[]
---@return ({ index: integer, score: number })[] # Best first; texts that share no word with the query are left out
function r1.text.rank(query, texts) end

---An index of texts for many searches (BM25 over words). That of a resource is made once per process; make it at the top of the script.
---@param texts string[]|r1.Resource A list of texts, or a resource
---@param options? { column?: string, k1?: number, b?: number }
---@return r1.TextIndex
function r1.text.index(texts, options) end

---Reads a reply as a policy's is read.
---@param format string|r1.Format
---@param text string
---@param options? { tools?: (table<string, any>)[], thinking?: boolean, code_tool?: string }
---@return { content: string, reasoning?: string, calls: r1.ToolCall[], errors: string[] }
function r1.text.parse_tool_calls(format, text, options) end

---The tokenizer of a model. A recipe names a model directory, or one beside its script.
---@param model string A directory; in programs also a hub id or r1-nano, of which no weights are fetched
---@return r1.Tokenizer
function r1.text.tokenizer(model) end

---A chat template. A recipe names a model directory, a file beside its script or, in functions of the env, a file that it declares with "fs:DIR".
---@param from string A model (a directory; in programs also a hub id or r1-nano), a template's file, or the source itself
---@param options? { bos_token?: string, eos_token?: string, format?: string|r1.Format }
---@return r1.Template
function r1.text.template(from, options) end

r1.http = {}

---Asks a host over HTTP. A recipe declares it: needs = { "http:HOST" }, or "http" for all public hosts; private addresses must be named. Only this trajectory waits; the answer is recorded for replays, secrets in headers are not.
---@param url string
---@param options? { headers?: table<string, string|r1.Secret>, query?: table<string, any>, timeout?: number|string, max_bytes?: number, body?: string, json?: any }
---@return r1.HttpAnswer? # Whatever its status
---@return string? # Why there is none
function r1.http.get(url, options) end

---Sends something to a host.
---@param url string
---@param body? string|table A table is sent as JSON
---@param options? { headers?: table<string, string|r1.Secret>, query?: table<string, any>, timeout?: number|string, max_bytes?: number, body?: string, json?: any }
---@return r1.HttpAnswer? # Whatever its status
---@return string? # Why there is none
function r1.http.post(url, body, options) end

---Any request.
---@param request { url: string, method?: string, headers?: table<string, string|r1.Secret>, query?: table<string, any>, body?: string, json?: any, timeout?: number|string, max_bytes?: number }
---@return r1.HttpAnswer? # Whatever its status
---@return string? # Why there is none
function r1.http.request(request) end

r1.process = {}

---Runs a program of this machine in a sandbox: it reads the system's directories and those that the recipe declares with "fs:DIR", writes to a directory of its own that goes with it, and sees no network and no other process. A recipe declares it: needs = { "process:NAME" }.
---@param argv (string|number)[] The program and its arguments; it is looked for in /usr/local/bin, /usr/bin and /bin
---@param options? { input?: string, timeout?: number|string, memory?: number|string, disk?: number|string, output?: number, env?: table<string, string|r1.Secret> }
---@return r1.ProcessResult?
---@return string? # Why it was not started
function r1.process.run(argv, options) end

r1.fs = {}

---The content of a file. A recipe declares its directory: needs = { "fs:DIR" }.
---@param path string From the script's directory; in programs, from the current one
---@return string?
---@return string? # Why not
function r1.fs.read(path) end

---The names in a directory, sorted; those of directories end with a slash.
---@param path string
---@return (string[])?
---@return string? # Why not
function r1.fs.list(path) end

---What is known of a file.
---@param path string
---@return ({ kind: string, size: number })? # `kind` is file or directory
---@return string? # Why not
function r1.fs.stat(path) end

---Writes a file; directories above it are made. A recipe declares it: needs = { "fs:write:DIR" }.
---@param path string
---@param text string
---@param options? { append?: boolean }
---@return boolean? # True
---@return string? # Why not
function r1.fs.write(path, text, options) end

---The value of an environment variable, such as an API key, for headers and queries of r1.http and for `env` of r1.process.run. The script never sees it: the host fills it in when the request is sent, and records, trajectories and errors show "(secret)". A recipe declares it: needs = { "env:NAME" }. Replays do not need it.
---@param name string Of the environment variable
---@return r1.Secret # Joined with text by `..`
function r1.secret(name) end

---The time. It is recorded: a replay sees the time it was.
---@return number # Seconds since 1970
function r1.clock() end

---Waits; other trajectories go on. A replay does not wait.
---@param length number|string Seconds, or "500ms"
function r1.sleep(length) end

---Calls functions side by side, so that what they wait for overlaps. An error is raised when all have come to their end: the first of the list.
---@param functions (fun(): any)[]
---@return any ... # What each of them gives, in their order
function r1.join(functions) end

---Opens a model. A directory without a tokenizer is used by ids.
---@param model string A directory, a hub id or r1-nano
---@param options? { base?: string, device?: string, dtype?: string, max_context?: number, format?: string }
---@return r1.Model
function r1.model(model, options) end

r1.store = {}

---The steps of a run that have trajectories; with `split = "eval"` those after which it was evaluated.
---@param run string A run directory, or the name of one below runs
---@param options? { split?: "train"|"eval" }
---@return number[]
function r1.store.steps(run, options) end

---The trajectories of a step of a run.
---@param run string A run, or a file of trajectories
---@param step? number Of the run; a file is one step
---@param options? { ids?: boolean, record?: boolean, split?: "train"|"eval" }
---@return r1.Trajectory[]
function r1.store.trajectories(run, step, options) end

---Writes trajectories in the layout of a run. Those of a run keep their seed and record, so that they can be replayed.
---@param path string A Parquet file, such as runs/NAME/trajectories/step-000007.parquet
---@param trajectories r1.Trajectory[] Tables as r1.store.trajectories gives them, edited or your own
---@param options? { from?: string, overwrite?: boolean }
function r1.store.write(path, trajectories, options) end

---Opens another script: its rows, and trajectories that are played by hand.
---@param path string From where the program lies, or the current directory
---@param options? { settings?: table<string, any>, model?: r1.Model }
---@return r1.Script
function r1.script(path, options) end

---Trajectories of a script, by a function or a model.
---@param options { script: string|r1.Script, policy: r1.Model|(fun(observation: any, step: number, attempt: r1.Attempt): any), rows?: number[], tasks?: r1.Task[], split?: string, samples?: number, seed?: number, sampling?: table<string, any>, branch?: { step?: number, count?: number }, settings?: table<string, any> }
---@return r1.Trajectory[]
function r1.rollout(options) end

---Opens a run whose loop the program writes: model, data and run directory are those of r1 run. Script workers load a program with a recipe in it again, up to this call.
---@param recipe string|r1.Recipe|table<string, any> A path, or a recipe in the program itself
---@param options? { settings?: table<string, any>, name?: string, runs?: string, resume?: string }
---@return r1.Training # With the fields step, steps, rows, run_dir, settings and critic (whether there is one)
function r1.training(recipe, options) end

---A test of a file that r1 test runs.
---@param name string What holds
---@param body fun()
function test(name, body) end

---What is looked at in a test.
---@param value any
---@param ... any Not looked at
---@return r1.Expectation
function expect(value, ...) end


---@param x number
---@param min number
---@param max number
---@return number
function math.clamp(x, min, max) end

---@param x number
---@return integer
function math.round(x) end

---@param x number
---@return integer
function math.sign(x) end

---@param count integer
---@param value any
---@return table
function table.create(count, value) end

---@param list table
---@param value any
---@param from? integer
---@return integer?
function table.find(list, value, from) end

---@param t table
function table.clear(t) end

---@generic T: table
---@param t T
---@return T
function table.clone(t) end

---@generic T: table
---@param t T
---@return T
function table.freeze(t) end

---@param t table
---@return boolean
function table.isfrozen(t) end

---@param text string
---@param separator? string
---@return string[]
function string.split(text, separator) end
