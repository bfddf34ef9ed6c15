#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw bits per element against error, one line per kind of codec.

Runs `gradwire bench distortion` over a range of settings, on real gradients and on a synthetic
Gaussian, and writes one picture. Given files that hold the output of
`gradwire bench distortion --json`, it draws those instead.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pictures
from pictures import FAINT, INK, Axes, PlotError, plt

BASELINE = "uniform:bits=4,bucket=128,rounding=stochastic"
DEFAULT = "grid:step=0.5"
STEPS = (0.1, 0.175, 0.25, 0.35, 0.5, 0.7, 1, 1.4, 2)
SWEEP = [
    *(f"uniform:bits={bits},bucket=128" for bits in (1, 2, 3, 5, 6)),
    *(f"exponential:bits={bits}" for bits in (3, 4, 5)),
    "sign",
    *(f"grid:step={step}" for step in STEPS),
    *(f"grid:step={step},rounding=dither" for step in STEPS),
]
RATE_KEYS = {"bits", "step", "nmse"}  # settings that trade bits for error along one line
# Settings that are the same as leaving them out.
DEFAULT_KEYS = {"rounding": "stochastic", "bucket": "128", "locality": "0.5"}

# Okabe and Ito's colours, which colour-blind people tell apart.
COLOURS = {
    "grid": "#d55e00",
    "uniform": "#0072b2",
    "exponential": "#009e73",
    "sign": "#cc79a7",
    "grid, dither": "#e69f00",
}
OTHER_COLOURS = ["#56b4e9", "#7f7f7f", "#9467bd", "#8c564b", "#bcbd22"]


@dataclass(frozen=True)
class Point:
    codec: str
    bits: float
    nmse: float


# A panel's points: family of codecs -> points by bits.
Families = dict[str, list[Point]]


# --- Data -----------------------------------------------------------------------------------------


def family_of(codec: str) -> str:
    """What a line is drawn through: the codec without the settings that only move along it."""
    name, _, settings = codec.partition(":")
    kept = [name]
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        if key not in RATE_KEYS and DEFAULT_KEYS.get(key) != value:
            kept.append(value if key == "rounding" else setting)
    return ", ".join(kept)


def panels_of(documents: list[dict]) -> dict[str, Families]:
    """Group -> families. Where sums over steps exist they stand for their steps."""
    rows = [row for document in documents for row in document["rows"]]
    totals = {row["group"].split("/")[0] for row in rows if ">=" in row["group"]}
    panels: dict[str, Families] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        model = row["group"].split("/")[0]
        is_step_of_total = model in totals and ">=" not in row["group"]
        if is_step_of_total or not row["nmse"]:  # an exact codec has no place on a log scale
            continue
        point = Point(row["codec"], row["bits_per_element"], row["nmse"])
        panels[row["group"]][family_of(row["codec"])].append(point)
    for families in panels.values():
        for points in families.values():
            points.sort(key=lambda point: point.bits)
    return panels


def run_bench(gradwire: Path, codecs: list[str], *options: str) -> dict:
    command = [str(gradwire), "bench", "distortion", "--json", *options]
    for codec in codecs:
        command += ["--codec", codec]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise PlotError(f"{gradwire} is not there; run: make build") from None
    except subprocess.CalledProcessError as error:
        raise PlotError(f"{gradwire} failed: {error.stderr.strip()}") from None
    return json.loads(done.stdout)


def measure(options: argparse.Namespace) -> list[dict]:
    documents = []
    if options.gradients.exists():
        file = str(options.gradients)
        documents.append(run_bench(options.gradwire, SWEEP, "--gradients", file))
    else:
        print(f"plot_rate: {options.gradients} is not there: synthetic data only", file=sys.stderr)
    documents.append(run_bench(options.gradwire, SWEEP, "--group", "gaussian"))
    return documents


def read_documents(files: list[Path]) -> list[dict]:
    command = "gradwire bench distortion --json"
    return [pictures.read_report(file, command, "rows") for file in files]


# --- Picture --------------------------------------------------------------------------------------


