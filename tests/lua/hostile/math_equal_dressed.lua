-- Answers that are slow to compare.
-- expect: terminated | script_limit
-- message:
return {
  reward = function()
    local text = string.rep("\\text{", 100000)
    local same = r1.math_equal(text, text .. "x")
    local deep = r1.math_equal(string.rep("(", 300000), string.rep("{", 300000))
    local long = r1.math_equal(string.rep("1,", 200000), string.rep("2,", 200000))
    local power = r1.math_equal("9^9^9^9^9^9^9", string.rep("-", 100000) .. "1")
    return (same or deep or long or power) and 1 or 0
  end,
}
