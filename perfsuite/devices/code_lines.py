"""Find the line of the project's code that called an operator; results are cached, no frame is kept alive."""

import linecache
import sys
import sysconfig
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

_KEPT_PLACES = 400  # of each metric, the largest: a baseline stays a small file
_MOST_TEXT = 200  # characters of a line: enough to recognize it
_PERFSUITE = str(Path(__file__).parents[1])
_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")} - {None}
)


@dataclass(frozen=True, eq=False)  # one object per line: compared and hashed by identity, millions of times
class Place:
    """A line of code; its key survives edits elsewhere in the file, its line number may not."""

    key: str  # path, function and the line's text
    line: int

    @property
    def label(self) -> str:
        """Return file, line number, function and the line's text, for people to find it."""
        head, _, text = self.key.partition(": ")
        path, _, function = head.rpartition(" ")
        return f"{path}:{self.line} in {function}: {text}" if path and self.line else self.key


UNKNOWN = Place("(no line of the project)", 0)


def _is_library(path: str) -> bool:
    is_perfsuite = path.startswith("<") or path.startswith(_PERFSUITE)
    return is_perfsuite or path.startswith(_LIBRARIES) or "site-packages" in path


class Places:
    """Find where the running operator was called, preferring code below the root."""

    def __init__(self, root: Path) -> None:
        self._root = f"{root}/"
        # By identity: every operator looks at many frames, and hashing code takes a microsecond.
        self._known: dict[tuple[int, int], Place] = {}
        self._ranks: dict[int, int] = {}
        self._codes: list[CodeType] = []  # kept, so that no other code gets the identity of one of them
        self._noted: dict[tuple[str, int], Place] = {}
        self._forward: dict[int, Place] = {}  # autograd's sequence number → where the forward operator was

    def here(self, depth: int = 2) -> Place:
        """Return the innermost line of the project; without one, of any other code that is not a library."""
        try:
            frame: FrameType | None = sys._getframe(depth)
        except ValueError:  # a GPU's gradients run in a thread of autograd, with no Python frame below
            return UNKNOWN
        outside, ranks = None, self._ranks
        while frame is not None:
            code = frame.f_code
            rank = ranks.get(id(code))
            if rank is None:
                rank = ranks[id(code)] = self._rank(code)
                self._codes.append(code)
            if rank == 2:
                return self._place(frame)
            if rank == 1 and outside is None:
                outside = frame
            frame = frame.f_back
        return UNKNOWN if outside is None else self._place(outside)

    def note_forward(self, sequence: int, place: Place) -> None:
        """Remember where a forward operator was called, for its gradient."""
        # An operator that records no gradient shows its predecessor's number, which belongs to the first.
        if sequence not in self._forward:
            self._forward[sequence] = place

    def of_backward(self, sequence: int) -> Place | None:
        """Return where the forward operator of a gradient was called."""
        return self._forward.get(sequence)

    def forget_forward(self) -> None:
        """Drop the sequence numbers of a finished step."""
        self._forward.clear()

    def in_project(self, path: str, line: int, function: str) -> Place | None:
        """Return a line of the project by a frame that was noted elsewhere; None for any other code."""
        if _is_library(path) or not path.startswith(self._root):
            return None
        key = (path, line)
        if key not in self._noted:
            text = linecache.getline(path, line).strip()[:_MOST_TEXT]
            self._noted[key] = Place(f"{path.removeprefix(self._root)} {function}: {text}", line)
        return self._noted[key]

    def _rank(self, code: CodeType) -> int:
        """Return 2 for the project's code, 1 for other code that is not a library, 0 for libraries."""
        path = code.co_filename
        if _is_library(path):
            return 0
        return 2 if path.startswith(self._root) else 1

    def _place(self, frame: FrameType) -> Place:
        code, line = frame.f_code, frame.f_lineno
        place = self._known.get((id(code), line))
        if place is None:
            path = code.co_filename.removeprefix(self._root)
            linecache.checkcache(code.co_filename)  # it may have been edited since another test read it
            text = linecache.getline(code.co_filename, line).strip()[:_MOST_TEXT]
            place = Place(f"{path} {code.co_name}: {text}", line)
            self._known[id(code), line] = place
        return place


def largest(counts: Counter[Place], steps: int, most: int = _KEPT_PLACES) -> dict[str, float]:
    """Return the counts per step of the places that have most, by the places' keys."""
    merged: Counter[str] = Counter()
    for place, count in counts.items():
        merged[place.key] += count
    chosen = sorted(merged.items(), key=lambda entry: (-entry[1], entry[0]))[:most]
    return {key: per_step(count, steps) for key, count in sorted(chosen) if count}


def per_step(total: float, steps: int) -> float:
    """Return the mean over steps: a whole number if all steps do the same."""
    return float(total // steps) if total % steps == 0 else total / steps
