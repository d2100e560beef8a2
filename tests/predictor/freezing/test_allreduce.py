from __future__ import annotations

import numpy as np

from predictor.freezing.allreduce import Exchange


def test_the_last_bucket_holds_no_more_than_the_trained_gradients() -> None:
    exchange = Exchange(base_s=2.0, overlap_ratio=1.0, last_bucket_ratio=0.05)
    trained = np.array([0.0, 0.01, 0.05, 1.0])
    all_hidden = np.full(4, 100.0)
    two, one = np.full(4, 2.0), np.ones(4)
    exposed = exchange.exposed_s(trained, all_hidden, two, one, rewrapped=True)
    np.testing.assert_allclose(exposed, [0.0, 0.01, 0.05, 0.05])
    later = exchange.exposed_s(trained, all_hidden, two, one, rewrapped=False)
    np.testing.assert_allclose(later - exposed, 1.0 - trained)  # of the frozen gradients, which nothing hides
