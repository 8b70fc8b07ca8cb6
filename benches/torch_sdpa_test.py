"""Tests of torch_sdpa.py without a GPU: PyTorch is a stand-in with a clock of its own, ferroflash a script."""

import json
import pathlib
import stat
import sys
import tempfile
import types
import unittest

import torch_sdpa as sdpa

SHAPE = (1, 8, 8, 512, 512, 64)


def collected(ours, flash=(), default=()):
    found = sdpa.Collected()
    for name, rounds in ((sdpa.OURS, ours), ("flash", flash), ("default", default)):
        for times in rounds:
            found.add(name, times)
    return found


def report_of(problems, times_us):
    """What `ferroflash bench --json` writes, as far as it is read."""
    row = {"entry": "fwd_x", "source": "PTX sm_80", "ctas": 64, "ctas_per_sm": 0.48484, "resident_ctas_per_sm": 2}
    row |= {"check": {"nan": 0, "max_error": 0.001}, "times_us": times_us, "sm_clock_mhz": 1980}
    device = {"name": "Some GPU", "driver": "580.1"}
    results = [{"shape": p.shape, "dtype": p.dtype, "causal": p.causal, "error": None, "rows": [row]} for p in problems]
    return {"version": "0.1.0", "commit": "abc", "device": device, "kernels": {"device_compiler": "rustc"}, "results": results}


class Statistics(unittest.TestCase):
    def test_percentiles_are_of_the_sorted_times(self):
        times = [110.0 - i for i in range(11)]
        self.assertEqual([sdpa.percentile(times, share) for share in (0.1, 0.5, 0.9)], [101.0, 105.0, 109.0])
        # A half is rounded up, as in Rust, and not to even.
        self.assertEqual(sdpa.percentile([1.0, 2.0], 0.5), 2.0)

    def test_replays_of_all_rounds_are_pooled(self):
        pooled = sdpa.timing([[1.0, 1.0], [3.0, 3.0, 3.0]])
        self.assertEqual((pooled["median_us"], pooled["replays"]), (3.0, 5))
        self.assertEqual(pooled["round_medians_us"], [1.0, 3.0])
        self.assertIsNone(sdpa.timing([[], []]))

    def test_ratios_say_how_many_times_as_long_the_other_takes(self):
        line = collected([[2.0] * 9 + [4.0] * 2], [[3.0] * 11]).as_json(sdpa.Problem(SHAPE, "f16", False, ("flash", 1.5)))
        self.assertEqual(line["speed_relative_to"], {"flash": {"median": 1.5, "p90": 0.75}})
        self.assertTrue(line["target"]["met"])
        self.assertEqual(line["tflops"][sdpa.OURS], round(4 * 8 * 512 * 512 * 64 / 2e-6 / 1e12, 2))

    def test_a_target_without_times_is_missed(self):
        line = collected([]).as_json(sdpa.Problem(SHAPE, "f16", False, ("flash", 1.0)))
        self.assertFalse(line["target"]["met"])
        self.assertEqual((line["times"][sdpa.OURS], line["tflops"]), (None, {}))

    def test_a_causal_mask_counts_what_is_visible(self):
        flops = sdpa.visible_flops(sdpa.Problem((1, 1, 1, 2, 3, 1), "f16", True))
        self.assertEqual(flops, 4 * (2 + 3))

    def test_a_replay_is_filled(self):
        self.assertEqual([sdpa.launches_to_fill(us) for us in (7.0, 300.0, 5000.0, 0.0)], [43, 1, 1, sdpa.LAUNCHES_MAX])

    def test_cudnn_versions(self):
        self.assertEqual([sdpa.dotted_cudnn(n) for n in (91900, 8902, None)], ["9.19.0", "8.9.2", None])


class Problems(unittest.TestCase):
    def test_no_set_holds_a_problem_twice_and_groups_lose_none(self):
        for name, (problems, _) in sdpa.SETS.items():
            self.assertEqual(len(set(problems)), len(problems), name)
            groups = sdpa.interleaved(problems)
            self.assertEqual(sum(map(len, groups)), len(problems))
            self.assertTrue(all(len({(p.dtype, p.causal) for p in batch}) == 1 for batch in groups))
        self.assertEqual(len(sdpa.HEADLINE), 38)

    def test_every_target_is_in_the_headline_set(self):
        targets = [problem.target for problem in sdpa.HEADLINE if problem.target]
        self.assertEqual([targets.count(t) for t in (("flash", 1.0), ("default", 1.2), ("flash", 0.9))], [12, 4, 8])

    def test_shapes_of_ones_own(self):
        def problems(*words):
            return [p.title() for p in sdpa.problems_of(sdpa.parser().parse_args(words))]

        self.assertEqual(problems("--shape", "1,2,1,5,5,64"), ["1,2,1,5,5,64 f16 full", "1,2,1,5,5,64 f16 causal"])
        self.assertEqual(problems("--shape", "1,2,1,5,6,64", "--dtype", "bf16"), ["1,2,1,5,6,64 bf16 full"])
        for wrong in ("1,2,3", "1,2,1,5,6,x", "0,2,1,5,6,64"):
            with self.assertRaises(Exception):
                sdpa.shape(wrong)


