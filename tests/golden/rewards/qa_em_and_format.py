"""Writes qa_em_and_format.json: scores of Agent-R1's reward `qa_em_and_format` for hand-written and
random replies.

    python3 tests/golden/rewards/qa_em_and_format.py DIR

DIR has agent_r1/src/reward_score/qa_em_and_format.py of github.com/AgentR1/Agent-R1, branch legacy.
"""

import itertools
import json
import pathlib
import random
import sys

sys.path.insert(0, sys.argv[1])
import qa_em_and_format as original  # noqa: E402

CALL = "<tool_call>\n{\"name\": \"search\"}\n</tool_call>"
SEARCHES = [
    f"<think>I look.</think>\n{CALL}", CALL, f"<think>a</think> text {CALL}", f"<think>a</think>{CALL}{CALL}",
    f"<think>a</think>{CALL}\n", f"<think>a</think>{CALL} more", f" <think>a</think>{CALL}", "<think>a</think>",
    f"<think>a<think>b</think>{CALL}",
]
ANSWERS = [
    "<think>I know.</think>\n<answer>Ada Lovelace</answer>", "<answer>Ada Lovelace</answer>", "Ada Lovelace",
    "<think>Ada Lovelace?</think><answer>Babbage</answer>", "<think>a</think><answer>the ADA  lovelace.</answer>\n",
    "<think>a</think><answer>Babbage</answer>", "<think>a</think><answer></answer>", "<think>a</think>", "",
    "<think>a</think><answer>Ada</answer><answer>Ada Lovelace</answer>", "<think>a</think><answer>x</answer> end",
    "<think>a</think><answer>Madame Ada Lovelaces</answer>", "<think>line\nline</think>\n\n<answer>\nAda Lovelace\n</answer>",
]
REFERENCES = [["Ada Lovelace"], ["Countess of Lovelace", "Ada Lovelace"], ["a"], ["Grace Hopper"]]

random.seed(0)
conversations = [[answer] for answer in ANSWERS]
conversations += [[search, answer] for search, answer in itertools.product(SEARCHES, ANSWERS)]
conversations += [random.choices(SEARCHES, k=random.randint(2, 4)) + [random.choice(ANSWERS)] for _ in range(60)]
cases = []
for replies in conversations:
    references = random.choice(REFERENCES)
    text = "".join(f"<|im_start|>assistant\n{reply}<|im_end|>\n<|im_start|>user\nx<|im_end|>\n" for reply in replies)
    cases.append({
        "replies": replies,
        "references": references,
        "score": original.compute_score_format_answer(text, references),
        "format": min(original.compute_score_format(text), 1.0),
        "acc": original.compute_score_em(text, references),
    })
path = pathlib.Path(__file__).with_suffix(".json")
path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
print(len(cases), "cases, scores", sorted({round(case["score"], 3) for case in cases}))
