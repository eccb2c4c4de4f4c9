"""Reward functions as TRL calls them: `GRPOTrainer(reward_funcs=[accuracy, steps, brevity])`."""

import re


def numbers_of(text):
    return [int(number) for number in re.findall(r"-?\d+", text)]


def accuracy(completions, answer, **kwargs):
    """1 where the number after #### is the answer."""
    rewards = []
    for completion, wanted in zip(completions, answer):
        found = re.search(r"####\s*(-?\d+)", completion[0]["content"])
        rewards.append(1.0 if found and int(found.group(1)) == wanted else 0.0)
    return rewards


def steps(prompts, completions, **kwargs):
    """The share of right equations `a+b=c`; None where there are none to grade."""
    rewards = []
    for completion in completions:
        sums = re.findall(r"(\d+)\+(\d+)=(\d+)", completion[0]["content"])
        right = [int(a) + int(b) == int(c) for a, b, c in sums]
        rewards.append(sum(right) / len(right) if right else None)
    return rewards


def brevity(completion_ids, **kwargs):
    """0 up to 48 tokens, then down to -1 at 64."""
    return [-min(1.0, max(0, len(ids) - 48) / 16) for ids in completion_ids]
