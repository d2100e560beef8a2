from __future__ import annotations

import warnings

import pytest

from profiling.notes import warnings_as_notes


def test_warning_is_a_line_without_its_location(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with warnings_as_notes():
            warnings.warn("odd:make: counted by shape", stacklevel=1)
            assert capsys.readouterr().err == "note: odd:make: counted by shape\n"
            warnings.warn("odd:make: counted by shape", stacklevel=1)
            assert capsys.readouterr().err == "", "a note is printed once"
            with pytest.warns(DeprecationWarning, match="old"):
                warnings.warn("old", DeprecationWarning, stacklevel=1)
