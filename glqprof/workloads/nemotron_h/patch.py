"""Swap the computation of the routed experts, the Mamba-2 step, or both in any nemotron_h model of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

from glqprof.errors import InputError
from glqprof.workloads.nemotron_h.variants import BF16, GLQ, NVFP4, ExpertVariant, find_variant

RANDOM, QUANTISE = "random", "quantise"
SUBJECT = "patch"


class Patched:
    """What `patch` did. ``remove()``, or leaving it as a context, puts the model's own code back.

    ``variant``: the experts' name, "" where they are the model's own. ``layers``: how many MoE layers were patched.
    ``ssm``, ``ssm_layers``: the same of the Mamba-2 layers.
    """

    def __init__(
        self,
        variant: str,
        replaced: list[tuple[Any, Any]],
        counters: Any,
        ssm: str = "",
        ssm_layers: int = 0,
        remove_ssm: Callable[[], None] | None = None,
    ) -> None:
        self.variant, self.layers = variant, len(replaced)
        self.ssm, self.ssm_layers = ssm, ssm_layers
        self._replaced, self._counters, self._remove_ssm = replaced, counters, remove_ssm

    @property
    def infinite_activations(self) -> int:
        """GLQ activations that became infinite in fp16 so far (the output then holds inf or NaN); waits for the GPU."""
        return 0 if self._counters is None else int(self._counters.read()[0])

    @property
    def bad_ids(self) -> int:
        """Expert ids that named no expert so far, where the kernels count them; waits for the GPU."""
        return 0 if self._counters is None else int(self._counters.read()[1])

    def remove(self) -> None:
        """Put the model's own experts and Mamba-2 step back; a second call does nothing."""
        for moe, experts in self._replaced:
            moe.experts = experts
        self._replaced.clear()
        if self._remove_ssm is not None:
            self._remove_ssm()
            self._remove_ssm = None

    def __enter__(self) -> Patched:
        """Nothing more."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove."""
        self.remove()

    def __repr__(self) -> str:
        """One line."""
        parts = [f"{self.variant} in {self.layers} MoE layers"] if self.variant else []
        if self.ssm:
            parts.append(f"SSM step {self.ssm} in {self.ssm_layers} Mamba-2 layers")
        return f"<Patched: {', '.join(parts)}>"


def patch(
    model: Any,
    experts: str | None = "fused",
    *,
    ssm: str | None = None,
    weights: Sequence[Any] | Iterable[Any] | str | None = None,
    seed: int = 0,
) -> Patched:
    """Compute a model's routed experts by the variant ``experts``, and its Mamba-2 decode step by ``ssm``.

    All else stays the model's: router, shared expert, attention, norms, and how the prompt is read. ``model``: a
    nemotron_h model of transformers, or a part of one, on the device where it will run. ``experts`` None keeps its
    experts. ``ssm``: ``"fused"``, ``"unfused"`` (CUDA, bf16) or ``"torch"``, of `glqprof_kernels.ssm`; None keeps the
    model's own step. It computes single tokens of up to 8 sequences; what it does not take (prompts, padding masks,
    caches that record the past) stays the model's code. ``weights``: what the experts are from now on, since a variant
    computes one format and bf16 experts are not GLQ's:

    - a sequence of ``LayerWeights`` of `glqprof_kernels.glq` or `.nvfp4`, one a MoE layer in the model's order (their
      loaders read checkpoints); for bf16 variants either kind, dequantised, or ``glqprof_kernels.bf16.Bf16Layer``;
    - ``"quantise"``: NVFP4 of the model's own experts, by ModelOpt's definition (nothing here quantises to GLQ);
    - ``"random"``: seeded random ones of the variant's format: right for a benchmark, and the model's text is noise;
    - None: the model's own bf16 experts, which ``bf16`` and ``bf16-loop`` alone can compute.

    The model's own experts stay in memory for `Patched.remove`. Raises InputError, and changes nothing: no such
    variant, no MoE or Mamba-2 layer, weights that do not fit or of another format, nothing to patch.
    """
    if experts is None and ssm is None:
        raise InputError(SUBJECT, "experts=None and ssm=None leave nothing to patch")
    if experts is None and weights is not None:
        raise InputError(SUBJECT, "experts=None keeps the model's own experts, and weights were given")
    remove_ssm, ssm_layers = None, 0
    if ssm is not None:
        from glqprof.workloads.nemotron_h.ssm_patch import mamba_modules, patch_mixers

        mixers = mamba_modules(model)
        if not mixers:
            raise InputError(SUBJECT, f"{type(model).__name__} has no NemotronHMamba2Mixer layer; leave ssm out")
        remove_ssm, ssm_layers = patch_mixers(mixers, ssm, SUBJECT), len(mixers)
    try:
        name, replaced, counters = ("", [], None) if experts is None else _swap_experts(model, experts, weights, seed)
    except BaseException:
        if remove_ssm is not None:
            remove_ssm()
        raise
    return Patched(name, replaced, counters, ssm or "", ssm_layers, remove_ssm)


def _swap_experts(model: Any, experts: str, weights: Any, seed: int) -> tuple[str, list[tuple[Any, Any]], Any]:
    """The variant's name, (module, its own experts) of each MoE layer, the counters."""
    variant = find_variant(experts, SUBJECT)
    if variant.name == "transformers":
        raise InputError(SUBJECT, "'transformers' is the model's own code; use Patched.remove() to get back to it")
    moes = moe_modules(model)
    if not moes:
        raise InputError(SUBJECT, f"{type(model).__name__} has no NemotronHMoE layer; give a nemotron_h model")
    from glqprof.workloads.nemotron_h.experts import Counters, Experts, compute

    counters = Counters()
    fitting = _fitting(variant, moes, _weights(variant, moes, weights, seed))
    try:
        runs = compute(variant, fitting, moes[0].gate.top_k, counters)
    except ValueError as error:
        raise InputError(SUBJECT, f"{variant.name} cannot take these weights: {error}") from error
    replaced = [(moe, moe.experts) for moe in moes]
    for moe, run in zip(moes, runs, strict=True):
        moe.experts = Experts(run, variant.name)
    return variant.name, replaced, counters


