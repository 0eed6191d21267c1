// The C floor: what the store does, without Go. The prototypes are those of sqlite3.h, as far as they are needed; the functions
// are linked from go-sqlite3, so the library is the very same.
#ifndef FLOOR_H
#define FLOOR_H

#include <stdint.h>

typedef struct sqlite3 sqlite3;
typedef struct sqlite3_stmt sqlite3_stmt;
typedef int64_t sqlite3_int64;

extern int sqlite3_open_v2(const char *path, sqlite3 **db, int flags, const char *vfs);
extern int sqlite3_close(sqlite3 *db);
extern int sqlite3_exec(sqlite3 *db, const char *sql, int (*row)(void *, int, char **, char **), void *arg, char **message);
extern int sqlite3_prepare_v2(sqlite3 *db, const char *sql, int n, sqlite3_stmt **stmt, const char **tail);
extern int sqlite3_step(sqlite3_stmt *stmt);
extern int sqlite3_reset(sqlite3_stmt *stmt);
extern int sqlite3_finalize(sqlite3_stmt *stmt);
extern int sqlite3_bind_int64(sqlite3_stmt *stmt, int i, sqlite3_int64 v);
extern int sqlite3_bind_null(sqlite3_stmt *stmt, int i);
extern int sqlite3_bind_text(sqlite3_stmt *stmt, int i, const char *s, int n, void (*release)(void *));
extern sqlite3_int64 sqlite3_column_int64(sqlite3_stmt *stmt, int i);
extern const unsigned char *sqlite3_column_text(sqlite3_stmt *stmt, int i);
extern int sqlite3_changes(sqlite3 *db);
extern const char *sqlite3_errmsg(sqlite3 *db);
extern const char *sqlite3_libversion(void);
extern const char *sqlite3_sourceid(void);
extern const char *sqlite3_compileoption_get(int n);

// A finisher holds the statements of one operation, prepared once.
typedef struct {
	sqlite3 *db;
	sqlite3_stmt *begin, *commit, *select, *target, *lease, *counters;
	int64_t total; // result bytes of all jobs
} finisher;

// An op names a target by the place of its job, and its result by the place in the pool.
typedef struct {
	int32_t job, idx, result;
} op;

// A pool is a number of strings of one length.
typedef struct {
	const char **text;
	int len;
} pool;

int floor_open(const char *path, sqlite3 **db);
int floor_value(sqlite3 *db, const char *query, char *value, int size);
int floor_prepare(finisher *f, const char *select, const char *target, const char *lease, const char *counters);
void floor_finalize(finisher *f);
int floor_finish(finisher *f, const op *ops, int n, int group, pool jobs, pool results);
int floor_insert(sqlite3 *db, const char *insert, const char *job, pool urls, const char *options, int n);

#endif
