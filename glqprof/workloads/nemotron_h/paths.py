"""How a decode runs beside its expert variant: which loop, SSM step, cache, attention backend, in a graph or not.

A *path* is a variant and these choices, written ``fused:glqprof:graph``. No torch here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from glqprof.errors import InputError
from glqprof.traces.schema.decode import MODEL_SSM, path_name
from glqprof.workloads.nemotron_h.variants import ExpertVariant, find_variant

TRANSFORMERS, GLQPROF = "transformers", "glqprof"
LOOPS = (TRANSFORMERS, GLQPROF)
SSM_VARIANTS = ("torch", "unfused", "fused")
CACHES = ("dynamic", "static")
SDPA = ("any", "cudnn", "flash", "efficient", "math")


@dataclass(frozen=True)
class How:
    """One way to run the tokens after the prompt; None is the default of the loop, which `settled` fills in.

    ``loop``: transformers' forward, or glqprof's own. ``ssm``: a step of `glqprof_kernels.ssm`, or "model": the
    model's own code. ``cache``: transformers' dynamic one, or static buffers. ``graph``: a CUDA graph a token.
    ``sdpa``: the backend of torch's attention, for transformers' loop. ``shared_stream``: glqprof's loop computes the
    shared expert on a second stream. ``prompt_variant``: the experts of the prompt, of the same bits.
    """

    loop: str = TRANSFORMERS
    ssm: str | None = None
    cache: str | None = None
    graph: bool = False
    sdpa: str = "any"
    shared_stream: bool = False
    prompt_variant: str | None = None

    def settled(self, variant: ExpertVariant, device: str) -> How:
        """With every default filled in; InputError where the choices exclude each other."""
        own = self.loop == GLQPROF
        for option, value, known in (
            ("--loop", self.loop, LOOPS),
            ("--ssm", self.ssm or MODEL_SSM, (MODEL_SSM, *SSM_VARIANTS)),
            ("--cache", self.cache or CACHES[0], CACHES),
            ("--sdpa", self.sdpa, SDPA),
        ):
            if value not in known:
                raise InputError(option, f"{value!r} means nothing; there are {', '.join(known)}")
        if self.graph and device != "cuda":
            raise InputError("--graph", f"needs a CUDA GPU, and the model is on the {device}; leave it out")
        if self.graph and variant.reads_ids:
            raise InputError(
                f"--graph with {variant.name}",
                "this variant reads expert ids on the host in every layer, which no CUDA graph can hold; "
                "give fused, fused-fast, an nvfp4 or bf16 variant, or transformers",
            )
        if (self.graph or own) and self.cache == "dynamic":
            why = "a graph" if self.graph else "glqprof's loop"
            raise InputError("--cache dynamic", f"{why} needs buffers that do not move; leave it out")
        if own and self.sdpa != "any":
            raise InputError(f"--sdpa {self.sdpa}", "is of transformers' loop; glqprof's has a kernel of its own")
        if own and self.ssm == MODEL_SSM:
            raise InputError("--ssm model", f"is transformers' loop; glqprof's has {', '.join(SSM_VARIANTS)}")
        if self.shared_stream and not (own and device == "cuda"):
            raise InputError("--shared-stream", "is of glqprof's loop on a GPU; give --loop glqprof, or leave it out")
        if self.prompt_variant is not None:
            check_prompt_variant(variant, find_variant(self.prompt_variant, "--prompt-variant"))
        default_ssm = "fused" if own else MODEL_SSM
        default_cache = "static" if self.graph or own else "dynamic"
        return replace(self, ssm=self.ssm or default_ssm, cache=self.cache or default_cache)

    def options(self) -> list[str]:
        """The choices as options of `glqprof decode`."""
        given = ["--loop", self.loop] if self.loop != TRANSFORMERS else []
        for option, value in (("--ssm", self.ssm), ("--cache", self.cache), ("--prompt-variant", self.prompt_variant)):
            given += [option, value] if value else []
        given += ["--sdpa", self.sdpa] if self.sdpa != "any" else []
        given += ["--shared-stream"] if self.shared_stream else []
        return [*given, "--graph"] if self.graph else given

    def name(self, variant: str) -> str:
        """The path's name, as results carry it."""
        return path_name(
            variant,
            loop=self.loop,
            ssm=self.ssm or "",
            cache=self.cache or "",
            graph=self.graph,
            sdpa=self.sdpa,
            shared_stream=self.shared_stream,
        )


def check_prompt_variant(variant: ExpertVariant, prompt: ExpertVariant) -> None:
    """InputError unless both have the same bits, so that who reads the prompt cannot be told from the tokens."""
    if (variant.same_bits_as or variant.name) != (prompt.same_bits_as or prompt.name):
        raise InputError(
            f"--prompt-variant {prompt.name}",
            f"has not the bits of {variant.name}, so the decode would be of neither; leave it out",
        )


def parse_path(text: str) -> tuple[str, How]:
    """``VARIANT[:CHOICE...]`` as (variant, how); InputError that names the choices.

    A choice is ``glqprof`` (the loop), ``graph``, ``static`` (the cache), ``shared-stream``, ``ssm=NAME``,
    ``sdpa=NAME`` or ``prompt=VARIANT``.
    """
    variant, *choices = text.split(":")
    find_variant(variant, f"path {text}")
    how = How()
    for choice in choices:
        key, _, value = choice.partition("=")
        if choice == GLQPROF:
            how = replace(how, loop=GLQPROF)
        elif choice == "graph":
            how = replace(how, graph=True)
        elif choice == "static":
            how = replace(how, cache="static")
        elif choice == "shared-stream":
            how = replace(how, shared_stream=True)
        elif key == "ssm" and value:
            how = replace(how, ssm=value)
        elif key == "sdpa" and value:
            how = replace(how, sdpa=value)
        elif key == "prompt" and value:
            how = replace(how, prompt_variant=value)
        else:
            choices_text = "glqprof, graph, static, shared-stream, ssm=NAME, sdpa=NAME, prompt=VARIANT"
            raise InputError(f"path {text}", f"{choice!r} is no choice; there are {choices_text}")
    return variant, how
