--- The recipe of r1 infer without a recipe: a conversation of a user and a model.
return r1.recipe {
  env = r1.env {
    reset = function(task) return { messages = task.messages } end,
    step = function(state, action)
      table.insert(state.messages, { role = "assistant", content = action.text })
      return { done = true }
    end,
  },
}
