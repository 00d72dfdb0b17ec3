"""Write a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from glqprof.errors import InputError


def check_output_path(path: Path, inputs: Sequence[str | Path] = ()) -> None:
    """Raise InputError when no file can be written to ``path``: asked before anything is read or made.

    An output of another run is replaced; one of ``inputs`` is not.
    """
    if path.is_dir():
        raise InputError(path, "is a folder; name a file in it")
    if not path.parent.is_dir():
        raise InputError(path, "cannot be written: its folder does not exist; make it or choose another")
    if not os.access(path.parent, os.W_OK):
        raise InputError(path, "cannot be written (permission denied); choose another folder")
    if path.exists() and any(Path(i).is_file() and path.samefile(i) for i in inputs):
        raise InputError(path, "is an input, which would be lost; name another file")


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Call ``write`` with a file beside ``path`` and rename it there when it is complete.

    Raises InputError when the folder is missing or cannot be written, or the disk is full; ``path`` is then untouched.
    """
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise InputError(path, f"cannot be written ({error.strerror}); choose another folder") from None
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # noqa: PTH101 - mkstemp makes it private, a result is not
        Path(temporary).replace(path)
    except OSError as error:
        raise InputError(path, f"cannot be written ({error.strerror}); free space or choose another place") from None
    finally:
        Path(temporary).unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_atomically(path, lambda file: file.write(text.encode()))
