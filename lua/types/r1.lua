---@meta
-- Types of r1 for lua-language-server. Made by `r1 doc --format luacats`; changes here are lost.

---A trajectory of a group that did not fail, as passed to a function `advantage`.
---@class r1.GroupMember
---@field total number Sum of `rewards`
---@field rewards number[] Reward of each step, after `trainer.shaping`
---@field tokens number[] Number of sampled tokens of each step
---@field status string terminated or truncated
---@field parts table<string, number> Named parts of the reward, unweighted
---@field task any The dataset row
---@field terminated boolean
---@field truncated boolean
---@field fork? { parent?: number, step: number } In a tree: index of the parent in the group, and the number of shared steps
---@field values? number[] The critic's value before each step
---@field next_value? number The critic's bootstrap value after a truncated trajectory
---@field decisions number[] The decision of each step, numbered in the group: trajectories that share a step share it
---@field logp? number Mean log-probability of the sampled tokens, for algorithms that need "logp"
---@field token_rewards? number[] Reward of each sampled token, for algorithms with the level "token"
---@field token_positions? number[] Positions of the sampled tokens in the responses, from 1; tokens of the environment count
---@field token_logp? number[] Log-probability of each sampled token before the update, for algorithms that need "squares"
---@field token_squares? number[] Sum of squared probabilities over the vocabulary at each sampled token

---The argument of a function `advantage`: the list of the trajectories that did not fail (`#group`, `group[1].total`), with these fields.
---@class r1.Group
---@field failed number Number of other trajectories of the task, which failed
---@field greedy? number Return of the greedy rollout, for algorithms that need "greedy"
---@field batch r1.Group[] All groups of the step, this one included
---@field [any] any
local Group = {}

---For algorithms that need "anchors": for each decision the number of the state in which it begins. With a similarity from 0 to 1, similar observations are one state.
---@param similarity? number|boolean
---@return number[]
function Group:states(similarity) end

---Ends the run with an error about a trajectory.
---@param trajectory number
---@param message string
---@param hint? string
function Group:refuse(trajectory, message, hint) end

---A message in the shape of the OpenAI chat API.
---@class r1.Message
---@field role string system, user, assistant or tool
---@field content string|r1.Part[]
---@field reasoning_content? string Thinking of the model before its answer
---@field tool_calls? r1.ToolCall[]
---@field name? string Tool of the result
---@field tool_call_id? string

---A part of a message's content.
---@class r1.Part
---@field type string text, image or video; image_url is an image in the form of OpenAI, video_url a video
---@field text? string
---@field hash? string Hash of an image or video. In a message it may also have `path`, `bytes`, `base64`, `url`, or `rgb` and `width`, as in r1.image; a video `frames` and `fps`
---@field [any] any

---A parsed tool call; a call that could not be parsed has only `error`.
---@class r1.ToolCall
---@field name? string
---@field arguments? table<string, any>
---@field id? string
---@field error? string Error: message, place, hint and frames
---@field error_fields? table<string, any> The same as data: kind, message, place, line, hint, traceback, subject

---A tool call returned by `parse` of r1.format; a call that cannot be parsed has only `error`.
---@class r1.FormatCall
---@field name? string Name of the tool
---@field arguments? table<string, any> Arguments by name; default: none
---@field id? string
---@field error? string Error message for the policy

---A tool result, as passed to `result` of r1.format.
---@class r1.FormatResult
---@field content string
---@field name? string Name of the tool
---@field call_id? string

---The result of a tool call.
---@class r1.ToolResult
---@field name string
---@field content string Text shown to the policy
---@field ok boolean
---@field kind? string bad_arguments, excess, unknown or malformed for a call that did not run
---@field reward number Process reward
---@field call_id? string
---@field files? ({ name: string, size: number, content?: string })[] Files that a program wrote, with keep_files of r1.tools.python; `content` is nil if they are too large to keep
---@field images? r1.Part[] Images for a policy that reads images; r1.observation shows them after the text

---The policy's response of one step.
---@class r1.Action
---@field text string
---@field token_ids number[]
---@field tool_calls r1.ToolCall[]
---@field finish_reason string stop, stop_string, length or deadline

---The result of a step.
---@class r1.StepResult
---@field reward? number
---@field done? boolean The environment ends the task, also after a truncated response
---@field truncated? boolean A limit of the environment ends the task, or the response was truncated
---@field parts? table<string, number> Named parts, which are logged; names must differ from the parts of `reward`

---How a trajectory ended.
---@class r1.Outcome
---@field text string The last response
---@field token_ids number[] The sampled ids of all responses
---@field steps number
---@field calls number Number of tool calls, including those that were not run
---@field terminated boolean The environment ended it
---@field truncated boolean A limit ended it
---@field truncated_by? string max_steps, max_tokens, context_overflow, length, deadline or env

---The sampled tokens of a mini-batch, as passed to a loss: tensors with one number per token.
---@class r1.LossBatch
---@field logp any Log-probabilities under the current weights, with gradient
---@field logp_old any Log-probabilities under the behaviour policy
---@field logp_ref any Log-probabilities under the reference policy, which is loaded if a loss reads them
---@field advantages any
---@field entropy any Entropy of the policy at each token, with gradient
---@field weights any Weights of trainer.importance and trainer.rejection; 1 without them
---@field rewards any The total reward of the token's trajectory
local LossBatch = {}

---The sum over the sampled tokens of the mini-batch, divided by their number.
---@param x r1.LossTensor|number
---@return r1.LossTensor # A scalar of the mini-batch
function LossBatch:token_mean(x) end

---The mean over the tokens of a sequence, then over the sequences of the mini-batch.
---@param x r1.LossTensor|number
---@param unit? "step"|"trajectory"|"group" Default: "trajectory"
---@return r1.LossTensor # A scalar of the mini-batch
function LossBatch:seq_mean(x, unit) end

---Aggregates a loss per token to a scalar, like trainer.loss_agg.
---@param x r1.LossTensor|number
---@param loss_agg string token-mean, seq-mean-token-sum, seq-mean-token-mean or seq-mean-token-sum-norm
---@param unit? "step"|"trajectory"|"group" Unit of a sequence; default: "trajectory"
---@return r1.LossTensor # A scalar of the mini-batch
function LossBatch:aggregate(x, loss_agg, unit) end

---The sum over the sampled tokens of the mini-batch.
---@param x r1.LossTensor|number
---@return r1.LossTensor # A scalar of the mini-batch
function LossBatch:sum(x) end

---For each token the number of sampled tokens of its sequence.
---@param unit "step"|"trajectory"|"group"
---@return r1.LossTensor
function LossBatch:count(unit) end

---x where the condition is true, y elsewhere.
---@param condition r1.LossTensor Booleans
---@param x r1.LossTensor|number
---@param y r1.LossTensor|number
---@return r1.LossTensor
function LossBatch:where(condition, x, y) end

---The product of the differences from the means of the whole mini-batch, for `largest` and `draw` alone.
---@param x r1.LossTensor|number
---@param y r1.LossTensor|number
---@return r1.LossTensor
function LossBatch:covariance(x, y) end

---The tokens with the largest values in the whole mini-batch, at least one. A loss has at most one selection.
---@param x r1.LossTensor|number
---@param share number Share of the tokens, from 0 to 1
---@return r1.LossTensor # Booleans
function LossBatch:largest(x, share) end

---Tokens of the whole mini-batch drawn among those where the condition holds, at least one if there is any. A loss has at most one selection.
---@param condition r1.LossTensor Booleans
---@param share number Share of all tokens, from 0 to 1
---@param seed? number Default: 0
---@return r1.LossTensor # Booleans
function LossBatch:draw(condition, share, seed) end

---Names the ratio of the metrics policy/ratio_min, ratio_max and clip_frac. Without it they are about the ratio of each token.
---@param ratio r1.LossTensor
---@param low? r1.LossTensor|number Clip range below 1, such as 0.2, or booleans of the tokens clipped below
---@param high? r1.LossTensor|number Clip range above 1, or booleans of the tokens clipped above
function LossBatch:ratio_stats(ratio, low, high) end

---Logs the metric loss/NAME: the mean of a tensor over the computed tokens (booleans count as 0 and 1), or a scalar.
---@param name string
---@param x r1.LossTensor
function LossBatch:log(name, x) end

---The policy, as passed to a flow.
---@class r1.Policy
---@field steps number Number of responses so far
---@field state any Plain data for `reward` and tools, with `task` and `messages`
---@field budget r1.Budget Limit of a prompt
local Policy = {}

---Samples a response: one step of the trajectory, with recorded token ids and log-probabilities. When a limit is reached it raises an error, which ends the flow unless it is caught.
---@param shown r1.Context|r1.Message[]|string|{ token_ids: number[] } The prompt. Messages that continue an earlier conversation of the flow keep its sampled token ids
---@param options? { max_new_tokens?: number, stop?: string|string[], tools?: string[] }
---@return r1.Action
function Policy:generate(shown, options) end

---Adds to the reward of a step.
---@param value number
---@param step? number Step, from 1; default: the last
function Policy:reward(value, step) end

---Limit of a context.
---@class r1.Budget
---@field tokens number Maximum prompt tokens

---A match of a regular expression, with its groups by number and name.
---@class r1.Match
---@field text string
---@field first number
---@field last number
---@field [any] any

---An HTTP response.
---@class r1.HttpAnswer
---@field status number
---@field headers table<string, string> By name in lower case
---@field body string
---@field url string URL after redirects

---The result of a program.
---@class r1.ProcessResult
---@field code number Exit code; 128 + signal number if a signal ended the program
---@field out string
---@field err string
---@field timed_out boolean
---@field seconds number

---A stored tool call.
---@class r1.ToolUse
---@field name string
---@field arguments any
---@field kind? string bad_arguments, excess, unknown or malformed for a call that did not run
---@field output string Text shown to the policy
---@field ok boolean
---@field reward number Process reward
---@field seconds number
---@field retries? number Number of retries
---@field cached? boolean The result came from the tool's cache
---@field hidden? boolean The script made it for itself (r1.call_tools with `hidden`)

---A script opened by r1.script.
---@class r1.Script
---@field path string
---@field tools (table<string, any>)[] Tool schemas
---@field format string Tool-call format
local Script = {}

---Number of rows; nil if the recipe has no such split.
---@param split? string train or eval
---@return number?
function Script:rows(split) end

---One row.
---@param row? number Row index, from 0
---@param split? string
---@return r1.Task
function Script:row(row, split) end

---Starts a trajectory.
---@param which? { row?: number, split?: string, task?: r1.Task, seed?: number, generate?: string|string[] }
---@return r1.Attempt
function Script:reset(which) end

---A run with a training loop written in Lua.
---@class r1.Training
---@field step number Number of completed steps
---@field steps number trainer.steps
---@field rows number Number of rows of the training data
---@field run_dir string
---@field settings table<string, any> All settings of the recipe, at the start
local Training = {}

---Samples trajectories with the current weights, in the order of the data. A changed recipe applies from the first call of a step.
---@param options? { groups?: number, samples?: number, rows?: number[], ids?: boolean }
---@return r1.Trajectory[]
function Training:rollout(options) end

