"""Adds Math-Verify's verdicts to pairs.jsonl.

    pip install 'math-verify[antlr4_13_2]==0.9.0'
    python tests/golden/answers/verdicts.py

The field `math_verify` has two verdicts: of the answer as `$\\boxed{answer}$` with the reference as
`$reference$`, and of both as they are. A complete reply (see REPLIES) is given as it is in both.
"""

import json
import pathlib

from math_verify import parse, verify

PAIRS = pathlib.Path(__file__).parent / "pairs.jsonl"
REPLIES = {"headings", "explanations", "corrections", "hacks"}


def verdicts(pair):
    answer, reference = pair["answer"], pair["reference"]
    boxed = answer
    if pair["kind"] not in REPLIES and "\\boxed" not in answer and "answer" not in answer.lower():
        boxed = "$\\boxed{" + answer.removeprefix("$").removesuffix("$") + "}$"
    return [verify(parse(f"${reference}$"), parse(boxed)), verify(parse(reference), parse(answer))]


pairs = [json.loads(line) for line in PAIRS.read_text().splitlines()]
with PAIRS.open("w") as file:
    for pair in pairs:
        pair["math_verify"] = verdicts(pair)
        file.write(json.dumps(pair, ensure_ascii=False) + "\n")
