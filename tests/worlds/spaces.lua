return require("recipe") {
  "spaces_env:Spaces-v0",
  observation = function(observation, info)
    return observation .. (if info.box then " " .. r1.json.encode(info) else "")
  end,
}
