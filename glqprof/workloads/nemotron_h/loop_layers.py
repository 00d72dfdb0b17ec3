"""The layers of glqprof's own loop: each runs one token through a model's weights, over buffers made once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from glqprof.errors import InputError
from glqprof.workloads.nemotron_h.experts import ExpertLayer, Experts
from glqprof.workloads.nemotron_h.model import LETTERS
from glqprof.workloads.nemotron_h.static_cache import StaticState

SUBJECT = "glqprof's loop"
LARGER, SMALLER = 0, 1
"""Shares of `glqprof_kernels.step.Tuning`."""
Addends = tuple[Any, Any]
"""What a layer adds to the residual: a tensor and, of a MoE layer, the shared expert's; None where there is none."""


@dataclass(frozen=True)
class Launch:
    """How the kernels are launched. ``implementation``: cuda or torch, of `glqprof_kernels.step`; ``ssm``: the variant
    of `glqprof_kernels.ssm`. ``dependent``: each may start before the one ahead has ended. ``side``: a stream for the
    shared expert, or None."""

    implementation: str
    ssm: str
    dependent: bool
    side: Any = None

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that every step kernel takes."""
        return {"implementation": self.implementation, "dependent": self.dependent}

    def linear(self, x: Any, weight: Any, out: Any, *, share: int, **options: Any) -> None:
        """A product. ``share`` of a multiprocessor's shared memory: the weights of two that follow each other stream
        side by side where the shares differ, and blocks of one never share a multiprocessor where it is the larger."""
        from glqprof_kernels.step import Tuning, linear

        linear(x, weight, out, tuning=Tuning(share=share), **{**self.options, **options})


class Buffers:
    """Every intermediate of a token, [batch, width], made once: layers of a kind share them, as they follow each other.

    ``residual`` and ``x`` (the normed input of a layer) are bf16, ``x16`` is x in fp16, as GLQ's experts read it.
    """

    def __init__(self, model: Any, state: StaticState, batch: int) -> None:
        from glqprof_kernels.step import Sizes, Workspace

        config, device = model.config, model.device

        def made(width: int, dtype: Any = torch.bfloat16) -> Any:
            return torch.zeros(batch, width, dtype=dtype, device=device)

        hidden = config.hidden_size
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        inter = config.mamba_num_heads * config.mamba_head_dim
        conv = inter + 2 * config.n_groups * config.ssm_state_size
        self.residual, self.x, self.mixed = made(hidden), made(hidden), made(hidden)
        self.x16, self.routed16 = made(hidden, torch.float16), made(hidden, torch.float16)
        self.routed, self.shared = made(hidden), made(hidden)
        self.projected, self.scanned = made(inter + conv + config.mamba_num_heads), made(inter)
        self.qkv, self.attended = made((heads + 2 * kv_heads) * dim), made(heads * dim)
        self.q, self.k, self.v = self.qkv.split([heads * dim, kv_heads * dim, kv_heads * dim], dim=1)
        self.ids = torch.zeros(batch, config.num_experts_per_tok, dtype=torch.int64, device=device)
        self.weights = torch.zeros(batch, config.num_experts_per_tok, dtype=torch.float32, device=device)
        self.shared_up = made(config.moe_shared_expert_intermediate_size)
        self.up = made(config.intermediate_size) if "-" in state.kinds else None
        self.logits = made(config.vocab_size)
        sizes = Sizes(batch, config.n_routed_experts, heads, dim, state.capacity)
        self.workspace = Workspace(sizes, device)
        self.batch = batch
        self._ssm: Any = None

    def ssm_workspace(self, weights: Any, launch: Launch) -> Any:
        """What the CUDA steps of all Mamba-2 layers share; None where they need nothing."""
        from glqprof_kernels.ssm.ops import make_workspace

        if self._ssm is None and launch.ssm != "torch" and weights.device.type == "cuda":
            self._ssm = make_workspace(weights, self.batch)
        return self._ssm


class Layer:
    """A layer's norm, and what every kind of layer needs."""

    def __init__(self, block: Any, buffers: Buffers, launch: Launch) -> None:
        self.norm, self.eps = _weight(block.norm.weight), float(block.norm.variance_epsilon)
        self.buffers, self.launch = buffers, launch
        self.out16: Any = None

    def normed(self, addends: Addends) -> None:
        """Add what the layer before left to the residual; its norm goes to ``x``."""
        from glqprof_kernels.step import add_rms_norm

        b, options = self.buffers, self.launch.options
        if self.launch.side is not None and addends[1] is not None:
            options["dependent"] = False  # it waits for two streams
        add_rms_norm(
            b.residual, addends[0], self.norm, self.eps, b.x, out_fp16=self.out16, second=addends[1], **options
        )

    def run(self, addends: Addends) -> Addends:
        """Launch the layer; what it adds to the residual."""
        raise NotImplementedError


