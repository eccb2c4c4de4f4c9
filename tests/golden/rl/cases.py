#!/usr/bin/env python3
"""Makes cases.json: estimators by name over rows of ragged multi-step trajectories, by the packages that define them, on
CPU in double precision. `by` names the package; `formula` is the definition written out in numpy, where none could be had.

    python3 tests/golden/rl/cases.py VENV

VENV as for make.py. It also needs `pip install --no-deps skyrl==0.3.0 jaxtyping wadler_lindig loguru gymnasium
farama-notifications liger-kernel==0.8.5 openrlhf==0.11.2 areal==1.0.4`, and in VENV/references ragen/trainer/core_algos.py
of RAGEN-AI/RAGEN at 5eb79b8 as ragen_core_algos.py, slime/utils/ppo_utils.py of THUDM/slime at 624b824 as
slime_ppo_utils.py, and what agents.py names.
"""

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

from agents import agents, normalized
from losses import losses, unguarded
from make import inside
from newer import extend


def trajectories(torch):
    """Eight trajectories of one to four steps in groups of three, two, two and one. A step is a reply of one to five tokens
    with, after it, up to three tokens that the environment wrote (masked). One group has equal rewards."""
    generator = torch.Generator().manual_seed(31)
    random = lambda n, scale=1.0: (torch.randn(n, generator=generator, dtype=torch.float64) * scale).tolist()
    shapes = [
        [(3, 1), (2, 2), (4, 0)],
        [(5, 0)],
        [(1, 3), (1, 1), (2, 0), (3, 2)],
        [(2, 2), (5, 0)],
        [(4, 1), (1, 0)],
        [(3, 0)],
        [(2, 1), (3, 1)],
        [(1, 0)],
    ]
    groups = [4, 4, 4, 1, 1, 9, 9, 2]
    anchors = [["a", "b", "a"], ["a"], ["b", "b", "c", "a"], ["x", "y"], ["x", "z"], ["k"], ["k", "l"], ["q"]]
    rows = []
    for trajectory, steps in enumerate(shapes):
        for step, (sampled, shown) in enumerate(steps):
            n = sampled + shown
            last = step + 1 == len(steps)
            rewards = [0.0] * n
            rewards[sampled - 1] = 0.5 if groups[trajectory] == 9 and last else random(1)[0]
            if groups[trajectory] == 9 and not last:
                rewards[sampled - 1] = 0.0
            old = [-abs(x) - 0.05 for x in random(n)]
            rows.append(
                {
                    "group": groups[trajectory],
                    "trajectory": trajectory,
                    "step": step,
                    "mask": [True] * sampled + [False] * shown,
                    "rewards": rewards,
                    "values": random(n, 0.5),
                    "logp_old": old,
                    "logp": [min(a + b, -0.01) for a, b in zip(old, random(n, 0.35))],
                    "logp_ref": [min(a + b, -0.01) for a, b in zip(old, random(n, 0.8))],
                    "anchor": anchors[trajectory][step],
                    "terminated": last,
                }
            )
    return rows


class Padded:
    """Rows as the packages want them: a line per trajectory, env tokens between its steps, padding at the end."""

    def __init__(self, torch, rows):
        self.torch, self.rows = torch, rows
        numbers = list(dict.fromkeys(row["trajectory"] for row in rows))
        self.own = [[row for row in rows if row["trajectory"] == number] for number in numbers]
        width = max(sum(len(row["mask"]) for row in own) for own in self.own)
        self.tensor = lambda name: torch.tensor(
            [(line + [0.0] * width)[:width] for line in ([x for row in own for x in row[name]] for own in self.own)],
            dtype=torch.float64,
        )
        self.mask, self.rewards, self.values = map(self.tensor, ["mask", "rewards", "values"])
        self.groups = [own[0]["group"] for own in self.own]
        self.returns = [sum(sum(row["rewards"]) for row in own) for own in self.own]

    def split(self, matrix):
        """A matrix cut into rows again, zero where nothing was sampled."""
        lines = (matrix * self.mask).tolist()
        cut = []
        for own, line in zip(self.own, lines):
            at = 0
            for row in own:
                cut.append(line[at : at + len(row["mask"])])
                at += len(row["mask"])
        return cut

    def each(self, numbers):
        """A number per trajectory."""
        return self.split(self.torch.tensor(numbers, dtype=self.torch.float64).unsqueeze(-1) * self.mask)

    def each_row(self, numbers):
        return [[x if m else 0.0 for m in row["mask"]] for row, x in zip(self.rows, numbers)]


