"""Find the line of the project's code that an operator comes from; remembers what it saw, keeps no frame."""

import linecache
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

_MOST_TEXT = 200  # of a line: enough to know it by
_OWN = str(Path(__file__).parents[1])
_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")} - {None}
)


@dataclass(frozen=True, eq=False)  # one object a line: compared and hashed by identity, millions of times
class Place:
    """One line of code; its key survives edits elsewhere in the file, its line number need not."""

    key: str  # path, function and the line's own text
    line: int

    @property
    def told(self) -> str:
        """Return file, line, function and the line's text, as a person looks for it."""
        head, _, text = self.key.partition(": ")
        path, _, function = head.rpartition(" ")
        return f"{path}:{self.line} in {function}: {text}" if path and self.line else self.key


UNKNOWN = Place("(no line of the project)", 0)


class Places:
    """Tell where the running operator was called, in code below the root before any other."""

    def __init__(self, root: Path) -> None:
        self._root = f"{root}/"
        self._known: dict[tuple[CodeType, int], Place] = {}
        self._ranks: dict[CodeType, int] = {}
        self._forward: dict[int, Place] = {}  # autograd's sequence number → where the forward operator was

    def here(self, depth: int = 2) -> Place:
        """Return the innermost line of the project, of any other code that is no library without one."""
        try:
            frame: FrameType | None = sys._getframe(depth)
        except ValueError:  # a card's gradients run in a thread of autograd's own, with no Python below it
            return UNKNOWN
        outside = None
        while frame is not None:
            code = frame.f_code
            rank = self._ranks.get(code)
            if rank is None:
                rank = self._ranks[code] = self._rank(code)
            if rank == 2:
                return self._place(frame)
            if rank == 1 and outside is None:
                outside = frame
            frame = frame.f_back
        return UNKNOWN if outside is None else self._place(outside)

    def note_forward(self, sequence: int, place: Place) -> None:
        """Remember where the operator was called whose gradient autograd will ask for."""
        # An operator that records no gradient shows its predecessor's number: the first one owns it.
        if sequence not in self._forward:
            self._forward[sequence] = place

    def of_backward(self, sequence: int) -> Place | None:
        """Return where the forward operator of a gradient was called."""
        return self._forward.get(sequence)

    def forget_forward(self) -> None:
        """Drop the sequence numbers of a step that is over."""
        self._forward.clear()

    def _rank(self, code: CodeType) -> int:
        """Return 2 for the project's code, 1 for other code that is no library, 0 for libraries."""
        path = code.co_filename
        if path.startswith("<") or path.startswith(_OWN):
            return 0
        if path.startswith(_LIBRARIES) or "site-packages" in path:
            return 0
        return 2 if path.startswith(self._root) else 1

    def _place(self, frame: FrameType) -> Place:
        code, line = frame.f_code, frame.f_lineno
        known = self._known.get((code, line))
        if known is None:
            path = code.co_filename.removeprefix(self._root)
            linecache.checkcache(code.co_filename)  # edited since some other test of this process read it
            text = linecache.getline(code.co_filename, line).strip()[:_MOST_TEXT]
            known = Place(f"{path} {code.co_name}: {text}", line)
            self._known[code, line] = known
        return known
