"""How long a recurrent layer takes in cuDNN: one product for all inputs, then one for every time step.

The steps follow each other, so each costs its product and what starts and ends it; the weights' gradients
are one product for all steps again. cuDNN's persistent kernels, which torch takes for some layers in half
precision, are not modelled.
"""

from typing import Any, NamedTuple

import numpy as np

from perfsuite.devices.model.products import corner, product_seconds, tiled_seconds
from perfsuite.devices.model.rules import ProductRule, RecurrenceRule
from perfsuite.devices.model.sustained import Rates
from perfsuite.devices.problems import BY_INPUT, FORWARD


class RecurrenceSizes(NamedTuple):
    """The sizes of one layer and direction: numbers, or an array for each."""

    steps: Any
    batch: Any
    inputs: Any
    hidden: Any
    gates: Any  # 1 of a plain RNN, 3 of a GRU, 4 of an LSTM

    @property
    def weights(self) -> Any:
        """Return the numbers that multiply."""
        return self.gates * self.hidden * (self.inputs + self.hidden)

    @property
    def flops(self) -> Any:
        """Return the operations of one pass."""
        return 2.0 * self.steps * self.batch * self.weights


def recurrence_seconds(  # noqa: PLR0917
    sizes: RecurrenceSizes,
    way: int,
    on: Rates,
    products: ProductRule,
    rule: RecurrenceRule,
    element_bytes: int = 4,
) -> Any:
    """Return the seconds of a layer: forward, or the gradients of its inputs or of its weights."""
    steps, batch, inputs, hidden, gates = (np.asarray(size, float) for size in sizes)
    width, rows, one = gates * hidden, steps * batch, np.ones_like(hidden)

    def product(m: Any, n: Any, k: Any) -> Any:
        took = product_seconds((one, m, n, k), on, products, element_bytes, is_linear=False)
        return np.where(m * n * k > 0, took, 0.0)  # a layer may take its inputs as they are

    # A step reads all weights once, in order: nothing moves memory faster.
    weights_seconds = element_bytes * width * hidden / on.simple_bandwidth
    if way == FORWARD:
        compute = tiled_seconds((one, batch, width, hidden), on, products)
        step = corner(compute, weights_seconds, products.sharpness) + rule.step_seconds
        return product(rows, width, inputs) + steps * step
    if way == BY_INPUT:
        compute = tiled_seconds((one, batch, hidden, width), on, products)
        step = corner(compute, weights_seconds, products.sharpness) + rule.backward_step_seconds
        return product(rows, inputs, width) + steps * step
    return (product(width, inputs, rows) + product(width, hidden, rows)) / rule.by_weight
