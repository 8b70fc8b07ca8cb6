"""Tests of torch_sdpa.py without a GPU: PyTorch is a stand-in with a clock of its own, ferroflash a script."""

import collections
import json
import pathlib
import stat
import sys
import tempfile
import types
import unittest
import unittest.mock

import torch_backward
import torch_sdpa as sdpa
import torch_sdpa_ferroflash as ours
import torch_sdpa_problems as sets
import torch_sdpa_report as reports

SHAPE = (1, 8, 8, 512, 512, 64)
DECODE = (8, 32, 8, 1, 8192, 128)


def collected(ours, flash=(), default=()):
    found = sdpa.Collected()
    for name, rounds in ((sdpa.OURS, ours), ("flash", flash), ("default", default)):
        for found.round, times in enumerate(rounds):
            found.add(name, times)
    return found


def report_of(problems, times_us):
    """What `ferroflash bench --json` writes, as far as it is read."""
    row = {"entry": "fwd_x", "source": "PTX sm_80", "ctas": 64, "ctas_per_sm": 0.48484, "resident_ctas_per_sm": 2}
    row |= {"schedule": "split", "splits": 4, "check": {"nan": 0, "max_error": 0.001}, "times_us": times_us, "sm_clock_mhz": 1980}
    device = {"name": "Some GPU", "driver": "580.1"}
    results = [{"shape": p.shape, "dtype": p.dtype, "causal": p.causal, "error": None, "rows": [row]} for p in problems]
    return {"version": "0.1.0", "commit": "abc", "device": device, "kernels": {"device_compiler": "rustc"}, "results": results}