def verl_cases(algos, torch, rows, batch):
    import numpy as np

    p = Padded(torch, rows)
    index = np.array(p.groups)
    rewards = p.rewards.clone
    config = lambda **kw: SimpleNamespace(get=lambda name, default=None: kw.get(name, default), **kw)
    case = lambda name, options, pair: {
        "batch": batch, "name": name, "options": options, "by": "verl 0.9.1", "advantages": p.split(pair[0])
    }
    grpo = algos.compute_grpo_outcome_advantage
    cases = [
        case("grpo", {}, grpo(rewards(), p.mask, index)),
        case("grpo", {"normalize": "none"}, grpo(rewards(), p.mask, index, norm_adv_by_std_in_grpo=False)),
        case("rloo", {}, algos.compute_rloo_outcome_advantage(rewards(), p.mask, index)),
        case("opo", {}, algos.compute_opo_outcome_advantage(rewards(), p.mask, index)),
        case("gpg", {}, algos.compute_gpg_outcome_advantage(rewards(), p.mask, index)),
        case(
            "gpg", {"f_norm": 2.5}, algos.compute_gpg_outcome_advantage(rewards(), p.mask, index, f_norm=2.5)
        ),
    ]
    if p.mask.sum() > 1:
        plus = algos.compute_reinforce_plus_plus_outcome_advantage
        based = algos.compute_reinforce_plus_plus_baseline_outcome_advantage
        cases += [
            case("reinforce_pp", {"gamma": 0.97}, plus(rewards(), p.mask, config=config(gamma=0.97))),
            case("reinforce_pp_baseline", {}, based(rewards(), p.mask, index)),
        ]
        advantages, returns = algos.compute_gae_advantage_return(rewards(), p.values, p.mask, 0.97, 0.9)
        cases.append(case("gae_token", {"gamma": 0.97, "lambda": 0.9}, (advantages,)))
        cases[-1]["returns"] = p.split(returns)
    if min(p.groups.count(g) for g in p.groups) > 1:
        passk = algos.compute_grpo_passk_outcome_advantage
        for normalize in [True, False]:
            options = {} if normalize else {"normalize": "none"}
            pair = passk(rewards(), p.mask, index, config=config(norm_adv_by_std_in_grpo=normalize))
            cases.append(case("grpo_passk", options, pair))
    # Steps as the tokens of verl's GAE: its returns minus the values are what it whitens.
    width = max(map(len, p.own))
    line = lambda number: torch.tensor(
        [([number(row) for row in own] + [0.0] * width)[:width] for own in p.own], dtype=torch.float64
    )
    step_mask, values = line(lambda row: 1.0), line(lambda row: row["values"][0])
    whiten, algos.verl_F.masked_whiten = algos.verl_F.masked_whiten, lambda advantages, _: advantages
    _, returns = algos.compute_gae_advantage_return(
        line(lambda row: sum(row["rewards"])), values, step_mask, 0.95, 0.8
    )
    algos.verl_F.masked_whiten = whiten  # it raises for a single one
    options = {"gamma": 0.95, "lambda": 0.8}
    raw = (returns - values)[step_mask > 0]
    cases.append(case("gae", options | {"whiten": "none"}, (p.mask,)))
    cases[-1]["advantages"] = p.each_row(raw.tolist())
    targets = returns[step_mask > 0].tolist()
    cases[-1]["returns"] = [[x] + [0.0] * (len(row["mask"]) - 1) for row, x in zip(rows, targets)]
    whitened = (raw - raw.mean()) / (raw.std() + 1e-8) if len(raw) > 1 else raw - raw.mean()
    cases.append(cases[-1] | {"options": options, "by": "verl 0.9.1, whitened by formula"})
    cases[-1]["advantages"] = p.each_row(whitened.tolist())
    return cases


