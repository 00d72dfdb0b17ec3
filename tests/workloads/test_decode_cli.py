"""`glqprof decode` and `glqprof capture` of a bundled workload, as a user meets them."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import types
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from profilers import stand_ins

from glqprof.traces.schema.decode import DecodeResult, percentile
from support.cli import glqprof

pytestmark = pytest.mark.xdist_group("decode")
TINY = ("decode", "--workload", "tiny", "--device", "cpu", "--prompt", 5, "--tokens", 4)


@pytest.fixture(scope="module")
def result():
    return glqprof(*TINY, "--variant", "v3b", "--format", "json").json


def test_json_follows_its_schema(result, schema_of):
    import jsonschema

    schema = schema_of("decode-1")
    jsonschema.validate(result, schema, jsonschema.Draft202012Validator)
    assert (result["workload"], result["variant"], result["device"]) == ("tiny", "v3b", "cpu")
    assert (result["layers"], result["prompt"], result["tokens"], result["warmup"]) == (7, 5, 4, 3)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(result | {"tok_s": "fast"}, schema)


def test_json_says_how_the_tokens_were_run(result, schema_of):
    import jsonschema

    plain = {"path": "v3b", "loop": "transformers", "ssm": "model", "cache": "dynamic", "graph": False, "sdpa": "any",
             "shared_stream": False, "prompt_variant": ""}  # fmt: skip
    assert {name: result[name] for name in plain} == plain
    own = glqprof(*TINY, "--variant", "v3b", "--loop", "glqprof", "--ssm", "torch", "--prompt-variant", "fused",
                  "-f", "json").json  # fmt: skip
    changed = {"path": "v3b:glqprof:ssm=torch", "loop": "glqprof", "ssm": "torch", "cache": "static",
               "prompt_variant": "fused"}  # fmt: skip
    assert {name: own[name] for name in plain} == plain | changed
    jsonschema.validate(own, schema_of("decode-1"), jsonschema.Draft202012Validator)
    # what earlier versions wrote is still of this schema
    earlier = {name: value for name, value in result.items() if name not in plain}
    jsonschema.validate(earlier, schema_of("decode-1"), jsonschema.Draft202012Validator)


def test_who_reads_the_prompt_and_where_the_state_is_change_no_token_of_the_loop(result):
    """v3b and fused have the same bits; torch's SSM step has those of the model's own code."""
    for options in (["--prompt-variant", "fused"], ["--ssm", "torch"], ["--ssm", "model", "--cache", "dynamic"]):
        assert glqprof(*TINY, "--variant", "v3b", *options, "-f", "json").json["token_sha"] == result["token_sha"]
    static = [
        glqprof(*TINY, "--variant", variant, "--cache", "static", *options, "-f", "json").json["token_sha"]
        for variant, options in (("v3b", []), ("fused", []), ("v3b", ["--prompt-variant", "v0.2.12"]))
    ]
    assert len(set(static)) == 1


def test_numbers_agree_with_each_other(result):
    steps = result["token_ms"]
    assert len(steps) == 4
    assert result["tok_s"] == pytest.approx(1000 / result["ms_per_token"], rel=1e-5)
    assert sum(steps) / 4 <= result["ms_per_token"] * 1.000001  # between steps there is a little, and never less
    assert result["token_ms_spread"]["max"] == max(steps)


def test_speed_is_from_the_first_start_to_the_last_end():
    made = DecodeResult(
        workload="tiny", variant="v3b", device="cpu", layers=7, prompt=5, warmup=3, tokens=2, seed=0,
        steps_ns=((10_000_000, 14_000_000), (15_000_000, 20_000_000)), prefill_ms=1, load_s=1, token_sha="",
        glqprof="", torch="", transformers="",
    )  # fmt: skip
    assert (made.ms_per_token, made.tok_s) == (5.0, 200.0)
    assert made.spread_ms == {"median": 4.5, "p10": 4.1, "p90": 4.9, "min": 4.0, "max": 5.0}
    assert percentile([7.0], 0.9) == 7.0


def test_the_same_run_twice_decodes_the_same_and_variants_of_the_same_bits_too(result):
    for variant in ("v3b", "fused"):
        assert glqprof(*TINY, "--variant", variant, "--format", "json").json["token_sha"] == result["token_sha"]
    other = glqprof(*TINY, "--variant", "v3b", "--seed", 1, "--format", "json").json
    assert other["token_sha"] != result["token_sha"]


def test_table_markdown_and_csv(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    table = glqprof(*TINY, "--variant", "nvfp4-base-ring")
    assert table.status == 0, table.err
    assert max(map(len, table.out.splitlines())) <= 80
    assert "exact implementations" in table.out
    assert "\nexperts nvfp4-base-ring, transformers' loop, eager\ndynamic cache, the model's SSM step\n" in table.out
    own = glqprof(*TINY, "--loop", "glqprof", "--ssm", "torch", "--layers", 3)
    assert own.out.startswith("tiny, fused:glqprof:ssm=torch: ")
    assert "experts fused, glqprof's loop, eager\nstatic cache, SSM step torch\n" in own.out
    assert max(map(len, own.out.splitlines())) <= 80
    assert glqprof(*TINY, "-f", "markdown").out.startswith("# Decode")
    (row,) = csv.DictReader(io.StringIO(glqprof(*TINY, "-f", "csv", "--layers", 2).out))
    assert (row["workload"], row["variant"], row["layers"]) == ("tiny", "fused", "2")
    assert (row["path"], row["loop"], row["graph"]) == ("fused", "transformers", "False")
    assert float(row["token_ms_median"]) > 0


def test_trend_adds_it(result, tmp_path):
    import json

    from glqprof.trend import read_results

    path = tmp_path / "decode.json"
    path.write_text(json.dumps(result))
    (read,) = read_results([path], commit=result["commit"] or "0" * 40, gpu="none")
    found = {(s.series.workload, s.series.variant, s.series.metric): s.value for s in read.samples}
    name = "tiny/layers=7/prompt=5/tokens=4"
    assert found == {
        (name, "v3b", "tok_s"): result["tok_s"],
        (name, "v3b", "ms_per_token"): result["ms_per_token"],
    }
    assert glqprof("trend", "add", path, "--store", tmp_path / "t.db").status == 2  # no GPU: it asks which
    path.write_text(json.dumps(result | {"path": "v3b:glqprof", "loop": "glqprof"}))
    (read,) = read_results([path], commit=result["commit"] or "0" * 40, gpu="none")
    assert {s.series.variant for s in read.samples} == {"v3b:glqprof"}  # another loop is another series


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workload", "llama"], "--workload: 'llama' is not bundled; there are cascade2-30b, tiny"),
        (["--variant", "v4"], "--variant: 'v4' is no variant; there are v0.2.12"),
        (["--layers", 8], "--layers: 8 is not 1 to 7, the layers of tiny"),
        (["--layers", 0], "--layers: 0 is not 1 to 7"),
        (["--prompt", 0], "'--prompt'"),
        (["--tokens", 0], "'--tokens'"),
        (["--seed", 1 << 40], "'--seed'"),
        (["--device", "tpu"], "'--device'"),
        (["--graph"], "--graph: needs a CUDA GPU, and the model is on the cpu; leave it out"),
        (["--loop", "glqprof", "--cache", "dynamic"], "--cache dynamic: glqprof's loop needs buffers that do not move"),
        (["--loop", "glqprof", "--sdpa", "math"], "--sdpa math: is of transformers' loop"),
        (["--loop", "vllm"], "'--loop'"),
        (["--ssm", "fast"], "'--ssm'"),
        (["--shared-stream"], "--shared-stream: is of glqprof's loop on a GPU"),
        (["--variant", "v3b", "--prompt-variant", "bf16"], "--prompt-variant bf16: has not the bits of v3b"),
        (["--sdpa", "cudnn"], "--sdpa cudnn: this backend cannot compute the model's decode attention here"),
    ],
)
def test_bad_arguments_are_one_line(arguments, words):
    ran = glqprof("decode", "--workload", "tiny", "--device", "cpu", *arguments)
    assert ran.status == 2
    assert ran.out == ""
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert words in ran.err


def test_no_gpu_no_torch_no_transformers(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ran = glqprof("decode", "--workload", "tiny")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "--device cuda: no CUDA GPU is visible here; use --device cpu" in ran.err
    for name in ("transformers", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
        ran = glqprof(*TINY)
        assert (ran.status, ran.err.count("\n")) == (2, 1), ran.err
        assert f"error: {name}: " in ran.err
        assert "pip install 'glqprof[torch]'" in ran.err


def test_a_gpu_that_runs_out_of_memory_is_one_line(monkeypatch):
    import torch

    from glqprof.workloads.nemotron_h import decode

    def full(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 1")

    monkeypatch.setattr(decode, "greedy", full)
    ran = glqprof(*TINY)
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "error: tiny fused: CUDA out of memory; use --layers, or a shorter --prompt" in ran.err


def test_a_transformers_without_the_model_says_its_version(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(__version__="5.2.0"))
    ran = glqprof(*TINY)
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "transformers: 5.2.0 gives no NemotronHForCausalLM" in ran.err


def test_help_and_the_names_import_neither_torch_nor_transformers():
    code = (
        "import sys, contextlib, io, glqprof\n"
        "from glqprof.cli.app import main\n"
        "glqprof.patch\n"
        "for words in (['decode', '--help'], ['decode', '--variant', 'x'], ['capture', 'nsys', '--variant', 'x']):\n"
        "    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "        main(words)\n"
        "print(sorted({'pandas', 'torch', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- capture of a bundled workload


@pytest.fixture
def tools(tmp_path, monkeypatch):
    for name, value in stand_ins.install(tmp_path / "tools").items():
        monkeypatch.setenv(name, value)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def test_a_bundled_workload_needs_no_command(tools):
    ran = glqprof("capture", "nsys", "--no-untraced", "--workload", "tiny", "--variant", "v3b", "--",
                  "--device", "cpu", "--tokens=3")  # fmt: skip
    assert ran.status == 0, ran.err
    manifest = stand_ins.manifest_of(Path("capture-nsys-tiny-v3b"))
    assert (manifest["workload"], manifest["variant"], manifest["tokens"], manifest["batch"]) == ("tiny", "v3b", 3, 1)
    assert len(manifest["traced"]["token_ms"]) == 3
    decoded = glqprof(
        "decode", "--workload", "tiny", "--variant", "v3b", "--device", "cpu", "--tokens", 3, "-f", "json"
    )
    assert manifest["token_sha"] == decoded.json["token_sha"]
    assert manifest["command"][-5:] == ["--variant", "v3b", "--device", "cpu", "--tokens=3"]


def test_how_the_tokens_run_is_passed_on_and_names_the_variant(tools):
    ran = glqprof("capture", "nsys", "--no-untraced", "--workload", "tiny", "--variant", "v3b", "-o", "own", "--",
                  "--device", "cpu", "--tokens=2", "--loop", "glqprof", "--ssm", "torch")  # fmt: skip
    assert ran.status == 0, ran.err
    manifest = stand_ins.manifest_of(Path("own"))
    assert manifest["variant"] == "v3b:glqprof:ssm=torch"
    assert manifest["command"][-4:] == ["--loop", "glqprof", "--ssm", "torch"]


def test_a_graph_without_a_gpu_fails_before_anything_is_captured(tools):
    ran = glqprof("capture", "nsys", "--workload", "tiny", "--variant", "v3b", "--", "--graph", "--device", "cuda")
    assert ran.status != 0
    assert "--graph with v3b: this variant reads expert ids on the host" in ran.err + ran.out


def test_the_command_of_a_bundled_workload():
    from glqprof.workloads.bundled import decode_command

    assert decode_command("tiny", "v3b", ["--device", "cpu"])[1:] == [
        "-m", "glqprof", "decode", "--workload", "tiny", "--variant", "v3b", "--tokens", "8", "--device", "cpu"
    ]  # fmt: skip
    assert decode_command("tiny", "", ["--tokens", "2"])[3:] == ["decode", "--workload", "tiny", "--tokens", "2"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "capture nsys: no command; give one after --, or --workload cascade2-30b or tiny"),
        (["--workload", "mine"], "no command"),
        (["--workload", "tiny", "--variant", "v9"], "--variant: 'v9' is no variant"),
    ],
)
def test_captures_without_a_command_that_cannot_be(tools, arguments, words):
    ran = glqprof("capture", "nsys", *arguments)
    assert ran.status == 2
    assert ran.err.startswith("error: ")
    assert words in ran.err
    assert not list(Path().iterdir())
