#!/usr/bin/env python3
"""Makes golden.json: advantages, losses, gradients and AdamW steps by verl, TRL and PyTorch, on CPU in double precision.

    python3 tests/golden/rl/make.py VENV

VENV is a directory for a virtual environment with the peers (about 5 GB); it is made when missing, and reused.
"""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace

PACKAGES = ["torch==2.11.0", "transformers==5.17.*", "trl==1.16.0", "datasets", "accelerate"]
# What verl.trainer.ppo.core_algos imports; verl's own pins would replace the packages above.
VERL = ["verl==0.9.1"], ["ray", "tensordict", "omegaconf", "codetiming", "orjson", "packaging", "numpy"]


def inside(directory: Path) -> None:
    """Runs this file again in the virtual environment, which is created and filled if missing."""
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True)
    if subprocess.run([python, "-c", "import verl, trl, tensordict, ray"], capture_output=True).returncode:
        install = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, *PACKAGES], check=True)
        subprocess.run([*install, "--no-deps", *VERL[0]], check=True)
        subprocess.run([*install, *VERL[1]], check=True)
    if Path(sys.prefix) != directory.resolve():
        os.execv(python, [python, *sys.argv])


def batch(torch):
    """Six trajectories of up to nine tokens in groups of three, two and one; masks have holes (tool output)."""
    generator = torch.Generator().manual_seed(20)
    noise = lambda scale: torch.randn(6, 9, generator=generator, dtype=torch.float64) * scale
    mask = torch.tensor(
        [
            [1, 1, 1, 1, 1, 1, 1, 1, 1],
            [1, 1, 0, 0, 1, 1, 1, 0, 0],
            [1, 1, 1, 0, 0, 1, 0, 1, 1],
            [1, 0, 0, 0, 0, 0, 0, 0, 0],
            [1, 1, 0, 1, 1, 1, 1, 1, 0],
            [1, 1, 1, 1, 0, 0, 0, 1, 0],
        ],
        dtype=torch.float64,
    )
    logp_old = -noise(1.0).abs() - 0.05
    return SimpleNamespace(
        mask=mask,
        groups=[4, 4, 9, 9, 4, 7],
        logp_old=logp_old,
        logp=(logp_old + noise(0.35)).clamp(max=-0.01),
        logp_ref=(logp_old + noise(0.8)).clamp(max=-0.01),
        advantages=noise(1.0),
        rewards=noise(0.3) * mask,
        values=noise(0.5),
    )


def advantages(algos, b):
    """Estimators by verl; every output is per token and zero where the mask is."""
    import numpy as np

    index = np.array(b.groups)
    gamma, lam = 0.97, 0.9
    config = SimpleNamespace(gamma=gamma)
    rewards = b.rewards.clone
    at_mask = lambda pair: (pair[0] * b.mask).tolist()
    grpo = algos.compute_grpo_outcome_advantage
    return {
        "gamma": gamma,
        "lambda": lam,
        "grpo": at_mask(grpo(rewards(), b.mask, index)),
        "grpo_mean": at_mask(grpo(rewards(), b.mask, index, norm_adv_by_std_in_grpo=False)),
        "rloo": at_mask(algos.compute_rloo_outcome_advantage(rewards(), b.mask, index)),
        "opo": at_mask(algos.compute_opo_outcome_advantage(rewards(), b.mask, index)),
        "reinforce_pp": at_mask(
            algos.compute_reinforce_plus_plus_outcome_advantage(rewards(), b.mask, config=config)
        ),
        "reinforce_pp_baseline": at_mask(
            algos.compute_reinforce_plus_plus_baseline_outcome_advantage(rewards(), b.mask, index)
        ),
        "gae": at_mask(algos.compute_gae_advantage_return(rewards(), b.values, b.mask, gamma, lam)),
    }


def ppo_by_verl(algos, b):
    from verl.workers.config import ActorConfig

    cases = []
    for low, high, dual in [(0.2, 0.2, None), (0.2, 0.28, None), (0.1, 0.3, 1.5)]:
        for agg in ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]:
            config = ActorConfig(
                strategy="fsdp",
                ppo_micro_batch_size_per_gpu=1,
                rollout_n=1,
                clip_ratio_low=low,
                clip_ratio_high=high,
                clip_ratio_c=dual or 1e300,
            )
            logp = b.logp.clone().requires_grad_()
            loss, metrics = algos.compute_policy_loss_vanilla(b.logp_old, logp, b.advantages, b.mask, agg, config)
            loss.backward()
            cases.append(
                {
                    "by": "verl",
                    "low": low,
                    "high": high,
                    "dual": dual,
                    "loss_agg": agg,
                    "loss": loss.item(),
                    "gradient": logp.grad.tolist(),
                    "clipfrac": metrics["actor/pg_clipfrac"],
                    "clipfrac_dual": metrics["actor/pg_clipfrac_lower"],
                    "kl_k1": metrics["actor/ppo_kl"],
                }
            )
    return cases