class MambaLayer(Layer):
    """in_proj, the step of `glqprof_kernels.ssm`, out_proj."""

    def __init__(self, block: Any, buffers: Buffers, launch: Launch, states: tuple[Any, Any]) -> None:
        from glqprof_kernels.ssm import StepWeights
        from glqprof_kernels.ssm.ops import check_supported

        super().__init__(block, buffers, launch)
        mixer = block.mixer
        self.conv_state, self.state = states
        self.weights = StepWeights.of(mixer)
        if launch.ssm != "torch":
            check_supported(self.weights)
        self.workspace = buffers.ssm_workspace(self.weights, launch)
        self.into, self.into_bias = _linear(mixer.in_proj)
        self.out, self.out_bias = _linear(mixer.out_proj)

    def run(self, addends: Addends) -> Addends:
        """The layer's output."""
        from glqprof_kernels import ssm

        b, launch = self.buffers, self.launch
        self.normed(addends)
        launch.linear(b.x, self.into, b.projected, share=LARGER, bias=self.into_bias)
        ssm.step(
            self.weights,
            b.projected,
            self.conv_state,
            self.state,
            b.scanned,
            variant=launch.ssm,
            dependent=launch.dependent,
            early_state=launch.dependent,  # the token before wrote it, and advancing the lengths is an ordinary launch
            workspace=self.workspace,
        )
        # The step lets it start when in_proj has ended: there is nothing to share with.
        launch.linear(b.scanned, self.out, b.mixed, share=LARGER, bias=self.out_bias)
        return b.mixed, None


class AttentionLayer(Layer):
    """q, k and v in one launch, attention over the static keys and values, o."""

    def __init__(self, block: Any, buffers: Buffers, launch: Launch, keys_values: tuple[Any, Any], at: Any) -> None:
        super().__init__(block, buffers, launch)
        mixer = block.mixer
        self.keys, self.values = keys_values
        self.position = at
        self.scale = float(mixer.scaling)
        self.qkv = [_linear(part)[0] for part in (mixer.q_proj, mixer.k_proj, mixer.v_proj)]
        self.biases = [_linear(part)[1] for part in (mixer.q_proj, mixer.k_proj, mixer.v_proj)]
        self.out, self.out_bias = _linear(mixer.o_proj)

    def run(self, addends: Addends) -> Addends:
        """The layer's output."""
        from glqprof_kernels.step import attend

        b, launch = self.buffers, self.launch
        self.normed(addends)
        launch.linear(b.x, self.qkv, [b.q, b.k, b.v], share=SMALLER, bias=self.biases)
        attend(
            b.q,
            b.k,
            b.v,
            self.keys,
            self.values,
            self.position,
            self.scale,
            b.attended,
            workspace=b.workspace,
            **launch.options,
        )
        launch.linear(b.attended, self.out, b.mixed, share=LARGER, bias=self.out_bias)
        return b.mixed, None


