--- The time of a training step by parts, for `r1 plan`: a roofline model of each device and a model
--- of the links between ranks. The argument of `step` is made in src/train/run/step_plan.rs. Rates
--- are per second, sizes are bytes, times are seconds; GB and TB are decimal.
---
--- A part takes as long as its operations at a fraction of the peak rate, or its memory traffic at
--- a fraction of the bandwidth, whichever is longer, plus a fixed time per layer where one was
--- measured. Parts overlap in asynchronous rollouts only.

-- Figures of data sheets: dense bf16, memory that is free on an empty device (GiB), bandwidth of
-- the memory and of NVLink in one direction, and of one network interface.
local function gpu(teraflops, memory, bandwidth, nvlink, gigabits)
  return {
    flops = teraflops * 1e12, memory = memory, bandwidth = bandwidth * 1e12,
    nvlink = nvlink * 1e9, network = gigabits / 8 * 1e9, ranks_per_machine = 8,
  }
end

local DEVICES = {
  ["a100-80"] = gpu(312, 79, 2.039, 300, 200),
  h100 = gpu(989, 79, 3.35, 450, 400),
  h200 = gpu(989, 139, 4.8, 450, 400),
  b200 = gpu(2250, 178, 7.7, 900, 400),
  -- This machine; rates are measured when the command runs.
  cpu = {},
}

-- Fractions of the device's rates that r1 reaches. GPU: fitted to the rows decode and update-speed
-- of benches/results/2026-11-27-nvidia-h200.md (docs/lab/gpu.md). CPU: docs/guide/scale.md,
-- Planning.
local GPU = {
  update = 0.5, -- forward and backward, of the peak rate; 27% to 52% with the fixed time
  prefill = 0.4, -- of the peak rate; not measured apart
  weights = 0.9, -- of the bandwidth, reading weights in a decode step
  cache = 0.17, -- of the bandwidth, reading keys and values, with attention and sampling
  decode_layer = 41e-6, -- seconds of a layer's kernels in a decode step
  update_layer = 0.4e-3, -- seconds of a layer in a micro-batch, forward and backward
  optimizer = 0.65, -- of the bandwidth
}
local CPU = {
  update = 0.95, prefill = 0.9, decode = 0.75, weights = 0.8, cache = 0.6, decode_layer = 0, update_layer = 0,
  optimizer = 0.5,
}

-- Links. Gloo sends over one TCP connection for each pair of ranks, within a machine over loopback.
-- On GPU machines this is an assumption, which nothing has measured yet.
local LOOPBACK = 2e9 -- of a connection
local LOOPBACK_OF_CPU = 0.05 -- of the bandwidth, shared by the ranks of the machine
local NETWORK = 0.6 -- of the interface, shared by the ranks of the machine
local LATENCY = 1e-4 -- of an exchange
local BUCKET = 32 * 2 ^ 20 -- bytes of an exchange (crates/model/src/process_group.rs)
local TO_HOST = 20e9 -- between GPU and host, each way
-- Bytes that ranks exchange for a token of a trajectory: id, log-probability, text, columns.
local TOKEN = 24

local functions = {}

function functions.devices() return DEVICES end

local function efficiency(plan) return if plan.device.name == "cpu" then CPU else GPU end

