"""Losses, gradients and corrections for cases.py, by verl, TRL, liger-kernel, OpenRLHF, AReaL and slime."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that a module imports and its losses never use."""

    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []

        def anything(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {"__class_getitem__": classmethod(lambda cls, _: cls)})

        module.__getattr__ = anything
        return module

    def exec_module(self, module):
        pass


def peers(references):
    """Loss functions of the packages that can be had, by name."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    sys.meta_path.append(Absent({"flash_attn", "deepspeed", "megatron", "pylatexenc"}))
    found = {}
    try:
        from openrlhf.models import loss

        found["openrlhf"] = loss
    except Exception as error:  # noqa: BLE001
        print(f"openrlhf: {error!r}"[:200])
    try:
        # The file alone: its package needs many others.
        areal = Path(importlib.util.find_spec("areal").submodule_search_locations[0])
        sys.meta_path.insert(0, Absent({"areal"}))
        spec = importlib.util.spec_from_file_location("areal_functional", areal / "utils/functional/functional.py")
        found["areal"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found["areal"])
    except Exception as error:  # noqa: BLE001
        print(f"areal: {error!r}"[:200])
    try:
        spec = importlib.util.spec_from_file_location("slime_ppo_utils", references / "slime_ppo_utils.py")
        found["slime"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found["slime"])
    except Exception as error:  # noqa: BLE001
        print(f"slime: {error!r}"[:200])
    try:
        from liger_kernel.chunked_loss.grpo_loss import LigerFusedLinearGRPOFunction

        found["liger"] = LigerFusedLinearGRPOFunction
    except Exception as error:  # noqa: BLE001
        print(f"liger: {error!r}"[:200])
    return found


def with_advantages(torch, rows):
    """Batches for losses: advantages of their own for every token, for every step, and for every trajectory."""
    generator = torch.Generator().manual_seed(35)
    random = lambda n, scale=1.0: (torch.randn(n, generator=generator, dtype=torch.float64) * scale).tolist()
    rows = [row | {"logp_rollout": [x + y for x, y in zip(row["logp_old"], random(len(row["mask"]), 0.3))]} for row in rows]
    whole = dict(zip(range(8), random(8)))
    by_step = [(row, random(1)[0]) for row in rows]
    return {
        "loss_tokens": [row | {"advantages": random(len(row["mask"]))} for row in rows],
        "loss_steps": [row | {"advantages": [a] * len(row["mask"])} for row, a in by_step],
        "loss_trajectories": [row | {"advantages": [whole[row["trajectory"]]] * len(row["mask"])} for row in rows],
    }


class Case:
    """One batch, padded by trajectory or by step, whose losses are cut into rows again."""

    def __init__(self, torch, Padded, batches, batch, seq):
        rows = batches[batch]
        alone = [row | {"trajectory": i} for i, row in enumerate(rows)]
        self.torch, self.batch, self.seq = torch, batch, seq
        self.p = Padded(torch, rows if seq == "trajectory" else alone)
        self.mask = self.p.mask
        for name in ["logp", "logp_old", "logp_ref", "logp_rollout", "advantages"]:
            setattr(self, name, self.p.tensor(name))
        self.lines = (self.advantages * self.mask).sum(-1) / self.mask.sum(-1)

    def make(self, name, options, by, loss, tolerance=1e-10):
        """`loss` is a function of the log-probabilities."""
        logp = self.logp.clone().requires_grad_()
        value = loss(logp)
        value.backward()
        return {
            "batch": self.batch,
            "name": name,
            "options": options,
            "by": by,
            "loss": value.item(),
            "gradient": self.p.split(logp.grad),
            "tolerance": tolerance,
        }


def verl_losses(algos, torch, Padded, batches):
    from verl.workers.config import ActorConfig

    def config(policy=None, **kw):
        made = ActorConfig(strategy="fsdp", ppo_micro_batch_size_per_gpu=1, rollout_n=1, **kw)
        for name, value in (policy or {}).items():
            object.__setattr__(made.policy_loss, name, value)
        return made

    clip = lambda low, high: {"clip_ratio_low": low, "clip_ratio_high": high}
    cases = []
    for seq in ["trajectory", "step"]:
        c = Case(torch, Padded, batches, "loss_tokens", seq)
        run = lambda function, agg, config: lambda logp: function(c.logp_old, logp, c.advantages, c.mask, agg, config)[0]
        add = lambda name, options, loss, tolerance: cases.append(c.make(name, options, "verl 0.9.1", loss, tolerance))
        norm = {"horizon": c.mask.shape[1]}
        for agg in ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]:
            own = {"loss_agg": agg, "seq": seq, "ratio_over": seq} | (norm if agg.endswith("norm") else {})
            loss = lambda name: getattr(algos, f"compute_policy_loss_{name}")
            both = {"clip_low": 0.2, "clip_high": 0.28}
            add("ppo", own | {"clip_high": 0.28}, run(loss("vanilla"), agg, config(**clip(0.2, 0.28))), 1e-10)
            tight = config(**clip(0.1, 0.3), clip_ratio_c=1.5)
            add("ppo", own | {"clip_low": 0.1, "clip_high": 0.3, "dual_clip": 1.5}, run(loss("vanilla"), agg, tight), 1e-10)
            add("gspo", own, run(loss("gspo"), agg, config(**clip(3e-4, 4e-4))), 1e-10)
            add("gspo", own | {"clip_low": 0.1, "clip_high": 0.2}, run(loss("gspo"), agg, config(**clip(0.1, 0.2))), 1e-10)
            add("cispo", own | both, run(loss("cispo"), agg, config(**clip(0.2, 0.28))), 1e-10)
            add("gpg", own, run(loss("gpg"), agg, config()), 1e-10)
            reinforce = lambda logp, agg=agg: algos.compute_policy_loss_reinforce(
                c.logp_old, logp, c.advantages, c.mask, agg, config()
            )[0]
            add("reinforce", own, reinforce, 1e-10)
            dppo = config(**clip(0.05, 0.08), clip_ratio_c=1.3)
            bounds = {"clip_low": 0.05, "clip_high": 0.08, "truncate": 1.3}
            add("dppo_tv", own | bounds, run(loss("dppo_tv"), agg, dppo), 1e-10)
            dppo = config(**clip(0.005, 0.01), clip_ratio_c=20.0)
            bounds = {"clip_low": 0.005, "clip_high": 0.01}
            add("dppo_kl", own | bounds, run(loss("dppo_kl"), agg, dppo), 1e-10)
            # So large a share takes every candidate: verl draws them at random.
            taken = config({"clip_cov_ratio": 0.9, "clip_cov_lb": 0.05, "clip_cov_ub": 2.0}, **clip(0.2, 0.28))
            drawn = {"share": 0.9, "cov_low": 0.05, "cov_high": 2.0}
            add("clip_cov", own | both | drawn, run(loss("clip_cov"), agg, taken), 1e-10)
            held = config({"kl_cov_ratio": 0.2, "ppo_kl_coef": 0.7})
            add("kl_cov", own | {"share": 0.2, "cov_coef": 0.7}, run(loss("kl_cov"), agg, held), 1e-10)
        own = {"seq": seq, "ratio_over": seq}
        add("sapo", own, run(algos.compute_policy_loss_sapo, None, config()), 1e-10)
        add("sapo", own | {"tau_pos": 2.0, "tau_neg": 3.0}, run(algos.compute_policy_loss_sapo, None, config(tau_pos=2.0, tau_neg=3.0)), 1e-10)
        c = Case(torch, Padded, batches, f"loss_{'trajectories' if seq == 'trajectory' else 'steps'}", seq)
        geo = run(algos.compute_policy_loss_geo_mean, None, config(**clip(0.1, 0.3)))
        add("geo_mean", own | {"clip_low": 0.1, "clip_high": 0.3}, geo, 1e-10)
    return cases


def trl_loss(torch, c, logp, trainer_class=None, **attributes):
    from trl import GRPOTrainer

    trainer = object.__new__(trainer_class or GRPOTrainer)
    alone = lambda x, **_: x  # one process: nothing to gather
    args = dict(
        delta=None,
        steps_per_generation=1,
        use_bias_correction_kl=False,
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
    )
    args.update(attributes.pop("args", {}))
    vars(trainer).update(
        model=SimpleNamespace(training=True),
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
        use_adaptive_entropy=False,
        current_gradient_accumulation_steps=1,
        max_completion_length=c.mask.shape[1],
        args=SimpleNamespace(**args),
        accelerator=SimpleNamespace(
            num_processes=1, gather=alone, gather_for_metrics=alone, reduce=alone, sync_gradients=True
        ),
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, torch.zeros_like(logp), None),
    )
    vars(trainer).update(attributes)
    ids = torch.zeros_like(c.mask, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1] + 1,
        "completion_ids": ids,
        "completion_mask": c.mask,
        "advantages": c.lines,
        "old_per_token_logps": c.logp_old,
        "ref_per_token_logps": c.logp_ref,
        "num_items_in_batch": c.mask.sum(),
    }
    return trainer._compute_loss(trainer.model, inputs)


def trl_losses(torch, Padded, batches):
    from trl.experimental.gmpo import GMPOTrainer

    cases = []
    for seq, batch in [("trajectory", "loss_trajectories"), ("step", "loss_steps")]:
        c = Case(torch, Padded, batches, batch, seq)
        own = {"seq": seq, "ratio_over": seq}
        add = lambda name, options, **kw: cases.append(
            c.make(name, own | options, "TRL 1.16.0", lambda logp: trl_loss(torch, c, logp, **kw))
        )
        mean = {"loss_agg": "seq-mean-token-mean"}
        clip = {"clip_high": 0.28}
        add("dapo", clip, loss_type="dapo")
        add("bnpo", clip, loss_type="bnpo")
        add("ppo", clip | mean | {"dual_clip": None}, loss_type="grpo")
        add("dr_grpo", clip | {"horizon": c.mask.shape[1]}, loss_type="dr_grpo")
        add("cispo", {"clip_low": 1.0, "clip_high": 0.28}, loss_type="cispo", epsilon_high=1.28)
        add("sapo", {}, loss_type="sapo")
        band = {"clip_low": 0.1, "clip_high": 0.2}
        add("gspo", band, loss_type="grpo", importance_sampling_level="sequence", epsilon_low=0.1, epsilon_high=0.2)
        add("geo_mean", {}, trainer_class=GMPOTrainer, loss_type="grpo", epsilon_low=0.4, epsilon_high=0.4)
        kl = {"kl_coef": 0.04}
        add("dapo", clip | kl, loss_type="dapo", beta=0.04)
        weighed = {"use_bias_correction_kl": True}
        add("dapo", clip | kl | {"kl_times_ratio": True}, loss_type="dapo", beta=0.04, args=weighed)
    return cases


def liger_losses(torch, Padded, batches, liger):
    cases = []
    for seq, batch in [("trajectory", "loss_trajectories"), ("step", "loss_steps")]:
        c = Case(torch, Padded, batches, batch, seq)
        own = {"seq": seq, "ratio_over": seq}

        def add(name, options, **kw):
            given = dict(epsilon_low=0.2, epsilon_high=0.28, beta=0.0, max_completion_length=c.mask.shape[1])
            given |= dict(ref_per_token_logps=c.logp_ref, old_per_token_logps=c.logp_old) | kw
            loss = lambda logp: liger.ppo_loss_fn(logp, c.mask, c.lines, c.mask, **given)[0]
            cases.append(c.make(name, own | options, "liger-kernel 0.8.5", loss))

        clip, kl = {"clip_high": 0.28}, {"kl_coef": 0.04}
        add("dapo", clip | kl, loss_type="dapo", beta=0.04)
        add("bnpo", clip, loss_type="bnpo")
        add("ppo", clip | {"dual_clip": None, "loss_agg": "seq-mean-token-mean"}, loss_type="grpo")
        add("dr_grpo", clip | {"horizon": c.mask.shape[1]}, loss_type="dr_grpo")
        add("cispo", {"clip_low": 1.0, "clip_high": 0.28}, loss_type="cispo", epsilon_high=1.28)
        add("sapo", {}, loss_type="sapo")
        band = {"clip_low": 0.1, "clip_high": 0.2}
        add("gspo", band, loss_type="grpo", importance_sampling_level="sequence", epsilon_low=0.1, epsilon_high=0.2)
    return cases


def five_ways(algos, torch, Padded, batches, found):
    """PPO-clip with token-mean and without dual clip is one number everywhere."""
    from verl.workers.config import ActorConfig

    c = Case(torch, Padded, batches, "loss_trajectories", "trajectory")
    config = ActorConfig(
        strategy="fsdp",
        ppo_micro_batch_size_per_gpu=1,
        rollout_n=1,
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
        clip_ratio_c=1e300,
    )
    vanilla = algos.compute_policy_loss_vanilla
    ways = {
        "verl 0.9.1": lambda logp: vanilla(c.logp_old, logp, c.advantages, c.mask, "token-mean", config)[0],
        "TRL 1.16.0": lambda logp: trl_loss(torch, c, logp, loss_type="dapo"),
    }
    if "openrlhf" in found:
        policy = found["openrlhf"].PolicyLoss(0.2, 0.28)
        ways["OpenRLHF 0.11.2"] = lambda logp: policy(logp, c.logp_old, c.advantages, c.mask)[0]
    if "areal" in found:
        ways["AReaL 1.0.4"] = lambda logp: found["areal"].ppo_actor_loss_fn(
            logp, c.logp_old, c.logp_old, c.advantages, 0.2, c.mask.bool(), eps_clip_higher=0.28
        )[0]
    if "slime" in found:
        ways["slime"] = lambda logp: (
            found["slime"].compute_policy_loss(c.logp_old - logp, c.advantages, 0.2, 0.28)[0] * c.mask
        ).sum() / c.mask.sum()
    if "liger" in found:
        ways["liger-kernel 0.8.5"] = lambda logp: found["liger"].ppo_loss_fn(
            logp, c.mask, c.lines, c.mask, old_per_token_logps=c.logp_old, epsilon_high=0.28, beta=0.0, loss_type="dapo"
        )[0]
    options = {"clip_high": 0.28, "dual_clip": None}
    return [c.make("ppo", options, by, loss, 1e-12) for by, loss in ways.items()]


def corrections(torch, Padded, batches):
    """Importance weights and rejection masks by verl."""
    from verl.trainer.ppo import rollout_corr_helper as helper

    # Without the guard of lengths, see `unguarded`.
    helper.verl_F.masked_mean = lambda x, mask, axis=None: (x * mask).sum(axis=axis) / mask.sum(axis=axis)

    weights, masks = [], []
    for seq in ["trajectory", "step"]:
        c = Case(torch, Padded, batches, "loss_tokens", seq)
        log_ratio = c.logp_old - c.logp_rollout
        case = lambda options, made: {"over": seq, "options": options, "made": c.p.split(made)}
        for scope in ["token", "sequence"]:
            for options, threshold, normalize in [
                ({"cap": 1.2}, 1.2, False),
                ({"cap": 1.2, "normalize": True}, 1.2, True),
                ({"cap": 1.4, "floor": 0.7}, "0.7_1.4", False),
            ]:
                made, _ = helper.compute_rollout_correction_weights(log_ratio, c.mask, scope, threshold, normalize)
                weights.append(case(options | {"scope": scope}, made))
        for name, options, threshold in [
            ("token_k1", {"upper": 1.3, "lower": 0.8}, "0.8_1.3"),
            ("token_k2", {"upper": 0.03}, 0.03),
            ("token_k3", {"upper": 0.03}, 0.03),
            ("seq_sum_k1", {"upper": 1.3}, 1.3),
            ("seq_sum_k2", {"upper": 0.1}, 0.1),
            ("seq_sum_k3", {"upper": 0.1}, 0.1),
            ("seq_mean_k1", {"upper": 1.1}, 1.1),
            ("seq_mean_k2", {"upper": 0.05}, 0.05),
            ("seq_mean_k3", {"upper": 0.05}, 0.05),
            ("seq_max_k2", {"upper": 0.1}, 0.1),
            ("seq_max_k3", {"upper": 0.1}, 0.1),
        ]:
            made, _ = helper.compute_rollout_rejection_mask(log_ratio, c.mask, name, threshold)
            measure, estimate = name.removeprefix("seq_").split("_")
            masks.append(case(options | {"measure": measure, "estimate": estimate}, made))
    return {"batch": "loss_tokens", "weights": weights, "masks": masks, "by": "verl 0.9.1"}


def values(algos, torch, found):
    generator = torch.Generator().manual_seed(37)
    random = lambda scale: torch.randn(12, generator=generator, dtype=torch.float64) * scale
    old = random(1.0)
    new, returns, ones = old + random(0.4), random(1.0), torch.ones(1, 12, dtype=torch.float64)
    made = []
    for clip in [0.2, 0.5, None]:
        ways = {"verl 0.9.1": lambda v: algos.compute_value_loss(v[None], returns[None], old[None], ones, clip or 1e9)[0]}
        if "openrlhf" in found:
            ways["OpenRLHF 0.11.2"] = lambda v: found["openrlhf"].ValueLoss(clip)(v[None], old[None], returns[None], ones)
        for by, loss in ways.items():
            v = new.clone().requires_grad_()
            value = loss(v)
            value.backward()
            made.append({"by": by, "clip": clip, "loss": value.item(), "gradient": v.grad.tolist()})
    return {"old": old.tolist(), "new": new.tolist(), "returns": returns.tolist(), "cases": made}


def unguarded(algos):
    """verl adds 1e-8 to the lengths that it divides by, against sequences of no token. In f32, in which it runs, that is
    lost from a length of 1 on; in f64 it would be the largest difference of all. This is verl without it."""
    text = Path(algos.__file__).read_text()
    for guarded in ["(seq_mask + 1e-8)", "(response_mask_sum + 1e-8)"]:
        assert guarded in text, guarded
        text = text.replace(guarded, guarded.split(" ")[0] + ")")
    module = types.ModuleType("verl_without_guards")
    sys.modules[module.__name__] = module  # dataclasses look for it
    exec(compile(text, algos.__file__, "exec"), vars(module))
    return module


def losses(algos, torch, Padded, rows, references):
    algos = unguarded(algos)
    found, batches = peers(references), with_advantages(torch, rows)
    made = verl_losses(algos, torch, Padded, batches) + trl_losses(torch, Padded, batches)
    if "liger" in found:
        made += liger_losses(torch, Padded, batches, found["liger"])
    return batches, {
        "losses": made,
        "five_ways": five_ways(algos, torch, Padded, batches, found),
        "corrections": corrections(torch, Padded, batches),
        "values": values(algos, torch, found),
    }