---Computes advantages.
---@param trajectories (r1.Trajectory|string)[] Trajectories of `rollout`, or their ids; also of earlier steps
---@param estimator? string|table<string, any> Default: the estimator of the recipe
---@return any[] # For each trajectory a list with the advantages of each step's tokens; nil for a failed trajectory
function Training:advantages(trajectories, estimator) end

---Updates the policy (and critic) on trajectories.
---@param trajectories (r1.Trajectory|string)[] Trajectories of `rollout`, or their ids; also of earlier steps
---@param options? { advantages?: any[], returns?: any[], policy?: boolean, estimator?: string|table<string, any>, loss?: string|table<string, any>|(fun(b: r1.LossBatch, options: any): any), options?: table<string, any>, groups?: number[], lr?: number, epochs?: number, mini_batches?: number } Defaults: the recipe's settings
---@return table<string, number> # Metrics: docs/reference/metrics.md
function Training:update(trajectories, options) end

---Takes a supervised step on conversations; the loss covers the assistant's tokens.
---@param examples ({ messages: r1.Message[], tools?: any[] })[]
---@param options? { lr?: number }
---@return table<string, number> # Metrics
function Training:sft(examples, options) end

---Computes log-probabilities of the sampled tokens.
---@param trajectories (r1.Trajectory|string)[] Trajectories of `rollout`, or their ids; also of earlier steps
---@param options? { model?: string }
---@return ((number[])[])[] # One list per trajectory and step, with one number per sampled token
function Training:logprobs(trajectories, options) end

---Computes the critic's values of the states before the sampled tokens.
---@param trajectories (r1.Trajectory|string)[] Trajectories of `rollout`, or their ids; also of earlier steps
---@return ((number[])[])[] # One list per trajectory and step, with one number per sampled token
---@return number[] # Bootstrap value of each truncated trajectory; nil for the others
function Training:values(trajectories) end

---Copies the current policy to the reference policy, which checkpoints include from then on.
function Training:renew_reference() end

---Evaluates the policy on the recipe's held-out tasks and logs the result.
---@return (table<string, any>)? # accuracy, reward, tasks, parts …; nil without held-out data
function Training:evaluate() end

---Adds metrics to the line of this step in metrics.jsonl.
---@param values table<string, number>
function Training:log(values) end

---Ends the step: writes trajectories and metrics, advances the step counter, and warns as r1 run does.
---@param values? table<string, number> As in Training:log
---@return table<string, number> # Metrics of the step
function Training:next_step(values) end

---Writes a checkpoint from which the run can be resumed.
---@param out? string Directory for the model only
---@return string # Path of the checkpoint
function Training:save(out) end

---A step of a trajectory; token ids and log-probabilities are present after a rollout, and with `ids = true` from r1.store.
---@class r1.Step
---@field text string The response
---@field reward number Includes process rewards; at the last step also the outcome reward
---@field finish_reason string stop, stop_string, length or deadline
---@field terminated boolean
---@field truncated boolean
---@field new_row boolean The prompt does not extend the previous step
---@field tools r1.ToolUse[]
---@field prompt_tokens number
---@field response_tokens number
---@field prompt_ids? number[]
---@field response_ids? number[]
---@field logprobs? number[] Log-probabilities of the response ids under the policy that sampled them
---@field policy_versions? number[] Versions of the weights that they were sampled with, with rollout.async
---@field support? table<string, any> The sampled-from tokens, if top-k, top-p or min-p restricted the distribution
---@field trained? r1.TrainedTokens What the update computed for the sampled tokens, in stored trajectories

---What an update computed for the sampled tokens of a step: lists with an entry per token. A list that was not computed is absent.
---@class r1.TrainedTokens
---@field advantages? number[]
---@field values? number[] Values of the critic before the update
---@field returns? number[] Training targets of the critic; absent entries are NaN
---@field learner_logprobs? number[] Log-probabilities under the learner in the first optimiser step that had the token
---@field reference_logprobs? number[] Log-probabilities under the reference policy
---@field entropies? number[] Entropies of the learner's distribution, nats
---@field loss_mask? boolean[] Whether the token was in the loss: false in the steps that a fork shares with its parent
---@field clipped? boolean[] Whether the loss clipped the token's ratio

---A model behind an OpenAI-compatible server (docs/guide/environments.md).
---@class r1.ModelServer
---@field url string The base URL, to which /chat/completions is appended
---@field name string The server's name of the model
---@field key? r1.Secret Sent as `Authorization: Bearer …`
---@field headers? table<string, any> Further headers; values may be secrets
---@field timeout? number|string Seconds for one answer, or text such as "500ms"; default: 60
---@field retries? number Further attempts if the server is busy or unreachable; default: 3

---A table for SQL: one of `path`, `column` and `data` (docs/guide/tables.md).
---@class r1.TableSource
---@field path? string Path relative to the script's directory
---@field column? string Column of the task
---@field data? any A list of rows, or { header =, rows = }
---@field format? string Format of the file, as in r1.resource
---@field columns? table<string, string> Column name in SQL -> column name in the file
---@field max_size? number|string MiB, or text such as "1GiB"; default: 1GiB
---@field types? table<string, string> Types of columns: integer, real, text or mixed; default: inferred
---@field infer? boolean Columns of text can be numbers; default: true for cells of text
---@field thousands? boolean 1,234.5 is a number; default: false

---A file for programs of r1.tools.python: one of `path`, `text` and `column`.
---@class r1.ProgramFile
---@field path? string Path relative to the script's directory
---@field text? string Its contents
---@field column? string Column of the task; a table becomes CSV
---@field max_size? number|string MiB, or text such as "1GiB"

---A tool of the policy.
---@class r1.Tool
---@field name string
---@field schema table<string, any> Its schema in the OpenAI shape, for `tools` of demonstrations (docs/guide/sft.md)

---A passage that Index:search found.
---@class r1.SearchHit
---@field id string
---@field title string Empty if it has none
---@field text string
---@field score number
---@field rank number From 1, the best
---@field columns table<string, any> The other columns of its row

---A trajectory of r1.store, r1.rollout or Attempt:finish.
---@class r1.Trajectory
---@field id string
---@field split string train or eval: the split of its task
---@field group number
---@field sample number
---@field fork? { parent: string, step: number } The parent trajectory, and the number of shared steps
---@field seed number|string As text if above 2^53
---@field task_index number
---@field task r1.Task
---@field status string
---@field truncated_by? string The limit that truncated it
---@field dropped? boolean `trainer.filter` dropped its group: it was not trained on
---@field retries number Number of retries after a failure
---@field error? string
---@field script_hash string
---@field reward number
---@field outcome_reward number
---@field parts table<string, number> Named parts of the reward, summed over the trajectory
---@field messages r1.Message[]
---@field steps r1.Step[]
---@field record? (table<string, any>)[]
---@field notes? { tags: string[], note: string, quality?: number, exclude: boolean } What people noted about it (`r1 view`); `exclude`: exports leave it out
---@field branch? number Index of the continuation, with `branch` of r1.rollout

---A recipe: the value that a recipe script returns.
---@class r1.Recipe

---An environment.
---@class r1.Env

---An MCP server: stands for the list of its tools.
---@class r1.ToolServer

---A tool-call format.
---@class r1.Format

---Training settings.
---@class r1.Trainer

---A result of r1.algorithm.
---@class r1.Algorithm

---A dataset of tasks.
---@class r1.Dataset

---A data file: a read-only list of rows.
---@class r1.Resource

---An index of texts.
---@class r1.TextIndex
local TextIndex = {}

---Returns the texts most similar to a query, with the scores of r1.text.rank.
---@param query string
---@param k? number Maximum number of results; default: 10
---@return ({ index: number, score: number })[] # Best first; texts without a word of the query are omitted
function TextIndex:search(query, k) end

---Tables for SQL queries.
---@class r1.Tables
local Tables = {}

---Runs a query. Functions with random results are refused.
---@param sql string One SELECT statement
---@param params? any[] Values of its `?` parameters
---@return ({ columns: string[], rows: (any[])[], more: boolean })? # Rows as lists of values; null is r1.json.null. `more`: there are more rows than max_rows. nil if the query fails
---@return string? # Error message
function Tables:query(sql, params) end

---Returns the names, columns and numbers of rows of the tables, as in the description of r1.tools.table.
---@param preview? number Rows of each table that are shown; default: 0
---@return string
function Tables:describe(preview) end

---An index of passages on disk.
---@class r1.Index
local Index = {}

---Returns the passages with the best scores; by default 5. Only the calling trajectory waits. The hits are recorded for replays.
---@param query string|string[] A query, or a list of queries
---@param options? { k?: number, mode?: string, ef?: number, exact?: boolean, rerank?: { model: string, top?: number } }
---@return r1.SearchHit[]|(r1.SearchHit[])[] # The best passages, best first; for a list of queries one list each
function Index:search(query, options) end

---A connection to a server or a program that stays open between requests.
---@class r1.Connection
local Connection = {}

---Sends a message and returns the server's next message. Requests of a trajectory are sent one after the other. Only the calling trajectory waits. The answer is recorded for replays. If no answer comes, the connection is closed, and further requests fail until :close().
---@param message any Plain data, sent as JSON
---@param options? { timeout?: number|string }
---@return any # The answer, decoded from JSON
---@return string? # Error message; the answer is nil
function Connection:request(message, options) end

---Closes the trajectory's connection. The next request opens a new one. A trajectory's connections are closed after it in any case.
function Connection:close() end

---A context policy applied to a conversation.
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

---Drops the oldest messages that are not kept until at most `tokens` tokens are left. A response is dropped together with the user message right before it and the results of its calls.
---@param tokens number
---@return r1.Context
function Context:drop_oldest_until(tokens) end

---Keeps the first messages and the last n turns. A turn is a response with the user message right before it and all messages up to the next turn.
---@param n number
---@return r1.Context
function Context:last_turns(n) end

---Replaces old tool results by a short text; the calls are kept.
---@param options? { keep?: number, over?: number, text?: string }
---@return r1.Context
function Context:drop_tool_results(options) end

---Replaces old images and videos by a short text, such as the screenshots of earlier steps.
---@param options? { keep?: number, over?: number, text?: string }
---@return r1.Context
function Context:drop_images(options) end

---Shortens old tool results to their beginning and end.
---@param options? { keep?: number, over?: number, head?: number, tail?: number }
---@return r1.Context
function Context:shorten_tool_results(options) end

---Inserts the notes most similar to a query.
---@param options { notes: any[], query?: string, most?: number, over?: number, title?: string, at?: "first"|"last" }
---@return r1.Context
function Context:recall(options) end

---Replaces the oldest messages by a summary if there are too many tokens. The summary is written once and reused in later steps.
---@param options { over: number, memory: any, to?: number, title?: string, instruction?: string, model?: string|r1.ModelServer, max_new_tokens?: number, train?: boolean, write?: fun(messages: r1.Message[], earlier: string?): string }
---@return r1.Context
function Context:summarize(options) end

