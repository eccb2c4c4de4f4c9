-- Waiting inside a comparison, where no waiting is possible.
-- expect: env_error
-- message: attempt to yield across metamethod/C-call boundary
return {
  tools = { r1.tools.rhai {} },
  step = function()
    table.sort({ 3, 2, 1 }, function()
      r1.call_tools { { name = "rhai", arguments = { code = "1" } } }
      return true
    end)
  end,
}
