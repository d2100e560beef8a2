"""Groups names: related architectures are one family.

`by-family` splits hold out a family together. It is derived from a name: without its collection and the
prefixes that state who trained it, the letters with which it begins. Families that share a network, by its weights
(`profiling.collections.networks`), are merged. A user's own `module:factory`, and the hash of a graph, is a family of
its own.
"""

from __future__ import annotations

import re

# Prefixes of timm's names for the origin of weights or padding, and of the zoo's for the framework; the network
# is the name without them.
_PREFIXES = ("tf", "tv", "ssl", "swsl", "gluon", "legacy", "ig", "ese", "adv", "ens", "jx", "wide")
_PREFIX = re.compile("^(?:keras-|(?:" + "|".join(_PREFIXES) + ")_)")
# Family by letters -> family that has the same networks under its own name.
_SAME = {
    "beitv": "beit",
    "deit": "vit",
    "densenetblur": "densenet",
    "efficientnetv": "efficientnet",
    "mobilenetv": "mobilenet",
    "regnetx": "regnet",
    "regnety": "regnet",
    "resnetaa": "resnet",
    "resnetblur": "resnet",
    "semnasnet": "mnasnet",
    "seresnextaa": "seresnext",
    "shufflenetv": "shufflenet",
    "wideresnet": "resnet",
}
# Every cell is a family of its own.
_SINGLE = ("nasbench",)


def architecture_of(name: str) -> str:
    """The network behind a name, without the pre-training tag after a dot.

    >>> architecture_of("timm/resnet50.a1_in1k")
    'timm/resnet50'
    """
    collection, slash, bare = name.rpartition("/")
    return f"{collection}{slash}{bare.partition('.')[0]}"


def family_of(name: str) -> str:
    """The family of an architecture.

    >>> [family_of(n) for n in ("timm-0.6/tf_efficientnet_b0", "torchvision/resnet50", "keras-resnet50-cifar")]
    ['efficientnet', 'resnet', 'resnet']
    """
    if ":" in name:
        return name
    collection, _, bare = architecture_of(name).rpartition("/")
    if collection in _SINGLE:
        return bare
    while _PREFIX.match(bare):
        bare = _PREFIX.sub("", bare)
    letters = re.match(r"[A-Za-z]+", bare)
    family = letters[0].lower() if letters else bare
    return _SAME.get(family, family)
