/*
 * What a server with a clock of its own asks for the time, in place of libc; see clock.rs.
 *
 * The file that TESTKIT_CLOCK names holds the microseconds that the clock is ahead of this
 * machine's. Every process of the server maps it, so a change counts for all of them at once.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead_us;

__attribute__((constructor)) static void map_the_clock(void)
{
    const char *path = getenv("TESTKIT_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at;

    if (file < 0)
        return;
    at = mmap(NULL, sizeof *ahead_us, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (at != MAP_FAILED)
        ahead_us = at;
}

static int64_t now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t) now.tv_sec * 1000000 + now.tv_nsec / 1000 + (ahead_us ? *ahead_us : 0);
}

int gettimeofday(struct timeval *restrict answer, void *restrict zone)
{
    int64_t now = now_us();

    (void) zone;
    answer->tv_sec = now / 1000000;
    answer->tv_usec = now % 1000000;
    return 0;
}

time_t time(time_t *answer)
{
    time_t now = now_us() / 1000000;

    if (answer)
        *answer = now;
    return now;
}
