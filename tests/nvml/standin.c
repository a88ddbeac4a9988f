/* A stand-in for NVIDIA's libnvidia-ml.so.1 that plays the script named by NVML_SCRIPT, one statement per line:
 *   speed FACTOR                        script seconds per real second; 0: time moves by standin_advance alone
 *   card UUID                           a card that exists
 *   at SECONDS KEY VALUE                from then on KEY has VALUE: a step function of script time
 *   fail FUNCTION CODE [FIRST [LAST]]   the FIRST to LAST call (default: all) answers CODE
 *   block FUNCTION SECONDS [FIRST]      from the FIRST call on it takes that many real seconds to answer
 * Keys and their defaults are those read below. Checked against NVIDIA's header by the compiler. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LINES = 4096, CARDS = 8, BUFFER = 120, TICK = 1000000 };
static const unsigned long long BOOT = 77000000ULL; /* the samples' clock is neither wall time nor zero */

struct entry { double at; char key[32]; char value[128]; };
struct fault { char function[64]; int code; double seconds; int first, last, seen; };
static struct entry entries[LINES];
static struct fault faults[64];
static char cards[CARDS][96];
static int entry_count, fault_count, card_count, is_loaded;
static volatile int is_blocking;
static double speed = 1, advanced;
static struct timespec began;

static double real_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - began.tv_sec) + 1e-9 * (double)(now.tv_nsec - began.tv_nsec);
}

double standin_now(void) { return advanced + speed * real_seconds(); }
void standin_advance(double seconds) { advanced += seconds; }
int standin_is_blocking(void) { return is_blocking; }

static void read_line(const char *line)
{
    struct entry *e = &entries[entry_count];
    struct fault f = {"", 0, 0, 1, 1 << 30, 0};
    if (entry_count < LINES && sscanf(line, "at %lf %31s %127[^\n]", &e->at, e->key, e->value) == 3)
        entry_count++;
    else if (card_count < CARDS && sscanf(line, "card %95s", cards[card_count]) == 1)
        card_count++;
    else if (sscanf(line, "fail %63s %d %d %d", f.function, &f.code, &f.first, &f.last) >= 2
             || sscanf(line, "block %63s %lf %d", f.function, &f.seconds, &f.first) >= 2)
        faults[fault_count++] = f;
    else
        sscanf(line, "speed %lf", &speed);
}

/* Discard the script and play another from its beginning. */
void standin_load(const char *path)
{
    char line[256];
    FILE *file = fopen(path, "r");
    entry_count = fault_count = card_count = 0;
    speed = 1;
    advanced = 0;
    while (file && fgets(line, sizeof line, file))
        read_line(line);
    if (file)
        fclose(file);
    is_loaded = 1;
    clock_gettime(CLOCK_MONOTONIC, &began);
}

static const char *text(const char *key, const char *otherwise)
{
    const char *found = otherwise;
    double now = standin_now();
    for (int i = 0; i < entry_count; i++)
        if (entries[i].at <= now && !strcmp(entries[i].key, key))
            found = entries[i].value;
    return found;
}

static double number(const char *key, double otherwise)
{
    const char *found = text(key, NULL);
    return found ? strtod(found, NULL) : otherwise;
}

/* The time integral of a key, or of one of its bits, between two moments. */
static double integral(const char *key, unsigned long long bit, double from, double to)
{
    double sum = 0, value = 0, since = 0;
    for (int i = 0; i <= entry_count; i++) {
        if (i < entry_count && strcmp(entries[i].key, key))
            continue;
        double until = i < entry_count ? entries[i].at : to;
        double low = since > from ? since : from, high = until < to ? until : to;
        if (high > low)
            sum += value * (high - low);
        if (i < entry_count) {
            value = bit ? (strtoull(entries[i].value, NULL, 0) & bit) != 0 : strtod(entries[i].value, NULL);
            since = until;
        }
    }
    return sum;
}

/* Block and return as scripted for this call. */
static nvmlReturn_t called(const char *function)
{
    nvmlReturn_t code = NVML_SUCCESS;
    for (int i = 0; i < fault_count; i++) {
        struct fault *f = &faults[i];
        if (strcmp(f->function, function) || ++f->seen < f->first || f->seen > f->last)
            continue;
        struct timespec pause = {(time_t)f->seconds, (long)(1e9 * (f->seconds - (double)(time_t)f->seconds))};
        is_blocking = f->seconds > 0;
        nanosleep(&pause, NULL);
        is_blocking = 0;
        code = f->code ? (nvmlReturn_t)f->code : code;
    }
    return code;
}

