from __future__ import annotations

from collections import defaultdict

import pytest

from datasets.families import family_of
from profiling.collections import COLLECTIONS, collected_names
from profiling.collections.networks import ZOO_NETWORKS, find_zoo_networks, network_of, one_name
from profiling.files import read_json
from profiling.zoo import zoo_names


@pytest.mark.parametrize(
    "names",
    [
        (
            "resnet50-imagenet",
            "timm/resnet50",
            "timm/resnet50.a1_in1k",
            "timm-0.6/tv_resnet50",
            "torchvision/resnet50",
        ),
        ("torchvision/mobilenet_v2", "timm/mobilenetv2_100"),  # one has a dropout more
        ("mobilenetv3small-imagenet", "timm/mobilenetv3_small_100"),  # a 1 x 1 convolution for a linear layer
        (
            "torchvision/vit_b_16",
            "timm/vit_base_patch16_224",
        ),  # the bias of query, key and value is elsewhere
        ("timm/convnext_tiny", "timm-fast-norm/convnext_tiny", "torchvision/convnext_tiny"),
    ],
)
def test_names_of_one_network_have_one_key(names: tuple[str, ...]) -> None:
    assert len({network_of(name) for name in names}) == 1
    assert one_name(names) == dict.fromkeys(names, min(names))


def test_other_networks_have_other_keys() -> None:
    names = (
        "timm/resnet50",
        "timm/resnet50_gn",
        "timm/nf_resnet50",
        "timm/resnet101",
        "timm/vit_base_patch16_224",
        "timm/vit_base_patch16_384",
        "resnet50-cifar",
        "bert-base-squad",
        "hf/bert-base",
    )
    assert len({network_of(name) for name in names}) == len(names)
    assert one_name(names) == {name: name for name in names}


def test_a_name_without_a_twin_is_its_own_key() -> None:
    for name in ("own:factory", "graph:0123", "timm/no-such-network", "no/such/name.onnx", "lstm-wikitext2"):
        assert network_of(name) == name
    assert network_of("ResNet-18") == network_of("resnet18-cifar")
    cells = collected_names("nasbench")[:2]
    assert [network_of(name) for name in cells] == cells


def test_the_stored_map_of_the_zoo_is_up_to_date() -> None:
    assert read_json(ZOO_NETWORKS)["names"] == find_zoo_networks()


def test_no_two_families_share_a_network() -> None:
    names = [name for collection in COLLECTIONS for name in collected_names(collection)]
    families: dict[str, set[str]] = defaultdict(set)
    for name in (*names, *zoo_names()):
        families[network_of(name)].add(family_of(name))
    assert [sorted(several) for several in families.values() if len(several) > 1] == []
