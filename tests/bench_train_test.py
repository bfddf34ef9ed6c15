#!/usr/bin/env python3
"""Runs `gradwire bench train` as a user would: JSON, table, failure, interruption; and gloo beside
`gradwire bench allreduce`.

    bench_train_test.py [--program build/gradwire]

Run directly, by ctest or by pytest. Trains with the Python of the project's .venv; as root on test
hosts, otherwise in processes of this one.
"""

import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from jobs import MARK, processes_marked, read_until

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build" / "gradwire"
DEADLINE_SECONDS = 300
PLACE = "--hosts 2 --link 1gbit" if os.geteuid() == 0 else "--ranks 2"
ROW_FIELDS = """
    method step_seconds step_seconds_min step_seconds_max compute_seconds exposed_seconds
    cpu_seconds wire_bytes_per_step wire_bytes_from of_fp32 final_loss replicas_equal seeds runs
    times_gloo
""".split()


class BenchTrain(unittest.TestCase):
    def setUp(self):
        if not PROGRAM.exists():
            self.skipTest(f"{PROGRAM} is not built; run: make build")
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        kept = {k: v for k, v in os.environ.items() if not k.startswith("GRADWIRE")}
        self.environment = kept | {"TMPDIR": temporary.name, MARK: temporary.name}

    def train(self, arguments: str) -> subprocess.CompletedProcess:
        return self.bench("train " + arguments)

    def bench(self, arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [str(PROGRAM), "bench", *arguments.split()],
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=DEADLINE_SECONDS,
        )

    def assert_nothing_left(self):
        self.assertEqual([], [path.name for path in self.folder.iterdir()])
        self.assertEqual(set(), processes_marked(str(self.folder)))

    def test_json_has_a_row_per_method_with_what_a_step_took(self):
        methods = "gloo,grid:step=0.5"
        done = self.train(f"{PLACE} --model vgg --steps 4 --seeds 2 --methods {methods} --json")
        self.assertEqual((0, ""), (done.returncode, done.stderr))
        report = json.loads(done.stdout)
        place = tuple(report[key] for key in ("model", "optimizer", "steps", "ranks"))
        self.assertEqual(("vgg", "adamw", 4, 2), place)
        gloo, grid = report["rows"]
        self.assertEqual(("gloo", "grid:step=0.5"), (gloo["method"], grid["method"]))
        for row in report["rows"]:
            self.assertEqual(ROW_FIELDS, list(row))
            self.assert_plausible(row)
        self.assertEqual(1, gloo["times_gloo"])
        self.assert_bytes_are_those_of_the_codec(report, gloo, grid)
        self.assertEqual(gloo["runs"][0]["losses"][0], grid["runs"][0]["losses"][0])
        self.assertNotEqual(gloo["runs"][0]["losses"], gloo["runs"][1]["losses"])  # other seeds
        self.assert_nothing_left()

    def test_an_allreduce_is_measured_beside_gloo(self):
        done = self.bench("allreduce -b 64K -e 64K --repeat 1 --codec none --compare gloo --json")
        self.assertEqual((0, ""), (done.returncode, done.stderr))
        self.assertGreater(json.loads(done.stdout)["rows"][0]["gloo_seconds"], 0)
        self.assert_nothing_left()

    def assert_plausible(self, row: dict):
        self.assertEqual(2, row["seeds"])
        self.assertEqual([0, 1], [run["seed"] for run in row["runs"]])
        self.assertLessEqual(row["step_seconds_min"], row["step_seconds"])
        self.assertLessEqual(row["step_seconds"], row["step_seconds_max"])
        self.assertTrue(0 < row["compute_seconds"] < 60)
        self.assertTrue(
            1 < row["final_loss"] < 4, row["final_loss"]
        )  # of ten classes: 2.3 at first
        for run in row["runs"]:
            self.assertEqual((4, 4), (len(run["losses"]), len(run["seconds"])))

    def assert_bytes_are_those_of_the_codec(self, report: dict, gloo: dict, grid: dict):
        fp32 = 4 * report["parameters"]  # of two ranks, each sends half of it twice
        self.assertAlmostEqual(gloo["wire_bytes_per_step"] / fp32, gloo["of_fp32"], places=3)
        self.assertGreater(gloo["of_fp32"], 0.99)
        self.assertTrue(0 < grid["of_fp32"] < 0.2, grid["of_fp32"])
        if os.geteuid() == 0:  # nobody else uses that interface
            self.assertEqual(["eth0"] * 2, [row["wire_bytes_from"] for row in (gloo, grid)])
            self.assertLess(gloo["of_fp32"], 1.05)

    def test_without_hosts_it_says_so_and_output_holds_the_json(self):
        file = self.folder / "training.json"
        done = self.train(f"--ranks 2 --steps 2 --model resnet --methods gloo --output {file}")
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertRegex(done.stderr, r"^gloo, seed 0: 2 steps of [0-9.]+ s, .*loss [0-9.]+\n$")
        self.assertIn("2 processes of one host, no network between them", done.stdout)
        self.assertRegex(done.stdout, r"\ngloo +[0-9.]+ ")
        report = json.loads(file.read_text())
        self.assertEqual((0, "none", 2), (report["hosts"], report["link"], report["ranks"]))
        file.unlink()
        self.assert_nothing_left()

    def test_residual_compression_is_evaluated(self):
        method = "residual:density=0.01,warmup=2"
        options = f"--optimizer sgd --batch 2 --evaluate --methods {method}"
        done = self.train(f"--ranks 2 --steps 4 --model vgg {options} --json")
        self.assertEqual((0, ""), (done.returncode, done.stderr))
        (row,) = json.loads(done.stdout)["rows"]
        self.assertEqual((method, True), (row["method"], row["replicas_equal"]))
        self.assertTrue(0 < row["held_out_accuracy"] < 0.9, row)
        self.assertTrue(0 < row["held_out_loss"] < 10, row)

    def test_residual_compression_wants_sgd(self):
        done = self.train("--ranks 2 --steps 2 --methods gloo,residual")
        self.assertEqual((2, ""), (done.returncode, done.stdout))
        self.assertIn("add --optimizer sgd", done.stderr)

    def test_residual_compression_is_told_the_link_of_test_hosts(self):
        python = self.folder / "python"
        python.write_text(f'#!/bin/sh\necho "$*" > {self.folder}/told\nexit 1\n')
        python.chmod(0o700)
        for place, told in ((PLACE, os.geteuid() == 0), ("--ranks 2 --link 1gbit", False)):
            self.train(f"{place} --steps 2 --optimizer sgd --methods residual --python {python}")
            self.assertEqual(told, "--link 1gbit" in (self.folder / "told").read_text())

    def test_what_a_rank_complains_of_is_shown(self):
        done = self.train("--ranks 2 --steps 2 --methods gloo --python /bin/false")
        self.assertEqual(2, done.returncode)
        self.assertRegex(done.stderr, "^gradwire: rank [01] failed")
        self.assert_nothing_left()

    def test_interrupt_ends_the_ranks_and_leaves_nothing(self):
        terminal, slave = pty.openpty()
        command = [str(PROGRAM), "bench", "train", *PLACE.split(), "--steps", "100000"]
        process = subprocess.Popen(
            [*command, "--methods", "gloo"],
            stdout=subprocess.PIPE,
            stderr=slave,
            env=self.environment,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        try:
            os.close(slave)
            self.assertIn(b" loss ", read_until(terminal, b" loss ", DEADLINE_SECONDS))
            process.send_signal(signal.SIGINT)
            self.assertEqual(b"", process.communicate(timeout=DEADLINE_SECONDS)[0])
            self.assertEqual(-signal.SIGINT, process.returncode)
        finally:
            process.kill()
            process.wait()
            os.close(terminal)
        self.assert_nothing_left()


if __name__ == "__main__":
    if "--program" in sys.argv:
        at = sys.argv.index("--program")
        PROGRAM = Path(sys.argv[at + 1])
        del sys.argv[at : at + 2]
    unittest.main()
