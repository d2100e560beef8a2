"""A fitted predictor as files, none of which is code.

They are `weights.safetensors`, `config.json`, `manifest.json` and the folder `cost/`.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import PositiveInt, TypeAdapter, ValidationError

from models.colocation_network import ColocationNetwork, NetworkConfig, member_width
from models.cost import CostModel
from models.features import DEMAND_WIDTH, DEVICE_FEATURES, EDGE_FEATURES, SOLO_FEATURES, WORKLOAD_FEATURES
from models.workload_encoder import EncoderConfig, WorkloadEncoder
from predictor.config import TrainingConfig
from predictor.examples.featurizer import Featurizer, GraphSource
from predictor.fitted.device_memory import HeadCalibration
from predictor.fitted.domain import Domain
from predictor.fitted.fitted import Fitted, Manifest
from predictor.fitted.intervals import Intervals
from predictor.fitted.model import CotenantModel, Scaler
from predictor.gaussian_process import stored_process
from predictor.gaussian_process.kernel import KernelParameters
from predictor.predictor import Predictor
from predictor.training.replay import from_tensors, to_tensors
from profiling.errors import InputError, UnavailableError
from profiling.files import read_json, write_json, write_whole

T = TypeVar("T")

FORMAT = "cotenant-predictor"
# Written last: a folder without it is not a checkpoint.
MARKER = "config.json"
# Folder of the cost model that the networks were trained with.
COST = "cost"
VERSION = 10
FILES = (
    MARKER,
    "weights.safetensors",
    "manifest.json",
    f"{COST}/card.json",
    f"{COST}/cost.safetensors",
)
# `model_version` has the digest of the weights.
_DIGESTED = FILES[2:]
_OTHER_VERSION = "train it again, or use the version of cotenant that wrote it"


def save(predictor: Predictor, folder: Path | str, beside: Callable[[Path], None] | None = None) -> Path:
    """Write a fitted predictor to `folder`; sets its version to a hash of the weights.

    All files are written before the first one takes its place, so that a full disk leaves an earlier checkpoint as it
    was.

    Args:
        predictor: the predictor.
        folder: folder of the checkpoint.
        beside: writes more files of it, such as its card, to a folder; called once the version is set.

    Raises:
        UnavailableError: it has not been fitted.
        OSError: the folder cannot be written.
    """
    from safetensors.torch import save as tensors_to_bytes

    if not hasattr(predictor, "fitted_"):
        raise UnavailableError("the predictor has not been fitted", hint="call fit() first")
    fitted, target = predictor.fitted_, Path(folder)
    model = fitted.model
    body = tensors_to_bytes({k: v.contiguous() for k, v in _tensors_of(fitted).items()})
    predictor.version = f"{target.resolve().name}-{_digest(body)}"
    config = {
        "format": FORMAT,
        "version": VERSION,
        "model_version": predictor.version,
        "network": asdict(model.config),
        "training": asdict(predictor.training or TrainingConfig()),
        "campaigns": list(model.campaigns),
        "networks": len(model.networks),
        "heads": asdict(fitted.heads),
        "intervals": asdict(fitted.intervals),
        "domain_radius": fitted.domain.radius,
        "process": None if model.process is None else stored_process.to_json(model.process),
        "features": feature_names(),
    }
    made = target / ".new"
    shutil.rmtree(made, ignore_errors=True)  # of a save that was killed
    try:
        for part in (target, made):
            (part / COST).mkdir(parents=True, exist_ok=True)
        write_whole(made / "weights.safetensors", body)
        write_json(made / "manifest.json", asdict(fitted.manifest))
        model.featurizer.cost_model.save(made / COST)
        config["digests"] = {name: _digest((made / name).read_bytes()) for name in _DIGESTED}
        write_json(made / MARKER, config)
        if beside is not None:
            beside(made)
        more = [path.name for path in made.iterdir() if path.name not in (COST, *FILES)]
        for file in (*more, *reversed(FILES)):
            os.replace(made / file, target / file)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return target


def load(folder: Path | str, graph_source: GraphSource | None = None) -> Predictor:
    """Read a checkpoint.

    Raises:
        InputError: a file is missing or damaged, or made for different features; the hint says what to do.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load as bytes_to_tensors

    source = Path(folder)
    config = _read_config(source)
    try:
        manifest = read_json(source / "manifest.json")
        _check_finite(config, "config")
        _check_finite(manifest, "manifest")
        body = (source / "weights.safetensors").read_bytes()
        if not config["model_version"].endswith(_digest(body)):
            raise ValueError("weights and configuration have different versions")
        # Checkpoints of earlier versions of this format have none.
        for name, digest in config.get("digests", {}).items():
            if _digest((source / name).read_bytes()) != digest:
                raise ValueError(f"{name} is not the one that was written with the weights")
        network = _network_config(config["network"])
        featurizer = Featurizer(graph_source, CostModel.load(source / COST))
        fitted = _fitted(config, manifest, bytes_to_tensors(body), network, featurizer)
        training = TrainingConfig(**config["training"])
    except (
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RuntimeError,
        OSError,
        SafetensorError,
    ) as error:
        raise InputError(
            f"predictor in {source} is damaged",
            expected="complete weights and configuration",
            got=f"{type(error).__name__}: {str(error)[:120]}",
            hint="download or train it again",
        ) from None
    return Predictor.of(fitted, config["model_version"], network, training)


