"""Finding groups and variants: the bundled ones, and those of a user's file."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from glqprof.bench.registry import Registry
from glqprof.errors import InputError

BUNDLED = "glqprof_kernels"


@dataclass(frozen=True)
class Problem:
    """A bundled module that could not be loaded, and why, with what to do."""

    module: str
    why: str


def load_bundled(package: str = BUNDLED) -> tuple[Registry, list[Problem]]:
    """Return the registry of ``PACKAGE.*.variants``, each filled by its ``register(registry)``.

    A module that cannot be imported is a Problem, so that one broken group does not hide the others.
    """
    registry = Registry()
    problems: list[Problem] = []
    try:
        root = importlib.import_module(package)
    except ImportError as error:
        return registry, [Problem(package, _import_advice(error))]
    for info in pkgutil.iter_modules(root.__path__):
        name = f"{package}.{info.name}.variants"
        try:
            if not info.ispkg or importlib.util.find_spec(name) is None:
                continue
            _register(importlib.import_module(name), registry)
        except ImportError as error:
            problems.append(Problem(name, _import_advice(error)))
        except Exception as error:  # a bundled module is code under development: say where it broke
            problems.append(Problem(name, f"{_place(error)}: {type(error).__name__}: {error}"))
    return registry, problems


def _import_advice(error: ImportError) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name in ("torch", "numpy", "safetensors"):
        return f"{error.name} is not installed: pip install 'glqprof[torch]'"
    return f"{type(error).__name__}: {error}"


def _register(module: ModuleType, registry: Registry) -> None:
    register: Callable[[Registry], Any] | None = getattr(module, "register", None)
    if register is None:
        raise AttributeError(f"{module.__name__} has no register(registry)")
    register(registry)


def load_file(path: Path, registry: Registry) -> None:
    """Run a user's Python file and let its ``register(registry)`` add variants, or groups, of its own.

    Raises InputError naming the file and the line for whatever goes wrong in it.
    """
    if not path.is_file():
        raise InputError(path, "no such file")
    name = f"glqprof_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(path, "is not a Python file (its name must end in .py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling in the file look their module up
    try:
        spec.loader.exec_module(module)
        if not callable(getattr(module, "register", None)):
            raise InputError(path, "has no function register(registry): define one that calls registry.add_variant")
        _register(module, registry)
    except InputError:
        raise
    except SyntaxError as error:
        raise InputError(f"{error.filename or path}:{error.lineno}", f"SyntaxError: {error.msg}") from error
    except Exception as error:
        del sys.modules[name]
        raise InputError(_place(error, path), _message(error)) from error


def _message(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(error: Exception, path: Path | None = None) -> str:
    """Return FILE:LINE of the innermost frame in ``path``, or of the innermost frame; FILE alone if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    if path is not None:
        frames = traceback.StackSummary.from_list([f for f in frames if Path(f.filename) == path])
        return f"{path}:{frames[-1].lineno}" if frames else str(path)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
