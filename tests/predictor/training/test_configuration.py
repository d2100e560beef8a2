"""Configuration files of the training."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.training.configuration import load_config
from profiling.errors import InputError


def test_configuration(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("network:\n  width: 8\n  encoder: {layers: 1}\ntraining:\n  epochs: 3\n")
    network, training = load_config(file, seed=4)
    assert (network.width, network.encoder.layers, training.epochs, training.seed) == (8, 1, 3, 4)
    file.write_text("training: {seed: 7}")  # as a sweep writes it
    assert [load_config(file, seed)[1].seed for seed in (None, 0, 4)] == [7, 0, 4]
    for body in ("network: {wide: 8}", "- 1\n- 2", "network: [", "training: 7", "training: {epochs: 0}"):
        file.write_text(body)
        with pytest.raises(InputError):
            load_config(file)
    for body, named in (
        ("training: {epochs: 2.5}", "training.epochs"),
        ("training: {epochs: many}", "training.epochs"),
        ("training: {epochs: true}", "training.epochs"),
        ("training: {learning_rate: -1}", "training.learning_rate"),
        # Text in YAML 1.1.
        ("training: {learning_rate: 1e-3}", r"training.learning_rate .*got the text '1e-3'; .* like 1.0e-3"),
        ("training: {weight_decay: .nan}", "training.weight_decay"),
        ("training: {campaign_dropout: 7}", "training.campaign_dropout"),
        ("training: {process: 1}", "training.process"),
        ("network: {width: 10, heads: 4}", "network.width is not divisible"),
        ("network: {encoder: {width: 6}}", "encoder.width is not divisible"),
        (
            "training: {ensemble: 1000000}",
            "training.ensemble is out of range: expected an integer from 1 to 100",
        ),
        ("training: {learning_rate: 0}", "training.learning_rate is out of range: expected a number above 0"),
        ("training: {encoder_learning_rate: 0}", "encoder_learning_rate is out of range"),
        (
            'training: {process: "maybe"}',
            "training.process is out of range: expected true or false, got the text 'maybe'\\.$",
        ),
        ("training: {teacher_trees: 1000000}", "training.teacher_trees is out of range"),
        ("network: {layers: 1000000}", "network.layers is out of range: expected an integer from 1 to 64"),
        ("network: {encoder: {layers: 1000000}}", "encoder.layers is out of range"),
        ("network: {encoder: {embedding: 1000000}}", "encoder.embedding is out of range"),
        ("network: {encoder: {kind_width: 1000000}}", "encoder.kind_width is out of range"),
        ("network: {width: 10000000}", "network.width is out of range: expected an integer from 1 to 4096"),
        ("network: {form: round}", "network.form"),
        ("network: {form: paper}", "ablation only"),
        ("network: {use_device: false}", "ablation only"),
        ("network: {dropout: no}", "network.dropout"),
    ):
        file.write_text(body)
        with pytest.raises(InputError, match=named):
            load_config(file)
    with pytest.raises(InputError, match=r"missing\.yaml"):
        load_config(tmp_path / "missing.yaml")