def _tensors_of(fitted: Fitted) -> dict[str, Any]:
    """Everything fitted that is an array, by name in the file; see `_fitted`."""
    import torch

    model = fitted.model
    tensors = {f"encoder.{k}": v for k, v in model.encoder.state_dict().items()}
    for number, network in enumerate(model.networks):
        tensors |= {f"networks.{number}.{k}": v for k, v in network.state_dict().items()}
    tensors |= {
        **{f"scaler.{f.name}": torch.from_numpy(getattr(model.scaler, f.name)) for f in fields(Scaler)},
        "domain.points": torch.from_numpy(np.ascontiguousarray(fitted.domain.points)),
    }
    if fitted.replay is not None:
        tensors |= to_tensors(fitted.replay)
    if model.process is not None:
        arrays = stored_process.to_arrays(model.process)
        tensors |= {f"process.{name}": torch.from_numpy(values) for name, values in arrays.items()}
    return tensors


def _fitted(
    config: dict[str, Any],
    manifest: dict[str, Any],
    tensors: dict[str, Any],
    network: NetworkConfig,
    featurizer: Featurizer,
) -> Fitted:
    """What `_tensors_of` made tensors of, with the rest from `config.json` and `manifest.json`."""
    _check_tensors(tensors, network)
    campaigns = _typed(tuple[str, ...], config["campaigns"], "campaigns")
    encoder = WorkloadEncoder(network.encoder)
    encoder.load_state_dict(_under("encoder.", tensors))
    networks = []
    for number in range(_typed(PositiveInt, config["networks"], "networks")):
        loaded = ColocationNetwork(network, campaigns)
        loaded.load_state_dict(_under(f"networks.{number}.", tensors))
        networks.append(loaded.eval())
    process = None
    if config["process"] is not None:
        _typed(KernelParameters, config["process"]["parameters"], "process.parameters")
        arrays = {name: values.numpy() for name, values in _under("process.", tensors).items()}
        process = stored_process.from_arrays(arrays, config["process"], featurizer)
    scaler = Scaler(**{f.name: tensors[f"scaler.{f.name}"].numpy() for f in fields(Scaler)})
    return Fitted(
        CotenantModel(network, campaigns, encoder.eval(), networks, scaler, featurizer, process),
        _typed(HeadCalibration, config["heads"], "heads"),
        _typed(Intervals, config["intervals"], "intervals"),
        Domain(tensors["domain.points"].numpy(), _typed(float, config["domain_radius"], "domain_radius")),
        # Checkpoints of earlier versions of this format lack some.
        _typed(Manifest, {"partners": [], "added_before": [], **manifest}, "manifest"),
        from_tensors(tensors),
    )


