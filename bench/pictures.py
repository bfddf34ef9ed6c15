# SPDX-License-Identifier: Apache-2.0
"""What the plots here share: where their numbers come from, how axes look, how they are saved."""

from __future__ import annotations

import json
import sys
from pathlib import Path

try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.axes import Axes
except ImportError as missing:
    sys.exit(f"{Path(sys.argv[0]).stem}: {missing}; run: pip install matplotlib")

INK = "#22272e"
FAINT = "#57606a"
LINE = "#d8dee4"


class PlotError(Exception):
    """What went wrong and what to do about it, in one sentence for the user."""


def read_report(file: Path, command: str, *fields: str) -> dict:
    """What the command wrote as JSON, with these fields and something in them."""
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlotError(f"cannot read {file}: {error.strerror}") from None
    except ValueError:
        report = None
    if not isinstance(report, dict) or not all(report.get(field) for field in fields):
        raise PlotError(f"{file} is not the output of {command}")
    return report


def style(axes: Axes, title: str, subtitle: str) -> None:
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", color=INK, pad=24)
    axes.text(0, 1.025, subtitle, transform=axes.transAxes, fontsize=9.5, color=FAINT)
    axes.grid(True, color=LINE, linewidth=0.7, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(colors=FAINT, length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(LINE)


def save(figure: plt.Figure, output: Path) -> None:
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, dpi=150, facecolor="white")
    except OSError as error:
        raise PlotError(f"cannot write {output}: {error.strerror}") from None
