"""Reinforcement learning: A3C on Pong (Mnih et al. 2016), PPO and TD3 with the networks of Stable-Baselines3.

Graphs do not include the environment, which runs on the host.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry


class ActorCritic(nn.Module):
    """Four convolutions with pooling, then an LSTM cell over the frames of a rollout."""

    def __init__(self, actions: int = 6) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 32, 5, padding=1)
        self.conv3 = nn.Conv2d(32, 64, 4, padding=1)
        self.conv4 = nn.Conv2d(64, 64, 3, padding=1)
        self.lstm = nn.LSTMCell(1024, 512)
        self.critic = nn.Linear(512, 1)
        self.actor = nn.Linear(512, actions)

    def forward(self, frame: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = frame
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = F.relu(F.max_pool2d(conv(x), 2))
        hidden, cell = self.lstm(x.flatten(1), (hidden, cell))
        return self.critic(hidden), self.actor(hidden), hidden, cell


def _rollout(batch_size: int, length: int) -> dict[str, Tensor]:
    return {
        "frames": torch.randn(length, batch_size, 1, 80, 80),
        "action": torch.randint(6, (length, batch_size)),
        "reward": torch.randn(length, batch_size, 1),
        "state": torch.zeros(batch_size, 512),
    }


def _a3c_loss(model: Any, batch: Any, _memo: dict[str, Any]) -> Tensor:
    hidden = cell = batch["state"]
    values, scores = [], []
    for frame in batch["frames"]:
        value, score, hidden, cell = model(frame, hidden, cell)
        values.append(value)
        scores.append(score)
    value, logits = torch.stack(values), torch.stack(scores)
    advantage = batch["reward"] - value
    log_probability = F.log_softmax(logits, -1)
    entropy = -(log_probability * log_probability.exp()).sum(-1).mean()
    chosen = log_probability.gather(-1, batch["action"][..., None])
    return 0.5 * advantage.square().mean() - (chosen * advantage.detach()).mean() - 0.01 * entropy


def _mlp(*widths: int, act: type[nn.Module] = nn.ReLU, last: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        layers.append(nn.Linear(inputs, outputs))
        if last or i < len(widths) - 2:
            layers.append(act())
    return nn.Sequential(*layers)


class PPO(nn.Module):
    """Separate policy and value networks, 8 to 64 to 64, tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = _mlp(8, 64, 64, act=nn.Tanh, last=True)
        self.value = _mlp(8, 64, 64, act=nn.Tanh, last=True)
        self.action = nn.Linear(64, 4)
        self.score = nn.Linear(64, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.action(self.policy(state)), self.score(self.value(state)).flatten()


def _ppo_batch(batch_size: int, _: int) -> dict[str, Tensor]:
    return {
        "state": torch.randn(batch_size, 8),
        "action": torch.randint(4, (batch_size, 1)),
        "old": torch.randn(batch_size),
        "advantage": torch.randn(batch_size),
        "value": torch.randn(batch_size),
    }


def _ppo_loss(model: Any, batch: Any, _memo: dict[str, Any]) -> Tensor:
    logits, value = model(batch["state"])
    log_probability = F.log_softmax(logits, -1)
    ratio = (log_probability.gather(1, batch["action"]).flatten() - batch["old"]).exp()
    advantage = batch["advantage"]
    clipped = torch.minimum(advantage * ratio, advantage * ratio.clamp(0.8, 1.2))
    entropy = -(log_probability * log_probability.exp()).sum(-1).mean()
    return -clipped.mean() + 0.5 * F.mse_loss(value, batch["value"]) - 0.01 * entropy


class TD3(nn.Module):
    """Actor, two critics, and a frozen copy of each; 24 inputs, 400 and 300 hidden, 4 actions."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = _mlp(24, 400, 300, 4)
        self.critics = nn.ModuleList(_mlp(28, 400, 300, 1) for _ in range(2))
        self.actor_target = _mlp(24, 400, 300, 4).requires_grad_(False)
        self.critics_target = nn.ModuleList(_mlp(28, 400, 300, 1) for _ in range(2)).requires_grad_(False)


def _td3_batch(batch_size: int, _: int) -> dict[str, Tensor]:
    return {
        "state": torch.randn(batch_size, 24),
        "next": torch.randn(batch_size, 24),
        "action": torch.randn(batch_size, 4),
        "reward": torch.randn(batch_size, 1),
    }


def _td3_critics(model: Any, batch: Any, _memo: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        action = torch.tanh(model.actor_target(batch["next"]))
        action = (action + (torch.randn_like(action) * 0.2).clamp(-0.5, 0.5)).clamp(-1, 1)
        both = [critic(torch.cat((batch["next"], action), 1)) for critic in model.critics_target]
        target = batch["reward"] + 0.98 * torch.minimum(*both)
    pair = torch.cat((batch["state"], batch["action"]), 1)
    return sum((F.mse_loss(critic(pair), target) for critic in model.critics), torch.zeros_like(target[0, 0]))


def _td3_actor(model: Any, batch: Any, _memo: dict[str, Any]) -> Tensor:
    action = torch.tanh(model.actor(batch["state"]))
    return -model.critics[0](torch.cat((batch["state"], action), 1)).mean()


_ACTOR = 24 * 400 + 400 + 400 * 300 + 300 + 300 * 4 + 4
_CRITIC = 28 * 400 + 400 + 400 * 300 + 300 + 300 + 1

ENTRIES = (
    ZooEntry(
        name="a3c-pong",
        family="reinforcement",
        model=ActorCritic,
        batch=_rollout,
        phases=(Phase(_a3c_loss),),
        batch_size=1,
        sequence_length=20,
        processes=4,
        optimizer="adam",
        parameters=3_249_639,
        source="github.com/dgriff777/rl_a3c_pytorch, A3Clstm with 6 actions",
        description="A3C with an LSTM on 80x80 frames, rollouts of 20, 4 workers",
    ),
    ZooEntry(
        name="ppo-lunarlander",
        family="reinforcement",
        model=PPO,
        batch=_ppo_batch,
        phases=(Phase(_ppo_loss),),
        batch_size=64,
        optimizer="adam",
        parameters=2 * (8 * 64 + 64 + 64 * 64 + 64) + 64 * 4 + 4 + 64 + 1,
        source="closed form of Stable-Baselines3 PPO MlpPolicy on 8 states and 4 actions",
        description="PPO minibatch of LunarLander",
    ),
    ZooEntry(
        name="td3-bipedalwalker",
        family="reinforcement",
        model=TD3,
        batch=_td3_batch,
        phases=(Phase(_td3_critics, ("critics",)), Phase(_td3_actor, ("actor",))),
        batch_size=64,
        optimizer="adam",
        parameters=2 * (_ACTOR + 2 * _CRITIC),
        source="closed form of Stable-Baselines3 TD3 MlpPolicy on 24 states and 4 actions, targets included",
        description="TD3 minibatch of BipedalWalker",
    ),
)
