from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from profiling.errors import InputError, UnknownNameError
from profiling.importing import PACKAGES, import_attribute, own_code
from profiling.zoo import get_model
from tests.test_imports import FOLDERS

ROOT = Path(__file__).parents[2]


def test_names_are_those_of_the_packages() -> None:
    assert PACKAGES == FOLDERS


@pytest.mark.parametrize("file", ["datasets/__init__.py", "predictor.py"])
def test_a_package_that_shadows_ours_is_named_in_one_line(file: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = [sys.executable, "-m", "serving.cli.main", "data", "sources"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    name = file.split("/")[0].removesuffix(".py")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"another package shadows cotenant's '{name}'" in done.stderr
    assert str(tmp_path / name) in done.stderr


def test_code_in_a_package_of_a_taken_name_has_to_be_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.py").write_text("def factory(): ...\n")
    (tmp_path / "uses_it.py").write_text("from models.mine import factory\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    for name in ("models.mine:factory", "uses_it:factory"):
        with pytest.raises(InputError, match="cotenant has a package models, too: rename yours"):
            import_attribute(name, "module:factory")


def test_a_script_that_exits_is_an_error_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "script.py").write_text(
        "import argparse\nargparse.ArgumentParser().parse_args(['--epochs'])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    with pytest.raises(InputError, match="got SystemExit: 2; move what only a script does"):
        import_attribute("script:factory", "module:factory")


def test_code_that_exits_does_not_end_the_command() -> None:
    with pytest.raises(InputError, match="mine raised SystemExit: 3"), own_code("mine"):
        sys.exit(3)


@pytest.mark.parametrize("name", ["nets.py:cnn", "./nets.py:cnn", "nets::cnn", "nets:cn"])
def test_a_name_written_otherwise_is_suggested(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nets.py").write_text("def cnn(): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    with pytest.raises(InputError, match=r"did you mean nets:cnn\?$"):
        import_attribute(name, "module:factory")
    monkeypatch.delitem(sys.modules, "nets", raising=False)


@pytest.mark.parametrize(
    ("path", "module"), [("nets.py", "nets"), ("./mine/nets.py", "mine.nets"), ("/home/me/nets.py", "nets")]
)
def test_a_file_without_its_factory_is_told_how_to_name_it(path: str, module: str) -> None:
    with pytest.raises(UnknownNameError, match=rf"not in the zoo.*: {module}:FACTORY\.$"):
        get_model(path)
