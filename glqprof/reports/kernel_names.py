"""Shorten demangled kernel names to what tells one kernel from another."""

from __future__ import annotations

import re

_CASTS = re.compile(r"\((?:int|unsigned int|bool|long|unsigned long|unsigned char|short)\)(?=-?\d)")
_LAMBDA = re.compile(r"::\[lambda\([^\]]*\]|::\{lambda\([^}]*\}(?:::operator\(\))?|::operator ?\(\) ?\(\) const(?=::)?")
_NAMESPACES = re.compile(r"(?:at::native::|at::cuda::detail::|at::cuda::|c10::|std::|cutlass::|cuda::)+")
_FUNCTOR = re.compile(
    r"(\w+(?:_kernel_cuda|Functor\w*|Ops|_kernel_impl|functor|_kernel|scalar|KernelImpl))(?=[<(>,: ]|$)"
)
_RETURNS = re.compile(r"(?<=[<, ])void (?=\w)")  # of functions among the template arguments; a ``void *`` stays
_ANONYMOUS = re.compile(r"<unnamed>::|\(anonymous namespace\)::")
# These only carry another functor, which is what the kernel does.
_CARRIERS = ("gpu_kernel", "ReduceOp", "func_wrapper", "gpu_index", "BinaryFunctor", "AUnaryFunctor", "BUnaryFunctor")


def short_kernel_name(name: str) -> str:
    """``void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, …>(int, …)`` becomes
    ``vectorized_elementwise_kernel<FillFunctor<float>>``: the kernel and, for PyTorch's launchers, what they run."""
    text = _ANONYMOUS.sub("", _CASTS.sub("", _RETURNS.sub("", name.strip().removeprefix("void "))))
    head, arguments = _split(text)
    head = _NAMESPACES.sub("", head)
    if not arguments:
        return head
    inner = _NAMESPACES.sub("", _LAMBDA.sub("", arguments))
    if head.endswith(
        ("elementwise_kernel", "elementwise_kernel_with_index", "reduce_kernel", "index_elementwise_kernel")
    ):
        found = _FUNCTOR.findall(inner)
        operation = next((f for f in found if not f.startswith(_CARRIERS)), "")
        if operation:
            types = re.findall(r"\b(float|double|BFloat16|Half|bool|long)\b", inner.partition(operation)[2])
            types = types or re.findall(r"\b(float|double|BFloat16|Half|bool|long)\b", inner)
            return f"{head}<{operation}{'<' + types[0] + '>' if types else ''}>"
    return f"{head}<{inner}>" if len(inner) <= 40 else f"{head}<{inner[:37]}…>"


def _split(text: str) -> tuple[str, str]:
    """The name before its template arguments and the arguments, without the parameter list."""
    depth = 0
    opened = -1
    for i, mark in enumerate(text):
        if mark == "<":
            if depth == 0 and opened < 0:
                opened = i
            depth += 1
        elif mark == ">" and depth:
            depth -= 1
            if depth == 0:
                rest = text[i + 1 :]
                if rest.startswith("::"):  # Class<…>::kernel: the name goes on
                    opened = -1
                    continue
                return text[:opened], text[opened + 1 : i]
        elif mark == "(" and depth == 0:
            return text[:i], ""
    return text, ""
