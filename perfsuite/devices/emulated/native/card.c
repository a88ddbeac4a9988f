/* Which card this is: the run's folder has it as lines of "key value", written by perfsuite from its table of cards. */
#include "emulator.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct emu_card card;
static char folder[4096];
static int visible[EMU_DEVICES], visible_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

uint64_t emu_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static void take(const char *key, const char *value)
{
    static const struct { const char *key; int *at; } whole[] = {
        {"devices", &card.devices}, {"major", &card.major}, {"minor", &card.minor}, {"sms", &card.sms},
        {"sm_clock_mhz", &card.sm_clock_mhz}, {"memory_clock_mhz", &card.memory_clock_mhz}, {"memory_bus_bits", &card.memory_bus_bits},
        {"threads_per_sm", &card.threads_per_sm}, {"blocks_per_sm", &card.blocks_per_sm}};
    static const struct { const char *key; uint64_t *at; } large[] = {
        {"memory_bytes", &card.memory_bytes}, {"l2_bytes", &card.l2_bytes}, {"shared_per_sm", &card.shared_per_sm},
        {"shared_per_block", &card.shared_per_block}, {"kernel_ns", &card.kernel_ns}, {"copy_ns", &card.copy_ns}};
    static const struct { const char *key; double *at; } rates[] = {
        {"float32", &card.flops_per_ns[EMU_FLOAT32]}, {"float64", &card.flops_per_ns[EMU_FLOAT64]}, {"half", &card.flops_per_ns[EMU_HALF]},
        {"tf32", &card.flops_per_ns[EMU_TF32]}, {"bytes_per_ns", &card.bytes_per_ns},
        {"pinned_bytes_per_ns", &card.pinned_bytes_per_ns}, {"pageable_bytes_per_ns", &card.pageable_bytes_per_ns}};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (!strcmp(key, whole[i].key))
            *whole[i].at = atoi(value);
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        if (!strcmp(key, large[i].key))
            *large[i].at = strtoull(value, NULL, 10);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (!strcmp(key, rates[i].key))
            *rates[i].at = strtod(value, NULL);
    if (!strcmp(key, "name"))
        snprintf(card.name, sizeof card.name, "%s", value);
    if (!strcmp(key, "uuid"))
        for (int i = 0; i < 16; i++)
            sscanf(value + 2 * i, "%2hhx", &card.uuid[i]);
}

void emu_uuid(int physical, unsigned char uuid[16])
{
    memcpy(uuid, emu_card()->uuid, 16);
    uuid[15] = (unsigned char)(uuid[15] + physical);
}

/* A UUID may be shortened to a beginning that no other card has. */
static int card_of_uuid(const char *wanted, size_t length)
{
    for (int i = 0; i < card.devices; i++) {
        char text[64];
        unsigned char u[16];
        memcpy(u, card.uuid, 16);
        u[15] = (unsigned char)(u[15] + i);
        snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3],
                 u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
        if (length > 4 && !strncmp(text, wanted, length))
            return i;
    }
    return -1;
}

/* As CUDA reads the variable: up to the first entry it does not know, and nothing at all where one occurs twice. */
static void read_visible(void)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    if (!text) {
        for (visible_count = 0; visible_count < card.devices; visible_count++)
            visible[visible_count] = visible_count;
        return;
    }
    while (*text && visible_count < EMU_DEVICES) {
        size_t length = strcspn(text, ",");
        char *end = NULL;
        long index = strtol(text, &end, 10);
        int found = strncmp(text, "GPU-", 4) ? (end > text && index >= 0 && index < card.devices ? (int)index : -1) : card_of_uuid(text, length);
        if (found < 0)
            return;
        for (int i = 0; i < visible_count; i++)
            if (visible[i] == found) {
                visible_count = 0;
                return;
            }
        visible[visible_count++] = found;
        text += length + (text[length] == ',');
    }
}

static void load(void)
{
    char path[4200], line[512];
    const char *run = getenv("PERFSUITE_EMULATED_RUN");
    if (!run || !*run)
        return;
    snprintf(folder, sizeof folder, "%s", run);
    snprintf(path, sizeof path, "%s/card.txt", folder);
    FILE *file = fopen(path, "r");
    if (!file) {
        folder[0] = 0;
        return;
    }
    while (fgets(line, sizeof line, file)) {
        char *value = strchr(line, ' ');
        line[strcspn(line, "\n")] = 0;
        if (value)
            *value = 0, take(line, value + 1);
    }
    fclose(file);
    if (card.devices > EMU_DEVICES)
        card.devices = EMU_DEVICES;
    read_visible();
}

const struct emu_card *emu_card(void) { pthread_once(&once, load); return &card; }
const char *emu_run_folder(void) { emu_card(); return folder[0] ? folder : NULL; }
int emu_visible_count(void) { emu_card(); return visible_count; }
int emu_physical(int device) { emu_card(); return device >= 0 && device < visible_count ? visible[device] : 0; }
