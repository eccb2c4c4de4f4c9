"""A reward for GSM8K as verl calls it: `custom_reward_function.path=gsm8k_reward.py`."""

import re

NUMBER = re.compile(r"####\s*(-?[\d,]*\.?\d+)")


def final_number(text):
    """The number after the last `####`, without commas."""
    found = NUMBER.findall(text)
    return found[-1].replace(",", "") if found else None


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if "gsm8k" not in data_source:
        raise NotImplementedError(f"no score for {data_source}")
    number = final_number(solution_str)
    right = number is not None and float(number) == float(ground_truth.replace(",", ""))
    return {"score": 1.0 if right else 0.0, "answered": number is not None, "characters": len(solution_str)}
