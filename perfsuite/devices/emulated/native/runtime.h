/* What the files of the runtime share: a thread's device and last error, and the numbers a profiler knows calls by. */
#pragma once
#include "emulator.h"

int emu_current_device(void);
cudaError_t emu_fail(cudaError_t error); /* kept for cudaGetLastError, and returned */

/* CUPTI's numbers of the runtime's and driver's functions; checked against its header with EMULATED_CHECK. */
enum {
    EMU_CB_MALLOC = 20, EMU_CB_FREE = 22, EMU_CB_MEMCPY = 31, EMU_CB_MEMCPY_ASYNC = 41, EMU_CB_MEMCPY_2D_ASYNC = 44, EMU_CB_MEMSET_ASYNC = 51,
    EMU_CB_HOST_ALLOC = 27, EMU_CB_STREAM_SYNCHRONIZE = 131, EMU_CB_DEVICE_SYNCHRONIZE = 165, EMU_CB_EVENT_RECORD = 135,
    EMU_CB_EVENT_SYNCHRONIZE = 137, EMU_CB_STREAM_WAIT_EVENT = 147, EMU_CB_LAUNCH = 211, EMU_CB_LAUNCH_EX = 430, EMU_CB_LAUNCH_COOPERATIVE = 269,
    EMU_CB_GRAPH_LAUNCH = 311, EMU_CB_LAUNCH_KERNEL_HANDLE = 505, EMU_CB_MEMCPY_PEER_ASYNC = 161,
    EMU_CB_DRIVER = 0x10000, EMU_CB_DRIVER_LAUNCH = EMU_CB_DRIVER + 307, EMU_CB_DRIVER_LAUNCH_EX = EMU_CB_DRIVER + 652
};
