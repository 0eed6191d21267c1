/* Logs what a process asks of the files in one folder, in order: each write with its payload, each truncation, sync and removal.
 * Preloaded into a child of TestPowerCut, which replays beginnings of the log as a power cut would have left them.
 *
 * A record is one write to a file opened for appending, so that records of several threads, and those that the Go side of the
 * child adds for its acknowledgements, stand whole and in order:
 *
 *   kind (1 byte) | length of name (1) | name | offset or size (8, little endian) | length of payload (4) | payload
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define MAX_FD 1024
static char names[MAX_FD][128]; /* of the open files that are watched; "" for others */
static int log_fd = -1;
static const char *folder;
static ssize_t (*real_write)(int, const void *, size_t);

static void *real(const char *name) {
  void *f = dlsym(RTLD_NEXT, name);
  if (!f) abort();
  return f;
}

static void record(char kind, const char *name, uint64_t at, const void *payload, uint32_t n) {
  size_t len = strlen(name), size = 2 + len + 8 + 4 + n;
  char *b = malloc(size), *p = b;
  if (!b) abort();
  *p++ = kind;
  *p++ = (char)len;
  memcpy(p, name, len), p += len;
  memcpy(p, &at, 8), p += 8;
  memcpy(p, &n, 4), p += 4;
  if (n) memcpy(p, payload, n);
  if (real_write(log_fd, b, size) != (ssize_t)size) abort();
  free(b);
}

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("POWERCUT_LOG");
  folder = getenv("POWERCUT_FOLDER");
  real_write = real("write");
  if (!path || !folder) return;
  int (*real_open)(const char *, int, ...) = real("open");
  log_fd = real_open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (log_fd < 0) abort();
}

/* The name of a file in the folder, or NULL. */
static const char *watched(const char *path) {
  size_t n = folder ? strlen(folder) : 0;
  if (log_fd < 0 || strncmp(path, folder, n) || path[n] != '/') return NULL;
  const char *name = path + n + 1;
  size_t len = strlen(name);
  /* The shared memory of the WAL is rebuilt after a cut. */
  if (len >= sizeof names[0] || (len > 4 && !strcmp(name + len - 4, "-shm"))) return NULL;
  return name;
}

static int opened(int fd, const char *path, int flags) {
  if (fd < 0 || fd >= MAX_FD) return fd;
  const char *name = watched(path);
  strcpy(names[fd], name ? name : "");
  if (name && (flags & O_TRUNC)) record('T', name, 0, NULL, 0);
  return fd;
}

#define OPEN(symbol)                                              \
  int symbol(const char *path, int flags, ...) {                  \
    static int (*f)(const char *, int, ...);                      \
    if (!f) f = real(#symbol);                                    \
    va_list ap;                                                   \
    va_start(ap, flags);                                          \
    int mode = (flags & O_CREAT) ? va_arg(ap, int) : 0;           \
    va_end(ap);                                                   \
    return opened(f(path, flags, mode), path, flags);             \
  }
OPEN(open)
OPEN(open64)

static const char *name_of(int fd) { return fd >= 0 && fd < MAX_FD && names[fd][0] ? names[fd] : NULL; }

int close(int fd) {
  static int (*f)(int);
  if (!f) f = real("close");
  if (fd >= 0 && fd < MAX_FD) names[fd][0] = 0;
  return f(fd);
}

#define PWRITE(symbol, offset_t)                                            \
  ssize_t symbol(int fd, const void *b, size_t n, offset_t at) {            \
    static ssize_t (*f)(int, const void *, size_t, offset_t);               \
    if (!f) f = real(#symbol);                                              \
    ssize_t done = f(fd, b, n, at);                                         \
    if (done > 0 && name_of(fd)) record('W', name_of(fd), at, b, done);     \
    return done;                                                            \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t write(int fd, const void *b, size_t n) {
  off_t at = name_of(fd) ? lseek(fd, 0, SEEK_CUR) : 0;
  ssize_t done = real_write(fd, b, n);
  if (done > 0 && name_of(fd)) record('W', name_of(fd), at, b, done);
  return done;
}

#define TRUNCATE(symbol, offset_t)                                          \
  int symbol(int fd, offset_t size) {                                       \
    static int (*f)(int, offset_t);                                         \
    if (!f) f = real(#symbol);                                              \
    int rc = f(fd, size);                                                   \
    if (!rc && name_of(fd)) record('T', name_of(fd), size, NULL, 0);        \
    return rc;                                                              \
  }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

#define SYNC(symbol)                                                        \
  int symbol(int fd) {                                                      \
    static int (*f)(int);                                                   \
    if (!f) f = real(#symbol);                                              \
    int rc = f(fd);                                                         \
    if (!rc && name_of(fd)) record('S', name_of(fd), 0, NULL, 0);           \
    return rc;                                                              \
  }
SYNC(fsync)
SYNC(fdatasync)

int unlink(const char *path) {
  static int (*f)(const char *);
  if (!f) f = real("unlink");
  int rc = f(path);
  if (!rc && watched(path)) record('U', watched(path), 0, NULL, 0);
  return rc;
}