def moe_modules(model: Any) -> list[Any]:
    """The model's MoE modules in order, by the name of their class: transformers need not be imported."""
    return [m for m in model.modules() if any(c.__name__ == "NemotronHMoE" for c in type(m).__mro__)]


def _weights(variant: ExpertVariant, moes: list[Any], weights: Any, seed: int) -> Iterable[Any]:
    if weights is None or (isinstance(weights, str) and weights == QUANTISE):
        return [_own(variant, moe, weights) for moe in moes]
    if not isinstance(weights, str):
        return iter(weights)
    if weights != RANDOM:
        raise InputError(SUBJECT, f"weights={weights!r} means nothing; give layers, 'quantise' or 'random'")
    from glqprof.workloads.nemotron_h.experts import random_layers

    return random_layers(_sizes(moes), variant.kind, seed, moes[0].gate.weight.device)


def _fitting(variant: ExpertVariant, moes: list[Any], layers: Iterable[Any]) -> Iterator[Any]:
    """The layers one at a time, each checked against its module, so that random ones are not all kept at once."""
    count = 0
    for count, layer in enumerate(layers, 1):
        if count > len(moes):
            break
        _check(count - 1, moes[count - 1], layer, variant)
        yield layer
    if count != len(moes):
        more = "more than" if count > len(moes) else f"{count} of"
        raise InputError(SUBJECT, f"weights are of {more} {len(moes)} MoE layers; give one for each")


def _own(variant: ExpertVariant, moe: Any, weights: str | None) -> Any:
    """The module's own experts in the variant's format."""
    up, down = getattr(moe.experts, "up_proj", None), getattr(moe.experts, "down_proj", None)
    if up is None or down is None:
        raise InputError(SUBJECT, "the experts are patched already; remove() that first, or give weights")
    activation = moe.config.mlp_hidden_act
    if variant.kind == BF16 and weights is None:
        import torch

        from glqprof_kernels.bf16 import Bf16Layer

        return Bf16Layer(up.detach().to(torch.bfloat16), down.detach().to(torch.bfloat16), activation, 0.0)
    if variant.kind == NVFP4 and weights == QUANTISE:
        from glqprof_kernels.nvfp4.quantise import quantise
        from glqprof_kernels.nvfp4.weights import LayerWeights

        try:
            return LayerWeights(quantise(up.detach(), "up"), quantise(down.detach(), "down"), activation)
        except ValueError as error:
            raise InputError(SUBJECT, f"the model's experts cannot be NVFP4: {error}") from error
    ways = "weights=LAYERS, or weights='random' for a benchmark"
    if variant.kind == NVFP4:
        ways += ", or weights='quantise' for the model's own"
    wanted = variant.kind.upper() if variant.kind != BF16 else "bf16"
    raise InputError(SUBJECT, f"the model's own experts are not {wanted}, which {variant.name} computes; give {ways}")


def _sizes(moes: list[Any]) -> Any:
    """What `random_layers` needs to know of the model."""
    from dataclasses import replace

    from glqprof.workloads.nemotron_h.sizes import load_sizes

    config = moes[0].config
    return replace(
        load_sizes("tiny"),
        name="model",
        layers="E" * len(moes),
        hidden=_width(moes[0]),
        expert_inter=config.moe_intermediate_size,
        experts=config.n_routed_experts,
        top_k=config.num_experts_per_tok,
        activation=config.mlp_hidden_act,
    )


def _width(moe: Any) -> int:
    """The width of the experts' inputs: the hidden size, or that of the latent projection."""
    latent = getattr(moe.config, "moe_latent_size", None)
    return int(latent or moe.config.hidden_size)


def _check(index: int, moe: Any, layer: Any, variant: ExpertVariant) -> None:
    """InputError where a layer's weights are of another format, size, activation or device than the module."""
    from glqprof_kernels.bf16 import Bf16Layer
    from glqprof_kernels.glq.weights import LayerWeights as GlqLayer
    from glqprof_kernels.nvfp4.weights import LayerWeights as Nvfp4Layer

    takes = {GLQ: (GlqLayer,), NVFP4: (Nvfp4Layer,), BF16: (Bf16Layer, GlqLayer, Nvfp4Layer)}[variant.kind]
    subject = f"{SUBJECT}, MoE layer {index}"
    if not isinstance(layer, takes):
        names = " or ".join(f"{t.__module__}.{t.__name__}" for t in takes)
        raise InputError(subject, f"weights are {type(layer).__name__}; {variant.name} takes {names}")
    first = layer.gate_up if isinstance(layer, Nvfp4Layer) else layer.up
    if isinstance(layer, Bf16Layer):
        experts, rows, cols = first.shape
        device = first.device
    else:
        experts, rows, cols, device = first.experts, first.rows, first.cols, layer.device
    config = moe.config
    found = (experts, rows, cols, layer.activation)
    needed = (config.n_routed_experts, config.moe_intermediate_size, _width(moe), config.mlp_hidden_act)
    if found != needed:
        raise InputError(subject, f"weights are (experts, inter, hidden, activation) {found}; the model has {needed}")
    if device != moe.gate.weight.device:
        raise InputError(subject, f"weights are on {device}, the model on {moe.gate.weight.device}; move one of them")
