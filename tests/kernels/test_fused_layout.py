"""The packed layout of the fused variants: a round trip to the bit, and codebooks that do not fit are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from glqprof_kernels.geometry import Geometry
from glqprof_kernels.glq import factory, fused


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_pack_layer_is_a_round_trip(stages) -> None:
    """Every index plane comes back, and a code's word is its entry: rows and blocks that are no multiples of a tile."""
    layer = factory.layer(Geometry("odd", 328, 136, 3, 2, 1, "relu2", 0.0), 7, "cpu", stages=stages, split_blocks=16)
    packed = fused.pack_layer(layer)
    image = packed.table.image.numpy().view(np.uint32).astype(np.int64)
    for matrix, of in ((layer.up, packed.up), (layer.down, packed.down)):
        for s, (plane, book) in enumerate(zip(matrix.present_planes(), matrix.present_tables(), strict=True)):
            codes = packed.table.codes[id(book)]
            assert torch.equal(fused.unpack_plane(of.codes[s], codes, of.rows, of.blocks), plane)
            used = fused.unpack_codes(of.codes[s], of.rows, of.blocks).numpy().astype(np.int64)
            if of.small and s == fused.SMALL_STAGE:
                words = image[used]
            else:
                negated = used >= packed.table.entries
                words = image[used - packed.table.entries * negated]
                words = np.where(negated, fused.NEGATION - words, words)
            digits = words[..., None] >> np.arange(0, 32, 4) & 15
            want = book.float().numpy()[plane.numpy().view(np.uint16).astype(np.int64)]
            assert (digits / 2 - 4 == want).all()


@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (31, 7), (32, 8), (33, 9), (40, 131)])
def test_any_code_in_any_place(rows, blocks) -> None:
    """All 16 bits of a code survive, the upper two of an odd block's included; padding is code 0."""
    identity = torch.randperm(65_536, generator=torch.Generator().manual_seed(1)).to(torch.int32)
    plane = torch.randint(-32_768, 32_768, (2, rows, blocks), generator=torch.Generator().manual_seed(2))
    plane = plane.to(torch.int16)
    plane[0, 0, 0], plane[-1, -1, -1] = -1, 0
    packed = fused.pack_plane(plane, identity)
    assert packed.shape == (2, -(-rows // 32), -(-blocks // 8), 32, 4)
    assert torch.equal(fused.unpack_plane(packed, identity, rows, blocks), plane)
    whole = fused.unpack_codes(packed, packed.shape[1] * 32, packed.shape[2] * 8)
    assert not whole[:, rows:].any()
    assert not whole[:, :, blocks:].any()


@pytest.mark.parametrize("value", [0.25, 4.0, -4.0, float("nan")])
def test_coordinates_that_do_not_fit_are_refused(value) -> None:
    table = torch.zeros(4, 8)
    table[1, 2] = value
    with pytest.raises(ValueError, match="multiples of 1/2"):
        fused.make_table([table], None, "cpu")


def test_too_many_vectors_are_refused() -> None:
    digits = torch.arange(65_537)
    table = torch.stack([(digits // 15**k % 15 - 7) / 2 for k in range(8)], dim=1)
    with pytest.raises(ValueError, match="allow 65536"):
        fused.make_table([table], None, "cpu")


def test_scales_that_are_not_finite_are_refused() -> None:
    """Padding relies on it: an infinite scale times the padding's zeros would be NaN."""
    layer = factory.layer(Geometry("odd", 40, 24, 2, 1, 1, "relu2", 0.0), 1, "cpu", stages=2, split_blocks=16)
    layer.down.present_scales()[1][1] = float("inf")
    with pytest.raises(ValueError, match="need finite scales; those of down are not"):
        fused.pack_layer(layer)


def test_a_small_codebook_beside_too_large_a_one_is_refused() -> None:
    """Small words follow the big ones, and a code has 16 bits."""
    steps = torch.arange(-5, 6) / 2  # no vector's opposite is here: the first coordinate is positive
    rest = torch.cartesian_prod(*[steps] * 5)[:65_400]
    big = torch.cat([torch.full((65_400, 1), 0.5), rest, torch.zeros(65_400, 2)], dim=1)
    with pytest.raises(ValueError, match="65400 words and a small one 256; codes name 65536"):
        fused.make_table([big], torch.zeros(256, 8), "cpu")
    assert fused.make_table([big], None, "cpu").entries == 65_400
