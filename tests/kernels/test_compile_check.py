"""All device code compiles for sm_80, sm_90a and sm_120 without spills or stack frames."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "kernels" / "tools" / "compile_check.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("compile_check", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["compile_check"] = module  # its dataclass looks its module up
    spec.loader.exec_module(module)
    return module


def test_all_device_code_is_clean(tool, capsys) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed: the device code is compiled where it is")
    status = tool.main([])
    out = capsys.readouterr()
    assert status == 0, out.out + out.err
    for arch in tool.ARCHITECTURES:
        assert f"{arch} " in out.out
    assert "glq_matvec_splitk_kernel" in out.out


REPORT = """ptxas info    : Compiling entry function 'hot' for 'sm_90a'
ptxas info    : Function properties for hot
    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
"""


@pytest.mark.parametrize(
    ("numbers", "clean"), [((0, 0, 0), True), ((8, 0, 0), False), ((0, 4, 0), False), ((0, 0, 4), False)]
)
def test_spills_and_stack_are_found(tool, numbers, clean) -> None:
    text = REPORT.format(stack=numbers[0], stores=numbers[1], loads=numbers[2])
    (kernel,) = tool.parse("x.cu", text)
    assert (kernel.name, kernel.arch, kernel.registers) == ("hot", "sm_90a", 255)
    assert kernel.clean is clean


def test_a_report_without_numbers_is_an_error(tool) -> None:
    with pytest.raises(ValueError, match=r"x\.cu: ptxas reported no numbers for hot"):
        tool.parse("x.cu", REPORT.splitlines()[0])
