#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw loss against time of training, one line per way to exchange gradients.

Reads what `gradwire bench train --output FILE` has written.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from pictures import INK, Axes, PlotError, plt, read_report, save, style

# Okabe and Ito's colours, which colour-blind people tell apart; gradwire's first codec is orange.
GLOO_COLOUR = "#0072b2"
COLOURS = ["#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"]
SMOOTH_OVER = 20  # of a line's steps, one twentieth is averaged


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


def subtitle_of(report: dict) -> str:
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
    style(axes, "Loss against time", subtitle_of(report))
    axes.set_xlabel("seconds of training", color=INK)
    axes.set_ylabel("loss", color=INK)
    axes.set_xlim(left=0)
    axes.legend(frameon=False, fontsize=10)
    figure.tight_layout()
    save(figure, output)


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
        report = read_report(options.file, "gradwire bench train", "model", "rows")
        draw(report, options.output)
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
