"""Every prototype, constant and layout of ours held against NVIDIA's own headers, where those are at hand."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from perfsuite.devices.emulated.library import SOURCES
from scripts import emulated_functions

# CUDA's version → which of its headers a file needs beside the runtime's.
_NEEDS = {
    "cublas.c": ("cublas_v2.h", "cublasLt.h", "cudnn.h", "cupti.h"),
    "cublaslt.c": ("cublas_v2.h", "cublasLt.h", "cudnn.h", "cupti.h"),
    "cudnn.c": ("cublas_v2.h", "cublasLt.h", "cudnn.h", "cupti.h"),
    "cudnn_rnn.c": ("cublas_v2.h", "cublasLt.h", "cudnn.h", "cupti.h"),
    "cudnn_backend.c": ("cublas_v2.h", "cublasLt.h", "cudnn.h", "cupti.h"),
    "cupti.c": ("cublas_v2.h", "cublasLt.h", "cudnn.h", "cupti.h"),
    "nvml.c": ("nvml.h",),
}
_SETS = {  # what a header declares of ours, and how a file gets at it
    "nvidia_runtime.h": ("cuda_runtime_api.h",),
    "nvidia_libraries.h": ("cublas_v2.h", "cublasLt.h", "cudnn.h", "cupti.h"),
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


def folders():
    """Return where NVIDIA's headers may lie: named by hand, in installed wheels, in a toolkit beside nvcc."""
    found = [Path(place) for place in os.environ.get("PERFSUITE_NVIDIA_HEADERS", "").split(":") if place]
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations if spec else ():
        found += {path.parent for path in Path(place).rglob("*.h")}
    nvcc = shutil.which("nvcc")
    toolkits = [Path("/usr/local/cuda/include"), *Path("/usr/local").glob("cuda-*/include")]
    return [*found, *([Path(nvcc).resolve().parents[1] / "include"] if nvcc else []), *toolkits]


def has(header):
    return any((folder / header).is_file() for folder in folders())


def version():
    """Return the CUDA version the headers are of."""
    for folder in folders():
        path = folder / "cuda_runtime_api.h"
        if path.is_file():
            return int(re.search(r"#define CUDART_VERSION\s+(\d+)", path.read_text())[1])
    pytest.skip("NVIDIA's headers are not on this machine")


def compiled(tmp_path, text, *flags):
    """Compile and run a program; both with our headers and with NVIDIA's."""
    (tmp_path / "nv").mkdir(exist_ok=True)
    (tmp_path / "nv" / "target").touch()  # C++ alone needs what is in it
    source, program = tmp_path / "held.c", tmp_path / "held"
    source.write_text(text)
    includes = [f"-I{SOURCES}", f"-I{tmp_path}", *(f"-I{folder}" for folder in folders())]
    command = ["cc", "-std=gnu11", "-w", "-D_GNU_SOURCE", f"-DEMULATED_CUDA={version()}", *includes, *flags]
    ran = subprocess.run([*command, source, "-o", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("source", sorted(path.name for path in SOURCES.glob("*.c")))
def test_every_function_has_nvidia_s_own_prototype(source, tmp_path):
    """The same file compiled with NVIDIA's headers instead of ours: a parameter that differs is an error."""
    missing = [name for name in ("cuda.h", "cuda_runtime_api.h", *_NEEDS.get(source, ())) if not has(name)]
    if missing:
        pytest.skip(f"NVIDIA's {', '.join(missing)} is not on this machine")
    (tmp_path / "nv").mkdir()
    (tmp_path / "nv" / "target").touch()
    includes = [f"-I{SOURCES}", f"-I{tmp_path}", *(f"-I{folder}" for folder in folders())]
    flags = [
        "-fsyntax-only",
        "-DEMULATED_CHECK",
        f"-DEMULATED_CUDA={version()}",
        "-D_GNU_SOURCE",
        "-std=gnu11",
        "-w",
    ]
    ran = subprocess.run(
        ["cc", *flags, *includes, SOURCES / source], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("header", _SETS)
def test_constants_and_layouts_are_nvidia_s(header, tmp_path):
    """Sizes, offsets and every constant we write down, printed by one program built twice."""
    missing = [name for name in ("cuda.h", "cuda_runtime_api.h", *_SETS[header]) if not has(name)]
    if missing:
        pytest.skip(f"NVIDIA's {', '.join(missing)} is not on this machine")
    text = (SOURCES / header).read_text()
    constants = sorted(set(re.findall(r"\b((?:cuda|CU|CUPTI|CUDNN|CUBLAS|NVML)[A-Za-z0-9_]+) = -?\d+", text)))
    kernel = "CUpti_ActivityKernel9" if version() < 13000 else "CUpti_ActivityKernel10"
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
    assert compiled(tmp_path, program, "-DEMULATED_CHECK") == compiled(tmp_path, program)


def test_calls_have_the_numbers_cupti_knows_them_by(tmp_path):
    """A profiler names calls by them."""
    if not has("cupti_runtime_cbid.h"):
        pytest.skip("NVIDIA's cupti_runtime_cbid.h is not on this machine")
    pairs = [
        f'"{ours}", EMU_CB_{ours}, CUPTI_RUNTIME_TRACE_CBID_{theirs}'
        for ours, theirs in _CALLBACKS.items()
        if not theirs.endswith("_v13000") or version() >= 13000
    ]
    pairs.append(
        '"DRIVER_LAUNCH", EMU_CB_DRIVER_LAUNCH - EMU_CB_DRIVER, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel'
    )
    pairs.append(
        '"DRIVER_LAUNCH_EX", EMU_CB_DRIVER_LAUNCH_EX - EMU_CB_DRIVER, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx'
    )
    body = "".join(f'printf("%s %d %d\\n", {pair});\n' for pair in pairs)
    heads = '#include "runtime.h"\n#include <cupti_runtime_cbid.h>\n#include <cupti_driver_cbid.h>\n#include <stdio.h>\n'
    told = [line.split() for line in compiled(tmp_path, f"{heads}int main(void) {{ {body} }}").splitlines()]
    assert [] == [name for name, ours, theirs in told if ours != theirs]


def test_the_table_of_what_is_there_is_up_to_date():
    """docs/emulated-functions.md is what the sources have, both for CUDA 12 and 13."""
    document = Path(__file__).parents[2] / "docs" / "emulated-functions.md"
    assert emulated_functions.render() == document.read_text(encoding="utf-8")
