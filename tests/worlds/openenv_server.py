"""OpenEnv servers for the tests, with the package openenv-core: on PORT a number is guessed, for
`require("@r1/env_http")`; on PORT + 1 a word, with the fields of OpenEnv's textarena_env, for
scripts/openenv.lua.

Usage: openenv_server.py PORT
"""

import random
import sys
import threading

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_app
from pydantic import BaseModel


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


class Message(BaseModel):
    sender_id: int
    content: str
    category: str


class TextAction(Action):
    message: str


class TextObservation(Observation):
    prompt: str
    messages: list[Message] = []
    current_player_id: int = 0
    legal_players: list[int] = []
    info: dict = {}


class Wordle(Environment):
    """The word is always crane. Each observation has all messages so far, as TextArena's."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.messages, self.steps = [], 0

    def seen(self, **fields):
        return TextObservation(prompt="You play Wordle.", messages=list(self.messages), **fields)

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.messages, self.steps = [Message(sender_id=-1, content="You play Wordle.", category="PROMPT")], 0
        return self.seen(reward=0.0)

    def step(self, action, timeout_s=None, **kwargs):
        self.steps += 1
        guess = action.message.partition("[")[2][:5].lower()
        marks = ["G" if a == b else "Y" if a in "crane" else "X" for a, b in zip(guess, "crane")]
        text = f"Feedback:\n{' '.join(guess.upper())}\n{' '.join(marks)}\n\nYou have {6 - self.steps} guesses left."
        self.messages.append(Message(sender_id=0, content=action.message, category="PLAYER_ACTION"))
        self.messages.append(Message(sender_id=-1, content=text, category="GAME_MESSAGE"))
        return self.seen(reward=float(guess == "crane"), done=guess == "crane" or self.steps == 6)

    @property
    def state(self):
        return State(episode_id="wordle", step_count=self.steps)


def serve(app, port):
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    first = int(sys.argv[1])
    words = create_app(Wordle, TextAction, TextObservation, env_name="textarena_env", max_concurrent_envs=16)
    threading.Thread(target=serve, args=(words, first + 1), daemon=True).start()
    serve(create_app(Game, Guess, Seen, env_name="guess", max_concurrent_envs=16), first)
