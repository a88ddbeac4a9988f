"""Find which detectors are neighbours and how much each weighs, once and in float64; refuse bad positions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from social_xlstm.config import Kernel
from social_xlstm.errors import InputError

# Added to the distance by the inverse kernel, so that co-located detectors weigh much but finitely.
INVERSE_OFFSET_METRES = 10.0
# Distances are computed for some receivers at a time: N² doubles at once would not fit for large N.
PAIRS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Neighbours:
    """Pairs (receiver, sender) with i ≠ j and d_ij ≤ R, sorted by receiver, then by sender."""

    n_detectors: int
    receiver: Tensor  # int64 [pairs]
    sender: Tensor  # int64 [pairs]
    distance: Tensor  # float64 [pairs], metres

    def counts(self) -> Tensor:
        """Return the number of neighbours of every detector, int64 [N]."""
        return torch.bincount(self.receiver, minlength=self.n_detectors)

    def starts(self) -> Tensor:
        """Return where every receiver's pairs begin, int64 [N]."""
        counts = self.counts()
        return counts.cumsum(0) - counts

    def padded(self) -> tuple[Tensor, Tensor]:
        """Return senders as [N, most neighbours] and which of its places are real."""
        counts = self.counts()
        width = int(counts.max()) if len(counts) else 0
        real = torch.arange(width) < counts[:, None]
        table = torch.zeros(self.n_detectors, width, dtype=torch.int64)
        table[real] = self.sender
        return table, real


def find_neighbours(
    positions_xy: Tensor, radius: float, directions: Sequence[str | None] | None = None
) -> Neighbours:
    """List all pairs within the radius, bound included; with directions, only pairs of the same one."""
    positions = check_positions(positions_xy)
    if math.isnan(radius) or radius < 0:
        raise InputError(f"social_pooling.radius is {radius}; give metres, 0 or more")
    labels = None if directions is None else _direction_labels(directions, len(positions))
    N = len(positions)
    rows = max(1, PAIRS_AT_ONCE // max(N, 1))
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for start in range(0, N, rows):
        # Differences, not |a|² + |b|² − 2ab: coordinates are large, and half precision overflows on them.
        offset = positions[start : start + rows, None] - positions
        distance = torch.hypot(offset[..., 0], offset[..., 1])
        near = distance <= radius
        near[torch.arange(len(near)), torch.arange(start, start + len(near))] = False
        if labels is not None:
            near &= labels[start : start + rows, None] == labels
        receiver, sender = near.nonzero(as_tuple=True)
        found.append((receiver + start, sender, distance[receiver, sender]))
    receivers, senders, distances = zip(*found, strict=True)
    return Neighbours(N, torch.cat(receivers), torch.cat(senders), torch.cat(distances))


def check_positions(positions_xy: Tensor) -> Tensor:
    """Return positions as float64 [N,2] on the host, or name the detectors that have none."""
    positions = torch.as_tensor(positions_xy).detach().to("cpu", torch.float64)  # waits for the device, once
    if positions.ndim != 2 or positions.shape[1] != 2 or not len(positions):
        raise InputError(
            f"positions have shape {tuple(positions.shape)}; pooling needs [detectors, 2] in metres"
        )
    missing = (~positions.isfinite().all(dim=1)).nonzero()[:, 0].tolist()
    if missing:
        some = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        raise InputError(
            f"{len(missing)} of {len(positions)} detectors have no position (numbers {some}); add their "
            "coordinates, leave them out by data.selected_vdids, or set social_pooling.enabled: false"
        )
    return positions


def _direction_labels(directions: Sequence[str | None], n_detectors: int) -> Tensor:
    if len(directions) != n_detectors:
        raise InputError(f"{len(directions)} directions were given for {n_detectors} detectors")
    unknown = [number for number, direction in enumerate(directions) if not direction]
    if unknown:
        raise InputError(
            f"{len(unknown)} of {n_detectors} detectors have no direction (first: number {unknown[0]}); "
            "add it to the data or set social_pooling.same_direction: false"
        )
    codes = {direction: code for code, direction in enumerate(dict.fromkeys(directions))}
    return torch.tensor([codes[direction] for direction in directions])


def kernel_argument(neighbours: Neighbours, kernel: Kernel, radius: float) -> Tensor:
    """Return each pair's distance in units of the kernel's own length, float64 [pairs]."""
    length = {
        "gaussian": radius / 3,
        "exponential": radius / 3,
        "linear": radius,
        "inverse": INVERSE_OFFSET_METRES,
    }
    # With R = 0 only co-located detectors are neighbours: any length gives them equal weights.
    reach = neighbours.distance / (length.get(kernel, 1.0) or 1.0)
    if kernel not in ("gaussian", "exponential"):
        return reach
    if kernel == "gaussian":
        reach = reach.square() / 2
    # A factor per receiver cancels in the mean. Measured from the nearest neighbour the largest weight is 1,
    # and a learnt, very short length cannot underflow to «no neighbours».
    nearest = torch.full((neighbours.n_detectors,), math.inf, dtype=torch.float64)
    nearest.scatter_reduce_(0, neighbours.receiver, reach, "amin")
    return reach - nearest[neighbours.receiver]


def kernel_weight(argument: Tensor, kernel: Kernel, scale: Tensor | float = 1.0) -> Tensor:
    """Return unnormalized weights; scale stretches the kernel's length."""
    match kernel:
        case "uniform":
            return torch.ones_like(argument)
        case "gaussian":
            return torch.exp(-argument / scale**2)
        case "exponential":
            return torch.exp(-argument / scale)
        case "linear":
            return torch.relu(1.0 - argument / scale)
        case "inverse":
            return 1.0 / (argument + scale)
    raise InputError(
        f"social_pooling.kernel {kernel!r} is unknown; "
        "choose uniform, gaussian, exponential, linear or inverse"
    )


def normalized(weight: Tensor, receiver: Tensor, n_detectors: int) -> Tensor:
    """Scale the weights so that each receiver's sum to one; weights that sum to zero stay zero."""
    total = weight.new_zeros(n_detectors).index_add(0, receiver, weight)
    return weight / torch.where(total > 0, total, 1.0)[receiver]
