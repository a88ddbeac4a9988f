"""The measured kernels: what was run, on which card, how long it took."""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from perfsuite.devices import KernelKind
from perfsuite.devices.model import (
    Card,
    ConvolutionSizes,
    RecurrenceSizes,
    Rules,
    convolution_seconds,
    load_cards,
    product_seconds,
    rates_of,
    recurrence_seconds,
    row_seconds,
)

Predict = Callable[[Card, Rules, Any], Any]  # card, rules, columns → seconds
_OTHER_TITLES = {"NVIDIA H100 80GB HBM3": "h100", "V100": "v100", "P100": "p100", "T4": "t4"}


@dataclass(frozen=True)
class Group:
    """Kernels of one kind on one card, from one source."""

    kind: str
    card: str
    source: str
    columns: Any  # sizes: a row for each size, a column for each kernel
    flops: Any
    moved_bytes: Any
    seconds: Any
    predict: Predict
    precision: str = "float32"
    is_alone: bool = False  # each call was timed by itself, with the way to the card and back

    def predicted(self, card: Card, rules: Rules, alone_seconds: float = 0.0) -> Any:
        """Return the seconds that the rules predict, and what timing a call by itself adds."""
        return self.predict(card, rules, self.columns) + (alone_seconds if self.is_alone else 0.0)

    def thinned(self, most: int) -> "Group":
        """Return at most that many kernels, evenly chosen."""
        chosen = np.unique(np.linspace(0, len(self.seconds) - 1, most).astype(int))
        return self.only(chosen)

    def only(self, chosen: Any) -> "Group":
        """Return some of the kernels, by their places."""
        return replace(
            self,
            columns=self.columns[:, chosen],
            flops=self.flops[chosen],
            moved_bytes=self.moved_bytes[chosen],
            seconds=self.seconds[chosen],
        )


def name_of(device: str) -> str:
    """Return a device's name in the table of cards."""
    titles = {card.title: card.name for card in load_cards().values()}
    return titles[device] if device in titles else _OTHER_TITLES[device]


def read(path: Path) -> list[dict[str, str]]:
    """Return the lines of a file."""
    with path.open(newline="") as text:
        return list(csv.DictReader(text))


def grouped(
    lines: list[dict[str, str]], by: Callable[[dict[str, str]], tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], list[dict[str, str]]]]:
    """Yield the lines of each key."""
    keys: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for line in lines:
        keys.setdefault(by(line), []).append(line)
    yield from keys.items()


def columns(lines: list[dict[str, str]], names: str) -> Any:
    """Return sizes as arrays."""
    return np.array([[float(line[name]) for line in lines] for name in names.split()])


def predict_linear(card: Card, rules: Rules, sizes: Any) -> Any:
    return product_seconds(sizes, rates_of(card, rules.sheet), rules.products)


def products(folder: Path) -> Iterator[Group]:
    """Yield linear layers and batches of products, forward, in FP32 without TF32."""
    for (device, op), lines in grouped(
        read(folder / "gpu_op_times" / "products.csv"), lambda line: (line["device"], line["op"])
    ):
        sizes = columns(lines, "batch rows width contraction")
        seconds = columns(lines, "latency_ms")[0] / 1e3
        work = product_work(sizes)
        yield Group(op, name_of(device), "NeuSight", sizes, *work, seconds, predict_linear, is_alone=True)


def product_work(sizes: Any, element_bytes: int = 4) -> tuple[Any, Any]:
    """Return the FLOPs and the moved bytes of products."""
    batch, m, n, k = sizes
    return 2 * batch * m * n * k, element_bytes * batch * (m * k + k * n + m * n)


def shape_of(line: dict[str, str]) -> dict[str, str]:
    """Return DeepBench's sizes by name."""
    return dict(pair.split("=") for pair in line["shape"].split())


