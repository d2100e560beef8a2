"""`Workload`: a job and its options, written `NAME[:key=value,...]`; `ColocationSet`: jobs on one device."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import Any

from profiling.devices import canonical
from profiling.errors import InputError
from profiling.names import did_you_mean, one_of

PRECISIONS = ("fp32", "tf32", "amp", "fp16", "bf16", "fp8", "fp64")
PREDICTED_PRECISIONS = ("fp8",)
"""Jobs in these are predicted but cannot be run here, so nothing was measured in them."""
MODES = ("training", "inference")
FRAMEWORKS = ("torch", "tensorflow")
COMPILERS = ("eager", "compile")
MEMORY_LAYOUTS = ("contiguous", "channels-last")
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "rmsprop", "adagrad", "none")
SHARING_MODES = ("time-slice", "mps", "mig")
#: A step takes a microsecond to two weeks; values outside have a wrong unit, or are an attempt to make a
#: calculation overflow or run forever.
STEP_TIMES_S = (1e-6, 1.2e6)

#: No process that trains takes less; a smaller number has another unit.
LEAST_MEMORY_BYTES = 1e6

#: A captured graph is named by this and its content hash.
REGISTERED = "graph:"
# A model and its options with anything but a colon between them.
_OTHER_SEPARATOR = re.compile(r"\s*([^\s:;,=]+)[\s;,]+([^;:]+=[^;:]+)")
_FILE_ENDINGS = (".onnx", ".json", ".graph.txt")


def check_step_time(step_time_s: float) -> None:
    """Check that a step time is plausible.

    Raises:
        InputError: it is outside `STEP_TIMES_S`.
    """
    least, most = STEP_TIMES_S
    if not least <= step_time_s <= most:
        raise InputError(
            "step_time_s is out of range",
            expected=f"{least:g} to {most:g} seconds per step",
            got=step_time_s,
        )


@dataclass(frozen=True, slots=True)
class SoloProfile:
    """The caller's measurements of a job alone on the device in question. Every field may be missing.

    Attributes:
        step_time_s: seconds per optimiser step.
        memory_bytes: device memory of the process, context included.
        utilization_ratio: share of time in which a kernel ran, 0 to 1.
        memory_bandwidth_ratio: share of time in which device memory was read or written, 0 to 1.
    """

    step_time_s: float | None = None
    memory_bytes: float | None = None
    utilization_ratio: float | None = None
    memory_bandwidth_ratio: float | None = None

    def __post_init__(self) -> None:
        if self.step_time_s is not None:
            check_step_time(self.step_time_s)
        if self.memory_bytes is not None and not 0 < self.memory_bytes < float("inf"):
            raise InputError(
                "memory_bytes is out of range", expected="a number above 0", got=self.memory_bytes
            )
        for name in ("utilization_ratio", "memory_bandwidth_ratio"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise InputError(f"{name} is out of range", expected="a ratio from 0 to 1", got=value)


SOLO_KEYS = tuple(f.name for f in fields(SoloProfile))


@dataclass(frozen=True, slots=True)
class Workload:
    """A model with its training options; hashable, as the key of every cache.

    Attributes:
        model: a zoo name, `graph:<content hash>` of a registered graph, or (local commands only) a path or
            `module:factory`.
        batch_size: samples per forward/backward pass and GPU (a step takes `gradient_accumulation` of them);
            None takes the zoo entry's default.
        sequence_length: tokens per sample, if the model has this option; None takes the default.
        image_size: pixels along an image's side, if other than the model's default; None takes the default.
        mode: `training` (a step is forward, backward and optimiser) or `inference` (a step is one forward
            pass).
        precision: `fp32`, `tf32`, `amp` (fp16 autocast), `fp16`, `bf16`, `fp8` (linear layers as by
            Transformer Engine, the rest as `amp`; predicted only), `fp64`.
        framework: `torch` or `tensorflow`.
        compiler: `eager`, or `compile` (torch.compile or XLA).
        memory_layout: of images: `contiguous` (NCHW) or `channels-last` (NHWC).
        data_on_device: the batch is resident on the device: no input pipeline, no copy from the host.
        optimizer: one of `OPTIMIZERS` (`none`: a step ends with the backward pass); None takes the zoo
            entry's default.
        frozen_prefix: number of leading atomic layers that are not trained.
        gradient_accumulation: forward/backward passes per optimiser step.
        activation_checkpointing: recompute activations in the backward pass.
        sm_share_ratio: largest share of the device's SMs that the process may use at a time (the
            active-thread percentage of MPS).
        solo: optional measurements of this job alone.
    """

    model: str
    batch_size: int | None = None
    sequence_length: int | None = None
    image_size: int | None = None
    mode: str = "training"
    precision: str = "fp32"
    framework: str = "torch"
    compiler: str = "eager"
    memory_layout: str = "contiguous"
    data_on_device: bool = False
    optimizer: str | None = None
    frozen_prefix: int = 0
    gradient_accumulation: int = 1
    activation_checkpointing: bool = False
    sm_share_ratio: float = 1.0
    solo: SoloProfile = field(default_factory=SoloProfile)

    def __post_init__(self) -> None:
        if not self.model:
            raise InputError("a job needs a model", expected="ZOO_NAME[:key=value,...]", got="an empty name")
        for name, least in _INTEGERS.items():
            value = getattr(self, name)
            if value is None and name in _MAY_BE_NONE:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least or value > 10**9:
                raise InputError(
                    f"{name} of {self.model} is out of range",
                    expected=f"an integer from {least} to {10**9}",
                    got=repr(value),  # '64' and np.int64(64) are not integers
                )
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices and not (value is None and name == "optimizer"):
                raise InputError(f"unknown {name}", expected="one of " + ", ".join(choices), got=value)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise InputError(
                    f"{name} of {self.model} is not a flag", expected="true or false", got=getattr(self, name)
                )
        share = self.sm_share_ratio
        if not isinstance(share, int | float) or isinstance(share, bool) or not 0 < share <= 1:
            raise InputError("sm_share_ratio is out of range", expected="above 0, at most 1", got=share)

    @classmethod
    def parse(cls, spec: str) -> Workload:
        """Read a job SPEC.

        >>> Workload.parse("resnet18-cifar:batch_size=64,precision=amp").batch_size
        64

        Raises:
            InputError: a key is unknown, given twice, or its value has the wrong type or range.
        """
        head, _, tail = spec.strip().rpartition(":") if "=" in spec else (spec.strip(), "", "")
        if not head and tail.endswith(_FILE_ENDINGS):  # an "=" of its path, as in runs/lr=0.1/model.onnx
            head, tail = tail, ""
        if "=" in spec and not head:
            other = _OTHER_SEPARATOR.fullmatch(spec)
            raise InputError(
                "job SPEC has no model",
                expected="ZOO_NAME[:key=value,...]",
                got=repr(spec),
                hint=did_you_mean(f"{other[1]}:{other[2]}") if other else None,
            )
        options: dict[str, Any] = {}
        for part in filter(None, (p.strip() for p in tail.split(","))):
            key, equals, text = (p.strip() for p in part.partition("="))
            if not equals:
                raise InputError(f"job SPEC {spec!r} is malformed", expected="key=value", got=repr(part))
            if key in options:
                raise InputError(f"job SPEC {spec!r} gives {key} twice", expected="each key once")
            options[key] = option_value(key, text, f"job SPEC {spec!r}")
        return cls.from_mapping({"model": head.strip(), **options})

    @classmethod
    def from_mapping(cls, values: dict[str, Any]) -> Workload:
        """Build from a JSON object whose keys are the fields of `Workload` and `SoloProfile`.

        `workload` is accepted for `model`.

        Raises:
            InputError: as for `parse`.
        """
        values = dict(values)
        if "workload" in values and "model" not in values:
            values["model"] = values.pop("workload")
        for key in values:
            if key != "model" and key not in JOB_OPTIONS:
                raise InputError(
                    f"unknown job option {key!r}",
                    expected="one of " + ", ".join(sorted(JOB_OPTIONS)),
                    got=key,
                )
        if not isinstance(values.get("model"), str):
            raise InputError("a job needs a model", expected="a string 'workload'", got=values.get("model"))
        numbers = {k: float(v) for k, v in values.items() if k in SOLO_KEYS and isinstance(v, int | float)}
        for key in SOLO_KEYS:
            if values.get(key) is not None and key not in numbers:
                raise InputError(f"{key} is not a number", expected="a number", got=repr(values[key]))
        rest = {k: v for k, v in values.items() if k not in SOLO_KEYS and v is not None}
        return cls(**rest, solo=SoloProfile(**numbers))

    def without_solo(self) -> Workload:
        """The same job without its solo measurements: the key of its graph and of its encoding."""
        return self if self.solo == _UNMEASURED else replace(self, solo=_UNMEASURED)

    def captured(self) -> Workload:
        """The job whose graph this job uses: options that only mask, scale or time a graph are dropped.

        Inference on one sample has a graph of its own, because batch norms may not be able to train on one.
        """
        mode = self.mode if self.batch_size == 1 else "training"
        options = {name: getattr(self, name) for name in CAPTURED}
        if self.mode == "inference":  # one forward pass, of which nothing is kept
            options |= {"gradient_accumulation": 1, "activation_checkpointing": False}
        return Workload(mode=mode, **options)

    def to_mapping(self) -> dict[str, Any]:
        """The JSON object for `from_mapping`; defaults are omitted."""
        plain: dict[str, Any] = {"workload": self.model}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name not in ("model", "solo") and value != f.default:
                plain[f.name] = value
        for key in SOLO_KEYS:
            if getattr(self.solo, key) is not None:
                plain[key] = getattr(self.solo, key)
        return plain

    def __str__(self) -> str:
        options = self.to_mapping()
        name = options.pop("workload")
        text = ",".join(f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in options.items())
        return f"{name}:{text}" if text else name


_UNMEASURED = SoloProfile()
_INTEGERS = {
    "batch_size": 1,
    "sequence_length": 1,
    "image_size": 1,
    "frozen_prefix": 0,
    "gradient_accumulation": 1,
}
_MAY_BE_NONE = ("batch_size", "sequence_length", "image_size")
_CHOICES = {
    "mode": MODES,
    "precision": PRECISIONS,
    "framework": FRAMEWORKS,
    "compiler": COMPILERS,
    "memory_layout": MEMORY_LAYOUTS,
    "optimizer": OPTIMIZERS,
}
_FLAGS = ("data_on_device", "activation_checkpointing")
_NUMBERS = ("sm_share_ratio", *SOLO_KEYS)
JOB_OPTIONS = {f.name for f in fields(Workload) if f.name not in ("model", "solo")} | set(SOLO_KEYS)
CAPTURED = (
    "model",
    "batch_size",
    "sequence_length",
    "image_size",
    "precision",
    "optimizer",
    "gradient_accumulation",
    "activation_checkpointing",
)
"""Options that change the graph itself."""


def option_value(key: str, text: str, where: str) -> Any:
    """The value of a job option from its text in a SPEC.

    Args:
        key: name of the option.
        text: its text.
        where: what the text is part of, for the error.

    Raises:
        InputError: unknown key, or an invalid value.
    """
    if key not in JOB_OPTIONS:
        raise InputError(f"{where} has an unknown key", expected=one_of(key, sorted(JOB_OPTIONS)), got=key)
    try:
        if key in _INTEGERS:
            return int(text)
        if key in _NUMBERS:
            return float(text)
    except ValueError:
        kind = "an integer" if key in _INTEGERS else "a number"
        raise InputError(f"{where}: {key} is not {kind}", expected=kind, got=repr(text)) from None
    if key in _FLAGS:
        if text.lower() not in ("true", "false"):
            raise InputError(f"{where}: {key}", expected="true or false", got=repr(text))
        return text.lower() == "true"
    return text


@dataclass(frozen=True, slots=True)
class ColocationSet:
    """A device, a sharing mode and the 1..n workloads that run on it at the same time.

    Attributes:
        device: catalogue name of the GPU type; other spellings of it become that name, because what is known of a type
            (measurements, observations) is looked up by it.
        workloads: members; their order is not significant.
        sharing: `time-slice`, `mps` or `mig`.
    """

    device: str
    workloads: tuple[Workload, ...]
    sharing: str = "time-slice"

    def __post_init__(self) -> None:
        if not self.workloads:
            raise InputError("a co-location set is empty", expected="at least one job", got="none")
        for member in self.workloads:
            if not isinstance(member, Workload):
                raise InputError(
                    "a member of a co-location set is not a job",
                    expected="a Workload",
                    got=repr(member),
                    hint="Workload.parse(SPEC) makes one",
                )
        if self.sharing not in SHARING_MODES:
            raise InputError(
                "unknown sharing mode", expected="one of " + ", ".join(SHARING_MODES), got=self.sharing
            )
        object.__setattr__(self, "device", canonical(self.device))
