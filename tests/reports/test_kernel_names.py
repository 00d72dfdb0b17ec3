"""Short names: what tells one kernel from another, for kernels that PyTorch, cuBLAS and others really launch."""

from __future__ import annotations

import pytest

import glqprof
from glqprof.reports.kernel_names import short_kernel_name
from support.paths import PUBLIC, RECORDED

CAPTURES = [*sorted(p for p in RECORDED.iterdir() if "toy" not in p.name), *sorted(PUBLIC.glob("*.gz"))]

FILL = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, std::array<char *, "
    "(unsigned long)1>>(int, T2, T3)"
)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (FILL, "vectorized_elementwise_kernel<FillFunctor<float>>"),
        ("glq_reduce_splits_kernel(float *, const float *, int, int)", "glq_reduce_splits_kernel"),
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"),
        (
            "void glq_matvec_splitk_scratch_kernel<(int)2>(float *, const __half *)",
            "glq_matvec_splitk_scratch_kernel<2>",
        ),
        ("void k<float, void templates::fill<int>(void *)>(float *)", "k<float, templates::fill<int>(void *)>"),
        ("Memcpy DtoH", "Memcpy DtoH"),
        ("", ""),
    ],
)
def test_by_example(name, short) -> None:
    assert short_kernel_name(name) == short


@pytest.mark.parametrize("path", CAPTURES, ids=lambda p: p.name.split("__")[0])
def test_every_real_name_becomes_shorter_and_says_its_function(path) -> None:
    trace = glqprof.load(path, launch_config=False).trace
    for name in map(str, trace.kernels["name"].cat.categories):
        short = short_kernel_name(name)
        assert short.strip()
        assert len(short) <= len(name)
        assert "void " not in short
        assert short.isprintable()
        # The function's own name, which stands before the first template argument or parenthesis, is kept.
        function = short.split("<")[0].split("(")[0].split("::")[-1]
        assert function
        assert function in name
