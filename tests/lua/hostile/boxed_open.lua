-- Braces that never close, many times.
-- expect: terminated
-- message:
return {
  reward = function()
    local text = string.rep("\\boxed{", 100000)
    return r1.last_boxed(text) == nil and r1.answer(string.rep("<answer>", 100000)) == nil and 1 or 0
  end,
}