#define CALLED() do { nvmlReturn_t code = called(__func__); if (code) return code; } while (0)
#define ANSWER(name, type, into, given) \
    nvmlReturn_t name(nvmlDevice_t device, type *into) { (void)device; CALLED(); *into = (type)(given); return NVML_SUCCESS; }

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    if (!is_loaded && getenv("NVML_SCRIPT"))
        standin_load(getenv("NVML_SCRIPT"));
    CALLED();
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t result) { (void)result; return "an error of the stand-in"; }

static nvmlReturn_t say(char *into, unsigned int length, const char *words)
{
    return snprintf(into, length, "%s", words) < (int)length ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *into, unsigned int length) { CALLED(); return say(into, length, text("driver", "550.163.01")); }
nvmlReturn_t nvmlSystemGetNVMLVersion(char *into, unsigned int length) { CALLED(); return say(into, length, text("nvml", "12.550.163.01")); }
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *into, unsigned int length) { (void)device; CALLED(); return say(into, length, text("name", "NVIDIA Stand-in")); }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) { CALLED(); *count = (unsigned int)card_count; return NVML_SUCCESS; }

/* A handle is a card's position, from 1. */
static nvmlDevice_t card_at(int place) { return (nvmlDevice_t)(size_t)(place + 1); }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    CALLED();
    if (index >= (unsigned int)card_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = card_at((int)index);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    CALLED();
    for (int i = 0; i < card_count; i++)
        if (!strcmp(cards[i], uuid)) {
            *device = card_at(i);
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *into, unsigned int length) { CALLED(); return say(into, length, cards[(size_t)device - 1]); }

/* What the driver averages over: its last complete sample period. */
static double shown_utilization(double until)
{
    double period = number("sample_ms", 167) / 1e3;
    return integral("utilization", 0, until - period, until) / (until < period ? until : period);
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    double period = number("sample_ms", 167) / 1e3, over = (double)(long)(standin_now() / period) * period;
    (void)device;
    CALLED();
    rates->gpu = over > 0 ? (unsigned int)(shown_utilization(over) + 0.5) : 0;
    rates->memory = rates->gpu / 2;
    return NVML_SUCCESS;
}

/* The driver's ring of samples; an idle card adds none where the script says `dry 1`. */
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long seen,
                                  nvmlValueType_t *kind, unsigned int *count, nvmlSample_t *samples)
{
    double period = number("sample_ms", 167) / 1e3;
    long last = (long)(standin_now() / period), first = last - BUFFER + 1 > 1 ? last - BUFFER + 1 : 1;
    unsigned int found = 0;
    (void)device;
    CALLED();
    if (type != NVML_GPU_UTILIZATION_SAMPLES)
        return NVML_ERROR_NOT_SUPPORTED;
    *kind = NVML_VALUE_TYPE_UNSIGNED_INT;
    for (long i = first; i <= last; i++) {
        double until = (double)i * period;
        unsigned long long stamp = BOOT + (unsigned long long)(until * TICK);
        unsigned int share = (unsigned int)(shown_utilization(until) + 0.5);
        if (stamp <= seen || (!share && number("dry", 1)))
            continue;
        if (samples && found < *count) {
            samples[found].timeStamp = stamp;
            samples[found].sampleValue.uiVal = share;
        }
        found++;
    }
    *count = samples ? found : BUFFER;
    return found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    (void)device;
    CALLED();
    memory->total = (unsigned long long)number("total", 24e9);
    memory->free = (unsigned long long)number("free", 20e9);
    memory->used = memory->total - memory->free;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    (void)device;
    CALLED();
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = (unsigned long long)number("total", 24e9);
    memory->free = (unsigned long long)number("free", 20e9);
    memory->reserved = (unsigned long long)number("reserved", 5e8);
    memory->used = memory->total - memory->free - memory->reserved;
    return NVML_SUCCESS;
}

