-- Catches out-of-memory errors with pcall in an endless loop.
-- expect: script_limit
-- message: reset
-- cpu: 5
return {
  reset = function()
    local all = {}
    while true do
      pcall(function() all[#all + 1] = string.rep("y", 1000000) .. #all end)
    end
  end,
}
