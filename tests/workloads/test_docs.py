"""docs/decode.md stays true: options, variants, fields, links, and the arithmetic of its sizes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from glqprof.workloads.nemotron_h.paths import parse_path
from glqprof.workloads.nemotron_h.sizes import load_sizes
from glqprof.workloads.nemotron_h.variants import VARIANTS
from support.cli import glqprof
from support.paths import REPOSITORY

TEXT = (REPOSITORY / "docs" / "decode.md").read_text(encoding="utf-8")
SCRIPT = REPOSITORY / "benchmarks" / "device_decode.sh"


def test_every_option_is_on_the_page_and_no_other():
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", glqprof("decode", "--help").out)) - {"--help"}
    section = TEXT.partition("## Options")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(--[a-z-]+)`", section, re.MULTILINE)) == options
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", TEXT)) <= options


def test_every_variant_is_on_the_page():
    section = TEXT.partition("## Variants")[2].partition("\n## ")[0]
    for name in VARIANTS:
        assert all(f"`{part}`" in section for part in (name.split("-")[1:] if name.startswith("nvfp4-") else [name]))
    for variant in VARIANTS.values():
        assert not variant.same_bits_as or f"`{variant.same_bits_as}`" in section


def test_the_fields_that_it_names_are_the_schemas(schema_of):
    fields = set(schema_of("decode-1")["properties"])
    section = TEXT.partition("## What is measured")[2].partition("\n## ")[0]
    assert {"ms_per_token", "tok_s", "token_ms", "token_ms_spread", "token_sha", "prefill_ms", "load_s"} <= fields
    assert set(re.findall(r"^- `(\w+)`", section, re.MULTILINE)) <= fields


def test_links_and_files_exist():
    for link in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (REPOSITORY / "docs" / link).exists(), link
    for name in re.findall(r"`((?:tests|benchmarks|glqprof)/[\w/.]+)`", TEXT):
        assert (REPOSITORY / name).exists(), name


def test_the_sizes_of_the_page():
    model = pytest.importorskip("glqprof.workloads.nemotron_h.model")
    sizes = load_sizes("cascade2-30b")
    for name in ("v3b", "fused", "bf16"):
        assert f"{model.bytes_needed(sizes, VARIANTS[name]) / 1e9:.1f} GB" in TEXT, name
    assert [sizes.layers.count(kind) for kind in "ME*"] == [23, 23, 6]
    assert f"`{load_sizes('tiny').layers}` of width 64" in TEXT


def test_the_device_script_names_what_exists():
    text = SCRIPT.read_text(encoding="utf-8").replace("\\\n", "")
    named = re.search(r"GLQPROF_PATHS:-([^}]+)", text)[1].split()
    assert {"v0.2.12:prompt=fused", "fused", "bf16", "fused:glqprof:graph", "bf16:glqprof:graph"} <= set(named)
    for path in named:
        variant, how = parse_path(path)
        how.settled(VARIANTS[variant], "cuda")
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", glqprof("decode", "--help").out))
    options |= set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", glqprof("capture", "nsys", "--help").out)) | {"--command"}
    ours = text.partition("sizes=")[2].replace("python3 -m pytest -q", "")
    used = set(re.findall(r"(?<=[ (])--[a-z][a-z-]*", ours))
    assert {"--prompt", "--layers", "--tokens", "--timeout", "--command"} <= used <= options
    for name in re.findall(r"(?:tests|benchmarks)/[\w/]+\.(?:py|sh)", text):
        assert (REPOSITORY / name).exists(), name


def test_the_script_of_several_paths(tmp_path):
    """In one process, on the tiny model: the files it leaves are results, and what is there is not done again."""
    script = str(REPOSITORY / "benchmarks" / "decode_paths.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "kernels")])}

    def run(*arguments):
        command = [sys.executable, script, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    told = run("--command", "v3b:glqprof:prompt=fused")
    assert told.stdout.split() == ["--variant", "v3b", "--loop", "glqprof", "--prompt-variant", "fused"]
    assert run(tmp_path, "fused:x").returncode == run(tmp_path, "v3b:graph").returncode == 2
    pytest.importorskip("transformers")
    sizes = ("--workload", "tiny", "--device", "cpu", "--prompt", 5, "--tokens", 3)
    paths = ["v3b:prompt=fused", "fused:glqprof:ssm=torch", "v3b:static", "fused"]
    done = run(tmp_path, *paths, *sizes)
    assert done.returncode == 0, done.stderr
    results = {f.name: json.loads(f.read_text()) for f in tmp_path.glob("decode-*.json")}
    assert sorted(results) == [
        "decode-fused+glqprof+ssm=torch.json",
        "decode-fused.json",
        "decode-v3b+prompt=fused.json",
        "decode-v3b+static.json",
    ]
    assert results["decode-fused.json"]["token_sha"] == results["decode-v3b+prompt=fused.json"]["token_sha"]
    alone = glqprof("decode", *sizes, "--variant", "v3b", "--cache", "static", "-f", "json").json
    assert results["decode-v3b+static.json"]["token_sha"] == alone["token_sha"]  # one path does not disturb the next
    assert run(tmp_path, *paths, *sizes).stdout == ""
