-- A few tables that expand to 2^60 values, encoded.
-- expect: env_error | script_limit
-- message:
return {
  reset = function()
    local bomb = { "ha" }
    for _ = 1, 60 do bomb = { bomb, bomb } end
    r1.json.encode(bomb)
  end,
}
