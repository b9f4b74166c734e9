"""Convolutions along the fields (CCPM)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fieldwise.config.errors import ConfigError
from fieldwise.config.options import check_sizes
from fieldwise.loops import gpu, running
from fieldwise.parts.convolution.compiled import WindowMax
from fieldwise.parts.initial import xavier_
from fieldwise.parts.interactions import Interaction, one_size


class Convolution(Interaction):
    """CCPM: convolutions along the fields, ReLU, the largest values of each channel kept (section 3.2).

    `channels` and `widths` have one entry for each stage. One stage with `keep` 1 (global max-pooling) is what
    Table 10's parameter count fixes; `keep` > 1 keeps the k largest in field order.
    """

    def __init__(
        self, dims: Sequence[int], channels: Sequence[int], widths: Sequence[int], keep: Sequence[int]
    ) -> None:
        super().__init__()
        if not len(channels) == len(widths) == len(keep) > 0:
            raise ConfigError(f"channels, widths and keep need one length, found {channels}, {widths}, {keep}")
        check_sizes("channels, widths and keep", [*channels, *widths, *keep])
        self.convolutions, self.keep, length, inputs = nn.ModuleList(), list(keep), len(dims), one_size(self, dims)
        for out, width, kept in zip(channels, widths, keep, strict=True):
            width = min(width, length)
            convolution = nn.Conv1d(inputs, out, width, bias=False)
            xavier_(convolution.weight, inputs * width, out)
            self.convolutions.append(convolution)
            length, inputs = min(kept, length - width + 1), out
        self.width = inputs * length

    def forward(self, v: Tensor) -> Tensor:
        if self.keep == [1] and running.worth(v):
            (convolution,) = self.convolutions
            with torch.autocast("cpu", enabled=False):
                return torch.relu(WindowMax.apply(v, _by_window(convolution)))  # type: ignore[no-untyped-call]
        return self.plain(v)

    def plain(self, v: Tensor) -> Tensor:
        """Stage by stage, what the faster way equals."""
        x = (gpu.computed(v) if v.is_cuda else v).transpose(1, 2)
        for convolution, kept in zip(self.convolutions, self.keep, strict=True):
            # Pooled before the ReLU, which changes no value: behind it, which of several zeros is kept is chance.
            x = _as_product(convolution, x) if x.is_cuda else convolution(x)
            if kept == 1:
                x = x.amax(dim=2, keepdim=True)
            elif kept < x.shape[2]:
                x = x.gather(2, x.topk(kept, dim=2).indices.sort(dim=2).values)
            x = torch.relu(x)
        return x.flatten(1)


def _as_product(convolution: nn.Module, x: Tensor) -> Tensor:
    """convolution(x), (B, C, L) -> (B, C', L'), as one product of matrices: a GPU's convolutions first move x about."""
    width = convolution.weight.shape[2]  # type: ignore[index, unused-ignore]
    steps, rows = x.shape[2] - width + 1, x.transpose(1, 2)
    windows = torch.cat([rows[:, t : t + steps] for t in range(width)], dim=2)
    return (windows @ _by_window(convolution).T).transpose(1, 2)


def _by_window(convolution: nn.Module) -> Tensor:
    """Its weights as they meet a window of fields, vector after vector: (C, width D)."""
    weight: Tensor = convolution.weight  # type: ignore[assignment]
    return weight.transpose(1, 2).flatten(1)
