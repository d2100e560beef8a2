"""Features of members on the kernel's scale."""

from __future__ import annotations

from itertools import product

import numpy as np

from predictor.examples.featurizer import shared_featurizer
from predictor.learning.members import MEMBER_FEATURES, default_scale, member_features
from profiling.workload import Workload

# Gavel's models, with batch sizes that it measured.
MODELS = {
    "resnet18-cifar": (16, 32, 64, 128, 256),
    "resnet50-imagenet": (16, 32, 64, 128),
    "transformer-multi30k": (16, 32, 64, 128, 256),
    "lstm-wikitext2": (5, 10, 20, 40, 80),
    "autoencoder-ml20m": (512, 1024, 2048, 4096, 8192),
    "a3c-pong": (4,),
}


def test_the_scale_is_that_of_the_jobs_that_gavel_measured() -> None:
    featurizer, rows = shared_featurizer(), []
    for (model, sizes), device in product(MODELS.items(), ("k80", "p100", "v100")):
        for size in sizes:
            workload = Workload.parse(f"{model}:batch_size={size}")
            step_s = featurizer.job(workload, device).cost.step_time_s
            rows.append(member_features(workload, device, step_s, featurizer))
    scale, features = default_scale(), np.array(rows)
    known = np.isfinite(scale.deviation) & np.isfinite(features).all(0)
    assert known.sum() > 20
    apart = ((features - scale.mean) / scale.deviation)[:, known]
    names = np.array(MEMBER_FEATURES)[known]
    # The same jobs, but with predicted step times and each once.
    off = {name: float(m) for name, m in zip(names, apart.mean(0), strict=True) if abs(m) > 1.0}
    spread = {n: float(s) for n, s in zip(names, apart.std(0), strict=True) if s > 2.5}
    assert (off, spread) == ({}, {}), "run `python -m benchmarks.member_scale` again"
