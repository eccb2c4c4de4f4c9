"""Makes golden_sentences.json: what sentence-transformers and transformers compute from texts with small encoders and rerankers.

    pip install torch==2.11.0 transformers==5.24.0 sentence-transformers==6.2.0 sentencepiece==0.2.3 && python sentences.py

The models have the files of Qwen3-Embedding, BGE-M3, multilingual E5, a RoBERTa encoder, bge-reranker-v2-m3 and Qwen3-Reranker, in
small: `files` has the text of every file but the weights, which `make.weights` computes from their names. An encoder has the
ids and vectors of queries and passages, a reranker the scores of pairs. The unigram tokenizer is trained here with sentencepiece,
with a few rules of normalisation, and converted as by transformers' XLMRobertaTokenizer.
"""

import json
import tempfile
from pathlib import Path

import sentence_transformers
import sentencepiece
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SentenceTransformer, models
from tokenizers import decoders, pre_tokenizers, processors
from transformers import (
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
    RobertaConfig,
    RobertaForMaskedLM,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
    XLMRobertaTokenizer,
)

from make import here, weights

TEXTS = [
    "Wer schrieb Middlemarch?",
    "The Danube is the second-longest river in Europe.",
    "a <pad> in the text, and another</s> one",
    "  two  spaces\tand ＡＢＣ ﬁsh　",
    "多瑙河 и Дунай",
    "x",
    "river " * 50,
]
PAIRS = [(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[6]), (TEXTS[6], TEXTS[0]), (TEXTS[4], TEXTS[3]), ("x", TEXTS[2])]
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
SIZES = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}


def unigram(directory):
    """A tokenizer as XLM-R's, with the same special tokens and a small vocabulary."""
    corpus, rules, model = (str(directory / name) for name in ("corpus.txt", "rules.tsv", "spm"))
    words = "river stream mountain Danube Europe second longest schrieb wrote who the and in is text another fish spaces query passage"
    lines = [*TEXTS, *words.split(), " ".join(words.split()[::-1]), "Дунай река и гора", "多瑙河 第二 长 的 河"]
    Path(corpus).write_text("\n".join(line.replace("</s>", "").replace("<pad>", "") for line in lines) + "\n")
    changes = {"ＡＢＣ"[index]: "ABC"[index] for index in range(3)} | {"ﬁ": "fi", "　": " ", "\t": " "}
    code = lambda text: " ".join(f"{ord(letter):X}" for letter in text)
    Path(rules).write_text("".join(f"{code(old)}\t{code(new)}\n" for old, new in changes.items()))
    sentencepiece.SentencePieceTrainer.train(
        input=corpus, model_prefix=model, vocab_size=110, model_type="unigram", normalization_rule_tsv=rules,
        character_coverage=1.0, hard_vocab_limit=False, num_threads=1, minloglevel=2,
    )
    read = sentencepiece.SentencePieceProcessor(model_file=model + ".model")
    pieces = [(read.id_to_piece(index), read.get_score(index)) for index in range(3, read.get_piece_size())]
    special = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    vocabulary = [*special, *pieces, ("<mask>", 0.0)]
    charsmap = field(field(read.serialized_model_proto(), 3), 2)
    return XLMRobertaTokenizer(vocab=vocabulary, _spm_precompiled_charsmap=charsmap, model_max_length=40), len(vocabulary)


