"""Resumes killed training runs: stores the state of each loop and the result of each stage as files.

Files are written atomically and contain no code: tensors in safetensors, everything else as JSON in the
header. A file is only read under the same fingerprint of data, configuration and code.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from profiling.files import write_whole

if TYPE_CHECKING:
    import pandas as pd

# Packages whose code affects the result of a run.
_PACKAGES = ("profiling", "datasets", "models", "predictor")


class Progress:
    """Progress of a run. As a context manager it removes the files at the end of the run.

    Args:
        folder: folder for the files; None stores nothing.
        fingerprint: of data, configuration and code; files of another one are not read.
        every_s: seconds between stored states of a loop; 0 stores every step.
    """

    def __init__(self, folder: Path | None = None, fingerprint: str = "", every_s: float = 20.0) -> None:
        self.folder, self.fingerprint, self.every_s = folder, fingerprint, every_s
        self.prefix = ""
        # Stage to losses by step. Stored with the loop, so that the curves of a resumed run are complete.
        self.losses: dict[str, list[float]] = {}
        self._taken_up: list[str] = []

    def within(self, part: str) -> Progress:
        """The same files, for a part of the run whose stage names occur in another part too."""
        inner = copy(self)
        inner.prefix, inner.losses = f"{self.prefix}{part}: ", {}
        return inner

    @property
    def resumed(self) -> bool:
        """Whether anything was restored from a killed run."""
        return bool(self._taken_up)

    def steps(
        self,
        name: str,
        count: int,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: torch.optim.lr_scheduler.LRScheduler,
        rng: np.random.Generator | None = None,
    ) -> Iterator[int]:
        """`range(count)` for a training loop, less the steps that were done before the kill.

        Module, optimiser, schedule, `rng` and torch's generators are restored to the last stored step, so
        that the remaining steps give bit-identical results.
        """
        if self.folder is None:
            yield from range(count)
            return
        kept = self._read(name)
        done = 0
        if kept is not None:
            done = _restore(*kept, module, optimizer, schedule, rng)
            self.losses[name] = kept[1]["losses"]
        written = time.monotonic()
        for step in range(done, count):
            yield step
            if step + 1 == count or time.monotonic() - written >= self.every_s:
                tensors, state = _state(module, optimizer, schedule, rng)
                self._write(
                    name,
                    tensors,
                    {**state, "step": step + 1, "losses": self.losses.get(name, [])[: step + 1]},
                )
                written = time.monotonic()

    def note(self, name: str, step: int, loss: float) -> None:
        """Record the loss of a step (from 1) of a loop."""
        if self.folder is None:
            return
        curve = self.losses.setdefault(name, [])
        curve[step - 1 :] = [loss]

    def arrays(self, name: str, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """The result of a stage: stored, or else computed by `make`."""
        kept = self._read(name) if self.folder is not None else None
        if kept is not None:
            return {key: tensor.numpy() for key, tensor in kept[0].items()}
        made = make()
        if self.folder is not None:
            self._write(name, {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in made.items()}, {})
        return made

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        """Remove the files after the run; after one that failed, if they hold nothing to go on from."""
        if self.folder is not None and (failed is None or not any(self.folder.glob("*.safetensors"))):
            shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        whole = f"{self.prefix}{name}"
        return self.folder / f"{''.join(c if c.isalnum() else '-' for c in whole)}.safetensors"

    def _write(self, name: str, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        from safetensors.torch import save

        about = json.dumps({"fingerprint": self.fingerprint, **state})
        # Cloned, because tensors that share memory are refused.
        body = save({k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}, {"about": about})
        write_whole(self._path(name), body)

    def _read(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and the rest.

        None if the stage must start from scratch, because nothing is stored or it is damaged or from another
        run.
        """
        from safetensors import SafetensorError, safe_open

        path = self._path(name)
        try:
            with safe_open(path, framework="pt") as file:
                about: dict[str, Any] = json.loads((file.metadata() or {}).get("about", "{}"))
                if about.get("fingerprint") != self.fingerprint:
                    return None
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
        except (SafetensorError, ValueError, OSError):
            return None
        self._taken_up.append(path.name)
        return tensors, about


NOTHING_KEPT = Progress()


def fingerprint(tables: Iterable[pd.DataFrame], *configuration: Any) -> str:
    """Hash of tables, configurations (dataclasses or JSON values), project code, and torch, numpy and
    scikit-learn."""
    import sklearn

    digest = hashlib.sha256()
    for table in tables:
        digest.update(table.to_csv(index=False).encode())
    plain = [c if isinstance(c, str | int | float | bool | None) else asdict(c) for c in configuration]
    versions = [torch.__version__, np.__version__, sklearn.__version__, torch.cuda.is_available()]
    digest.update(json.dumps([plain, versions]).encode())
    root = Path(__file__).parents[2]
    for package in _PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _state(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    rng: np.random.Generator | None,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    moments = optimizer.state_dict()
    tensors = {f"module.{k}": v for k, v in module.state_dict().items()}
    for number, state in moments["state"].items():
        tensors |= {f"optimizer.{number}.{k}": v for k, v in state.items()}
    tensors["random"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random_cuda"] = torch.cuda.get_rng_state()
    return tensors, {
        "groups": moments["param_groups"],
        "schedule": schedule.state_dict(),
        "numpy": rng.bit_generator.state if rng is not None else None,
    }


def _restore(
    tensors: dict[str, Tensor],
    state: dict[str, Any],
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    rng: np.random.Generator | None,
) -> int:
    module.load_state_dict({k.removeprefix("module."): v for k, v in tensors.items() if k[:7] == "module."})
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, number, name = key.split(".", 2)
            moments.setdefault(int(number), {})[name] = value
    groups = [{**group, "betas": tuple(group["betas"])} for group in state["groups"]]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    schedule.load_state_dict(state["schedule"])
    if rng is not None:
        rng.bit_generator.state = state["numpy"]
    torch.set_rng_state(tensors["random"])
    if "random_cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random_cuda"])
    return int(state["step"])
