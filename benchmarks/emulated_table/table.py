"""The emulated and the modelled half beside each other: which trainings agree, and why others cannot."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STORED = Path(__file__).with_name("emulated.json")
COLUMNS = {
    "kernels": "kernels",
    "d2d_copies": "copies on the card",
    "h2d_copies": "to the card",
    "d2h_copies": "to the host",
    "syncs": "syncs",
    "peak_bytes": "peak bytes",
}
_RECURRENT = (
    "the emulated card takes one call of cuDNN for one kernel; what cuDNN launches inside and keeps for "
    "backward is in no header, and the model goes by the operators of the CPU"
)
_BRANCH = (
    "its cell asks whether a state is all zeros, and an emulated card has no values: another branch runs"
)
REASONS = {
    **dict.fromkeys(("RNN", "LSTM", "GRU"), _RECURRENT),
    "shared encoder, the package's cell": _BRANCH,
}
_INTRODUCTION = """# Emulated beside modelled

One step of {count} trainings, the third, on an emulated A10 (torch {torch}: the real CUDA build on our own
runtime, which counts what torch issues) and on a modelled one (`--perf-device=model:a10`: torch for the
CPU, counted by rules for what CUDA would launch). Where both say the same one number stands; otherwise
*emulated / modelled*. Made by `python -m benchmarks.emulated_table --markdown docs/emulated-counts.md`; the
emulated half is stored in `benchmarks/emulated_table/emulated.json`. The ordinary tests hold the modelled
half against it, and where a CUDA build of torch is installed the stored half is held against a fresh run.

**{equal} of {count} agree in every column.** A call of cuBLAS or cuDNN counts as one kernel on both. Peak
memory is the allocator's, in blocks of 512 bytes, without cuBLAS's workspaces (17 MB, taken once).
Values are void on an emulated card, so masks select nothing here. The emulated torch is 2.12 and the
modelled 2.13: no difference in this table is the version's, the model says the same with 2.12.

"""
_RULES = """
## What the model had to learn

- A copy of memory that lies alike on both sides is a copy on the card and no kernel: `clone`, `pow` by 1,
  gradients of `select` along the first dimension, the bias of `baddbmm`, `masked_fill` and `scatter` that
  are not in place.
- Gradients of slices, selections and pads fill zeros first; with a mode like ours looking on, torch writes
  others not in place (`index_put`, `scatter_add`, `index_add`), so the model writes them in place as CUDA
  would.
- A bias is added by cuBLASLt, unless a side of the product is 1; matrices with gaps are copied first.
- Losses with a reduction are two kernels, most of their gradients too; so are pools' gradients and
  softmax's.
- Group norm is two or three kernels, and three to five backward; a layer norm of more than 65,536 rows two
  more.
- Embedding: two kernels backward up to 3,072 indices, 21 beyond (a sort). Positions added up: six and a
  sort.
- Attention is chosen as CUDA chooses: flash in half precision, memory-efficient in float32, else plain;
  with the memory each takes in backward. Dropout and RMS norm are one kernel, autocast has CUDA's list of
  operators for float32.
- Lists of tensors: up to 770, 448, 336, 252 or 210 tensors and 2,240 chunks of 65,536 a launch since
  kernels can have 32 KB of arguments (110, 64, 48, 36, 30 and 320 before); `_foreach_norm` is two kernels
  more, `cat` one for 128.
- `.item()`, masks and `nonzero` bring a number over the bus, and the host waits for it.
- Large reductions take memory for their parts; an operator on nothing launches nothing.
- A rest of up to 1 MiB behind a tensor of more than 1 MiB is not cut off and counts as the tensor's; cuBLAS's
  workspaces, taken first, share a segment with such tensors.
"""


@dataclass(frozen=True)
class Half:
    """What every training does on one of the cards."""

    torch: str
    trainings: dict[str, dict[str, int]]

    @classmethod
    def from_json(cls, text: str) -> "Half":
        """Read it as it is stored."""
        return cls(**json.loads(text))

    @classmethod
    def stored(cls) -> "Half":
        """Return the emulated half of the repository."""
        return cls.from_json(STORED.read_text(encoding="utf-8"))

    def store(self) -> None:
        """Keep it, a line for each training."""
        rows = ",\n".join(
            f"  {json.dumps(title)}: {json.dumps(row)}" for title, row in self.trainings.items()
        )
        text = f'{{"torch": {json.dumps(self.torch)}, "trainings": {{\n{rows}\n}}}}\n'
        STORED.write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Row:
    """One training on both cards."""

    title: str
    emulated: dict[str, int]
    modelled: dict[str, int]

    @property
    def is_equal(self) -> bool:
        """Tell whether all columns agree."""
        return self.emulated == self.modelled

    @property
    def reason(self) -> str:
        """Return why it cannot agree, "" if nothing is known to be in the way."""
        return REASONS.get(self.title, "")

    def cells(self) -> list[str]:
        """Return a cell for each column: one number, or both."""
        pairs = ((self.emulated[name], self.modelled[name]) for name in COLUMNS)
        return [f"{left:,}" if left == right else f"{left:,} / {right:,}" for left, right in pairs]


def compare(emulated: Half, modelled: Half) -> list[Row]:
    """Put the halves beside each other, in the order of the modelled one."""
    return [Row(title, emulated.trainings[title], row) for title, row in modelled.trainings.items()]


def render(rows: Sequence[Row]) -> str:
    """Return the table as text: what agrees, what does not, and how many do."""
    lines = [["training", *COLUMNS.values(), ""]]
    lines += [[row.title, *row.cells(), "agrees" if row.is_equal else "differs"] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    told = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([*told, f"{sum(row.is_equal for row in rows)} of {len(rows)} agree"])


def document(rows: Sequence[Row], torch: str) -> str:
    """Return the table as a page of the documentation."""
    head = ["training", *COLUMNS.values(), "agree"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join([row.title, *row.cells(), _verdict(row)])} |" for row in rows]
    notes = sorted({row.reason for row in rows if not row.is_equal and row.reason})
    told = [f"{_mark(notes, note)} {note}." for note in notes]
    intro = _INTRODUCTION.format(
        count=len(rows), equal=sum(row.is_equal for row in rows), torch=torch.partition("+")[0]
    )
    text = "\n".join([intro.rstrip(), "", *lines, "", *told])
    for note in notes:
        text = text.replace(f"no: {note}", f"no {_mark(notes, note)}")
    return f"{text}\n{_RULES}"


def _verdict(row: Row) -> str:
    if row.is_equal:
        return "yes"
    return f"no: {row.reason}" if row.reason else "no"


def _mark(notes: Sequence[str], note: str) -> str:
    return f"[{notes.index(note) + 1}]"
