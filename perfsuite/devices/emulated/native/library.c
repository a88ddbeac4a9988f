/* A call of cuBLAS or cuDNN counts as one kernel of that call's name: how many kernels NVIDIA's own library would have
 * launched for it (split-K, the cells of a recurrence) is not known without the library. */
#include "runtime.h"
#include <stdio.h>

void emu_library(cudaStream_t stream, const char *name, double flops, enum emu_precision precision, uint32_t m, uint32_t n, uint32_t k, uint32_t batch)
{
    const struct emu_card *card = emu_card();
    double peak = card->flops_per_ns[precision] > 0 ? card->flops_per_ns[precision] : card->flops_per_ns[EMU_FLOAT32];
    struct emu_call call = emu_enter(EMU_CB_LAUNCH);
    char marked[96];
    if (precision == EMU_TF32) { /* the same product takes another time there */
        snprintf(marked, sizeof marked, "%s (TF32)", name);
        name = marked;
    }
    /* The shape of the problem takes the place of the launch geometry, and fills the card or not by its results. */
    struct emu_work work = {.function = emu_function(EMU_LIBRARY, name), .shape = {{m, n, k}, {batch, 1, 1}}};
    work.least_ns = card->kernel_ns + (peak > 0 ? (uint64_t)(flops / peak) : 0);
    emu_enqueue(emu_stream(stream), &work, call.correlation);
    emu_leave(call);
}
