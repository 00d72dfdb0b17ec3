"""What one Mamba-2 layer's step reads besides its inputs and states."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch


@dataclass(frozen=True, eq=False)
class StepWeights:
    """Parameters of one layer, all on one device, as the model holds them.

    ``conv_weight`` [conv_dim, K] and ``conv_bias`` [conv_dim] (or None) of the depthwise convolution over x | B | C;
    ``dt_bias`` and ``d`` [heads]; ``a`` [heads] fp32, which is −exp(A_log); ``norm_weight`` [inter]; ``eps`` of the
    gated norm. ``heads`` × ``head_dim`` = inter; ``state`` is the width of B and C, ``groups`` how many of them there
    are; conv_dim = inter + 2 · groups · state. Raises ValueError where shapes or devices do not fit each other.
    """

    conv_weight: torch.Tensor
    conv_bias: torch.Tensor | None
    dt_bias: torch.Tensor
    a: torch.Tensor
    d: torch.Tensor
    norm_weight: torch.Tensor
    eps: float
    heads: int
    head_dim: int
    state: int
    groups: int

    def __post_init__(self) -> None:
        """Check the shapes."""
        if min(self.heads, self.head_dim, self.state, self.groups) < 1 or self.heads % self.groups:
            sizes = f"{self.heads} heads of {self.head_dim}, state {self.state}, {self.groups} groups"
            raise ValueError(f"{sizes}: all must be positive, and the groups must divide the heads")
        if self.conv_weight.dim() != 2:
            raise ValueError(f"conv_weight must be [conv_dim, K], not {list(self.conv_weight.shape)}")
        wanted = {
            "conv_weight": (self.conv_weight, [self.conv_dim, self.kernel]),
            "conv_bias": (self.conv_bias, [self.conv_dim]),
            "dt_bias": (self.dt_bias, [self.heads]),
            "a": (self.a, [self.heads]),
            "d": (self.d, [self.heads]),
            "norm_weight": (self.norm_weight, [self.inter]),
        }
        for name, (tensor, shape) in wanted.items():
            if tensor is None:
                continue
            if list(tensor.shape) != shape:
                raise ValueError(f"{name} must be {shape}, not {list(tensor.shape)}")
            if tensor.device != self.device:
                raise ValueError(f"{name} is on {tensor.device}, conv_weight on {self.device}")
            if not tensor.is_floating_point():
                raise ValueError(f"{name} must be of a float type, not {tensor.dtype}")
        if self.a.dtype != torch.float32:
            raise ValueError(f"a must be fp32, not {self.a.dtype}")

    @property
    def inter(self) -> int:
        """Width between the layer's projections."""
        return self.heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.inter + 2 * self.groups * self.state

    @property
    def kernel(self) -> int:
        """Taps of the convolution, and columns that the convolution's state keeps."""
        return self.conv_weight.shape[1]

    @property
    def projected(self) -> int:
        """Width of in_proj's output: gate | x, B, C | dt."""
        return self.inter + self.conv_dim + self.heads

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.conv_weight.device

    @cached_property
    def cuda_layer(self) -> Any:
        """The extension's handle, which holds these tensors; ValueError or RuntimeError where it cannot be made."""
        from . import extension

        tensors = (self.conv_weight, self.conv_bias, self.dt_bias, self.a, self.d, self.norm_weight)
        return extension.load().Layer(*tensors, self.eps, self.heads, self.head_dim, self.state, self.groups)

    @classmethod
    def of(cls, mixer: Any) -> StepWeights:
        """The weights of a transformers ``NemotronHMamba2Mixer`` (5.3 and later), by its attributes' names.

        Tensors are the mixer's own memory, but ``a``. Raises ValueError for a mixer whose activation is not SiLU.
        """
        activation = str(mixer.activation)
        if activation not in ("silu", "swish"):
            raise ValueError(f"the mixer's activation is {activation!r}; the step computes SiLU")
        with torch.no_grad():
            bias = mixer.conv1d.bias
            return cls(
                conv_weight=mixer.conv1d.weight.detach().squeeze(1),
                conv_bias=None if bias is None else bias.detach(),
                dt_bias=mixer.dt_bias.detach(),
                a=-torch.exp(mixer.A_log.detach().float()),
                d=mixer.D.detach(),
                norm_weight=mixer.norm.weight.detach(),
                eps=float(mixer.norm.variance_epsilon),
                heads=mixer.num_heads,
                head_dim=mixer.head_dim,
                state=mixer.ssm_state_size,
                groups=mixer.n_groups,
            )
