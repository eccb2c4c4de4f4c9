-- An endless loop in the reward.
-- expect: script_limit
-- message: reward used more than 0.1 s of CPU time
return {
  reward = function()
    for _ = 1, math.huge do end -- here
  end,
}
