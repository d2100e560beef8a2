"""The shipped predictor with another cost model."""

import shutil
from dataclasses import replace
from pathlib import Path

from benchmarks.left_out import with_cost_model
from models.cost import CostModel
from predictor import load_predictor
from predictor.load import PACKAGED
from profiling.workload import ColocationSet, Workload

ALONE = ColocationSet("v100", (Workload.parse("resnet18-cifar:batch_size=64"),))


def test_other_coefficients_change_step_times(tmp_path: Path) -> None:
    own = load_predictor().predict_arrays([ALONE]).step_time_s
    same = shutil.copytree(PACKAGED / "default" / "cost", tmp_path / "same")
    assert (with_cost_model(same).predict_arrays([ALONE]).step_time_s == own).all()
    assert (with_cost_model(None).predict_arrays([ALONE]).step_time_s == own).all()
    model = CostModel.load(same)
    replace(model, devices={}).save(tmp_path / "other")
    assert (with_cost_model(tmp_path / "other").predict_arrays([ALONE]).step_time_s != own).all()
