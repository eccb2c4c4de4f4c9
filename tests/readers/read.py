"""Reads the trajectories of a run as other programs do (docs/reference/store.md): read.py RUN IDS

IDS is a JSON file with the prompt and response ids of every step, in order, as r1 reads them.
"""

import glob
import json
import sys

import datasets
import duckdb
import pandas
import polars

run, expected = sys.argv[1], json.load(open(sys.argv[2]))
folder, files = f"{run}/trajectories", sorted(glob.glob(f"{run}/trajectories/*.parquet"))


def restored(rows):
    """Prompt and response of each row of a file; rows have prompt_shared, prompt_ids, response_ids."""
    before, all_ids = [], []
    for shared, prompt_ids, response_ids in rows:
        prompt, response = before[: int(shared)] + list(prompt_ids), list(response_ids)
        before = prompt + response
        all_ids.append([[int(i) for i in prompt], [int(i) for i in response]])
    return all_ids


names = ["prompt_shared", "prompt_ids", "response_ids"]
readers = {
    "pandas": lambda path: pandas.read_parquet(path).dropna(subset="step")[names].itertuples(index=False),
    "polars": lambda path: polars.read_parquet(path).drop_nulls("step").select(names).iter_rows(),
    "duckdb": lambda path: duckdb.sql(
        f"SELECT {', '.join(names)} FROM read_parquet('{path}') WHERE step IS NOT NULL"
    ).fetchall(),
    "datasets": lambda path: (
        [row[name] for name in names]
        for row in datasets.load_dataset("parquet", data_files=path, split="train")
        if row["step"] is not None
    ),
}
for name, read in readers.items():
    found = [step for path in files for step in restored(read(path))]
    assert found == expected, f"{name} reads other ids"
    print(f"{name}: {len(found)} steps with the ids that r1 reads")

# The numbers of the update have an entry per sampled token.
rows = pandas.read_parquet(folder).dropna(subset="learner_logprobs")
assert len(rows) > 0, "no row was trained"
for name in ["advantages", "learner_logprobs", "entropies", "loss_mask", "clipped"]:
    assert (rows[name].map(len) == rows["response_ids"].map(len)).all(), name
difference = max(abs(a - b).max() for a, b in zip(rows["logprobs"], rows["learner_logprobs"]))
print(f"{len(rows)} trained steps; learner and sampler differ by at most {difference:.1e}")
assert difference < 1e-3
[(mean,)] = duckdb.sql(f"SELECT avg(total_reward) FROM '{folder}/*.parquet'").fetchall()
assert abs(mean - pandas.read_parquet(folder)["total_reward"].mean()) < 1e-9
