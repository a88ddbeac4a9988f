/* Stands where NVIDIA's libnvidia-ml.so.1 stands; answers from the environment variable NVML_SCRIPT:
 * "uuid=GPU-…;utilization=61;total=1000;free=400;fail=NAME:CODE;init=CODE". Checked against NVIDIA's header. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *value(const char *key, char *into, size_t size)
{
    const char *at = getenv("NVML_SCRIPT");
    size_t length = strlen(key);
    while (at && *at) {
        const char *end = strchr(at, ';');
        size_t span = end ? (size_t)(end - at) : strlen(at);
        if (span > length && !strncmp(at, key, length) && at[length] == '=') {
            size_t wanted = span - length - 1 < size - 1 ? span - length - 1 : size - 1;
            memcpy(into, at + length + 1, wanted);
            into[wanted] = 0;
            return into;
        }
        at = end ? end + 1 : NULL;
    }
    return NULL;
}

static unsigned long long number(const char *key, unsigned long long otherwise)
{
    char text[64];
    return value(key, text, sizeof text) ? strtoull(text, NULL, 10) : otherwise;
}

/* The code scripted for a function, NVML_SUCCESS without one. */
static nvmlReturn_t scripted(const char *function)
{
    char text[128], name[96];
    int code = 0;
    if (value("fail", text, sizeof text) && sscanf(text, "%95[^:]:%d", name, &code) == 2 && !strcmp(name, function))
        return (nvmlReturn_t)code;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { (void)flags; return (nvmlReturn_t)number("init", 0); }
nvmlReturn_t nvmlInit_v2(void) { return (nvmlReturn_t)number("init", 0); }
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }

const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    snprintf(version, length, "550.163.01");
    return scripted("nvmlSystemGetDriverVersion");
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    char known[96];
    if (!value("uuid", known, sizeof known) || strcmp(known, uuid))
        return NVML_ERROR_NOT_FOUND;
    *device = (nvmlDevice_t)1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    (void)device;
    utilization->gpu = (unsigned int)number("utilization", 0);
    utilization->memory = 0;
    return scripted("nvmlDeviceGetUtilizationRates");
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    (void)device;
    memory->total = number("total", 0);
    memory->free = number("free", 0);
    memory->used = memory->total - memory->free;
    return scripted("nvmlDeviceGetMemoryInfo");
}
