"""What compression saved, for people."""

from __future__ import annotations

from dataclasses import dataclass

from ._native import Compression


@dataclass(frozen=True)
class LayerStats:
    """One parameter, over all steps so far, on this rank."""

    codec: str
    """That of the last step, as a plan may change it from step to step."""
    way: str
    """The same in short, with its feedback and route: ``sign+feedback``."""
    elements: int
    bytes: int
    """That an exact exchange would have sent."""
    sent_bytes: int
    squared_error: float = 0.0
    """Of what this rank encoded as it does now: in the steps that were measured, the first in which
    it did so and every 50th, of all of it, and in others of a sample."""
    energy: float = 0.0
    """0 where nothing was measured yet."""

    @property
    def ratio(self) -> float:
        return self.bytes / self.sent_bytes if self.sent_bytes else 1.0

    @property
    def nmse(self) -> float:
        """The error relative to the gradient: squared, and so 0.01 for a tenth."""
        return self.squared_error / self.energy if self.energy else 0.0


@dataclass(frozen=True)
class Who:
    """Whose statistics these are."""

    model: str
    """The name of its class."""
    rank: int
    """This rank in the whole job."""
    ranks: int
    """Those that train the model."""
    is_first: bool
    """Whether this rank speaks for them."""


@dataclass(frozen=True)
class Stats:
    """One model, over all steps of this run so far, on this rank. Prints as a table."""

    steps: int
    layers: dict[str, LayerStats]
    """Those that had a gradient, once there was an exchange."""
    who: Who
    choice: str = ""
    """What the training has chosen by itself, with ``codec="auto"``, and why; empty before."""

    @property
    def bytes(self) -> int:
        """That an exact exchange would have sent."""
        return sum(layer.bytes for layer in self.layers.values())

    @property
    def sent_bytes(self) -> int:
        return sum(layer.sent_bytes for layer in self.layers.values())

    @property
    def ratio(self) -> float:
        return self.bytes / self.sent_bytes if self.sent_bytes else 1.0

    def __str__(self) -> str:
        rows = [("layer", "way", "elements", "bytes", "sent", "ratio", "nmse")]
        for name, layer in [*self.layers.items(), ("all", self._total())]:
            sizes = (human(layer.bytes), human(layer.sent_bytes), f"{layer.ratio:.1f}")
            error = f"{layer.nmse:.4f}" if layer.energy else "-"
            rows.append((name, layer.way, f"{layer.elements}", *sizes, error))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        left = 2  # columns of text
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i < left else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )

    def _total(self) -> LayerStats:
        layers = self.layers.values()
        return LayerStats(
            "",
            "",
            sum(layer.elements for layer in layers),
            self.bytes,
            self.sent_bytes,
            sum(layer.squared_error for layer in layers),
            sum(layer.energy for layer in layers),
        )


def of(compression: Compression) -> Stats:
    """In the order of names."""
    layers = {}
    for name, *rest in sorted(compression.totals()):
        layers[name.split("/", 1)[1]] = LayerStats(*rest)
    if any(layer.bytes for layer in layers.values()):
        layers = {name: layer for name, layer in layers.items() if layer.bytes}
    return Stats(steps_of(compression), layers, compression.who, compression.choice)


def steps_of(compression: Compression) -> int:
    """Those of this run, as its bytes are: a checkpoint has the steps of earlier ones."""
    return compression.steps - getattr(compression, "steps_of_earlier_runs", 0)


def human(count: int) -> str:
    """12.3 MB."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
