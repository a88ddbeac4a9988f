"""What a launch costs on the emulated GPU beyond an empty call: python -m benchmarks.emulated_launch."""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from perfsuite.devices.emulated import TorchBuild, Wanted, build, describe, preloads

_MOST_MICROSECONDS = 2.0
_PROGRAM = """
#include <stdio.h>
#include <time.h>
typedef struct { unsigned x, y, z; } dim3;
int cudaLaunchKernel(const void *, dim3, dim3, void **, unsigned long, void *);
int cudaDeviceSynchronize(void);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *,
                            int *);
__attribute__((noinline)) int empty(const void *f, dim3 g, dim3 b, void **a, unsigned long s, void *t)
{
    __asm__ volatile("");
    return !f + g.x + b.x;
}
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}
int main(void) {
    static char host[64]; dim3 one = {1, 1, 1}, block = {128, 1, 1}; enum { TIMES = 200 };
    __cudaRegisterFunction(0, host, host, "kernel", 0, 0, 0, 0, 0, 0);
    printf("[");
    for (int round = 0; round < 300; round++) {
        double start = now();
        for (int i = 0; i < TIMES; i++) empty(host, one, block, 0, 0, 0);
        double between = now();
        for (int i = 0; i < TIMES; i++)
            if (cudaLaunchKernel(host, one, block, 0, 0, 0)) return 1;
        double end = now();
        cudaDeviceSynchronize();
        printf("%s%.4f", round ? "," : "", (end - between - (between - start)) / TIMES);
    }
    printf("]\\n");
    return 0;
}
"""


def measured() -> list[float]:
    """Return the microseconds a launch costs more than an empty call, by round."""
    libraries = build(TorchBuild("of no version", 13000, 92000, ("libcudart.so.13",), (), {}))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "card.txt").write_text(describe(Wanted.from_name("a10")))
        (folder / "launch.c").write_text(_PROGRAM)
        core = preloads(libraries).split(":")[0]
        program = folder / "launch"
        subprocess.run(["cc", "-O2", "-w", folder / "launch.c", core, "-o", program], check=True)
        variables = {"LD_LIBRARY_PATH": str(libraries), "PERFSUITE_EMULATED_RUN": str(folder)}
        ran = subprocess.run([program], env=variables, capture_output=True, text=True, check=True)
    return list(json.loads(ran.stdout))


def main() -> int:
    """Print what a launch costs, and fail where it is more than promised."""
    rounds = measured()
    quickest, middle = min(rounds), statistics.median(rounds)
    print(f"a launch costs {middle:.2f} µs more than an empty call (quickest round {quickest:.2f} µs)")
    return int(quickest > _MOST_MICROSECONDS)


if __name__ == "__main__":
    sys.exit(main())