def remax_cases(algos, torch, rows, baselines):
    p = Padded(torch, rows)
    own = torch.tensor([baselines[str(g)] for g in p.groups], dtype=torch.float64)
    advantages, _ = algos.compute_remax_outcome_advantage(p.rewards.clone(), own, p.mask)
    case = {"batch": "remax", "name": "remax"}
    return [
        case | {"options": {"reward_to_go": True}, "by": "verl 0.9.1", "advantages": p.split(advantages)},
        case | {"options": {}, "by": "formula", "advantages": p.each([s - b for s, b in zip(p.returns, own.tolist())])},
    ]


def maxrl_cases(torch, rows):
    import numpy as np

    for row in rows:
        row["rewards"] = [abs(x) for x in row["rewards"]]
    p = Padded(torch, rows)
    case = {"batch": "positive", "name": "max_rl", "options": {}}
    try:
        import typing

        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict  # pydantic insists before Python 3.12
        from skyrl.backends.skyrl_train.utils.ppo_utils import compute_maxrl_advantage
    except Exception as error:  # noqa: BLE001
        print(f"skyrl: {error}".splitlines()[0])
        means = {g: np.mean([s for s, o in zip(p.returns, p.groups) if o == g]) for g in p.groups}
        alone = lambda g: p.groups.count(g) == 1
        made = [s if alone(g) else (s - means[g]) / (means[g] + 1e-6) for s, g in zip(p.returns, p.groups)]
        return [case | {"by": "formula", "advantages": p.each(made)}]
    made = compute_maxrl_advantage(p.rewards.clone(), p.mask, np.array(p.groups))[0]
    return [case | {"by": "skyrl 0.3.0", "advantages": p.split(made)}]


def ragen_cases(torch, rows, references):
    path = references / "ragen_core_algos.py"
    if not path.exists():
        sys.exit(f"{path} is missing, see the top of this file")
    spec = importlib.util.spec_from_file_location("ragen_core_algos", path)
    module = importlib.util.module_from_spec(spec)
    module.torch = torch  # it counts on names that verl 0.9.1 no longer exports
    from verl.utils import torch_functional

    module.verl_F = torch_functional
    for name in ["np", "defaultdict", "Optional", "Enum"]:
        setattr(module, name, None)
    spec.loader.exec_module(module)
    p = Padded(torch, rows)
    # It computes in f32; double here, and with every turn's reward at its last token and not zero.
    torch.Tensor.float, single = torch.Tensor.double, torch.Tensor.float
    made, returns = module.compute_bi_level_gae_advantage_return(p.rewards, p.values, p.mask, 0.98, 0.9, 0.95)
    torch.Tensor.float = single
    options = {"gamma_turn": 0.95, "gamma": 0.98, "lambda": 0.9}
    case = {"batch": "turns", "name": "gae_bilevel", "options": options, "by": "RAGEN 5eb79b8"}
    return [case | {"advantages": p.split(made), "returns": p.split(returns)}]


