-- Malformed tool calls in every format.
-- expect: terminated | script_limit
-- message:
return {
  reward = function()
    local formats = { "hermes", "qwen3_coder", "llama3", "pythonic", "mistral", "deepseek_v3", "deepseek_v31", "harmony", "retool", "tir", "answer" }
    local pieces = { "<tool_call>", "<tool_call>{\"name\":", "[f(", "[TOOL_CALLS]", "<function=f><parameter=a>", "<code>", "```python\n", "{\"name\": \"f\", ", "<answer>", "<|channel|>" }
    for _, format in ipairs(formats) do
      for _, piece in ipairs(pieces) do r1.text.parse_tool_calls(format, string.rep(piece, 20000)) end
    end
    return 1
  end,
}