def title_of(group: str) -> str:
    if group == "gaussian":
        return "Synthetic Gaussian"
    model, _, steps = group.partition("/")
    known = {"cnn": "CNN", "batchnorm": "with batch norm", "transformer": "Transformer"}
    name = " ".join(known.get(word, word) for word in model.split("-"))
    if not steps or ">=" in steps:
        return name
    return f"{name}, step {steps}" if steps.isdigit() else f"{name}/{steps}"


def order_of(group: str) -> tuple[int, list[str]]:
    """Whole models first, synthetic data last."""
    return ("-without-" in group) + 2 * ("/" not in group), group.split("/")


def find(families: Families, codec: str) -> Point | None:
    return next((p for points in families.values() for p in points if p.codec == codec), None)


def draw_family(axes: Axes, name: str, points: list[Point], colour: str) -> None:
    axes.plot(
        [p.bits for p in points],
        [p.nmse for p in points],
        color=colour,
        label=name,
        linewidth=2.4 if name == "grid" else 1.6,
        marker="o",
        markersize=6 if name == "grid" else 4.5,
        markeredgecolor="white",
        markeredgewidth=0.8,
        zorder=4 if name == "grid" else 3,
        clip_on=True,
    )


def draw_shannon(axes: Axes, high_bits: float) -> None:
    bits = [high_bits * i / 100 for i in range(101)]
    bound = [2 ** (-2 * b) for b in bits]
    axes.fill_between(bits, bound, 1e-12, color=FAINT, alpha=0.12, linewidth=0, zorder=1)
    axes.plot(bits, bound, color=INK, linewidth=1.1, linestyle=(0, (4, 2)), zorder=2)
    axes.text(
        0.03, 0.05, "Shannon's bound:\nno code can be here",
        transform=axes.transAxes, fontsize=10, color=FAINT, style="italic",
    )  # fmt: skip


def bits_at(points: list[Point], nmse: float) -> float | None:
    """Where a line has this error: linear in bits against log error."""
    for left, right in itertools.pairwise(points):
        if left.nmse >= nmse >= right.nmse and left.nmse > right.nmse:
            part = math.log(left.nmse / nmse) / math.log(left.nmse / right.nmse)
            return left.bits + part * (right.bits - left.bits)
    return None


def draw_saving(axes: Axes, families: Families) -> None:
    """An arrow from the baseline to the grid's line, at equal error."""
    baseline, bits = find(families, BASELINE), saved_bits(families)
    if baseline is None or bits is None:
        return
    axes.annotate(
        "",
        xy=(bits, baseline.nmse),
        xytext=(baseline.bits, baseline.nmse),
        arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.5, "shrinkA": 4, "shrinkB": 1},
        zorder=5,
    )


def saved_bits(families: Families) -> float | None:
    baseline = find(families, BASELINE)
    return bits_at(families.get("grid", []), baseline.nmse) if baseline else None


def saving_of(families: Families) -> str:
    baseline, bits = find(families, BASELINE), saved_bits(families)
    if baseline is None or bits is None:
        return ""
    return f"at the error of uniform:bits=4 the grid needs {bits / baseline.bits:.2f} of its bytes"


def draw_defaults(axes: Axes, families: Families) -> None:
    for point in filter(None, (find(families, BASELINE), find(families, DEFAULT))):
        axes.plot(
            point.bits, point.nmse, "o",
            markersize=11, mfc="none", mec=INK, mew=1.2, zorder=6, linestyle="none",
            label="uniform:bits=4 and grid:step=0.5",
        )  # fmt: skip


def limits_of(panels: dict[str, Families]) -> tuple[float, float, float]:
    points = [p for families in panels.values() for line in families.values() for p in line]
    high = max(p.bits for p in points) * 1.04
    low = 10 ** math.floor(math.log10(min(p.nmse for p in points)))
    top = 10 ** math.ceil(math.log10(max(p.nmse for p in points)))
    return high, max(low, 1e-6), min(top, 10)


