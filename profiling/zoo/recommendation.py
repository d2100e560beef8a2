"""Recommenders: NeuMF (He et al. 2017) and the dynamic autoencoder of Recoder."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry

USERS, ITEMS = 6_040, 3_706
ML20M_ITEMS = 20_108


class NeuMF(nn.Module):
    """Matrix factorisation and an MLP in parallel."""

    def __init__(self, users: int, items: int, factors: int) -> None:
        super().__init__()
        width = factors * 4
        self.user_gmf = nn.Embedding(users, factors)
        self.item_gmf = nn.Embedding(items, factors)
        self.user_mlp = nn.Embedding(users, width)
        self.item_mlp = nn.Embedding(items, width)
        layers: list[nn.Module] = []
        for i in range(3):
            layers += [nn.Dropout(0.0), nn.Linear(2 * width >> i, width >> i), nn.ReLU()]
        self.mlp = nn.Sequential(*layers)
        self.predict = nn.Linear(2 * factors, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        product = self.user_gmf(user) * self.item_gmf(item)
        deep = self.mlp(torch.cat((self.user_mlp(user), self.item_mlp(item)), -1))
        return self.predict(torch.cat((product, deep), -1)).flatten()


def _neumf_batch(batch_size: int, _: int) -> dict[str, Tensor]:
    return {
        "user": torch.randint(USERS, (batch_size,)),
        "item": torch.randint(ITEMS, (batch_size,)),
        "label": torch.rand(batch_size),
    }


def _neumf_loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch["user"], batch["item"]), batch["label"])


class DynamicAutoencoder(nn.Module):
    """Autoencoder over only the items in the batch, with item embeddings as weights."""

    def __init__(self, items: int, width: int, noise: float) -> None:
        super().__init__()
        self.noise = noise
        self.encoder = nn.Embedding(items, width)
        self.encoder_bias = nn.Parameter(torch.zeros(width))
        self.decoder = nn.Embedding(items, width)
        self.decoder_bias = nn.Embedding(items, 1)

    def forward(self, ratings: Tensor, items: Tensor) -> Tensor:
        x = F.dropout(ratings, self.noise, self.training)
        hidden = torch.tanh(x @ self.encoder(items) + self.encoder_bias)
        return hidden @ self.decoder(items).t() + self.decoder_bias(items).t()


def _items_in_batch(users: int) -> int:
    # Distinct items among the users' interactions grow slowly, because popular items repeat.
    return max(1, round(ML20M_ITEMS * users / (users + 1000)))


def _autoencoder_batch(batch_size: int, _: int) -> dict[str, Tensor]:
    count = _items_in_batch(batch_size)
    return {"ratings": torch.rand(batch_size, count), "items": torch.randint(ML20M_ITEMS, (count,))}


def _autoencoder_loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch["ratings"], batch["items"]), batch["ratings"])


ENTRIES = (
    ZooEntry(
        name="neumf-ml1m",
        family="recommendation",
        model=lambda: NeuMF(USERS, ITEMS, 32),
        batch=_neumf_batch,
        phases=(Phase(_neumf_loss),),
        batch_size=64,
        optimizer="momentum",
        parameters=1_602_657,
        source="closed form of github.com/guoyang9/NCF with 32 factors, 6,040 users, 3,706 items",
        description="NeuMF on MovieLens-1M",
    ),
    ZooEntry(
        name="autoencoder-ml20m",
        family="recommendation",
        model=lambda: DynamicAutoencoder(ML20M_ITEMS, 200, 0.5),
        batch=_autoencoder_batch,
        phases=(Phase(_autoencoder_loss),),
        batch_size=512,
        optimizer="adam",
        parameters=2 * ML20M_ITEMS * 200 + ML20M_ITEMS + 200,
        source="closed form of github.com/amoussawi/recoder DynamicAutoencoder [200] on 20,108 items",
        description="Dynamic autoencoder on MovieLens-20M",
    ),
)
