"""An OpenEnv server for the tests of `require("@r1/env_http")`: a number is guessed.

Usage: openenv_server.py PORT, with the package openenv-core.
"""

import random
import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_app


class Guess(Action):
    number: int


class Seen(Observation):
    hint: str


class Game(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.secret, self.steps = 0, 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.secret, self.steps = random.Random(seed).randint(1, 9), 0
        return Seen(hint="guess a number from 1 to 9")

    def step(self, action, timeout_s=None, **kwargs):
        self.steps += 1
        if action.number == 0:
            raise ZeroDivisionError("no zero")
        if action.number == self.secret:
            return Seen(hint="right", reward=1.0, done=True)
        return Seen(hint="higher" if action.number < self.secret else "lower", reward=0.0)

    @property
    def state(self):
        return State(episode_id="guess", step_count=self.steps)


if __name__ == "__main__":
    app = create_app(Game, Guess, Seen, env_name="guess", max_concurrent_envs=16)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
