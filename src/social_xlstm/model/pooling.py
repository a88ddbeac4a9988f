"""Social pooling: the states of a detector's neighbours, weighted by distance; zero where there are none."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from social_xlstm.config import PoolingConfig
from social_xlstm.errors import InputError
from social_xlstm.model.neighbours import find_neighbours, kernel_argument, kernel_weight, normalized

# Shapes: B windows, N detectors, E width.


class SocialPooling(nn.Module):
    """Average or maximize neighbours' states; positions are fixed, so the weights are built here, once."""

    # Mean pooling keeps a matrix, or pairs if sparse or learnable; dense max pooling keeps padded lists.
    matrix: Tensor  # [N,N]
    receiver: Tensor  # [pairs], sorted; so are the next three
    sender: Tensor
    argument: Tensor
    pair_weight: Tensor
    starts: Tensor  # [N]
    table: Tensor  # [N,K], K the most neighbours
    padding: Tensor  # [N,K,1]
    isolated: Tensor  # [N,1]

    def __init__(
        self,
        config: PoolingConfig,
        positions_xy: Tensor,
        directions: Sequence[str | None] | None = None,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        check_pooling(config, directions)
        self.config = config
        self.n_detectors = len(positions_xy)
        neighbours = find_neighbours(
            positions_xy, config.radius, directions if config.same_direction else None
        )
        argument = kernel_argument(neighbours, config.kernel, config.radius)
        weight = normalized(kernel_weight(argument, config.kernel), neighbours.receiver, self.n_detectors)
        # Buffers follow the module to its device; not saved, since they are a function of the data.
        if config.sparse or config.learnable:
            self._keep("receiver", neighbours.receiver)
            self._keep("sender", neighbours.sender)
            self._keep("starts", neighbours.starts())
            self._keep("argument", argument.to(dtype))
            self._keep("pair_weight", weight.to(dtype))
        elif config.pool_type == "max":
            table, real = neighbours.padded()
            self._keep("table", table)
            self._keep("padding", ~real[..., None])
            self._keep("isolated", ~real.any(dim=1, keepdim=True))
        else:
            self._keep("matrix", self._dense(neighbours.receiver, neighbours.sender, weight.to(dtype)))
        self.log_scale = nn.Parameter(torch.zeros((), dtype=dtype)) if config.learnable else None

    def _keep(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value, persistent=False)

    def _dense(self, receiver: Tensor, sender: Tensor, weight: Tensor) -> Tensor:
        N = self.n_detectors
        return weight.new_zeros(N * N).scatter(0, receiver * N + sender, weight).view(N, N)

    def _pair_weights(self) -> Tensor:
        """Return the normalized weight of every pair, with the learnt length if there is one."""
        if self.log_scale is None:
            return self.pair_weight
        weight = kernel_weight(self.argument, self.config.kernel, self.log_scale.exp())
        return normalized(weight, self.receiver, self.n_detectors)

    def weight_matrix(self) -> Tensor:
        """Return the weights w_ij / Σ_j w_ij of mean pooling as [N,N]."""
        if self.config.pool_type == "max":
            raise InputError("max pooling has no weights; use social_pooling.pool_type: mean")
        if not self.config.sparse and self.log_scale is None:
            return self.matrix
        return self._dense(self.receiver, self.sender, self._pair_weights())

    def forward(self, states: Tensor) -> Tensor:
        """Map states [B,N,E] to contexts [B,N,E]."""
        # Half precision would round the weights to 3 digits and a constant field would not stay constant.
        with torch.autocast(states.device.type, enabled=False):
            wide = states.to(torch.promote_types(states.dtype, torch.float32))
            if self.config.sparse:
                pooled = self._sparse(wide)
            elif self.config.pool_type == "max":
                pooled = self._padded_max(wide)
            else:
                pooled = self.weight_matrix().to(wide.dtype) @ wide
            return pooled.to(states.dtype)

    def _sparse(self, states: Tensor) -> Tensor:
        """Pool along the list of pairs; an empty bag is zero, and no [pairs,B,E] tensor is made."""
        B, N, E = states.shape
        rows = states.transpose(0, 1).reshape(N, B * E)
        if self.config.pool_type == "max":
            pooled = F.embedding_bag(self.sender, rows, self.starts, mode="max")
        else:
            weights = self._pair_weights().to(states.dtype)
            pooled = F.embedding_bag(self.sender, rows, self.starts, mode="sum", per_sample_weights=weights)
        return pooled.view(N, B, E).transpose(0, 1)

    def _padded_max(self, states: Tensor) -> Tensor:
        if not self.table.shape[1]:
            return torch.zeros_like(states)
        around = states[:, self.table].masked_fill(self.padding, -math.inf)  # [B,N,K,E]
        return around.max(dim=2).values.masked_fill(self.isolated, 0.0)


def check_pooling(config: PoolingConfig, directions: Sequence[str | None] | None) -> None:
    """Refuse choices that contradict each other."""
    if config.pool_type not in ("mean", "max"):
        raise InputError(f"social_pooling.pool_type {config.pool_type!r} is unknown; choose mean or max")
    if config.same_direction and directions is None:
        raise InputError(
            "social_pooling.same_direction is on but the data has no directions; add the attribute direction "
            "to metadata/vd_info or set same_direction: false"
        )
    if not config.learnable:
        return
    if config.pool_type == "max" or config.kernel == "uniform":
        raise InputError(
            "social_pooling.learnable is on but nothing can be learnt: pool_type max and kernel uniform "
            "do not use a length; choose pool_type mean with gaussian, exponential, linear or inverse"
        )
    if not 0 < config.radius < math.inf:
        raise InputError(
            f"social_pooling.learnable starts from the radius, which is {config.radius}; "
            "give a finite one above 0"
        )
