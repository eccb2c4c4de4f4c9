-- An error of the host is caught, changed, and raised again.
-- expect: env_error
-- message: r1.call_tools: takes a list of calls
return {
  step = function()
    local _, problem = pcall(r1.call_tools, 5)
    pcall(function() problem.x = 1 end)
    pcall(setmetatable, problem, {})
    error(problem)
  end,
}
