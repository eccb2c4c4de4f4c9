-- Holds its memory while it waits for a tool.
-- expect: script_limit
-- message: step needs more memory than limits.trajectory = 32 MiB
return {
  tools = { r1.tools.rhai {} },
  step = function(state, action, good)
    local held = {}
    for k = 1, 8 do held[k] = string.rep("x", 5000000) .. k end
    r1.call_tools { { name = "rhai", arguments = { code = "let x = 0; while x < 1000 { x += 1; } x" } } }
    return good(state, action, held)
  end,
}
