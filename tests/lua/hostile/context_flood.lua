-- A context of thousands of messages, truncated to the budget repeatedly.
-- expect: context_overflow | script_limit
-- message:
return {
  context = function(_, budget)
    local messages = {}
    for k = 1, 3000 do messages[k] = r1.user("message " .. k) end
    return r1.context(messages):drop_oldest_until(math.min(budget.tokens, 100))
  end,
}
