/*
 * Makes reads of data files take time: preloaded into a server, it waits before each of the calls by which PostgreSQL
 * reads, PGSLUICE_READ_DELAY_US microseconds for every 8 KB that are asked for. The delay does not depend on how the
 * blocks of one call lie, so that a call for several blocks (17 and later) takes as long as one call for each.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#define BLOCK 8192

static long delay_ns;

/* The kernel may round a wait up by 50 us; children inherit that it must not. */
__attribute__((constructor)) static void start(void)
{
    const char *text = getenv("PGSLUICE_READ_DELAY_US");

    delay_ns = text ? atol(text) * 1000 : 0;
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
}

static void wait_for(size_t bytes)
{
    long long ns = (long long) ((bytes + BLOCK - 1) / BLOCK) * delay_ns;
    struct timespec left = {ns / 1000000000, ns % 1000000000};

    while (ns > 0 && nanosleep(&left, &left) != 0)
        ;
}

static size_t size_of(const struct iovec *parts, int count)
{
    size_t bytes = 0;

    while (count-- > 0)
        bytes += (parts++)->iov_len;
    return bytes;
}

#define NEXT(name) ((__typeof__(&name)) dlsym(RTLD_NEXT, #name))

#define READ(name, offset_type)                                                                                        \
    ssize_t name(int file, void *into, size_t bytes, offset_type offset)                                               \
    {                                                                                                                  \
        static __typeof__(&name) next;                                                                                 \
                                                                                                                       \
        if (!next)                                                                                                     \
            next = NEXT(name);                                                                                         \
        wait_for(bytes);                                                                                               \
        return next(file, into, bytes, offset);                                                                        \
    }

#define READ_PARTS(name, offset_type)                                                                                  \
    ssize_t name(int file, const struct iovec *parts, int count, offset_type offset)                                   \
    {                                                                                                                  \
        static __typeof__(&name) next;                                                                                 \
                                                                                                                       \
        if (!next)                                                                                                     \
            next = NEXT(name);                                                                                         \
        wait_for(size_of(parts, count));                                                                               \
        return next(file, parts, count, offset);                                                                       \
    }

READ(pread, off_t)
READ(pread64, off64_t)
READ_PARTS(preadv, off_t)
READ_PARTS(preadv64, off64_t)
