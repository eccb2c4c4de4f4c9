-- Megabytes of JSON, decoded in an endless loop.
-- expect: script_limit
-- message: reset
return {
  reset = function()
    local text = "[" .. string.rep("0,", 400000) .. "0]"
    while true do r1.json.decode(text) end
  end,
}