class Statistics(unittest.TestCase):
    def test_percentiles_are_of_the_sorted_times(self):
        times = [110.0 - i for i in range(11)]
        self.assertEqual([reports.percentile(times, share) for share in (0.1, 0.5, 0.9)], [101.0, 105.0, 109.0])
        # A half is rounded up, as in Rust, and not to even.
        self.assertEqual(reports.percentile([1.0, 2.0], 0.5), 2.0)

    def test_replays_of_all_rounds_are_pooled(self):
        pooled = reports.timing({0: [1.0, 1.0], 1: [3.0, 3.0, 3.0]})
        self.assertEqual((pooled["median_us"], pooled["replays"]), (3.0, 5))
        self.assertEqual(pooled["round_medians_us"], [1.0, 3.0])
        self.assertIsNone(reports.timing({0: [], 1: []}))

    def test_a_ratio_is_of_the_rounds_that_both_were_timed_in(self):
        line = collected([[2.0] * 3, [4.0] * 3], [[3.0] * 3]).as_json(sdpa.Problem(SHAPE, "f16", False))
        self.assertEqual(line["speed_relative_to"], {"flash": {"median": 1.5, "p90": 1.5}})

    def test_ratios_say_how_many_times_as_long_the_other_takes(self):
        problem = sdpa.Problem(SHAPE, "f16", False, (("flash", 1.5), ("flash p90", 0.8)))
        line = collected([[2.0] * 9 + [4.0] * 2], [[3.0] * 11]).as_json(problem)
        self.assertEqual(line["speed_relative_to"], {"flash": {"median": 1.5, "p90": 0.75}})
        targets = [(t["relative_to"], t["reached"], t["met"]) for t in line["targets"]]
        self.assertEqual(targets, [("flash", 1.5, True), ("flash p90", 0.75, False)])
        self.assertEqual(line["tflops"][sdpa.OURS], round(4 * 8 * 512 * 512 * 64 / 2e-6 / 1e12, 2))

    def test_a_target_without_times_is_missed(self):
        for name in sets.COMPARED_WITH:
            line = collected([]).as_json(sdpa.Problem(DECODE, "f16", False, ((name, 0.1),)), 4000.0)
            self.assertEqual(line["targets"], [{"relative_to": name, "least": 0.1, "reached": None, "met": False}])
            self.assertEqual((line["times"][sdpa.OURS], line["tflops"], line["share_of_copy"]), (None, {}, {}))

    def test_decoding_is_a_share_of_the_copy_bandwidth(self):
        # 2 x 2 bytes x 64 x (2 queries + 8 x 100 keys of K and V, O as Q).
        problem = sdpa.Problem((2, 4, 1, 1, 100, 64), "f16", False, (("copy", 0.5), ("copy", 0.6)))
        moved = 2 * 2 * 64 * (2 * 4 + 2 * 100)
        self.assertEqual(sets.bytes_moved(problem), moved)
        line = collected([[2.0]], default=[[4.0]]).as_json(problem, 2 * moved / 2e3)
        self.assertEqual((line["bytes"], line["gbytes_per_s"][sdpa.OURS]), (moved, round(moved / 2e3, 1)))
        self.assertEqual(line["share_of_copy"], {sdpa.OURS: 0.5, "default": 0.25})
        self.assertEqual([target["met"] for target in line["targets"]], [True, False])
        # Without a bandwidth there is no share, and a long query has none either.
        self.assertFalse(collected([[2.0]]).as_json(problem)["targets"][0]["met"])
        self.assertEqual(collected([[2.0]]).as_json(sdpa.Problem(SHAPE, "f16", False), 4000.0)["share_of_copy"], {})

    def test_the_copy_bandwidth_is_the_best_of_kinds_and_rounds(self):
        found = sdpa.copy_bandwidth([{"copy_": 2700.0, "mul": 4100.04}, {"copy_": 2800.0, "mul": 4000.0}], [], "how")
        self.assertEqual((found["gbytes_per_s"], found["kind"], found["method"]), (4100.0, "mul", "how"))
        self.assertEqual(found["rounds"][1], {"copy_": 2800.0, "mul": 4000.0})
        self.assertIsNone(sdpa.copy_bandwidth([], ["out of memory"], "how")["gbytes_per_s"])

    def test_a_causal_mask_counts_what_is_visible(self):
        flops = sets.visible_flops(sdpa.Problem((1, 1, 1, 2, 3, 1), "f16", True))
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
        self.assertEqual(len(sets.HEADLINE), 52)

    def test_the_headline_set_holds_every_promised_ratio(self):
        counts = collections.Counter(target for problem in sets.HEADLINE for target in problem.targets)
        expected = {("default", 1.5): 2, ("default", 1.6): 8, ("default", 1.15): 2, ("default", 1.1): 8}
        expected |= {("flash", 1.1): 8 + 6, ("default p90", 1.0): 20}
        expected |= {("flash", 1.05): 6, ("flash", 1.3): 2, ("flash", 1.5): 1, ("flash", 0.9): 8}
        expected |= {("copy", 0.88): 2, ("copy", 0.8): 1, ("default", 1.0): 3}
        self.assertEqual(counts, expected)
        self.assertEqual({name for name, _ in counts} - set(sets.COMPARED_WITH), set())
        compared = [p for p in sets.HEADLINE if p.is_decode() != any(name == sets.COPY for name, _ in p.targets)]
        self.assertEqual(compared, [], "a share of the copy bandwidth is promised for decoding, and for nothing else")
        large = {(p.causal, p.targets) for p in sets.LARGE}
        self.assertEqual(large, {(False, (("flash", 1.05),)), (True, (("flash", 1.1),))})

    def test_every_length_has_as_many_tokens_and_a_mean_needs_them_all(self):
        self.assertEqual({p.shape[0] * p.shape[3] for p in sets.BY_LENGTH}, {16384})
        self.assertEqual({p.shape[1] * p.shape[5] for p in sets.BY_LENGTH}, {2048})
        ratios = {512: 1.0, 1024: 2.0, 2048: 1.0, 4096: 2.0, 8192: 1.0, 16384: 2.0}
        lines = [
            {"shape": list(p.shape), "dtype": p.dtype, "causal": p.causal,
             "speed_relative_to": {"default": {"median": ratios[p.shape[3]]}}}
            for p in sets.BY_LENGTH if p.shape[5] == 128 and p.dtype == "bf16" and p.causal
        ]  # fmt: skip
        [mean] = reports.means(lines)
        self.assertEqual((mean["head_dim"], mean["least"], mean["reached"], mean["met"]), (128, 1.03, 1.4142, True))
        lines[0]["speed_relative_to"] = {}
        self.assertEqual([(mean["reached"], mean["met"]) for mean in reports.means(lines)], [(None, False)])
        self.assertEqual(reports.means(lines[1:]), [], "of a set without all lengths there is no mean")

    def test_no_problem_has_a_causal_mask_that_the_two_align_otherwise(self):
        self.assertEqual([p.title() for p in sets.HEADLINE if p.causal and p.shape[3] != p.shape[4]], [])

    def test_targets_read_as_text(self):
        texts = [sets.target_text(*t) for t in (("default", 1.15), ("default p90", 1.0), ("copy", 0.88))]
        self.assertEqual(texts, ["1.15 x default", "1 x default p90", "0.88 of copy"])
        self.assertTrue(sdpa.listed(sets.DECODE[0]).endswith(" 0.88 of copy; 1 x default"))

    def test_shapes_of_ones_own(self):
        def problems(*words):
            return [p.title() for p in sdpa.problems_of(sdpa.parser().parse_args(words))]

        self.assertEqual(problems("--shape", "1,2,1,5,5,64"), ["1,2,1,5,5,64 f16 full", "1,2,1,5,5,64 f16 causal"])
        self.assertEqual(problems("--shape", "1,2,1,5,6,64", "--dtype", "bf16"), ["1,2,1,5,6,64 bf16 full"])
        for wrong in ("1,2,3", "1,2,1,5,6,x", "0,2,1,5,6,64"):
            with self.assertRaises(Exception):
                sdpa.shape(wrong)


