"""One spelling of a job, however it was written."""

from __future__ import annotations

import pytest

from profiling.capture import graph_for
from profiling.spelling import in_short, short_hashes
from profiling.workload import Workload


@pytest.mark.parametrize(
    ("spelled", "short"),
    [
        ("resnet18-cifar:batch_size=128,optimizer=momentum", "resnet18-cifar"),
        ("LSTM:batch_size=40", "lstm-wikitext2:batch_size=40"),
        ("torchvision/resnet50:batch_size=32,image_size=224,optimizer=sgd", "torchvision/resnet50"),
        ("torchvision/resnet50:image_size=176,precision=amp", None),
        ("timm/convnext_base_in22ft1k:image_size=224,precision=amp", "timm/convnext_base:precision=amp"),
        ("hf/bert-base:batch_size=8,sequence_length=512,optimizer=adam", "hf/bert-base:optimizer=adam"),
        ("nasbench/none:batch_size=256", None),
        ("graph:0123:batch_size=4", "graph:0123"),
        ("graph:0123:batch_size=4,optimizer=adam", "graph:0123"),
        ("graph:0123:sequence_length=64,precision=amp", "graph:0123:precision=amp"),
        ("no-such-model:batch_size=4", None),
    ],
)
def test_in_short(spelled: str, short: str | None) -> None:
    workload = Workload.parse(spelled)
    assert str(in_short(workload)) == (spelled if short is None else short)


def test_spaces_around_a_name_do_not_count() -> None:
    spaced = Workload.parse(" resnet18-cifar : batch_size = 64 , precision = amp")
    assert spaced == Workload.parse("resnet18-cifar:batch_size=64,precision=amp")


def test_a_network_under_another_name_has_the_same_graph() -> None:
    alias = Workload("timm/convnext_base_in22ft1k", precision="amp")
    graphs = [graph_for(workload) for workload in (alias, in_short(alias))]
    assert graphs[0].operators == graphs[1].operators
    assert graphs[0].edges == graphs[1].edges


def test_hashes_are_shortened_for_people() -> None:
    name = "graph:" + "0123456789abcdef" * 4
    assert short_hashes(f"{name}:precision=amp beside {name}") == (
        "graph:0123456789abcdef:precision=amp beside graph:0123456789abcdef"
    )
    for other in ("graph:0123456789abcdef", "0123456789abcdef" * 4, f"{name}0", "resnet18-cifar"):
        assert short_hashes(other) == other
