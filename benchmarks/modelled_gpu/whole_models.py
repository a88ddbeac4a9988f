"""Whole models, predicted from their configurations: every kernel of a pass forward and back in eager torch.

The models are Hugging Face's BERT, GPT-2 (also with GPT-3's sizes) and OPT with eager attention in FP32, as
NeuSight measured them: no optimizer, gradients added to those of the step before. No constant is
fitted to them, so every model is one that was left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.modelled_gpu.fit import CARDS, Fitted
from benchmarks.modelled_gpu.tables import FIXED_BANDWIDTH, FIXED_COMPUTE, FIXED_SECONDS
from benchmarks.modelled_gpu.truth import name_of, read
from perfsuite.devices import KernelKind
from perfsuite.devices.model import Card, Rules, product_seconds, rates_of, row_seconds

_NUMBER_BYTES = 4


@dataclass(frozen=True)
class Shape:
    """What a configuration says."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    family: str  # bert, gpt or opt


# The measurements come without configurations: these are the published ones, but for GPT-3 XL. Its paper has
# a width of 2,048 beside 24 heads of 128; only the 3,072 of the heads agrees with the measured times.
MODELS = {
    "bert_large": Shape(24, 1024, 16, 30522, "bert"),
    "gpt2_large": Shape(36, 1280, 20, 50257, "gpt"),
    "gpt3_xl": Shape(24, 3072, 24, 50257, "gpt"),
    "gpt3_27": Shape(32, 2560, 32, 50257, "gpt"),
    "opt_13": Shape(24, 2048, 32, 50272, "opt"),
}


@dataclass
class Kernels:
    """The kernels of a pass: products, and what moves memory by kind."""

    products: list[tuple[int, int, int, int]] = field(default_factory=list)
    moves: list[tuple[KernelKind, float, int]] = field(default_factory=list)  # kind, bytes, width of a row

    def product(self, batch: int, m: int, n: int, k: int, times: int = 1) -> None:
        self.products += [(batch, m, n, k)] * times

    def move(self, elements: float, tensors: float, times: int = 1) -> None:
        """Add element-wise kernels that read and write that many tensors."""
        self.moves += [(KernelKind.ELEMENTWISE, _NUMBER_BYTES * elements * tensors, 0)] * times

    def rows(self, kind: KernelKind, elements: float, tensors: float, width: int) -> None:
        self.moves.append((kind, _NUMBER_BYTES * elements * tensors, width))

    def add(self, other: "Kernels") -> "Kernels":
        return Kernels([*self.products, *other.products], [*self.moves, *other.moves])

    def roofline_seconds(self, card: Card, compute: float, bandwidth: float, start_seconds: float) -> float:
        """Return the larger of FLOPs and bytes of each, at these shares of the sheet."""
        work = [(2.0 * b * m * n * k, b * (m * k + k * n + m * n)) for b, m, n, k in self.products]
        times = [max(flops / compute / card.float32, _NUMBER_BYTES * size / bandwidth / card.bandwidth)
                 for flops, size in work]  # fmt: skip
        times += [size / bandwidth / card.bandwidth for _, size, _ in self.moves]
        return sum(times) + start_seconds * len(times)

    def seconds(self, card: Card, rules: Rules) -> float:
        """Return how long they take one after the other."""
        on = rates_of(card, rules.sheet)
        columns = list(zip(*self.products, strict=True))
        total = float(product_seconds(columns, on, rules.products).sum())
        return total + sum(
            float(row_seconds(kind, size, width, on, rules.rows)) for kind, size, width in self.moves
        )


def forward(shape: Shape, sequence: int, batch: int, is_training: bool) -> Kernels:
    """Return the kernels of a forward pass."""
    kernels = Kernels()
    rows, width = sequence * batch, shape.width
    kernels.move(rows * width, 3)  # embeddings, added up
    for _ in range(shape.layers):
        _attention(kernels, shape, sequence, batch, is_training)
        _feed_forward(kernels, shape, rows, is_training)
    if shape.family in ("gpt", "opt"):
        kernels.rows(KernelKind.LAYER_NORM, rows * width, 2, width)
        kernels.product(1, rows, shape.vocabulary, width)
    elif is_training:
        kernels.product(1, rows, width, width)
        kernels.move(rows * width, 2)
        kernels.rows(KernelKind.LAYER_NORM, rows * width, 2, width)
        kernels.product(1, rows, shape.vocabulary, width)
    return kernels


