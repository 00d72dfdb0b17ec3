"""The codebook against its definition, and files that hold one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from glqprof_kernels.glq import codebook


def by_definition_up_to_norm_4() -> list[tuple[float, ...]]:
    """E8 vectors of norm² ≤ 4, by brute force over the definition."""
    found = []
    for values in itertools.product((-2, -1, 0, 1, 2), repeat=8):
        if sum(v * v for v in values) <= 4 and sum(values) % 2 == 0:
            found.append(tuple(float(v) for v in values))
    for values in itertools.product((-1.5, -0.5, 0.5, 1.5), repeat=8):
        if sum(v * v for v in values) <= 4 and sum(values) % 2 == 0:
            found.append(values)
    return sorted(found, key=lambda v: (sum(c * c for c in v), v))


def test_first_shells_by_brute_force() -> None:
    expected = by_definition_up_to_norm_4()
    assert len(expected) == 1 + 240 + 2160
    assert codebook.generate()[: len(expected)].astype(float).tolist() == [list(v) for v in expected]


def test_shape_order_and_shells() -> None:
    table = codebook.generate()
    assert table.shape == (65_536, 8)
    assert table.dtype == np.float16
    keys = [((row**2).sum(), *row) for row in table.astype(np.float64).tolist() for row in [np.array(row)]]
    assert all(a < b for a, b in itertools.pairwise(keys))
    assert sum(codebook.SHELLS.values()) == 65_536
    assert sum(codebook.SHELLS[n] for n in (0, 2, 4, 6, 8, 10)) == 56_881
    assert not np.signbit(table[0]).any()


def test_complete_shells_are_closed_under_negation() -> None:
    complete = codebook.generate()[:56_881].astype(float)
    assert {tuple(v) for v in complete.tolist()} == {tuple(v) for v in (-complete).tolist()}


def test_small_codebook() -> None:
    norms = (codebook.generate()[: codebook.SMALL_ENTRIES].astype(float) ** 2).sum(axis=1)
    assert np.unique(norms, return_counts=True)[1].tolist() == [1, 240, 15]


def shuffled() -> np.ndarray:
    return codebook.generate()[np.random.default_rng(0).permutation(65_536)]


@pytest.mark.parametrize("suffix", [".npy", ".pt", ".safetensors"])
def test_load_keeps_the_files_order(tmp_path, suffix) -> None:
    table, path = shuffled(), tmp_path / f"book{suffix}"
    if suffix == ".npy":
        np.save(path, table.astype(np.float32))
    elif suffix == ".pt":
        torch.save(torch.from_numpy(table), path)
    else:
        save_file({"codebook": torch.from_numpy(table)}, path)
    loaded = codebook.load(path)
    assert loaded.dtype == np.float16
    assert (loaded == table).all()


def test_load_names_the_tensors_of_a_file(tmp_path) -> None:
    path = tmp_path / "book.safetensors"
    save_file({"a": torch.from_numpy(shuffled()), "b": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match=r"book.safetensors: holds 2 tensors \(a, b\)"):
        codebook.load(path)
    with pytest.raises(ValueError, match="no tensor 'c'"):
        codebook.load(path, key="c")
    assert codebook.load(path, key="a").shape == (65_536, 8)


def changed(row: int, values: list[float]) -> np.ndarray:
    table = codebook.generate().copy()
    table[row] = values
    return table


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.zeros((256, 8), np.float16), "shape"),
        (changed(1, [0.25] * 8), "multiples of 1/2"),
        (changed(1, [np.nan] * 8), "multiples of 1/2"),
        (changed(1, [4, 0, 0, 0, 0, 0, 0, 0]), "multiples of 1/2"),
        (changed(1, [1, 0, 0, 0, 0, 0, 0, 0]), "not an E8 vector"),
        (changed(1, [0.5, 1, 0, 0, 0, 0, 0, 0.5]), "not an E8 vector"),
        (changed(1, [2, 0, 0, 0, 0, 0, 0, 0]), "entries by norm"),
        (changed(1, [-1, 0, -1, 0, 0, 0, 0, 0]), "twice"),
    ],
)
def test_not_a_codebook(tmp_path, table, message) -> None:
    path = tmp_path / "book.npy"
    np.save(path, table)
    with pytest.raises(ValueError, match=message):
        codebook.load(path)


def test_unknown_file_type(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"\.npy, \.pt or \.safetensors"):
        codebook.load(tmp_path / "book.bin")
