"""The NVFP4 MoE on a GPU: ``MoeRun`` over packed layers, and ``nvfp4_moe`` as a torch operator.

A call is four launches (plan, gate-up, down, weighted sum) on the current stream. It allocates nothing, reads nothing
back and waits for nothing, so it can be captured in a CUDA graph. Ids that name no expert are skipped and, unless
masked, counted in the layer's ``errors``, which a host may read when it likes.
"""

from __future__ import annotations

from typing import Any

import torch

from . import tiles
from .tiles import PackedLayer, PackedMatrix

SCHEDULES = {"base": 0, "waves": 1, "half": 2, "quarter": 3}
PIPELINES = {"regs": 0, "ring": 1, "deep": 2}
VARIANTS = tuple(f"{schedule}-{pipeline}" for schedule in SCHEDULES for pipeline in PIPELINES)
"""All of the same bytes on one architecture."""
DEFAULT_VARIANT = "base-ring"
CONFIG = {"warps": 0, "depth": 0, "shared_kib": 0, "item_rows": 0, "blocks": 0, "ahead_kib": 0, "dependent": True}
"""The extension's Config, by field (csrc/moe_call.h); the variant sets the rest."""
PLAN, GATE_UP, DOWN, COMBINE = 1, 2, 4, 8
"""Bits of ``which``: the kernels that a call launches."""
WHOLE_LAYER = PLAN | GATE_UP | DOWN | COMBINE


def split_variant(variant: str) -> tuple[str, str]:
    """("base", "ring") of "base-ring"; ValueError naming the known ones."""
    if variant not in VARIANTS:
        raise ValueError(f"no NVFP4 variant {variant!r}; there are {', '.join(VARIANTS)}")
    schedule, pipeline = variant.split("-")
    return schedule, pipeline


def cuda_layer(packed: PackedLayer) -> Any:
    """The extension's handle of a packed layer: holds its tensors, so that a call passes only the inputs."""
    from . import extension

    module = extension.load()

    def matrix(m: PackedMatrix) -> Any:
        return module.Matrix(m.tiles, m.scale, m.columns, m.inputs)

    gated = packed.activation == "swiglu"
    return module.Layer(matrix(packed.gate_up), matrix(packed.down), gated, packed.limit, packed.errors)


def make_config(variant: str, **config: Any) -> Any:
    """The extension's Config of a variant, with fields of ``CONFIG`` overridden; ValueError for unknown names."""
    from . import extension

    schedule, pipeline = split_variant(variant)
    unknown = sorted(set(config) - set(CONFIG))
    if unknown:
        raise ValueError(f"no option {', '.join(unknown)}; there are {', '.join(CONFIG)}")
    made = extension.load().Config()
    made.schedule, made.pipeline = SCHEDULES[schedule], PIPELINES[pipeline]
    for name, value in {**CONFIG, **config}.items():
        setattr(made, name, value)
    return made


class MoeRun:
    """Packed layers with a workspace of their own: calls of one object follow each other, two objects are independent.

    ``max_rows`` tokens of ``top_k`` experts each are the most that a call takes. ``config`` overrides fields of
    ``CONFIG``.
    """

    def __init__(
        self, layers: list[PackedLayer], max_rows: int, top_k: int, variant: str = DEFAULT_VARIANT, **config: Any
    ) -> None:
        if not layers:
            raise ValueError("no layers")
        split_variant(variant)
        self.config = make_config(variant, **config)
        self.handles = [cuda_layer(layer) for layer in layers]
        size = max(handle.workspace_bytes(max_rows, top_k) for handle in self.handles)
        self.workspace = torch.zeros(size, dtype=torch.uint8, device=layers[0].gate_up.tiles.device)

    def layer(
        self, index: int, x: Any, ids: Any, weights: Any, out: Any, mask_invalid: bool = False, which: int = WHOLE_LAYER
    ) -> None:
        """One layer: x [rows, hidden] bf16, ids [rows, top_k] int64, weights [rows, top_k] fp32 → out.

        out [rows, hidden] bf16; or [rows, top_k, hidden] bf16 or fp32, the experts' outputs before the weighted sum,
        where slots that are skipped stay as they are. ValueError for tensors that do not fit. ``which`` launches some
        of the kernels only, over what the workspace holds: for measurements.
        """
        self.handles[index].run(x, ids, weights, mask_invalid, out, self.workspace, self.config, which)

    def plan(self, index: int, rows: int, top_k: int) -> dict[str, list[int]]:
        """The plan of the last call, of that many rows, as ``routing.Plan``'s fields; waits for the GPU."""
        offset = self.handles[index].plan_offset(rows, top_k, self.config)
        return read_plan(self.workspace[offset:].cpu(), top_k)

    def choice(self, index: int, rows: int, top_k: int) -> list[list[int]]:
        """[warps a block, stages a warp, shared-memory bytes a block] of gate-up and down, for that many rows."""
        return self.handles[index].choice(rows, top_k, self.config)


PLAN_HEADER, ITEM_WORDS, ITEM_ROWS_AT = 32, 32, 16
"""Words of the plan (csrc/moe_call.h)."""


