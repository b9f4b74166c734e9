"""Measures this machine's limits, with which a step's arithmetic and memory traffic are compared."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}


def synchronize(device: torch.device) -> None:
    """Waits until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ceilings(device: torch.device, precision: str) -> dict[str, float]:
    """FLOP/s of a large matrix product in this precision, and bytes/s, read and written, of a large copy."""
    size = 8192 if device.type == "cuda" else 1536
    one, two = (torch.randn(size, size, device=device).to(DTYPES[precision]) for _ in range(2))
    into = torch.empty_like(one)
    product = _fastest(lambda: torch.mm(one, two, out=into), device)
    source = torch.randn(2**28 if device.type == "cuda" else 2**25, device=device)
    target = torch.empty_like(source)
    copy = _fastest(lambda: target.copy_(source), device)
    return {"matmul_flops": 2 * size**3 / product, "copy_bytes": 2 * source.nbytes / copy}


def _fastest(action: Callable[[], object], device: torch.device, times: int = 5) -> float:
    action()
    found = []
    for _ in range(times):
        synchronize(device)
        began = time.perf_counter()
        action()
        synchronize(device)
        found.append(time.perf_counter() - began)
    return min(found)


def machine(device: torch.device) -> dict[str, Any]:
    """The machine of the figures: processor or card, threads, versions."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    facts = {"device": name, "threads": torch.get_num_threads()}
    return facts | {"python": platform.python_version(), "torch": str(torch.__version__)}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


class PeakMemory:
    """The peak memory since its creation, in bytes: of the process on a CPU, of torch on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        elif _RESET.exists():
            _RESET.write_text("5")

    def read(self) -> int | None:
        """The peak so far; None if the system does not report it."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        if not _STATUS.exists():
            return None
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])


_RESET, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
