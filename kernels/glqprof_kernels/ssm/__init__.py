"""The Mamba-2 decode step between in_proj and out_proj; docs/kernels/ssm.md states the arithmetic."""

from .ops import DEFAULT_VARIANT, VARIANTS, step
from .weights import StepWeights

__all__ = ["DEFAULT_VARIANT", "VARIANTS", "StepWeights", "step"]
