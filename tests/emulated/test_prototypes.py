"""Every prototype, constant and layout of ours held against NVIDIA's own headers, of CUDA 12 and 13 (make headers)."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from perfsuite.devices.emulated.library import SOURCES
from scripts import emulated_functions, nvidia_headers
from tests.emulated.runs import ROOT

_LIBRARIES = ("cublas_v2.h", "cublasLt.h", "cudnn.h", "cupti.h")
_NEEDS = {  # which of NVIDIA's headers a file of ours needs beside the runtime's
    **dict.fromkeys(
        ("cublas.c", "cublaslt.c", "cudnn.c", "cudnn_rnn.c", "cudnn_backend.c", "cupti.c"), _LIBRARIES
    ),
    "nvml.c": ("nvml.h",),
}
_SETS = {  # and which a header of ours stands for
    "nvidia_runtime.h": ("cuda_runtime_api.h",),
    "nvidia_libraries.h": _LIBRARIES,
    "nvidia_nvml.h": ("nvml.h",),
}
_STRUCTS = {
    "nvidia_runtime.h": {
        "struct cudaDeviceProp": "name uuid totalGlobalMem maxGridSize totalConstMem major multiProcessorCount canMapHostMemory "
        "surfaceAlignment pciBusID unifiedAddressing memoryBusWidth l2CacheSize sharedMemPerMultiprocessor managedMemory "
        "cooperativeLaunch sharedMemPerBlockOptin maxBlocksPerMultiProcessor reservedSharedMemPerBlock memoryPoolsSupported "
        "clusterLaunch",
        "struct cudaPointerAttributes": "type device devicePointer hostPointer",
        "struct cudaFuncAttributes": "maxThreadsPerBlock numRegs ptxVersion binaryVersion maxDynamicSharedSizeBytes",
        "cudaLaunchConfig_t": "gridDim blockDim stream",
        "CUlaunchConfig": "gridDimX blockDimX hStream",
    },
    "nvidia_libraries.h": {
        "cublasLtMatmulHeuristicResult_t": "workspaceSize state wavesCount",
        "cublasLtMatrixLayoutOpaque_t": "",
        "CUpti_ActivityMemcpy6": "copyKind srcKind dstKind bytes start end deviceId streamId correlationId graphId",
        "CUpti_ActivityMemset4": "bytes start end deviceId streamId correlationId memoryKind graphId",
        "CUpti_ActivityAPI": "cbid start end processId threadId correlationId",
        "CUpti_ActivityExternalCorrelation": "externalKind externalId correlationId",
        "KERNEL": "registersPerThread start end completed deviceId streamId gridX blockX correlationId name graphId",
    },
    "nvidia_nvml.h": {
        "nvmlMemory_v2_t": "version total reserved free used",
        "nvmlProcessInfo_t": "pid usedGpuMemory",
        "nvmlSample_t": "timeStamp sampleValue",
    },
}
_CALLBACKS = {
    "MALLOC": "cudaMalloc_v3020",
    "FREE": "cudaFree_v3020",
    "MEMCPY": "cudaMemcpy_v3020",
    "MEMCPY_ASYNC": "cudaMemcpyAsync_v3020",
    "MEMCPY_2D_ASYNC": "cudaMemcpy2DAsync_v3020",
    "MEMSET_ASYNC": "cudaMemsetAsync_v3020",
    "HOST_ALLOC": "cudaHostAlloc_v3020",
    "STREAM_SYNCHRONIZE": "cudaStreamSynchronize_v3020",
    "DEVICE_SYNCHRONIZE": "cudaDeviceSynchronize_v3020",
    "EVENT_RECORD": "cudaEventRecord_v3020",
    "EVENT_SYNCHRONIZE": "cudaEventSynchronize_v3020",
    "STREAM_WAIT_EVENT": "cudaStreamWaitEvent_v3020",
    "LAUNCH": "cudaLaunchKernel_v7000",
    "LAUNCH_KERNEL_HANDLE": "__cudaLaunchKernel_v13000",
    "LAUNCH_EX": "cudaLaunchKernelExC_v11060",
    "LAUNCH_COOPERATIVE": "cudaLaunchCooperativeKernel_v9000",
    "GRAPH_LAUNCH": "cudaGraphLaunch_v10000",
    "MEMCPY_PEER_ASYNC": "cudaMemcpyPeerAsync_v4000",
}


class Headers:
    """NVIDIA's headers of one CUDA, wherever their folders are."""

    def __init__(self, folders):
        self._folders = folders

    def path(self, name):
        return next((folder / name for folder in self._folders if (folder / name).is_file()), None)

    def need(self, *names):
        """Skip where one is missing."""
        missing = [name for name in names if self.path(name) is None]
        if missing:
            pytest.skip(f"NVIDIA's {', '.join(missing)} is not on this machine; make headers fetches it")

    def version(self):
        """Return the CUDA they are of, as CUDA counts."""
        text = self.path("cuda_runtime_api.h").read_text()
        return int(re.search(r"#define CUDART_VERSION\s+(\d+)", text)[1])

    def compile(self, place, source, *flags):
        """Compile a file that finds ours and theirs, what is theirs alone in C++ left empty."""
        (place / "nv").mkdir(exist_ok=True)
        (place / "nv" / "target").touch()
        includes = [f"-I{folder}" for folder in (SOURCES, place, *self._folders)]
        given = ("-std=gnu11", "-w", "-D_GNU_SOURCE", f"-DEMULATED_CUDA={self.version()}", *includes, *flags)
        ran = subprocess.run(["cc", *given, source], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr

    def run(self, place, text, *flags):
        """Return what a program prints that is compiled with them."""
        source, program = place / "held.c", place / "held"
        source.write_text(text)
        self.compile(place, source, "-o", program, *flags)
        return subprocess.run([program], capture_output=True, text=True, check=True).stdout


def here():
    """Return where headers may lie that nobody fetched: named by hand, in installed wheels, in a toolkit."""
    found = [Path(place) for place in os.environ.get("PERFSUITE_NVIDIA_HEADERS", "").split(":") if place]
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations if spec else ():
        found += {path.parent for path in Path(place).rglob("*.h")}
    nvcc = shutil.which("nvcc")
    toolkits = [Path("/usr/local/cuda/include"), *Path("/usr/local").glob("cuda-*/include")]
    return [*found, *([Path(nvcc).resolve().parents[1] / "include"] if nvcc else []), *toolkits]


FETCHED = {f"CUDA {cuda}": [ROOT / ".nvidia-headers" / cuda] for cuda in nvidia_headers.PACKAGES}
PLACES = FETCHED if all(place.is_dir() for (place,) in FETCHED.values()) else {"at hand": here()}


@pytest.fixture(params=PLACES)
def headers(request):
    """The headers of CUDA 12 and of CUDA 13 where they were fetched, else those the machine has."""
    return Headers(PLACES[request.param])


@pytest.mark.parametrize("source", sorted(path.name for path in SOURCES.glob("*.c")))
def test_every_function_has_nvidia_s_own_prototype(source, headers, tmp_path):
    """The same file compiled with NVIDIA's headers instead of ours: a parameter that differs is an error."""
    headers.need("cuda.h", "cuda_runtime_api.h", *_NEEDS.get(source, ()))
    headers.compile(tmp_path, SOURCES / source, "-fsyntax-only", "-DEMULATED_CHECK")


@pytest.mark.parametrize("header", _SETS)
def test_constants_and_layouts_are_nvidia_s(header, headers, tmp_path):
    """Sizes, offsets and every constant we write down, printed by one program built twice."""
    headers.need("cuda.h", "cuda_runtime_api.h", *_SETS[header])
    text = (SOURCES / header).read_text()
    constants = sorted(set(re.findall(r"\b((?:cuda|CU|CUPTI|CUDNN|CUBLAS|NVML)[A-Za-z0-9_]+) = -?\d+", text)))
    kernel = "CUpti_ActivityKernel9" if headers.version() < 13000 else "CUpti_ActivityKernel10"
    lines = [f'printf("{name} %d\\n", (int)({name}));' for name in constants]
    for struct, members in _STRUCTS[header].items():
        name = struct.replace("KERNEL", kernel)
        ours = name.replace("Kernel9", "Kernel10")
        size = (
            ""
            if "Kernel" in name or name == "struct cudaFuncAttributes"
            else f'printf("{struct} %zu\\n", sizeof(T));'
        )
        lines.append(
            f"{{\n#ifdef EMULATED_CHECK\ntypedef {name} T;\n#else\ntypedef {ours} T;\n#endif\n{size}"
        )
        lines += [f'printf("{struct}.{member} %zu\\n", offsetof(T, {member}));' for member in members.split()]
        lines.append("}")
    program = (
        f'#include "{header}"\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {{\n'
        + "\n".join(lines)
        + "}"
    )
    assert headers.run(tmp_path, program, "-DEMULATED_CHECK") == headers.run(tmp_path, program)


def test_calls_have_the_numbers_cupti_knows_them_by(headers, tmp_path):
    """A profiler names calls by them."""
    headers.need("cupti_runtime_cbid.h")
    pairs = [
        f'"{ours}", EMU_CB_{ours}, CUPTI_RUNTIME_TRACE_CBID_{theirs}'
        for ours, theirs in _CALLBACKS.items()
        if not theirs.endswith("_v13000") or headers.version() >= 13000
    ]
    pairs.append(
        '"DRIVER_LAUNCH", EMU_CB_DRIVER_LAUNCH - EMU_CB_DRIVER, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel'
    )
    pairs.append(
        '"DRIVER_LAUNCH_EX", EMU_CB_DRIVER_LAUNCH_EX - EMU_CB_DRIVER, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx'
    )
    body = "".join(f'printf("%s %d %d\\n", {pair});\n' for pair in pairs)
    heads = '#include "runtime.h"\n#include <cupti_runtime_cbid.h>\n#include <cupti_driver_cbid.h>\n#include <stdio.h>\n'
    told = [
        line.split() for line in headers.run(tmp_path, f"{heads}int main(void) {{ {body} }}").splitlines()
    ]
    assert [] == [name for name, ours, theirs in told if ours != theirs]


def test_the_table_of_what_is_there_is_up_to_date():
    """docs/emulated-functions.md is what the sources have, both for CUDA 12 and 13."""
    document = ROOT / "docs" / "emulated-functions.md"
    assert emulated_functions.render() == document.read_text(encoding="utf-8")
