"""The manifest's schema file, and manifests of before and after the fields that capture writes."""

from __future__ import annotations

import json

import jsonschema
import msgspec
import pytest
from profilers.stand_ins import REPOSITORY

from glqprof.errors import InputError
from glqprof.profilers.capture import git_here
from glqprof.traces.schema.manifest import (
    Git,
    Gpu,
    GpuState,
    Manifest,
    Traced,
    Untraced,
    UntracedRun,
    encode_manifest,
    read_manifest,
)

SCHEMA = json.loads((REPOSITORY / "glqprof" / "data" / "schemas" / "capture-1.schema.json").read_text())
FULL = Manifest(
    schema="glqprof.capture/1", name="n", tool="nsys", tool_version="", files=["f"], command=["x"], workload="w",
    variant="v", driver="1", cuda="13", torch="2", transformers="5", git=Git("abc", True), batch=2, tokens=4,
    gpus=[Gpu("g", 1, 2, True, 700.0, GpuState(1, 2, 3, 4.0, 5, "power cap", 6), GpuState())],
    untraced=Untraced(1.0, 1000.0, "mean", [UntracedRun(1000.0, 4, [1.0])]), traced=Traced(2.0, 4, [1.0]),
    inflation=1.5, token_sha="s", scrubbed=False, captured_at="2026-11-30", source="s", warnings=["w"],
)  # fmt: skip


def test_a_manifest_with_every_field_follows_the_schema_and_comes_back(tmp_path):
    (tmp_path / "capture.json").write_bytes(encode_manifest(FULL))
    jsonschema.validate(json.loads((tmp_path / "capture.json").read_text()), SCHEMA)
    assert read_manifest(tmp_path) == FULL


def test_the_schema_file_and_the_code_name_the_same_fields():
    assert list(SCHEMA["properties"]) == list(Manifest.__struct_fields__)
    gpu = SCHEMA["properties"]["gpus"]["items"]["properties"]
    assert list(gpu) == list(Gpu.__struct_fields__)
    assert list(gpu["before"]["anyOf"][0]["properties"]) == list(GpuState.__struct_fields__)
    traced = SCHEMA["properties"]["traced"]["anyOf"][0]["properties"]
    assert list(traced) == list(Traced.__struct_fields__)


@pytest.mark.parametrize(
    "folder", sorted((REPOSITORY / "captures").glob("*/capture.json")), ids=lambda p: p.parent.name
)
def test_recorded_manifests_are_valid(folder):
    jsonschema.validate(json.loads(folder.read_text()), SCHEMA)
    manifest = read_manifest(folder.parent)
    assert msgspec.json.decode(encode_manifest(manifest), type=Manifest) == manifest


def test_an_unfinished_folder_is_said_to_be_one_and_why(tmp_path):
    (tmp_path / "UNFINISHED").write_text("\ninterrupted by Ctrl-C\nraw/ holds …\n")
    with pytest.raises(InputError, match=r"is an unfinished capture \(interrupted by Ctrl-C\)"):
        read_manifest(tmp_path)
    (tmp_path / "UNFINISHED").unlink()
    with pytest.raises(InputError, match=r"has no capture\.json"):
        read_manifest(tmp_path)


def test_a_commit_that_the_environment_names_counts_before_the_checkouts(monkeypatch):
    """A tree that was copied to another machine may lie in a checkout of something else."""
    monkeypatch.setenv("GLQPROF_COMMIT", "0123abcd")
    assert git_here() == Git("0123abcd", dirty=False)
