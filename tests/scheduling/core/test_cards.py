"""MIG slices of a cluster lie on cards on which they fit together."""

from __future__ import annotations

import pytest

from profiling.errors import InputError
from scheduling.core.snapshot import ClusterSnapshot


def cluster(**devices: str) -> ClusterSnapshot:
    return ClusterSnapshot.from_mapping(
        {
            "nodes": [
                {"name": "n", "gpus": [{"id": name, "device": device} for name, device in devices.items()]}
            ]
        }
    )


@pytest.mark.parametrize(
    "devices",
    [
        {"0/4g": "a100:mig=4g", "0/3g": "a100:mig=3g"},
        {"0/a": "a100:mig=3g", "0/b": "a100:mig=3g", "1/a": "a100:mig=3g", "1/b": "a100:mig=3g"},
        {f"0.{k}": "h200:mig=1g" for k in range(7)},
        {f"0.{k}": "a30:mig=2g" for k in range(2)},
        {"0/a": "a100:mig=1g.10gb", "0/b": "a100:mig=3g"},
        # Ids that name no card: there may be several.
        {"0": "a100:mig=7g", "1": "a100:mig=7g"},
        {"3g.20gb-0": "a100:mig=3g", "3g.20gb-1": "a100:mig=3g", "3g.20gb-2": "a100:mig=3g"},
    ],
)
def test_slices_that_fit_together(devices: dict[str, str]) -> None:
    assert len(list(cluster(**devices).gpus())) == len(devices)


@pytest.mark.parametrize(
    ("devices", "got"),
    [
        ({"0/a": "a100:mig=4g", "0/b": "a100:mig=4g"}, "4g+4g"),
        ({"0/a": "a100:mig=7g", "0/b": "a100:mig=1g"}, "7g+1g"),
        ({f"0.{k}": "h100:mig=1g" for k in range(8)}, "+".join(["1g"] * 8)),
        ({"1/a": "a100:mig=3g", "1/b": "a100:mig=3g", "1/c": "a100:mig=1g"}, "3g+3g+1g"),
    ],
)
def test_slices_that_do_not(devices: dict[str, str], got: str) -> None:
    with pytest.raises(InputError) as caught:
        cluster(**devices)
    text = str(caught.value)
    assert "cannot lie on one" in text
    assert got in text
    assert "4g+3g" in text  # a partition that the card supports


@pytest.mark.parametrize(
    ("devices", "got"),
    [
        ({"0": "a100", "0/3g": "a100:mig=3g"}, "a100 and a slice of a100"),
        ({"0": "v100", "0.0": "a100:mig=3g"}, "v100 and a slice of a100"),
        ({"0/a": "a100:mig=3g", "0/b": "h100:mig=3g"}, "a slice of a100 and a slice of h100"),
    ],
)
def test_a_card_is_there_once(devices: dict[str, str], got: str) -> None:
    with pytest.raises(InputError, match=f"card 0 is there more than once.*got {got}"):
        cluster(**devices)
    assert len(list(cluster(**{"1": "a100", "0/3g": "a100:mig=3g", "v/0": "v100"}).gpus())) == 3
