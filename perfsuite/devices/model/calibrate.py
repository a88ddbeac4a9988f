"""Measure some operators on the device at hand and describe it as a card the model can use."""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from perfsuite.cpu_name import cpu_name
from perfsuite.devices.cuda.device import open_cuda
from perfsuite.devices.kernels import VIEW, Event, Kernel, Launch
from perfsuite.devices.model import workloads
from perfsuite.devices.model.cards import Card, find_card
from perfsuite.devices.model.fitting import Row, fit_corrections
from perfsuite.devices.model.roofline import RULES, product_class, seconds
from perfsuite.devices.model.timeline import VIEW_SHARE, Timeline
from perfsuite.devices.model.watcher import Watcher
from perfsuite.devices.model.window import ModelWindow
from perfsuite.errors import DeviceMissing

_BATCH_SECONDS = 4e-3  # short calls are timed many at once
_BATCHES = 7
_ROUNDS = 300
_TINY, _REAL = (2, 16, 12), (256, 128, 12)  # rows, width and steps of a training
_KEPT = 24  # results alive at once
_PASSES = 3  # over all operators: a busy moment of the machine hits each of them once


def calibrate_cpu(name: str) -> Card:
    """Return this processor as a card, with what torch runs on it now: its threads."""
    card = Card(
        name=name,
        title=f"{cpu_name()} ({torch.get_num_threads()} threads)",
        float32=1e9,
        bandwidth=1e9,
        sms=torch.get_num_threads(),
        memory_bytes=1e12,
        source=f"measured by perfsuite calibrate, torch {torch.__version__}",
        is_host=True,
        launch_seconds=0.0,
        sync_seconds=0.0,
        dispatch_seconds=0.0,
        curves=_curves("cpu", _nothing),
        products=_product_costs("cpu", _nothing),
    )
    return _in_context(replace(card, dispatch_seconds=_dispatch_seconds(card)))


def calibrate_cuda(sheet: Card, name: str, index: int) -> Card:
    """Return a card's sheet corrected by what this card does."""
    device = torch.device("cuda", index)

    def wait() -> None:
        torch.cuda.synchronize(device)  # the CPU waits here, around each batch of calls

    rows = []
    for kernel, call in _watched_calls(device):
        rows.append(Row(kernel, usual_seconds(call, wait)))
    return replace(
        fit_corrections(sheet, rows, RULES),
        name=name,
        source=f"{sheet.source}; measured by perfsuite calibrate, torch {torch.__version__}",
    )