---Replaces every message by the result of a function; nil drops the message.
---@param change fun(message: r1.Message, place: number, count: number): r1.Message?
---@return r1.Context
function Context:map(change) end

---Returns the number of prompt tokens, including template and tools.
---@return number
function Context:tokens() end

---A number or boolean per response token; + - * / ^ are elementwise.
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

---The same values without gradient.
---@return r1.LossTensor
function LossTensor:detach() end

---Clamps to the bounds; no gradient outside of them.
---@param low? number
---@param high? number
---@return r1.LossTensor
function LossTensor:clamp(low, high) end

---Elementwise minimum.
---@param other r1.LossTensor|number
---@return r1.LossTensor
function LossTensor:min(other) end

---Elementwise maximum.
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

---Elementwise <.
---@param other r1.LossTensor|number
---@return r1.LossTensor
function LossTensor:lt(other) end

---Elementwise <=.
---@param other r1.LossTensor|number
---@return r1.LossTensor
function LossTensor:le(other) end

---Elementwise >.
---@param other r1.LossTensor|number
---@return r1.LossTensor
function LossTensor:gt(other) end

---Elementwise >=.
---@param other r1.LossTensor|number
---@return r1.LossTensor
function LossTensor:ge(other) end

---Elementwise ==.
---@param other r1.LossTensor|number
---@return r1.LossTensor
function LossTensor:eq(other) end

---Elementwise ~=.
---@param other r1.LossTensor|number
---@return r1.LossTensor
function LossTensor:ne(other) end

---Elementwise logical and.
---@param other r1.LossTensor|number
---@return r1.LossTensor
function LossTensor:logical_and(other) end

---Elementwise logical or.
---@param other r1.LossTensor|number
---@return r1.LossTensor
function LossTensor:logical_or(other) end

---Elementwise logical not.
---@return r1.LossTensor
function LossTensor:logical_not() end

---A handle to the value of an environment variable, which scripts cannot read.
---@class r1.Secret

---The tokenizer of a model.
---@class r1.Tokenizer
local Tokenizer = {}

---Encodes text as token ids.
---@param text string
---@param options? { add_special_tokens?: boolean }
---@return number[]
function Tokenizer:encode(text, options) end

---Decodes token ids to text.
---@param ids number[]
---@param options? { skip_special_tokens?: boolean }
---@return string
function Tokenizer:decode(ids, options) end

---Returns the id of a token.
---@param token string
---@return number?
function Tokenizer:id(token) end

---Returns the size of the vocabulary.
---@return number
function Tokenizer:vocab_size() end

---A chat template.
---@class r1.Template
local Template = {}

---Renders a conversation as text. With a tokenizer it is the text that :encode encodes, the prompt of a rollout; a template without one returns its plain output.
---@param messages r1.Message[]|string Or their JSON
---@param options? { tools?: (table<string, any>)[]|string, add_generation_prompt?: boolean } Other names are variables of the template, such as enable_thinking
---@return string
function Template:render(messages, options) end

---Encodes a conversation as token ids, as in training: each reply apart from the text before it, as it is sampled. They decode to the text of :render; encoding that text at once differs where a reply begins with white space, which a tokenizer may merge with the line break before it. Requires the template of a model with a tokenizer.
---@param messages r1.Message[]|string As in :render
---@param options? { tools?: (table<string, any>)[]|string, add_generation_prompt?: boolean } As in :render
---@return number[] # Token ids
---@return boolean[] # True for tokens of the assistant
function Template:encode(messages, options) end

---Returns the token ids that end a response.
---@return number[]
function Template:stop_ids() end

---Returns the name of the tool-call format.
---@return string
function Template:format() end

---An open model.
---@class r1.Model
local Model = {}

---Samples a response.
---@param prompt number[]|string|r1.Message[] Token ids, raw text, or messages
---@param sampling? { temperature?: number, top_k?: number, top_p?: number, min_p?: number, repetition_penalty?: number, logit_bias?: table<number, number>, top_logprobs?: number, max_new_tokens?: number, max_seconds?: number, stop?: string[], stop_ids?: number[], seed?: number, ignore_eos?: boolean, tools?: (table<string, any>)[] } Defaults: the model's generation_config.json
---@return { text?: string, token_ids: number[], logprobs: number[], finish_reason: string, top_logprobs: any }
function Model:generate(prompt, sampling) end

---Log-probabilities of token ids.
---@param ids number[]
---@param options? { top?: number, temperature?: number }
---@return number[] # Log-probability of every id except the first, given the preceding ids
---@return (({ id: number, logprob: number })[])[] # With `top`: the top ids per position
function Model:logprobs(ids, options) end

---Logits at every position; for small inputs.
---@param ids number[]
---@return (number[])[] # One list per id
function Model:logits(ids) end

---The model's config.json.
---@return table<string, any>
function Model:config() end

---A trajectory run step by step.
---@class r1.Attempt
local Attempt = {}

---The current observation of the policy.
---@return any # Messages, text, or { token_ids = … }
function Attempt:observe() end

---Takes a step with the given response.
---@param reply string|{ text?: string, tool_calls?: r1.ToolCall[], finish_reason?: string }
---@return { reward: number, done: boolean, status?: string, text: string, tools: r1.ToolUse[] }
function Attempt:step(reply) end

---Takes a step with a response of one tool call.
---@param name string
---@param arguments? table<string, any>
---@return table<string, any> # The result of Attempt:step
function Attempt:call(name, arguments) end

---Takes a step with a response sampled from a model.
---@param model r1.Model The model passed to r1.script
---@param sampling? table<string, any>
---@return table<string, any> # The result of Attempt:step
function Attempt:sample(model, sampling) end

---Returns a copy of the state.
---@return any
function Attempt:state() end

---The total reward if the trajectory ended now.
---@return number
---@return table<string, number> # Named parts
function Attempt:reward() end

---Returns an independent copy of the trajectory.
---@return r1.Attempt
function Attempt:fork() end

---Returns the trajectory so far; more steps can follow.
---@return r1.Trajectory
function Attempt:finish() end

---A value under test.
---@class r1.Expectation
local Expectation = {}

---Asserts that the value equals another one; tables are compared entry by entry.
---@param other any
---@return r1.Expectation
function Expectation:equals(other) end

---Asserts that the value differs from another one.
---@param other any
---@return r1.Expectation
function Expectation:differs(other) end

---Asserts that the value is a number within a tolerance of another one.
---@param other number
---@param tolerance? number 1e-9
---@return r1.Expectation
function Expectation:near(other, tolerance) end

---Asserts that a text contains a part, or a list an equal item.
---@param part any
---@return r1.Expectation
function Expectation:contains(part) end

---Asserts that a text matches a Lua pattern.
---@param pattern string Lua pattern
---@return r1.Expectation
function Expectation:matches(pattern) end

---Asserts that a function raises an error whose message contains a text.
---@param text? string
---@return r1.Expectation
function Expectation:raises(text) end

---A row of a dataset, with all its columns.
---@class r1.Task
---@field [any] any

---All settings of a recipe.
---@class r1.Settings
---@field name? string Name of the run and of its directory; the file name of the script if empty.
---@field seed? number Seed of every random stream: the same seed gives the same run (default 0, ≥ 0).
---@field policy? r1.PolicySettings The model that is trained.
---@field data? r1.DataSettings Datasets of tasks; several datasets, by name or as a list, are mixed (docs/guide/data.md).
---@field sampling? r1.Sampling Sampling of responses in training.
---@field rollout? r1.RolloutSettings Concurrency, retries and failures of rollouts.
---@field trainer? r1.Trainer Algorithm and its settings: a result of r1.grpo, r1.ppo, r1.sft or r1.trainer.
---@field eval? r1.EvalSettings Evaluation on data.eval.
---@field search? r1.SearchSettings The models of searches: encoders and cross-encoders.
---@field checkpoint? r1.CheckpointSettings Checkpoints and the exported model.
---@field limits? r1.Limits Time and memory limits of script calls.
---@field params? table<string, any> Parameters of the script, with the names that it declares by r1.params.
---@field needs? string[] External access of the script: "http" (public hosts), "http:HOST", a URL (its host and port), "process", "process:NAME", "env:NAME", "fs:DIR", "fs:write:DIR".