/* `processes` is a list such as "4711:1000 4712:-"; - is NVML's «not available», "none" no process. */
static nvmlReturn_t list_processes(unsigned int *count, nvmlProcessInfo_t *found)
{
    char list[128], *rest = list;
    unsigned int room = *count, many = 0;
    snprintf(list, sizeof list, "%s", text("processes", "none"));
    for (char *one; (one = strsep(&rest, " "));) {
        char *bytes = strchr(one, ':');
        if (!bytes)
            continue;
        if (found && many < room)
            found[many] = (nvmlProcessInfo_t){(unsigned int)strtoul(one, NULL, 10),
                bytes[1] == '-' ? (unsigned long long)NVML_VALUE_NOT_AVAILABLE : strtoull(bytes + 1, NULL, 10), ~0u, ~0u};
        many++;
    }
    *count = many;
    return many > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *found)
{
    (void)device;
    CALLED();
    return list_processes(count, found);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *found)
{
    (void)device;
    CALLED();
    return list_processes(count, found);
}

/* `active` is who ran kernels, such as "4711:80 815:20" (percent); one sample per process and period. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned int *count, unsigned long long seen)
{
    double period = number("sample_ms", 167) / 1e3;
    unsigned long long stamp = BOOT + (unsigned long long)((double)(long)(standin_now() / period) * period * TICK);
    char list[128], *rest = list;
    unsigned int room = samples ? *count : 0, found = 0;
    (void)device;
    CALLED();
    snprintf(list, sizeof list, "%s", text("active", "none"));
    for (char *one; stamp > seen && (one = strsep(&rest, " "));) {
        char *percent = strchr(one, ':');
        if (!percent)
            continue;
        if (found < room)
            samples[found] = (nvmlProcessUtilizationSample_t){(unsigned int)strtoul(one, NULL, 10), stamp, (unsigned int)strtoul(percent + 1, NULL, 10), 0, 0, 0};
        found++;
    }
    *count = found;
    return !found ? NVML_ERROR_NOT_FOUND : found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static const char *clock_key(nvmlClockType_t type) { return type == NVML_CLOCK_MEM ? "mem_clock" : "sm_clock"; }
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    (void)device;
    CALLED();
    *clock = (unsigned int)number(clock_key(type), type == NVML_CLOCK_MEM ? 6251 : 1695);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    (void)device;
    CALLED();
    *clock = type == NVML_CLOCK_MEM ? 6251 : 1695;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *degrees)
{
    (void)device, (void)sensor;
    CALLED();
    *degrees = (unsigned int)number("temperature", 55);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *now, unsigned int *pending)
{
    (void)device;
    CALLED();
    *now = *pending = (unsigned int)number("mig", 0);
    return NVML_SUCCESS;
}
ANSWER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, mode, number("persistence", 1))
ANSWER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, limit, number("power_limit", 150) * 1e3)
ANSWER(nvmlDeviceGetPowerUsage, unsigned int, power, number("power", 120) * 1e3)
ANSWER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, energy, number("power", 120) * standin_now() * 1e3)
ANSWER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, reasons, strtoull(text("reasons", "0"), NULL, 0))
ANSWER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, reasons, strtoull(text("reasons", "0"), NULL, 0))

/* Nanoseconds spent under a reason so far; `counters 0` is a card that has none. */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    static const struct { unsigned int field; unsigned long long bit; } known[] = {
        {NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, 0x4}, {NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, 0x20},
        {NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, 0x40}, {NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, 0x80}};
    (void)device;
    CALLED();
    for (int i = 0; i < count; i++) {
        values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        for (size_t k = 0; k < sizeof known / sizeof *known && number("counters", 1); k++)
            if (known[k].field == values[i].fieldId) {
                values[i].nvmlReturn = NVML_SUCCESS;
                values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
                values[i].value.ullVal = (unsigned long long)(1e9 * integral("reasons", known[k].bit, 0, standin_now()));
            }
    }
    return NVML_SUCCESS;
}

/* A GPM sample is the moment it was taken; the key of a metric is "gpm" and its number. */
struct nvmlGpmSample_st { double at; };
nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    (void)device;
    CALLED();
    support->isSupportedDevice = (unsigned int)number("gpm", 0);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample) { CALLED(); *sample = calloc(1, sizeof **sample); return NVML_SUCCESS; }
nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) { CALLED(); free(sample); return NVML_SUCCESS; }
nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) { (void)device; CALLED(); sample->at = standin_now(); return NVML_SUCCESS; }
nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *asked)
{
    CALLED();
    double from = asked->sample1->at, to = asked->sample2->at;
    if (to - from <= 0.1)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < asked->numMetrics; i++) {
        char key[32];
        snprintf(key, sizeof key, "gpm%u", asked->metrics[i].metricId);
        asked->metrics[i].nvmlReturn = text(key, NULL) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        asked->metrics[i].value = integral(key, 0, from, to) / (to - from);
    }
    return NVML_SUCCESS;
}
