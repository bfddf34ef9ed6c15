#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw loss against time or steps of training, one line per way to exchange gradients and seed.

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
    """One training: seconds since its start, or steps, and the loss there."""

    method: str
    places: list[float]
    losses: list[float]


def lines_of(report: dict, against_steps: bool) -> list[Line]:
    lines = []
    for row in report["rows"]:
        for run in row["runs"]:
            steps = itertools.repeat(1.0, len(run["losses"]))
            places = itertools.accumulate(steps if against_steps else run["seconds"])
            lines.append(Line(row["method"], list(places), smooth(run["losses"])))
    return lines


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


def label_of(row: dict, against_steps: bool) -> str:
    if against_steps:
        tested = row.get("held_out_accuracy")
        right = f", {100 * tested:.1f} % right in the end" if tested is not None else ""
        return f"{row['method']}: {100 * row['of_fp32']:.3g} % of fp32's bytes{right}"
    times = f", {row['times_gloo']:.1f} x gloo" if row.get("times_gloo", 1) != 1 else ""
    sent = f"{row['wire_bytes_per_step'] / 1e6:.3g} MB sent"
    return f"{row['method']}: {1e3 * row['step_seconds']:.0f} ms per step{times}, {sent}"


def draw_lines(axes: Axes, report: dict, against_steps: bool) -> None:
    colours = iter(itertools.cycle(COLOURS))
    colour = {r["method"]: GLOO_COLOUR if r["method"] == "gloo" else next(colours)
              for r in report["rows"]}  # fmt: skip
    label = {row["method"]: label_of(row, against_steps) for row in report["rows"]}
    for line in lines_of(report, against_steps):
        axes.plot(line.places, line.losses, color=colour[line.method], linewidth=2,
                  label=label.pop(line.method, None))  # fmt: skip
        axes.plot(line.places[-1], line.losses[-1], "o", color=colour[line.method], markersize=7)


def draw(report: dict, output: Path, against_steps: bool) -> None:
    figure, axes = plt.subplots(figsize=(9, 5.4))
    draw_lines(axes, report, against_steps)
    against = "steps" if against_steps else "time"
    style(axes, f"Loss against {against}", subtitle_of(report))
    axes.set_xlabel("steps" if against_steps else "seconds of training", color=INK)
    axes.set_ylabel("loss", color=INK)
    if against_steps:  # the ends of several trainings are near one another
        axes.set_yscale("log", base=2, subs=[])
        axes.yaxis.set_major_locator(plt.LogLocator(base=2, subs=(1, 1.5)))
        axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlim(left=0)
    axes.legend(frameon=False, fontsize=10, loc="upper right")
    figure.tight_layout()
    save(figure, output)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="""examples:
  gradwire bench train --methods gloo,grid:step=0.5 --output training.json
  plot_training.py training.json --output training.svg
  plot_training.py training.json --steps --output training.png""",
    )
    add = parser.add_argument
    add("file", type=Path, metavar="JSON", help="what gradwire bench train --output wrote")
    add("--output", type=Path, default=Path("build/demo/training.png"), metavar="FILE",
        help="the picture, .png or .svg (default: %(default)s)")  # fmt: skip
    add("--steps", action="store_true", help="against steps instead of time")
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    try:
        report = read_report(options.file, "gradwire bench train", "model", "rows")
        draw(report, options.output, options.steps)
    except PlotError as error:
        print(f"plot_training: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("plot_training: interrupted", file=sys.stderr)
        return 130
    print(f"{options.output}: loss against {'steps' if options.steps else 'time'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