---The model, its type and device.
---@class r1.PolicySettings
---@field model? string The model: a directory in Hugging Face layout, a GGUF file, a Hub id (ORG/NAME, ORG/NAME@REVISION, or ORG/NAME:FILE for a GGUF file), r1-nano, or smollm2-135m (default "r1-nano").
---@field base? string Base model of an adapter (policy.model, or a resumed run's checkpoint); if empty, the one in adapter_config.json.
---@field dtype? "auto"|"f32"|"bf16" Type of the weights in memory; auto is f32 on the CPU and bf16 on CUDA (default "auto").
---@field device? "auto"|"cpu"|"cuda" Device of the model; auto is CUDA if available (default "auto").
---@field api_base? string URL of a server that has the model, for r1 eval and r1 infer (docs/guide/evaluation.md); policy.model is then its name there. The key is in the environment: OPENAI_API_KEY or ANTHROPIC_API_KEY.
---@field api? "auto"|"openai"|"anthropic" API of the server: chat completions or Anthropic's messages; auto is messages for api.anthropic.com (default "auto", needs policy.api_base).
---@field api_timeout? number|string Longest wait for the next piece of a server's reply, and for all of a reply that is not streamed. Comments and other events that keep the connection open are not pieces (default 600, seconds, > 0, needs policy.api_base).
---@field api_attempts? number Attempts of a request to a server that is busy, fails or breaks off (default 6, ≥ 1, needs policy.api_base).
---@field price? r1.Price Price of a server's tokens, for the figure `cost` of r1 eval.
---@field tokenizer? string The tokenizer that counts the tokens of context policies and of policy.max_context for a server: a model directory or a Hub id; r1-nano's if empty (needs policy.api_base).
---@field max_context? number Longest prompt plus response; 0 is the model's limit (default 0, tokens, ≥ 0).
---@field cuda_graphs? boolean Records decode steps as CUDA graphs: one launch per step, at the cost of some memory. CUDA only (default true).
---@field merged_sampling? "auto"|"on"|"off" Samples with the adapter merged into a copy of the weights it applies to; auto is on for CUDA and off for the CPU. Training computes the adapter apart, in f32 (default "auto").
---@field template_kwargs? table<string, any> Variables of the chat template, such as enable_thinking (chat_template_kwargs in transformers).
---@field init? r1.InitModel Initialises a new Qwen2 model and trains a tokenizer on the recipe's text instead of loading them (r1 sft).
---@field lora? r1.LoraSettings Trains a low-rank adapter (LoRA, arXiv:2106.09685); the base weights are frozen.

---Price of a server's tokens, in any currency per million tokens.
---@class r1.Price
---@field input? number Prompt tokens (default 0, per million tokens, ≥ 0).
---@field output? number Response tokens, including reasoning (default 0, per million tokens, ≥ 0).

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
---@field vision? r1.VisionInit A vision tower: the model is then a Qwen3-VL, which reads images.

---A new vision tower of Qwen3-VL (arXiv:2511.21631), without deep features.
---@class r1.VisionInit
---@field hidden_size? number Width of the hidden states of patches; each head has a multiple of 4 (default 64, ≥ 1).
---@field intermediate_size? number Width of the MLP (default 160, ≥ 1).
---@field depth? number Number of layers (default 2, ≥ 1).
---@field num_heads? number Heads per layer (default 4, ≥ 1).
---@field patch_size? number Side of a patch. Two by two patches become one token (default 8, pixels, ≥ 1).
---@field min_pixels? number Smaller images are enlarged to about this size (default 1024, pixels, ≥ 1).
---@field max_pixels? number Larger images are reduced to about this size (default 65536, pixels, ≥ 1).

---A new low-rank adapter (LoRA, arXiv:2106.09685), saved in PEFT's format. Training of an existing adapter (`policy.model` is its directory) does not need this.
---@class r1.LoraSettings
---@field rank? number Rank of the adapter (default 16, ≥ 1).
---@field alpha? number The adapter is scaled by alpha / rank, or by alpha / sqrt(rank) if rank_stabilized (default 32, > 0).
---@field rank_stabilized? boolean Scales by the square root of the rank (rsLoRA, arXiv:2312.03732) (default false).
---@field targets? string[] Projections with an adapter, by the end of their names; `visual.*`: those of the tower (default ["q_proj","k_proj","v_proj","o_proj","gate_proj","up_proj","down_proj"]).

---Datasets of tasks; several datasets, by name or as a list, are mixed (docs/guide/data.md).
---@class r1.DataSettings
---@field train? r1.Dataset|string|table<string, any>|r1.Task[] Training tasks: a file, a Hub dataset, rows generated by a function, or rows.
---@field eval? r1.Dataset|string|table<string, any>|r1.Task[] Evaluation tasks, in the same forms; without it there is no evaluation.
---@field max_prompt_tokens? number Maximum length of a task's first prompt; 0 is one less than the context (default 0, tokens, ≥ 0).
---@field overlong_prompts? "auto"|"filter"|"error"|"keep" Rows with longer prompts are dropped, refused or kept; auto drops rows from files and from the recipe (default "auto").
---@field check_rows? number Rows of each dataset read before step 1; 0 is all (default 20000, rows, ≥ 0).
---@field shuffle? boolean Training rows are in a new random order in every epoch; otherwise in the order of the files (default true).
---@field curriculum? r1.Curriculum Sampling of training rows by their past success.

---Sampling of training rows by the success rate of their earlier trajectories (docs/guide/data.md, Curricula).
---@class r1.Curriculum
---@field low? number Lowest success rate of a row that is always drawn (default 0, 0 to 1).
---@field high? number Highest success rate of a row that is always drawn (default 1, 0 to 1).
---@field outside? number Probability that a row with another success rate is drawn when its turn comes (default 0.1, 0 to 1).
---@field min_attempts? number Trajectories of a row before its success rate is used (default 1, trajectories, ≥ 1).
---@field memory? number Factor of a row's earlier counts when it is sampled again: 1 keeps them, 0 counts the last step alone (default 1, 0 to 1).

---Sampling settings. The defaults are the plain distribution: temperature 1, nothing cut.
---@class r1.Sampling
---@field temperature? number Divides the logits; 0 is greedy (r1 infer and r1 lua) (default 1, > 0 to train).
---@field top_k? number Samples among the k most likely tokens; 0 is off (default 0, tokens, ≥ 0).
---@field top_p? number Samples among the most likely tokens of this total probability; 1 is off (default 1, 0 < p ≤ 1).
---@field min_p? number Drops tokens less likely than this share of the most likely one (arXiv:2407.01082); 0 is off (default 0, 0 to 1).
---@field repetition_penalty? number Divides positive and multiplies negative logits of tokens that occurred before (arXiv:1909.05858); 1 is off. Refused in training (default 1, > 0).
---@field logit_bias? table<number, number> Added to the logits, by token id. Refused in training.
---@field top_logprobs? number Number of most likely tokens reported at each position (default 0, tokens, ≥ 0).
---@field max_new_tokens? number Maximum number of response tokens per step (default 256, tokens, ≥ 1).
---@field max_seconds? number|string Maximum time of one response, including its time in the queue; 0 means no limit (default 0, seconds, ≥ 0).
---@field stop? string[] Strings that end a response; the response includes them.

---Settings of `r1.env` that are data; its functions stay in the VM.
---@class r1.EnvSettings
---@field describe_tools? "auto"|"always"|"never" Whether the system prompt describes the tools, with a call in the syntax of the format. auto: if the chat template prints no tools; always: also for retool, tir and answer, whose prompts show none. A template without system messages has the description in the first message of the user (default "auto").
---@field max_steps? number Steps after which a trajectory is truncated (default 8, steps, ≥ 1).
---@field max_tokens? number Response tokens after which a trajectory is truncated; 0 means no limit (default 0, tokens, ≥ 0).
---@field on_overflow? "end"|"fail" Handling of a trajectory whose context is full: end truncates and scores it, fail makes it a failure (default "end").
---@field max_calls? number Maximum number of tool calls executed per response; 0 means no limit (default 0, calls, ≥ 0).
---@field excess_calls? "refuse"|"refuse_all"|"ignore" Handling of a response with more calls: the others are refused, all are refused, or the others are ignored (default "refuse").
---@field tool_choice? "auto"|"first"|"required" Responses that must call a tool: none, the first of a trajectory, or all. A missing call counts as malformed (default "auto").
---@field max_result_tokens? number Maximum length of a tool result; a longer result is truncated. 0 means no limit (default 0, tokens, ≥ 0).
---@field call_rewards? r1.CallRewards Process rewards of tool calls by outcome.
---@field system? string System prompt of the default reset; empty for none.
---@field reply_prefix? string Text that every response starts with, such as `<think>`; it is part of the prompt, neither sampled nor trained on.
---@field special_tokens_in_messages? boolean Texts in messages and tool results that spell a special token (`<|im_end|>`) become that token, as in transformers. Without it only the chat template's own text has special tokens, so that a result can't end its turn and begin another one (docs/guide/context.md) (default false).

---Process rewards of tool calls; a reward that the tool returns takes precedence.
---@class r1.CallRewards
---@field ok? number Process reward of a call that succeeded (default 0).
---@field failed? number Process reward of a call that failed or timed out (default 0).
---@field refused? number Process reward of a call of an unknown tool, with wrong arguments, or beyond max_calls (default 0).
---@field malformed? number Process reward of a call that could not be parsed (default 0).

---Settings of rollouts.
---@class r1.RolloutSettings
---@field concurrency? number Trajectories in flight at once (default 128, trajectories, ≥ 1).
---@field workers? number Threads that run the script; 0 is one per four cores (default 0, threads, ≥ 0).
---@field retries? number Maximum number of retries of a failed trajectory, each in a fresh environment (default 1, ≥ 0).
---@field max_failure_rate? number Fraction of failed trajectories in a step above which the run ends (default 0.5, 0 to 1).
---@field async? r1.AsyncRollouts Trajectories of later steps are sampled while the weights are updated (docs/guide/async.md).
---@field oversample? r1.Oversample More rollouts than a step needs: it ends with the first that are complete (docs/guide/slow-trajectories.md).

---Rollouts that run beside the updates.
---@class r1.AsyncRollouts
---@field staleness? number Maximum number of training steps by which the weights are older at the first token of a trajectory than those that it is trained with; 0 is off (default 0, steps, ≥ 0).
---@field on_update? "continue"|"finish"|"restart" What happens to unfinished trajectories before the weights change (default "continue", needs rollout.async.staleness > 0).
---@field ranks? number Processes that sample only, the last ones; the others learn only. With 0 all processes do both (default 0, processes, ≥ 0, needs rollout.async.staleness > 0).

---More rollouts than a step needs.
---@class r1.Oversample
---@field groups? number Groups in flight beyond `trainer.groups_per_step`; a step ends when `groups_per_step` of them are complete (default 0, groups, ≥ 0).
---@field samples? number Samples of a group beyond `trainer.group_size`; a group is complete when `group_size` of them have ended, and the others are dropped (default 0, trajectories, ≥ 0).
---@field unfinished? "drop"|"carry" What happens to the groups that are not complete when a step ends (default "drop", needs rollout.oversample.groups > 0).

---Settings of policy optimisation. The defaults are GRPO's; other algorithms change some.
---@class r1.Learner
---@field steps? number Training steps: rollouts, each followed by updates (default 100, steps, ≥ 0).
---@field group_size? number Trajectories per task; 1 for ppo, remax and reinforce_pp (default 8, trajectories, ≥ 1).
---@field groups_per_step? number Tasks per step; 128 for ppo, remax and reinforce_pp (default 16, tasks, ≥ 1).
---@field branch? r1.Branch Tree sampling: some trajectories of a group continue from states of others.
---@field estimator? string|table<string, any> Advantage estimator: a name, or a table of `name` and its options. The recipe's function `advantage` takes its place (default "grpo", one of docs/reference/algorithms.md).
---@field shaping? r1.Shaping Reward shaping before the estimator.
---@field loss? string|table<string, any> Policy loss: a name, or a table of `name` and its options. The recipe's function `loss` takes its place (default "ppo", one of docs/reference/algorithms.md).
---@field clip? number[] { low, high }: clip range of the ratio; the default of the loss if not set (0 < low ≤ 1, high > 0).
---@field loss_agg? "token-mean"|"seq-mean-token-sum"|"seq-mean-token-mean"|"seq-mean-token-sum-norm" Aggregation of token losses; the default of the loss if not set.
---@field entropy? number Coefficient of the entropy bonus (default 0).
---@field kl? r1.Kl KL penalty to the reference policy.
---@field importance? r1.Importance Importance weights for the mismatch between sampler and learner (needs trainer.recompute_above > 0).
---@field rejection? r1.Rejection Rejects sequences that are too unlikely under the learner (needs trainer.recompute_above > 0).
---@field lr? number Learning rate of AdamW (default 1e-6, ≥ 0).
---@field warmup? number Steps over which the learning rate rises linearly from 0 (default 0, steps, ≥ 0).
---@field decay? "constant"|"linear"|"cosine" The learning rate after the warm-up (default "constant").
---@field final_lr? number Learning rate at the end of the decay, as a fraction of lr (default 0, ≥ 0, needs trainer.decay = "linear" or "cosine").
---@field weight_decay? number Decoupled weight decay of AdamW (default 0, ≥ 0).
---@field max_grad_norm? number Global gradient norm above which gradients are scaled down; 0 is off (default 1, ≥ 0).
---@field groups? r1.WeightGroup[] Parameter groups { weights, lr, weight_decay } by name (* matches anything); lr is a factor, the first match applies.
---@field freeze? string[] Frozen weights, by name (* matches anything).
---@field ema? number Decay of the exponential moving average of the weights, saved as a model in ema/; 0 is off. At optimiser step n the decay is min(ema, (1 + n) / (10 + n)) (default 0, 0 ≤ x < 1).
---@field epochs? number Passes over the trajectories of a step (default 1, ≥ 1).
---@field mini_batches? number Optimiser steps per pass; mini-batches hold whole trajectories (default 1, ≥ 1).
---@field mini_batch_by? "trajectory"|"step" Content of a mini-batch: whole trajectories, or all steps with the same index, last index first (SeeUPO, arXiv:2602.06554) (default "trajectory").
---@field step_ratio_clip? number Clip range of the ratio of later steps, a factor on the advantages of earlier steps (default 0.2, 0 ≤ x < 1, needs trainer.mini_batch_by = "step").
---@field tokens_per_batch? number Maximum number of tokens per micro-batch: memory against speed; results are equal up to rounding. 0 is 4,096 on the CPU, and on CUDA the most of 32,768, 16,384, 8,192 and 4,096 for which there is memory (`r1 run --plan`) (default 0, tokens, ≥ 0).
---@field gradient_shards? number Parts into which the micro-batches of an optimiser step are divided; 0 is one for each process. Runs with the same number of shards have the same bits on 1, 2, 4, … processes (docs/guide/scale.md) (default 0, shards, ≥ 0).
---@field zero_stage? number What the processes divide among them (ZeRO, arXiv:1910.02054): 0 nothing, 1 the state of the optimiser, 2 gradients too, 3 also the weights of layers while gradients are computed (docs/guide/scale.md) (default 0, 0 to 3).
---@field bucket_cap_mb? number Size of the gradients that the processes exchange together (default 4, MiB, > 0).
---@field gradient_checkpointing? boolean Keeps only the inputs of the layers and recomputes activations in the backward pass: less memory, more time (default false).
---@field routing_replay? "off"|"rollout" Mixture-of-experts models: experts that the learner uses for sampled tokens, selected by its router or recorded during sampling (R3, arXiv:2510.11370) (default "off").
---@field filter? r1.Filter The groups that are trained on.
---@field critic? r1.CriticSettings The value model of algorithms with a critic.
---@field on_nan? "stop"|"skip" Handling of a NaN or infinite advantage, loss or gradient: stop ends the run with exit code 9, skip omits the optimiser step, reports and counts it. A NaN reward is a failure of its trajectory (default "stop").
---@field max_mismatch? number Stops the run when log-probabilities of sampler and learner differ by more; 0 is off (default 0, nats, ≥ 0).
---@field recompute_above? number Recomputes the behaviour log-probabilities with the learner when they differ by more; 0 is off (default 0, nats, ≥ 0).

---Tree sampling: some trajectories of a group start at the task, the others continue from intermediate states of those.
---@class r1.Branch
---@field roots? number Tree sampling: trajectories of a group that start at the task; the others continue from their states. 0 is off (default 0, trajectories, 0 to group_size).
---@field at? "random"|"entropy"|"first_tool"|number[] States to branch from: any, those with the least certain responses, the one after the first tool call, or those after these numbers of steps (default "random", needs trainer.branch.roots > 0).
---@field width? number Branches per state (default 1, trajectories, ≥ 1, needs trainer.branch.roots > 0).
---@field rounds? number Rounds of branching; branches of one round can be branched from in the next (default 1, ≥ 1, needs trainer.branch.roots > 0).

---Shaping of rewards before the estimator, in this order: length penalty, normalisation of outcome rewards and of process rewards, scale.
---@class r1.Shaping
---@field overlong? r1.OverlongPenalty Penalty for trajectories of more than longest - buffer sampled tokens (DAPO, arXiv:2503.14476) (0 < buffer ≤ longest).
---@field prime? boolean Divides process rewards by their largest sum in the step (PRIME, arXiv:2502.01456) (default false).
---@field normalize? ("state"|"batch"|"inductive"|"identity"|"mean"|"mean_std"|"asym_clip")[] { GROUPING, METHOD }: normalises returns within state, batch or inductive by identity, mean, mean_std or asym_clip (RAGEN, arXiv:2504.20073). Process rewards of tool calls are excluded.
---@field scale? number Multiplies every reward (> 0).
---@field running? number Divides rewards by the running deviation of their return with this discount (0 to 1).

---A penalty for long responses (DAPO, arXiv:2503.14476, eq. 13): 0 up to longest - buffer sampled tokens of a trajectory, -factor at longest, and linear between and beyond.
---@class r1.OverlongPenalty
---@field longest? number Sampled tokens with the penalty -factor (default 0, tokens, ≥ buffer).
---@field buffer? number Tokens over which the penalty grows (default 0, tokens, 1 to longest).
---@field factor? number Largest penalty up to longest (default 1, ≥ 0).

---KL penalty to the reference policy: the policy at the start of the run, or the base model of the adapter.
---@class r1.Kl
---@field coef? number Coefficient of the KL penalty to the reference policy (the policy at the start of the run); 0 is off (default 0, ≥ 0).
---@field kind? "k1"|"abs"|"k2"|"k3" Estimator of the KL divergence (default "k3", needs trainer.kl.coef > 0).
---@field straight_through? boolean Uses the gradient of k2 for every kind (default false, needs trainer.kl.coef > 0; trainer.kl.place = "loss").
---@field place? "loss"|"reward" The KL penalty is a term of the loss, or is subtracted from the reward of each token (default "loss", needs trainer.kl.coef > 0).
---@field target? number Target KL of an adaptive coefficient; 0 is a fixed coefficient (default 0, nats per token, ≥ 0).
---@field horizon? number Trajectories over which the coefficient adapts (default 10000, trajectories, > 0, needs trainer.kl.target > 0).

---Importance weights for the mismatch between sampler and learner.
---@class r1.Importance
---@field scope? "token"|"sequence" One weight per token or per sequence (default "token").
---@field cap? number Truncates weights (TIS) (default 2, > 0).
---@field floor? number Sets weights outside [floor, cap] to 0 (IcePop) (0 < floor ≤ cap).
---@field normalize? boolean Divides weights by their mean (default false).

---Rejection of tokens or sequences whose mismatch is too large.
---@class r1.Rejection
---@field measure? "token"|"sum"|"mean"|"max" Aggregation of the tokens of a sequence; token decides per token (default "mean").
---@field estimate? "k1"|"k2"|"k3" Estimator of the KL divergence that is measured (default "k3").
---@field upper? number Upper bound of the measure; of the ratio for k1 (default 0.01, > 0).
---@field lower? number Lower bound of the ratio for k1; 1 / upper if left out (> 0).

---A parameter group: the weights that match a pattern, and their settings.
---@class r1.WeightGroup
---@field weights? string Name pattern, `*` matches anything; all weights by default (default "*").
---@field weight_decay? number Replaces `trainer.weight_decay`, also for norm gains and biases.
---@field lr? number Factor on the learning rate (default 1).

---Selection of the groups that are trained on.
---@class r1.Filter
---@field uniform? boolean Replaces groups with equal rewards by new groups in the same step (dynamic sampling, DAPO, arXiv:2503.14476) (default false).
---@field refills? number Maximum number of such replacement rounds per step (default 4, ≥ 0, needs trainer.filter.uniform = true).
---@field keep? number Fraction of groups kept: those with the largest standard deviation of rewards (StarPO-S, arXiv:2504.20073) (default 1, 0 < x ≤ 1).

---The value model of PPO.
---@class r1.CriticSettings
---@field shared? boolean The critic is a value head on the policy's hidden states instead of a separate model (default false, needs trainer.algorithm = "ppo", "pspo" or "capo").
---@field lr? number Learning rate of the critic (default 1e-5, ≥ 0, needs trainer.algorithm = "ppo", "pspo" or "capo").
---@field warmup? number Initial steps that train only the critic (default 0, steps, ≥ 0, needs trainer.algorithm = "ppo", "pspo" or "capo").
---@field clip? number Clip range of the value change per update; 0 is off (default 0.5, ≥ 0, needs trainer.algorithm = "ppo", "pspo" or "capo").
---@field weight? number Weight of the value loss (default 0.5, ≥ 0, needs trainer.algorithm = "ppo", "pspo" or "capo"; trainer.critic.shared = true).
---@field privileged? string Text prepended to the critic's rows only, with {column} for columns of the dataset row; empty is off. The recipe's function privileged returns a text per step (needs trainer.algorithm = "ppo", "pspo" or "capo").
---@field privileged_tokens? number Maximum number of tokens of that text; a longer text ends the run (default 256, tokens, ≥ 1, needs trainer.algorithm = "ppo", "pspo" or "capo"; trainer.critic.privileged).

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
---@field tokens_per_batch? number Maximum number of tokens per forward pass. 0 is 8,192 on the CPU, and on CUDA the most of 32,768, 16,384, 8,192 and 4,096 for which there is memory (`r1 sft --plan`) (default 0, tokens, ≥ 0).
---@field max_length? number Maximum length of a conversation; 0 is the model's context (default 0, tokens, ≥ 0).
---@field overlong? "error"|"skip"|"truncate" Handling of longer conversations: they end the run, are skipped, or are truncated (default "error").
---@field patience? number Consecutive evaluations of data.eval without a lower loss after which the run stops; 0 disables early stopping (default 0, evaluations, ≥ 0, needs data.eval; eval.every > 0).
---@field gradient_shards? number Parts into which the micro-batches of an optimiser step are divided; 0 is one for each process. Runs with the same number of shards have the same bits on 1, 2, 4, … processes (docs/guide/scale.md) (default 0, shards, ≥ 0).
---@field zero_stage? number What the processes divide among them (ZeRO, arXiv:1910.02054): 0 nothing, 1 the state of the optimiser, 2 gradients too, 3 also the weights of layers while gradients are computed (docs/guide/scale.md) (default 0, 0 to 3).
---@field bucket_cap_mb? number Size of the gradients that the processes exchange together (default 4, MiB, > 0).
---@field gradient_checkpointing? boolean Keeps only the inputs of the layers and recomputes activations in the backward pass: less memory, more time (default false).

---Evaluation on `data.eval`.
---@class r1.EvalSettings
---@field every? number Training steps between evaluations; 0 evaluates before and after only (default 0, steps, ≥ 0, needs data.eval).
---@field limit? number Rows evaluated of each dataset of data.eval; 0 is all (default 128, rows, ≥ 0, needs data.eval).
---@field before? boolean Evaluates before the first step (default true).
---@field after? boolean Evaluates after the last step (default true).
---@field samples? number Samples of each task; above 1, best@k, maj@k and pass@k are reported (docs/guide/evaluation.md) (default 1, trajectories, ≥ 1, needs data.eval).
---@field temperature? number Sampling temperature of evaluations; 0 is greedy. The default is 0 for one sample of each task, and sampling.temperature for several (≥ 0).
---@field top_p? number As sampling.top_p, which is the default (0 to 1).
---@field top_k? number As sampling.top_k, which is the default (tokens, ≥ 0).
---@field min_p? number As sampling.min_p, which is the default (0 to 1).
---@field max_new_tokens? number Longest response; the default is sampling.max_new_tokens (tokens, ≥ 1).
---@field max_steps? number Longest trajectory; the default is env.max_steps (steps, ≥ 1).
---@field env? string Environment of all evaluation tasks: a name in envs, or in the recipe an environment; the rows' own if empty.
---@field early_stop? number Stops sampling a further model of r1 eval when its difference from the first has this p-value, at any number of tasks (docs/guide/evaluation.md); 0 samples all tasks (default 0, 0 to 1).
---@field accuracy? string Reward part that is reported as accuracy; if empty, a task is solved when its reward is above 0.
---@field store? number Trajectories stored of each evaluation; 0 stores none (default 128, trajectories, ≥ 0).

---Device and type of the models of searches (docs/guide/search.md).
---@class r1.SearchSettings
---@field device? "auto"|"cpu"|"cuda" Device of encoders and cross-encoders; auto is policy.device (default "auto").
---@field dtype? "auto"|"f32"|"bf16" Type of their weights and computation; auto is f32 on the CPU and bf16 on CUDA (default "auto").

---Checkpoints and the exported model.
---@class r1.CheckpointSettings
---@field every? number Training steps between checkpoints; 0 writes only the last (default 20, steps, ≥ 0).
---@field keep? number Number of checkpoints kept, newest first; 0 keeps all (default 2, checkpoints, ≥ 0).
---@field keep_every? number A checkpoint of every such step is written and never removed, as for a later --fork or --resume-from; 0 keeps none (default 0, steps, ≥ 0).
---@field max_shard_mb? number Maximum size of a file of weights. Larger models have several files, which the processes of a run write at the same time from trainer.zero_stage 1 on (default 5000, MB, > 0).
---@field best? string Metric of evaluations, such as eval/reward; the model of the best evaluation is kept in RUN/best (default "eval/accuracy", needs data.eval).
---@field best_mode? "max"|"min" Whether the largest or the smallest value of that metric is the best (default "max", needs data.eval).
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
---@field log? number Maximum number of lines logged by one call; further lines are dropped (default 100, lines, ≥ 0).

---Settings of `r1.tools.python`.
---@class r1.PythonOptions
---@field output_bytes? number Printed bytes that are kept; of longer output the start and the end (default 8192).
---@field pool? number Programs that run at once; 0 is the number of cores (default 0).
---@field max_sessions? number Maximum number of open sessions (default 256).
---@field session_idle? number Seconds after which an unused session is ended (default 600).
---@field interpreter? string The interpreter to run; `python3` on the PATH if empty.
---@field site_packages? boolean Allows imports of the interpreter's installed packages (numpy, sympy), not only of the standard library (default false).
---@field preload? string[] Modules to import before the first call, in addition to the common ones of the standard library.
---@field packages? string[] Packages of the interpreter that programs need, named as for `import` or for `pip install`. They are imported before the first call.
---@field keep_files? boolean Files that a program writes are part of its result (default false).
---@field files_bytes? number Bytes of files that one result keeps (default 1048576).
---@field plots? boolean Figures of matplotlib are written to plot_1.png, plot_2.png … and kept as files (default false).
---@field last_value? "auto"|"always"|"never" The condition under which the value of a last expression is shown (default "auto").
---@field traceback? "short"|"full" The format of errors (default "short").
---@field namespaces? boolean Adds namespaces to the sandbox if the system allows them: forbidden files are then also invisible, and the scratch directory is in memory. Without them landlock, seccomp and limits confine programs (default true).

---Settings of `r1.tools.rhai`.
---@class r1.RhaiOptions
---@field operations? number Operations of one call; a million take about 50 ms (default 2000000).
---@field call_depth? number Depth of nested calls (default 64).
---@field expression_depth? number Depth of nested expressions (default 64).
---@field string_bytes? number Bytes of a string (default 262144).
---@field array_length? number Elements of an array, including nested arrays (default 10000).
---@field map_length? number Entries of an object map, including nested maps (default 10000).
---@field output_bytes? number Printed bytes that are kept; the rest is dropped (default 8192).

---Settings of `r1.tools.table`.
---@class r1.TableOptions
---@field max_rows? number Rows of a result that are shown (default 50).
---@field max_cell? number Characters of a cell that are shown (default 200).
---@field output_bytes? number Bytes of a result that are shown; whole rows only (default 8192).
---@field format? "markdown"|"csv"|"json" The format of results (default "markdown").

---Functions of the host.
r1 = {}

---The version of r1.
---@type string
r1.version = nil

---Defines a recipe: environment, reward, data and training settings. A recipe script returns it. docs/reference/settings.md has its other settings.
---@param recipe { env?: r1.Env, envs?: table<string, r1.Env>, flow?: fun(task: r1.Task, policy: r1.Policy, kwargs: table<string, any>): any, context?: fun(state: any, budget: r1.Budget): r1.Context|r1.Message[]|string|{ token_ids: number[] }, reward?: fun(state: any, outcome: r1.Outcome): number|table<string, any>, privileged?: fun(state: any, task: any): string, row_order?: fun(row: r1.Task): number|string, row_weight?: fun(past: { successes: number, attempts: number }, row: r1.Task): number, advantage?: fun(group: r1.Group, options: table<string, any>): any[], (any[])?, loss?: fun(b: r1.LossBatch, options: table<string, any>): any, cold_start?: r1.Recipe|table<string, any>, name?: string, seed?: number, policy?: r1.PolicySettings, data?: r1.DataSettings, sampling?: r1.Sampling, rollout?: r1.RolloutSettings, trainer?: r1.Trainer, eval?: r1.EvalSettings, search?: r1.SearchSettings, checkpoint?: r1.CheckpointSettings, limits?: r1.Limits, params?: table<string, any>, needs?: string[] }
---@return r1.Recipe
function r1.recipe(recipe) end

---Defines an environment. Its functions must not keep state in variables: the host stores, copies and restores the state. docs/reference/settings.md has the other settings of `env`.
---@param env { tools?: (r1.Tool|r1.ToolServer)[]|r1.ToolServer, format?: string|r1.Format, reset?: fun(task: r1.Task, kwargs: table<string, any>): any, step?: fun(state: any, action: r1.Action): r1.StepResult, flow?: fun(task: r1.Task, policy: r1.Policy, kwargs: table<string, any>): any, context?: fun(state: any, budget: r1.Budget): r1.Context|r1.Message[]|string|{ token_ids: number[] }, reward?: fun(state: any, outcome: r1.Outcome): number|table<string, any>, close?: fun(state: any), describe_tools?: "auto"|"always"|"never", max_steps?: number, max_tokens?: number, on_overflow?: "end"|"fail", max_calls?: number, excess_calls?: "refuse"|"refuse_all"|"ignore", tool_choice?: "auto"|"first"|"required", max_result_tokens?: number, call_rewards?: r1.CallRewards, system?: string, reply_prefix?: string, special_tokens_in_messages?: boolean }
---@return r1.Env
function r1.env(env) end

---Defines a tool-call format, for env.format. Its functions must depend on their arguments only: each thread calls its own copy.
---@param format { name?: string, parse: fun(text: string, tools: (table<string, any>)[]): (r1.FormatCall[])?, string?, write?: fun(calls: r1.FormatCall[]): string, result?: fun(results: r1.FormatResult[]): string, schema?: fun(tools: (table<string, any>)[]): string, starts?: string[], stop?: string[], same_turn?: boolean, thinking?: boolean }
---@return r1.Format
function r1.format(format) end

---Runs the tool calls of a response concurrently; the trajectory waits. Errors of the policy (unknown tool, invalid arguments, unparsable call) are returned as results with ok = false.
---@param calls r1.ToolCall[] Calls such as action.tool_calls
---@param options? { hidden?: boolean, prelude?: string, state?: any, files?: table<string, string> }
---@return r1.ToolResult[] # One result per call, in order
function r1.call_tools(calls, options) end

---Creates a user message.
---@param content string|r1.Part[]
---@return r1.Message
function r1.user(content) end

---Creates a system message.
---@param content string|r1.Part[]
---@return r1.Message
function r1.system(content) end

---Creates an assistant message from a response of the policy.
---@param action r1.Action|string|r1.Part[] Pass the action itself to keep its exact text
---@return r1.Message
function r1.assistant(action) end

---Creates a message with a tool result. Its tokens are not trained on.
---@param result r1.ToolResult|string
---@return r1.Message
function r1.observation(result) end

---Appends to a list.
---@param list any[]
---@param item any
---@return any[] # The list
function r1.push(list, item) end

---Writes a line with its source position to the run's log; in recipes `print` does the same. The first lines of a step are shown in the terminal. All lines are in `log.jsonl` of the run directory, with step, trajectory and function.
---@param ... any
function r1.log(...) end

---Declares parameters of a recipe, at the top of its script, once: values that the command line can change as params.NAME=VALUE. A value has the type of its default. They are stored with the settings of the run, so that a replay and a resumed run have the same values.
---@param defaults table<string, string|number|boolean> Names and default values
---@return table<string, any> # The values
function r1.params(defaults) end

---Reads a data file, such as a corpus or dictionary, once per process at the top of the script, and shares it between workers. corpus[i] is row i (read-only), #corpus the number of rows, and `for i, row in corpus do` iterates over them. corpus.path and corpus.hash (SHA-256) identify the file. Runs record the hash.
---@param file string|{ path: string, format?: string, columns?: table<string, string>, max_size?: number|string } Path, or a table
---@return r1.Resource
function r1.resource(file) end

---Defines a tool in Lua. Arguments are validated before the call. An error message that it returns is shown to the policy.
---@param tool { name: string, description?: string, parameters?: table<string, any>, timeout?: number|string, retries?: number|{ times: number, backoff?: number|string }, cache?: boolean|string, concurrency?: number, max_result_tokens?: number, hidden?: boolean, rewards?: { ok?: number, failed?: number, refused?: number }, run: fun(arguments: table<string, any>, call: { state: any, kwargs?: table<string, any> }): any, any, any, any }
---@return r1.Tool
function r1.tool(tool) end

---Creates a context policy for a conversation. Its methods select and shorten the messages shown to the policy, do not change the messages themselves, and return the context. A context function returns it. By default the messages before the first response and the last message are kept.
---@param messages r1.Message[]
---@return r1.Context
function r1.context(messages) end

---Generates a text with the policy or a named model, such as a summary or a judgement. Only the calling trajectory waits; the text is recorded for replays.
---@param prompt r1.Message[]|string Messages; text is a single user message
---@param options? { model?: string|r1.ModelServer, max_new_tokens?: number, temperature?: number, top_k?: number, top_p?: number, min_p?: number, stop?: string|string[], train?: boolean }
---@return string? # nil if the prompt leaves no room for a response
---@return { finish_reason: string, tokens: number }|string # Details, or an error message
function r1.generate(prompt, options) end

---Computes the log-probability of each token of a text as the response to a prompt. Only the calling trajectory waits; the numbers are recorded for replays.
---@param options { model?: string, prompt: r1.Message[]|string, text: string, temperature?: number }
---@return ({ logprobs: number[], sum: number, mean: number, tokens: number })? # nil if the text does not fit into the context
---@return string? # Error message
function r1.logprobs(options) end

---Scores a conversation with a reward model (a transformer with a linear head over the last token). Concurrent calls of all trajectories are computed in batches. Only the calling trajectory waits; the numbers are recorded for replays.
---@param options { model: string, prompt: r1.Message[]|string, text?: string }
---@return ({ score: number, scores: number[], tokens: number })? # `scores` has one number per label, before a softmax; `score` is the first. nil if the text does not fit into the model's context
---@return string? # Error message
function r1.reward_model(options) end

---Group-relative policy optimisation.
---@param settings r1.Learner docs/reference/settings.md
---@return r1.Trainer
function r1.grpo(settings) end

---Policy optimisation with a critic.
---@param settings r1.Learner
---@return r1.Trainer
function r1.ppo(settings) end

---Training with an algorithm by name.
---@param settings { algorithm: string|r1.Algorithm, [string]: any } Name of the algorithm, and its settings
---@return r1.Trainer
function r1.trainer(settings) end

---An algorithm of a recipe, in the form of the files of r1: `r1 doc gspo` prints one, `r1 new NAME --algorithm gspo` copies it. A function `loss` has the declared options, which `trainer.loss` sets; a function `advantage` takes a group, as in a recipe.
---@param definition { advantage?: fun(group: r1.Group, options: table<string, any>): any[], (any[])?, needs?: string[], level?: string|table<any, string>, estimator?: string|table<string, any>, loss?: (fun(b: r1.LossBatch, options: table<string, any>): any)|string|table<string, any>, options?: table<string, any>, trainer?: table<string, any>, critic?: boolean, one_advantage_per_sequence?: boolean, paper?: string, about?: string, remarks?: string }
---@return r1.Algorithm
function r1.algorithm(definition) end

---Supervised fine-tuning on conversations: rows with `messages`, and other formats (docs/guide/sft.md).
---@param settings r1.Sft
---@return r1.Trainer
function r1.sft(settings) end

---Returns the content of the last \boxed{…}, with balanced braces.
---@param text string
---@return string?
function r1.last_boxed(text) end

---Returns the content of the last <answer>…</answer>.
---@param text string
---@return string?
function r1.answer(text) end

---Tests whether an answer is equivalent to the reference: numbers, algebra, sets, intervals, points, matrices, equations, units, text. Integers, fractions and decimals are compared exactly: 0.333333 is not 1/3. A unit may be missing on one side; different units are not equal. An answer that is nil is wrong; a reference that is nil or empty is an error of the dataset (r1.reference). docs/guide/answers.md has the rules.
---@param answer string|number|nil Answer to grade: LaTeX or plain text, or a response that contains an answer
---@param reference string|number Correct answer
---@return boolean
function r1.math_equal(answer, reference) end

---Returns the reference of a task. A reference that is nil or empty (a missing column) is an error of the dataset with the row and its columns; it ends the run (exit code 4), because every answer would count as wrong. r1.math_equal and @r1/rewards call it.
---@param reference any Reference of a reward, such as `state.task.answer`
---@param name? string Name in the error, such as the function that needs it
---@param options? { empty?: boolean }
---@return any # The reference
function r1.reference(reference, name, options) end

---Shortens a text and inserts the number of omitted characters.
---@param text string
---@param head number Characters kept at the beginning
---@param tail? number Characters kept at the end
---@return string
function r1.clip(text, head, tail) end

---A connection to a WebSocket server or a program that stays open between requests. A WebSocket is one trajectory's: its first request opens it, and it is closed after the trajectory. A program is shared by all trajectories. It reads lines {"id": 1, "session": 7, "message": …} and prints {"id": 1, "answer": …} or {"id": 1, "error": "…"} in any order; the session is that of a trajectory, and {"session": 7, "end": true} ends it. It is started before the first trajectory, and again when it ends; trajectories that it served then fail. A copy of a trajectory (tree sampling, branches in r1 repl) repeats the messages so far on a new connection. Recipes must declare the host: needs = { "http:HOST" }, or "http" for all public hosts; private addresses must be named. Or the program: needs = { "process:NAME" }.
---@param options { url?: string, command?: (string|number)[], name?: string, env?: table<string, string|r1.Secret>, directory?: string, headers?: table<string, string|r1.Secret>, timeout?: number|string, start_timeout?: number|string, restarts?: number, processes?: number, max_bytes?: number, open_message?: any, close_message?: any }
---@return r1.Connection
function r1.connection(options) end

---A handle to the value of an environment variable, such as an API key, for headers and queries of r1.http and for `env` of r1.process.run. Scripts cannot read the value: the host inserts it when the request is sent, and records, trajectories and errors show "(secret)". Recipes must declare it: needs = { "env:NAME" }. Replays do not need the value.
---@param name string Name of the environment variable
---@return r1.Secret # Can be concatenated with text by `..`
function r1.secret(name) end

---Returns the current time. It is recorded, so a replay returns the recorded time.
---@return number # Seconds since 1970
function r1.clock() end

---Waits without blocking other trajectories. Replays do not wait.
---@param length number|string Seconds, or text such as "500ms"
function r1.sleep(length) end

---Calls functions concurrently, so that their waiting times overlap. If functions fail, the error of the first one in the list is raised after all have ended.
---@param functions (fun(): any)[]
---@return any ... # The result of each function, in order
function r1.join(functions) end

---Opens a model. A model directory without a tokenizer takes token ids only.
---@param model string Directory, GGUF file, Hub id, or r1-nano
---@param options? { base?: string, device?: string, dtype?: string, max_context?: number, format?: string }
---@return r1.Model
function r1.model(model, options) end

---Opens another script, to read its rows and to run trajectories step by step.
---@param path string Path, relative to the program's directory or the current one
---@param options? { settings?: table<string, any>, model?: r1.Model }
---@return r1.Script
function r1.script(path, options) end

---Runs trajectories of a script with a model or a function as the policy.
---@param options { script: string|r1.Script, policy: r1.Model|(fun(observation: any, step: number, attempt: r1.Attempt): any), rows?: number[], tasks?: r1.Task[], split?: string, samples?: number, seed?: number, sampling?: table<string, any>, branch?: { step?: number, count?: number }, settings?: table<string, any> }
---@return r1.Trajectory[]
function r1.rollout(options) end

---Opens a run with a training loop written in Lua. Model, data and run directory are the same as in r1 run. If the program contains the recipe, script workers load the program again up to this call.
---@param recipe string|r1.Recipe|table<string, any> Path of a recipe, or a recipe in the program
---@param options? { settings?: table<string, any>, name?: string, runs?: string, resume?: string, reload?: boolean, profile?: boolean }
---@return r1.Training # Fields: step, steps, rows, run_dir, settings, critic (boolean)
function r1.training(recipe, options) end

r1.data = {}

---Rows of a file with one JSON object per line, or with one list of objects. A plain path selects the format by its extension.
---@param path string|{ path: string|string[], columns?: table<string, string>, name?: string, weight?: number, env?: string } Path, or a table; name, weight and env are for several datasets
---@return r1.Dataset
function r1.data.jsonl(path) end

---Rows of a CSV or TSV file. The first line has the column names; cells are text.
---@param path string|{ path: string|string[], columns?: table<string, string>, name?: string, weight?: number, env?: string }
---@return r1.Dataset
function r1.data.csv(path) end

---Rows of a Parquet file. Files made for verl work unchanged.
---@param path string|{ path: string|string[], columns?: table<string, string>, name?: string, weight?: number, env?: string }
---@return r1.Dataset
function r1.data.parquet(path) end

---Rows of a dataset on the Hugging Face Hub, downloaded to the cache that Python libraries use. Options can also follow the name: r1.data.hf "ORG/NAME" { … }.
---@param name string ORG/NAME or ORG/NAME@REVISION
---@param options? { split?: string, subset?: string, file?: string, columns?: table<string, string>, name?: string, weight?: number, env?: string }
---@return r1.Dataset
function r1.data.hf(name, options) end

---Rows generated by a function.
---@param rows { count: number, seed?: number, name?: string, weight?: number, env?: string, row: fun(index: number): r1.Task }
---@return r1.Dataset
function r1.data.generate(rows) end

r1.tools = {}

---A Python interpreter in a sandbox without access to the network, other files or other processes.
---@param options? { name?: string, description?: string, timeout?: number|string, memory?: number|string, disk?: number|string, session?: boolean, files?: table<string, string|r1.ProgramFile>, retries?: number|{ times: number, backoff?: number|string }, cache?: boolean|string, concurrency?: number, max_result_tokens?: number, hidden?: boolean, rewards?: { ok?: number, failed?: number, refused?: number }, output_bytes?: number, pool?: number, max_sessions?: number, session_idle?: number, interpreter?: string, site_packages?: boolean, preload?: string[], packages?: string[], keep_files?: boolean, files_bytes?: number, plots?: boolean, last_value?: "auto"|"always"|"never", traceback?: "short"|"full", namespaces?: boolean }
---@return r1.Tool
function r1.tools.python(options) end

---An embedded interpreter of the language Rhai; nothing needs to be installed.
---@param options? { name?: string, description?: string, timeout?: number|string, retries?: number|{ times: number, backoff?: number|string }, cache?: boolean|string, concurrency?: number, max_result_tokens?: number, hidden?: boolean, rewards?: { ok?: number, failed?: number, refused?: number }, operations?: number, call_depth?: number, expression_depth?: number, string_bytes?: number, array_length?: number, map_length?: number, output_bytes?: number }
---@return r1.Tool
function r1.tools.rhai(options) end

---The tools of an MCP server, which is started when its tools are needed. A program needs `process:NAME` and runs outside the sandbox; a URL needs `http:HOST`.
---@param server { command?: string[], url?: string, name?: string, prefix?: string, allow?: string[], env?: table<string, string|r1.Secret>, headers?: table<string, string|r1.Secret>, directory?: string, scope?: string, timeout?: number|string, progress?: boolean, start_timeout?: number|string, restarts?: number, retries?: number|{ times: number, backoff?: number|string }, cache?: boolean|string, concurrency?: number, max_result_tokens?: number, rewards?: { ok?: number, failed?: number, refused?: number } }
---@return r1.ToolServer # Stands for the list of its tools in env.tools
function r1.tools.mcp(server) end

---A tool that answers SQL over tables (SQLite, read-only). Its description names tables and columns. docs/guide/tables.md has the rules.
---@param options { tables?: table<string, string|any[]|r1.TableSource>, column?: string, name?: string, description?: string, preview?: number, timeout?: number|string, memory?: number|string, retries?: number|{ times: number, backoff?: number|string }, cache?: boolean|string, concurrency?: number, max_result_tokens?: number, hidden?: boolean, rewards?: { ok?: number, failed?: number, refused?: number }, max_rows?: number, max_cell?: number, output_bytes?: number, format?: "markdown"|"csv"|"json" }
---@return r1.Tool
function r1.tools.table(options) end

---A search tool with the parameter `query`. Its result has a line per passage, `Doc 1(Title: …) text`. After 5 failures in a row no requests are sent to a server for 30 s: its calls fail at once.
---@param options { index?: string, url?: string, k?: number, mode?: string, ef?: number, exact?: boolean, rerank?: { model: string, top?: number }, name?: string, description?: string, timeout?: number|string, retries?: number|{ times: number, backoff?: any }, cache?: boolean|string, concurrency?: number, max_result_tokens?: number, hidden?: boolean, rewards?: { ok?: number, failed?: number, refused?: number } }
---@return r1.Tool
function r1.tools.search(options) end

r1.table = {}

---Opens tables for queries of a script, such as the expected answer of a reward. Files are read at the top of the script, once per process; plain data anywhere.
---@param tables table<string, string|any[]|r1.TableSource> As in r1.tools.table, without `column`
---@param options? { timeout?: number|string, memory?: number|string, max_rows?: number }
---@return r1.Tables
function r1.table.open(tables, options) end

r1.rl = {}

---Computes advantages with an estimator of training, over plain tables, in f64.
---@param name string Estimator: grpo, rloo, gae, gigpo …
---@param rows (table<string, any>)[] Steps: group, trajectory, step, mask, rewards, values, logp, shared …
---@param options? table<string, any> Options of the estimator
---@return { advantages: (number[])[], counted: boolean[], returns?: (number[])[], targets?: (boolean[])[] }
function r1.rl.advantages(name, rows, options) end

---Computes a loss of training and its gradient with respect to `logp`.
---@param loss string|(fun(b: r1.LossBatch, options: table<string, any>): any) Name (ppo, gspo, cispo …) or function
---@param rows (table<string, any>)[] Steps with logp, logp_old and advantages
---@param options? table<string, any> Options of the loss
---@return { loss: number, gradient: (number[])[], metrics: table<string, number> }
function r1.rl.loss(loss, rows, options) end

---Computes the value loss (half the squared error, clipped as in PPO, averaged over all entries) and its gradient with respect to `values`.
---@param values number[] Current values of the critic
---@param values_old number[] Values before the update
---@param returns number[] Targets
---@param options? { clip?: number }
---@return { loss: number, gradient: number[], clip_frac: number }
function r1.rl.value_loss(values, values_old, returns, options) end

---Computes the entropy of each distribution, in nats.
---@param logits (number[])[] One list per position
---@param temperature? number Default: 1
---@return number[]
function r1.rl.entropy(logits, temperature) end

r1.json = {}

---A value as JSON. Lists are tables with keys 1..n; an empty table is an object, unless it was an empty list in JSON. Data decoded from JSON keeps its nulls, long whole numbers, floats such as 3.0 and the order of its keys (docs/guide/luau.md).
---@param value any Plain data
---@return string
function r1.json.encode(value) end

---JSON as a value. Fields that are null are nil; whole numbers above 2^53 are text. Encoding the table again gives the original values, except that whole numbers of more than 64 bits stay text. Half of a surrogate pair becomes U+FFFD, and `NaN` and `Infinity`, which Python writes, are nil.
---@param text string
---@return any # nil if the text is not JSON
---@return string? # Error message
function r1.json.decode(text) end

---JSON's null in a list, and in a table that a script makes.
---@type any
r1.json.null = nil

r1.re = {}

---Finds the first match of a regular expression, like string.find. Patterns have the syntax of Rust's regex crate: no backreferences, no look-around, time linear in the text. Positions count bytes.
---@param text string
---@param pattern string
---@param from? number Start position; default: 1
---@return number? # Start of the match
---@return number? # End of the match
---@return string ... # Groups
function r1.re.find(text, pattern, from) end

---Returns the groups of the first match.
---@param text string
---@param pattern string
---@param from? number
---@return string? # First group, or the whole match if there are no groups
---@return string ...
function r1.re.match(text, pattern, from) end

---Returns the first match as a table: groups by number and name, `text`, `first` and `last`.
---@param text string
---@param pattern string
---@return r1.Match?
function r1.re.captures(text, pattern) end

---Returns all matches as tables.
---@param text string
---@param pattern string
---@param most? number
---@return r1.Match[]
function r1.re.find_all(text, pattern, most) end

---Iterates over the groups of all matches.
---@param text string
---@param pattern string
---@return fun()
function r1.re.gmatch(text, pattern) end

---Replaces matches.
---@param text string
---@param pattern string
---@param with string|(fun(match: r1.Match): string?) Text with $1, ${name} and $$, or a function of the match; nil keeps the match
---@param most? number Maximum number of replacements
---@return string
---@return number # Number of replacements
function r1.re.replace(text, pattern, with, most) end

---Splits a text at matches.
---@param text string
---@param pattern string
---@param most? number Maximum number of parts
---@return string[]
function r1.re.split(text, pattern, most) end

---Returns a pattern that matches exactly the text.
---@param text string
---@return string
function r1.re.escape(text) end

r1.text = {}

---Converts a text to lower case by the rules of Unicode. string.lower converts ASCII letters only.
---@param text string
---@return string
function r1.text.lower(text) end

---Ranks texts by similarity to a query (BM25 over words), without an index: for few or changing texts. For many queries use r1.text.index.
---@param query string
---@param texts string[]
---@return ({ index: number, score: number })[] # Best first; texts without a word of the query are omitted
function r1.text.rank(query, texts) end

---Creates an index of texts for many searches (BM25 over words). The index of a resource is built once per process; create it at the top of the script. It is kept in memory; r1.index.open searches an index on disk, for corpora of any size.
---@param texts string[]|r1.Resource List of texts, or a resource
---@param options? { column?: string, k1?: number, b?: number }
---@return r1.TextIndex
function r1.text.index(texts, options) end

---Parses a response like the response of a policy.
---@param format string|r1.Format
---@param text string
---@param options? { tools?: (table<string, any>)[], thinking?: boolean, code_tool?: string }
---@return { content: string, reasoning?: string, calls: r1.ToolCall[], errors: string[] }
function r1.text.parse_tool_calls(format, text, options) end

---Opens the tokenizer of a model. Recipes can use model directories, and files in the script's directory.
---@param model string Model directory; in programs also a Hub id or r1-nano. No weights are downloaded
---@return r1.Tokenizer
function r1.text.tokenizer(model) end

---Opens a chat template. Recipes can use model directories, files in the script's directory and, in functions of the environment, files declared with "fs:DIR".
---@param from string Model (a directory; in programs also a Hub id or r1-nano), template file, or template source
---@param options? { bos_token?: string, eos_token?: string, format?: string|r1.Format }
---@return r1.Template
function r1.text.template(from, options) end

r1.http = {}

---Sends a GET request. Recipes must declare the host: needs = { "http:HOST" }, or "http" for all public hosts; private addresses must be named. Only the calling trajectory waits. The response is recorded for replays; secrets are not recorded.
---@param url string
---@param options? { headers?: table<string, string|r1.Secret>, query?: table<string, any>, timeout?: number|string, max_bytes?: number, body?: string, json?: any }
---@return r1.HttpAnswer? # The response, with any status code
---@return string? # Error message
function r1.http.get(url, options) end

---Sends a POST request.
---@param url string
---@param body? string|table<any, any> A table is sent as JSON
---@param options? { headers?: table<string, string|r1.Secret>, query?: table<string, any>, timeout?: number|string, max_bytes?: number, body?: string, json?: any }
---@return r1.HttpAnswer? # The response, with any status code
---@return string? # Error message
function r1.http.post(url, body, options) end

---Sends a request with any method.
---@param request { url: string, method?: string, headers?: table<string, string|r1.Secret>, query?: table<string, any>, body?: string, json?: any, timeout?: number|string, max_bytes?: number }
---@return r1.HttpAnswer? # The response, with any status code
---@return string? # Error message
function r1.http.request(request) end

r1.process = {}

---Runs a program in a sandbox. It can read system directories and directories declared with "fs:DIR", and write to a temporary working directory. It has no access to the network or to other processes. Recipes must declare it: needs = { "process:NAME" }.
---@param argv (string|number)[] Program and arguments; searched in /usr/local/bin, /usr/bin and /bin
---@param options? { input?: string, timeout?: number|string, memory?: number|string, disk?: number|string, output?: number, env?: table<string, string|r1.Secret> }
---@return r1.ProcessResult?
---@return string? # Error message if the program did not start
function r1.process.run(argv, options) end

---Returns an image or a video as a part of a message, for a policy that reads images. The run stores the image once, by the SHA-256 of its file. PNG, JPEG, WebP and GIF (its first frame) are read. A video is a list of images, or a GIF, WebP or PNG with several frames.
---@param image { path?: string, bytes?: string, base64?: string, data?: string, url?: string, rgb?: string|buffer, width?: number, type?: string, hash?: string, image?: any, image_url?: any, frames?: any[], fps?: number, video?: any, video_url?: any } An image or video in any form, also a part of a message
---@param options? { max_pixels?: number }
---@return r1.Part? # Part with the hash of the image or video
---@return string? # Error message
function r1.image(image, options) end

r1.fs = {}

---Reads a file. Recipes must declare the directory: needs = { "fs:DIR" }.
---@param path string Path relative to the script's directory; in programs, to the current one
---@return string?
---@return string? # Error message
function r1.fs.read(path) end

---Lists the names in a directory, sorted. Names of directories end with a slash.
---@param path string
---@return (string[])?
---@return string? # Error message
function r1.fs.list(path) end

---Returns the kind and size of a file.
---@param path string
---@return ({ kind: string, size: number })? # `kind` is "file" or "directory"
---@return string? # Error message
function r1.fs.stat(path) end

---Writes a file and creates missing parent directories. Recipes must declare the directory: needs = { "fs:write:DIR" }.
---@param path string
---@param text string
---@param options? { append?: boolean }
---@return boolean? # True
---@return string? # Error message
function r1.fs.write(path, text, options) end

r1.index = {}

---Opens an index of passages on disk (docs/guide/search.md). It is memory-mapped and opened once per process. A run opens it before its first trajectory, and a replay not at all. For a few thousand texts that are in the script or a resource, r1.text.index needs no directory; this is for corpora that were indexed once and do not fit into memory.
---@param directory string An index of `r1 index build`, relative to the script; in programs, to the current directory
---@return r1.Index
function r1.index.open(directory) end

r1.store = {}

---Steps of a run with stored trajectories; with `split = "eval"`, steps with a stored evaluation.
---@param run string Run directory, or the name of a run in `runs`
---@param options? { split?: "train"|"eval" }
---@return number[]
function r1.store.steps(run, options) end

---Reads the trajectories of a step, or of all steps of a run.
---@param run string Run, or Parquet file of trajectories
---@param step? number Step of the run; default: all steps. Not used for a file
---@param options? { ids?: boolean, record?: boolean, split?: "train"|"eval" }
---@return r1.Trajectory[]
function r1.store.trajectories(run, step, options) end

---Writes trajectories in the format of runs. Trajectories of a run keep their seed and record, so that they can be replayed.
---@param path string Parquet file, such as runs/NAME/trajectories/step-000007.parquet
---@param trajectories r1.Trajectory[] Tables in the format of r1.store.trajectories
---@param options? { from?: string, overwrite?: boolean }
function r1.store.write(path, trajectories, options) end

---Defines a test, which r1 test runs.
---@param name string Name of the test
---@param body fun()
function test(name, body) end

---Starts an assertion about a value.
---@param value any
---@param ... any Ignored
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