def style(axes: Axes, title: str, subtitle: str) -> None:
    pictures.style(axes, title, subtitle)
    axes.set_yscale("log")
    axes.tick_params(which="minor", left=False)
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:.9f}".rstrip("0").rstrip("."))


def colour_of(name: str, used: dict[str, str]) -> str:
    if name not in used:
        others = len([n for n in used if n not in COLOURS])
        used[name] = COLOURS.get(name, OTHER_COLOURS[others % len(OTHER_COLOURS)])
    return used[name]


def draw(panels: dict[str, Families], output: Path) -> None:
    groups = sorted(panels, key=order_of)
    columns = min(len(groups), 2 if len(groups) <= 4 else 3)
    rows = math.ceil(len(groups) / columns)
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=((6.4 if columns < 3 else 5.6) * columns, 4.6 * rows + 1.3),
        squeeze=False,
        sharex=True,
        sharey=True,
    )
    high, low, top = limits_of(panels)
    used: dict[str, str] = {}
    for axes, group in zip(grid.flat, groups, strict=False):
        families = panels[group]
        style(axes, title_of(group), saving_of(families))
        for name, points in families.items():
            draw_family(axes, name, points, colour_of(name, used))
        if group == "gaussian":
            draw_shannon(axes, high)
        draw_saving(axes, families)
        draw_defaults(axes, families)
    for axes in list(grid.flat)[len(groups) :]:
        axes.set_visible(False)
    grid[0][0].set_xlim(0, high)
    grid[0][0].set_ylim(low, top)
    for axes in list(grid.flat)[len(groups) - columns : len(groups)]:  # the lowest of each column
        axes.set_xlabel("bits per element, headers included", color=INK)
        axes.tick_params(labelbottom=True)
    for axes in grid[:, 0]:
        axes.set_ylabel("NMSE (lower is better)", color=INK)
    save(figure, list(grid.flat)[: len(groups)], columns, output)


def save(figure: plt.Figure, used_axes: list[Axes], columns: int, output: Path) -> None:
    lines = {}
    for axes in used_axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            lines.setdefault(name, handle)
    figure.suptitle(
        "Error against bytes" + (": what each codec keeps of a gradient" if columns > 1 else ""),
        x=0.02, ha="left", fontsize=16, fontweight="bold", color=INK,
    )  # fmt: skip
    figure.legend(
        lines.values(), lines.keys(),
        loc="lower center", ncols=min(len(lines), 3 * columns), frameon=False, fontsize=10,
    )  # fmt: skip
    figure.tight_layout(rect=(0, 0.05 if columns > 1 else 0.1, 1, 0.985), h_pad=2.2, w_pad=2.5)
    pictures.save(figure, output)


# --- Command line ---------------------------------------------------------------------------------


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="""examples:
  plot_rate.py                                            real gradients and a Gaussian
  plot_rate.py --gradients my_gradients.safetensors       your own
  plot_rate.py a.json b.json --output rate.png            what was measured before""",
    )
    add = parser.add_argument
    add("files", nargs="*", type=Path, metavar="JSON",
        help="output of gradwire bench distortion --json (default: measure now)")  # fmt: skip
    add("--gradwire", type=Path, default=Path("build/gradwire"), metavar="PROGRAM",
        help="the command line (default: %(default)s)")  # fmt: skip
    add("--gradients", type=Path, default=Path("data/gradients.safetensors"), metavar="FILE",
        help="gradients to measure on (default: %(default)s)")  # fmt: skip
    add("--output", type=Path, default=Path("build/demo/rate.png"), metavar="PNG",
        help="the picture (default: %(default)s)")  # fmt: skip
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    try:
        documents = read_documents(options.files) if options.files else measure(options)
        panels = panels_of(documents)
        if not panels:
            raise PlotError("there is nothing to draw: no codec lost anything")
        draw(panels, options.output)
    except PlotError as error:
        print(f"plot_rate: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("plot_rate: interrupted", file=sys.stderr)
        return 130
    print(f"{options.output}: bits per element against error")
    return 0


if __name__ == "__main__":
    sys.exit(main())
