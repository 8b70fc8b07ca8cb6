"""Runs every form of forms.txt on the first GPU and writes what it gives to results.bin, 256 bytes a form.

Needs a driver and nothing else: python3 record.py
"""

import ctypes
import pathlib

HERE = pathlib.Path(__file__).parent
TAIL = "st.global.b64 [%out], %t;\nret;\n}\n"
RESULT_BYTES = 256


def check(status, what):
    if status:
        raise RuntimeError(f"{what}: CUDA error {status}")


def main():
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    check(cuda.cuInit(0), "init")
    check(cuda.cuDeviceGet(ctypes.byref(device), 0), "device")
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "context")
    check(cuda.cuCtxSetCurrent(context), "context")
    inputs = (HERE / "inputs.bin").read_bytes()
    source, target = ctypes.c_uint64(), ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(source), ctypes.c_size_t(len(inputs))), "inputs")
    check(cuda.cuMemAlloc_v2(ctypes.byref(target), ctypes.c_size_t(RESULT_BYTES)), "results")
    check(cuda.cuMemcpyHtoD_v2(source, inputs, ctypes.c_size_t(len(inputs))), "inputs")
    head = (HERE / "head.ptx").read_text()
    results = b""
    for form in (HERE / "forms.txt").read_text().split("==== ")[1:]:
        name, code = form.split("\n", 1)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        check(cuda.cuModuleLoadData(ctypes.byref(module), (head + code + TAIL).encode() + b"\0"), name)
        check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"k"), name)
        params = [ctypes.cast(ctypes.byref(p), ctypes.c_void_p) for p in (source, target)]
        params = (ctypes.c_void_p * 2)(*params)
        check(cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, params, None), name)
        check(cuda.cuCtxSynchronize(), name)
        buffer = ctypes.create_string_buffer(RESULT_BYTES)
        check(cuda.cuMemcpyDtoH_v2(buffer, target, ctypes.c_size_t(RESULT_BYTES)), name)
        check(cuda.cuModuleUnload(module), name)
        results += buffer.raw
    (HERE / "results.bin").write_bytes(results)
    print(len(results) // RESULT_BYTES, "forms")


main()
