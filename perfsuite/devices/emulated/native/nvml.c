/* NVML answers from the board: how busy a card was in each period of the driver, its memory, who uses it. Clocks stand at
 * the card's boost; heat and power are not emulated, and say so as «not supported». */
#include "emulator.h"
#include "nvidia_nvml.h"
#include <stdio.h>
#include <string.h>

enum { SHOWN = 120, MICROSECOND = 1000 }; /* samples a driver keeps */

/* A handle is a card's place, from 1. */
static int card_of(nvmlDevice_t device) { return (int)(size_t)device - 1; }
static nvmlReturn_t say(char *into, unsigned int length, const char *words)
{
    return snprintf(into, length, "%s", words) < (int)length ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { (void)flags; return emu_run_folder() ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED; }
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t result)
{
    return result == NVML_SUCCESS ? "Success" : result == NVML_ERROR_NOT_SUPPORTED ? "Not Supported" : result == NVML_ERROR_NOT_FOUND ? "Not Found"
        : result == NVML_ERROR_DRIVER_NOT_LOADED ? "Driver Not Loaded" : "an error of the emulated NVML";
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *into, unsigned int length) { return say(into, length, "emulated"); }
nvmlReturn_t nvmlSystemGetNVMLVersion(char *into, unsigned int length) { return say(into, length, "emulated"); }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = EMULATED_CUDA; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) { *count = (unsigned int)emu_card()->devices; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *into, unsigned int length) { (void)device; return say(into, length, emu_card()->name); }

/* ---- finding a card ---- */
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    *device = (nvmlDevice_t)(size_t)(index + 1);
    return index < (unsigned int)emu_card()->devices ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *into, unsigned int length)
{
    char text[64];
    unsigned char u[16];
    emu_uuid(card_of(device), u);
    snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3], u[4], u[5], u[6],
             u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    return say(into, length, text);
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    for (unsigned int i = 0; i < (unsigned int)emu_card()->devices; i++) {
        char text[64];
        nvmlDeviceGetHandleByIndex_v2(i, device);
        nvmlDeviceGetUUID(*device, text, sizeof text);
        if (!strcmp(text, uuid))
            return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
    unsigned domain, bus;
    if (sscanf(id, "%x:%x:", &domain, &bus) != 2 || !bus)
        return NVML_ERROR_NOT_FOUND;
    return nvmlDeviceGetHandleByIndex_v2(bus - 1, device);
}

/* ---- how busy: shares of whole periods, as the driver's own ring has them ---- */
static unsigned int share(int card, uint64_t period) { return (unsigned int)((100 * emu_board_busy_ns(card, period) + EMU_PERIOD_NS / 2) / EMU_PERIOD_NS); }

static void settle_own(int card) /* what this process did so far */
{
    emu_lock();
    for (int i = 0; i < emu_visible_count(); i++)
        if (emu_physical(i) == card)
            emu_settle(i, emu_now());
    emu_unlock();
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    settle_own(card_of(device));
    rates->gpu = share(card_of(device), emu_now() / EMU_PERIOD_NS - 1);
    rates->memory = 0; /* how long memory was read or written is not known */
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long seen, nvmlValueType_t *kind, unsigned int *count,
                                  nvmlSample_t *samples)
{
    uint64_t last = emu_now() / EMU_PERIOD_NS; /* the period that is still open */
    unsigned int found = 0;
    if (type != NVML_GPU_UTILIZATION_SAMPLES)
        return NVML_ERROR_NOT_SUPPORTED;
    settle_own(card_of(device));
    *kind = NVML_VALUE_TYPE_UNSIGNED_INT;
    for (uint64_t period = last - SHOWN; period < last; period++) {
        unsigned long long stamp = (period + 1) * EMU_PERIOD_NS / MICROSECOND;
        if (stamp <= seen)
            continue;
        if (samples && found < *count) {
            samples[found].timeStamp = stamp;
            samples[found].sampleValue.uiVal = share(card_of(device), period);
        }
        found++;
    }
    *count = samples ? found : SHOWN;
    return found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* ---- memory and processes ---- */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    memory->total = emu_card()->memory_bytes;
    memory->used = emu_board_used(card_of(device));
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = emu_card()->memory_bytes;
    memory->reserved = 0;
    memory->used = emu_board_used(card_of(device));
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *processes)
{
    enum { MOST = 128 };
    unsigned pids[MOST];
    uint64_t bytes[MOST];
    unsigned int room = *count, found = (unsigned int)emu_board_processes(card_of(device), pids, bytes, MOST);
    *count = found;
    if (found > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; processes && i < found && i < MOST; i++)
        processes[i] = (nvmlProcessInfo_t){pids[i], bytes[i], ~0u, ~0u};
    return NVML_SUCCESS;
}

/* ---- clocks and modes ---- */
static unsigned int clock_of(nvmlClockType_t type) { return (unsigned int)(type == NVML_CLOCK_MEM ? emu_card()->memory_clock_mhz : emu_card()->sm_clock_mhz); }
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    (void)device;
    *clock = clock_of(type);
    return *clock ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock) { return nvmlDeviceGetClockInfo(device, type, clock); }
nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode) { (void)device; *mode = NVML_FEATURE_ENABLED; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) { (void)device; *reasons = 0; return NVML_SUCCESS; }

#define NOT_EMULATED(NAME, TYPE) \
    nvmlReturn_t NAME(nvmlDevice_t device, TYPE *value) { (void)device, (void)value; return NVML_ERROR_NOT_SUPPORTED; }
NOT_EMULATED(nvmlDeviceGetPowerUsage, unsigned int)
NOT_EMULATED(nvmlDeviceGetEnforcedPowerLimit, unsigned int)
NOT_EMULATED(nvmlDeviceGetTotalEnergyConsumption, unsigned long long)
NOT_EMULATED(nvmlDeviceGetGpuFabricInfoV, nvmlGpuFabricInfoV_t)
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *degrees)
{
    (void)device, (void)sensor, (void)degrees;
    return NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *now, unsigned int *later)
{
    (void)device, (void)now, (void)later;
    return NVML_ERROR_NOT_SUPPORTED;
}
/* torch does not go on without finding these. */
nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, nvmlIntNvLinkDeviceType_t *type)
{
    (void)device, (void)link, (void)type;
    return NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *place)
{
    (void)device, (void)link, (void)place;
    return NVML_ERROR_NOT_SUPPORTED;
}
/* The first version's records have no instances: torch calls it where it is out of memory. */
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *processes)
{
    nvmlProcessInfo_t found[128];
    unsigned int room = *count, many = 128;
    nvmlReturn_t code = nvmlDeviceGetComputeRunningProcesses_v3(device, &many, found);
    *count = many;
    if (code != NVML_SUCCESS || many > room)
        return code != NVML_SUCCESS ? code : NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; processes && i < many; i++)
        processes[i] = (nvmlProcessInfo_v1_t){found[i].pid, found[i].usedGpuMemory};
    return NVML_SUCCESS;
}
