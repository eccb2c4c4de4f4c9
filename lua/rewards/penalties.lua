--- Penalties for length and repetition.
---
--- Sources: DAPO's soft overlong punishment (arXiv:2503.14476, equation 13); the repetition penalty
--- and the cosine length reward of "Demystifying Long Chain-of-Thought Reasoning"
--- (arXiv:2502.03373), as in open-r1.

local check = require("@r1/options")

local penalties = {}

--- 0 up to `longest - buffer` tokens, falling to -1 at `longest`, and -1 above.
---
--- The setting `trainer.shaping.overlong` does the same in the host; this function is for rewards
--- that combine it with others.
function penalties.overlong(tokens, options)
  options = check("overlong", options, { "longest", "buffer" })
  local over = tokens - (options.longest - options.buffer)
  if over <= 0 then return 0 end
  return math.max(-1, -over / options.buffer)
end

--- `most * (1 - unique / all)` over the n-grams of words: 0 without a repetition.
---
--- Options: `n` (3), `most` (-1). Texts with fewer than `n` words have 0.
---
--- Gamed by: filler text without repetition.
function penalties.repetition(text, options)
  options = check("repetition", options, { "n", "most" })
  local n, most = options.n or 3, options.most or -1
  local words = {}
  for word in string.gmatch(r1.text.lower(text or ""), "%S+") do
    words[#words + 1] = word
  end
  local all, unique, seen = #words - n + 1, 0, {}
  if all <= 0 then return 0 end
  for at = 1, all do
    local gram = table.concat(words, " ", at, at + n - 1)
    if not seen[gram] then
      seen[gram] = true
      unique += 1
    end
  end
  return most * (1 - unique / all)
end

--- A reward that depends on correctness and length by a cosine: short correct responses have the
--- most, short wrong ones the least.
---
--- Options: `longest` (required), `correct` ({ 0.5, 1 }: at the longest and at no length), `wrong`
--- ({ -0.5, -1 }). A response of `longest` tokens or more has the first value.
---
--- Gamed by: with a difference of `correct` that is large, by answers without reasoning.
function penalties.cosine_length(correct, tokens, options)
  options = check("cosine_length", options, { "longest", "correct", "wrong" })
  local range = correct and (options.correct or { 0.5, 1 }) or (options.wrong or { -0.5, -1 })
  local share = math.min(1, tokens / options.longest)
  return range[1] + 0.5 * (range[2] - range[1]) * (1 + math.cos(share * math.pi))
end

return penalties
