"""Files are written whole or not at all; figures are pictures."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import glqprof
from glqprof import InputError
from glqprof.reports.figures import account_figure, timeline_figure
from glqprof.reports.output import write_atomically, write_text
from support.cli import glqprof as run
from support.nsys_builder import two_token_decode
from support.paths import PUBLIC, RECORDED

TWO_GPUS = PUBLIC / "nsysai_h100_2gpu_1s__2026.2_s3.25.0.sqlite.gz"


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_failure_leaves_the_old_file_and_nothing_beside_it(tmp_path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old", encoding="ascii")

    def fail(file) -> None:
        file.write(b"half of the new")
        raise RuntimeError("drawing failed")

    with pytest.raises(RuntimeError, match="drawing failed"):
        write_atomically(path, fail)
    assert path.read_text(encoding="ascii") == "old"
    assert names(tmp_path) == ["out.txt"]


def test_a_full_disk_is_an_input_error_and_leaves_the_old_file(tmp_path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old", encoding="ascii")

    def full(file) -> None:
        file.write(b"x")
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match="No space left on device"):
        write_atomically(path, full)
    assert path.read_text(encoding="ascii") == "old"
    assert names(tmp_path) == ["out.txt"]


def test_success_replaces_and_is_readable_by_others(tmp_path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old", encoding="ascii")
    write_text(path, "new µs")
    assert path.read_text(encoding="utf-8") == "new µs"
    assert names(tmp_path) == ["out.txt"]
    plain = tmp_path / "plain.txt"
    plain.touch()  # as the process's umask makes files
    assert path.stat().st_mode == plain.stat().st_mode


def test_a_missing_folder_is_an_input_error(tmp_path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_text(tmp_path / "none" / "out.txt", "x")


@pytest.fixture(scope="module")
def decode(tmp_path_factory) -> glqprof.Capture:
    path = two_token_decode().write(tmp_path_factory.mktemp("figures") / "decode.sqlite")
    return glqprof.breakdown(glqprof.load(path))


def picture(path: Path) -> np.ndarray:
    from matplotlib.image import imread

    return imread(path)[..., :3]


@pytest.mark.parametrize("draw", [lambda b, p: account_figure([b, b], p), timeline_figure], ids=["account", "timeline"])
def test_png_is_a_picture_with_something_on_it(tmp_path, decode, draw) -> None:
    draw(decode, tmp_path / "out.png")
    pixels = picture(tmp_path / "out.png")
    assert min(pixels.shape[:2]) > 200
    drawn = np.unique(pixels.reshape(-1, 3).round(2), axis=0)
    assert len(drawn) > 20  # bars, words and lines, not a blank sheet
    assert names(tmp_path) == ["out.png"]


@pytest.mark.parametrize("kind", ["svg", "pdf"])
def test_vector_formats(tmp_path, decode, kind) -> None:
    path = tmp_path / f"out.{kind}"
    account_figure([decode], path)
    if kind == "svg":
        root = ElementTree.parse(path).getroot()
        assert root.tag.endswith("svg")
        assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 20
    else:
        assert path.read_bytes().startswith(b"%PDF-")


def test_account_of_two_gpus_and_without_tokens(tmp_path) -> None:
    ran = run("breakdown", TWO_GPUS, "--figure", tmp_path / "two.png", "--format", "json")
    assert ran.json["window"]["tokens"] is None
    assert picture(tmp_path / "two.png").std() > 0.01


def test_a_suffix_in_capitals_is_the_same_format(tmp_path, decode) -> None:
    account_figure([decode], tmp_path / "out.PNG")
    assert (tmp_path / "out.PNG").read_bytes().startswith(b"\x89PNG\r\n")


def test_no_account_no_figure(tmp_path) -> None:
    amd = glqprof.breakdown(glqprof.load(PUBLIC / "tracelens_vllm_decode_fullgraph.json.gz"))
    with pytest.raises(InputError, match="no capture can tell idle from busy"):
        account_figure([amd], tmp_path / "out.png")
    assert names(tmp_path) == []


def test_every_row_of_the_account_stands_in_the_legend(tmp_path, decode) -> None:
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none"}):  # words as words
        account_figure([decode], tmp_path / "out.svg")
    text = re.sub(r"<[^>]*>", " ", (tmp_path / "out.svg").read_text(encoding="utf-8"))
    for row in decode.wall["row"]:
        assert row in text


def test_figures_of_a_real_decode(tmp_path) -> None:
    path = RECORDED / "h200-cascade2-30b-bf16-grouped"
    ran = run("breakdown", path, "--figure", tmp_path / "a.png", "--timeline", tmp_path / "t.png", "-f", "json")
    assert ran.status == 0
    assert names(tmp_path) == ["a.png", "t.png"]
    assert all(picture(tmp_path / name).std() > 0.01 for name in names(tmp_path))
