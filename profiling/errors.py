"""Errors shown to users: what was expected, what was given, what to do about it.

Every error that a user can cause or fix derives from `CotenantError`. It carries the process exit code (0
done, 1 the answer is "no", 2 bad input) and the HTTP status with the RFC 9457 problem type, so that the
command line and the service report the same failure in the same words.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Self

# Longest part of a message; input that is repeated in it may have any length.
_MOST = 1000
_FINAL_DOT = re.compile(r"(?<=[^\s./])\.$")  # of a sentence; not the folder `.`


def one_line(error: BaseException, most: int = 160) -> str:
    """The text of a library's error without its line breaks, cut to `most` characters."""
    return " ".join(str(error).split())[:most]


def shortened(value: object, most: int = _MOST) -> str:
    """`value` as text; a longer one than `most` characters lacks its middle.

    >>> shortened("abcdefghijklmnopqrstuvwxyz", 16)
    'abcdefgh ... xyz'
    """
    text = str(value)
    if len(text) <= most:
        return text
    last = most // 4 - 1
    return f"{text[: most - last - 5]} ... {text[-last:]}"


def without_name(message: str, name: str) -> str:
    """`message` without the `name` that it may begin with, for a text that states the name itself.

    >>> without_name("'own:factory' raised KeyError: 'x'.", "own:factory")
    "raised KeyError: 'x'."
    """
    for said in (name, repr(name)):
        rest = message.removeprefix(said)
        if rest[:1] in (":", " ") and rest != message:
            return rest[1:].lstrip()
    return message


class CotenantError(Exception):
    """Base of errors reported to a user in one line.

    Args:
        detail: what went wrong, in one sentence.
        expected: what would have been valid.
        got: what was given instead.
        hint: what to do about it.
    """

    exit_code: ClassVar[int] = 2
    status: ClassVar[int] = 400
    slug: ClassVar[str] = "error"
    title: ClassVar[str] = "Request could not be carried out"

    def __init__(
        self, detail: str, *, expected: str | None = None, got: Any = None, hint: str | None = None
    ) -> None:
        self.detail, self.expected, self.got, self.hint = detail, expected, got, hint
        super().__init__(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        # Preserve all fields when sent to another process.
        return (_again, (type(self), self.detail, self.expected, self.got, self.hint))

    @property
    def message(self) -> str:
        """The complete message in one line."""
        text = _FINAL_DOT.sub("", shortened(self.detail))
        if self.expected is not None:
            text += f": expected {_FINAL_DOT.sub('', shortened(self.expected))}"
        if self.got is not None:
            # What other libraries say often ends with a full stop.
            got = _FINAL_DOT.sub("", shortened(self.got).rstrip())
            text += f"{', ' if self.expected is not None else ': '}got {got}"
        if self.hint is not None:
            # A hint in lower case, often a command, continues the sentence.
            stop = ";" if self.hint[:1].islower() else "" if text.endswith("...") else "."
            text += f"{stop} {_FINAL_DOT.sub('', shortened(self.hint))}"
        text = " ".join(text.split())
        return text if text.endswith(("...", "?")) else text + "."

    def at(self, where: object) -> Self:
        """The same error, prefixed with its location."""
        return type(self)(f"{where}: {self.detail}", expected=self.expected, got=self.got, hint=self.hint)

    @classmethod
    def urn(cls) -> str:
        """The `type` of its problem details."""
        return f"urn:cotenant:problem:{cls.slug}"

    def problem(self) -> dict[str, Any]:
        """RFC 9457 problem details (without `instance`, which only the HTTP layer knows)."""
        body: dict[str, Any] = {
            "type": self.urn(),
            "title": self.title,
            "status": self.status,
            "detail": self.message,
        }
        for key in ("expected", "got", "hint"):
            value = getattr(self, key)
            if value is not None:
                body[key] = shortened(value)
        return body


def _again(
    kind: type[CotenantError], detail: str, expected: str | None, got: Any, hint: str | None
) -> CotenantError:
    return kind(detail, expected=expected, got=got, hint=hint)


class InputError(CotenantError):
    """An invalid value, file or body."""

    status = 422
    slug = "bad-input"
    title = "Input is not what was expected"


class TooSlowError(InputError):
    """A step of the job would take longer on that GPU type than any step may; other types may be faster."""


class UnknownNameError(InputError):
    """A name (device, model, data set, policy) that is not in its catalogue."""

    status = 404
    slug = "unknown-name"
    title = "Unknown name"


class UnsafeFileError(InputError):
    """A file refused as unsafe: its size, depth, or paths outside its folder."""

    slug = "unsafe-file"
    title = "File was refused"


class LimitError(CotenantError):
    """Something is larger or takes longer than its limit allows."""

    status = 413
    slug = "over-limit"
    title = "Over the limit"


class InfeasibleError(CotenantError):
    """The question was understood and the answer is no: it cannot fit, or nothing satisfies the constraints."""

    exit_code = 1
    status = 409
    slug = "infeasible"
    title = "No feasible answer"


class ConflictError(CotenantError):
    """The state has changed since the caller read it."""

    status = 409
    slug = "conflict"
    title = "State has changed"


class UnavailableError(CotenantError):
    """Something this call needs is not available now: a device, a driver, a model, the store."""

    status = 503
    slug = "unavailable"
    title = "Not available now"