--- Tokens of a trajectory, and the seconds that its tools take.
local function lengths_of(plan)
  local settings, like, options = plan.settings, plan.like or {}, plan.options
  local trainer = settings.trainer
  local from = if plan.like then "the means of " .. plan.like_name else "the limits of the settings, the maximum"
  if options.prompt_tokens or options.response_tokens then from = `of the command line; otherwise {from}` end
  if trainer.algorithm == "sft" then
    local limit = if trainer.max_length > 0 then math.min(trainer.max_length, plan.context) else plan.context
    local measured = like["sft/packed_tokens"]
    local all = if measured then measured / trainer.batch_size else limit
    local response = options.response_tokens or all * (like["sft/supervised_share"] or 1)
    local prompt = options.prompt_tokens or math.max(all - response, 0)
    return { prompt = prompt, response = response, longest = response, turns = 1, tools = 0, trained = 1, from = from }
  end
  -- Numbers of the command line are those of a prompt and a response.
  local turns = like["rollout/steps"] or (if options.prompt_tokens then 1 else plan.max_steps)
  local limit = math.min(settings.sampling.max_new_tokens * turns, plan.context - 1)
  if plan.max_tokens > 0 then limit = math.min(limit, plan.max_tokens) end
  local response = options.response_tokens or like["rollout/response_tokens"] or limit
  local longest = if options.response_tokens then response else like["rollout/response_tokens_max"] or response
  -- A last prompt has the responses before it.
  local last = like["rollout/prompt_tokens"]
  local longest_prompt = settings.data.max_prompt_tokens
  local prompt = if last
    then math.max(last - response * (turns - 1) / turns, 1)
    else if longest_prompt > 0 then math.min(longest_prompt, plan.context - response) else plan.context - response
  local trajectories = trainer.group_size * trainer.groups_per_step
  prompt = options.prompt_tokens or math.max(prompt, 1)
  local computed = (like["throughput/train_tokens_per_s"] or math.huge) * (like["time/training"] or 1) / trainer.epochs
  return {
    prompt = prompt,
    response = response,
    longest = longest,
    turns = turns,
    -- Rows without an advantage are not computed.
    trained = math.min(computed / (trajectories * (prompt + response)), 1),
    -- Calls of one trajectory follow each other.
    tools = (like["time/tools"] or 0) / trajectories,
    from = from,
  }
end

--- Operations of a forward pass over `tokens` tokens at a mean context, without the head.
local function forward(shape, tokens, context)
  return tokens * (2 * shape.body + 4 * shape.queries * shape.attention_layers * context)
end

local function head(shape, tokens) return 2 * shape.embedding * tokens end

--- Sampling on the rank with the most groups: prefill, decoding, tools.
local function sampling(plan, lengths)
  local shape, device, of = plan.shape, plan.device, efficiency(plan)
  local trainer = plan.settings.trainer
  local groups = math.ceil(trainer.groups_per_step / plan.world)
  local trajectories = groups * trainer.group_size
  local slots = math.min(plan.slots, trajectories)
  -- The first prompt is computed once for each group.
  local shared = lengths.prompt / lengths.turns
  local prompts = groups * shared + trajectories * (lengths.prompt - shared)
  local prefill = forward(shape, prompts, lengths.prompt / 2) / (device.flops * of.prefill)
  local all = trajectories * lengths.response
  local steps = math.max(lengths.longest, all / slots)
  local batch = all / steps
  local context = lengths.prompt + lengths.response / 2
  -- A step reads the experts that one of its tokens chooses.
  local experts = shape.experts * math.min(1, batch * shape.experts_share)
  local weights = (shape.body - shape.experts * shape.experts_share + experts + shape.embedding) * shape.element
  local operations = forward(shape, batch, context) + head(shape, batch)
  local read = weights / (device.bandwidth * of.weights)
  local computed = operations / (device.flops * (of.decode or of.update))
  local cache = batch * context * shape.cache * shape.element / (device.bandwidth * of.cache)
  local step = math.max(read, computed) + cache + of.decode_layer * shape.layers
  local bound = if read > computed then "the bandwidth" else "the operations"
  return {
    { part = "prefill", seconds = prefill, why = string.format("%.0f prompt tokens", prompts) },
    {
      part = "decode", seconds = steps * step,
      why = string.format("%.0f steps of %.2g ms with %.3g sequences, limited by %s", steps, step * 1e3, batch, bound),
    },
    {
      part = "tools", seconds = lengths.tools * trajectories / slots,
      why = if lengths.tools > 0
        then string.format("%.3g s in a trajectory", lengths.tools)
        else "not known: taken as 0",
    },
  }, trajectories
end

--- Tokens of all trajectories that one rank computes in a pass, and those of them with the head.
local function trained(plan, lengths)
  local trainer = plan.settings.trainer
  local row = lengths.prompt + lengths.response
  local sequences = trainer.batch_size or trainer.group_size * trainer.groups_per_step
  local tokens = sequences * row
  if trainer.group_size then
    local saved = (sequences - trainer.groups_per_step) * lengths.prompt / lengths.turns
    -- On a GPU a smaller part is computed again (crates/model/src/model/shared_prefix.rs).
    if plan.device.name == "cpu" or saved >= tokens / 4 then tokens -= saved end
  end
  -- A row is not divided.
  local share = math.ceil(sequences / plan.world) / sequences
  return tokens * share, sequences * lengths.response * share, row / 2
end

