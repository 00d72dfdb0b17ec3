"""The two number formats of NVFP4: e2m1 and e4m3, by definition; rounding to nearest even; two codes a byte.

e2m1 (OCP Microscaling Formats 1.0): sign, two exponent bits of bias 1, one mantissa bit; no NaN, no infinity; ±0, 0.5,
1, 1.5, 2, 3, 4, 6. e4m3 (OCP 8-bit Floating Point 1.0, torch's float8_e4m3fn): sign, four exponent bits of bias 7,
three mantissa bits; NaN is 0x7F and 0xFF, there is no infinity, the largest value is 448, the smallest 2⁻⁹.

In both, the code without its sign bit counts the non-negative values in ascending order, and its last bit is the last
bit of the mantissa. So rounding to nearest even counts the midpoints below; a midpoint itself goes to the even code.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

Tensor = Any  # torch.Tensor

E2M1_MAX = 6.0
E4M3_MAX = 448.0
E4M3_MIN = 2.0**-9
"""The smallest positive e4m3 value, a denormal."""


def e2m1_value(code: int) -> float:
    """The value of a 4-bit e2m1 code, from its fields."""
    code = int(code)  # numpy's own integers would wrap around
    sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
    size = mantissa * 0.5 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
    return -size if sign else size


def e4m3_value(byte: int) -> float:
    """The value of an e4m3 byte, from its fields; NaN for 0x7F and 0xFF."""
    byte = int(byte)
    sign, exponent, mantissa = byte >> 7, byte >> 3 & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    size = mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -size if sign else size


@cache
def e2m1_table(device: Any = "cpu") -> Tensor:
    """The 16 values in the order of their codes, float32 on ``device``; -0.0 at 8."""
    import torch

    return torch.tensor([e2m1_value(code) for code in range(16)], dtype=torch.float32, device=device)


@cache
def e4m3_table(device: Any = "cpu") -> Tensor:
    """The 256 values in the order of their bytes, float32 on ``device``; NaN at 0x7F and 0xFF."""
    import torch

    return torch.tensor([e4m3_value(byte) for byte in range(256)], dtype=torch.float32, device=device)


@cache
def _midpoints(values: tuple[float, ...], device: Any) -> Tensor:
    import torch

    halves = [(low + high) / 2 for low, high in pairwise(values)]
    return torch.tensor(halves, dtype=torch.float32, device=device)


def _round(value: Tensor, values: tuple[float, ...], sign_bit: int) -> Tensor:
    """Codes of float32 values among ascending non-negative ``values``, ties to the even code, beyond them the last."""
    import torch

    size = value.abs().contiguous()
    midpoints = _midpoints(values, value.device)
    below = torch.searchsorted(midpoints, size, out_int32=True)
    reached = torch.searchsorted(midpoints, size, right=True, out_int32=True)
    code = torch.where(below % 2 == 0, below, reached).to(torch.uint8)
    return torch.where(torch.signbit(value), code | sign_bit, code)


_E2M1_POSITIVE = tuple(e2m1_value(code) for code in range(8))
_E4M3_POSITIVE = tuple(e4m3_value(byte) for byte in range(0x7F))


def encode_e2m1(value: Tensor) -> Tensor:
    """The e2m1 codes (uint8, 0 to 15) of float32 values: nearest even, ±6 beyond, the sign of a zero kept.

    ValueError for a NaN, which e2m1 cannot hold.
    """
    _refuse_nan(value, "e2m1")
    return _round(value.float(), _E2M1_POSITIVE, 0x08)


def encode_e4m3(value: Tensor) -> Tensor:
    """The e4m3 bytes (uint8) of float32 values: nearest even, ±448 beyond, the sign of a zero kept.

    ValueError for a NaN: a scale is never one.
    """
    _refuse_nan(value, "e4m3")
    return _round(value.float(), _E4M3_POSITIVE, 0x80)


def _refuse_nan(value: Tensor, kind: str) -> None:
    if bool(value.isnan().any()):
        raise ValueError(f"a NaN cannot be quantised to {kind}")


def decode_e2m1(code: Tensor) -> Tensor:
    """float32 values of e2m1 codes (integers 0 to 15); exact."""
    return e2m1_table(code.device)[code.int()]


def decode_e4m3(byte: Tensor) -> Tensor:
    """float32 values of e4m3 bytes (uint8); exact; NaN for 0x7F and 0xFF."""
    return e4m3_table(byte.device)[byte.int()]


def pack(code: Tensor) -> Tensor:
    """Two codes a byte, the lower column in the low nibble: uint8 [..., K] → uint8 [..., K / 2]."""
    if code.shape[-1] % 2:
        raise ValueError(f"{code.shape[-1]} codes do not fill bytes: the last dimension must be even")
    return code[..., 0::2] | (code[..., 1::2] << 4)


def unpack(packed: Tensor) -> Tensor:
    """The codes of packed bytes: uint8 [..., K / 2] → uint8 [..., K]."""
    import torch

    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
