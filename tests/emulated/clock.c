/* A scripted clock in the place of the machine's: time passes by a tenth of a microsecond when somebody looks, and by
 * sleeping. Loaded before the emulator, so that what a test sees does not depend on how busy the machine is. */
#include <stdint.h>
#include <time.h>

static const int64_t LOOK_NS = 100, SECOND_NS = 1000000000;
static int64_t now_ns = 1000000000000;

int clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    int64_t ns = __atomic_add_fetch(&now_ns, LOOK_NS, __ATOMIC_RELAXED);
    *now = (struct timespec){ns / SECOND_NS, ns % SECOND_NS};
    return 0;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left)
{
    (void)clock, (void)left;
    int64_t ns = time->tv_sec * SECOND_NS + time->tv_nsec, now = __atomic_load_n(&now_ns, __ATOMIC_RELAXED);
    int64_t until = flags & TIMER_ABSTIME ? ns : now + ns;
    if (until > now)
        __atomic_store_n(&now_ns, until, __ATOMIC_RELAXED);
    return 0;
}
