#!/usr/bin/env python3
"""Runs `gradwire plan` with sweeps and traces, `gradwire simulate`, and both on broken input.

    plan_command_test.py [--program build/gradwire]

Run directly, by ctest or by pytest; needs no packages.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build" / "gradwire"
DEADLINE_SECONDS = 120

WORKLOAD = {
    "gradwire_workload": 1,
    "name": "two layers",
    "forward_seconds": 0.004,
    "backward_seconds": 0.01,
    "tensors": [
        {"name": "head", "elements": 5_000_000, "ready_seconds": 0.002},
        {"name": "body", "elements": 1_000_000, "ready_seconds": 0.009},
    ],
}
LINK = {
    "seconds": 1e-5,
    "seconds_per_byte": 1e-9,
    "cpu_seconds": 0,
    "cpu_seconds_per_byte": 0,
}
TABLE = [[1024, 1e-6], [1048576, 1e-3]]
COSTS = {
    "gradwire_costs": 1,
    "source": "made up",
    "host": "",
    "isa": "avx2",
    "version": "0.1.0",
    "inside": LINK,
    "between": LINK,
    "delay": 0,
    "threads": 1,
    "cores": 2,
    "interference": 1,
    "codecs": {"none": {"encode": TABLE, "decode": TABLE, "bytes_per_element": 4}},
}


def operation(name: str, begin: object, duration: object, **arguments) -> dict:
    """An event as torch.profiler writes it."""
    event = {"ph": "X", "cat": "cpu_op", "name": name, "tid": 1, "ts": begin, "dur": duration}
    return event | {"args": {key.replace("_", " "): value for key, value in arguments.items()}}


def function(begin: object, duration: object) -> dict:
    name = "autograd::engine::evaluate_function: MulBackward0"
    return operation(name, begin, duration, Sequence_number=1)


def gradient(begin: object) -> dict:
    return operation("torch::autograd::AccumulateGrad", begin, 1, Input_Dims=[[64, 64]])


class PlanCommand(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not PROGRAM.exists():
            raise unittest.SkipTest(f"{PROGRAM} is not built; run: make build")

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, name: str, content: object) -> str:
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    def gradwire(self, *arguments: str, memory: int = 0) -> subprocess.CompletedProcess:
        """Of so many bytes at most, if any."""

        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

        return subprocess.run(
            [str(PROGRAM), *arguments],
            preexec_fn=limit if memory else None,
            capture_output=True,
            text=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("GRADWIRE_")},
            timeout=DEADLINE_SECONDS,
        )

    def output_of(self, *arguments: str, memory: int = 0) -> str:
        done = self.gradwire(*arguments, memory=memory)
        self.assertEqual((0, ""), (done.returncode, done.stderr), arguments)
        return done.stdout

    def json_of(self, *arguments: str) -> dict:
        return json.loads(self.output_of(*arguments, "--json"))

    def assert_refused(self, pattern: str, *arguments: str):
        done = self.gradwire(*arguments)
        self.assertEqual((2, ""), (done.returncode, done.stdout), (arguments, done.stderr))
        self.assertRegex(done.stderr, pattern)
        self.assertEqual(1, len(done.stderr.splitlines()), done.stderr)


class Sweep(PlanCommand):
    def test_points_are_those_of_single_plans(self):
        found = self.json_of(*"plan --model lstm --hosts 4 --sweep link=100mbit:100gbit:4".split())
        self.assertEqual(
            ["100mbit", "1gbit", "10gbit", "100gbit"], [row["link"] for row in found["rows"]]
        )
        for row in found["rows"]:
            alone = self.json_of(*f"plan --model lstm --hosts 4 --link {row['link']}".split())
            for figure in ("predicted", "plain", "all_compressed", "bound", "compute"):
                self.assertEqual(alone[f"{figure}_seconds"], row[f"{figure}_seconds"], figure)
            ways = [tensor["way"].split("+")[0] for tensor in alone["tensors"]]
            exact = sum(codec["tensors"] for codec in row["codecs"] if codec["codec"] == "none")
            self.assertEqual(ways.count("none"), exact)
            self.assertAlmostEqual(1, sum(codec["of_bytes"] for codec in row["codecs"]), places=4)

    def test_compression_pays_up_to_some_rate(self):
        found = self.json_of(*"plan --model vgg16 --hosts 4 --sweep link=100mbit:400gbit".split())
        rows = found["rows"]
        self.assertEqual("none", rows[-1]["codecs"][0]["codec"])
        self.assertGreater(rows[-1]["codecs"][0]["of_bytes"], 0.99)
        self.assertNotIn("400gbit", [pays["to"] for pays in found["pays"]])
        self.assertLess(rows[0]["predicted_seconds"], rows[0]["plain_seconds"] / 2)
        self.assertTrue(found["pays"])
        by_rate = {row["link"]: row for row in rows}
        for pays in found["pays"]:
            for end in (pays["from"], pays["to"]):
                self.assertIn(pays["codec"], [c["codec"] for c in by_rate[end]["codecs"]])

    def test_what_is_counted_doubles(self):
        found = self.json_of(*"plan --model lstm --sweep hosts=2:12".split())
        self.assertEqual(["2", "4", "8", "12"], [row["hosts"] for row in found["rows"]])
        found = self.json_of(*"plan --model lstm --sweep ranks-per-host=1:4".split())
        self.assertEqual(["1", "2", "4"], [row["ranks-per-host"] for row in found["rows"]])
        found = self.json_of(*"plan --model lstm --sweep step=50:200:3".split())
        self.assertEqual(["50", "100", "200"], [row["step"] for row in found["rows"]])
        self.assertEqual([0.05, 0.1, 0.2], [row["compute_seconds"] for row in found["rows"]])
        found = self.json_of(*"plan --model lstm --sweep step=1:1e3:2".split())
        self.assertEqual(["1", "1000"], [row["step"] for row in found["rows"]])

    def test_table_says_where_codecs_pay(self):
        table = self.output_of(*"plan --model lstm --sweep link=1gbit:10gbit:3".split())
        self.assertRegex(table, r"^lstm on 2 hosts with 1 rank each; costs: preset cpu")
        self.assertRegex(table, r"(?m)^ *3.2gbit .* % ")
        self.assertRegex(table, r"(?m)^\S+ pays from 1gbit to \S+gbit$")

    def test_picture_is_well_formed_and_names_curves_and_codecs(self):
        path = self.folder / "sweep.svg"
        workload = self.write("w.json", WORKLOAD | {"name": "a <&> b"})
        arguments = f"--hosts 4 --sweep link=100mbit:100gbit --picture {path}".split()
        self.output_of("plan", "--workload", workload, *arguments)
        texts = [text.text for text in xml.etree.ElementTree.parse(path).iter() if text.text]
        for wanted in ("by the plan", "all exact", "1 Gbit/s", "exact", "100 %"):
            self.assertIn(wanted, texts)
        self.assertTrue(any("a <&> b" in text for text in texts), texts)
        self.assertTrue(any(text.startswith("uniform") for text in texts), texts)

    def test_curves_end_where_steps_are_not_finite(self):
        path = self.folder / "sweep.svg"
        idle = WORKLOAD | {"forward_seconds": 0, "backward_seconds": 0}
        idle["tensors"] = [tensor | {"ready_seconds": 0} for tensor in WORKLOAD["tensors"]]
        for arguments, points in [
            (["--model", "lstm", "--sweep", "hosts=1:4"], 2),  # a single rank compresses nothing
            (["--model", "lstm", "--most-error", "0", "--sweep", "hosts=2:4"], 0),
            (["--workload", self.write("w.json", idle), "--sweep", "hosts=1:4"], 2),
        ]:
            with self.subTest(arguments):
                self.output_of("plan", *arguments, "--picture", str(path), memory=1_500_000_000)
                elements = list(xml.etree.ElementTree.parse(path).iter())
                curves = [e.get("points") for e in elements if e.tag.endswith("polyline")]
                self.assertEqual(points, len(curves[-1].split()))
                self.assertNotRegex(path.read_text(), "inf|nan")
                names = [element.text for element in elements]
                self.assertEqual(points > 0, "all compressed" in names)

    def test_what_cannot_be_varied_is_refused(self):
        for sweep, pattern in [
            ("link", "a part is missing.*link=100mbit:100gbit"),
            ("link=1gbit", "a part is missing"),
            ("colour=1:2", "'colour' cannot be varied.*hosts"),
            ("link=fast:1gbit", "'fast' is not a link's rate"),
            ("link=none:1gbit", "rates at both ends"),
            ("link=2gbit:1gbit", "less than its last"),
            ("hosts=2:2", "less than its last"),
            ("hosts=1.5:8", "'1.5' must be a whole number from 1 to 4096"),
            ("hosts=0:8", "'0' must be"),
            ("ranks-per-host=1:65", "'65' must be.*64"),
            ("step=nan:8", "'nan' must be a number"),
            ("step=-1:8", "'-1' must be"),
            ("step=1:2:1", "'1' must be a number of points from 2 to 200"),
            ("step=1:2:x", "'x' must be a number of points"),
        ]:
            with self.subTest(sweep):
                self.assert_refused(pattern, "plan", "--model", "lstm", "--sweep", sweep)
        self.assert_refused(
            "--hosts and a sweep of hosts", *"plan --model lstm --hosts 2 --sweep hosts=2:4".split()
        )
        self.assert_refused("--picture requires --sweep", *"plan --model lstm --picture p".split())
        workload = self.write("w.json", WORKLOAD)
        self.assert_refused("give --model", "plan", "--workload", workload, "--sweep", "step=1:2")


class Table(PlanCommand):
    def test_what_no_choice_has_is_a_dash(self):
        for arguments in (["--hosts", "1"], ["--most-error", "0"]):
            table = self.output_of("plan", "--model", "lstm", *arguments)
            self.assertRegex(table, r"(?m)^ *compressed, the same for all +-$")
            self.assertNotRegex(table, r"\b(inf|nan)\b")
        table = self.output_of(*"plan --model lstm --sweep hosts=1:2".split())
        self.assertRegex(table, r"(?m)^ *1 +[\d.]+ +[\d.]+ +- +[\d.]+ +1.00 ")
        self.assertNotRegex(table, r"\b(inf|nan)\b")


class WrittenPlan(PlanCommand):
    def test_a_trace_has_no_names_for_it(self):
        trace = self.write("trace.json", {"traceEvents": [function(100, 50), gradient(120)]})
        path = self.folder / "plan.json"
        self.assert_refused(
            "-o needs the layers' names.*--workload.*gradwire run without --plan",
            *f"plan --profile {trace} -o {path}".split(),
        )
        self.assertFalse(path.exists())
        workload = self.write("w.json", WORKLOAD)
        self.output_of("plan", "--workload", workload, "-o", str(path))
        self.assertIn("head", [layer["layers"] for layer in json.loads(path.read_text())["layers"]])

    def test_costs_of_two_devices_give_a_plan_that_gradwire_executes(self):
        path = str(self.folder / "plan.json")
        choice = "--model vgg16 --ranks-per-host 8 --costs testbed-b --codec sign".split()
        both = self.json_of("plan", *choice, "--hosts", "8")
        self.assertTrue(any("@other" in tensor["way"] for tensor in both["tensors"]))
        table = self.output_of("plan", *choice, "--hosts", "8", "-o", path)
        self.assertRegex(table, "Without the second device of these costs")
        self.assertNotIn("@other", table + Path(path).read_text())
        self.output_of("inspect", path)
        one = self.json_of("plan", *choice, "--hosts", "8", "-o", path)
        without_codec = choice[: choice.index("--codec")]
        found = self.json_of("simulate", *without_codec, "--ranks", "64", "--plan", path)
        self.assertAlmostEqual(one["predicted_seconds"], found["predicted_seconds"], places=9)
        self.assertGreater(one["predicted_seconds"], both["predicted_seconds"])
        cpu = self.output_of(*"plan --model lstm -o".split(), path)
        self.assertNotIn("second device", cpu)

    def test_biased_codecs_have_feedback(self):
        path = self.folder / "plan.json"
        choice = "plan --model vgg16 --costs testbed-a --link 1gbit --codec".split()
        found = self.json_of(*choice, "sign", "-o", str(path))
        self.assertEqual(found, self.json_of(*choice, "sign+feedback", "-o", str(path)))
        ways = {tensor["name"]: tensor["way"] for tensor in found["tensors"]}
        lossy = [way for way in ways.values() if way.startswith("sign")]
        self.assertTrue(lossy)
        self.assertTrue(all("+feedback+route:" in way for way in lossy), lossy)
        exact = [way for way in ways.values() if way.startswith("none")]
        self.assertFalse([way for way in exact if "feedback" in way])
        for layer in json.loads(path.read_text())["layers"]:
            self.assertEqual(ways[layer["layers"]], layer["way"])
        self.assertRegex(self.output_of(*choice, "sign"), r"(?m)^classifier.* sign\S+\+feedback ")
        for codec in ("sign+route:sra", "sign+feedback:momentum=0.9"):
            self.assert_refused("name the codec alone, as in sign$", *choice, codec)


class Timeline(PlanCommand):
    def test_spans_are_on_the_tracks_of_what_they_keep_busy(self):
        path = self.folder / "step.json"
        arguments = "plan --model vgg16 --hosts 2 --ranks-per-host 2 --link 1gbit --trace".split()
        plan = self.json_of(*arguments, str(path))
        events = json.loads(path.read_text())["traceEvents"]
        names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
        spans = [event for event in events if event["ph"] == "X"]
        work = {(names[span["tid"]], span["name"].split(" ")[0]) for span in spans}
        for expected in [
            ("computing", "forward"),
            ("computing", "compute"),
            ("codecs", "encode"),
            ("inside", "send"),
            ("sending", "send"),
            ("receiving", "receive"),
        ]:
            self.assertIn(expected, work)
        self.assertIn("encode classifier.0.weight and 1 more", {span["name"] for span in spans})
        end = max(span["ts"] + span["dur"] for span in spans)
        self.assertAlmostEqual(plan["predicted_seconds"], end / 1e6, places=5)
        ends = {}
        for span in sorted(spans, key=lambda span: span["ts"]):
            self.assertGreaterEqual(span["ts"] + 2e-3, ends.get(span["tid"], 0))
            ends[span["tid"]] = span["ts"] + span["dur"]

    def test_unwritable_trace_is_a_failure(self):
        done = self.gradwire("plan", "--model", "lstm", "--trace", f"{self.folder}/no/t.pftrace")
        self.assertEqual((1, ""), (done.returncode, done.stdout))
        self.assertRegex(done.stderr, "cannot write .*no/t.pftrace")


class Simulate(PlanCommand):
    def test_a_plan_made_for_the_cluster_takes_the_step_that_was_promised(self):
        path = str(self.folder / "plan.json")
        model = "--model resnet50 --ranks-per-host 2 --link 1gbit".split()
        plan = self.json_of("plan", *model, "--hosts", "4", "-o", path)
        for chosen in (["--plan", path], []):
            found = self.json_of("simulate", *model, "--ranks", "8", *chosen)
            self.assertAlmostEqual(plan["predicted_seconds"], found["predicted_seconds"], places=9)
            self.assertEqual(plan["exposed_seconds"], found["exposed_seconds"])
            self.assertEqual((8, 4), (found["ranks"], found["hosts"]))

    def test_scaling_ends_with_all_ranks(self):
        found = self.json_of(*"simulate --model lstm --ranks 48 --ranks-per-host 8".split())
        self.assertEqual([8, 16, 32, 48], [row["ranks"] for row in found["rows"]])
        last = found["rows"][-1]
        self.assertEqual(found["predicted_seconds"], last["predicted_seconds"])
        self.assertAlmostEqual(
            found["compute_seconds"] / found["predicted_seconds"], last["efficiency"], places=4
        )
        self.assertAlmostEqual(48 * last["efficiency"], last["speed_up"], places=2)
        alone = self.json_of(*"simulate --model lstm --ranks 1".split())
        self.assertEqual(1, alone["rows"][0]["efficiency"])

    def test_one_way_for_all_is_counted(self):
        workload = self.write("w.json", WORKLOAD)
        costs = self.write("costs.json", COSTS)
        arguments = ["simulate", "--workload", workload, "--costs", costs, "--ranks", "4"]
        found = self.json_of(*arguments, "--way", "none+route:allgather")
        self.assertEqual((0, 3 * 4 * 6e6), (found["bytes_inside"], found["bytes_between"]))
        # A nanosecond per byte, ten microseconds per message.
        seconds = found["busy"]["sending"] * found["predicted_seconds"]
        self.assertAlmostEqual(3 * 4 * 6e6 * 1e-9, seconds, delta=1e-3)
        self.assertEqual("all by none+route:allgather", found["ways"])

    def test_tables_have_what_is_busy_and_how_it_scales(self):
        table = self.output_of(*"simulate --model lstm --ranks 4 --way grid:step=0.5".split())
        for line in (
            r"a step +\d+\.\d\d ms",
            r"of it after computing +\d+\.\d\d ms",
            r"and to other hosts +\d+\.\d\d MB",
            r"codecs +[\d.]+ +[\d.]+",
            r"sending +[\d.]+ +[\d.]+",
            r" 4 +4 +[\d.]+",
        ):
            self.assertRegex(table, line)

    def test_timeline_is_written(self):
        path = self.folder / "step.json"
        self.json_of(*"simulate --model lstm --ranks 4 --trace".split(), str(path))
        self.assertIn("traceEvents", json.loads(path.read_text()))

    def test_wrong_use_is_one_sentence(self):
        for arguments, pattern in [
            ("--model lstm", "--ranks is required"),
            ("--ranks 4", "of what.*--model"),
            ("--model lstm --ranks 0", "--ranks"),
            (
                "--model lstm --ranks 12 --ranks-per-host 8",
                "12 ranks.*multiple of --ranks-per-host",
            ),
            ("--model lstm --ranks 4 --way gird", "unknown codec 'gird'"),
            ("--model lstm --ranks 4 --way=", "--way"),
            ("--model lstm --ranks 4 --way sign --codec sign", "--codec excludes --way"),
            ("--model lstm --ranks 4 --way uniform:bits=3", "gradwire calibrate"),
            ("--model lstm --ranks 4 --way none+route:detour", "no algorithm 'detour'.*sra"),
            ("--model lstm --ranks 4 --way none --plan plan.json", "--plan excludes --way"),
        ]:
            with self.subTest(arguments):
                self.assert_refused(pattern, "simulate", *arguments.split())
        plan = {"gradwire_plan": 1, "layers": [{"layers": "fc9.*", "way": "none"}]}
        path = self.write("plan.json", plan)
        self.assert_refused("fc9", *f"simulate --model lstm --ranks 4 --plan {path}".split())


class BrokenInput(PlanCommand):
    def assert_both_refuse(self, pattern: str, *arguments: str):
        self.assert_refused(pattern, "plan", *arguments)
        self.assert_refused(pattern, "simulate", "--ranks", "4", *arguments)

    def test_traces(self):
        good = [function(100, 50), gradient(120)]
        for events, pattern in [
            ([function(100, 50), function(120, 50), gradient(130)], "overlap on thread 1"),
            ([function(100, -50), gradient(120)], "takes -50.* microseconds, less than none"),
            ([function("soon", 50), gradient(120)], "has no time 'ts'"),
            ([function(100, 50)], "has no event 'torch::autograd::AccumulateGrad'.*trace training"),
            ([gradient(90), function(100, 50)], "before any backward pass.*trace whole steps"),
            ([*good, {**function(1e30, 50)}], "which is no time"),
            ([function(100, 50), operation("torch::autograd::AccumulateGrad", 110, 1)],
             "no shapes.*record_shapes=True"),
        ]:  # fmt: skip
            with self.subTest(pattern):
                path = self.write("trace.json", {"traceEvents": events})
                self.assert_both_refuse(f"trace.json: .*{pattern}", "--profile", path)
        path = self.write("trace.json", json.dumps({"traceEvents": [function(float("nan"), 1)]}))
        self.assert_both_refuse("no JSON", "--profile", path)
        path = self.write("trace.json", {"traceEvents": good})
        self.assertEqual(1, len(self.json_of("plan", "--profile", path)["tensors"]))

    def test_workloads(self):
        tensor = WORKLOAD["tensors"][0]
        for changes, pattern in [
            ({"tensors": []}, "'tensors' is empty: give at least one"),
            ({"tensors": [tensor | {"ready_seconds": -1}]}, "-1.*less than 0"),
            ({"tensors": [tensor | {"ready_seconds": 1}]}, "'head' is ready after 1.*earlier"),
            ({"tensors": [tensor, tensor]}, "tensor 'head' before: leave one"),
            ({"backward_seconds": float("nan")}, "no JSON"),
            ({"forward_seconds": "long"}, "is a number.*long"),
        ]:
            with self.subTest(pattern):
                path = self.write("w.json", WORKLOAD | changes)
                self.assert_both_refuse(f"w.json: line 1: .*{pattern}", "--workload", path)
        missing = {key: value for key, value in WORKLOAD.items() if key != "tensors"}
        self.assert_both_refuse("needs 'tensors'", "--workload", self.write("w.json", missing))

    def test_costs(self):
        negative = LINK | {"seconds": -1}
        for changes, pattern in [
            ({"host": "elsewhere"}, "measured on elsewhere.*this is.*gradwire calibrate"),
            ({"between": negative}, "-1.*less than 0"),
            ({"interference": float("nan")}, "no JSON"),
            ({"gradwire_costs": 9}, "version 9"),
        ]:
            with self.subTest(pattern):
                path = self.write("costs.json", COSTS | changes)
                self.assert_both_refuse(
                    f"costs.json: .*{pattern}", "--model", "lstm", "--costs", path
                )
        path = self.write("costs.json", COSTS)
        self.assert_both_refuse("name one by --codec", "--model", "lstm", "--costs", path)

    def test_names(self):
        self.assert_both_refuse("no model 'vgg17'.*vgg16", "--model", "vgg17")
        self.assert_both_refuse("'fast' is not a link's rate", *"--model lstm --link fast".split())
        self.assert_both_refuse("--step", *"--model lstm --step -1".split())
        self.assert_both_refuse("--step", *"--model lstm --step nan".split())

    def test_numbers_out_of_range_are_said_shortly(self):
        for option, value in [
            ("--step", "0"),
            ("--step", "1e300"),
            ("--most-error", "nan"),
            ("--most-error", "-1"),
            ("--most-compressions", "-1"),
        ]:
            with self.subTest(option=option, value=value):
                pattern = f"{option}: '{value}' must be a number from [^ ]+ to 1000000000;"
                self.assert_both_refuse(pattern, "--model", "lstm", option, value)

    def test_files_that_are_not_there_are_named(self):
        for option in ("--profile", "--workload"):
            done = self.gradwire("plan", option, "/nowhere.json")
            self.assertEqual((1, ""), (done.returncode, done.stdout))
            self.assertRegex(done.stderr, "cannot read /nowhere.json: No such file")


if __name__ == "__main__":
    if "--program" in sys.argv:
        at = sys.argv.index("--program")
        PROGRAM = Path(sys.argv[at + 1])
        del sys.argv[at : at + 2]
    unittest.main()
