-- Refused memory is caught with pcall, for ever.
-- expect: script_limit
-- says: reset
return {
  reset = function()
    local all = {}
    while true do
      pcall(function() all[#all + 1] = string.rep("y", 1000000) .. #all end)
    end
  end,
}