def _read_config(source: Path) -> dict[str, Any]:
    """Read `config.json` of a checkpoint.

    Raises:
        InputError: the checkpoint lacks a file, is of another version, or was made for different features.
    """
    if not (source / MARKER).is_file():
        raise InputError(
            f"no predictor in {source}", expected=", ".join(FILES), hint="train one with `cotenant train`"
        )
    config = read_json(source / MARKER)
    about = config if isinstance(config, dict) else {}
    if (about.get("format"), about.get("version")) != (FORMAT, VERSION):
        raise InputError(
            f"{source} is not a predictor of this version",
            expected=f"{FORMAT} {VERSION}",
            got=f"{about['format']} {about.get('version')}" if "format" in about else "another file",
            hint=_OTHER_VERSION,
        )
    if about.get("features") != feature_names():
        raise InputError(
            f"{source} was made for different features",
            expected="the features of this version",
            hint=_OTHER_VERSION,
        )
    # Last, because another version has other files.
    missing = [name for name in FILES if not (source / name).is_file()]
    if missing:
        raise InputError(
            f"predictor in {source} is incomplete",
            expected=", ".join(FILES),
            got=f"no {', '.join(missing)}",
            hint="copy the whole folder, or train it again",
        )
    return about


def feature_names() -> dict[str, list[str]]:
    """The meaning of every input column; a checkpoint is valid only for these."""
    from models.graph_tensors import NODE_FEATURES
    from predictor.gaussian_process.members import MEMBER_FEATURES
    from profiling.operators import KINDS

    return {
        "workload": list(WORKLOAD_FEATURES),
        "solo": list(SOLO_FEATURES),
        "device": list(DEVICE_FEATURES),
        "edge": list(EDGE_FEATURES),
        "operator": list(NODE_FEATURES),
        "kinds": list(KINDS),
        "member": list(MEMBER_FEATURES),
    }


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:10]


def _network_config(values: dict[str, Any]) -> NetworkConfig:
    return NetworkConfig(**{**values, "encoder": EncoderConfig(**values["encoder"])})


def _check_tensors(tensors: dict[str, Any], network: NetworkConfig) -> None:
    """Raise `ValueError` if one is NaN, or one that no module checks has another shape than the network asks for."""
    for name, tensor in tensors.items():
        if tensor.isnan().any():
            raise ValueError(f"{name} is NaN")
    width, points = member_width(network), tensors["domain.points"]
    expected = {
        "scaler.mean": [width],
        "scaler.scale": [width],
        "scaler.low": [width + DEMAND_WIDTH],
        "scaler.high": [width + DEMAND_WIDTH],
        "domain.points": [len(points), network.encoder.embedding] if len(points) else list(points.shape),
    }
    for name, shape in expected.items():
        if list(tensors[name].shape) != shape:
            raise ValueError(f"{name} has shape {list(tensors[name].shape)}, not {shape}")


def _check_finite(value: Any, name: str) -> None:
    """Raise `ValueError` if a number in a JSON value is NaN or infinite, which `write_json` never writes."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            _check_finite(inner, f"{name}.{key}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} is {value}")


def _typed(kind: type[T], value: Any, name: str) -> T:
    """A value from JSON as a `kind`; nested dataclasses may lack fields.

    Raises:
        ValueError: it, or something in it, has another type, or it lacks a field.
    """
    lacking = [f.name for f in fields(kind) if f.name not in value] if is_dataclass(kind) else []
    if lacking:
        raise ValueError(f"{name} lacks {', '.join(lacking)}")
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, (name, *first["loc"])))
        raise ValueError(f"{place}: {first['msg']}") from None


def _under(prefix: str, tensors: dict[str, Any]) -> dict[str, Any]:
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
