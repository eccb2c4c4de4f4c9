"""Makes golden.json: what transformers computes with SmolLM2-135M-Instruct, from the GGUF file of `just real-model`.

    pip install torch==2.11.0 transformers==5.24.0 gguf==0.19.0 peft==0.21.2
    python make.py "$(setup/real-model.sh)"

It holds a part of the SHA-256 of every tensor in f32, logits and greedy continuations of prompts, probabilities after the
warpers of sampling, ids of texts, rendered conversations, and one AdamW step of a LoRA adapter whose weights are computed from
their names. `ids` are those of `AutoTokenizer.from_pretrained(gguf_file=…)` with the pre-tokenizer that the file names (smollm:
digits are split off before the words of GPT-2); transformers does not know this name and leaves the digits to GPT-2's words,
which gives other ids where several spaces are before a digit.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import peft
import tokenizers
import torch
import transformers
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessorList, TemperatureLogitsWarper, TopPLogitsWarper

TEXTS = [
    "The capital of France is Paris.",
    "12345 + 678 = 13023, and 3.14159 is near pi.",
    "I'LL say that they've seen it, don't you?",
    "def f(x):\n    return x ** 2  # squares\n\n\nprint(f(12))",
    "  two spaces, a tab\tand a line\r\n",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "北京は東京から2,100キロ離れている。",
    "Emoji 🙂👍🏽 and signs ∑∫√ ≠ ≤",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    '<tool_call>\n{"name": "python", "arguments": {"code": "print(7 * 8)"}}\n</tool_call>',
    "x  5 and x   55",
    "",
]
CONVERSATIONS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 12 + 30?"}],
    [
        {"role": "user", "content": "Say red."},
        {"role": "assistant", "content": "red"},
        {"role": "user", "content": "Now say blue."},
    ],
]
TOP = 12


def uniform(name, shape):
    """As `uniform` of crates/model/src/model/tests/families.rs."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    x = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    values = ((x ^ (x >> np.uint64(31))) >> np.uint64(40)).astype(np.float64) / 2**23 - 1
    return torch.tensor(values.reshape(shape), dtype=torch.float32)


def prompts(model, rows):
    for row in rows:
        with torch.no_grad():
            logits = model(torch.tensor([row])).logits[0].double()
            greedy = model.generate(torch.tensor([row]), do_sample=False, max_new_tokens=24)[0, len(row) :].tolist()
        top = [[[int(index), round(float(value), 4)] for value, index in zip(*logits[at].topk(TOP))] for at in (len(row) // 2, -1)]
        sums = [round(float(logits[at].logsumexp(-1)), 4) for at in (len(row) // 2, -1)]
        yield {"ids": row, "top": top, "logsumexp": sums, "greedy": greedy}


def sampling(model, row):
    warpers = LogitsProcessorList([TemperatureLogitsWarper(1.2), TopPLogitsWarper(0.95)])
    with torch.no_grad():
        logits = model(torch.tensor([row])).logits[0, -1:]
    probabilities = warpers(torch.tensor([row]), logits).double().softmax(-1)[0]
    kept = {int(index): round(float(probabilities[index]), 6) for index in probabilities.nonzero()[:, 0]}
    return {"ids": row, "temperature": 1.2, "top_p": 0.95, "probabilities": kept}


def lora(model, row):
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    model = peft.get_peft_model(model, config)
    names = {name.replace(".default", ""): parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    with torch.no_grad():
        for name, parameter in names.items():
            parameter.copy_(uniform(name, tuple(parameter.shape)) * (0.05 if "lora_A" in name else 0.02))

    def loss():
        logits = model(torch.tensor([row])).logits[0, :-1]
        return torch.nn.functional.cross_entropy(logits, torch.tensor(row[1:]))

    optimizer = torch.optim.AdamW(names.values(), lr=1e-3, weight_decay=0.0)
    before = loss()
    before.backward()
    norms = {name: parameter.grad.double().norm().item() for name, parameter in names.items() if ".0." in name or ".29." in name}
    total = sum(parameter.grad.double().norm().item() ** 2 for parameter in names.values()) ** 0.5
    optimizer.step()
    saved = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
    shapes = {name: list(parameter.shape) for name, parameter in names.items()}
    return {"adapter_config": saved, "shapes": shapes, "ids": row, "lr": 1e-3, "norms": norms, "norm": total} | {
        "losses": [before.item(), loss().item()]
    }


def main():
    path = Path(sys.argv[1])
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager")
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    state = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    sums = {name: hashlib.sha256(value.numpy().tobytes()).hexdigest()[:8] for name, value in state.items()}
    rendered = [tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True) for one in CONVERSATIONS]
    rows = [tokenizer.encode(text) for text in rendered]
    golden = {
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__, "peft": peft.__version__}
        | {"tokenizers": tokenizers.__version__},
        "tensors": sums,
        "texts": [{"text": text, "ids": tokenizer.encode(text)} for text in TEXTS],
        "conversations": [{"messages": one, "rendered": text} for one, text in zip(CONVERSATIONS, rendered)],
        "prompts": list(prompts(model, rows)),
        "sampling": sampling(model, tokenizer.encode(rendered[0] + "The most beautiful city of")),
        "lora": lora(model, rows[1] + tokenizer.encode("12 + 30 = 42.<|im_end|>\n")),
    }
    text = json.dumps(golden, ensure_ascii=False).replace('], "', '],\n"').replace('}, "', '},\n"').replace("}, {", "},\n{")
    (Path(__file__).parent / "golden.json").write_text(text + "\n")


main()
