#!/usr/bin/env python3
"""GDPO, the optimal token baselines and DRO by verl, LUSPO and VESPO by TRL, for cases.json.

    python3 tests/golden/rl/newer.py VENV

cases.py calls `extend`. Alone it replaces these cases in cases.json and leaves the others as they are, so that verl and TRL
are all it needs; VENV as for make.py.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

NAMES = {"gdpo", "optimal_token_baseline", "tir_optimal_token_baseline", "dro", "luspo", "vespo"}


def parted(torch, rows):
    """Rows with named parts of the reward on the last step of each trajectory, and the sum of squared probabilities."""
    generator = torch.Generator().manual_seed(41)
    random = lambda n: torch.rand(n, generator=generator, dtype=torch.float64).tolist()
    made = []
    for row in rows:
        correct, style = random(2)
        # Probabilities: a token's own squared one is the least that the sum can be.
        squares = [min(1.0, p * p + 0.3 * x) for p, x in zip((2.718281828459045**l for l in row["logp_old"]), random(len(row["mask"])))]
        more = {"parts": {"correct": float(correct > 0.5), "style": 10 * style}} if row["terminated"] else {}
        made.append(row | {"sum_pi_squared": squares} | more)
    return made


def estimators(algos, torch, Padded, batch, rows):
    import numpy as np

    p = Padded(torch, rows)
    squares, old = p.tensor("sum_pi_squared"), p.tensor("logp_old")
    index = np.array(p.groups)
    case = lambda name, options, made: {
        "batch": batch, "name": name, "options": options, "by": "verl 0.9.1", "advantages": p.split(made)
    }
    cases = []
    for name, function in [
        ("optimal_token_baseline", algos.compute_optimal_token_baseline_advantage),
        ("tir_optimal_token_baseline", algos.compute_multi_turn_optimal_token_baseline_advantage),
    ]:
        for tail in [True, False]:
            made, _ = function(p.rewards.clone(), p.mask, index, old, squares, handle_zero_tail=tail)
            cases.append(case(name, {} if tail else {"zero_tail": False}, made))
    parts = [own[-1]["parts"] for own in p.own]
    # verl reads the parts in f32 and puts each at the last place of a response; GRPO adds up what
    # it finds there.
    float32, np.float32 = np.float32, np.float64
    single, torch.float32 = torch.float32, torch.float64
    for options, keys, weights in [
        ({}, ["correct", "style"], None),
        ({"weights": {"correct": 1.0, "style": 0.25}}, ["correct", "style"], [1.0, 0.25]),
        ({"weights": {"style": 2.0}}, ["style"], [2.0]),
        ({"normalize": "none"}, ["correct", "style"], None),
    ]:
        given = {"gdpo_reward_keys": keys, "gdpo_reward_weights": weights}
        made, _ = algos.compute_gdpo_outcome_advantage(
            p.rewards.clone(),
            p.mask,
            index,
            norm_adv_by_std_in_grpo=options.get("normalize") != "none",
            config=SimpleNamespace(get=lambda name, default=None: given.get(name, default)),
            non_tensor_batch={key: np.array([own[key] for own in parts]) for key in keys},
            batch={"prompts": torch.zeros(len(parts), 1), "attention_mask": torch.cat([p.mask[:, :1], p.mask], dim=1).long()},
        )
        cases.append(case("gdpo", options, made))
    np.float32, torch.float32 = float32, single
    return cases


def policy_losses(algos, torch, Padded, batches):
    from losses import Case, trl_loss
    from verl.workers.config import ActorConfig

    cases = []
    for seq in ["trajectory", "step"]:
        c = Case(torch, Padded, batches, "loss_tokens", seq)
        for agg in ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]:
            for beta in [0.5, 2.0]:
                config = ActorConfig(strategy="fsdp", ppo_micro_batch_size_per_gpu=1, rollout_n=1)
                object.__setattr__(config.policy_loss, "dro_beta", beta)
                loss = lambda logp: algos.compute_policy_loss_dro(c.logp_old, logp, c.advantages, c.mask, agg, config)[0]
                options = {"beta": beta, "loss_agg": agg, "seq": seq}
                cases.append(c.make("dro", options, "verl 0.9.1", loss))
    shapes = {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0}
    for seq, batch in [("trajectory", "loss_trajectories"), ("step", "loss_steps")]:
        c = Case(torch, Padded, batches, batch, seq)
        own = {"seq": seq, "ratio_over": seq}
        add = lambda name, options, **kw: cases.append(
            c.make(name, own | options, "TRL 1.16.0", lambda logp: trl_loss(torch, c, logp, **kw))
        )
        for low, high in [(3e-4, 4e-4), (0.1, 0.2)]:
            band = {"clip_low": low, "clip_high": high}
            add("luspo", band, loss_type="luspo", importance_sampling_level="sequence", epsilon_low=low, epsilon_high=high)
        add("vespo", {}, loss_type="vespo", args=shapes)
        other = {"k_pos": 1.0, "lambda_pos": 0.5, "k_neg": 0.7, "lambda_neg": 4.0}
        add("vespo", other, loss_type="vespo", args={f"vespo_{name}": value for name, value in other.items()})
    return cases


def extend(golden, algos, unguarded, torch, Padded, rows):
    """Adds batches and cases to what cases.py makes."""
    golden["advantages"] = [case for case in golden["advantages"] if case["name"] not in NAMES]
    golden["losses"] = [case for case in golden["losses"] if case["name"] not in NAMES]
    whole = parted(torch, rows)
    several = [row for row in whole if row["trajectory"] != 7]
    for batch, own in [("parted", whole), ("parted_grouped", several)]:
        golden["batches"][batch] = own
        golden["advantages"] += estimators(algos, torch, Padded, batch, own)
    golden["losses"] += policy_losses(unguarded, torch, Padded, golden["batches"])


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    from make import inside

    inside(Path(sys.argv[1]))
    import torch
    from cases import Padded, trajectories
    from losses import unguarded
    from verl.trainer.ppo import core_algos as algos

    torch.set_default_dtype(torch.float64)
    path = Path(__file__).with_name("cases.json")
    golden = json.loads(path.read_text())
    extend(golden, algos, unguarded(algos), torch, Padded, trajectories(torch))
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
