"""Building the extension: what is missing is said, and an edit builds anew."""

from __future__ import annotations

import os

import pytest
import torch

from glqprof_kernels import building
from glqprof_kernels.glq import extension
from glqprof_kernels.nvfp4 import extension as nvfp4_extension
from glqprof_kernels.ssm import extension as ssm_extension


def test_no_gpu_is_said(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="cannot be built: torch sees no CUDA GPU"):
        extension.load()


def test_no_nvcc_is_said(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("torch.utils.cpp_extension.CUDA_HOME", None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match=r"nvcc is not found: install the CUDA toolkit, .* or set CUDA_HOME"):
        extension.load()


def test_hash_follows_every_source(monkeypatch, tmp_path) -> None:
    for path in extension.CSRC.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = extension.source_hash()
    monkeypatch.setattr(extension, "CSRC", tmp_path)
    assert extension.source_hash() == before
    header = tmp_path / "matvec.cuh"
    header.write_text(header.read_text() + "\n")
    assert extension.source_hash() != before


def test_cache_root(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("GLQPROF_CACHE", str(tmp_path))
    assert building.cache_root() == tmp_path
    monkeypatch.delenv("GLQPROF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert building.cache_root() == tmp_path / "glqprof"


@pytest.mark.parametrize("module", [extension, ssm_extension])
def test_sources_that_the_build_names_exist(module) -> None:
    assert all((module.CSRC / source).is_file() for source in module.SOURCES)


@pytest.mark.parametrize(("module", "name"), [(extension, "glq"), (nvfp4_extension, "nvfp4"), (ssm_extension, "ssm")])
def test_what_the_compiler_is_given(monkeypatch, tmp_path, module, name) -> None:
    given: dict = {}

    def load(**options):
        given.update(options, arch=os.environ["TORCH_CUDA_ARCH_LIST"])
        return "module"

    monkeypatch.setenv("GLQPROF_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.6")
    monkeypatch.setattr("torch.utils.cpp_extension.load", load)
    module._load.cache_clear()
    assert module._load((9, 0)) == "module"
    assert given["arch"] == "9.0a"
    assert os.environ["TORCH_CUDA_ARCH_LIST"] == "8.6"
    assert given["name"] == f"glqprof_{name}_{module.source_hash()}_sm90a"
    assert given["sources"] == [str(module.CSRC / source) for source in module.SOURCES]
    assert "-fmad=false" in given["extra_cuda_cflags"]
    assert str(tmp_path) in given["build_directory"]
    module._load.cache_clear()


def test_a_failing_build_shows_the_compilers_words(monkeypatch, tmp_path, capsys) -> None:
    def failing(**_: object) -> None:
        raise RuntimeError("error: expected ';' before '}' token")

    monkeypatch.setenv("GLQPROF_CACHE", str(tmp_path))
    monkeypatch.setattr("torch.utils.cpp_extension.load", failing)
    extension._load.cache_clear()
    with pytest.raises(RuntimeError, match=r"building the GLQ kernels failed in .*\n.*expected ';'"):
        extension._load((9, 0))
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "building the GLQ kernels for sm_9.0a" in err
