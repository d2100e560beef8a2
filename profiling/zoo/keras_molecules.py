"""Message passing over molecules (Gilmer et al. 2017) on BBBP, as in Keras' code examples (mpnn-molecular-graphs)."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry

UNITS, BOND_FEATURES, STEPS = 64, 7, 4
# BBBP's molecules have 24 atoms and 26 bonds on average; a pair is a bond in one direction, or an atom with itself.
ATOMS, PAIRS = 24, 76
# Atoms of the largest molecule in a batch, to which the others are padded.
PADDED_ATOMS = 64


class Cell(nn.GRUCell):
    """A GRU cell operator by operator: Keras has no fused one."""

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        assert state is not None
        gates = F.linear(x, self.weight_ih, self.bias_ih).unsafe_chunk(3, 1)
        hidden = F.linear(state, self.weight_hh, self.bias_hh).unsafe_chunk(3, 1)
        reset = hidden[0].add_(gates[0]).sigmoid_()
        update = hidden[1].add_(gates[1]).sigmoid_()
        new = gates[2].add(hidden[2].mul_(reset)).tanh_()
        return (state - new).mul_(update).add_(new)


class MessagePassing(nn.Module):
    """Atoms (atoms, 64), bond features (pairs, 7) and bonded pairs (pairs, 2) to atoms (atoms, 64)."""

    def __init__(self) -> None:
        super().__init__()
        self.edge_network = nn.Linear(BOND_FEATURES, UNITS * UNITS)
        self.update = Cell(UNITS, UNITS)

    def forward(self, atoms: Tensor, bonds: Tensor, pairs: Tensor) -> Tensor:
        for _ in range(STEPS):
            matrices = self.edge_network(bonds).view(-1, UNITS, UNITS)
            messages = (matrices @ atoms[pairs[:, 1]].unsqueeze(2)).squeeze(2)
            summed = torch.zeros_like(atoms).index_add(0, pairs[:, 0], messages)
            atoms = self.update(summed, atoms)
        return atoms


class Readout(nn.Module):
    """Transformer encoder with 8 heads of width 64 over padded molecules, averaged over atoms."""

    def __init__(self, heads: int = 8, inner: int = 512) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.ModuleList(nn.Linear(UNITS, heads * UNITS) for _ in range(3))
        self.output = nn.Linear(heads * UNITS, UNITS)
        self.norm1, self.norm2 = nn.LayerNorm(UNITS, 1e-3), nn.LayerNorm(UNITS, 1e-3)
        self.inner, self.outer = nn.Linear(UNITS, inner), nn.Linear(inner, UNITS)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, atoms, _ = x.shape
        query, key, value = (
            layer(x).view(batch, atoms, self.heads, UNITS).transpose(1, 2) for layer in self.query_key_value
        )
        scores = (query * (1.0 / math.sqrt(UNITS))) @ key.transpose(-1, -2) + mask[:, None, None, :]
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, atoms, -1)
        x = self.norm1(x + self.output(mixed))
        x = self.norm2(x + self.outer(F.relu(self.inner(x))))
        return x.mean(1)


class Network(nn.Module):
    """A batch of molecules to logits (batch,)."""

    def __init__(self) -> None:
        super().__init__()
        self.message_passing = MessagePassing()
        self.readout = Readout()
        self.dense = nn.Linear(UNITS, 512)
        self.out = nn.Linear(512, 1)

    def forward(self, batch: Any) -> Tensor:
        atoms = self.message_passing(batch["atoms"], batch["bonds"], batch["pairs"])
        padded = atoms[batch["places"]].view(-1, PADDED_ATOMS, UNITS)
        return self.out(F.relu(self.dense(self.readout(padded, batch["mask"])))).squeeze(1)


def _batch(batch_size: int, _: int) -> dict[str, Tensor]:
    atoms = batch_size * ATOMS
    return {
        "atoms": torch.randn(atoms, UNITS),
        "bonds": torch.randn(batch_size * PAIRS, BOND_FEATURES),
        "pairs": torch.randint(atoms, (batch_size * PAIRS, 2)),
        "places": torch.randint(atoms, (batch_size * PADDED_ATOMS,)),
        "mask": torch.zeros(batch_size, PADDED_ATOMS),
        "label": torch.randint(2, (batch_size,)),
    }


def _loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    logits = model(batch)
    return F.binary_cross_entropy_with_logits(logits, batch["label"].to(logits.dtype))


ENTRIES = (
    ZooEntry(
        name="keras-mpnn-bbbp",
        family="keras_molecules",
        model=Network,
        batch=_batch,
        phases=(Phase(_loss),),
        batch_size=128,
        optimizer="adam",
        parameters=290_561,
        source="closed form of keras.io/examples/graph/mpnn-molecular-graphs: 64 units, 8 heads, 512 dense",
        description="Message passing over molecules of 24 atoms",
    ),
)