def ppo_by_trl(torch, b):
    """`dapo` is token-mean; `grpo` is seq-mean-token-mean. The trainer is made without `__init__`."""
    from collections import defaultdict

    from trl import GRPOTrainer

    cases = []
    for loss_type, agg in [("dapo", "token-mean"), ("grpo", "seq-mean-token-mean")]:
        logp = b.logp.clone().requires_grad_()
        trainer = object.__new__(GRPOTrainer)
        alone = lambda x, **_: x  # one process: nothing to gather
        vars(trainer).update(
            model=SimpleNamespace(training=True),
            loss_type=loss_type,
            beta=0.0,
            epsilon_low=0.2,
            epsilon_high=0.28,
            importance_sampling_level="token",
            top_entropy_quantile=1.0,
            off_policy_mask_threshold=None,
            use_vllm=False,
            vllm_importance_sampling_correction=False,
            aux_loss_enabled=False,
            _entropy_bonus_enabled=False,
            current_gradient_accumulation_steps=1,
            args=SimpleNamespace(delta=None, steps_per_generation=1, use_bias_correction_kl=False),
            accelerator=SimpleNamespace(num_processes=1, gather=alone, gather_for_metrics=alone, reduce=alone),
            _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
            _get_per_token_logps_and_entropies=lambda *_, **__: (logp, torch.zeros_like(logp), None),
        )
        ids = torch.zeros_like(b.mask, dtype=torch.long)
        inputs = {
            "prompt_ids": ids[:, :1],
            "prompt_mask": ids[:, :1] + 1,
            "completion_ids": ids,
            "completion_mask": b.mask,
            "advantages": b.advantages,
            "old_per_token_logps": b.logp_old,
            "num_items_in_batch": b.mask.sum(),
        }
        loss = trainer._compute_loss(trainer.model, inputs)
        loss.backward()
        cases.append(
            {
                "by": "trl",
                "low": 0.2,
                "high": 0.28,
                "dual": None,
                "loss_agg": agg,
                "loss": loss.item(),
                "gradient": logp.grad.tolist(),
            }
        )
    return cases


def kl(algos, b):
    cases = []
    for kind in ["k1", "abs", "k2", "k3", "k1+", "k3+"]:
        logp = b.logp.clone().requires_grad_()
        value = algos.kl_penalty(logp, b.logp_ref, kind)
        value.sum().backward()
        cases.append({"kind": kind, "kl": value.detach().tolist(), "gradient": logp.grad.tolist()})
    return cases


def adamw(torch):
    """Five steps of torch.optim.AdamW on a matrix and a vector, each after clipping all gradients to norm 1."""
    generator = torch.Generator().manual_seed(21)
    random = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    tensors = [random(3, 4), random(5)]
    start = [t.tolist() for t in tensors]
    rates, steps = [0.1, 0.05, 0.02, 0.1, 0.03], []
    for t in tensors:
        t.requires_grad_()
    optimizer = torch.optim.AdamW(tensors, lr=1.0, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for i, rate in enumerate(rates):
        gradients = [random(3, 4) * 0.7**i, random(5) * 0.7**i]
        for t, g in zip(tensors, gradients):
            t.grad = g.clone()
        norm = torch.nn.utils.clip_grad_norm_(tensors, 1.0)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        steps.append(
            {
                "lr": rate,
                "gradients": [g.tolist() for g in gradients],
                "norm": norm.item(),
                "after": [t.detach().tolist() for t in tensors],
            }
        )
    return {"start": start, "steps": steps}


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    inside(Path(sys.argv[1]))
    import torch
    from verl.trainer.ppo import core_algos as algos

    # verl makes the statistics of a group of one with the default type.
    torch.set_default_dtype(torch.float64)
    b = batch(torch)
    golden = {
        "made_by": "tests/golden/rl/make.py: verl 0.9.1, trl 1.16.0, torch 2.11.0",
        "batch": {k: v if isinstance(v, list) else v.tolist() for k, v in vars(b).items()},
        "advantages": advantages(algos, b),
        "ppo_clip": ppo_by_verl(algos, b) + ppo_by_trl(torch, b),
        "kl": kl(algos, b),
        "adamw": adamw(torch),
    }
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items())
    Path(__file__).with_name("golden.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
