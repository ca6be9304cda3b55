"""Compiles CUDA sources with a real NVRTC, without a GPU: compile_kernels.py LIBRARY FOLDER [--once] [--jobs N]

FOLDER holds what the soft card keeps (SOFT_CARD_SOURCES): in each file's first line, the options that CubeCL passed, with
the architecture and the include paths. With --once, a kernel that several architectures ask for is compiled for the
lowest of them alone. Prints a table of kernels and CPU time by architecture, then every failure with the kernel's name,
the architecture and NVRTC's log. Its exit code is 1 if a kernel failed or a control was not noticed.
"""

import argparse
import concurrent.futures
import ctypes
import os
import re
import statistics
import sys
import time
from pathlib import Path

ARCHITECTURE = re.compile(r"--gpu-architecture=(sm_\w+)")
KERNEL = re.compile(r'extern "C" __global__ void\s*(?:__\w+__\([^)]*\)\s*)*(\w+)')
LOG_LINES = 12

# Sources that must be refused, so that a compiler that accepts everything is noticed.
CONTROLS = {
    "an undeclared name": 'extern "C" __global__ void control(float* out) { out[0] = undeclared; }',
    "an instruction of 8.0 for 7.5": 'extern "C" __global__ void control(float* out) '
    '{ asm volatile("cp.async.commit_group;"); out[0] = 0.0f; }',
}
CONTROL_OPTIONS = ["--gpu-architecture=sm_75"]


class Nvrtc:
    """The calls of NVRTC that CubeCL makes."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)

    def version(self):
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def compile(self, source, options):
        """Returns None, or the log of a source that NVRTC refuses."""
        program = ctypes.c_void_p()
        created = self.library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), None, 0, None, None)
        if created != 0:
            return f"nvrtcCreateProgram returned {created}"
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        code = self.library.nvrtcCompileProgram(program, len(options), words)
        log = None if code == 0 else f"code {code}\n{self.log(program)}"
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return log

    def log(self, program):
        size = ctypes.c_size_t()
        self.library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self.library.nvrtcGetProgramLog(program, text)
        return text.value.decode(errors="replace")


def read_kernel(path):
    """Returns architecture, options, kernel name and source of a kept kernel."""
    first, source = path.read_text().split("\n", 1)
    options = first.removeprefix("// ").split()
    architecture, name = ARCHITECTURE.search(first), KERNEL.search(source)
    if not first.startswith("// ") or not architecture or not name:
        sys.exit(f"{path}: not a kernel that the soft card kept (SOFT_CARD_SOURCES)")
    return architecture[1], options, name[1], source


def select(paths, once):
    """Returns the paths by architecture; with `once`, each source only for the lowest one."""
    kernels = sorted(((read_kernel(path), path) for path in paths), key=lambda kernel: (kernel[0][0], kernel[1]))
    seen, chosen = set(), []
    for (architecture, _, _, source), path in kernels:
        if once and source in seen:
            continue
        seen.add(source)
        chosen.append(path)
    return chosen


def start(library):
    global nvrtc
    nvrtc = Nvrtc(library)


def compile_file(path):
    """Returns architecture, kernel name, CPU seconds, and the log of a failure."""
    architecture, options, name, source = read_kernel(path)
    begun = time.process_time()
    log = nvrtc.compile(source, options)
    return architecture, name, time.process_time() - begun, log


def check_controls(library):
    for what, source in CONTROLS.items():
        if Nvrtc(library).compile(source, CONTROL_OPTIONS) is None:
            sys.exit(f"NVRTC accepted the control with {what}: this check would notice no failure")


def print_table(results):
    print("| architecture | kernels | failed | CPU s | median s | longest s | longest kernel |")
    print("|---|---:|---:|---:|---:|---:|---|")
    for architecture in sorted({result[0] for result in results}):
        own = [result for result in results if result[0] == architecture]
        times = [seconds for _, _, seconds, _ in own]
        _, name, longest, _ = max(own, key=lambda result: result[2])
        failed = sum(log is not None for *_, log in own)
        print(
            f"| {architecture} | {len(own)} | {failed} | {sum(times):.1f} | {statistics.median(times):.3f} "
            f"| {longest:.2f} | {name} |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="libnvrtc.so.12")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    paths = select(arguments.folder.rglob("*.cu"), arguments.once)
    if not paths:
        sys.exit(f"no kernels in {arguments.folder}: were they compiled earlier, and taken from a cache?")
    check_controls(arguments.library)
    print(f"NVRTC {Nvrtc(arguments.library).version()}, {len(paths)} kernels")
    # This pool raises an error if NVRTC crashes in one of its processes.
    pool = concurrent.futures.ProcessPoolExecutor(arguments.jobs, initializer=start, initargs=[arguments.library])
    with pool:
        results = list(pool.map(compile_file, paths, chunksize=4))
    print_table(results)
    failures = [(architecture, name, log) for architecture, name, _, log in results if log is not None]
    for architecture, name, log in failures:
        print(f"\n{name} for {architecture}:\n" + "\n".join(log.splitlines()[:LOG_LINES]))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
