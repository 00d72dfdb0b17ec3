"""The proof: secrets planted everywhere in a copy of a real capture are in no byte of what scrubbing leaves."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from pathlib import Path

import pytest

import glqprof
from glqprof.errors import InputError
from glqprof.scrub.capture import scrub

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "captures" / "h200-toy-cuda-graph-node"
TOKEN = "hf_PLANTEDxPLANTEDxPLANTEDx0123456789"
OTHER = "correct-horse-battery-staple"


@pytest.fixture
def export(tmp_path):
    """A real export with a secret in the environment, the strings, the threads, the output, and in freed pages."""
    path = tmp_path / "trace.sqlite"
    with gzip.open(RECORDED / "trace.sqlite.gz", "rb") as source, path.open("wb") as target:
        shutil.copyfileobj(source, target)
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA secure_delete = OFF")
    db.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT, value TEXT)")
    db.execute("CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT)")
    db.execute("CREATE TABLE ProcessStreams (globalPid INTEGER, filenameId INTEGER, contentId INTEGER)")
    db.execute("CREATE TABLE ThreadNames (nameId INTEGER, priority INTEGER, globalTid INTEGER)")
    db.execute("CREATE INDEX by_name ON META_DATA_CAPTURE (value)")
    db.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (1, 'x', 'HF_TOKEN', ?)", [TOKEN])
    db.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (1, 'x', 'Hostname', 'gpu-host-77')")
    db.execute("INSERT INTO META_DATA_CAPTURE VALUES ('ENVIRONMENT', ?)", [f"HOME=/home/ada\0DB_PASSWORD={OTHER}\0"])
    for number, text in enumerate((TOKEN, f"login with {OTHER} at /home/ada/run.py", "gpu-host-77"), 9_000_000):
        db.execute("INSERT INTO StringIds VALUES (?, ?)", [number, text])
    db.execute("INSERT INTO ProcessStreams VALUES (1, 9000000, 9000001)")
    db.execute("INSERT INTO ThreadNames VALUES (9000002, 0, 1)")
    db.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (0, 0, 0, 1, ?, NULL)", [f"Process arguments: --key {OTHER}"])
    db.execute("UPDATE TARGET_INFO_GPU SET uuid = ?, busLocation = '0000:18:00.0'", [f"GPU-{OTHER}"])
    # Freed pages: rows that no longer exist keep their bytes in the file.
    db.execute("CREATE TABLE freed (text TEXT)")
    db.executemany("INSERT INTO freed VALUES (?)", [[f"{TOKEN} {OTHER} gpu-host-77 " * 40] for _ in range(50)])
    db.execute("DROP TABLE freed")
    db.close()
    data = path.read_bytes()
    assert data.count(TOKEN.encode()) > 100  # they are there, most of them in freed pages
    return path


def assert_clean(data: bytes) -> None:
    for secret in (TOKEN, TOKEN[:12], OTHER, "gpu-host-77", "/home/ada", "ada/run.py", "HF_TOKEN", "0000:18"):
        for encoding in ("utf-8", "utf-16-le"):
            assert secret.encode(encoding) not in data, secret


def test_no_byte_of_a_planted_secret_is_left(export, tmp_path):
    result = scrub(export, tmp_path / "clean.sqlite")
    assert_clean((tmp_path / "clean.sqlite").read_bytes())
    kinds = {item.kind for item in result.removed}
    assert {"environment", "program output", "processes and threads", "strings that nothing refers to"} <= kinds
    assert TOKEN.encode() in export.read_bytes()  # the original stays with -o


def test_in_place_and_compressed(export, tmp_path):
    packed = tmp_path / "trace.sqlite.gz"
    packed.write_bytes(gzip.compress(export.read_bytes()))
    scrub(packed)
    assert_clean(gzip.decompress(packed.read_bytes()))
    scrub(export)
    assert_clean(export.read_bytes())
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]  # nothing half-written beside them


def test_a_folder_with_its_manifest_and_what_lies_about(export, tmp_path):
    folder = tmp_path / "capture"
    folder.mkdir()
    (folder / "trace.sqlite.gz").write_bytes(gzip.compress(export.read_bytes()))
    (folder / "trace.nsys-rep").write_text(TOKEN)
    (folder / "notes.txt").write_text(OTHER)
    manifest = json.loads((RECORDED / "capture.json").read_text())
    manifest |= {
        "files": ["trace.sqlite.gz", "trace.nsys-rep"],
        "command": ["nsys", "/home/ada/run.py", f"--token={TOKEN}", "DB_PASSWORD=" + OTHER],
        "source": "on /home/ada/disk",
    }
    (folder / "capture.json").write_text(json.dumps(manifest))
    result = scrub(folder, tmp_path / "public")
    names = sorted(p.name for p in (tmp_path / "public").iterdir())
    assert names == ["capture.json", "trace.sqlite.gz"]
    assert_clean((tmp_path / "public" / "capture.json").read_bytes())
    assert_clean(gzip.decompress((tmp_path / "public" / "trace.sqlite.gz").read_bytes()))
    kept = json.loads((tmp_path / "public" / "capture.json").read_text())
    assert kept["command"][:2] == ["nsys", "run.py"]
    assert kept["scrubbed"] is True
    assert any(item.kind == "closed report" for item in result.removed)
    scrub(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["capture.json", "trace.sqlite.gz"]


def test_the_analysis_is_the_same_before_and_after(tmp_path):
    for name in ("h200-cascade2-30b-bf16-grouped", "h200-toy-cuda-graph-graph"):
        scrub(ROOT / "captures" / name, tmp_path / name)
        before, after = (glqprof.breakdown(glqprof.load(p)) for p in (ROOT / "captures" / name, tmp_path / name))
        assert before.wall.equals(after.wall)
        assert before.layers.equals(after.layers)
        assert [d.kernel_sum_ns for d in before.devices] == [d.kernel_sum_ns for d in after.devices]


def test_scrubbing_again_changes_no_byte(export, tmp_path):
    scrub(export, tmp_path / "one.sqlite")
    again = scrub(tmp_path / "one.sqlite", tmp_path / "two.sqlite")
    assert again.removed == []
    assert (tmp_path / "one.sqlite").read_bytes() == (tmp_path / "two.sqlite").read_bytes()


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("UPDATE NVTX_EVENTS SET text = 'load /home/ada/model' WHERE rowid = 1", "a path in NVTX_EVENTS.text"),
        (
            f"UPDATE NVTX_EVENTS SET text = '{TOKEN}' WHERE rowid = 1",
            "a Hugging Face token in NVTX_EVENTS.text (hf_P…)",
        ),
        (f"UPDATE NVTX_EVENTS SET text = 'x{OTHER}' WHERE rowid = 1", "a value of the environment (cor…)"),
        ("UPDATE NVTX_EVENTS SET text = 'on gpu-host-77' WHERE rowid = 1", "a value of the environment (gpu…)"),
        (
            "UPDATE StringIds SET value = 'k<lambda at /work/x/run.cu:12>' WHERE id = "
            "(SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL LIMIT 1)",
            "a path in StringIds.value",
        ),
        ("UPDATE NVTX_EVENTS SET text = 'mail ada@example.org' WHERE rowid = 1", "an e-mail address"),
    ],
)
def test_a_kept_name_that_looks_private_is_refused_and_named(export, tmp_path, sql, named):
    with sqlite3.connect(export) as db:
        db.execute(sql)
    db.close()
    before = export.read_bytes()
    with pytest.raises(InputError, match="would still hold") as caught:
        scrub(export, tmp_path / "clean.sqlite")
    assert named in str(caught.value)
    assert OTHER not in str(caught.value)
    assert TOKEN not in str(caught.value)
    assert not (tmp_path / "clean.sqlite").exists()
    with pytest.raises(InputError):
        scrub(export)
    assert export.read_bytes() == before