def read_plan(memory: Any, top_k: int) -> dict[str, list[int]]:
    """What the plan kernel wrote, from the start of its bytes: ``rows``, ``expert``, ``start``, ``count``."""
    words = memory[: memory.numel() // 4 * 4].view(torch.int32)
    count = int(words[0])
    items = words[PLAN_HEADER : PLAN_HEADER + count * ITEM_WORDS].view(count, ITEM_WORDS).tolist()
    places = [place for item in items for place in item[ITEM_ROWS_AT : ITEM_ROWS_AT + item[2]]]
    return {
        "rows": [(place >> 16) * top_k + (place & 0xFFFF) for place in places],
        "expert": [item[0] for item in items],
        "start": [item[1] for item in items],
        "count": [item[2] for item in items],
    }


@torch.library.custom_op("glqprof::nvfp4_moe", mutates_args=("errors",), device_types="cpu")
def _nvfp4_moe(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up_tiles: torch.Tensor,
    gate_up_scale: torch.Tensor,
    down_tiles: torch.Tensor,
    down_scale: torch.Tensor,
    errors: torch.Tensor,
    activation: str,
    limit: float,
    variant: str,
    mask_invalid: bool,
) -> torch.Tensor:
    from .exact import moe as exact
    from .exact.product import host_layer

    split_variant(variant)
    layer = _packed(x, gate_up_tiles, gate_up_scale, down_tiles, down_scale, errors, activation, limit)
    if not mask_invalid:
        errors += ((ids < 0) | (ids >= layer.experts)).sum()
    bits = x.contiguous().view(torch.uint16).numpy()
    out = exact.moe(host_layer(tiles.unpack_layer(layer)), bits, ids.numpy(), weights.numpy(), mask_invalid=True)
    return torch.from_numpy(out).view(torch.bfloat16)


@_nvfp4_moe.register_fake
def _(x: Any, *args: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


@_nvfp4_moe.register_kernel("cuda")
def _(
    x: Any,
    ids: Any,
    weights: Any,
    gate_up_tiles: Any,
    gate_up_scale: Any,
    down_tiles: Any,
    down_scale: Any,
    errors: Any,
    activation: str,
    limit: float,
    variant: str,
    mask_invalid: bool,
) -> torch.Tensor:
    layer = _packed(x, gate_up_tiles, gate_up_scale, down_tiles, down_scale, errors, activation, limit)
    run = MoeRun([layer], x.shape[0], ids.shape[1], variant)
    out = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
    run.layer(0, x, ids, weights, out, mask_invalid)
    return out


def _packed(
    x: Any,
    gate_up_tiles: Any,
    gate_up_scale: Any,
    down_tiles: Any,
    down_scale: Any,
    errors: Any,
    activation: str,
    limit: float,
) -> PackedLayer:
    hidden, inter = x.shape[1], gate_up_tiles.shape[1] * tiles.atom_columns(activation == "swiglu")
    gate_up = PackedMatrix(gate_up_tiles, gate_up_scale, inter, hidden, activation == "swiglu")
    return PackedLayer(gate_up, PackedMatrix(down_tiles, down_scale, hidden, inter, False), activation, limit, errors)


def nvfp4_moe(
    packed: PackedLayer,
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    *,
    variant: str = DEFAULT_VARIANT,
    mask_invalid: bool = False,
) -> torch.Tensor:
    """Output of one MoE layer, [rows, hidden] bf16, on the layer's device; allocates its workspace and result.

    x [rows, hidden] bf16, ids [rows, top_k] int64, weights [rows, top_k] fp32. Ids that name no expert are skipped and,
    unless ``mask_invalid``, counted in ``packed.errors``. ValueError for tensors that do not fit the layer. On the CPU
    the exact implementation runs. ``MoeRun`` is for calls that follow each other.
    """
    check_inputs(packed, x, ids, weights)
    split_variant(variant)
    return torch.ops.glqprof.nvfp4_moe(
        x,
        ids,
        weights,
        packed.gate_up.tiles,
        packed.gate_up.scale,
        packed.down.tiles,
        packed.down.scale,
        packed.errors,
        packed.activation,
        packed.limit,
        variant,
        mask_invalid,
    )


def check_inputs(packed: PackedLayer, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
    """ValueError for tensors that do not fit the layer."""
    device = packed.gate_up.tiles.device
    if x.dim() != 2 or x.shape[1] != packed.hidden:
        raise ValueError(f"x must be [rows, {packed.hidden}], not {list(x.shape)}")
    if x.dtype != torch.bfloat16:
        raise ValueError(f"x must be bf16, not {x.dtype}")
    if ids.dim() != 2 or ids.shape[0] != x.shape[0] or ids.shape != weights.shape:
        raise ValueError(f"ids and weights must be [rows, top_k], not {list(ids.shape)} and {list(weights.shape)}")
    if ids.dtype != torch.int64 or weights.dtype != torch.float32:
        raise ValueError(f"ids must be int64 and weights fp32, not {ids.dtype} and {weights.dtype}")
    if not x.device == ids.device == weights.device == device:
        raise ValueError(f"x, ids and weights must be on {device}")