def usual_seconds(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    """Return the median time of a call: the best one would promise what no whole step keeps."""
    # On one thread its own clock stands still while another process has the core.
    clock = time.thread_time if torch.get_num_threads() == 1 and wait is _nothing else time.perf_counter
    kept: deque[Any] = deque([call()], maxlen=_KEPT)  # a training keeps its results: memory is not warm
    wait()
    count, times = 1, []
    for _ in range(_BATCHES):
        started = clock()  # the clock runs from here
        for _ in range(count):
            kept.append(call())
        wait()
        times.append((clock() - started) / count)
        count = max(1, min(int(_BATCH_SECONDS / max(times[-1], 1e-7)), _ROUNDS))
    return statistics.median(times[1:])


def _nothing() -> None:
    """Wait for nothing: CPU work is over when the call returns."""


def _watched_calls(device: Any) -> list[tuple[Kernel, Callable[[], Any]]]:
    """Return every call with the kernel it becomes, as the model will see it."""
    found = []
    calls = [call for _, call in workloads.products(device)] + list(workloads.row_calls(device))
    for call in calls:
        kernels = kernels_of(call)
        if kernels:
            # A call may make its own arguments; the last kernel is the one that was meant.
            found.append((kernels[-1], call))
    return found


def kernels_of(call: Callable[[], Any]) -> list[Kernel]:
    """Return the kernels of one call."""
    return [event.kernel for event in events_of(call) if isinstance(event, Launch)]


def events_of(call: Callable[[], Any]) -> Sequence[Event]:
    """Return what one call does."""
    watcher = Watcher(Path.cwd())
    with watcher:
        window = ModelWindow(watcher, Card("", "", 1e9, 1e9, 1, 1e12, ""))
        call()
        window.mark()
        window.close()
    return window.steps[0]


def _curves(device: Any, wait: Callable[[], None]) -> dict[str, tuple[tuple[float, float], ...]]:
    """Return operator → (size, seconds) at the measured sizes."""
    points: dict[str, dict[float, list[float]]] = {}
    for _ in range(_PASSES):
        for call in workloads.row_calls(device):
            kernel = max(kernels_of(call), key=lambda entry: (entry.flops, entry.moved_bytes))
            size = kernel.flops or float(kernel.moved_bytes)
            points.setdefault(kernel.op, {}).setdefault(size, []).append(usual_seconds(call, wait))
    return {
        op: tuple((size, statistics.median(times)) for size, times in sorted(found.items()))
        for op, found in points.items()
    }


def _product_costs(device: Any, wait: Callable[[], None]) -> dict[str, tuple[float, ...]]:
    """Return class → what a product costs: once, per item of the batch, per FLOP, per byte."""
    parts: dict[str, list[list[float]]] = {}
    times: dict[str, list[float]] = {}
    for (batch, m, n, k), call in workloads.products(device):
        kind = product_class((batch, m, n, k))
        parts.setdefault(kind, []).append(
            [1.0, batch, 2.0 * batch * m * n * k, 4.0 * batch * (m * k + k * n + m * n)]
        )
        found = statistics.median(usual_seconds(call, wait) for _ in range(_PASSES))
        times.setdefault(kind, []).append(found)
    return {name: _positive_fit(np.array(parts[name]), np.array(times[name])) for name in parts}


def _positive_fit(parts: Any, times: Any) -> tuple[float, ...]:
    """Fit shares of the times by coefficients of at least 0, each row's relative error counting alike."""
    X = parts / times[:, None]
    scale = np.linalg.norm(X, axis=0)
    X = X / scale
    found = np.zeros(X.shape[1])
    for _ in range(2000):  # coordinate descent: few unknowns, no solver needed
        for column in range(X.shape[1]):
            rest = 1.0 - X @ found + X[:, column] * found[column]
            found[column] = max(float(X[:, column] @ rest), 0.0)
    return tuple(float(value) for value in found / scale)


def _dispatch_seconds(card: Card) -> float:
    """Return what autograd and Python add to each operator of a training step; a view counts half."""
    step = workloads.training("cpu", *_TINY)
    events = events_of(step)
    alone = math.fsum(seconds(event.kernel, card) for event in events if isinstance(event, Launch))
    operators = math.fsum(VIEW_SHARE if event is VIEW else 1.0 for event in events)
    return max(usual_seconds(step, _nothing) - alone, 0.0) / operators


def _in_context(card: Card) -> Card:
    """Return the card with its kernels as dear as they are within a step."""
    step = workloads.training("cpu", *_REAL)
    timeline = Timeline(card)
    timeline.play(events_of(step))
    beside = timeline.result().seconds
    kernels = math.fsum(seconds(event.kernel, card) for event in events_of(step) if isinstance(event, Launch))
    factor = max((usual_seconds(step, _nothing) - (beside - kernels)) / kernels, 1.0)
    return replace(
        card,
        curves={
            # A recurrence is a whole layer's work in one operator, alone as it is in a step.
            op: curve if "rnn_layer" in op else tuple((size, factor * took) for size, took in curve)
            for op, curve in card.curves.items()
        },
        products={name: tuple(factor * cost for cost in row) for name, row in card.products.items()},
    )


def calibrate(name: str, device: str, sheet: str | None, root: Path) -> Card:
    """Measure the device asked for."""
    if device == "cpu":
        return calibrate_cpu(name)
    if sheet is None:
        raise DeviceMissing("name the card's sheet with --sheet: what was measured corrects it")
    index = int(device.partition(":")[2] or 0)
    open_cuda(index)  # says why where there is none
    return calibrate_cuda(find_card(sheet, root), name, index)
