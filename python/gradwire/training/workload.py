"""When gradients are ready in a backward pass, for the planner (docs/workload.md)."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


class Workload:
    """Of one rank, from passes in which nothing is exchanged."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self._ready: dict[str, list[float]] = defaultdict(list)
        self.backward_seconds: list[float] = []

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Around a backward pass."""
        start = time.perf_counter()

        def record(name: str) -> None:
            self._ready[name].append(time.perf_counter() - start)

        hooks = [
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: record(name))
            for name, parameter in self._parameters
        ]
        start = time.perf_counter()
        try:
            yield
        finally:
            self.backward_seconds.append(time.perf_counter() - start)
            for hook in hooks:
                hook.remove()

    def ready_seconds(self) -> dict[str, float]:
        """Medians over the passes."""
        return {name: statistics.median(seconds) for name, seconds in self._ready.items()}

    def as_json(
        self, name: str, forward_seconds: float, of_ranks: list[tuple[dict[str, float], float]]
    ) -> dict:
        """`of_ranks` has every rank's `ready_seconds` and its backward passes' median."""
        backward = statistics.fmean(seconds for _, seconds in of_ranks)
        ready = {
            name: min(backward, statistics.fmean(each[name] for each, _ in of_ranks))
            for name in self._ready
        }
        return {
            "gradwire_workload": 1,
            "name": name,
            "forward_seconds": forward_seconds,
            "backward_seconds": backward,
            "tensors": [
                {"name": name, "elements": parameter.numel(), "ready_seconds": ready[name]}
                for name, parameter in self._parameters
                if name in ready
            ],
        }
