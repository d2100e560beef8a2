"""Fenced blocks of the pages, and the commands in them.

A comment before a block says why it is not run: `<!-- needs: WHAT IS MISSING -->`,
`<!-- run by: TEST FILE -->`, or `<!-- synopsis -->`. `<!-- file: NAME -->` writes the block to a file, and so
does a first line `# NAME.py`.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "clients").rglob("*.md")),
)
PROGRAMS = (
    "cotenant",
    "python",
    "make",
    "curl",
    "git",
    "pip",
    "uv",
    "mlflow",
    "kubectl",
    "sbatch",
    "docker",
    "jupyter",
    ".",
)
MARKS = ("needs", "run by", "synopsis", "file")

_BLOCK = re.compile(r"(?ms)^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```")
_MARK = re.compile(r"<!-- (?P<kind>[\w ]+?)(?:: (?P<what>[^>]*?))? -->\s*$")


@dataclass(frozen=True)
class Block:
    """One fenced block: place, language, text, and mark (kind and text, both empty without one)."""

    page: Path
    line: int
    language: str
    text: str
    mark: str
    what: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> list[list[str]]:
        """Words of each command, if the block is a shell block."""
        if self.language not in ("", "sh", "console"):
            return []
        lines = iter(self.text.replace("\\\n", " ").splitlines())
        prompts = "$ " in {line.lstrip()[:2] for line in self.text.splitlines()}
        parts = []
        for line in lines:
            typed = line.strip()
            if prompts and not typed.startswith("$ "):
                continue
            typed = typed.removeprefix("$ ")
            while typed.count("'") % 2:
                typed += "\n" + next(lines)
            words = shlex.split(typed, comments=True)
            if words and words[0] in PROGRAMS:
                parts += split(words, "&&")
        return parts

    def shown(self, words: list[str]) -> str:
        """The output that the block shows for a command behind a prompt; empty if none."""
        for part in re.split(r"(?m)^\$ ", self.text)[1:]:
            typed, _, printed = part.partition("\n")
            if typed.count("'") % 2 == 0 and shlex.split(typed, comments=True) == words:
                return printed
        return ""


def split(words: list[str], mark: str) -> list[list[str]]:
    """The words between occurrences of `mark`."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == mark:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text()
    listed = []
    for match in _BLOCK.finditer(text):
        mark = _MARK.search(text[: match.start()])
        indent = match["indent"]
        body = "".join(line.removeprefix(indent) for line in match["text"].splitlines(keepends=True))
        listed.append(
            Block(
                page,
                text[: match.start()].count("\n") + 1,
                match["language"],
                body,
                mark["kind"] if mark else "",
                (mark["what"] or "") if mark else "",
            )
        )
    return listed
