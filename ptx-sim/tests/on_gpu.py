#!/usr/bin/env python3
"""Runs programs of tests/pass on a GPU and compares the last buffer with what they expect, through libcuda alone.

What the simulator says is right has to be right on the hardware too; and a tool that finds a race in one of them is wrong itself:

  compute-sanitizer --tool racecheck python3 on_gpu.py pass/named_barrier_rounds.ptx

Of the directives (see planted.rs) it knows `grid`, `block`, `buffer` and `expect`; programs with others, and those of a target that the device
is older than, are left out, by name.
Exit code: 0 when all that ran were right, 1 when not, 2 without a device."""

import argparse
import ctypes
import pathlib
import re
import sys

NEEDED = {"block", "buffer", "expect"}
KNOWN = NEEDED | {"grid"}


def words(text):
    """`3..6` stands for 3 4 5, `7x4` for 7 7 7 7."""
    found = []
    for word in text.split():
        if ".." in word:
            first, past = word.split("..")
            found += range(int(first), int(past))
        elif "x" in word:
            value, count = word.split("x")
            found += [int(value)] * int(count)
        else:
            found.append(int(word))
    return found


class Driver:
    """libcuda with its first device's primary context."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(major), 75, device)
        self.call("cuDeviceGetAttribute", ctypes.byref(minor), 76, device)
        self.architecture = 10 * major.value + minor.value

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise OSError("%s: CUDA error %d" % (name, code))

    def run(self, text, directives):
        """The last buffer's words, and what they should be."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(text.encode()))
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"k")
        sizes = [int(value.split()[0]) for name, value in directives if name == "buffer"]
        buffers = []
        for size in sizes:
            address = ctypes.c_uint64()
            self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
            self.call("cuMemsetD8_v2", address, ctypes.c_ubyte(0), ctypes.c_size_t(size))
            buffers.append(address)
        arguments = (ctypes.c_void_p * len(buffers))(*[ctypes.addressof(address) for address in buffers])
        grid, block = (int(dict(directives).get(name, 1)) for name in ("grid", "block"))
        self.call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, 0, None, arguments, None)
        self.call("cuCtxSynchronize")
        expected = words(next(value for name, value in directives if name == "expect"))
        got = (ctypes.c_uint32 * (sizes[-1] // 4))()
        self.call("cuMemcpyDtoH_v2", got, buffers[-1], ctypes.c_size_t(sizes[-1]))
        return list(got)[: len(expected)], expected


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", type=pathlib.Path, metavar="FILE")
    paths = parser.parse_args().programs
    try:
        driver = Driver()
    except OSError as error:
        print("on_gpu.py: %s" % error, file=sys.stderr)
        return 2
    wrong = 0
    for path in paths:
        text = path.read_text()
        directives = re.findall(r"^//# (\w+) (.*)$", text, re.MULTILINE)
        lacking = NEEDED - {name for name, _ in directives}
        others = {name for name, _ in directives} - KNOWN
        filled = any(not value.strip().isdigit() for name, value in directives if name == "buffer")
        if lacking or others or filled:
            print("left out %s: it has other directives, or a buffer that is not empty" % path.name)
            continue
        if int(re.search(r"^\.target sm_(\d+)", text, re.MULTILINE).group(1)) > driver.architecture:
            print("left out %s: the device is older than its target" % path.name)
            continue
        try:
            got, expected = driver.run(text, directives)
        except OSError as error:
            print("FAILED   %s: %s" % (path.name, error))
            wrong += 1
            continue
        print("%s %s" % ("right   " if got == expected else "WRONG   ", path.name))
        wrong += got != expected
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