def formula_cases(torch, rows):
    """GiGPO and RAPO written out."""
    import numpy as np

    p = Padded(torch, rows)
    cases = []
    grouped = lambda values, keys, std: [
        (v - (np.mean(own) if len(own) > 1 else 0.0)) / ((np.std(own, ddof=1) if len(own) > 1 else 1.0) + 1e-6 if std else 1.0)
        for v, k in zip(values, keys)
        for own in [[o for o, other in zip(values, keys) if other == k]]
    ]
    discounted, keys = [], []
    for own in p.own:
        running, back = 0.0, []
        for row in reversed(own):
            running = sum(row["rewards"]) + 0.95 * running
            back.append(running)
        discounted += back[::-1]
        keys += [(row["group"], row["anchor"]) for row in own]
    for mode, std in [("mean_std", True), ("mean", False)]:
        whole = dict(zip([own[0]["trajectory"] for own in p.own], grouped(p.returns, p.groups, std)))
        step = [0.0 if keys.count(k) == 1 else a for a, k in zip(grouped(discounted, keys, std), keys)]
        made = [whole[row["trajectory"]] + 0.7 * s for row, s in zip(rows, step)]
        options = {"mode": mode, "weight": 0.7, "gamma": 0.95}
        cases.append({"name": "gigpo", "options": options, "advantages": p.each_row(made)})
    mean = [np.mean([x for row in own for x, m in zip(row["logp"], row["mask"]) if m]) for own in p.own]
    factors = []
    for i, (s, g) in enumerate(zip(p.returns, p.groups)):
        won = s > 0.2
        others = [j for j, o in enumerate(p.groups) if o == g and (p.returns[j] > 0.2) != won]
        pair = [(i, j) if won else (j, i) for j in others]
        factors.append(np.mean([1.1 if mean[w] - mean[l] < 0.5 else 1.0 for w, l in pair]) if pair else 1.0)
    made = [a * f for a, f in zip(grouped(p.returns, p.groups, True), factors)]
    cases.append({"name": "rapo", "options": {"threshold": 0.2}, "advantages": p.each(made)})
    made = [
        (s - np.mean(own)) / (np.std(own) + 1e-6) if len(own) > 1 else s / (1 + 1e-6)
        for s, g in zip(p.returns, p.groups)
        for own in [[o for o, other in zip(p.returns, p.groups) if other == g]]
    ]
    cases.append({"name": "grpo", "options": {"normalize": "population"}, "advantages": p.each(made)})
    return [case | {"batch": "whole", "by": "formula"} for case in cases]


def failed_cases(algos, torch, rows):
    """Two failures, which verl never sees. None leaves a group with a single survivor: r1 gives that one no advantage."""
    failed = {2: "env_error", 7: "tool_timeout"}
    batch = [row | ({"status": failed[row["trajectory"]]} if row["trajectory"] in failed else {}) for row in rows]
    cases = verl_cases(algos, torch, [row for row in rows if row["trajectory"] not in failed], "failed")
    for case in cases:
        for name in ["advantages", "returns"]:
            if name in case:
                made = iter(case[name])
                case[name] = [[0.0] * len(row["mask"]) if "status" in row else next(made) for row in batch]
    return batch, cases