class Ferroflash(unittest.TestCase):
    def run_script(self, problems, script, turns=5):
        """Runs with a script in ferroflash's place; returns what was collected, and about the device."""
        found = {problem: sdpa.Collected() for problem in problems}
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "ferroflash")
            program.write_text("#!%s\n%s" % (sys.executable, script))
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
            args = sdpa.parser().parse_args(["--ferroflash", str(program), "--ptx", "kernels", "--reps", "5"])
            ferroflash = ours.Ferroflash(args, problems)
            for problem in problems:
                for _ in range(turns):
                    ferroflash.turn(problem)
                ferroflash.end(problem)
            about = ferroflash.close(problems, found)
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
            "assert '--turns' in words, words",
            "waited = 0",
            "for shape in words[words.index('--shape') + 1:]:",
            "    print('\\n', shape, 'and a table')",
            "    for done in range(6):",
            "        print('turn %d of 5: %s bf16 causal' % (done, shape), flush=True)",
            "        waited += sys.stdin.readline() == '\\n'",
            "assert waited == 12, waited",
            "open(value('--json'), 'w').write(%r)" % json.dumps(report_of(problems, [2.0, 3.0])),
        ])  # fmt: skip
        # Fewer turns than there are, as where PyTorch fails in the middle, and more.
        for turns in (0, 3, 5, 9):
            found, about = self.run_script(problems, script, turns)
            self.assertEqual([f.errors for f in found.values()], [{}, {}])
        self.assertEqual([f.errors for f in found.values()], [{}, {}])
        self.assertEqual([f.rounds[sdpa.OURS] for f in found.values()], [{0: [2.0, 3.0]}] * 2)
        self.assertEqual(about["device"]["name"], "Some GPU")
        line = found[problems[0]].as_json(problems[0])
        self.assertEqual((line["kernel"]["ctas"], line["kernel"]["ctas_per_sm"], line["sm_clock_mhz"]), (64, 0.485, 1980))
        self.assertEqual((line["kernel"]["schedule"], line["kernel"]["splits"]), ("split", 4))
        self.assertNotIn("waves", line["kernel"], "what the report lacks is left out")

    def test_the_schedule_is_read_from_the_name_where_the_report_lacks_it(self):
        problem = sdpa.Problem(SHAPE, "f16", False)
        for entry, schedule in (("fwd_x_split", "split"), ("fwd_x_persistent", "persistent"), ("fwd_x", "grid")):
            report, found = report_of([problem], [2.0]), {problem: sdpa.Collected()}
            row = report["results"][0]["rows"][0]
            row["entry"] = entry
            del row["schedule"]
            ours.take_report(report, [problem], found)
            self.assertEqual(found[problem].kernel["schedule"], schedule)

    def test_the_file_has_one_copy_bandwidth(self):
        report = report_of([], [])
        report["device"]["copy_gbytes_per_s"] = 2700.0
        self.assertEqual(ours.take_report(report, [], {})["device"], {"name": "Some GPU", "driver": "580.1"})

    def test_a_failed_call_is_reported_with_its_last_line(self):
        problem = sdpa.Problem(SHAPE, "f16", False)
        found, about = self.run_script([problem], "import sys\nsys.exit('warming\\nno CUDA driver')")
        self.assertEqual((found[problem].errors, about), ({sdpa.OURS: "no CUDA driver"}, {}))

    def test_a_problem_without_turns_keeps_none_of_the_others_waiting(self):
        problems = [sdpa.Problem((batch,) + SHAPE[1:], "f16", False) for batch in (1, 2, 3)]
        script = "\n".join([
            "import sys",
            "for batch in (2, 3):",
            "    for done in range(6):",
            "        print('turn %d of 5: %d,8,8,512,512,64 f16 full' % (done, batch), flush=True)",
            "        assert sys.stdin.readline() == '\\n'",
            "    if batch == 2: print('x' * 100000)",
            "sys.exit('the first: no kernel')",
        ])  # fmt: skip
        found, _ = self.run_script(problems, script)
        self.assertEqual([f.errors[sdpa.OURS] for f in found.values()], ["the first: no kernel"] * 3)

    def test_a_call_that_hangs_is_ended(self):
        limit, ours.CALL_LIMIT_S = ours.CALL_LIMIT_S, 0.5
        self.addCleanup(setattr, sdpa, "CALL_LIMIT_S", limit)
        problem = sdpa.Problem(SHAPE, "f16", False)
        found, _ = self.run_script([problem], "import time\ntime.sleep(600)")
        self.assertEqual(found[problem].errors[sdpa.OURS], "no turn came within 0 s")

    def test_a_program_that_is_not_there_is_said(self):
        problem = sdpa.Problem(SHAPE, "f16", False)
        found = {problem: sdpa.Collected()}
        ours.Ferroflash(sdpa.parser().parse_args(["--ferroflash", "/nowhere/ferroflash"]), [problem]).close([problem], found)
        self.assertIn("No such file", found[problem].errors[sdpa.OURS])

    def test_a_wrong_or_missing_kernel_has_no_time(self):
        problem = sdpa.Problem(SHAPE, "f16", False)
        wrong = report_of([problem], [])
        missing = {**wrong, "results": [{**wrong["results"][0], "rows": [], "error": "no kernel for it"}]}
        for report, error in ((wrong, "wrong output"), (missing, "no kernel for it"), ({**wrong, "results": []}, "not in the")):
            found = {problem: sdpa.Collected()}
            ours.take_report(report, [problem], found)
            self.assertIn(error, found[problem].errors[sdpa.OURS])
            self.assertEqual(found[problem].rounds[sdpa.OURS], {})


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
        self.device.replays += 1
        self.device.clock_ms += self.ms


