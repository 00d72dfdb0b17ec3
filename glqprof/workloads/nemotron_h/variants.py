"""The ways to compute a nemotron_h model's routed experts, by name; nothing is imported or built here."""

from __future__ import annotations

from dataclasses import dataclass

from glqprof.errors import InputError

GLQ, NVFP4, BF16 = "glq", "nvfp4", "bf16"


@dataclass(frozen=True)
class ExpertVariant:
    """``kind``: the weights' format. ``same_bits_as``: the variant whose bits it must have, "" for none."""

    name: str
    kind: str
    same_bits_as: str = ""

    @property
    def reads_ids(self) -> bool:
        """Whether its host loop reads expert ids on the host, so that no CUDA graph can hold it."""
        return self.kind == GLQ and not self.name.startswith("fused")

    @property
    def kernel(self) -> str:
        """The variant's name in its kernel group."""
        return self.name.removeprefix("nvfp4-")


def _variants() -> tuple[ExpertVariant, ...]:
    glq = [("v0.2.12", ""), ("v3a", "v0.2.12"), ("v3b", "v0.2.12"), ("v3b-fp32act", ""), ("fused", "v0.2.12")]
    units, pipelines = ("base", "waves", "half", "quarter"), ("regs", "ring", "deep")
    nvfp4 = [f"nvfp4-{unit}-{pipeline}" for unit in units for pipeline in pipelines]
    return (
        *(ExpertVariant(name, GLQ, same) for name, same in [*glq, ("fused-fast", "")]),
        *(ExpertVariant(name, NVFP4, "" if name == nvfp4[0] else nvfp4[0]) for name in nvfp4),
        *(ExpertVariant(name, BF16) for name in ("bf16", "bf16-loop", "transformers")),
    )


VARIANTS = {variant.name: variant for variant in _variants()}
"""By name. ``bf16`` is torch's grouped_mm, ``transformers`` the model's own code, both on dequantised GLQ weights."""


def find_variant(name: str, subject: str) -> ExpertVariant:
    """The variant of that name; InputError about ``subject`` that names the known ones."""
    if name not in VARIANTS:
        raise InputError(subject, f"{name!r} is no variant; there are {', '.join(VARIANTS)}")
    return VARIANTS[name]
