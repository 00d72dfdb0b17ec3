"""Sizes of the nemotron_h workloads: Cascade-2-30B from ``data/geometries.toml``, and one for the CPU."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from glqprof.errors import InputError

BLOCKS = {"M": "Mamba-2", "E": "MoE", "*": "attention"}
"""The letters of a layer pattern."""

TINY: dict[str, Any] = {
    "hidden": 64,
    "expert_inter": 32,
    "experts": 8,
    "top_k": 2,
    "shared_inter": 48,
    "activation": "relu2",
    "layers": "MEM*EME",
    "attention_heads": 2,
    "kv_heads": 1,
    "head_dim": 32,
    "ssm_heads": 4,
    "ssm_head_dim": 16,
    "ssm_state": 16,
    "ssm_groups": 2,
    "ssm_conv": 4,
    "ssm_chunk": 16,
    "vocab": 512,
    "router_scaling": 2.5,
}
"""Not a model: every kind of layer, and widths that all variants take, small enough for exact CPU arithmetic."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of one model, in elements. ``layers``: one letter of ``BLOCKS`` a layer. ``shared_inter``: the width of the
    expert that every token passes. ``ssm_chunk``: tokens of a chunk of the prompt's scan."""

    name: str
    hidden: int
    expert_inter: int
    experts: int
    top_k: int
    shared_inter: int
    activation: str
    layers: str
    attention_heads: int
    kv_heads: int
    head_dim: int
    ssm_heads: int
    ssm_head_dim: int
    ssm_state: int
    ssm_groups: int
    ssm_conv: int
    ssm_chunk: int
    vocab: int
    router_scaling: float

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return self.layers.count("E")

    @property
    def ssm_inter(self) -> int:
        """Width between a Mamba-2 layer's projections."""
        return self.ssm_heads * self.ssm_head_dim

    @property
    def ssm_conv_width(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.ssm_inter + 2 * self.ssm_groups * self.ssm_state

    def prefix(self, count: int | None) -> Sizes:
        """The model's first ``count`` layers (None: all); InputError where it has fewer."""
        if count is None:
            return self
        if not 1 <= count <= len(self.layers):
            raise InputError("--layers", f"{count} is not 1 to {len(self.layers)}, the layers of {self.name}")
        return replace(self, layers=self.layers[:count])

    def config_arguments(self) -> dict[str, Any]:
        """Arguments of transformers' ``NemotronHConfig``."""
        return {
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "hybrid_override_pattern": self.layers,
            "num_attention_heads": self.attention_heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "ssm_state_size": self.ssm_state,
            "mamba_num_heads": self.ssm_heads,
            "mamba_head_dim": self.ssm_head_dim,
            "n_groups": self.ssm_groups,
            "conv_kernel": self.ssm_conv,
            "chunk_size": self.ssm_chunk,
            "n_routed_experts": self.experts,
            "n_shared_experts": 1,
            "num_experts_per_tok": self.top_k,
            "moe_intermediate_size": self.expert_inter,
            "moe_shared_expert_intermediate_size": self.shared_inter,
            "routed_scaling_factor": self.router_scaling,
            "norm_topk_prob": True,
            "n_group": 1,
            "topk_group": 1,
            "mlp_hidden_act": self.activation,
            "max_position_embeddings": 1 << 18,
            "tie_word_embeddings": False,
        }

    def other_parameters(self) -> int:
        """Parameters that are not the routed experts'."""
        h = self.hidden
        ssm = h * (self.ssm_inter + self.ssm_conv_width + self.ssm_heads) + self.ssm_inter * h
        ssm += self.ssm_conv_width * (self.ssm_conv + 1) + 3 * self.ssm_heads + self.ssm_inter
        attention = 2 * h * self.head_dim * (self.attention_heads + self.kv_heads)
        moe = 2 * h * self.shared_inter + h * self.experts
        each = {"M": ssm, "*": attention, "E": moe}
        return 2 * self.vocab * h + h + sum(h + each[kind] for kind in self.layers)

    def expert_parameters(self) -> int:
        """Parameters of the routed experts of one MoE layer."""
        return 2 * self.experts * self.expert_inter * self.hidden


def load_sizes(workload: str) -> Sizes:
    """The workload's sizes; InputError naming the known ones."""
    from glqprof.workloads.bundled import WORKLOADS

    if workload not in WORKLOADS:
        raise InputError("--workload", f"{workload!r} is not bundled; there are {', '.join(WORKLOADS)}")
    if workload == "tiny":
        table = TINY
    else:
        text = (files("glqprof") / "data" / "geometries.toml").read_text(encoding="utf-8")
        table = tomllib.loads(text)[workload]
    names = set(Sizes.__dataclass_fields__) - {"name", "ssm_chunk"}
    return Sizes(name=workload, ssm_chunk=table.get("ssm_chunk", 128), **{name: table[name] for name in names})
