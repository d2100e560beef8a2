"""Reads `.npy` files of pickled objects without running code.

Its unpickler supports only NumPy arrays.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from profiling.errors import InputError, UnsafeFileError

MAX_BYTES = 64 * 2**20
_MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray")
_NAMES = ("ndarray", "dtype", "_reconstruct", "scalar")


class _NumpyOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in _MODULES and name in _NAMES:
            return super().find_class(module, name)
        raise UnsafeFileError(
            "pickled file refused",
            expected="numpy arrays, numbers, texts, lists and dicts",
            got=f"{module}.{name}",
        )


def load_npy(path: Path) -> Any:
    """Load the object of an `.npy` file: an array, or the content of a 0-d object array.

    Raises:
        UnsafeFileError: the pickle names anything but NumPy arrays, or the file is over 64 MiB.
        InputError: not an `.npy` file, or a damaged one.
    """
    if path.stat().st_size > MAX_BYTES:
        raise UnsafeFileError(
            f"{path} is too large", expected=f"at most {MAX_BYTES} bytes", got=path.stat().st_size
        )
    with path.open("rb") as stream:
        try:
            version = np.lib.format.read_magic(stream)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            _, _, dtype = read(stream)
            if not dtype.hasobject:
                stream.seek(0)
                return np.load(stream, allow_pickle=False)
            array = _NumpyOnly(stream, encoding="latin1").load()
        except UnsafeFileError as error:
            raise UnsafeFileError(f"{path}: {error.detail}", expected=error.expected, got=error.got) from None
        except (
            ValueError,
            EOFError,
            pickle.UnpicklingError,
            TypeError,
            AttributeError,
            IndexError,
            KeyError,
        ) as error:
            raise InputError(
                f"{path} is not a complete .npy file", expected="a numpy file", got=repr(error)
            ) from None
    return array.item() if isinstance(array, np.ndarray) and array.shape == () else array
