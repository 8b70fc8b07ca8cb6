"""Kernels of nvcc, Triton and rustc on NumPy's arrays, in the simulator."""

import pathlib

import numpy as np
import pytest

from ferroflash import sim

SOURCES = pathlib.Path(__file__).parents[3] / "ptx-sim" / "tests"

SCALE = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 x, .param .u64 y, .param .f32 factor, .param .u32 n) {
    .reg .pred %p; .reg .b32 %r<6>; .reg .b64 %d<5>; .reg .f32 %f<3>;
    ld.param.u64 %d0, [x]; ld.param.u64 %d1, [y]; ld.param.f32 %f0, [factor]; ld.param.u32 %r0, [n];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r1, %r2, %r3;
    setp.ge.u32 %p, %r4, %r0; @%p bra done;
    mul.wide.u32 %d2, %r4, 4; add.s64 %d3, %d0, %d2; add.s64 %d4, %d1, %d2;
    ld.global.f32 %f1, [%d3]; mul.f32 %f2, %f1, %f0; st.global.f32 [%d4], %f2;
done: ret;
}
"""


def test_arrays_hold_what_the_kernel_wrote():
    module = sim.Module(SCALE)
    assert module.entries == ["scale"]
    x, y = np.arange(100, dtype="float32"), np.full(100, np.nan, dtype="float32")
    report = module.launch("scale", grid=4, block=32, args=[x, sim.Unwritten(y), 3.0, 100])
    assert np.array_equal(y, 3 * x) and report["ctas"] == 4 and report["global_load.bytes"] == 400


def test_a_broken_rule_is_raised_with_its_place():
    x, y = np.zeros(64, "float32"), np.zeros(64, "float32")
    with pytest.raises(sim.Finding, match="out-of-bounds: kernel scale line") as found:
        sim.Module(SCALE).launch("scale", grid=4, block=32, args=[x, y, 3.0, 100], seed=1)
    assert found.value.kind == "out-of-bounds" and found.value.details["seed"] == 1
    with pytest.raises(sim.Finding, match="uninitialized|unwritten"):
        bug = SCALE.replace("mul.f32 %f2, %f1, %f0;", "setp.gt.f32 %p, %f1, %f0; selp.f32 %f2, %f1, %f0, %p;")
        sim.Module(bug).launch("scale", 1, 32, [sim.Unwritten(x), y, 3.0, 32])


def test_what_cannot_be_run_is_refused():
    module = sim.Module(SCALE)
    x = np.zeros(32, "float32")
    for args in [[x, x, 3.0], [x, x, np.float64(3), 32], [x[::2], x, 3.0, 1], [x, x, 3.0, 2**40]]:
        with pytest.raises((ValueError, OverflowError)):
            module.launch("scale", 1, 32, args)
    with pytest.raises(ValueError, match="no kernel"):
        module.launch("none", 1, 32, [])
    with pytest.raises(ValueError, match="line 1"):
        sim.Module("nonsense")


def test_a_triton_kernel_computes_attention():
    """The kernel of ptx-sim/tests/foreign/attention_triton.py, as `compiled.asm["ptx"]` has it."""
    heads, seqlen, head_dim = 2, 100, 64
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((heads, seqlen, head_dim)).astype("float16") for _ in range(3))
    o, lse = np.empty_like(q), np.empty((heads, seqlen), "float32")
    scale = head_dim**-0.5
    module = sim.Module((SOURCES / "foreign" / "attention_triton.ptx").read_text())
    (name,) = module.entries
    args = [q, k, v, sim.Unwritten(o), sim.Unwritten(lse), seqlen, float(scale * np.log2(np.e))]
    # Triton appends pointers to scratch memory, which this kernel does not use.
    args += [None] * (len(module._module.parameters(name)) - len(args))
    report = module.launch(name, grid=(2, heads), block=128, args=args, shared=49152)
    assert report["tensor_flops"] > 0
    scores = np.einsum("hid,hjd->hij", q.astype("float64"), k.astype("float64")) * scale
    scores[:, np.arange(seqlen)[None] > np.arange(seqlen)[:, None]] = -np.inf
    weights = np.exp(scores - scores.max(2, keepdims=True))
    right = np.einsum("hij,hjd->hid", weights / weights.sum(2, keepdims=True), v.astype("float64"))
    assert np.abs(o - right).max() < 4e-3


def test_a_prediction_is_called_one():
    x, y = np.zeros(1 << 16, "float32"), np.zeros(1 << 16, "float32")
    predict = lambda device: sim.Module(SCALE).predict("scale", 256, 256, [x, y, 3.0, 1 << 16], device, 16)
    h200, l4 = predict("h200"), predict("l4")
    assert 1.0 < h200 < l4 < 100.0
    assert str(l4).startswith("predicted for NVIDIA L4 at 2040 MHz, not measured: ")
    with pytest.raises(ValueError, match="is not known: h200"):
        predict("h300")
