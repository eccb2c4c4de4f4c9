-- Comparing two texts of megabytes in a loop.
-- expect: script_limit
-- message: reset used more than 0.1 s of CPU time
return {
  reset = function()
    local a, b = string.rep("x", 8000000) .. "a", string.rep("x", 8000000) .. "b"
    while a < b do end -- here
  end,
}
