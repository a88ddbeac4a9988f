"""Gaps a window may end in: there, the line to the next value would show the window its own future."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from social_xlstm.data.scaler import Scaler

_MAX_AGE = np.iinfo(np.int16).max  # far longer than any window
ARRAYS = ("offsets", "columns", "held", "age")


@dataclass(frozen=True, eq=False)
class OpenGaps:
    """For each step, the detectors' features that are inside a gap then, with the last value before it.

    A list for each step, one after the other: entries offsets[t] to offsets[t+1] belong to step t.
    """

    offsets: torch.Tensor  # int64 [T+1]
    columns: torch.Tensor  # int64 [G]: detector · F + feature
    held: torch.Tensor  # float32 [G]: the last value before the gap
    age: torch.Tensor  # int16 [G]: steps since that value
    host_offsets: np.ndarray  # the same offsets on the host: asking them costs no device sync

    @classmethod
    def from_arrays(
        cls, offsets: np.ndarray, columns: np.ndarray, held: np.ndarray, age: np.ndarray
    ) -> "OpenGaps":
        """Wrap arrays without copying them."""
        return cls(*map(torch.from_numpy, (offsets, columns, held, age)), host_offsets=offsets)

    @classmethod
    def from_columns(
        cls, steps: int, gaps: list[tuple[int, np.ndarray, np.ndarray, np.ndarray]]
    ) -> "OpenGaps | None":
        """Sort what each column knows (its number, steps, held values, ages) by step; None for no gap."""
        if not sum(len(gap) for _, gap, _, _ in gaps):
            return None
        at = np.concatenate([gap for _, gap, _, _ in gaps])
        order = np.argsort(at, kind="stable")
        columns = np.concatenate([np.full(len(gap), column) for column, gap, _, _ in gaps])
        held = np.concatenate([values for _, _, values, _ in gaps])
        age = np.minimum(np.concatenate([ages for _, _, _, ages in gaps]), _MAX_AGE)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(at, minlength=steps))])
        return cls.from_arrays(
            offsets, columns[order], held[order].astype(np.float32), age[order].astype(np.int16)
        )

    def scaled(self, scaler: Scaler) -> "OpenGaps":
        """Scale the held values exactly as the values they were taken from."""
        feature = self.columns.numpy() % len(scaler.offset)
        every = np.repeat(self.held.numpy()[:, None], len(scaler.offset), axis=1)
        return replace(self, held=torch.from_numpy(scaler.transform(every)[np.arange(len(every)), feature]))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Name the tensors, as they are stored."""
        return {name: getattr(self, name) for name in ARRAYS}

    def with_tensors(self, tensors: dict[str, torch.Tensor]) -> "OpenGaps":
        """Give the same gaps over tensors that live elsewhere."""
        return replace(self, **tensors)

    def hold(self, features: torch.Tensor, ends: np.ndarray, ends_there: torch.Tensor) -> None:
        """Where a window [B,T,N,F] ends inside a gap, hold the last value before it to the end, in place.

        The ends come twice: on the host, to know how much there is to do, and beside the data, to index.
        """
        total = int((self.host_offsets[ends + 1] - self.host_offsets[ends]).sum())
        if total == 0:
            return
        windows, steps = features.shape[:2]
        first = self.offsets.index_select(0, ends_there)
        counts = self.offsets.index_select(0, ends_there + 1) - first
        # Entry numbers of all windows in a row; the sizes are known, so the device is not asked for them.
        window = torch.arange(windows, device=features.device)
        window = window.repeat_interleave(counts, output_size=total)
        shift = (first - (counts.cumsum(0) - counts)).repeat_interleave(counts, output_size=total)
        entry = torch.arange(total, device=features.device) + shift
        column, held, age = (tensor[entry] for tensor in (self.columns, self.held, self.age))
        steps_to_end = torch.arange(steps - 1, -1, -1, dtype=torch.int16, device=features.device)
        by_column = features.view(windows, steps, -1)
        kept = by_column[window, :, column]
        by_column[window, :, column] = torch.where(steps_to_end < age[:, None], held[:, None], kept)
