"""Commands on the pages work: every command exists, and every block runs or states why not."""

from __future__ import annotations

import json
import logging
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import structlog

from serving.app import create_app
from serving.cli.lists import fold_lists
from serving.cli.main import app, main
from serving.config import ServiceConfig
from tests.docs.blocks import MARKS, PAGES, ROOT, Block, blocks, split
from tests.serving.live import serve
from tests.serving.table import TableSource

ALL = [block for page in PAGES for block in blocks(page)]
RUN = {page: [b for b in blocks(page) if b.mark in ("", "file")] for page in PAGES}
OURS = [
    (str(block), split(part, ">")[0])
    for block in ALL
    if block.mark != "synopsis"
    for words in block.commands()
    for part in split(words, "|")
    if part[0] == "cotenant"
]


@cache
def group() -> Any:
    import typer.main

    return typer.main.get_command(app)


def test_marks_are_known_and_name_existing_files() -> None:
    assert [str(b) for b in ALL if b.mark and b.mark not in MARKS] == []
    assert [str(b) for b in ALL if b.mark == "run by" and not (ROOT / b.what).is_file()] == []
    assert [str(b) for b in ALL if b.mark == "needs" and not b.what] == []


@pytest.mark.parametrize(("where", "words"), OURS, ids=[where for where, _ in OURS])
def test_command_and_its_options_exist(where: str, words: list[str]) -> None:
    parse(fold_lists(words[1:]))


def test_commands_in_the_text_exist() -> None:
    for page in PAGES:
        for typed in re.findall(r"`(cotenant [a-z][^`\n]*)`", page.read_text()):
            if not re.search(r"[A-Z|\[…]|\.\.\.", re.sub(r"\b[A-Z_]{2,}=\S*", "", typed)):
                parse(fold_lists(typed.split()[1:]), lenient=True)


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Each command as typed, and its help."""
    if not hasattr(command, "list_commands"):
        yield " ".join(("cotenant", *path)), command.help or ""
        return
    context = command.make_context("cotenant", [], resilient_parsing=True)
    for name in command.list_commands(context):
        yield from leaves(command.get_command(context, name), (*path, name))


@pytest.mark.parametrize(("typed", "told"), [pytest.param(*leaf, id=leaf[0]) for leaf in leaves(group())])
def test_help_has_an_example(typed: str, told: str) -> None:
    """As README.md promises."""
    examples = re.findall(rf"{typed}(?: [^`\n]*)?(?=`|\n|$)", told.replace("\\\n", " "))
    assert examples
    for example in examples:
        words = shlex.split(example, comments=True)
        parse(fold_lists(split(split(words, ">")[0], "|")[0][1:]))


def parse(words: list[str], lenient: bool = False) -> None:
    """Follow the words through the groups to a command, and let it parse its arguments."""
    import click

    command, name = group(), "cotenant"
    while isinstance(command, click.Group) or hasattr(command, "get_command"):
        if not words or words[0].startswith("-"):
            return
        context = command.make_context(name, [], resilient_parsing=True)
        name, *words = words
        command = command.get_command(context, name)
        assert command is not None, f"no command {name}"
    if lenient:
        known = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}
        assert {w.partition("=")[0] for w in words if w.startswith("--")} <= known
        return
    context = command.context_class(command, info_name=name, resilient_parsing=False)
    _, rest, _ = command.make_parser(context).parse_args(list(words))
    assert rest == []


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """A service for one page."""
    store = tmp_path / "store.db"
    # Lines of its log would mix with what commands print.
    before = structlog.get_config()
    only_errors = structlog.make_filtering_bound_logger(logging.ERROR)
    structlog.configure(**before | {"wrapper_class": only_errors, "cache_logger_on_first_use": False})
    with serve(create_app(ServiceConfig(database_url=f"sqlite:///{store}"), TableSource())) as served_port:
        yield served_port
    structlog.configure(**before)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(b.commands() or b.language == "python" for b in RUN[p])],
    ids=lambda page: page.stem,
)  # fmt: skip
def test_blocks_run(
    page: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])  # commands put the folder that they run in before it
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    names: dict[str, Any] = {}
    for block in RUN[page]:
        if block.mark == "file":
            Path(block.what).write_text(block.text)
    for block in RUN[page]:
        text = block.text
        if block.mark == "file":
            continue
        if module := re.match(r"# (\w+)\.py\n", text):
            Path(f"{module[1]}.py").write_text(text)
            sys.modules.pop(module[1], None)
            continue
        if ":8080" in text:
            here = f"127.0.0.1:{request.getfixturevalue('port')}"
            text = re.sub(r"(localhost|127\.0\.0\.1):8080", here, text)
        if block.language == "python":
            exec(compile(text, str(block), "exec"), names)
        elif block.language == "json":
            json.loads(text)
        for words in Block(page, block.line, block.language, text, "", "").commands():
            run(block, words, capsys)


def squeezed(printed: str) -> str:
    """Without column padding and durations."""
    return re.sub(r"\d+\.\d+ (ok|s)\b", r"\1", " ".join(printed.split()))


def pattern(shown: str) -> str:
    """The same as a regular expression, with `...` for omitted lines."""
    return ".*".join(re.escape(squeezed(part)) for part in shown.split("\n...\n"))


def run(block: Block, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command of a page; cotenant's own run in this process, which has already imported everything."""
    program, *rest = words
    if program == "cotenant":
        if rest[0] == "serve" and rest[1:2] != ["token"]:
            return  # the service of the fixture
        target = None
        if ">" in rest:
            rest, target = rest[: rest.index(">")], rest[rest.index(">") + 1]
        with pytest.raises(SystemExit) as done:
            main(rest)
        out = capsys.readouterr()
        assert not done.value.code, f"{block}: {' '.join(words)}\n{out.out}{out.err}"
        if shown := block.shown(words):
            assert re.fullmatch(pattern(shown), squeezed(out.out)), f"{block}\n{out.out}"
        if target:
            Path(target).write_text(out.out)
    elif program == "curl":
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        result = subprocess.run(
            [*words, "--silent", "--fail-with-body", "--noproxy", "*"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert result.returncode == 0, f"{block}: {' '.join(words)}\n{result.stdout}"
    else:
        raise AssertionError(f"{block}: `{program}` is run by no test; mark the block")