class Ferroflash(unittest.TestCase):
    def run_script(self, problems, script):
        """Runs with a script in ferroflash's place; returns what was collected, and about the device."""
        found = {problem: sdpa.Collected() for problem in problems}
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "ferroflash")
            program.write_text("#!%s\n%s" % (sys.executable, script))
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
            args = sdpa.parser().parse_args(["--ferroflash", str(program), "--ptx", "kernels", "--reps", "5"])
            about = sdpa.ferroflash_times(args, problems, found)
        return found, about

    def test_the_call_names_problems_and_options_and_its_report_is_taken(self):
        problems = [sdpa.Problem(SHAPE, "bf16", True), sdpa.Problem((2,) + SHAPE[1:], "bf16", True)]
        script = "\n".join([
            "import sys",
            "words = sys.argv[1:]",
            "assert words[0] == 'bench' and '--lse' in words and '--replays' in words, words",
            "value = lambda option: words[words.index(option) + 1]",
            "assert [value(o) for o in ('--reps', '--dtype', '--mask', '--ptx')] == ['5', 'bf16', 'causal', 'kernels']",
            "assert words[words.index('--shape') + 1:] == ['1,8,8,512,512,64', '2,8,8,512,512,64'], words",
            "open(value('--json'), 'w').write(%r)" % json.dumps(report_of(problems, [2.0, 3.0])),
        ])  # fmt: skip
        found, about = self.run_script(problems, script)
        self.assertEqual([f.errors for f in found.values()], [{}, {}])
        self.assertEqual([f.rounds[sdpa.OURS] for f in found.values()], [[[2.0, 3.0]]] * 2)
        self.assertEqual(about["device"]["name"], "Some GPU")
        line = found[problems[0]].as_json(problems[0])
        self.assertEqual((line["kernel"]["ctas"], line["kernel"]["ctas_per_sm"], line["sm_clock_mhz"]), (64, 0.485, 1980))

    def test_a_failed_call_is_reported_with_its_last_line(self):
        problem = sdpa.Problem(SHAPE, "f16", False)
        found, about = self.run_script([problem], "import sys\nsys.exit('warming\\nno CUDA driver')")
        self.assertEqual((found[problem].errors, about), ({sdpa.OURS: "no CUDA driver"}, {}))

    def test_a_wrong_or_missing_kernel_has_no_time(self):
        problem = sdpa.Problem(SHAPE, "f16", False)
        wrong = report_of([problem], [])
        missing = {**wrong, "results": [{**wrong["results"][0], "rows": [], "error": "no kernel for it"}]}
        for report, error in ((wrong, "wrong output"), (missing, "no kernel for it"), ({**wrong, "results": []}, "not in the")):
            found = {problem: sdpa.Collected()}
            sdpa.take_report(report, [problem], found)
            self.assertIn(error, found[problem].errors[sdpa.OURS])
            self.assertEqual(found[problem].rounds[sdpa.OURS], [])


class Event:
    """Reads the stand-in's clock."""

    def __init__(self, device):
        self.device = device

    def record(self):
        self.at = self.device.clock_ms

    def elapsed_time(self, later):
        return later.at - self.at


class Graph:
    def __init__(self, device):
        self.device, self.ms = device, 0.0

    def replay(self):
        self.device.clock_ms += self.ms


class Torch(types.SimpleNamespace):
    """As much of PyTorch as is called; each back end takes the milliseconds given, None cannot."""

    def __init__(self, ms):
        super().__init__(ms=ms, clock_ms=0.0, now="default", graph=None, __version__="2.x", float16="half", bfloat16="b")
        context = lambda enter, leave: type("C", (), {"__enter__": lambda s: enter(), "__exit__": lambda s, *e: leave()})()
        stream = types.SimpleNamespace(wait_stream=lambda other: None)
        self.manual_seed = lambda seed: None
        self.randn = lambda *sizes, **options: sizes
        self.version = types.SimpleNamespace(cuda="13.0")
        self.backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(version=lambda: 91900))
        self.nn = types.SimpleNamespace(functional=types.SimpleNamespace(scaled_dot_product_attention=self.attention))
        self._fused_sdp_choice = lambda *tensors, **options: 3
        self.cuda = types.SimpleNamespace(
            Stream=lambda: stream, current_stream=lambda: stream, stream=lambda s: context(lambda: None, lambda: None),
            Event=lambda enable_timing: Event(self), CUDAGraph=lambda: Graph(self), empty_cache=lambda: None,
            graph=lambda graph: context(lambda: setattr(self, "graph", graph), lambda: setattr(self, "graph", None)),
            synchronize=lambda: None, get_device_name=lambda: "Some GPU",
        )  # fmt: skip

    def attention(self, q, k, v, **options):
        if self.ms[self.now] is None:
            raise RuntimeError("No available kernel.\nAborting execution.")
        if self.graph:
            self.graph.ms += self.ms[self.now]


