"""Three small fixed workloads that tell a slower machine from slower code: products, copies, tiny ops."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from perfsuite.devices.torch_access import load_torch

Workload = Callable[[], object]
_SIDE = 256  # of the square matrices: 0.2 ms a product on one core
_PRODUCTS = 5
_COPIED = 4_000_000  # floats; 16 MB leave every cache
_TINY_OPERATIONS = 500


def references() -> Mapping[str, Workload]:
    """Return the workloads, each of about a millisecond; none without torch."""
    torch = load_torch()
    if torch is None:
        return {}
    matrix, source, vector = torch.ones(_SIDE, _SIDE), torch.ones(_COPIED), torch.ones(8)
    return {
        "step_in_products": partial(_products, matrix),
        "step_in_copies": partial(torch.empty_like(source).copy_, source),
        "step_in_tiny_ops": partial(_tiny_operations, vector),
    }


def _products(matrix: Any) -> None:
    for _ in range(_PRODUCTS):
        matrix @ matrix


def _tiny_operations(vector: Any) -> None:
    for _ in range(_TINY_OPERATIONS):
        vector = vector + 1
