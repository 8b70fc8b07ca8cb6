"""Any CUDA, Triton or Rust kernel's PTX on NumPy's arrays, without a GPU: executed and checked by ptx-sim.

    module = sim.Module(ptx)                       # of nvcc --ptx, of Triton's compiled.asm["ptx"], of rustc
    module.launch("scale", grid=8, block=128, args=[x, y, 3.0])

Arrays are given by address, and hold afterwards what the kernel wrote; `None` is a null pointer; numbers take the size of their parameter. A broken
rule (a race, an access out of bounds, memory that nobody wrote, a deadlock, …) is raised as `Finding`, with its place.
"""

import json

from ._native import Finding as _Finding
from ._native import SimModule as _SimModule

__all__ = ["Finding", "Module", "Prediction", "Unwritten"]


class Finding(Exception):
    """A rule that the kernel broke. `details` has kind, line, source, warp, lane, address and the other access."""

    def __init__(self, message, details):
        super().__init__(message)
        self.details = details
        self.kind = details["kind"]


class Unwritten:
    """An array whose contents the kernel may not read before it has written them."""

    def __init__(self, array):
        self.array = array


class Prediction(float):
    """Microseconds that a launch is predicted to take; never a measured time. As text it says of what and how."""

    def __new__(cls, microseconds, text):
        self = super().__new__(cls, microseconds)
        self.text = text
        return self

    def __str__(self):
        return self.text


class Module:
    """Kernels in PTX. `ValueError` names the first line that is not supported."""

    def __init__(self, ptx):
        self._module = _SimModule(ptx.decode() if isinstance(ptx, bytes) else ptx)

    @property
    def entries(self):
        """The kernels' names."""
        return self._module.entries()

    def launch(self, entry, grid, block, args, shared=0, seed=None, checks=True):
        """Runs a grid, and returns what was counted: instructions by class, bytes, bank conflicts, … `seed` shuffles the orders that
        hardware leaves open; `checks=False` is faster and finds nothing."""
        arrays, arguments = self._arguments(entry, args)
        try:
            contents, report = self._module.launch(entry, _sizes(grid, block, shared), arguments, seed, checks)
        except _Finding as found:
            message, details = found.args
            raise Finding(message, json.loads(details)) from None
        for array, content in zip(arrays, contents):
            if array.flags.writeable:
                array[...] = _numpy().frombuffer(content, dtype=array.dtype).reshape(array.shape)
        return json.loads(report)

    def predict(self, entry, grid, block, args, device, registers, shared=0):
        """The predicted time of a launch on a device (`h200`, `h100`, `a100`, `l4`, `a10`, `l40s`, `rtx4090`, `rtx3090`). `registers` of a thread are
        what `ptxas -v`, or Triton's `compiled.n_regs`, says. The arrays stay as they are."""
        _, arguments = self._arguments(entry, args)
        return Prediction(*self._module.predict(entry, _sizes(grid, block, shared), arguments, device, registers))

    def _arguments(self, entry, args):
        parameters = self._module.parameters(entry)
        if len(args) != len(parameters):
            names = ", ".join(f"{name} ({size} bytes)" for name, size in parameters)
            raise ValueError(f"{entry} takes {len(parameters)} parameters, not {len(args)}: {names}")
        arrays, arguments = [], []
        for value, (name, size) in zip(args, parameters):
            written = not isinstance(value, Unwritten)
            array = value if written else value.array
            if isinstance(array, _numpy().ndarray):
                if not array.flags.c_contiguous:
                    raise ValueError(f"the array for {name} is not contiguous: numpy.ascontiguousarray")
                arrays.append(array)
                arguments.append((True, written, array.tobytes()))
            else:
                arguments.append((False, True, _number(value, name, size)))
        return arrays, arguments


def _numpy():
    import numpy

    return numpy


def _number(value, name, size):
    if value is None:
        return bytes(size)
    if isinstance(value, _numpy().generic):
        return value.tobytes()
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        kind = {2: "<f2", 4: "<f4", 8: "<f8"}.get(size)
        if kind is None:
            raise ValueError(f"{name} takes {size} bytes, which is no float")
        return _numpy().array(value, dtype=kind).tobytes()
    return int(value).to_bytes(size, "little", signed=value < 0)


def _sizes(grid, block, shared):
    def three(sizes):
        sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
        return list(sizes + (1,) * (3 - len(sizes)))

    return three(grid), three(block), shared