class Rounds(unittest.TestCase):
    def setUp(self):
        self.order = []
        self.torch = Torch({"flash": 0.02, "cudnn": None, "default": 0.01})
        self.problems = [sdpa.Problem(SHAPE, "f16", False, ("flash", 1.0)), sdpa.Problem(SHAPE, "f16", True)]
        self.patch("WARM_UP_S", 0.0)
        self.patch("say", lambda line: None)
        self.patch("smi", lambda: None)
        self.patch("back_end", self.back_end)
        self.patch("ferroflash_times", self.ferroflash_times)

    def patch(self, name, value):
        self.addCleanup(setattr, sdpa, name, getattr(sdpa, name))
        setattr(sdpa, name, value)

    def back_end(self, torch, name):
        torch.now = name
        self.order.append(name)
        return sdpa.contextlib.nullcontext()

    def ferroflash_times(self, args, problems, found):
        self.order.append(sdpa.OURS)
        return sdpa.take_report(report_of(problems, [10.0] * args.reps), problems, found)

    def run_main(self, *words):
        args = sdpa.parser().parse_args(words)
        return args, sdpa.measure(args, self.problems, self.torch)

    def test_the_two_take_turns_and_every_other_round_is_backwards(self):
        self.run_main("--rounds", "2", "--reps", "3")
        there = ["flash", "cudnn", "default", sdpa.OURS]
        self.assertEqual(self.order, there * 2 + there[::-1] * 2)

    def test_times_are_of_one_launch_and_errors_do_not_stop_the_rest(self):
        _, report = self.run_main("--rounds", "2", "--reps", "3")
        first = report["problems"][0]
        self.assertAlmostEqual(first["times"]["flash"]["median_us"], 20.0)
        self.assertAlmostEqual(first["times"]["default"]["median_us"], 10.0)
        self.assertEqual(first["times"]["flash"]["replays"], 6)
        self.assertEqual(first["errors"], {"cudnn": "No available kernel."})
        self.assertEqual((first["default_picks"], first["speed_relative_to"]["flash"]["median"]), ("cudnn", 2.0))
        self.assertEqual((report["device"]["name"], report["torch"]["cudnn"]), ("Some GPU", "9.19.0"))

    def test_no_round_begins_that_would_pass_the_limit(self):
        clock = iter(range(0, 10**9, 50))
        self.patch("time", types.SimpleNamespace(monotonic=lambda: next(clock)))
        self.patch("one_round", lambda *arguments: None)
        _, report = self.run_main("--rounds", "9", "--limit", "400")
        self.assertIn(report["method"]["rounds"], range(1, 5))

    def test_the_file_is_whole_json_and_the_table_says_what_was_met(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "out.json")
            args, report = self.run_main("--rounds", "1", "--reps", "3", "--out", str(out), "--commit", "abc")
            sdpa.write_json(args, report)
            self.assertEqual(json.loads(out.read_text()), json.loads(json.dumps(report)))
            self.assertEqual([path.name for path in out.parent.iterdir()], ["out.json"])
            self.assertEqual(sum(line.startswith('    {"shape"') for line in out.read_text().splitlines()), 2)
        lines = sdpa.table(report)
        self.assertIn("commit abc, 1 rounds of 3 replays", lines[0])
        self.assertIn("2.000", lines[3])
        self.assertIn("flash 1.0 met", lines[3])
        self.assertIn("fwd_x, 64 CTAs", lines[3])
        self.assertEqual(lines[-1], "1 of 1 targets met")

    def test_a_device_that_fails_leaves_a_table(self):
        self.torch.cuda.Event = lambda enable_timing: (_ for _ in ()).throw(RuntimeError("out of memory"))
        self.patch("ferroflash_times", lambda args, problems, found: {})
        _, report = self.run_main("--rounds", "1", "--reps", "3")
        self.assertEqual(report["problems"][0]["errors"]["flash"], "out of memory")
        self.assertIn("flash 1.0 MISSED", sdpa.table(report)[3])


if __name__ == "__main__":
    unittest.main()
