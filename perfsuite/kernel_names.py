"""Kernels' names, short enough to read and to store: `vectorized_elementwise_kernel<MulFunctor>`."""

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cache

_LONGEST = 90
# They carry the function that says what is computed; by themselves they say nothing.
_WRAPPERS = frozenset(
    {"AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor", "UnaryFunctor", "ReduceOp", "func_wrapper_t"}
    | {"gpu_kernel_impl", "gpu_kernel_impl_nocast"}
)
_FUNCTION = re.compile(r"[A-Za-z_]\w*(?:Functor|functor|Kernel|kernel|Ops?\b)\w*")
_CALLED = re.compile(r"([A-Za-z_]\w*)(?:<[^<>()]*>)?\(")  # the function a lambda belongs to


@cache
def short_name(name: str) -> str:
    """Return a kernel's name without types and namespaces, with the function it was made for, if any."""
    text = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    head = re.split(r"[<(]", text, maxsplit=1)[0]
    inner = _template(text[len(head) :])
    functions = [word for word in _FUNCTION.findall(inner) if word not in _WRAPPERS]
    functions += [word for word in _CALLED.findall(inner) if word not in ("operator", "lambda")]
    base = head.rpartition("::")[2].strip()
    short = f"{base}<{functions[0]}>" if functions else base
    return short if len(short) <= _LONGEST else f"{short[: _LONGEST - 1]}…"


def _template(text: str) -> str:
    """Return what stands in the angle brackets that a text begins with; a long name may lack their end."""
    if not text.startswith("<"):
        return ""
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign == "<") - (sign == ">")
        if depth == 0:
            return text[1:at]
    return text[1:]


def totals(launched: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the launches per step by short name: instances of a template are one kernel."""
    found: defaultdict[str, float] = defaultdict(float)
    for name, at in launched.items():
        found[short_name(name)] += sum(at.values())
    # Means of a few steps do not add up exactly, and a stored 669.9999999999999 is 670.
    return {name: round(count, 6) for name, count in sorted(found.items())}