def _attention(kernels: Kernels, shape: Shape, sequence: int, batch: int, is_training: bool) -> None:
    rows, width, heads = sequence * batch, shape.width, batch * shape.heads
    scores = heads * sequence * sequence
    if shape.family == "gpt":
        kernels.product(1, rows, 3 * width, width)
    else:
        kernels.product(1, rows, width, width, 3)
    kernels.move(rows * width, 2, 4)  # heads are laid out one after the other, and back
    kernels.product(heads, sequence, sequence, width // shape.heads)
    kernels.move(scores, 2)  # scaled; OPT compares with the least number instead
    kernels.move(scores, 2)  # masked
    kernels.rows(KernelKind.SOFTMAX, scores, 2, sequence)
    if is_training:
        kernels.move(scores, 2.25)
    kernels.product(heads, sequence, width // shape.heads, sequence)
    kernels.product(1, rows, width, width)
    _residual(kernels, rows, width, is_training)


def _feed_forward(kernels: Kernels, shape: Shape, rows: int, is_training: bool) -> None:
    width = shape.width
    kernels.product(1, rows, 4 * width, width)
    if shape.family == "gpt":
        kernels.move(rows * 4 * width, 2, 6)  # GELU by tanh, an operator at a time
        kernels.move(rows * 4 * width, 3, 2)
    else:
        kernels.move(rows * 4 * width, 2)
    kernels.product(1, rows, width, 4 * width)
    _residual(kernels, rows, width, is_training)


def _residual(kernels: Kernels, rows: int, width: int, is_training: bool) -> None:
    if is_training:
        kernels.move(rows * width, 2.25)
    kernels.move(rows * width, 3)
    kernels.rows(KernelKind.LAYER_NORM, rows * width, 2, width)


def backward(shape: Shape, sequence: int, batch: int) -> Kernels:
    """Return the kernels of a backward pass, from the loss on."""
    kernels = Kernels()
    rows, width = sequence * batch, shape.width
    kernels.rows(KernelKind.SOFTMAX, rows * shape.vocabulary, 3, shape.vocabulary)
    _linear_backward(kernels, rows, width, shape.vocabulary)
    for _ in range(shape.layers):
        _feed_forward_backward(kernels, shape, rows)
        _attention_backward(kernels, shape, sequence, batch)
    kernels.move(shape.vocabulary * width, 1, 2)  # the embedding's gradient: zeros, then added up
    kernels.move(shape.vocabulary * width, 3, 2)
    return kernels


def _linear_backward(kernels: Kernels, rows: int, into: int, out: int) -> None:
    kernels.product(1, rows, into, out)
    kernels.product(1, out, into, rows)
    kernels.move(rows * out, 1)  # the bias's gradient
    kernels.move(into * out, 3)  # added to the gradient of the step before


def _feed_forward_backward(kernels: Kernels, shape: Shape, rows: int) -> None:
    width, wide = shape.width, rows * 4 * shape.width
    _residual_backward(kernels, rows, width)
    _linear_backward(kernels, rows, 4 * width, width)
    if shape.family == "gpt":
        kernels.move(wide, 3, 7)  # products' and tanh's gradients, and three that meet in the input
        kernels.move(wide, 2, 5)
    else:
        kernels.move(wide, 3)
    _linear_backward(kernels, rows, width, 4 * width)


def _attention_backward(kernels: Kernels, shape: Shape, sequence: int, batch: int) -> None:
    rows, width, heads = sequence * batch, shape.width, batch * shape.heads
    scores, head = heads * sequence * sequence, width // shape.heads
    _residual_backward(kernels, rows, width)
    _linear_backward(kernels, rows, width, width)
    kernels.product(heads, sequence, sequence, head)
    kernels.product(heads, sequence, head, sequence, 3)
    kernels.move(scores, 2.25)  # dropout
    kernels.rows(KernelKind.SOFTMAX, scores, 3, sequence)
    kernels.move(scores, 2, 2)  # mask and scale
    kernels.move(rows * width, 2, 4)
    if shape.family == "gpt":
        _linear_backward(kernels, rows, width, 3 * width)
    else:
        for _ in range(3):
            _linear_backward(kernels, rows, width, width)
        kernels.move(rows * width, 3, 2)


def _residual_backward(kernels: Kernels, rows: int, width: int) -> None:
    kernels.move(rows * width, 2.25)
    kernels.move(rows * width, 3)
    kernels.rows(KernelKind.LAYER_NORM, rows * width, 3, width)
    kernels.rows(KernelKind.LAYER_NORM, rows * width, 2, width)  # the gradients of its weights


@dataclass(frozen=True)
class Compared:
    """A measured pass and its prediction."""

    card: str
    model: str
    mode: str
    seconds: float
    predicted: float
    plain: float  # by a roofline of the sheet
    fixed: float  # by one of fixed efficiencies

    @property
    def error(self) -> float:
        """Return the error as a share of the measured time; above 0 the prediction is too long."""
        return self.predicted / self.seconds - 1


def compare(folder: Path, left_out: Mapping[str, Fitted]) -> Iterator[Compared]:
    """Yield every measured model whose configuration is known, predicted by rules that never saw its card."""
    for line in read(folder / "gpu_model_times" / "neusight.csv"):
        shape, name = MODELS.get(line["model"]), name_of(line["device"])
        if shape is None:
            continue
        sequence, batch, is_training = int(line["sequence"]), int(line["batch"]), line["mode"] == "train"
        rules, card = left_out[name].rules, CARDS[name]
        kernels = forward(shape, sequence, batch, is_training)
        if is_training:
            kernels = kernels.add(backward(shape, sequence, batch))
        yield Compared(
            *(name, line["model"], line["mode"], float(line["total_ms"]) / 1e3, kernels.seconds(card, rules)),
            kernels.roofline_seconds(card, 1.0, 1.0, 0.0),
            kernels.roofline_seconds(card, FIXED_COMPUTE, FIXED_BANDWIDTH, FIXED_SECONDS),
        )


def print_models(found: Sequence[Compared]) -> None:
    """Print every model, then the medians and the worst."""
    print("\n| card, left out | model | pass | measured | predicted | error |\n|---|---|---|---|---|---|")
    for entry in found:
        times = f"{1e3 * entry.seconds:.0f} ms | {1e3 * entry.predicted:.0f} ms | {100 * entry.error:+.1f} %"
        print(f"| {entry.card} | {entry.model} | {entry.mode} | {times} |")
    print("\n| pass | rows | method | median | worst |\n|---|---|---|---|---|")
    for mode in ("inf", "train"):
        chosen = [entry for entry in found if entry.mode == mode]
        for method in ("plain", "fixed", "predicted"):
            errors = [100 * abs(getattr(entry, method) / entry.seconds - 1) for entry in chosen]
            print(f"| {mode} | {len(errors)} | {method} | {median(errors):.1f} % | {max(errors):.1f} % |")
    print("\nPublished: NeuSight 2.3 % at best, Habitat 11.8 % (their own figures and rows).")
