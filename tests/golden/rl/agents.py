"""Cases by the code of agent trainers that is no package: GiGPO, RAPO, GRPO with population deviations, RAGEN's normalisation.

In VENV/references lie, as at those commits: gigpo/core_gigpo.py of langfengQ/DrMAS at 3b556f2 (it is verl-agent's, by its
author) as core_gigpo.py; agent_r1/src/core_algos.py of lennendd/TableMind-Repo at af03dcc as tablemind_core_algos.py;
rllm/trainer/algorithms/rl_algo.py of rllm-org/rllm at 9beb6e0 as rllm_rl_algo.py; ragen/llm_agent/ctx_manager.py of
RAGEN-AI/RAGEN at 5eb79b8 as ragen_ctx_manager.py. They compute in f32; here the same lines run in f64.
"""

import importlib.util
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock


class Wide:
    """numpy or torch, whose f32 is f64."""

    def __init__(self, library):
        self.library = library

    def __getattr__(self, name):
        return getattr(self.library, "float64" if name == "float32" else name)


def reference(directory, name, absent=()):
    """A file as a module. What it imports and nothing here calls is made up."""
    path = directory / f"{name}.py"
    if not path.exists():
        sys.exit(f"{path} is missing, see the top of agents.py")
    made_up = {module: MagicMock() for module in absent if module not in sys.modules}
    sys.modules |= made_up
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for made in made_up:
        del sys.modules[made]
    return module


def gigpo_cases(torch, np, p, rows, batch, similarity, directory):
    module = reference(directory, "core_gigpo")
    module.np, module.torch = Wide(np), Wide(torch)
    width = max(len(row["mask"]) for row in rows)
    pad = lambda line: line + [0.0] * (width - len(line))
    mask = torch.tensor([pad([float(m) for m in row["mask"]]) for row in rows])
    totals = dict(zip([own[0]["trajectory"] for own in p.own], p.returns))
    # Every row of a trajectory carries what the whole of it earned, once.
    scores = torch.tensor([pad([totals[row["trajectory"]]]) for row in rows])
    column = lambda name: np.array([row[name] for row in rows])
    data = SimpleNamespace(
        batch={"input_ids": mask},
        non_tensor_batch={
            "rewards": np.array([sum(row["rewards"]) for row in rows]),
            "traj_uid": column("trajectory"),
            "active_masks": np.ones(len(rows)),
            "env_step": column("step"),
        },
    )
    returns = module.compute_step_discounted_returns(data, 0.95)
    cases = []
    for mode, theirs in [("mean_std", "mean_std_norm"), ("mean", "mean_norm")]:
        made, _ = module.compute_gigpo_outcome_advantage(
            scores.clone(), returns, mask, column("anchor"), column("group"), column("trajectory"),
            step_advantage_w=0.7, mode=theirs, enable_similarity=similarity is not None,
            similarity_thresh=similarity or 0.95,
        )
        options = {"mode": mode, "weight": 0.7, "gamma": 0.95} | ({"similarity": similarity} if similarity else {})
        lines = [line[: len(row["mask"])] for line, row in zip(made.tolist(), rows)]
        cases.append({"batch": batch, "name": "gigpo", "options": options, "by": "verl-agent", "advantages": lines})
    return cases


def alike(rows):
    """The same rows with long observations, those of one anchor a letter apart."""
    seen = {}
    for i, row in enumerate(rows):
        letter = row["anchor"]
        text = f"You stand in room {letter * 9}. A door leads to {letter * 9} and the lamp is lit."
        seen[letter] = seen.get(letter, 0) + 1
        row["anchor"] = text.replace("lamp", f"lam{'pqrs'[seen[letter] % 4]}")
    return rows


def rapo_cases(torch, np, p, batch, directory):
    """Without groups of one, which have an advantage of 0 there and their return in GRPO."""
    module = reference(directory, "tablemind_core_algos")
    torch.Tensor.float, single = torch.Tensor.double, torch.Tensor.float
    cases = []
    for threshold, normalize in [(0.2, True), (-0.5, True), (0.2, False)]:
        made, _ = module.compute_rank_grpo_advantage(
            p.rewards.clone(), p.mask, np.array(p.groups), p.tensor("logp"),
            reward_threshold=threshold, norm_adv_by_std_in_grpo=normalize,
        )
        options = {"threshold": threshold} | ({} if normalize else {"normalize": "none"})
        cases.append({"batch": batch, "name": "rapo", "options": options, "by": "TableMind af03dcc", "advantages": p.split(made)})
    torch.Tensor.float = single
    return cases


def population_cases(np, p, batch, directory):
    module = reference(directory, "rllm_rl_algo")
    made = [0.0] * len(p.own)
    for group in set(p.groups):
        places = [i for i, own in enumerate(p.groups) if own == group]
        own, _ = module.calculate_grpo_advantages_per_group(np.array([p.returns[i] for i in places]))
        for place, advantage in zip(places, own):
            made[place] = float(advantage)
    case = {"batch": batch, "name": "grpo", "options": {"normalize": "population"}, "by": "rLLM 9beb6e0"}
    return [case | {"advantages": p.each(made)}]


def normalized(torch, returns, keys, directory):
    """What RAGEN makes of returns, by method; `keys` are the groups."""
    module = reference(
        directory, "ragen_ctx_manager",
        ["hydra", "ragen", "ragen.utils", "ragen.env", "verl.utils.dataset.rl_dataset"],
    )
    module.torch = Wide(torch)
    outputs = [{"group_id": key} for key in keys]
    made = {}
    for method in ["identity", "mean", "mean_std", "asym_clip"]:
        wanted = SimpleNamespace(grouping="state", method=method)
        config = SimpleNamespace(agent_proxy=SimpleNamespace(use_turn_scores=False, reward_normalization=wanted))
        scores = torch.tensor(returns).unsqueeze(1)
        scores = module.ContextManager._normalize_score_tensor(SimpleNamespace(config=config), scores, outputs)
        made[method] = scores[:, -1].tolist()
    return made


def agents(torch, padded, copy, rows, grouped, directory):
    """Cases, and the batches that they add."""
    import numpy as np

    twins = alike(copy(rows))
    cases = gigpo_cases(torch, np, padded(torch, rows), rows, "whole", None, directory)
    cases += gigpo_cases(torch, np, padded(torch, twins), twins, "alike", 0.95, directory)
    cases += rapo_cases(torch, np, padded(torch, grouped), "grouped", directory)
    cases += population_cases(np, padded(torch, rows), "whole", directory)
    return {"alike": twins}, cases