# P100's «fp16 inputs, fp32 math» is left out: torch does not compute so.
_PRECISIONS = {"fp32": ("float32", 4, ""), "fp16 tensor cores": ("float16", 2, ", tensor cores")}


def general_products(folder: Path) -> Iterator[Group]:
    """Yield DeepBench's products: narrow ones, long contractions, all layouts."""
    lines = [line for line in read(folder / "gpu_op_times" / "deepbench.csv") if line["op"] == "gemm"]
    for (device, name), chosen in grouped(lines, lambda line: (line["device"], line["precision"])):
        if name not in _PRECISIONS:
            continue
        precision, element_bytes, suffix = _PRECISIONS[name]
        sizes = columns([{**shape_of(line), "one": "1"} for line in chosen], "one m n k")
        yield Group(
            f"gemm{suffix}",
            name_of(device),
            "DeepBench",
            sizes,
            *product_work(sizes, element_bytes),
            columns(chosen, "forward_ms")[0] / 1e3,
            partial(predict_gemm, precision, element_bytes),
            precision,
        )


def predict_gemm(precision: str, element_bytes: int, card: Card, rules: Rules, sizes: Any) -> Any:
    on = rates_of(card, rules.sheet, precision)
    return product_seconds(sizes, on, rules.products, element_bytes, is_linear=False)


_SIMPLE = ("add", "addu", "mul", "mulu", "div", "divu", "pow", "powu", "relu", "tanh", "gelu")
_TWO_INPUTS = ("add", "mul", "div", "pow")
_ROW_KINDS = {"softmax": KernelKind.SOFTMAX, "ln": KernelKind.LAYER_NORM}


def rows(folder: Path) -> Iterator[Group]:
    """Yield element-wise kernels, softmax and layer norm, forward."""
    lines = read(folder / "gpu_op_times" / "vector.csv")
    for (device, op), chosen in grouped(
        lines, lambda line: (line["device"], "" if line["op"] in _SIMPLE else line["op"])
    ):
        rows, width = columns(chosen, "rows width")
        tensors = np.array([3 if line["op"] in _TWO_INPUTS else 2 for line in chosen])
        kind = _ROW_KINDS.get(op, KernelKind.ELEMENTWISE)
        yield Group(
            kind.value,
            name_of(device),
            "NeuSight",
            np.array([4 * tensors * rows * width, width]),
            0 * rows,
            4 * tensors * rows * width,
            columns(chosen, "latency_ms")[0] / 1e3,
            partial(predict_rows, kind),
            is_alone=True,
        )


def predict_rows(kind: KernelKind, card: Card, rules: Rules, sizes: Any) -> Any:
    moved_bytes, width = sizes
    return row_seconds(kind, moved_bytes, width, rates_of(card, rules.sheet), rules.rows)


_WAYS = ("forward", "by input", "by weight")


def convolutions(folder: Path) -> Iterator[Group]:
    """Yield NeuSight's 3×3 convolutions, forward."""
    lines = read(folder / "gpu_op_times" / "conv.csv")
    for (device,), chosen in grouped(lines, lambda line: (line["device"],)):
        images, into, out, kernel, size, stride, pad = columns(
            chosen, "batch in_channels out_channels kernel input_size stride padding"
        )
        side = np.floor((size + 2 * pad - kernel) / stride) + 1
        sizes = ConvolutionSizes(
            *(images, into, out, size**2, side, side, kernel, kernel, stride**2, np.ones_like(side))
        )
        yield _convolution(name_of(device), "NeuSight", sizes, 0, columns(chosen, "latency_ms")[0] / 1e3)


