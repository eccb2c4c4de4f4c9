-- Sorting more numbers than the limit allows time for, again and again.
-- expect: script_limit
-- message: reset used more than 0.1 s of CPU time
return {
  reset = function()
    while true do
      local list = {}
      for k = 1, 200000 do list[k] = (k * 7919) % 200003 end
      table.sort(list)
    end
  end,
}
