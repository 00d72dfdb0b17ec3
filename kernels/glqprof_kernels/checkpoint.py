"""Tensors of safetensors checkpoints by name: one file, several, or a folder with an index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Tensor = Any  # torch.Tensor


class Checkpoint:
    """Tensors by name over one file, several files, or a folder with ``model.safetensors.index.json``."""

    def __init__(self, source: Path | str | Sequence[Path | str]) -> None:
        """Read the files' headers; ValueError when there is none, or a file is not safetensors."""
        from safetensors import safe_open

        self._file_of: dict[str, Path] = {}
        for path in self._files(source):
            try:
                with safe_open(path, framework="pt") as opened:
                    self._file_of.update(dict.fromkeys(opened.keys(), path))
            except Exception as error:  # safetensors raises its own types, which differ between versions
                raise ValueError(f"{path}: not a readable safetensors file: {error}") from None

    @staticmethod
    def _files(source: Path | str | Sequence[Path | str]) -> list[Path]:
        if not isinstance(source, (str, Path)):
            return [Path(path) for path in source]
        path = Path(source)
        if not path.is_dir():
            return [path]
        index = path / "model.safetensors.index.json"
        if index.exists():
            try:
                names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            except (ValueError, KeyError, TypeError, AttributeError):
                raise ValueError(f"{index}: is no safetensors index: it has no object weight_map") from None
            return [path / name for name in sorted(set(names))]
        found = sorted(path.glob("*.safetensors"))
        if not found:
            raise ValueError(f"{path}: holds no .safetensors file")
        return found

    def __contains__(self, name: str) -> bool:
        """Whether a tensor of that name exists."""
        return name in self._file_of

    def names(self) -> list[str]:
        """Every tensor's name, in the files' order."""
        return list(self._file_of)

    def read(self, name: str, device: Any) -> Tensor:
        """The tensor, on ``device``; ValueError naming it when it is missing."""
        return self.read_all([name], device)[0]

    def read_all(self, names: Sequence[str], device: Any) -> list[Tensor]:
        """The tensors in that order, on ``device``, each file opened once; ValueError naming the first missing one."""
        from safetensors import safe_open

        for name in names:
            if name not in self._file_of:
                raise ValueError(f"the checkpoint has no tensor {name!r}; pass Names(...) with its own convention")
        found: dict[str, Tensor] = {}
        for path in dict.fromkeys(self._file_of[name] for name in names):
            with safe_open(path, framework="pt") as opened:
                for name in names:
                    if self._file_of[name] == path:
                        found[name] = opened.get_tensor(name).to(device)
        return [found[name] for name in names]
