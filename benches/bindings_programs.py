"""Prebuilt programs of other languages on the GPU, for bindings_on_gpu.py: each must end with exit code 0."""

import os
import pathlib
import subprocess

LIMIT_S = 60


def checks(run):
    folder = run.args.programs
    if not folder:
        return []
    programs = sorted(path for path in pathlib.Path(folder).resolve().iterdir() if os.access(path, os.X_OK) and path.suffix == "")
    return [(path.name, lambda path=path: started(path, run.args.ptx)) for path in programs if path.is_file()]


def started(path, kernels):
    import torch

    # A program that links CUDA's libraries finds those that PyTorch came with.
    found = sorted(pathlib.Path(torch.__file__).parents[1].glob("nvidia/*/lib"))
    folders = [str(path.parent), *map(str, found), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = dict(os.environ, LD_LIBRARY_PATH=":".join(folders))
    if kernels:
        environment["FERROFLASH_PTX"] = str(pathlib.Path(kernels).resolve())
    found = subprocess.run([str(path)], capture_output=True, text=True, timeout=LIMIT_S, env=environment)
    said = " / ".join(line for line in found.stdout.splitlines()[-4:])
    assert found.returncode == 0, f"exit code {found.returncode}: {said} {found.stderr[-400:]}"
    return said