def advantages(algos, torch, references):
    rows = trajectories(torch)
    copy = lambda rows: json.loads(json.dumps(rows))
    batches, cases = {"whole": rows}, verl_cases(algos, torch, rows, "whole")
    cases += formula_cases(torch, copy(rows))
    # One trajectory of one step, and one of one token.
    for name, number in [("one_row", 5), ("one_token", 7)]:
        batches[name] = [row for row in rows if row["trajectory"] == number]
        cases += verl_cases(algos, torch, batches[name], name)
    # Groups of at least two only, for pass@k.
    batches["grouped"] = [row for row in rows if row["trajectory"] != 7]
    cases += [c for c in verl_cases(algos, torch, batches["grouped"], "grouped") if c["name"] == "grpo_passk"]
    batches["failed"], made = failed_cases(algos, torch, rows)
    cases += made
    # Two cut short: verl bootstraps when the discounted next value is part of the last reward.
    cut = {0: 0.7, 4: -0.3}
    last = lambda row: row["terminated"] and row["trajectory"] in cut
    mark = lambda row: {"terminated": False, "truncated": True, "next_value": cut[row["trajectory"]]}
    batches["truncated"] = [row | (mark(row) if last(row) else {}) for row in rows]
    for name, gamma in [("gae", 0.95), ("gae_token", 0.97)]:
        added = copy(rows)
        for row in filter(last, added):
            place = max(k for k, m in enumerate(row["mask"]) if m)
            row["rewards"][place] += gamma * cut[row["trajectory"]]
        cases += [c for c in verl_cases(algos, torch, added, "truncated") if c["name"] == name]
        plain = [c for c in verl_cases(algos, torch, rows, "truncated") if c["name"] == name]
        cases += [c | {"options": c["options"] | {"bootstrap": False}} for c in plain]
    baselines = {"4": 0.4, "1": -0.2, "9": 0.5, "2": 1.5}
    companion = lambda i, group, s: {
        "group": int(group), "trajectory": 100 + i, "step": 0, "mask": [True], "rewards": [s], "greedy": True
    }
    batches["remax"] = rows + [companion(i, g, s) for i, (g, s) in enumerate(baselines.items())]
    for case in remax_cases(algos, torch, rows, baselines):
        cases.append(case | {"advantages": case["advantages"] + [[0.0]] * len(baselines)})
    batches["positive"] = copy(rows)
    cases += maxrl_cases(torch, batches["positive"])
    more, made = agents(torch, Padded, copy, copy(rows), copy(batches["grouped"]), references)
    batches |= more
    cases += made
    batches["turns"] = [row for row in rows if row["group"] != 9]
    cases += ragen_cases(torch, batches["turns"], references)
    return {"batches": batches, "advantages": cases}


def rewards(algos, torch, references):
    """Running statistics, normalisation within groups, the adaptive KL coefficient."""
    import numpy as np
    from gymnasium.wrappers.utils import RunningMeanStd

    generator = torch.Generator().manual_seed(33)
    random = lambda n: torch.randn(n, generator=generator, dtype=torch.float64).tolist()
    gamma, running, updates = 0.9, RunningMeanStd(epsilon=1e-4, shape=()), []
    for lengths in [(3, 1), (2, 4, 1), (1,)]:
        batch = [random(n) for n in lengths]
        returns = []
        for own in batch:
            total = 0.0
            for reward in own:
                total = gamma * total + reward
                returns.append(total)
        running.update(np.array(returns))
        updates.append({"rewards": batch, "factor": 1 / np.sqrt(running.var + 1e-8)})
    returns, keys = random(9) + [0.5, 0.5, 2.0], [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 3]
    returns[0] += 9
    controller, kl = algos.AdaptiveKLController(0.001, 0.1, 10000), []
    for measured, n in [(0.05, 64), (0.11, 32), (3.0, 128)]:
        controller.update(measured, n)
        kl.append({"kl": measured, "n": n, "coef": float(controller.value)})
    return {
        "running": {"gamma": gamma, "updates": updates, "by": "gymnasium"},
        "normalize": {
            "returns": returns, "keys": keys, "made": normalized(torch, returns, keys, references), "by": "RAGEN 5eb79b8"
        },
        "controller": {"coef": 0.001, "target": 0.1, "horizon": 10000, "updates": kl, "by": "verl 0.9.1"},
    }


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    inside(Path(sys.argv[1]))
    import torch
    from verl.trainer.ppo import core_algos as algos

    torch.set_default_dtype(torch.float64)
    golden = advantages(algos, torch, Path(sys.argv[1]) / "references")
    golden["rewards"] = rewards(algos, torch, Path(sys.argv[1]) / "references")
    batches, made = losses(algos, torch, Padded, trajectories(torch), Path(sys.argv[1]) / "references")
    golden["batches"] |= batches
    golden |= made
    extend(golden, algos, unguarded(algos), torch, Padded, trajectories(torch))
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items())
    Path(__file__).with_name("cases.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
