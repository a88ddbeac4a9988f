"""Measure operators on this machine's device and describe it as a card the model can use."""

import json
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from perfsuite.devices.kernels import VIEW, Event, Kernel, Launch
from perfsuite.devices.model import workloads
from perfsuite.devices.model.cards import PROJECT_FILE, Card
from perfsuite.devices.model.fitting import Row, fit_corrections
from perfsuite.devices.model.roofline import product_class, seconds, sheet_seconds
from perfsuite.devices.model.timeline import VIEW_SHARE, Timeline
from perfsuite.devices.model.watcher import Watcher
from perfsuite.devices.model.window import ModelWindow
from perfsuite.devices.protocol import Device
from perfsuite.errors import DeviceMissing
from perfsuite.host import cpu_name

_BATCH_SECONDS = 4e-3  # short calls are timed in batches
_BATCHES = 7
_ROUNDS = 300
_TINY, _REAL = (2, 16, 12), (256, 128, 12)  # rows, width and steps of a training
_KEPT = 24  # results alive at once
_PASSES = 3  # over all operators: a busy moment of the machine hits each operator at most once


def render(card: Card) -> str:
    """Return a card as a TOML table."""
    lines = [f"[{_key(card.name)}]"]
    tables: list[str] = []
    for item in fields(card):
        value = getattr(card, item.name)
        if item.name == "name" or value is None or value == item.default:
            continue
        if isinstance(value, dict):
            if value:
                tables.append(f"\n[{_key(card.name)}.{item.name}]")
                tables += [f"{_key(key)} = {_value(entry)}" for key, entry in sorted(value.items())]
        else:
            lines.append(f"{item.name} = {_value(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def _key(text: str) -> str:
    return json.dumps(text)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return f"[{', '.join(_value(entry) for entry in value)}]"
    return (
        json.dumps(value, ensure_ascii=False)
        if isinstance(value, str)
        else f"{value:.6g}"
        if isinstance(value, float)
        else str(value)
    )


def write(card: Card, root: Path) -> Path:
    """Add or replace a card in the project's file."""
    path = root / PROJECT_FILE
    try:
        text = path.read_text("utf-8") if path.exists() else ""
        path.write_text(_without(text, card.name) + render(card), "utf-8")
    except OSError as error:
        raise DeviceMissing(f"{path} was not written: {error.strerror}") from None
    return path


def _without(text: str, name: str) -> str:
    """Return the file's text without an older entry of that name."""
    kept, is_old = [], False
    for line in text.splitlines(keepends=True):
        if line.startswith("["):
            head = line.strip().strip("[]").split(".")[0].strip('"')
            is_old = head == name
        if not is_old:
            kept.append(line)
    body = "".join(kept).rstrip("\n")
    return f"{body}\n\n" if body else ""


def calibrate_cpu(name: str) -> Card:
    """Return this processor as a card, with torch's current number of threads."""
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


def calibrate_card(sheet: Card, name: str, device: Device) -> Card:
    """Return a card's sheet, corrected by measurements on this card."""
    if not device.torch_name.startswith("cuda"):
        raise DeviceMissing(f"{device.name} cannot be calibrated: name cpu, cuda or cuda:N")
    rows = []
    for kernel, call in _watched_calls(torch.device(device.torch_name)):
        device.learn(call)
        rows.append(Row(kernel, usual_seconds(call, device.wait)))  # the CPU waits around each batch of calls
    is_emulated = device.modelled
    how = "predicted on an emulated card, not measured," if is_emulated else "measured"
    return replace(
        fit_corrections(sheet, rows, partial(sheet_seconds, card=sheet)),
        name=name,
        is_emulated=is_emulated,
        source=f"{sheet.source}; {how} by perfsuite calibrate, torch {torch.__version__}",
    )


def usual_seconds(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    """Return the median time of a call: the minimum would promise what no whole step reaches."""
    # With a single thread, its CPU clock stands still while another process has the core.
    clock = time.thread_time if torch.get_num_threads() == 1 and wait is _nothing else time.perf_counter
    kept: deque[Any] = deque([call()], maxlen=_KEPT)  # a training keeps its results: its memory is cold
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
    """Return at once: CPU work is finished when the call returns."""


def _watched_calls(device: Any) -> list[tuple[Kernel, Callable[[], Any]]]:
    """Return every call with the kernel that the model makes of it."""
    watched = []
    calls = [call for _, call in workloads.products(device)] + list(workloads.row_calls(device))
    calls += workloads.dense_convolutions(device)
    for call in calls:
        kernels = kernels_of(call)
        if kernels:
            # A call may create its arguments; the last kernel is the one to measure.
            watched.append((kernels[-1], call))
    return watched


def kernels_of(call: Callable[[], Any]) -> list[Kernel]:
    """Return the kernels of a call."""
    return [event.kernel for event in events_of(call) if isinstance(event, Launch)]


def events_of(call: Callable[[], Any]) -> Sequence[Event]:
    """Return the events of a call."""
    watcher = Watcher(Path.cwd())
    watcher.later.is_off = True  # the call runs on a real card
    with watcher:
        window = ModelWindow(watcher, Card("", "", 1e9, 1e9, 1, 1e12, ""))
        call()
        window.mark()
        window.close()
    return window.steps[0]


def _curves(device: Any, wait: Callable[[], None]) -> dict[str, tuple[tuple[float, float], ...]]:
    """Return operator → (size, seconds) for the measured sizes."""
    points: dict[str, dict[float, list[float]]] = {}
    for _ in range(_PASSES):
        for call in workloads.row_calls(device):
            kernel = max(kernels_of(call), key=lambda entry: (entry.flops, entry.moved_bytes))
            size = kernel.flops or float(kernel.moved_bytes)
            points.setdefault(kernel.op, {}).setdefault(size, []).append(usual_seconds(call, wait))
    return {
        op: tuple((size, statistics.median(times)) for size, times in sorted(sizes.items()))
        for op, sizes in points.items()
    }


def _product_costs(device: Any, wait: Callable[[], None]) -> dict[str, tuple[float, ...]]:
    """Return class → the costs of a product: once, per item of the batch, per FLOP, per byte."""
    parts: dict[str, list[list[float]]] = {}
    times: dict[str, list[float]] = {}
    for (batch, m, n, k), call in workloads.products(device):
        kind = product_class((batch, m, n, k))
        parts.setdefault(kind, []).append(
            [1.0, batch, 2.0 * batch * m * n * k, 4.0 * batch * (m * k + k * n + m * n)]
        )
        median = statistics.median(usual_seconds(call, wait) for _ in range(_PASSES))
        times.setdefault(kind, []).append(median)
    return {name: _positive_fit(np.array(parts[name]), np.array(times[name])) for name in parts}


def _positive_fit(parts: Any, times: Any) -> tuple[float, ...]:
    """Fit the times by coefficients of at least 0, with equal weight for each row's relative error."""
    X = parts / times[:, None]
    scale = np.linalg.norm(X, axis=0)
    X = X / scale
    coefficients = np.zeros(X.shape[1])
    for _ in range(2000):  # coordinate descent: few unknowns, no solver needed
        for column in range(X.shape[1]):
            rest = 1.0 - X @ coefficients + X[:, column] * coefficients[column]
            coefficients[column] = max(float(X[:, column] @ rest), 0.0)
    return tuple(float(value) for value in coefficients / scale)


def _dispatch_seconds(card: Card) -> float:
    """Return the time autograd and Python add to each operator of a training step; a view counts half."""
    step = workloads.training("cpu", *_TINY)
    events = events_of(step)
    alone = math.fsum(seconds(event.kernel, card) for event in events if isinstance(event, Launch))
    operators = math.fsum(VIEW_SHARE if event is VIEW else 1.0 for event in events)
    return max(usual_seconds(step, _nothing) - alone, 0.0) / operators


def _in_context(card: Card) -> Card:
    """Return the card with its kernels as slow as they are within a step."""
    step = workloads.training("cpu", *_REAL)
    timeline = Timeline(card)
    timeline.play(events_of(step))
    predicted = timeline.result().seconds
    kernels = math.fsum(seconds(event.kernel, card) for event in events_of(step) if isinstance(event, Launch))
    factor = max((usual_seconds(step, _nothing) - (predicted - kernels)) / kernels, 1.0)
    return replace(
        card,
        curves={
            # A recurrence is a whole layer in one operator: as fast alone as in a step.
            op: curve if "rnn_layer" in op else tuple((size, factor * spent) for size, spent in curve)
            for op, curve in card.curves.items()
        },
        products={name: tuple(factor * cost for cost in row) for name, row in card.products.items()},
    )
