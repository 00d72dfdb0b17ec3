"""The two commands as a user meets them: output, exit status, what is imported, the real CPU path of ``glq-moe``."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files

import jsonschema
import pytest
import typer
from typer.testing import CliRunner

from glqprof.cli.bench import bench
from glqprof.cli.kernels import kernels
from glqprof.errors import InputError

app = typer.Typer()
app.command()(bench)
app.command()(kernels)

# A user's file: a variant of glq-moe that is v3b with one bit flipped, and one that is v3b.
MINE = """
from dataclasses import replace

import torch

from glqprof.bench.registry import SameBits


def register(registry):
    v3b = registry.variants["glq-moe", "v3b"]

    def build(workload):
        run = v3b.build(workload)

        def flipped(batch, out):
            run(batch, out)
            out.view(torch.int16)[-1, -1, -1] ^= 1

        return flipped

    registry.add_variant(replace(v3b, name="mine", contract=SameBits("v3b")))
    registry.add_variant(replace(v3b, name="flipped", contract=SameBits("v3b"), build=build))
"""


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def glq():
    """The whole path on the real kernels' CPU implementations, all bundled variants."""
    result = invoke("bench", "glq-moe", "--device", "cpu", "--repeats", "1", "--format", "json")
    assert result.exit_code == 1, result.output  # v3b-fp32act does not keep its contract
    return json.loads(result.stdout)  # one object on stdout and nothing else


def test_the_real_variants_have_the_same_bits_and_the_false_claim_is_caught(glq):
    schema = json.loads((files("glqprof") / "data" / "schemas" / "bench-1.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(glq, schema, jsonschema.Draft202012Validator)
    found = {variant["name"]: variant for variant in glq["variants"]}
    for name in ("v0.2.12", "v3a", "v3b"):
        assert found[name]["ok"], found[name]["reasons"]
        assert found[name]["identical"]
    caught = found["v3b-fp32act"]
    assert not caught["ok"]
    assert {reason["code"] for reason in caught["reasons"]} == {"wrong-bits"}
    assert 0.05 < caught["differing"]["share"] < 0.95
    assert 1e-5 < caught["differing"]["max_rel"] < 1e-2
    assert caught["rel_err"] < 2e-3  # not wrong, only not the same


def test_the_real_variants_launch_and_wait_as_declared(glq):
    found = {variant["name"]: variant for variant in glq["variants"]}
    assert found["v0.2.12"]["launches"] > found["v3b"]["launches"] > 0
    assert found["v0.2.12"]["syncs"] > found["v3a"]["syncs"] > 0
    assert found["v3a"]["launches"] == found["v0.2.12"]["launches"]
    assert found["v0.2.12"]["timings"]["graph"] is None
    assert "CPU" in found["v0.2.12"]["timings"]["graph_note"]


def test_a_users_variant_is_benched_beside_the_bundled_ones(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    arguments = ["bench", "glq-moe", "--device", "cpu", "--load", str(path), "--repeats", "1", "--layers", "1"]
    good = invoke(*arguments, "--variants", "mine", "--baseline", "v3b")
    assert good.exit_code == 0, good.output
    flipped = invoke(*arguments, "--variants", "flipped", "--baseline", "v3b", "--format", "csv")
    assert flipped.exit_code == 1
    assert "wrong-bits" in flipped.stdout


def test_the_figure_is_written(tmp_path):
    path = tmp_path / "bench.svg"
    result = invoke(
        *("bench", "glq-moe", "--device", "cpu", "--variants", "v3b", "--baseline", "v3b", "--repeats", "1"),
        *("--layers", "1", "--figure", str(path), "--format", "markdown", "--rows", "1,2"),
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("# glq-moe at tiny-odd: all checks passed")
    assert "<svg" in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "nope", "--device", "cpu"], "nope: no such group; there is"),
        (["bench", "glq-moe", "--device", "tpu"], "tpu"),
        (["bench", "glq-moe", "--device", "cpu", "--rows", "x"], "--rows x"),
        (["bench", "glq-moe", "--device", "cpu", "--geometry", "x"], "x: no such geometry"),
        (["bench", "glq-moe", "--device", "cpu", "--figure", "x.nope"], "is no picture format"),
        (["bench", "glq-moe", "--device", "cpu", "--option", "wrong=1"], "no option wrong"),
        (["bench", "glq-moe", "--load", "none.py"], "none.py: no such file"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    result = invoke(*arguments)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_no_gpu_is_said_with_what_to_do():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    result = invoke("bench", "glq-moe")
    assert str(result.exception) == "--device cuda: no CUDA GPU is visible here; use --device cpu"


def test_kernels_lists_what_is_bundled():
    result = invoke("kernels", "--format", "json")
    assert result.exit_code == 0
    groups = {group["name"]: group for group in json.loads(result.stdout)["groups"]}
    variants = {variant["name"]: variant for variant in groups["glq-moe"]["variants"]}
    assert variants["v3a"]["contract"] == "same bits as v0.2.12"
    assert "cascade2-30b" in groups["glq-moe"]["geometries"]
    assert {run["device"]: run["can"] for run in variants["v3b"]["runs"]}["cpu"]
    assert "v3b" in invoke("kernels").stdout
    assert "| v3b |" in invoke("kernels", "--format", "markdown").stdout
    assert "glq-moe,v3b," in invoke("kernels", "--format", "csv").stdout


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


PATHS = f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r}\n"


def test_help_imports_nothing_heavy():
    code = PATHS + "import glqprof.cli.bench, glqprof.cli.kernels\n"
    code += "heavy = {'torch', 'scipy', 'matplotlib', 'pandas', 'numpy'} & set(sys.modules)\nassert not heavy, heavy\n"
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_kernels_works_without_torch_and_says_what_to_install():
    code = PATHS + "sys.modules['torch'] = None\n"
    code += "import typer\nfrom glqprof.cli.kernels import kernels\ntyper.run(kernels)\n"
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert "glqprof[torch]" in " ".join(done.stdout.split())


def test_bench_without_torch_is_one_readable_error():
    code = PATHS + "sys.modules['torch'] = None\n"
    code += "from glqprof.bench.runner import open_device\nopen_device('cpu')\n"
    done = run_python(code)
    assert "InputError: torch: is not installed, and the bench needs it: pip install 'glqprof[torch]'" in done.stderr
