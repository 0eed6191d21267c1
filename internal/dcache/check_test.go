package dcache

import (
	"strings"
	"testing"

	"github.com/matryer/is"
)

// TestCheckNames breaks each invariant behind the store's back, and expects Check to say which.
func TestCheckNames(t *testing.T) {
	for _, tt := range []struct{ name, sql, want string }{
		{"orphan target", `DELETE FROM batch_job WHERE id = 'j'`, "a target belongs to a job"},
		{"targets_done", `UPDATE batch_job SET targets_done = 2 WHERE id = 'j'`, "j: targets_done 2, counted 1"},
		{"nbytes", `UPDATE batch_job SET nbytes = 4 WHERE id = 'j'`, "nbytes 4, counted 5"},
		{"total in memory", `UPDATE batch_job SET nbytes = 4 WHERE id = 'j'`, "BatchNbytes in memory is 5, in the rows 4"},
		{"result behind its counter", `UPDATE batch_target SET result = 'é' WHERE idx = 0`, "counted 2"},
		{"target status", `UPDATE batch_target SET status = 'Done'`, "a target has a known status"},
		{"negative idx", `UPDATE batch_target SET idx = -1 WHERE idx = 0`, "j/-1"},
		{"job status", `UPDATE batch_job SET status = 'x'`, "a job has a known status"},
		{"class", `UPDATE batch_job SET caller_class = 'x'`, "a job has a known status and class"},
		{"counter that is a float", `UPDATE batch_job SET nbytes = 5.5`, "counters that are integers"},
		{"lease that is text", `UPDATE batch_job SET lease = 'soon'`, "counters that are integers"},
		{"live jobs in memory", `UPDATE batch_job SET status = 'done'`, "LiveBatchJobsTotal in memory is 1, in the rows 0"},
		{"bytes of finished jobs", `UPDATE batch_job SET status = 'done'`, "bytes of finished jobs in memory is 0, in the rows 5"},
		{"live jobs of a caller", `UPDATE batch_job SET caller = 'other'`, `LiveBatchJobs("other") in memory is 0, in the rows 1`},
		{"entry without body", `DELETE FROM content_body`, "an entry names a body"},
		{"entry of no class", `UPDATE content_entry SET class = 'x'`, "an entry names a body, in a known class"},
		{"body without entry", `DELETE FROM content_entry`, "a body is named by an entry"},
		{"length of a body", `UPDATE content_body SET nbytes = 1`, "as long as it says"},
		{"content total in memory", `UPDATE content_body SET nbytes = 1`, "Size in memory is 4, in the rows 1"},
		{"digest of a body", `UPDATE content_body SET body = CAST('ydob' AS BLOB)`, "a body has its digest"},
		{"an index that lacks a row", `PRAGMA writable_schema = 1; UPDATE sqlite_schema SET sql = replace(sql, '(lease)', '(created_at)')
			WHERE name = 'batch_job_lease'; UPDATE sqlite_schema SET sql = sql WHERE 0; PRAGMA writable_schema = RESET`, "integrity check"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			is := is.New(t)
			d, err := Open(":memory:", 0) // not audited: it is broken on purpose
			is.NoErr(err)
			defer d.Close()
			addJob(t, d, "j", JobRunning, 2, 2)
			is.NoErr(d.TouchBatchJob("j", 3))
			is.NoErr(d.UpdateBatchTarget("j", 0, 3, TargetDone, str("12345"), nil, nil))
			_, err = d.Put(ClassFleet, "k", []byte("body"), 1)
			is.NoErr(err)
			is.NoErr(d.Check())
			behind(t, d, tt.sql)
			err = d.Check()
			is.True(err != nil)
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%q is not in: %v", tt.want, err)
			}
		})
	}
}

// TestCheckAmongWriters: the totals follow a commit before anybody can read its rows.
func TestCheckAmongWriters(t *testing.T) {
	d := openAt(t, ":memory:", 0)
	addJob(t, d, "j", JobRunning, 1, 8)
	together(9, func(w int) {
		for i := range 300 {
			var err error
			if w == 8 {
				err = d.Check()
			} else {
				err = d.UpdateBatchTarget("j", w, 1, TargetDone, bytesOf(i), nil, nil)
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
}
