"""A study that several processes work on, and that outlives a kill."""

from pathlib import Path

import pytest

from predictor.training.study import count_finished, errors_of, joined_study
from profiling.errors import InputError


def test_an_interrupted_trial_is_repeated_unless_another_process_may_run_it(tmp_path: Path) -> None:
    from optuna.distributions import IntDistribution
    from optuna.trial import TrialState

    space, file = {"x": IntDistribution(1, 9)}, tmp_path / "study.db"
    with joined_study(file, "one", {"x": 7}) as study:
        cut_off = study.ask(space)
        assert cut_off.params == {"x": 7}
        with joined_study(file, "one", {"x": 1}) as other:
            assert [t.state for t in other.trials] == [TrialState.RUNNING]
            assert count_finished(other) == 0
    with joined_study(file, "one", {"x": 1}) as study:
        again = study.ask(space)
        assert (again.number, again.params) == (1, {"x": 7})
        study.tell(again, 3.5)
        study.tell(study.ask(space), state=TrialState.PRUNED)
        assert (count_finished(study), errors_of(study)) == (2, [3.5])


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "study.db"
    file.write_text("a letter, " * 100)
    with pytest.raises(InputError, match="not a database"), joined_study(file, "one", {}):
        pass
