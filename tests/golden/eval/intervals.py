"""Writes golden.json: bootstrap intervals and paired permutation tests of scipy.

    python3 -m pip install scipy
    python3 tests/golden/eval/intervals.py
"""

import json
import pathlib

import numpy
import scipy
from scipy.stats import bootstrap, permutation_test

random = numpy.random.default_rng(0)


def mean(values, axis=-1):
    return numpy.mean(values, axis=axis)


samples = {
    "shares": (random.random(40) < 0.3).astype(float),
    "few solved": numpy.array([1.0] * 3 + [0.0] * 47),
    "skewed": random.exponential(2.0, 30).round(3),
    "fractions": (random.binomial(4, 0.6, 100) / 4),
    "five": numpy.array([0.0, 0.25, 0.5, 1.0, 1.0]),
}
intervals = []
for name, values in samples.items():
    found = bootstrap((values,), mean, n_resamples=400_000, batch=2000, method="BCa", random_state=random)
    interval = found.confidence_interval
    intervals.append({"name": name, "values": values.tolist(), "interval": [interval.low, interval.high]})

differences = {
    "exact": numpy.array([0.5, -0.25, 0.75, 0.0, 1.0, 0.25, -0.5, 0.5]),
    "clear": random.normal(0.3, 0.5, 60).round(3),
    "none": random.normal(0.0, 0.5, 80).round(3),
    "ties": random.choice([-1.0, 0.0, 0.0, 1.0, 1.0], 50),
}
tests = []
for name, values in differences.items():
    found = permutation_test(
        (values,), mean, permutation_type="samples", n_resamples=200_000, batch=2000, random_state=random
    )
    tests.append({"name": name, "differences": values.tolist(), "p": float(found.pvalue)})

text = json.dumps({"scipy": scipy.__version__, "intervals": intervals, "tests": tests}, indent=1)
pathlib.Path(__file__).with_name("golden.json").write_text(text + "\n")
