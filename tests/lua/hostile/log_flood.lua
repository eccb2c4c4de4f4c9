-- A hundred thousand lines in the log.
-- expect: terminated | script_limit
-- message:
return {
  reset = function(task, good)
    for k = 1, 100000 do print("line", k) end
    return good(task)
  end,
}
