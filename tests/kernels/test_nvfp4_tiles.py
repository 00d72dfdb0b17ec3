"""The tile layout: a round trip to the bit, and each weight where the kernels look for it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glqprof_kernels.nvfp4 import factory, tiles
from glqprof_kernels.nvfp4.weights import ExpertMatrix

PAIR_MASK, LEFT_MASK = 0x81C081C0, 0x60306030


def random_matrix(experts: int, rows: int, cols: int, seed: int) -> ExpertMatrix:
    generator = torch.Generator().manual_seed(seed)

    def bytes_of(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)

    scales = bytes_of(experts, rows, cols // 16)
    scales[(scales & 0x7F) == 0x7F] = 0x80
    return ExpertMatrix(bytes_of(experts, rows, cols // 2), scales, torch.rand(experts, generator=generator))


@settings(deadline=None, max_examples=30)
@given(
    experts=st.integers(1, 3),
    rows=st.integers(1, 4),
    cols=st.integers(1, 7),
    gated=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_a_round_trip_changes_no_bit(experts, rows, cols, gated, seed) -> None:
    matrix = random_matrix(experts, (64 if gated else 32) * rows, 32 * cols, seed)
    back = tiles.unpack(tiles.pack(matrix, gated))
    assert torch.equal(back.codes, matrix.codes)
    assert torch.equal(back.scales, matrix.scales)
    assert torch.equal(back.scale, matrix.scale)


@pytest.mark.parametrize("activation", ["swiglu", "relu2"])
def test_a_layer_comes_back(activation) -> None:
    layer = factory.layer(96, 64, 2, activation, 10.0 if activation == "swiglu" else 0.0, seed=3, device="cpu")
    back = tiles.unpack_layer(tiles.pack_layer(layer))
    assert (back.activation, back.limit) == (layer.activation, layer.limit)
    for mine, theirs in ((back.gate_up, layer.gate_up), (back.down, layer.down)):
        assert torch.equal(mine.codes, theirs.codes)
        assert torch.equal(mine.scales, theirs.scales)


def test_the_codes_of_two_words_use_each_bit_once() -> None:
    assert sorted(bit for places in tiles.code_bits() for bit in places) == list(range(64))


def rotate_right(word: int, bits: int) -> int:
    return (word >> bits | word << (32 - bits)) & 0xFFFFFFFF


def registers(first: int, second: int) -> list[list[int]]:
    """What decode.cuh makes of two words: [block][register], before the multiplication."""
    fourth = (first & LEFT_MASK) | (rotate_right(second, 2) & ~LEFT_MASK)
    blocks = []
    for word, last in ((first, rotate_right(fourth, 6)), (second, fourth << 4)):
        three = [word & PAIR_MASK, rotate_right(word, 4) & PAIR_MASK, word << 6 & PAIR_MASK]
        blocks.append([*three, last & PAIR_MASK])
    return blocks


def bf16_times_2_126(bits: int) -> float:
    word = torch.tensor([bits - (1 << 16) if bits >> 15 else bits], dtype=torch.int16)
    return float(word.view(torch.bfloat16).double()) * 2.0**126


E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


@pytest.mark.parametrize("gated", [False, True])
def test_a_lane_finds_the_weights_of_the_mma_operand(gated) -> None:
    """PTX, mma.m16n8k16: lane 4g + t, register r: row g + 8 (r % 2); here k = 4t + 2 (r // 2) and the next."""
    rows, cols = (128, 96) if gated else (64, 96)
    matrix = random_matrix(2, rows, cols, seed=7)
    packed = tiles.pack(matrix, gated)
    assert packed.tiles.shape == (2, rows // 16, 2, 576)
    expert, atom = 1, 2
    for slot in range(2):
        body = packed.tiles[expert, atom, slot]
        words, scales = body[:512].view(torch.int32).tolist(), body[512:]
        for lane in (0, 5, 18, 31):
            g, t = divmod(lane, 4)
            for pair in range(2):
                first, second = (words[lane * 4 + 2 * pair + i] & 0xFFFFFFFF for i in range(2))
                for block, made in enumerate(registers(first, second)):
                    for r, register in enumerate(made):
                        # Gated: gate rows of eight columns, then the up rows, which begin halfway down the matrix.
                        row = atom * 8 + g + rows // 2 * (r % 2) if gated else atom * 16 + g + 8 * (r % 2)
                        k = slot * 64 + pair * 32 + block * 16 + 4 * t + 2 * (r // 2)
                        for half in range(2):
                            value = bf16_times_2_126(register >> (16 * half) & 0xFFFF)
                            byte = int(matrix.codes[expert, row, k // 2]) if k < cols else 0
                            code = byte >> (4 * half) & 15
                            want = E2M1[code & 7] * (-1 if code & 8 else 1)
                            assert value == want, (slot, lane, pair, block, r, half)
                        found = int(scales[8 * g + 4 * pair + 2 * (r % 2) + block])
                        assert found == (int(matrix.scales[expert, row, k // 16]) if k < cols else 0x80)
