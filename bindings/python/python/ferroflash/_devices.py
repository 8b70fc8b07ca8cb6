"""The devices that were opened, one for each place that tensors lie in."""

import os
import threading
from operator import index

from . import _again, _native

_lock = threading.Lock()
_opened = {}
_workspaces = {}
_cpu = os.environ.get("FERROFLASH_CPU_DEVICE") or "reference"
_folder = None
_ds_bytes_max = None


def use_cpu_device(name, model=None):
    """What computes CPU tensors: "reference", float32 loops, or "simulator", the GPU's kernels on a simulated GPU (slow, and as strict as
    a GPU about what it supports). `model` is the simulated GPU, "l4" where it is not given."""
    global _cpu
    _check_name(name)
    if name == "reference" and model is not None:
        raise ValueError(f'model {model!r} is of a simulated GPU: the device is "reference"')
    with _lock:
        device = _native.Device.simulator(_folder, model) if name == "simulator" else _native.Device.cpu()
        _cpu, _opened["cpu"] = name, device
        _again.forget()


def _check_name(name):
    # Of the environment's variable as well, of which a wrong name would pass for the other device.
    if name not in ("reference", "simulator"):
        raise ValueError(f'device {name!r} is not known: "reference" or "simulator"')


def use_kernels(folder):
    """Takes the compiled kernels of a folder instead of those inside the package, for devices that are opened from now on."""
    global _folder
    _folder = os.fspath(folder) if folder is not None else None


def use_ds_bytes_max(limit):
    """At most so many bytes of dS in the workspace of a backward pass from now on: less memory, and more launches where heads do not fit
    together; 0 for none of it, which is slower. None is the usual limit, 2.25 GiB. Gradients are the same for every limit that one head fits."""
    global _ds_bytes_max
    if limit is not None and not 0 <= index(limit) < 1 << 64:
        raise ValueError(f"limit {limit} is no number of bytes")
    _ds_bytes_max = None if limit is None else index(limit)


def ds_bytes_max():
    """The limit that use_ds_bytes_max gave, or None."""
    return _ds_bytes_max


def device_at(place):
    """The device of a place: "cpu" or ("cuda", 0)."""
    device = _opened.get(place)
    if device is None:
        with _lock:
            device = _opened.setdefault(place, _opened.get(place) or _open(place))
    return device


def _open(place):
    if place == "cpu":
        _check_name(_cpu)
        if _cpu == "simulator":
            return _native.Device.simulator(_folder, None)
        return _native.Device.cpu()
    kind, index = place
    if kind != "cuda":
        raise NotImplementedError(f"device {kind} is not supported: tensors must be on the CPU or on an NVIDIA GPU")
    return _native.Device.cuda(index, _folder)


def has_kernels(place):
    """Whether tensors at a place, or of a kind of device, are computed by the GPU's kernels, which want rows of 16 bytes."""
    return place != "cpu" or _cpu == "simulator"


def run(framework, place, what, args):
    """Starts a call ("forward" or "backward") on the framework's current stream, in a workspace of the framework's memory. Returns the device."""
    device, stream = device_at(place), framework.stream(place)
    start = getattr(device, what)
    missing = start(args, stream, place != "cpu")
    if missing:
        memory = framework.memory(place, missing)
        with _lock:
            device.give_workspace(stream, framework.describe(memory)[0], missing)
            # Graphs that were captured with an older one hold its address, so none is given back.
            _workspaces.setdefault((place, stream), []).append(memory)
        start(args, stream, False)
    return device
