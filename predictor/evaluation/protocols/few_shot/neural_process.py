"""A graph neural process over co-location sets, as a few-shot learner.

After Garnelo et al., Conditional Neural Processes, ICML 2018. Jobs on a device are nodes, observed sets are
edges with their measured log slowdown, and a queried set is an edge without one. It is trained on episodes,
in which some sets of an architecture are shown and the others queried.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from models.e_ggat import MOST_LAYERS, EGGATLayer
from models.features import Floats
from predictor.evaluation.protocols.few_shot.learners import FewShotAnswer, Fold
from predictor.examples.examples import Integers
from predictor.types import LEVEL_90
from profiling.checked_fields import check_fields

_EDGE_WIDTH = 5
# Of weights and episodes.
_SEED = 0


@dataclass(frozen=True, slots=True)
class NeuralProcessConfig:
    """Size and training of the network.

    Attributes:
        width, layers: of the E-GGAT over the jobs.
        episodes: training steps; with four times as many, it memorises the architectures.
        learning_rate: of AdamW, with cosine decay to 0.
        most_shown: most sets of an episode's architecture that are shown.
    """

    width: int = 32
    layers: int = 2
    episodes: int = 150
    learning_rate: float = 3e-3
    most_shown: int = 16

    def __post_init__(self) -> None:
        check_fields(
            "neural_process", self, ("width", "layers", "episodes", "learning_rate"), {"layers": MOST_LAYERS}
        )


class NeuralProcess(nn.Module):
    """Predicts mean and log standard deviation of the log slowdown of a member beside a partner.

    Args:
        features: number of features of a node.
        config: sizes.
    """

    def __init__(self, features: int, config: NeuralProcessConfig) -> None:
        super().__init__()
        width = config.width
        self.enter = nn.Sequential(nn.Linear(features, width), nn.GELU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(EGGATLayer(width, _EDGE_WIDTH) for _ in range(config.layers))
        self.leave = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, 2))

    def forward(self, nodes: Tensor, edge_index: Tensor, edges: Tensor, pairs: Tensor) -> Tensor:
        """[P, 2] for pairs of a member and its partner.

        Args:
            nodes: [N, features].
            edge_index: [2, E]; row 0 source, row 1 target.
            edges: [E, 5]; see `_edges`.
            pairs: [2, P] numbers of members and partners.
        """
        state = self.enter(nodes)
        for layer in self.layers:
            state = layer(state, edge_index, edges)
        return self.leave(torch.cat([state[pairs[0]], state[pairs[1]]], 1))


class NeuralProcessLearner:
    """Trained on the fold's training rows; queried with these and the observations as context.

    Args:
        fold: the rows.
        prior: [train rows + test rows] predicted log slowdowns, whose residuals are learned. None: a
            constant.
    """

    def __init__(self, fold: Fold, prior: Floats | None = None) -> None:
        self.config = config = NeuralProcessConfig()
        self.fold, self.rows = fold, fold.measured.rows
        log_slowdown = -fold.log_ratio
        points = fold.train_points
        self.prior = np.zeros(len(log_slowdown)) if prior is None else prior
        self.prior = self.prior + float((log_slowdown - self.prior)[points].mean())
        left = log_slowdown - self.prior
        self.spread = float(left[points].std()) or 1.0
        self.target = np.nan_to_num(left / self.spread)
        groups = fold.scale.standard(fold.measured.features)
        self.nodes = torch.tensor(np.concatenate(list(groups.values()), 1)).float()
        torch.manual_seed(_SEED)
        self.network = NeuralProcess(self.nodes.shape[1], config)
        self._train(np.random.default_rng(_SEED))

    def _pairs(self, rows: Integers) -> tuple[Integers, Integers, Integers]:
        """(position in `rows`, member, partner) of every pair in the rows."""
        row, column = np.nonzero(self.rows.partners[rows] >= 0)
        return row, self.rows.own[rows][row], self.rows.partners[rows][row, column]

    def _edges(self, context: Integers) -> tuple[Tensor, Tensor]:
        """[2, E] edge index and [E, 5] edge features.

        The features are the effect of the source on the target (value, 1), that of the target on the source
        (value, 1), and a flag for self edges.
        """
        row, own, partner = self._pairs(context)
        itself = np.arange(len(self.nodes))
        pairs, both = len(row), 2 * len(row)
        edges = torch.zeros(both + len(itself), _EDGE_WIDTH)
        edges[:pairs, 0] = edges[pairs:both, 2] = torch.tensor(self.target[context][row]).float()
        edges[:pairs, 1] = edges[pairs:both, 3] = edges[both:, 4] = 1.0
        ends = np.concatenate([partner, own, itself]), np.concatenate([own, partner, itself])
        return torch.tensor(np.stack(ends)), edges

    def _answer(self, context: Integers, asked: Integers) -> tuple[Tensor, Tensor]:
        """[len(asked)] means and standard deviations, relative to `spread`.

        Averaged over a member's partners.
        """
        index, edges = self._edges(context)
        number, first, second = self._pairs(asked)
        output = self.network(self.nodes, index, edges, torch.tensor(np.stack([first, second])))
        sums = torch.zeros(len(asked), 2).index_add(0, torch.tensor(number), output)
        shares = torch.tensor(np.bincount(number, minlength=len(asked))).clamp(min=1).unsqueeze(1)
        mean, deviation = (sums / shares).unbind(1)
        return mean, deviation.clamp(-4.0, 2.0).exp()

    def _train(self, rng: np.random.Generator) -> None:
        train, points, config = self.fold.train, self.fold.train_points, self.config
        models = np.array(train.architectures)
        names = sorted(set(models[points]))
        of_set = {name: np.unique(train.set_index[models == name]) for name in names}
        optimiser = torch.optim.AdamW(self.network.parameters(), lr=config.learning_rate, weight_decay=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, config.episodes)
        for _ in range(config.episodes):
            sets = rng.permutation(of_set[names[rng.integers(len(names))]])
            shown = sets[: rng.integers(config.most_shown + 1)]
            hidden = np.setdiff1d(sets, shown)
            asked = points[np.isin(train.set_index[points], hidden)]
            context = points[~np.isin(train.set_index[points], hidden)]
            if not len(asked):
                continue
            mean, deviation = self._answer(context, asked)
            wanted = torch.tensor(self.target[asked]).float()
            loss = nn.functional.gaussian_nll_loss(mean, wanted, deviation**2)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            optimiser.step()
            schedule.step()

    def answer(self, seen: Integers) -> FewShotAnswer:
        test = self.fold.test_rows
        with torch.no_grad():
            mean, deviation = self._answer(np.concatenate([self.fold.train_points, test[seen]]), test)
        middle = -(self.prior[test] + self.spread * mean.numpy())
        half = LEVEL_90 * self.spread * deviation.numpy()
        return FewShotAnswer(middle, middle - half, middle + half)