class Torch(types.SimpleNamespace):
    """As much of PyTorch as is called; each back end takes the milliseconds given, None cannot."""

    def __init__(self, ms):
        super().__init__(ms=ms, clock_ms=0.0, replays=0, now="default", graph=None, __version__="2.x", float16="half", bfloat16="b")
        self.float32, self.picks, self.copy_ms = "float", 1, {"copy_": 0.8, "mul": 0.5}
        self.copies = collections.Counter()
        self.ones = self.empty_like = lambda *sizes, **options: types.SimpleNamespace(copy_=lambda other: self.copy("copy_"))
        self.mul = lambda tensor, factor, out: self.copy("mul")
        context = lambda enter, leave: type("C", (), {"__enter__": lambda s: enter(), "__exit__": lambda s, *e: leave()})()
        stream = types.SimpleNamespace(wait_stream=lambda other: None)
        self.manual_seed = lambda seed: None
        self.randn = lambda *sizes, **options: sizes
        self.version = types.SimpleNamespace(cuda="13.0")
        self.backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(version=lambda: 91900))
        self.nn = types.SimpleNamespace(functional=types.SimpleNamespace(scaled_dot_product_attention=self.attention))
        self._fused_sdp_choice = lambda *tensors, **options: self.picks
        self.cuda = types.SimpleNamespace(
            Stream=lambda: stream, current_stream=lambda: stream, stream=lambda s: context(lambda: None, lambda: None),
            Event=lambda enable_timing: Event(self), CUDAGraph=lambda: Graph(self), empty_cache=lambda: None,
            graph=lambda graph, stream: context(lambda: setattr(self, "graph", graph), lambda: setattr(self, "graph", None)),
            synchronize=lambda: None, get_device_name=lambda: "Some GPU",
        )  # fmt: skip

    def attention(self, q, k, v, **options):
        if self.ms[self.now] is None:
            raise RuntimeError("No available kernel.\nAborting execution.")
        if self.graph:
            self.graph.ms += self.ms[self.now]


    def copy(self, kind):
        if self.copy_ms[kind] is None:
            raise RuntimeError("CUDA out of memory.")
        # The first copies of each round take longer than all others.
        in_round = self.copies[kind] % (sdpa.COPY_REPS * (1 + sdpa.COPIES_TIMED))
        self.copies[kind] += 1
        self.clock_ms += self.copy_ms[kind] * (2 if in_round < 10 else 1)


