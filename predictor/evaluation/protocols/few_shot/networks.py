"""Few-shot learners that start from the network.

They correct it as the service does, and combine it with the process over the training sets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from predictor.evaluation.protocols.few_shot.contenders import LEARNERS, LearnerFactory, learners
from predictor.evaluation.protocols.few_shot.learners import FewShotLearner, Fold
from predictor.evaluation.protocols.few_shot.processes import Averaged, PosteriorLearner
from predictor.gaussian_process.set_process import NETWORK_SHARE

if TYPE_CHECKING:
    from predictor.config import TrainingConfig
    from predictor.examples.featurizer import Featurizer

WITH_NETWORK = (*LEARNERS, "posterior", "posterior-and-process")


def learners_of(
    tables: dict[str, Any], featurizer: Featurizer | None = None, config: TrainingConfig | None = None
) -> LearnerFactory:
    """A factory of all learners, and of two that start from an E-GGAT fitted to a fold's training sets.

    Args:
        tables: `solo` has the solo runs.
        featurizer: reads graphs; the shared one by default.
        config: how the network is trained.
    """

    def make(fold: Fold) -> dict[str, FewShotLearner]:
        from models.colocation_network import NetworkConfig
        from predictor.config import TrainingConfig
        from predictor.examples.featurizer import shared_featurizer
        from predictor.training.fit import solo_examples
        from predictor.training.networks import fit

        solo = tables["solo"]
        known = solo.campaign.isin(fold.train.campaign) & solo.architecture.isin(fold.train.architectures)
        model = fit(
            fold.train,
            solo_examples(solo[known]),
            featurizer or shared_featurizer(),
            NetworkConfig(),
            config or TrainingConfig(),
        )
        made = learners(fold)
        expected, of_networks = (
            -model.predict_log_ratio(fold.test, share)[0] for share in (NETWORK_SHARE, 1.0)
        )
        posterior = PosteriorLearner(fold, expected, of_networks)
        both = Averaged(posterior, made["process"])
        return made | {"posterior": posterior, "posterior-and-process": both}

    return make
