#include "floor.h"

#include <stddef.h>
#include <string.h>
#include <time.h>

enum { OK = 0, ERROR = 1, ROW = 100, DONE = 101, READWRITE = 2, NOMUTEX = 0x8000 };

// The strings outlive the statements that they are bound to, so SQLite copies none of them.
#define STATIC ((void (*)(void *))0)

int floor_open(const char *path, sqlite3 **db) {
	return sqlite3_open_v2(path, db, READWRITE | NOMUTEX, NULL);
}

// floor_value reads the first column of the first row.
int floor_value(sqlite3 *db, const char *query, char *value, int size) {
	sqlite3_stmt *s;
	int rc = sqlite3_prepare_v2(db, query, -1, &s, NULL);
	if (rc != OK) return rc;
	rc = sqlite3_step(s);
	if (rc == ROW) {
		const char *t = (const char *)sqlite3_column_text(s, 0);
		strncpy(value, t ? t : "", size - 1);
	}
	int end = sqlite3_finalize(s);
	return rc == ROW ? OK : end != OK ? end : ERROR;
}

int floor_prepare(finisher *f, const char *select, const char *target, const char *lease, const char *counters) {
	const char *sql[] = {"BEGIN IMMEDIATE", "COMMIT", select, target, lease, counters};
	sqlite3_stmt **to[] = {&f->begin, &f->commit, &f->select, &f->target, &f->lease, &f->counters};
	for (int i = 0; i < 6; i++) {
		int rc = sqlite3_prepare_v2(f->db, sql[i], -1, to[i], NULL);
		if (rc != OK) return rc;
	}
	return OK;
}

void floor_finalize(finisher *f) {
	sqlite3_stmt *all[] = {f->begin, f->commit, f->select, f->target, f->lease, f->counters};
	for (int i = 0; i < 6; i++) sqlite3_finalize(all[i]);
}

static int run(sqlite3_stmt *s) {
	int rc = sqlite3_step(s);
	int end = sqlite3_reset(s);
	return rc == DONE ? OK : end != OK ? end : ERROR;
}

// run_one is run for a statement that has to change one row.
static int run_one(sqlite3 *db, sqlite3_stmt *s) {
	int rc = run(s);
	return rc != OK ? rc : sqlite3_changes(db) == 1 ? OK : ERROR;
}

static int terminal(const char *status) { return strcmp(status, "done") == 0 || strcmp(status, "failed") == 0; }

static int finish_one(finisher *f, const char *job, int job_len, int idx, const char *result, int result_len) {
	int64_t now = time(NULL);
	sqlite3_stmt *s = f->select;
	sqlite3_bind_text(s, 1, job, job_len, STATIC);
	sqlite3_bind_int64(s, 2, idx);
	if (sqlite3_step(s) != ROW) {
		int rc = sqlite3_reset(s);
		return rc != OK ? rc : ERROR;
	}
	int64_t target_row = sqlite3_column_int64(s, 0);
	int finished = terminal((const char *)sqlite3_column_text(s, 1)) ? 0 : 1;
	int64_t grown = result_len - sqlite3_column_int64(s, 2);
	int64_t job_row = sqlite3_column_int64(s, 3);
	int live = !terminal((const char *)sqlite3_column_text(s, 4));
	int64_t done = sqlite3_column_int64(s, 5) + finished;
	int64_t nbytes = sqlite3_column_int64(s, 6) + grown;
	int64_t lease = sqlite3_column_int64(s, 7);
	int own = sqlite3_column_int64(s, 8);
	int rc = sqlite3_reset(s);
	if (rc != OK) return rc;
	if (!live || !own) return ERROR; // The work has live jobs only.

	s = f->target;
	sqlite3_bind_text(s, 1, "done", 4, STATIC);
	sqlite3_bind_text(s, 2, result, result_len, STATIC);
	sqlite3_bind_null(s, 3);
	sqlite3_bind_null(s, 4);
	sqlite3_bind_int64(s, 5, target_row);
	rc = run_one(f->db, s);
	if (rc != OK) return rc;

	int i = 0;
	s = lease == now ? f->counters : f->lease;
	sqlite3_bind_int64(s, ++i, done);
	sqlite3_bind_int64(s, ++i, nbytes);
	if (lease != now) sqlite3_bind_int64(s, ++i, now);
	sqlite3_bind_int64(s, ++i, job_row);
	rc = run_one(f->db, s);
	if (rc == OK) f->total += grown;
	return rc;
}

// floor_finish runs the operations in order, group of them to a transaction.
int floor_finish(finisher *f, const op *ops, int n, int group, pool jobs, pool results) {
	for (int i = 0; i < n;) {
		int rc = run(f->begin);
		for (int end = i + group < n ? i + group : n; i < end && rc == OK; i++) {
			op o = ops[i];
			rc = finish_one(f, jobs.text[o.job], jobs.len, o.idx, results.text[o.result], results.len);
		}
		if (rc == OK) rc = run(f->commit);
		if (rc != OK) return rc;
	}
	return OK;
}

// floor_insert inserts n targets into a job in one transaction, a row at a time.
int floor_insert(sqlite3 *db, const char *insert, const char *job, pool urls, const char *options, int n) {
	sqlite3_stmt *s;
	int rc = sqlite3_prepare_v2(db, insert, -1, &s, NULL);
	if (rc != OK) return rc;
	rc = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
	int job_len = strlen(job), options_len = strlen(options);
	for (int i = 0; i < n && rc == OK; i++) {
		sqlite3_bind_text(s, 1, job, job_len, STATIC);
		sqlite3_bind_int64(s, 2, i);
		sqlite3_bind_text(s, 3, urls.text[i], urls.len, STATIC);
		sqlite3_bind_text(s, 4, options, options_len, STATIC);
		sqlite3_bind_text(s, 5, "pending", 7, STATIC);
		sqlite3_bind_null(s, 6);
		sqlite3_bind_null(s, 7);
		sqlite3_bind_null(s, 8);
		rc = run(s);
	}
	sqlite3_finalize(s);
	if (rc != OK) return rc;
	return sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
}
