"""Rankings of `r1 index` compared with bm25s and rank_bm25 on a corpus with queries.

    pip install bm25s==0.3.16 rank_bm25==0.2.2 PyStemmer==3.1.0
    python benches/search.py --binary target/release/r1 --corpus corpus.jsonl --queries queries.jsonl

Prints a line per analyser: how many of the best 10 passages are the same, in the same order, and
the largest difference of a score.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import bm25s
import numpy as np
from rank_bm25 import BM25Okapi

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/golden/search"))
from make import analyze  # noqa: E402

K = 10


def rows(path, limit=None):
    with open(path) as file:
        return [json.loads(line) for line in file][:limit]


def best(scores):
    order = sorted((number for number in range(len(scores)) if scores[number] > 0), key=lambda n: (-scores[n], n))
    return [(number, float(scores[number])) for number in order[:K]]


def agreement(own, peer, ids):
    """Queries with the same passages in the same order, shared passages, largest difference."""
    same, shared, total, difference = 0, 0, 0, 0.0
    for hits, expected in zip(own, peer):
        names = [ids[number] for number, _ in expected]
        mine = [hit["id"] for hit in hits]
        same += mine == names
        shared += len(set(mine) & set(names))
        total += max(len(names), len(mine))
        for hit, (_, score) in zip(hits, expected):
            difference = max(difference, abs(hit["score"] - score))
    return same, shared / max(total, 1), difference


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--queries", required=True)
    parser.add_argument("--id-field", default="id")
    parser.add_argument("--text-field", default="text")
    parser.add_argument("--query-field", default="query")
    given = parser.parse_args()
    corpus = [row for row in rows(given.corpus)]
    queries = [row[given.query_field] for row in rows(given.queries)]

    def text(value):
        return " ".join(value) if isinstance(value, list) else value or ""

    texts = [(row.get("title") or "") + " " + text(row[given.text_field]) for row in corpus]
    ids = [str(row[given.id_field]) for row in corpus]
    k1, b = 1.5, 0.75
    for name in ["none", "standard", "english"]:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "index"
            subprocess.run(
                [given.binary, "index", "build", given.corpus, "--out", out, "--analyzer", name, "--quiet",
                 "--id-field", given.id_field, "--text-field", given.text_field, "--k1", str(k1), "--b", str(b)],
                check=True, stdout=subprocess.DEVNULL,
            )
            own = []
            for query in queries:
                shown = subprocess.run(
                    [given.binary, "index", "search", out, query, "-k", str(K), "--json"],
                    check=True, capture_output=True, text=True,
                )
                own.append([json.loads(line) for line in shown.stdout.splitlines()])
        tokens = [analyze(name, text) for text in texts]
        lucene = bm25s.BM25(method="lucene", k1=k1, b=b, dtype="float64")
        lucene.index(tokens, show_progress=False)
        okapi = BM25Okapi(tokens, k1=k1, b=b)
        of_lucene, of_okapi = [], []
        for query in queries:
            terms = analyze(name, query)
            known = [term for term in terms if term in lucene.vocab_dict]
            of_lucene.append(best(lucene.get_scores(known) if known else np.zeros(len(texts))))
            of_okapi.append(best(okapi.get_scores(terms)))
        for peer, hits in [("bm25s lucene", of_lucene), ("rank_bm25 Okapi", of_okapi)]:
            same, shared, difference = agreement(own, hits, ids)
            line = {"analyzer": name, "peer": peer, "queries": len(queries), "same_order": same, "shared": shared}
            if peer.startswith("bm25s"):
                line["largest_difference"] = difference
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
