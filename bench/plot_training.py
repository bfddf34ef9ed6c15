#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw loss against time of training, one line per way to exchange gradients.

Reads what `gradwire bench train --output FILE` has written.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.axes import Axes
except ImportError as missing:
    sys.exit(f"plot_training: {missing}; run: pip install matplotlib")

INK = "#22272e"
FAINT = "#57606a"
# Okabe and Ito's colours, which colour-blind people tell apart; gradwire's first codec is orange.
GLOO_COLOUR = "#0072b2"
COLOURS = ["#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"]
SMOOTH_OVER = 20  # of a line's steps, one twentieth is averaged


class PlotError(Exception):
    """What went wrong and what to do about it, in one sentence for the user."""


@dataclass(frozen=True)
class Line:
    """One training: seconds since its start and the loss there."""

    method: str
    seconds: list[float]
    losses: list[float]


def lines_of(report: dict) -> list[Line]:
    return [
        Line(row["method"], list(itertools.accumulate(run["seconds"])), smooth(run["losses"]))
        for row in report["rows"]
        for run in row["runs"]
    ]


def smooth(losses: list[float]) -> list[float]:
    """Means over the steps just before."""
    window = max(1, len(losses) // SMOOTH_OVER)
    return [statistics.fmean(losses[max(0, i + 1 - window) : i + 1]) for i in range(len(losses))]


def read(file: Path) -> dict:
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlotError(f"cannot read {file}: {error.strerror}") from None
    except ValueError:
        report = None
    if not isinstance(report, dict) or "model" not in report or not report.get("rows"):
        raise PlotError(f"{file} is not the output of gradwire bench train")
    return report


def title_of(report: dict) -> str:
    where = f"{report['hosts']} hosts, links of {report['link']}"
    if report["hosts"] == 0:
        where = f"{report['ranks']} processes of one host, no network"
    return (
        f"{report['model']}, {report['parameters'] / 1e6:.1f} M parameters, "
        f"{report['optimizer']}, {report['steps']} steps on {where}"
    )


def label_of(row: dict) -> str:
    times = f", {row['times_gloo']:.1f} x gloo" if row.get("times_gloo", 1) != 1 else ""
    sent = f"{row['wire_bytes_per_step'] / 1e6:.3g} MB sent"
    return f"{row['method']}: {1e3 * row['step_seconds']:.0f} ms per step{times}, {sent}"


def draw_lines(axes: Axes, report: dict) -> None:
    colours = iter(itertools.cycle(COLOURS))
    colour = {r["method"]: GLOO_COLOUR if r["method"] == "gloo" else next(colours)
              for r in report["rows"]}  # fmt: skip
    label = {row["method"]: label_of(row) for row in report["rows"]}
    for line in lines_of(report):
        axes.plot(line.seconds, line.losses, color=colour[line.method], linewidth=2,
                  label=label.pop(line.method, None))  # fmt: skip
        axes.plot(line.seconds[-1], line.losses[-1], "o", color=colour[line.method], markersize=7)


def draw(report: dict, output: Path) -> None:
    figure, axes = plt.subplots(figsize=(9, 5.4))
    draw_lines(axes, report)
    axes.set_title("Loss against time", loc="left", fontsize=15, fontweight="bold", color=INK,
                   pad=26)  # fmt: skip
    axes.text(0, 1.025, title_of(report), transform=axes.transAxes, fontsize=10, color=FAINT)
    axes.set_xlabel("seconds of training", color=INK)
    axes.set_ylabel("loss", color=INK)
    axes.set_xlim(left=0)
    axes.grid(True, color="#d8dee4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=FAINT, length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color("#d8dee4")
    axes.legend(frameon=False, fontsize=10)
    figure.tight_layout()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, dpi=150, facecolor="white")
    except OSError as error:
        raise PlotError(f"cannot write {output}: {error.strerror}") from None


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="""examples:
  gradwire bench train --methods gloo,grid:step=0.5 --output training.json
  plot_training.py training.json --output training.svg""",
    )
    add = parser.add_argument
    add("file", type=Path, metavar="JSON", help="what gradwire bench train --output wrote")
    add("--output", type=Path, default=Path("build/demo/training.png"), metavar="FILE",
        help="the picture, .png or .svg (default: %(default)s)")  # fmt: skip
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    try:
        draw(read(options.file), options.output)
    except PlotError as error:
        print(f"plot_training: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("plot_training: interrupted", file=sys.stderr)
        return 130
    print(f"{options.output}: loss against time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