class Backward(unittest.TestCase):
    def test_few_pairs_cover_every_kernel_the_plans_own_first(self):
        pairs = [(dq, dkv) for dq in ("a", "b") for dkv in ("x", "y", "z")]
        self.assertEqual(torch_backward.covering(pairs), [("a", "x"), ("b", "y"), ("a", "z")])

    def test_the_table_compares_with_the_fastest_back_end_and_says_what_was_not_timed(self):
        problem = sets.Problem(SHAPE, "bf16", True)
        found = {"a + x": (50.0, 49.0, 52.0), "flash": (100.0, 99.0, 101.0), "cudnn": (75.0, 74.0, 76.0), "b + y": "wrong gradients"}
        lines = torch_backward.table([(problem, found)]).splitlines()
        self.assertEqual([line.split()[0] for line in lines[1:]], ["a", "cudnn", "flash", "b"])
        self.assertIn(" 1.50 x", lines[1])
        # Half of 10 * 8 * 512 * 512 * 64, and the diagonal.
        self.assertIn(" %d TFLOP/s" % round(2.5 * 4 * 8 * 64 * (512 * 513 / 2) / 50e6), lines[1])
        self.assertIn("wrong gradients", lines[4])


class Rounds(unittest.TestCase):
    def setUp(self):
        self.order, self.turns = [], []
        self.torch = Torch({"flash": 0.02, "cudnn": None, "default": 0.01})
        targets = (("flash", 1.0), ("default p90", 1.2))
        self.problems = [sdpa.Problem(SHAPE, "f16", False, targets), sdpa.Problem(SHAPE, "f16", True)]
        self.patch("WARM_UP_S", 0.0)
        rates = sdpa.copy_rates
        self.patch("copy_rates", lambda torch: (self.order.append("copy"), rates(torch))[1])
        self.patch("say", lambda line: None)
        self.patch("smi", lambda: None)
        self.patch("back_end", self.back_end)
        self.patch("Ferroflash", self.ferroflash)

    def patch(self, name, value):
        self.addCleanup(setattr, sdpa, name, getattr(sdpa, name))
        setattr(sdpa, name, value)

    def back_end(self, torch, name):
        torch.now = name
        self.order.append(name)
        return sdpa.contextlib.nullcontext()

    def ferroflash(self, args, problems):
        """Stands for ferroflash: notes turns, and the end of each problem."""
        return types.SimpleNamespace(
            turn=lambda problem: self.turns.append((problem, self.torch.replays)),
            end=lambda problem: self.order.append(sdpa.OURS),
            close=lambda batch, found: ours.take_report(report_of(batch, [10.0] * args.reps), batch, found),
        )

    def run_main(self, *words):
        args = sdpa.parser().parse_args(words)
        return args, sdpa.measure(args, self.problems, self.torch)

    def test_the_two_take_turns_and_every_other_round_is_backwards(self):
        self.run_main("--rounds", "2", "--reps", "3")
        there = ["flash", "cudnn", "default", sdpa.OURS]
        back = there[2::-1] + [sdpa.OURS]
        self.assertEqual(self.order, ["copy"] + there * 2 + back * 2 + ["copy"])

    def test_turns_are_taken_replay_by_replay(self):
        self.run_main("--rounds", "2", "--reps", "3")
        # Four replays to calibrate flash and default, then an untimed one and the two in each rep: ferroflash's turn comes after them
        # in the first round, and before them in the second, which begins with the last problem.
        first, second = self.problems
        expected = [(first, 7), (first, 10), (first, 13), (second, 20), (second, 23), (second, 26)]
        expected += [(second, 30), (second, 33), (second, 36), (first, 43), (first, 46), (first, 49)]
        self.assertEqual(self.turns, expected)

    def test_cudnn_is_not_timed_twice_where_it_is_the_default(self):
        self.torch.picks = 3
        _, report = self.run_main("--rounds", "1", "--reps", "3")
        self.assertEqual(self.order, ["copy"] + ["flash", "default", sdpa.OURS] * 2)
        first = report["problems"][0]
        self.assertEqual((first["default_picks"], first["times"]["cudnn"], first["errors"]), ("cudnn", None, {}))

    def test_copies_are_measured_in_every_round_and_read_and_written_bytes_count(self):
        self.problems = [sdpa.Problem(DECODE, "f16", False, (("copy", 0.8),))]
        _, report = self.run_main("--rounds", "2", "--reps", "3")
        copy = report["copy_bandwidth"]
        rate = 2 * sdpa.COPY_BYTES / 0.5e-3 / 1e9
        self.assertEqual((len(copy["rounds"]), copy["kind"], copy["errors"]), (2, "mul", []))
        self.assertAlmostEqual(copy["gbytes_per_s"], rate, delta=0.1)
        reached = report["problems"][0]["targets"][0]["reached"]
        self.assertAlmostEqual(reached, sets.bytes_moved(self.problems[0]) / 10e-6 / 1e9 / rate, delta=1e-3)
        self.assertIn("copy bandwidth: %.0f GB/s by mul" % rate, sdpa.table(report)[1])
        self.assertTrue(sdpa.complete(report))

    def test_without_a_copy_bandwidth_the_rest_is_measured_and_the_share_is_missed(self):
        self.torch.copy_ms["mul"] = None
        self.problems = [sdpa.Problem(DECODE, "f16", False, (("copy", 0.8), ("flash", 1.0)))]
        _, report = self.run_main("--rounds", "2", "--reps", "3")
        self.assertEqual(report["copy_bandwidth"]["errors"], ["CUDA out of memory."] * 2)
        self.assertEqual([target["met"] for target in report["problems"][0]["targets"]], [False, True])
        lines = sdpa.table(report)
        self.assertEqual(lines[1], "copy bandwidth: not measured")
        self.assertEqual(lines[-1], "  missed: 8,32,8,1,8192,128 f16 full: 0.8 of copy, not measured")
        self.assertFalse(sdpa.complete(report), "a target could not be judged")
        report["problems"][0]["targets"].pop(0)
        self.assertTrue(sdpa.complete(report), "no target needs it")

    def test_times_are_of_one_launch_and_errors_do_not_stop_the_rest(self):
        _, report = self.run_main("--rounds", "2", "--reps", "3")
        first = report["problems"][0]
        self.assertAlmostEqual(first["times"]["flash"]["median_us"], 20.0)
        self.assertAlmostEqual(first["times"]["default"]["median_us"], 10.0)
        self.assertEqual(first["times"]["flash"]["replays"], 6)
        self.assertEqual(first["errors"], {"cudnn": "No available kernel."})
        self.assertEqual((first["default_picks"], first["speed_relative_to"]["flash"]["median"]), ("flash", 2.0))
        self.assertEqual((report["device"]["name"], report["torch"]["cudnn"]), ("Some GPU", "9.19.0"))

    def test_flash_attention_3_is_timed_where_it_is_asked_for(self):
        self.torch.ms["fa3"] = 0.03
        with unittest.mock.patch.object(sdpa, "flash_attention_3", lambda q, k, v, causal: lambda: self.torch.attention(q, k, v)):
            _, report = self.run_main("--rounds", "1", "--reps", "3", "--fa3")
        first = report["problems"][0]
        self.assertEqual((first["times"]["fa3"]["replays"], first["speed_relative_to"]["fa3"]["median"] > 0), (3, True))
        with unittest.mock.patch.dict("sys.modules", {"flash_attn_interface": None}):
            _, report = self.run_main("--rounds", "1", "--reps", "3", "--fa3")
        first = report["problems"][0]
        self.assertIn("flash_attn_interface", first["errors"]["fa3"])
        self.assertEqual(first["times"]["flash"]["replays"], 3)

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
        self.assertIn("2.000", lines[4])
        self.assertIn("fwd_x 64 CTAs (0.48/SM) split 4; 1 x flash met; 1.2 x default p90 MISSED", lines[4])
        missed = "  missed: 1,8,8,512,512,64 f16 full: 1.2 x default p90, 1.000"
        self.assertEqual(lines[-2:], ["1 of 2 targets met", missed])

    def test_how_a_kernel_shares_its_work_is_said_where_it_is_not_a_tile_a_cta(self):
        kernel = {"entry": "fwd_x", "ctas": 264, "ctas_per_sm": 2.0, "schedule": "persistent", "splits": 1}
        self.assertEqual(reports.kernel_text(kernel), "fwd_x 264 CTAs (2.00/SM) persistent")
        self.assertEqual(reports.kernel_text(kernel | {"schedule": "grid"}), "fwd_x 264 CTAs (2.00/SM)")
        self.assertEqual(reports.kernel_text(kernel | {"schedule": "split"}), "fwd_x 264 CTAs (2.00/SM) split 1")
        self.assertEqual([reports.kernel_text(k) for k in (None, {"entry": "fwd_x"})], ["-", "fwd_x"])

    def test_a_device_that_fails_leaves_a_table(self):
        self.torch.cuda.Event = lambda enable_timing: (_ for _ in ()).throw(RuntimeError("out of memory"))
        nothing = types.SimpleNamespace(turn=lambda p: None, end=lambda p: None, close=lambda batch, found: {})
        self.patch("Ferroflash", lambda args, problems: nothing)
        _, report = self.run_main("--rounds", "1", "--reps", "3")
        self.assertEqual(report["problems"][0]["errors"]["flash"], "out of memory")
        self.assertIn("1 x flash MISSED", sdpa.table(report)[4])
        self.assertEqual(report["copy_bandwidth"]["errors"], ["out of memory"])


if __name__ == "__main__":
    unittest.main()
