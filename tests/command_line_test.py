#!/usr/bin/env python3
"""Runs the `gradwire` command line as a user would: help, JSON, tables, mistakes, interruption.

    command_line_test.py [--program build/gradwire]

Run directly, by ctest or by pytest; needs no packages.
"""

import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from jobs import read_until

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build" / "gradwire"
BASELINE = "uniform:bits=4,bucket=128,rounding=stochastic"
COMMANDS = [
    "bench adapt",
    "bench codec",
    "bench distortion",
    "bench coder",
    "bench plan",
    "bench select",
    "bench train",
    "calibrate",
    "plan",
    "simulate",
    "inspect",
    "hosts",
]
ESCAPE = "\x1b"
DEADLINE_SECONDS = 120


def gradwire(arguments, **options) -> subprocess.CompletedProcess:
    arguments = arguments.split() if isinstance(arguments, str) else arguments
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GRADWIRE_")}
    environment |= options.pop("env", {})
    return subprocess.run(
        [str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=DEADLINE_SECONDS,
        **options,
    )


def safetensors_file(tensors: dict[str, list[float]], shape: list[int] | None = None) -> bytes:
    """A small file as the safetensors library writes it, all tensors of the same shape."""
    header, data = {}, b""
    for name, values in tensors.items():
        packed = struct.pack(f"<{len(values)}f", *values)
        offsets = [len(data), len(data) + len(packed)]
        header[name] = {"dtype": "F32", "shape": shape or [len(values)], "data_offsets": offsets}
        data += packed
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


class CommandLine(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not PROGRAM.exists():
            raise unittest.SkipTest(f"{PROGRAM} is not built; run: make build")

    def json_of(self, arguments, **options) -> dict:
        done = gradwire(arguments, **options)
        self.assertEqual((0, ""), (done.returncode, done.stderr), arguments)
        document = json.loads(done.stdout)  # one object and nothing else, or this raises
        self.assertIsInstance(document, dict)
        return document

    def assert_refused(self, arguments, exit_code: int, pattern: str, **options):
        done = gradwire(arguments, **options)
        self.assertEqual(exit_code, done.returncode, (arguments, done.stderr))
        self.assertRegex(done.stderr, pattern)
        self.assertEqual(1, len(done.stderr.splitlines()), done.stderr)
        return done


class Help(CommandLine):
    def test_every_command_explains_itself_with_examples(self):
        for command in ["", "bench", *COMMANDS]:
            with self.subTest(command=command):
                done = gradwire(f"{command} --help")
                self.assertEqual((0, ""), (done.returncode, done.stderr))
                self.assertRegex(done.stdout, rf"Examples:\n  gradwire {command}")
                self.assertLessEqual(max(map(len, done.stdout.splitlines())), 110)

    def test_version_is_a_number(self):
        self.assertRegex(gradwire("--version").stdout, r"^gradwire \d+\.\d+\.\d+\n$")


class Schedule(CommandLine):
    def test_every_collective_has_an_algorithm_of_its_own(self):
        for collective in "all_reduce reduce_scatter all_gather broadcast barrier".split():
            done = gradwire(f"schedule --collective {collective}")
            self.assertEqual((0, ""), (done.returncode, done.stderr))
            self.assertIn("rank 3", done.stdout)


class Mistakes(CommandLine):
    def test_wrong_use_is_one_sentence_and_exit_code_2(self):
        for arguments, pattern in [
            ("", "name one of: bench, calibrate, plan, simulate, inspect, hosts"),
            ("bench", "name one of: codec, distortion, coder"),
            ("bench speed", "name one of: codec, distortion, coder"),
            ("bench codec --fast", "--fast; see gradwire bench codec --help"),
            ("bench codec --codec unifrm", "unknown codec 'unifrm'.*uniform"),
            ("bench codec --codec uniform:bit=4", "bits"),
            ("bench codec --codec uniform:bits=99", "bits"),
            ("bench codec --bytes 12Q", "'12Q' is not a size"),
            ("bench codec --bytes 6", "multiple of 4"),
            ("bench codec --bytes 0", "multiple of 4"),
            ("bench codec --repeat 0", "--repeat"),
            ("bench codec --data cauchy", "gaussian, laplace, student, sparse"),
            ("bench codec --isa mmx", "'mmx' is not available.*scalar"),
            ("bench distortion --codec grid:step=none", "step"),
            ("bench distortion --group nothing", "gaussian, laplace and student_t3"),
            ("bench select --density 2", "--density"),
            ("bench select --elements 0", "--elements 0 leaves nothing"),
            ("bench select --data cauchy", "gaussian, laplace, student, sparse"),
            ("bench train --methods glo", "unknown codec 'glo'"),
            ("bench train --methods gloo,uniform:bits=4,buckets=2", "buckets.*bucket"),
            ("bench train --model alexnet", "--model.*vgg.*resnet.*transformer"),
            ("bench train --steps 1", "--steps"),
            ("bench train --hosts 2 --ranks 2", "--hosts excludes --ranks"),
            ("bench train --ranks 2 --link 1gb", "'1gb' is not"),
            ("inspect", "FILE is required"),
            ("hosts", "COMMAND is required"),
            ("hosts true", "write -- before the command"),
            ("hosts --count 0 -- true", "--count"),
            ("hosts --count 255 -- true", "--count"),
            ("hosts --port 65536 -- true", "--port"),
            ("hosts --timeout 0 -- true", "--timeout"),
            ("hosts --link 1gb -- true", "'1gb' is not.*kbit, mbit or gbit.*1gbit.*none"),
        ]:
            with self.subTest(arguments=arguments):
                done = self.assert_refused(arguments, 2, pattern)
                self.assertEqual("", done.stdout)

    def test_environment_is_checked(self):
        self.assert_refused("--version", 2, "GRADWIRE_ISA.*scalar", env={"GRADWIRE_ISA": "mmx"})
        self.assert_refused("--version", 2, "GRADWIRE_IAS", env={"GRADWIRE_IAS": "avx2"})

    def test_files_that_cannot_be_read_are_named(self):
        for command in ("inspect", "bench distortion --gradients", "bench adapt --gradients"):
            self.assert_refused(f"{command} /no/such/file", 1, "cannot read /no/such/file: No such")
            self.assert_refused(f"{command} /", 1, "cannot read /: ")

    def test_output_that_cannot_be_written_is_a_failure(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([str(PROGRAM), "--help"], stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(1, done.returncode)


class BenchCodec(CommandLine):
    SMALL = "bench codec --bytes 4K,64K --repeat 2 --codec none --codec uniform:bits=4"

    def test_json_has_the_limits_and_a_row_per_codec_and_size(self):
        document = self.json_of(f"{self.SMALL} --json")
        self.assertGreater(document["read_gbps"], 0)
        self.assertGreater(document["memcpy_gbps"], 0)
        self.assertTrue(document["cpu"])
        self.assertTrue(0 < document["cpu_share"] <= 1)
        self.assertTrue(document["isa"])
        rows = {(row["codec"], row["bytes"]): row for row in document["rows"]}
        texts = ("none", "uniform:bits=4")  # as given, not as spelt out
        self.assertEqual({(t, b) for t in texts for b in (4096, 65536)}, set(rows))
        for row in rows.values():
            for name in ("encode", "decode", "decode_add"):
                speed = row[f"{name}_gbps"]
                self.assertLessEqual(row[f"{name}_gbps_min"], speed)
                self.assertGreaterEqual(row[f"{name}_gbps_max"], speed)
        self.assertEqual(0, rows["none", 65536]["nmse"])
        self.assertGreater(rows["none", 65536]["bits_per_element"], 32)
        self.assertGreater(rows["uniform:bits=4", 65536]["nmse"], 0)

    def test_isa_is_the_one_asked_for_and_changes_no_bytes(self):
        arguments = "bench codec --bytes 64K --repeat 1 --codec grid --json"
        scalar = self.json_of(f"{arguments} --isa scalar")
        best = self.json_of(arguments)
        self.assertEqual("scalar", scalar["isa"])
        for field in ("bits_per_element", "nmse"):
            self.assertEqual(scalar["rows"][0][field], best["rows"][0][field])

    def test_environment_chooses_the_isa(self):
        arguments = "bench codec --bytes 4K --repeat 1 --codec none --json"
        self.assertEqual("scalar", self.json_of(arguments, env={"GRADWIRE_ISA": "scalar"})["isa"])

    def test_sparse_data_is_sparse(self):
        arguments = "bench codec --bytes 1M --repeat 1 --codec grid --data sparse --json"
        self.assertLess(self.json_of(arguments)["rows"][0]["bits_per_element"], 1)

    def test_table_is_plain_text_off_a_terminal(self):
        done = gradwire(self.SMALL)
        self.assertEqual((0, ""), (done.returncode, done.stderr))
        self.assertNotIn(ESCAPE, done.stdout)
        for word in ("GB/s", "x read", "x memcpy", "64 KiB", "uniform:bits=4"):
            self.assertIn(word, done.stdout)


class BenchAdapt(CommandLine):
    def test_solvers_are_compared_by_model_and_step(self):
        values = [(-1) ** i * (i % 37) / 37 for i in range(4096)]
        names = ["lm/1/embed", "lm/20/embed", "lm/20/body"]
        content = safetensors_file(dict.fromkeys(names, values), shape=[64, 64])
        with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
            file.write(content)
            file.flush()
            document = self.json_of(f"bench adapt --gradients {file.name} --json")
            table = gradwire(f"bench adapt --gradients {file.name} --group lm/20").stdout
        layers = {row["group"]: row["layers"] for row in document["steps"]}
        self.assertEqual({"lm/1": 1, "lm/20": 2}, layers)
        self.assertEqual({"lm"}, {row["group"] for row in document["models"]})
        solvers = {row["solver"]: row for row in document["steps"]}
        self.assertEqual({"uniform", "kmeans", "linear", "dp", "waterfill"}, set(solvers))
        for row in document["steps"]:
            self.assertLessEqual(row["error_of_budget"], 1)
            if row["solver"] != "waterfill":  # such numbers are what equal steps are best for
                self.assertLessEqual(row["ratio_to_reference"], 1)
        self.assertIn("lm/20, 2 layers, 8192 elements", table)
        self.assertNotIn("lm/1", table)

    def test_what_cannot_be_adapted_to_is_refused_with_the_remedy(self):
        with tempfile.TemporaryDirectory() as folder:
            arguments = "bench adapt"
            self.assert_refused(arguments, 1, "capture_gradients.py.*--gradients", cwd=folder)
            file = Path(folder, "flat.safetensors")
            file.write_bytes(safetensors_file({"lm/1/bias": [1.0] * 2000}))
            arguments = f"bench adapt --gradients {file}"
            self.assert_refused(arguments, 2, "two dimensions and 1024 elements")
            self.assert_refused(f"{arguments} --group vit/*", 2, "leave --group out")


class BenchDistortion(CommandLine):
    FIELDS = {"group", "codec", "elements", "bytes", "bits_per_element", "nmse"}

    def with_file(self, content: bytes, arguments: str, check):
        with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
            file.write(content)
            file.flush()
            return check(f"bench distortion --gradients {file.name} {arguments}")

    def test_synthetic_rows_have_the_fields_and_the_bound(self):
        document = self.json_of("bench distortion --json --codec grid:step=0.5 --group gaussian")
        self.assertEqual(BASELINE, document["baseline"])
        baseline, grid = document["rows"]
        self.assertEqual((BASELINE, "grid:step=0.5"), (baseline["codec"], grid["codec"]))
        for row in (baseline, grid):
            self.assertLessEqual(self.FIELDS, set(row))
            self.assertEqual("gaussian", row["group"])
            self.assertEqual(4 << 20, row["elements"])
            self.assertAlmostEqual(row["bytes"] * 8 / row["elements"], row["bits_per_element"], 4)
            self.assertAlmostEqual(
                row["gap_bits"], row["bits_per_element"] - row["shannon_bits"], places=4
            )
            self.assertGreater(row["gap_bits"], 0)
        self.assertEqual(1, baseline["ratio_to_baseline"])
        self.assertLess(grid["ratio_to_baseline"], 1)

    def test_gradients_are_grouped_by_model_and_step(self):
        values = [(-1) ** i * (i % 37) / 37 for i in range(1000)]
        names = ["lm/1/embed.w", "lm/20/embed.w", "lm/20/body.w", "lm/30/body.w", "other"]
        content = safetensors_file(dict.fromkeys(names, values))
        document = self.with_file(content, "--json --codec none", self.json_of)
        elements = {row["group"]: row["elements"] for row in document["rows"]}
        self.assertEqual(
            {
                "all": 1000,
                "lm/1": 1000,
                "lm/20": 2000,
                "lm/30": 1000,
                "lm/steps>=20": 3000,
                "lm-without-embeddings/20": 1000,
                "lm-without-embeddings/30": 1000,
                "lm-without-embeddings/steps>=20": 2000,
            },
            elements,
        )
        exact = [row for row in document["rows"] if row["codec"] == "none"]
        self.assertEqual(len(elements), len(exact))
        for row in exact:
            self.assertEqual(0, row["nmse"])
            self.assertGreater(row["bits_per_element"], 32)

    def test_table_shows_sums_over_steps(self):
        content = safetensors_file({f"m/{step}/w": [1.0, 2.0] for step in (1, 20, 21)})
        done = self.with_file(content, "--codec none", gradwire)
        self.assertEqual((0, ""), (done.returncode, done.stderr))
        self.assertIn("m/steps>=20, 4 elements", done.stdout)
        self.assertNotIn("m/1, ", done.stdout)

    def test_damaged_file_is_named_with_the_reason(self):
        content = safetensors_file({"w": [1.0]})
        for damaged, reason in [
            (b"", "fewer than 8 bytes"),
            (content[:-1], "behind the end of the file"),
            (content + b"x", "follow its last tensor"),
            (b"\xff" * 64, "longer than 100 MB"),
            (content.replace(b"F32", b"I32"), "I32.*F32, F16 or BF16"),
        ]:
            with self.subTest(reason=reason):
                check = lambda arguments: self.assert_refused(arguments, 1, reason)  # noqa: E731,B023
                self.with_file(damaged, "", check)


class BenchCoder(CommandLine):
    def test_json_compares_both_coders(self):
        document = self.json_of("bench coder --json --symbols 1M --repeat 1")
        rivals = {"htscodecs_encode_msym", "htscodecs_decode_msym", "htscodecs_bits"}
        ours = {"ours_encode_msym", "ours_decode_msym", "ours_bits", "entropy_bits"}
        self.assertTrue(ours | rivals | {"encode_ratio", "decode_ratio"} <= set(document))
        for field in ours:
            self.assertGreater(document[field], 0)
        self.assertEqual(1 << 20, document["symbols"])
        self.assertGreater(document["ours_bits"], document["entropy_bits"])
        if document["htscodecs_bits"] is not None:
            self.assertGreater(document["htscodecs_bits"], document["entropy_bits"])


class BenchSelect(CommandLine):
    def test_json_has_a_row_per_method_and_what_it_selects(self):
        arguments = "bench select --json --elements 256K --density 0.01 --repeat 1"
        document = self.json_of(arguments)
        self.assertEqual(2622, document["wanted"])
        self.assertGreater(document["read_gbps"], 0)
        rows = {row["method"]: row for row in document["rows"]}
        self.assertEqual(
            ["nth_element", "exact", "bracket", "trimmed", "search", "reused"], list(rows)
        )
        for row in rows.values():
            self.assertEqual((1 << 18, 0.01), (row["elements"], row["density"]))
            self.assertGreater(row["seconds"], 0)
            self.assertGreaterEqual(row["whole_seconds"], row["seconds"])
            self.assertGreater(row["read_gbps"], 0)
            self.assertTrue(1311 <= row["selected"] <= 5244, row)
            self.assertTrue(0 < row["energy"] < 1, row)
        for exact in ("nth_element", "exact", "trimmed"):
            self.assertEqual(2622, rows[exact]["selected"])
        self.assertEqual(rows["nth_element"]["energy"], rows["exact"]["energy"])
        self.assertGreater(rows["bracket"]["energy_of_exact"], 0.97)
        self.assertEqual(rows["bracket"]["selected"], rows["reused"]["selected"])


class Plan(CommandLine):
    def test_choices_are_never_behind_plain_and_become_a_plan(self):
        for link in ("100mbit", "10gbit", "1000gbit"):
            with tempfile.TemporaryDirectory() as folder:
                path = str(Path(folder) / "plan.json")
                arguments = f"plan --model lstm --hosts 4 --link {link} --json -o {path}"
                document = self.json_of(arguments.split())
                written = self.json_of(["inspect", "--json", path])
            self.assertLessEqual(document["predicted_seconds"], document["plain_seconds"])
            self.assertGreaterEqual(document["predicted_seconds"], document["compute_seconds"])
            self.assertEqual(10, len(document["tensors"]))
            self.assertEqual(
                [(t["name"], t["way"], t["reason"]) for t in document["tensors"]],
                [(layer["layers"], layer["way"], layer["reason"]) for layer in written["layers"]],
            )
            ways = [tensor["way"] for tensor in document["tensors"]]
            if link == "100mbit":
                self.assertTrue(any(not way.startswith("none") for way in ways), ways)
            if link == "1000gbit":
                # Nothing hides the exchange of the last tensor, so a codec may still pay there.
                self.assertTrue(all(way.startswith("none") for way in ways[:-1]), ways)

    def test_choices_keep_to_limits(self):
        base = "plan --model lstm --hosts 4 --link 1gbit --json --codec uniform:bits=4,bucket=128"
        free = self.json_of(base.split())

        def compressed(document):
            return [t["name"] for t in document["tensors"] if not t["way"].startswith("none")]

        self.assertGreater(len(compressed(free)), 2)
        one = self.json_of([*base.split(), "--most-compressions", "1"])
        self.assertEqual(1, len(compressed(one)))
        self.assertGreater(one["predicted_seconds"], free["predicted_seconds"])
        exact = self.json_of([*base.split(), "--most-error", "1e-6"])
        self.assertEqual([], compressed(exact))
        self.assertGreaterEqual(free["predicted_seconds"], free["least_seconds"])

    def test_a_size_of_buckets_is_advised_or_taken(self):
        base = "plan --model bert-base --hosts 4 --link 10gbit --json"
        document = self.json_of(base.split())
        steps = {each["bucket_mb"]: each["predicted_seconds"] for each in document["buckets"]}
        self.assertIn(25, steps)
        best = steps[document["advised_bucket_mb"]]
        self.assertLessEqual(best, 1.001 * min(steps.values()))
        fixed = self.json_of([*base.split(), "--bucket-mb", "25"])
        self.assertAlmostEqual(steps[25], fixed["predicted_seconds"], places=5)
        self.assertNotIn("buckets", fixed)

    def test_selecting_is_timed_beside_bounds(self):
        document = self.json_of("bench plan --json --repeat 1".split())
        rows = document["rows"]
        self.assertEqual(19, len(rows))
        for row in rows:
            with self.subTest(row["model"], compressor=row["compressor"]):
                self.assertEqual(4341, row["options"])
                self.assertGreater(row["select_milliseconds"], 0)
                step = row["predicted_seconds"]
                self.assertLessEqual(row["compute_seconds"], step)
                self.assertLessEqual(row["least_seconds"], step)
                for other in ("plain", "all_compressed", "five_options"):
                    self.assertLessEqual(step, row[f"{other}_seconds"] * (1 + 1e-5), other)
                # The paper's own limit; where codecs forbid it no choice can be much shorter.
                self.assertLessEqual(
                    step, max(1.05 * row["bound_seconds"], 1.13 * row["least_seconds"])
                )

    def test_wrong_use_is_one_sentence(self):
        for arguments, pattern in [
            ("plan --model vgg16 --most-error -1", "--most-error"),
            ("plan --model vgg16 --bucket-mb 0", "--bucket-mb"),
            ("plan", "of what.*--model.*vgg16.*--profile.*--workload"),
            ("plan --model vgg17", "no model 'vgg17'.*vgg16"),
            ("plan --model vgg16 --link fast", "'fast' is not a link's rate"),
            ("plan --model vgg16 --codec uniform:bits=3", "gradwire calibrate"),
            ("plan --model vgg16 --hosts 0", "--hosts"),
        ]:
            with self.subTest(arguments):
                done = gradwire(arguments)
                self.assertEqual(2, done.returncode, done.stderr)
                self.assertRegex(done.stderr, pattern)
                self.assertEqual(1, done.stderr.count("\n"), done.stderr)


class Inspect(CommandLine):
    # The first example of docs/format.md.
    FRAME = bytes.fromhex(
        "4752445701000000500000000000000001000000ea2aa7bc0300000301000400"
        "000000000000000005000000000000000a00000000000000003f80bf0000e040"
        "230e000000000000770298c23200bc1e"
    )

    def inspect(self, content: bytes, arguments: str = "") -> subprocess.CompletedProcess:
        """Through the standard input, as bytes."""
        command = [str(PROGRAM), "inspect", *arguments.split(), "-"]
        return subprocess.run(command, input=content, capture_output=True, timeout=DEADLINE_SECONDS)

    def test_json_tells_what_a_frame_holds(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(self.FRAME)
            file.flush()
            document = self.json_of(["inspect", "--json", file.name])
        self.assertEqual((True, 1, "ok"), tuple(document[k] for k in ("ok", "version", "checksum")))
        self.assertEqual(
            (80, 0, 5), tuple(document[k] for k in ("bytes", "trailing_bytes", "elements"))
        )
        self.assertEqual(128, document["bits_per_element"])
        (segment,) = document["segments"]
        self.assertRegex(segment["codec"], "^uniform:.*bits=3.*")
        self.assertEqual(("f32", 5, 10), tuple(segment[k] for k in ("dtype", "count", "bytes")))
        self.assertEqual(16, segment["bits_per_element"])

    def test_table_tells_the_same(self):
        done = self.inspect(self.FRAME)
        self.assertEqual((0, b""), (done.returncode, done.stderr))
        for word in (b"version 1", b"80 bytes", b"checksum ok", b"1 segment,", b"uniform:"):
            self.assertIn(word, done.stdout)

    def test_bytes_behind_the_frame_are_counted(self):
        done = self.inspect(self.FRAME + b"more", "--json")
        self.assertEqual(4, json.loads(done.stdout)["trailing_bytes"])

    def assert_damaged(self, content: bytes):
        done = self.inspect(content)
        self.assertEqual((1, b""), (done.returncode, done.stdout), content)
        self.assertEqual(1, len(done.stderr.splitlines()), done.stderr)

    def test_damage_is_one_sentence_and_exit_code_1(self):
        for size in range(len(self.FRAME)):
            self.assert_damaged(self.FRAME[:size])
        for at in range(len(self.FRAME)):
            damaged = bytearray(self.FRAME)
            damaged[at] ^= 1 << at % 8
            self.assert_damaged(bytes(damaged))

    def test_an_empty_file_is_said_to_be_empty(self):
        self.assertIn(b"it is empty: neither a frame nor a plan", self.inspect(b"").stderr)

    def test_damage_in_json_is_an_object_with_the_reason(self):
        done = self.inspect(self.FRAME[:-1], "--json")
        self.assertEqual(1, done.returncode)
        document = json.loads(done.stdout)
        self.assertIs(False, document["ok"])
        self.assertIn("cut short", document["error"])


class Run(CommandLine):
    """What Python makes of it is in python/tests/test_launcher.py; this is about which Python."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.environment = Path(folder.name)
        self.python = self.environment / "bin" / "python"
        self.python.parent.mkdir()
        self.python.write_text('#!/bin/sh\nprintf \'%s\\n\' "$0" "$@"\nexit 7\n')
        self.python.chmod(0o755)

    def test_arguments_reach_python_unchanged_and_its_exit_code_comes_back(self):
        arguments = "--nproc_per_node=2 --help -m [a,b] -- --python x bench".split() + ["", "a b"]
        done = gradwire(["run", "--python", str(self.python), *arguments])
        self.assertEqual((7, ""), (done.returncode, done.stderr))
        expected = [str(self.python), "-P", "-m", "gradwire.torch.run", *arguments]
        self.assertEqual(expected, done.stdout.splitlines())

    def test_python_is_that_of_the_active_environment(self):
        done = gradwire("run", env={"VIRTUAL_ENV": str(self.environment)})
        self.assertEqual(str(self.python), done.stdout.splitlines()[0])

    def test_python_of_the_environment_that_has_the_program_comes_first(self):
        (self.environment / "pyvenv.cfg").touch()
        program = self.python.with_name("gradwire")
        shutil.copy(PROGRAM, program)
        environment = os.environ | {"VIRTUAL_ENV": "/no/such/environment"}
        done = subprocess.run([program, "run"], env=environment, capture_output=True, text=True)
        self.assertEqual(str(self.python), done.stdout.splitlines()[0])

    def test_python_of_path_is_the_last_resort(self):
        program = self.environment / "gradwire"
        shutil.copy(PROGRAM, program)
        self.python.rename(self.python.with_name("python3"))
        environment = {"PATH": f"{self.python.parent}:/usr/bin:/bin"}
        done = subprocess.run([program, "run"], env=environment, capture_output=True, text=True)
        self.assertEqual(str(self.python) + "3", done.stdout.splitlines()[0])

    def test_python_that_cannot_be_run_is_named(self):
        self.assert_refused("run --python /no/python x.py", 2, "/no/python: No such.*--python")


class Interruption(CommandLine):
    """On a terminal there is a bar, and Ctrl-C leaves neither it nor the process behind."""

    def test_interrupt_wipes_the_bar_and_ends_by_the_signal(self):
        terminal, slave = pty.openpty()
        command = [str(PROGRAM), "bench", "codec", "--repeat", "100000"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=slave)
        try:
            os.close(slave)
            self.assertIn(b"] ", read_until(terminal, b"] ", DEADLINE_SECONDS))
            process.send_signal(signal.SIGINT)
            self.assertEqual(b"", process.communicate(timeout=DEADLINE_SECONDS)[0])
            self.assertEqual(-signal.SIGINT, process.returncode)
            rest = b""
            try:
                while chunk := os.read(terminal, 4096):
                    rest += chunk
            except OSError:  # how a pseudo-terminal says that its other end is closed
                pass
            self.assertTrue(rest.endswith(b"\r\x1b[K"), rest[-80:])
        finally:
            process.kill()
            process.wait()
            os.close(terminal)


if __name__ == "__main__":
    if "--program" in sys.argv:
        at = sys.argv.index("--program")
        PROGRAM = Path(sys.argv[at + 1])
        del sys.argv[at : at + 2]
    unittest.main()