class MoeLayer(Layer):
    """Router, the routed experts by whatever computes them in the model, and the shared expert."""

    def __init__(self, block: Any, buffers: Buffers, launch: Launch) -> None:
        super().__init__(block, buffers, launch)
        moe = block.mixer
        if getattr(moe.config, "moe_latent_size", None) is not None:
            raise InputError(SUBJECT, "computes no latent projection before the experts; take transformers' loop")
        gate = moe.gate
        if (getattr(gate, "num_group", 1) or 1) != 1:
            raise InputError(SUBJECT, f"routes in one group, and the model has {gate.num_group}; take transformers'")
        self.gate, self.bias = _weight(gate.weight), gate.e_score_correction_bias.detach().float()
        self.top_k, self.scaling = int(gate.top_k), float(gate.routed_scaling_factor)
        self.normalise = bool(gate.norm_topk_prob)
        shared = moe.shared_experts
        if moe.config.mlp_hidden_act != "relu2":
            raise InputError(SUBJECT, f"computes relu2, and the model has {moe.config.mlp_hidden_act}")
        self.up, self.up_bias = _linear(shared.up_proj)
        self.down, self.down_bias = _linear(shared.down_proj)
        own = moe.experts
        if isinstance(own, Experts):
            self.experts = own.run
        else:
            self.experts = ExpertLayer(None, lambda x, ids, weights, out: own(x, ids, weights))
        self.narrow = self.experts.dtype is torch.float16
        self.out16 = buffers.x16 if self.narrow else None

    def run(self, addends: Addends) -> Addends:
        """The routed and the shared experts' outputs: their sum is rounded by whoever adds them."""
        from glqprof_kernels.step import route

        b, launch = self.buffers, self.launch
        self.normed(addends)
        if launch.side is not None:
            launch.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(launch.side):
                self._shared(first_dependent=False)
        route(
            b.x,
            self.gate,
            self.bias,
            self.top_k,
            self.scaling,
            self.normalise,
            b.ids,
            b.weights,
            workspace=b.workspace,
            **launch.options,
        )
        x, out = (b.x16, b.routed16) if self.narrow else (b.x, b.routed)
        routed = self.experts.into(x, b.ids, b.weights, out)
        if launch.side is not None:
            torch.cuda.current_stream().wait_stream(launch.side)
        else:
            self._shared(launch.dependent)
        return routed, b.shared

    def _shared(self, first_dependent: bool) -> None:
        b, launch = self.buffers, self.launch
        first = {"activation": "relu2", "dependent": first_dependent}
        launch.linear(b.x, self.up, b.shared_up, share=LARGER, bias=self.up_bias, **first)
        launch.linear(b.shared_up, self.down, b.shared, share=SMALLER, bias=self.down_bias)


class MlpLayer(Layer):
    """A plain relu² MLP."""

    def __init__(self, block: Any, buffers: Buffers, launch: Launch) -> None:
        super().__init__(block, buffers, launch)
        if block.mixer.config.mlp_hidden_act != "relu2":
            raise InputError(SUBJECT, f"computes relu2, and the model has {block.mixer.config.mlp_hidden_act}")
        self.up, self.up_bias = _linear(block.mixer.up_proj)
        self.down, self.down_bias = _linear(block.mixer.down_proj)

    def run(self, addends: Addends) -> Addends:
        """The layer's output."""
        b, launch = self.buffers, self.launch
        self.normed(addends)
        launch.linear(b.x, self.up, b.up, share=LARGER, bias=self.up_bias, activation="relu2")
        launch.linear(b.up, self.down, b.mixed, share=SMALLER, bias=self.down_bias)
        return b.mixed, None


def make_layer(index: int, block: Any, buffers: Buffers, launch: Launch, state: StaticState) -> Layer:
    """The layer of a transformers block; InputError for one that the kernels cannot compute."""
    kind = LETTERS[block.block_type]
    try:
        if kind == "M":
            return MambaLayer(block, buffers, launch, state.conv_recurrent(index))
        if kind == "*":
            return AttentionLayer(block, buffers, launch, state.keys_values(index), state.position)
        return MoeLayer(block, buffers, launch) if kind == "E" else MlpLayer(block, buffers, launch)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(SUBJECT, f"cannot compute layer {index}: {error}") from error


def _weight(parameter: Any) -> Any:
    weight = parameter.detach()
    if weight.dtype not in (torch.bfloat16, torch.float32):
        raise InputError(SUBJECT, f"takes bf16 models, and a weight is {weight.dtype}; take transformers' loop")
    return weight


def _linear(module: Any) -> tuple[Any, Any]:
    """(weight, bias or None) of a torch Linear."""
    weight = getattr(module, "weight", None)
    if weight is None or weight.dtype != torch.bfloat16 or weight.dim() != 2:
        found = type(module).__name__ if weight is None else f"{weight.dtype} of {weight.dim()} dimensions"
        raise InputError(SUBJECT, f"takes bf16 matrices, and the model has {found}; take transformers' loop")
    bias = module.bias
    return weight.detach(), None if bias is None else bias.detach()
