"""The small kernels of one decoded token: embedding, norms, router, bf16 matvecs, attention, head.

docs/kernels/step.md states what each computes and where it rounds.
"""

from .ops import Tuning, add_rms_norm, attend, embed, head_argmax, linear, route
from .workspace import Sizes, Workspace

__all__ = ["Sizes", "Tuning", "Workspace", "add_rms_norm", "attend", "embed", "head_argmax", "linear", "route"]
