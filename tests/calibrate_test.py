#!/usr/bin/env python3
"""Runs `gradwire calibrate` as a user would: measuring, keeping, refusing, interruption.

    calibrate_test.py [--program build/gradwire]

Run directly, by ctest or by pytest; needs no packages.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from jobs import MARK, processes_marked, wait_for_end, wait_until

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build" / "gradwire"
DEADLINE_SECONDS = 120


class Calibrate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not PROGRAM.exists():
            raise unittest.SkipTest(f"{PROGRAM} is not built; run: make build")

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.file = self.folder / "costs.json"
        self.scratch = self.folder / "scratch"
        self.scratch.mkdir()

    def environment(self) -> dict[str, str]:
        ours = {"XDG_CACHE_HOME": str(self.folder / "cache"), "TMPDIR": str(self.scratch)}
        return {k: v for k, v in os.environ.items() if not k.startswith("GRADWIRE_")} | ours

    def calibrate(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [str(PROGRAM), "calibrate", *arguments],
            capture_output=True,
            text=True,
            env=self.environment(),
            timeout=DEADLINE_SECONDS,
        )

    def measured(self, *arguments: str) -> dict:
        """What the file has after a quick calibration."""
        done = self.calibrate("--quick", "-o", str(self.file), "--json", *arguments)
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertEqual(self.file.read_text(), done.stdout)
        self.assertEqual([], list(self.scratch.iterdir()))
        return json.loads(done.stdout)

    def assert_refused(self, pattern: str, *arguments: str, exit_code: int = 2):
        done = self.calibrate(*arguments)
        self.assertEqual((exit_code, ""), (done.returncode, done.stdout), done.stderr)
        self.assertEqual(1, len(done.stderr.splitlines()), done.stderr)
        self.assertRegex(done.stderr, pattern)

    def test_costs_are_plausible(self):
        costs = self.measured("--codec", "grid:step=0.5", "--codec", "topk:density=0.01")
        self.assertRegex(costs["source"], r"^measured on .+, \d{4}-\d\d-\d\d \d\d:\d\d UTC$")
        for link in (costs["inside"], costs["between"]):
            self.assertTrue(1e-7 < link["seconds"] < 1, link)
            self.assertTrue(0 <= link["seconds_per_byte"] < 1e-6, link)
        self.assertGreaterEqual(costs["interference"], 1)
        self.assertGreaterEqual(costs["threads"], 1)
        codecs = {re.sub(",.*", "", spec): codec for spec, codec in costs["codecs"].items()}
        sums = "topk:density=0.04"
        self.assertEqual({"none", "grid:step=0.5", "topk:density=0.01", sums}, set(codecs))
        self.assertAlmostEqual(4, codecs["none"]["bytes_per_element"], delta=0.05)
        self.assertAlmostEqual(0.4, codecs["grid:step=0.5"]["bytes_per_element"], delta=0.05)
        self.assertNotIn("preparation", codecs["none"])
        for table in ("preparation", "encode", "decode"):
            points = codecs["grid:step=0.5"][table]
            self.assertEqual([1 << 10, 1 << 14, 1 << 18], [point[0] for point in points])
            self.assertEqual(sorted(points, key=lambda point: point[1]), points)
        encode = codecs["grid:step=0.5"]["encode"][-1][1]
        self.assertGreater(encode, 2 * codecs["none"]["encode"][-1][1])

    def test_what_was_measured_is_kept_until_asked_for_anew(self):
        first = self.measured("--codec", "sign")
        done = self.calibrate("--quick", "-o", str(self.file), "--codec", "sign")
        self.assertIn("still valid; --again measures anew", done.stdout)
        self.assertEqual(first, json.loads(self.file.read_text()))
        more = self.measured("--codec", "fp16")
        self.assertEqual(first["codecs"] | {"fp16": more["codecs"]["fp16"]}, more["codecs"])
        self.assertEqual(first["inside"], more["inside"])
        anew = self.measured("--codec", "sign", "--again")
        self.assertEqual(set(first["codecs"]), set(anew["codecs"]))
        self.assertNotEqual(first["codecs"], anew["codecs"])

    def test_a_rate_is_that_of_the_link_between_hosts(self):
        slow = self.measured("--codec", "none", "--link", "100mbit")
        self.assertAlmostEqual(85e-9, slow["between"]["seconds_per_byte"], delta=1e-9)
        slower = self.measured("--codec", "none", "--link", "10mbit")
        self.assertAlmostEqual(850e-9, slower["between"]["seconds_per_byte"], delta=10e-9)
        self.assertEqual(slow["codecs"], slower["codecs"])

    def test_the_cache_is_that_of_host_and_instruction_set(self):
        costs = self.measured("--codec", "none")
        self.assertFalse((self.folder / "cache").exists(), "quick figures are for -o alone")
        cached = self.folder / "cache/gradwire" / f"costs-{costs['host']}-{costs['isa']}.json"
        cached.parent.mkdir(parents=True)
        self.file.rename(cached)
        done = self.calibrate("--codec", "none")
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn(f"still valid; --again measures anew ({cached})", done.stdout)
        self.assertIn("two ranks of this host", done.stdout)

    def test_a_calibration_of_another_machine_is_refused(self):
        costs = self.measured("--codec", "none")
        for key in ("host", "isa", "version"):
            with self.subTest(key):
                text = json.dumps(costs | {key: "other"}, indent=1)
                self.file.write_text(text)
                self.assert_refused("other.*measure here.*--again", "-o", str(self.file))
                self.assertEqual(text, self.file.read_text())

    def test_mistakes_are_one_sentence(self):
        self.file.write_text('{\n"gradwire_costs": 1,\n"threads": -1}')
        self.assert_refused("costs.json: line 3: 'threads'", "-o", str(self.file))
        self.assert_refused("unifrom.*uniform", "--codec", "unifrom")
        self.assert_refused("'fast' is not a link's rate", "--link", "fast")
        self.assert_refused("--hosts", "--hosts", "3")
        self.assert_refused("RANK is not set", "--store", "file:" + str(self.folder))
        arguments = ["--quick", "--codec", "none", "-o", "/dev/null/costs.json"]
        self.assert_refused("cannot write /dev/null/costs.json", *arguments, exit_code=1)

    def test_interrupted_it_leaves_nothing_behind(self):
        mark = str(self.folder)
        process = subprocess.Popen(
            [str(PROGRAM), "calibrate", "--codec", "none", "-o", str(self.file)],
            env=self.environment() | {MARK: mark},
        )
        try:
            wait_until(
                lambda: len(processes_marked(mark)) >= 3, "the start of two ranks", DEADLINE_SECONDS
            )
            process.send_signal(signal.SIGINT)
            self.assertEqual(-signal.SIGINT, process.wait(timeout=DEADLINE_SECONDS))
            wait_for_end(mark, 1)
        finally:
            process.kill()
            process.wait()
        self.assertEqual([self.scratch], list(self.folder.iterdir()))
        self.assertEqual([], list(self.scratch.iterdir()))


if __name__ == "__main__":
    if "--program" in sys.argv:
        at = sys.argv.index("--program")
        PROGRAM = Path(sys.argv[at + 1])
        del sys.argv[at : at + 2]
    unittest.main()
