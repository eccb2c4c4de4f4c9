"""An environment with every supported action space, for the tests of `require("@r1/env_gym")`."""

import gymnasium
import numpy
from gymnasium import spaces


class Spaces(gymnasium.Env):
    action_space = spaces.Dict({
        "box": spaces.Box(-1, 1, (2, 2), numpy.float32),
        "bits": spaces.MultiBinary(3),
        "many": spaces.MultiDiscrete([2, 3]),
        "one": spaces.Discrete(2, start=5),
        "pair": spaces.Tuple((spaces.Discrete(2), spaces.Text(4))),
    })
    observation_space = spaces.Text(1000)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "ready", {}

    def step(self, action):
        assert self.action_space.contains(action)
        kinds = [action["box"].dtype, action["bits"].dtype, action["many"].dtype]
        return " ".join(map(str, kinds)), 1.0, False, False, {"box": action["box"], "small": numpy.float32(0.1)}


gymnasium.register(id="Spaces-v0", entry_point=Spaces)
