"""Golden BM25 scores from bm25s (method "lucene", float64), for crates/search/src/tests/ranking.rs.

    pip install bm25s==0.3.16 PyStemmer==3.1.0 numpy
    python make.py

Writes corpus.jsonl (generated, from a fixed seed) and golden.json: for every setting the hits of
every query, best first, with scores. Analysers are written here again, in Python.
"""

import json
import random
import re
import unicodedata
from pathlib import Path

import bm25s
import numpy as np
import Stemmer

HERE = Path(__file__).parent
K = 10
IDEOGRAPH = "\u3041-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WORD = re.compile(f"[{IDEOGRAPH}]|(?:(?![_{IDEOGRAPH}])\\w)+")
STOP = set(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with".split()
)
STEM = Stemmer.Stemmer("english")


def analyze(name, text):
    if name == "none":
        return text.split()
    words = [word.lower() for word in WORD.findall(text)]
    if name == "english":
        words = STEM.stemWords([word for word in words if word not in STOP])
    return words


def corpus():
    """Passages of words with a skewed distribution, and a few written by hand."""
    draw = random.Random(16)
    bases = (
        "search engine index passage rank model train learn agent river mountain city history science music paper "
        "graph theory number prime light wave energy cell protein gene market price trade law court king queen war "
        "peace ship ocean island bridge tower garden flower forest animal horse bird winter summer star planet moon"
    ).split()
    forms = ["", "", "", "s", "ing", "ed", "ly", "ness", "ation"]
    small = ["the", "of", "and", "in", "a", "is", "to", "with"]
    rows = []
    for number in range(180):
        length = draw.choice([3, 8, 20, 20, 40, 40, 90])
        words = []
        for _ in range(length):
            if draw.random() < 0.35:
                words.append(draw.choice(small))
            else:
                base = bases[min(int(draw.expovariate(0.08)), len(bases) - 1)]
                words.append(base + draw.choice(forms))
        row = {"id": f"g{number}", "text": " ".join(words).capitalize() + "."}
        if draw.random() < 0.7:
            row["title"] = " ".join(draw.sample(bases, draw.choice([1, 2, 3]))).title()
        rows.append(row)
    rows += [
        {"id": "h0", "title": "Tōkyō", "text": "東京 (Tōkyō) is the capital of Japan; its tower is 東京タワー."},
        {"id": "h1", "title": "Été", "text": "L'ÉTÉ is summer in French -- and 'winter' is hiver. été été"},
        {"id": "h2", "text": "snake_case, kebab-case & CamelCase: 3.14 or 1e-5? user@example.com"},
        {"id": "h3", "title": "The The", "text": "the the the"},
        {"id": "h4", "title": "ΟΔΥΣΣΕΥΣ", "text": "Greek capitals: ΟΔΟΣ and οδός."},
        {"id": "h5", "title": "search", "text": "engine"},
        {"id": "h6", "title": "engine", "text": "search"},
    ]
    return rows


QUERIES = [
    "search engine",
    "the",
    "the history of science and music",
    "learning agents training models",
    "river river mountain",
    "King and queen, at war with the sea-ships?",
    "ÉTÉ",
    "東京",
    "3.14",
    "οδος",
    "snake_case",
    "indexing ranked passages with energy, light and waves in the winter garden of the ocean island bridge",
]

SETTINGS = [
    {"analyzer": "standard", "k1": 1.2, "b": 0.75, "title_boost": 1},
    {"analyzer": "standard", "k1": 0.9, "b": 0.4, "title_boost": 1},
    {"analyzer": "english", "k1": 1.5, "b": 0.75, "title_boost": 1},
    {"analyzer": "none", "k1": 1.2, "b": 0.75, "title_boost": 1},
    {"analyzer": "standard", "k1": 1.2, "b": 0.75, "title_boost": 0},
    {"analyzer": "standard", "k1": 1.2, "b": 0.75, "title_boost": 3},
    {"analyzer": "english", "k1": 2.0, "b": 1.0, "title_boost": 2},
    {"analyzer": "standard", "k1": 0.0, "b": 0.0, "title_boost": 1},
]


def score(rows, setting):
    name = setting["analyzer"]
    tokens = [
        analyze(name, row.get("title", "")) * setting["title_boost"] + analyze(name, row["text"]) for row in rows
    ]
    retriever = bm25s.BM25(method="lucene", k1=setting["k1"], b=setting["b"], dtype="float64")
    retriever.index(tokens, show_progress=False)
    found = []
    for query in QUERIES:
        terms = [term for term in analyze(name, query) if term in retriever.vocab_dict]
        scores = retriever.get_scores(terms) if terms else np.zeros(len(rows))
        best = sorted((number for number in range(len(rows)) if scores[number] > 0), key=lambda n: (-scores[n], n))
        found.append([[rows[number]["id"], float(scores[number])] for number in best[:K]])
    return found


def main():
    rows = corpus()
    assert all(unicodedata.is_normalized("NFC", row["text"]) for row in rows)
    with open(HERE / "corpus.jsonl", "w") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    settings = [{**setting, "hits": score(rows, setting)} for setting in SETTINGS]
    golden = {"bm25s": bm25s.__version__, "k": K, "queries": QUERIES, "settings": settings}
    with open(HERE / "golden.json", "w") as file:
        json.dump(golden, file, ensure_ascii=False)
        file.write("\n")


if __name__ == "__main__":
    main()