def general_convolutions(folder: Path) -> Iterator[Group]:
    """Yield DeepBench's convolutions, forward and both gradients."""
    lines = [line for line in read(folder / "gpu_op_times" / "deepbench.csv") if line["op"] == "conv"]
    for (device, precision), chosen in grouped(lines, lambda line: (line["device"], line["precision"])):
        if precision not in _PRECISIONS:
            continue
        w, h, into, images, out, r, s, pad_w, pad_h, stride_w, stride_h = columns(
            [shape_of(line) for line in chosen], "w h c n k s r pad_w pad_h stride_w stride_h"
        )
        height, width = (h + 2 * pad_h - s) // stride_h + 1, (w + 2 * pad_w - r) // stride_w + 1
        sizes = ConvolutionSizes(
            *(images, into, out, w * h, height, width, s, r, stride_w * stride_h, np.ones_like(w))
        )
        for way, name in enumerate(("forward_ms", "backward_input_ms", "backward_weight_ms")):
            known = np.array([line[name].replace(".", "").isdigit() for line in chosen])
            seconds = columns([line for line, is_known in zip(chosen, known, strict=True) if is_known], name)[
                0
            ]
            kept = ConvolutionSizes(*(size[known] for size in sizes))
            yield _convolution(name_of(device), "DeepBench", kept, way, seconds / 1e3, precision)


def _convolution(  # noqa: PLR0917
    card: str, source: str, sizes: ConvolutionSizes, way: int, seconds: Any, precision: str = "fp32"
) -> Group:
    name, element_bytes, suffix = _PRECISIONS[precision]
    return Group(
        f"convolution {_WAYS[way]}{suffix}",
        card,
        source,
        np.array(sizes),
        sizes.flops,
        element_bytes * sizes.elements,
        seconds,
        partial(predict_convolution, (way, name, source == "DeepBench")),
        name,
        is_alone=source == "NeuSight",
    )


def predict_convolution(call: tuple[int, str, bool], card: Card, rules: Rules, sizes: Any) -> Any:
    way, precision, is_bare = call
    on = rates_of(card, rules.sheet, precision)
    return convolution_seconds(
        *(ConvolutionSizes(*sizes), way, on, rules.products, rules.convolutions),
        *(2 if precision == "float16" else 4, is_bare),
    )


_GATES = {"rnn": 1, "gru": 3, "lstm": 4}


def recurrences(folder: Path) -> Iterator[Group]:
    """Yield DeepBench's recurrent layers, forward and both gradients."""
    lines = [
        line
        for line in read(folder / "gpu_op_times" / "deepbench.csv")
        if line["op"] in _GATES and not _is_wrong(line)
    ]
    for (device, precision, op), chosen in grouped(
        lines, lambda line: (line["device"], line["precision"], line["op"])
    ):
        if precision != "fp32":
            continue
        steps, batch, hidden = columns([shape_of(line) for line in chosen], "steps batch hidden")
        # DeepBench has cuDNN take the inputs as they are: no product for them.
        sizes = RecurrenceSizes(steps, batch, 0 * hidden, hidden, np.full_like(hidden, _GATES[op]))
        for way, name in enumerate(("forward_ms", "backward_input_ms", "backward_weight_ms")):
            yield Group(
                f"{op} {_WAYS[way]}",
                name_of(device),
                "DeepBench",
                np.array(sizes),
                sizes.flops,
                4 * (sizes.weights * steps + 2 * steps * batch * hidden),  # weights are read in every step
                columns(chosen, name)[0] / 1e3,
                partial(predict_recurrence, way),
            )


def _is_wrong(line: dict[str, str]) -> bool:
    """Tell what an old library does badly: cuDNN 6 takes up to four times as long for 32 rows as for 64."""
    return line["device"] == "P100" and shape_of(line)["batch"] == "32"


def predict_recurrence(way: int, card: Card, rules: Rules, sizes: Any) -> Any:
    on = rates_of(card, rules.sheet)
    return recurrence_seconds(RecurrenceSizes(*sizes), way, on, rules.products, rules.recurrences)


def all_groups(folder: Path) -> list[Group]:
    """Return everything that was measured."""
    readers = (products, general_products, rows, convolutions, general_convolutions, recurrences)
    return [group for reader in readers for group in reader(folder)]
