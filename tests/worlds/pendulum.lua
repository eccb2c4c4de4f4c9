return require("recipe") {
  "Pendulum-v1",
  max_steps = 1000,
  context = function(state) return { state.messages[#state.messages] } end,
}
