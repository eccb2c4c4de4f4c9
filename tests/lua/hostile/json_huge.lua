-- More text than a host function accepts.
-- expect: env_error
-- message: r1.json.decode: `text` has 8 MiB of text; limits.text = 1 MiB
return {
  reset = function()
    r1.json.decode(string.rep("[[[]]]", 1500000)) -- here
  end,
}
