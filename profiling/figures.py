"""Pictures drawn by matplotlib: which types of file there are, and how one is written."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from profiling.errors import InputError
from profiling.files import check_file, write_whole

FORMATS = (".svg", ".png", ".pdf")


def check_picture(path: Path) -> None:
    """Raise `InputError` unless the suffix is one of `FORMATS`, and the folder can be written to."""
    if path.suffix.lower() not in FORMATS:
        raise InputError("unknown picture type", expected=", ".join(FORMATS), got=path.suffix or str(path))
    check_file(path)


def save_figure(figure: Any, path: Path) -> Path:
    """Write a matplotlib figure atomically; the file's suffix selects the type.

    Raises:
        InputError: the suffix is not `.svg`, `.png` or `.pdf`.
    """
    check_picture(path)
    image = BytesIO()
    figure.savefig(image, format=path.suffix[1:].lower(), dpi=120)
    return write_whole(path, image.getvalue())
