/* What the files of cuDNN share. */
#pragma once
#include "nvidia_libraries.h"
#include "emulator.h"

/* Count a call on its handle's stream; the shape takes the place of a launch geometry. */
void emu_cudnn(cudnnHandle_t handle, const char *name, const uint32_t shape[4]);
