/* Everything that is launched has a name: kernels registered by the libraries that carry them, Triton's by their module,
 * library calls by theirs. And the table of predicted durations, by name and launch geometry. */
#include "emulator.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HOSTS = 1 << 18, NAMES = 1 << 18, LEARNED = 1 << 16 };
static struct { const void *host; struct emu_function *function; } *hosts;
static struct emu_function **names, *first;
struct learned { const struct emu_function *function; struct emu_shape shape; uint64_t ns; };
static struct learned *learned;
static unsigned learned_count;
static bool is_file_read;

static uint64_t mix(uint64_t value) { return value * 0x9E3779B97F4A7C15ull; }

static uint64_t hash_text(const char *text, uint64_t seed)
{
    uint64_t hash = 0xcbf29ce484222325ull ^ seed;
    while (*text)
        hash = (hash ^ (unsigned char)*text++) * 0x100000001b3ull;
    return mix(hash);
}

static struct emu_function *find_or_make(enum emu_kind kind, const char *name)
{
    if (!names)
        names = calloc(NAMES, sizeof *names);
    size_t at = hash_text(name, kind) >> 46;
    while (names[at] && (names[at]->kind != kind || strcmp(names[at]->name, name)))
        at = (at + 1) & (NAMES - 1);
    if (!names[at]) {
        struct emu_function *made = calloc(1, sizeof *made);
        made->name = strdup(name);
        made->kind = kind;
        made->next = first;
        names[at] = first = made;
    }
    return names[at];
}

struct emu_function *emu_function(enum emu_kind kind, const char *name)
{
    emu_lock();
    struct emu_function *found = find_or_make(kind, name);
    emu_unlock();
    return found;
}

static size_t host_slot(const void *host)
{
    size_t at = mix((uintptr_t)host >> 4) >> 46;
    while (hosts[at].host && hosts[at].host != host)
        at = (at + 1) & (HOSTS - 1);
    return at;
}

/* torch registers tens of thousands of kernels when it is loaded: their records are made when they are first launched. */
void emu_register(const void *host, const char *name)
{
    emu_lock();
    if (!hosts)
        hosts = calloc(HOSTS, sizeof *hosts);
    size_t at = host_slot(host);
    hosts[at].host = host;
    hosts[at].function = (struct emu_function *)((uintptr_t)name | 1); /* a name that has no record yet */
    if ((uintptr_t)name & 1) /* an odd address cannot carry the mark */
        hosts[at].function = find_or_make(EMU_KERNEL, name);
    emu_unlock();
}

struct emu_function *emu_registered(const void *host)
{
    struct emu_function *found = NULL;
    emu_lock();
    if (hosts) {
        size_t at = host_slot(host);
        found = hosts[at].function;
        if ((uintptr_t)found & 1)
            found = hosts[at].function = find_or_make(EMU_KERNEL, (const char *)((uintptr_t)found & ~(uintptr_t)1));
    }
    emu_unlock();
    return found;
}

static struct learned *learned_slot(const struct emu_function *function, const struct emu_shape *shape)
{
    uint64_t hash = (uintptr_t)function >> 4;
    for (int i = 0; i < 3; i++)
        hash = mix(hash ^ ((uint64_t)shape->grid[i] << 20) ^ shape->block[i]);
    size_t at = hash >> 48;
    while (learned[at].function && (learned[at].function != function || memcmp(&learned[at].shape, shape, sizeof *shape)))
        at = (at + 1) & (LEARNED - 1);
    return &learned[at];
}

static void learn(enum emu_kind kind, const char *name, const struct emu_shape *shape, uint64_t ns)
{
    if (!learned)
        learned = calloc(LEARNED, sizeof *learned);
    if (learned_count > LEARNED / 2)
        return; /* beyond 32,768 combinations the least is taken */
    struct learned *slot = learned_slot(find_or_make(kind, name), shape);
    learned_count += !slot->function;
    *slot = (struct learned){find_or_make(kind, name), *shape, ns};
}

/* A run may hand over a table: lines of kind, nanoseconds, grid, block, name. Read at the first launch. */
static void read_file(void)
{
    const char *path = getenv("PERFSUITE_EMULATED_DURATIONS");
    FILE *file = path && *path ? fopen(path, "r") : NULL;
    char name[4096];
    struct emu_shape s;
    int kind;
    unsigned long long ns;
    is_file_read = true;
    while (file && fscanf(file, "%d %llu %u %u %u %u %u %u %4095[^\n]", &kind, &ns, &s.grid[0], &s.grid[1], &s.grid[2], &s.block[0],
                          &s.block[1], &s.block[2], name) == 9)
        learn((enum emu_kind)kind, name, &s, ns);
    if (file)
        fclose(file);
}

uint64_t emu_learned_ns(const struct emu_function *function, const struct emu_shape *shape)
{
    if (!is_file_read)
        read_file();
    return learned ? learned_slot(function, shape)->ns : 0;
}

/* For perfsuite's pass that learns; the shape is grid and block, six numbers. */
void perfsuite_emulated_learn(int kind, const char *name, const uint32_t *shape, uint64_t ns)
{
    struct emu_shape given;
    memcpy(&given, shape, sizeof given);
    emu_lock();
    learn((enum emu_kind)kind, name, &given, ns);
    emu_unlock();
}

void emu_each_function(void (*visit)(struct emu_function *, void *), void *argument)
{
    for (struct emu_function *one = first; one; one = one->next)
        visit(one, argument);
}