--- Passes without gradients, and forward with backward.
local function learning(plan, lengths)
  local shape, trainer, of = plan.shape, plan.settings.trainer, efficiency(plan)
  local tokens, responses, context = trained(plan, lengths)
  local rate = plan.device.flops * of.update
  local layers = forward(shape, tokens, context)
  local pass = layers + head(shape, responses)
  local batches = math.ceil(tokens / plan.tokens_at_once)
  local fixed = batches * of.update_layer * shape.layers
  local parts = {}
  local function add(part, seconds, why) table.insert(parts, { part = part, seconds = seconds, why = why }) end
  local scored = {}
  if (trainer.recompute_above or 0) > 0 then table.insert(scored, "learner") end
  if plan.reference then table.insert(scored, "reference") end
  if plan.critic then table.insert(scored, "critic") end
  if #scored > 0 then
    add("log-probabilities", #scored * (pass / rate + fixed / 3), `forward passes: {table.concat(scored, ", ")}`)
  end
  -- Gradients of frozen weights are not computed.
  local update = if shape.adapted > 0 then 2 * pass else 3 * pass
  local why = string.format("%.0f tokens in micro-batches of %d", tokens, plan.tokens_at_once)
  if plan.settings.trainer.gradient_checkpointing or plan.zero_stage >= 3 then
    update += layers
    why ..= ", layers computed twice"
  end
  local epochs, models = trainer.epochs or 1, if plan.critic == "separate" then 2 else 1
  if lengths.trained < 1 then why ..= string.format(", %.0f%% of them trained", 100 * lengths.trained) end
  add("forward and backward", epochs * models * lengths.trained * (update / rate + fixed), why)
  local steps = epochs * math.max(trainer.mini_batches or 1, 1) * models
  return parts, steps, math.max(epochs * models * batches, steps)
end

--- Number of ranks that divide what a stage of ZeRO adds.
local function divided(plan, stage)
  return if plan.zero_stage >= stage then plan.world else 1
end

--- A step of AdamW: reads and writes weights and moments, reads gradients twice (their norm).
local function optimizer(plan, steps)
  local shape = plan.shape
  local bytes = if shape.element == 2 and shape.adapted == 0 then 36 else 32
  local traffic = shape.learned * bytes / divided(plan, 1)
  -- Ranks on one CPU share its bandwidth, which `device.bandwidth` has divided already.
  local seconds = traffic / (plan.device.bandwidth * efficiency(plan).optimizer)
  local why = string.format("%d x %.3g GB of memory traffic", steps, traffic / 1e9)
  return { part = "optimiser", seconds = steps * seconds, why = why }
end

--- Bandwidth of a pair of ranks whose numbers differ by `distance`.
local function link(plan, distance)
  local device = plan.device
  if device.name == "cpu" then return device.bandwidth * LOOPBACK_OF_CPU end
  if distance < device.ranks_per_machine then return LOOPBACK end
  return math.min(device.network * NETWORK / device.ranks_per_machine, LOOPBACK)
end

--- The sum of gradients in f32, `times` times: pairs of ranks exchange all of them, once for each
--- level of a binary tree; from stage 2 of ZeRO on a half of them, then a quarter, and so on. Other
--- numbers of ranks than powers of two send them to all.
local function exchange(plan, times)
  local world, bytes = plan.world, 4 * plan.shape.learned
  local latency, seconds, rounds, sent = LATENCY * math.ceil(bytes / BUCKET), 0, 0, bytes
  if math.log(world, 2) % 1 == 0 then
    local distance = 1
    while distance < world do
      if plan.zero_stage >= 2 then sent /= 2 end
      seconds += sent / link(plan, distance) + latency
      distance *= 2
      rounds += 1
    end
  else
    rounds = world - 1
    seconds = rounds * (bytes / link(plan, rounds) + latency)
  end
  if plan.device.name ~= "cpu" then seconds += 2 * bytes / TO_HOST end
  local why = string.format("%d x %d exchanges of %.3g GB", times, rounds, bytes / 1e9)
  if plan.zero_stage >= 2 then why ..= ", half as much each time" end
  return { part = "exchange of gradients", seconds = times * seconds, why = why }
end

--- With an optimiser state that is divided: each rank sends the weights that it has updated to all.
--- With layers that are divided: their owners send them to all before the forward and the backward
--- pass of each micro-batch, and before the optimiser step.
local function weights(plan, steps, micro_batches)
  local shape, world, bytes = plan.shape, plan.world, plan.shape.learned * plan.shape.element
  if plan.zero_stage == 0 then return { part = "exchange of weights", seconds = 0, why = "" } end
  local share = bytes / world
  local seconds = steps * (world - 1) * (share / link(plan, world - 1) + LATENCY * math.ceil(share / BUCKET))
  if plan.device.name ~= "cpu" then seconds += steps * 2 * bytes / TO_HOST end
  local why = string.format("%d x %d parts of %.3g GB", steps, world - 1, share / 1e9)
  if plan.zero_stage >= 3 then
    local layers, times = shape.body * shape.element, 2 * micro_batches + steps
    local once = layers / link(plan, world - 1) + LATENCY * math.max(shape.layers, math.ceil(layers / BUCKET))
    seconds += times * math.ceil(math.log(world, 2)) * once
    if plan.device.name ~= "cpu" then seconds += times * 2 * layers / TO_HOST end
    why ..= string.format(", %d x layers of %.3g GB", times, layers / 1e9)
  end
  return { part = "exchange of weights", seconds = seconds, why = why }
end

--- The same sum by a ring over NVLink, or over an interface for each GPU.
local function with_nccl(plan, steps)
  local device, bytes = plan.device, 4 * plan.shape.learned
  local slowest = if plan.world > device.ranks_per_machine then device.network else device.nvlink
  return steps * 2 * (plan.world - 1) / plan.world * bytes / slowest
end

--- What would reduce the memory of a rank.
local function advice(plan)
  local trainer, settings, all = plan.settings.trainer, plan.settings, {}
  if not trainer.gradient_checkpointing then table.insert(all, "trainer.gradient_checkpointing=true") end
  if plan.shape.adapted == 0 then table.insert(all, "policy.lora.rank=16") end
  if plan.shape.element == 4 then table.insert(all, "policy.dtype=bf16") end
  if plan.world > 1 and plan.zero_stage < 3 then
    table.insert(all, string.format("trainer.zero_stage=%d", plan.zero_stage + 1))
  end
  local samples = trainer.algorithm ~= "sft"
  if samples and settings.rollout.concurrency > 1 then table.insert(all, "a smaller rollout.concurrency") end
  table.insert(all, "a smaller policy.max_context")
  table.insert(all, "a smaller trainer.tokens_per_batch")
  return all
end

local function rate(value, unit)
  if value >= 1e12 then return string.format("%.4g T%s", value / 1e12, unit) end
  return string.format("%.3g G%s", value / 1e9, unit)
end

--- Rates, and what they are multiplied with.
local function assumptions(plan, lengths)
  local of, device = efficiency(plan), plan.device
  local function percent(share) return string.format("%.0f%%", 100 * share) end
  local all = {
    `lengths: {lengths.from}`,
    `device: {rate(device.flops, "FLOP/s")}, {rate(device.bandwidth, "B/s")} of memory for each rank`,
    `of the peak rate: {percent(of.update)} in updates, {percent(of.prefill)} in prefill`
      .. (if of.decode then `, {percent(of.decode)} in decoding` else ""),
    `of the bandwidth: {percent(of.weights)} for weights and {percent(of.cache)} for keys and values in decoding, `
      .. `{percent(of.optimizer)} in optimiser steps`,
  }
  if of.decode_layer > 0 then
    table.insert(all, string.format("fixed: %.0f us a layer in a decode step, %.1f ms in a micro-batch",
      of.decode_layer * 1e6, of.update_layer * 1e3))
  end
  if plan.world > 1 then
    table.insert(all, `exchange: Gloo, {rate(link(plan, 1), "B/s")} between ranks of a machine`)
    if plan.world > (device.ranks_per_machine or plan.world) then
      local shared = `one interface for {device.ranks_per_machine} ranks`
      table.insert(all, `exchange: {rate(link(plan, plan.world), "B/s")} to other machines, {shared}`)
    end
    if device.name ~= "cpu" then table.insert(all, "exchange: these rates were not measured on GPU machines") end
  end
  table.insert(all, "not included: evaluations, checkpoints, rewards, reading data, waiting for the slowest rank")
  return all
end

-- Parts in which all ranks take part, also ranks that only sample.
local SENT_WEIGHTS, SENT_TRAJECTORIES = "exchange of new weights", "exchange of trajectories"

--- The plan for some of the ranks.
local function with_world(plan, world)
  local part = table.clone(plan)
  part.world = world
  if world == 1 then part.zero_stage = 0 end
  return part
end

--- The first rank sends the trained weights to all ranks; each rank that has them sends them on.
local function broadcast(plan)
  local bytes, rounds = plan.shape.learned * plan.shape.element, math.ceil(math.log(plan.world, 2))
  local seconds = rounds * (bytes / link(plan, plan.world - 1) + LATENCY * math.ceil(bytes / BUCKET))
  if plan.device.name ~= "cpu" then seconds += 2 * bytes / TO_HOST end
  local why = string.format("%d x %.3g GB to the ranks that sample", rounds, bytes / 1e9)
  return { part = SENT_WEIGHTS, seconds = seconds, why = why }
end

--- What asynchronous rollouts save of a step, as a part with negative seconds. Ranks that only
--- sample work at the same time as the others, but for the exchange between both. Where every rank
--- does both, they take turns, and the tools and the last trajectories of a step are waited for
--- during the next ones.
local function overlap(plan, parts)
  local async = plan.settings.rollout.async
  local sampled, computed, shared, all = 0, 0, 0, 0
  for _, part in parts do
    all += part.seconds
    if part.part == "prefill" or part.part == "decode" or part.part == "tools" then sampled += part.seconds end
    if part.part ~= "tools" then computed += part.seconds end
    if part.part == SENT_WEIGHTS or part.part == SENT_TRAJECTORIES then shared += part.seconds end
  end
  local step, why
  if async.ranks > 0 then
    step, why = math.max(sampled, all - sampled - shared) + shared, "sampling and training at the same time"
  else
    step, why = math.max(computed, all / (1 + async.staleness)), `trajectories of {1 + async.staleness} steps at once`
  end
  return { part = "overlap", seconds = step - all, why = why }
end

--- The plan of a step.
function functions.step(plan)
  local lengths = lengths_of(plan)
  local async = plan.settings.rollout and plan.settings.rollout.async or { staleness = 0, ranks = 0 }
  -- The last ranks can sample only.
  local samples_only = if async.staleness > 0 then async.ranks else 0
  local samplers, learners = plan, plan
  if samples_only > 0 then
    samplers, learners = with_world(plan, samples_only), with_world(plan, plan.world - samples_only)
  end
  local parts, steps, trajectories = {}, nil, 0
  local function add(part)
    if part.seconds > 0 or part.part == "tools" then table.insert(parts, part) end
  end
  if plan.settings.trainer.algorithm ~= "sft" then
    for _, part in sampling(samplers, lengths) do add(part) end
    trajectories = plan.settings.trainer.group_size * plan.settings.trainer.groups_per_step
  end
  local learned, micro_batches
  learned, steps, micro_batches = learning(learners, lengths)
  for _, part in learned do add(part) end
  add(optimizer(learners, steps))
  local row = lengths.prompt + lengths.response
  if learners.world > 1 then
    add(exchange(learners, if learners.zero_stage >= 2 then micro_batches else steps))
    add(weights(learners, steps, micro_batches))
  end
  if plan.world > 1 then
    if samples_only > 0 then add(broadcast(plan)) end
    local bytes = trajectories * row * TOKEN
    add {
      part = SENT_TRAJECTORIES, seconds = bytes / link(plan, plan.world - 1),
      why = string.format("%.3g MB to every rank", bytes / 1e6),
    }
  end
  if async.staleness > 0 and trajectories > 0 then table.insert(parts, overlap(plan, parts)) end
  local step, exchanged = 0, 0
  for _, part in parts do
    step += part.seconds
    if string.find(part.part, "^exchange") then exchanged += part.seconds end
  end
  local sequences = if trajectories > 0 then trajectories else plan.settings.trainer.batch_size
  return {
    lengths = lengths,
    parts = parts,
    step_seconds = step,
    exchange_share = exchanged / step,
    sequences_per_second = sequences / step,
    tokens_per_second = sequences * (if trajectories > 0 then lengths.response else row) / step,
    exchange_with_nccl_seconds = if learners.world > 1 and plan.device.nvlink then with_nccl(learners, steps) else nil,
    zero_stage = learners.zero_stage,
    assumptions = assumptions(plan, lengths),
    advice = advice(plan),
  }
end

return functions
