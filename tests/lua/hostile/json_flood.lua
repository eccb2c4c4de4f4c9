-- JSON of megabytes, decoded for ever.
-- expect: script_limit
-- says: reset
return {
  reset = function()
    local text = "[" .. string.rep("0,", 400000) .. "0]"
    while true do r1.json.decode(text) end
  end,
}
