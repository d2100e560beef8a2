"""Objects of the user's own code, named `module:attribute` on the command line."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from profiling.errors import CotenantError, InputError
from profiling.names import did_you_mean, near_names

PACKAGES = ("profiling", "datasets", "models", "predictor", "scheduling", "serving")
"""The project's import packages. There can be no others of these names in the same process."""


def import_packages() -> None:
    """Import the project's packages, before a user's folder on the import path can come first.

    Raises:
        InputError: a package of the same name comes first already.
    """
    for name in PACKAGES:
        own, spec = Path(__file__).parents[1] / name, importlib.util.find_spec(name)
        found = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin]
        if not found or Path(str(found[0])).resolve() != own.resolve():
            raise InputError(
                f"another package shadows cotenant's {name!r}",
                expected=str(own),
                got=found[0] if found else "none",
                hint="run cotenant in its own environment, and without that folder's parent in PYTHONPATH",
            )
        importlib.import_module(name)


def import_attribute(name: str, expected: str) -> object:
    """The object called `module:attribute`, also looked up in the current folder.

    This runs the module's code.

    Args:
        name: `module:attribute`.
        expected: what it should be, for the error.

    Raises:
        InputError: no such module or attribute, or importing the module fails.
    """
    where, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        value: object = importlib.import_module(where)
        for part in attribute.split("."):
            value = getattr(value, part)
    except (Exception, SystemExit) as error:  # anything that the user's code may raise; a script may exit
        got = (
            str(error)
            if isinstance(error, ImportError | AttributeError)
            else f"{type(error).__name__}: {error}"
        )
        taken = (getattr(error, "name", None) or "").partition(".")[0]
        hint = did_you_mean(*_near(where, attribute))
        if taken in PACKAGES:
            hint = f"cotenant has a package {taken}, too: rename yours"
        if isinstance(error, SystemExit):
            hint = 'move what only a script does, such as parsing its options, under `if __name__ == "__main__":`'
        raise InputError(f"{name!r} cannot be imported", expected=expected, got=got, hint=hint) from error
    return value


def _near(where: str, attribute: str) -> list[str]:
    """`module:attribute` as it is probably meant: of a path `nets.py:cnn`, of `nets::cnn`, of a misspelt attribute."""
    module = sys.modules.get(where)
    if module is not None:
        return [f"{where}:{name}" for name in near_names(attribute, vars(module))]
    dotted = module_at(where)
    names = [f"{dotted}:{attribute.lstrip(':')}"]
    return names if all(dotted.split(".")) and names != [f"{where}:{attribute}"] else []


def module_at(path: str) -> str:
    """The module that is probably meant by the path of its file.

    >>> module_at("./mine/nets.py"), module_at("/home/me/nets.py")
    ('mine.nets', 'nets')
    """
    if path.startswith(("/", "../")):  # for whoever goes there, or adds its folder to the import path
        return Path(path).stem
    return path.removesuffix(".py").removeprefix("./").replace("/", ".")


@contextlib.contextmanager
def own_code(name: str, kind: type[CotenantError] = InputError) -> Iterator[None]:
    """Turn whatever the user's code at `name` raises into an error of that kind."""
    try:
        yield
    except CotenantError:
        raise
    except (Exception, SystemExit) as error:  # anything that the user's code may raise; a script may exit
        raise kind(f"{name} raised {type(error).__name__}: {error}") from error
