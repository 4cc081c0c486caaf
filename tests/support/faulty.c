/* LD_PRELOAD: a disk that fails, and a wall clock that is wrong, for the rank that the environment names.
 *
 * FAULTY_RANK, FAULTY_OPERATION (write, fsync or rename), FAULTY_ERRNO, FAULTY_PATH: while the file FAULTY_SWITCH exists,
 * that operation of that rank fails on paths which contain that text.
 * FAULTY_CLOCKS: a folder; the file named after a rank holds the seconds that its wall clock is ahead.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int fails(const char *operation, const char *path)
{
    const char *rank = getenv("RANK"), *due = getenv("FAULTY_RANK"), *part = getenv("FAULTY_PATH");
    if (!rank || !due || !part || strcmp(rank, due) || strcmp(operation, getenv("FAULTY_OPERATION")))
        return 0;
    if (!strstr(path, part) || access(getenv("FAULTY_SWITCH"), F_OK))
        return 0;
    errno = atoi(getenv("FAULTY_ERRNO"));
    return 1;
}

static int fails_on(const char *operation, int descriptor)
{
    char link[64], path[4096];
    int before = errno;
    if (!getenv("FAULTY_PATH"))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    if (fails(operation, path))
        return 1;
    errno = before;
    return 0;
}

ssize_t write(int descriptor, const void *data, size_t size)
{
    static ssize_t (*next)(int, const void *, size_t);
    if (!next)
        next = dlsym(RTLD_NEXT, "write");
    return fails_on("write", descriptor) ? -1 : next(descriptor, data, size);
}

int fsync(int descriptor)
{
    static int (*next)(int);
    if (!next)
        next = dlsym(RTLD_NEXT, "fsync");
    return fails_on("fsync", descriptor) ? -1 : next(descriptor);
}

int rename(const char *from, const char *to)
{
    static int (*next)(const char *, const char *);
    if (!next)
        next = dlsym(RTLD_NEXT, "rename");
    return fails("rename", to) ? -1 : next(from, to);
}

static long ahead(void)
{
    const char *folder = getenv("FAULTY_CLOCKS"), *rank = getenv("RANK");
    char path[4096];
    long seconds = 0;
    if (!folder || !rank)
        return 0;
    snprintf(path, sizeof path, "%s/%s", folder, rank);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%ld", &seconds) != 1)
            seconds = 0;
        fclose(file);
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *found)
{
    static int (*next)(clockid_t, struct timespec *);
    if (!next)
        next = dlsym(RTLD_NEXT, "clock_gettime");
    int code = next(clock, found);
    if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        found->tv_sec += ahead();
    return code;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone)
{
    static int (*next)(struct timeval *restrict, void *restrict);
    if (!next)
        next = dlsym(RTLD_NEXT, "gettimeofday");
    int code = next(found, zone);
    if (code == 0)
        found->tv_sec += ahead();
    return code;
}

time_t time(time_t *found)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found)
        *found = now.tv_sec;
    return now.tv_sec;
}