def field(message, number):
    """A field of bytes in a message of protobuf."""

    def varint(at):
        value = shift = 0
        while True:
            value |= (message[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if message[at - 1] < 128:
                return value, at

    at = 0
    while at < len(message):
        key, at = varint(at)
        if key & 7 == 2:
            size, at = varint(at)
            if key >> 3 == number:
                return message[at : at + size]
            at += size
        else:
            at = varint(at)[1] if key & 7 == 0 else at + {5: 4, 1: 8}[key & 7]
    raise SystemExit(f"the model of sentencepiece has no field {number}")


def byte_level(end):
    """A byte-level BPE tokenizer with the special tokens of Qwen3; `end` is put after a text."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("n", "o"), ("y", "e"), ("ye", "s"), ("t", "h"), ("th", "e"), ("Ġ", "the"), ("e", "r"), ("i", "v"), ("r", "iv"), ("riv", "er")]
    tokens = [*alphabet, *("".join(pair) for pair in merges)]
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(special)
    inner.add_tokens(["<think>", "</think>"])
    if end:
        id_of = inner.token_to_id(end)
        inner.post_processor = processors.Sequence(
            [processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(f"$A {end}", f"$A {end} $B {end}", [(end, id_of)])]
        )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<|endoftext|>", padding_side="left", model_max_length=400)
    return tokenizer, inner.get_vocab_size()


def checkpoint(model, tokenizer, directory):
    """Saves a model with the weights of their names; the names and shapes."""
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    path = directory / "model.safetensors"
    shapes = {name: list(tensor.shape) for name, tensor in load_file(path).items()}
    save_file({name: weights(name.lower(), shape, 1.0) for name, shape in shapes.items()}, path, {"format": "pt"})
    return dict(sorted(shapes.items()))


def record(name, directory, shapes, more):
    files = {
        str(path.relative_to(directory)): path.read_text()
        for path in sorted(directory.rglob("*.json"))
        if path.name not in ("generation_config.json", "special_tokens_map.json")
    }
    print(f"{name}: {len(shapes)} tensors")
    return {"name": name, "files": files, "checkpoint": shapes} | more


def encoder(name, model, tokenizer, pooling, normalize, prompts, similarity="cosine"):
    with tempfile.TemporaryDirectory() as temporary:
        plain, directory = Path(temporary) / "plain", Path(temporary) / "model"
        shapes = checkpoint(model, tokenizer, plain)
        transformer = models.Transformer(str(plain), model_kwargs={"attn_implementation": "eager"})
        parts = [transformer, models.Pooling(24, pooling_mode=pooling), *([models.Normalize()] if normalize else [])]
        made = SentenceTransformer(modules=parts, prompts=prompts, similarity_fn_name=similarity, device="cpu")
        made.save(str(directory))
        saved = load_file(directory / "model.safetensors")
        # A head of the checkpoint is not part of the encoder's, and its prefix neither.
        shapes = {key: list(tensor.shape) for key, tensor in sorted(saved.items())}
        save_file({key: weights(key.lower(), shape, 1.0) for key, shape in shapes.items()}, directory / "model.safetensors", {"format": "pt"})
        loaded = SentenceTransformer(str(directory), device="cpu", model_kwargs={"attn_implementation": "eager"})
        tokens = lambda texts: [loaded.tokenizer(text, truncation=True)["input_ids"] for text in texts]
        query, passage = (loaded.prompts.get(kind) or "" for kind in ("query", "document"))
        return record(name, directory, shapes, {
            "queries": tokens([query + text for text in TEXTS]),
            "passages": tokens([passage + text for text in TEXTS]),
            "query_vectors": loaded.encode_query(TEXTS).tolist(),
            "passage_vectors": loaded.encode_document(TEXTS).tolist(),
        })


def reranker(name, model, tokenizer):
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        shapes = checkpoint(model, tokenizer, directory)
        loaded = CrossEncoder(str(directory), device="cpu", model_kwargs={"attn_implementation": "eager"})
        scores = loaded.predict(PAIRS, activation_fn=torch.nn.Identity()).tolist()
        return record(name, directory, shapes, {"scores": scores})


def question(name, model, tokenizer):
    """As the model card of Qwen3-Reranker, with a difference of logits in place of a probability."""
    before = (
        '<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. '
        'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    after = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        shapes = checkpoint(model, tokenizer, directory)
        loaded = Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
        ids = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
        yes, no = (tokenizer.convert_tokens_to_ids(answer) for answer in ("yes", "no"))
        scores, lengths = [], []
        for query, passage in PAIRS:
            row = ids(before) + ids(f"<Instruct>: {INSTRUCTION}\n<Query>: {query}\n<Document>: {passage}") + ids(after)
            with torch.no_grad():
                logits = loaded(torch.tensor([row])).logits[0, -1]
            scores.append((logits[yes] - logits[no]).item())
            lengths.append(len(row))
        return record(name, directory, shapes, {"scores": scores, "lengths": lengths})


def cases():
    with tempfile.TemporaryDirectory() as temporary:
        pieces, count = unigram(Path(temporary))
    roberta = SIZES | {"vocab_size": count, "max_position_embeddings": 42, "type_vocab_size": 1, "pad_token_id": 1}
    roberta |= {"bos_token_id": 0, "eos_token_id": 2, "layer_norm_eps": 1e-5}
    yield encoder("bge-m3", XLMRobertaModel(XLMRobertaConfig(**roberta), add_pooling_layer=True), pieces, "cls", True, {})
    prompts = {"query": "query: ", "document": "passage: "}
    yield encoder("multilingual-e5", XLMRobertaModel(XLMRobertaConfig(**roberta)), pieces, "mean", True, prompts)
    yield encoder("roberta", RobertaForMaskedLM(RobertaConfig(**roberta)), pieces, "mean", False, {}, "dot")
    yield reranker("bge-reranker-v2-m3", XLMRobertaForSequenceClassification(XLMRobertaConfig(**roberta, num_labels=1)), pieces)

    qwen = SIZES | {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 400, "tie_word_embeddings": True}
    letters, count = byte_level("<|endoftext|>")
    query = f"Instruct: {INSTRUCTION}\nQuery:"
    config = Qwen3Config(**qwen, vocab_size=count + 3)
    yield encoder("qwen3-embedding", Qwen3Model(config), letters, "lasttoken", True, {"query": query, "document": ""})
    letters, _ = byte_level(None)
    yield question("qwen3-reranker", Qwen3ForCausalLM(Qwen3Config(**qwen | {"max_position_embeddings": 700}, vocab_size=count + 3)), letters)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    versions |= {"sentence-transformers": sentence_transformers.__version__, "sentencepiece": sentencepiece.__version__}
    lines = ",\n".join(json.dumps(case) for case in cases())
    head = f'{{"versions": {json.dumps(versions)}, "texts": {json.dumps(TEXTS)}, "pairs": {json.dumps(PAIRS)}, "cases": [\n'
    (here / "golden_sentences.json").write_text(f"{head}{lines}\n]}}\n")
