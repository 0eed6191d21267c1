package dcache

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
	"github.com/mattn/go-sqlite3"
)

// TestQueryPlans asks SQLite how it would run each query that is hot or meets large tables. A plan that scans, or sorts what an index
// has in order, would grow with the file.
func TestQueryPlans(t *testing.T) {
	d := open(t)
	for name, tt := range map[string]struct{ query, plan string }{
		"BatchJob":           {selectJob, "SEARCH batch_job USING INTEGER PRIMARY KEY (rowid=?) | SCALAR SUBQUERY 1 | SEARCH batch_job USING COVERING INDEX sqlite_autoindex_batch_job_1 (id=?)"},
		"job":                {selectJobRow, "SEARCH batch_job USING INTEGER PRIMARY KEY (rowid=?) | SCALAR SUBQUERY 1 | SEARCH batch_job USING COVERING INDEX sqlite_autoindex_batch_job_1 (id=?)"},
		"UpdateBatchTarget":  {selectTargetState, "SEARCH t USING INTEGER PRIMARY KEY (rowid=?) | SCALAR SUBQUERY 1 | SEARCH batch_target USING COVERING INDEX sqlite_autoindex_batch_target_1 (job_id=? AND idx=?) | SEARCH j USING INTEGER PRIMARY KEY (rowid=?) | SCALAR SUBQUERY 2 | SEARCH batch_job USING COVERING INDEX sqlite_autoindex_batch_job_1 (id=?)"},
		"its write":          {updateTarget, "SEARCH batch_target USING INTEGER PRIMARY KEY (rowid=?)"},
		"its counters":       {updateJobCounters, "SEARCH batch_job USING INTEGER PRIMARY KEY (rowid=?)"},
		"its lease":          {updateJobLease, "SEARCH batch_job USING INTEGER PRIMARY KEY (rowid=?)"},
		"last open target":   {selectOpenFrom, "SEARCH batch_target USING INDEX sqlite_autoindex_batch_target_1 (job_id=? AND idx>?)"},
		"BatchJobByIDem":     {selectIDem, "SEARCH batch_job USING COVERING INDEX batch_job_idem (caller=? AND idem_key=?) | SEARCH batch_job USING INTEGER PRIMARY KEY (rowid=?) | USE TEMP B-TREE FOR ORDER BY"},
		"BatchTargets":       {selectTargets, "SEARCH batch_target USING COVERING INDEX sqlite_autoindex_batch_target_1 (job_id=?) | SEARCH batch_target USING INTEGER PRIMARY KEY (rowid=?)"},
		"a page's size":      {selectTargetSizes, "SEARCH batch_target USING INDEX sqlite_autoindex_batch_target_1 (job_id=? AND idx>?)"},
		"a page":             {selectTargetRange, "SEARCH batch_target USING COVERING INDEX sqlite_autoindex_batch_target_1 (job_id=? AND idx>? AND idx<?) | SEARCH batch_target USING INTEGER PRIMARY KEY (rowid=?)"},
		"BatchProgress":      {countTargets, "SEARCH batch_target USING INDEX sqlite_autoindex_batch_target_1 (job_id=?) | USE TEMP B-TREE FOR GROUP BY"},
		"SweepBatch":         {selectExpired, "SEARCH batch_job USING COVERING INDEX batch_job_lease (lease<?) | SEARCH batch_job USING INTEGER PRIMARY KEY (rowid=?)"},
		"EvictBatchOldest":   {selectEvictable, "SCAN batch_job USING INDEX batch_job_evict | SEARCH batch_job USING INTEGER PRIMARY KEY (rowid=?)"},
		"deletion":           {deleteTargets, "SEARCH batch_target USING INDEX sqlite_autoindex_batch_target_1 (job_id=?)"},
		"MarkInFlightFailed": {markFailed, "SCAN batch_job USING INDEX batch_job_live"},
		"RequeueInFlight":    {selectLive, "SCAN batch_job USING INDEX batch_job_live | USE TEMP B-TREE FOR ORDER BY"},
		"live jobs":          {countLive, "SCAN batch_job USING INDEX batch_job_live"},
		"content total":      {sumContent, "SCAN content_body USING COVERING INDEX content_body_nbytes"},
		"list":               {selectNewest, "SEARCH batch_job USING COVERING INDEX batch_job_caller_age (caller=?) | SEARCH batch_job USING INTEGER PRIMARY KEY (rowid=?)"},
		"list on":            {selectNewestAfter, "SEARCH batch_job USING COVERING INDEX batch_job_caller_age (caller=? AND (created_at,id)<(?,?)) | SEARCH batch_job USING INTEGER PRIMARY KEY (rowid=?)"},
		"list all":           {selectNewestOfAll, "SCAN batch_job USING COVERING INDEX batch_job_age | SEARCH batch_job USING INTEGER PRIMARY KEY (rowid=?)"},
		"list all on":        {selectNewestOfAllAfter, "SEARCH batch_job USING COVERING INDEX batch_job_age ((created_at,id)<(?,?)) | SEARCH batch_job USING INTEGER PRIMARY KEY (rowid=?)"},
		"Get":                {selectContent, "SEARCH e USING INTEGER PRIMARY KEY (rowid=?) | SCALAR SUBQUERY 1 | SEARCH content_entry USING COVERING INDEX sqlite_autoindex_content_entry_1 (class=? AND key=?) | SEARCH b USING INDEX sqlite_autoindex_content_body_1 (digest=?)"},
		"Delete":             {deleteEntry, "SEARCH content_entry USING INDEX sqlite_autoindex_content_entry_1 (class=? AND key=?)"},
		"its body":           {deleteUnnamed, "SEARCH content_body USING INDEX sqlite_autoindex_content_body_1 (digest=?) | CORRELATED SCALAR SUBQUERY 1 | SEARCH content_entry USING COVERING INDEX content_entry_digest (digest=?)"},
		"evict":              {selectLeastUsed, "SCAN content_entry USING INDEX content_entry_used"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var steps []struct {
				ID, Parent, Notused int
				Detail              string
			}
			is.NoErr(d.sql.Select(&steps, `EXPLAIN QUERY PLAN `+tt.query, make([]any, variables(tt.query))...))
			var plan []string
			for _, s := range steps {
				plan = append(plan, s.Detail)
			}
			is.Equal(strings.Join(plan, " | "), tt.plan)
		})
	}
}

// TestStatementsArePreparedOnce runs each call several times, and has SQLite ask whether it may do what a statement says, which it does
// whenever it compiles one. SQLite compiles a statement anew when a value that its planner has looked at is bound: see the + in the
// statements. That once took more time than all else that a target's update does.
func TestStatementsArePreparedOnce(t *testing.T) {
	d := open(t, clockAt(1000))
	compiled := ""
	raw(t, d, func(c *sqlite3.SQLiteConn) error {
		c.RegisterAuthorizer(func(action int, a, b, _ string) int {
			if action != sqlite3.SQLITE_TRANSACTION && action != sqlite3.SQLITE_PRAGMA {
				compiled = fmt.Sprint(action, " ", a, " ", b)
			}
			return sqlite3.SQLITE_OK
		})
		return nil
	})
	id := func(round int) string { return fmt.Sprint("job-", round) }
	calls := []struct {
		name string
		call func(round int) error
	}{
		{"CreateBatchJob", func(n int) error { return d.CreateBatchJob(BatchJob{ID: id(n), Caller: id(n), IDemKey: id(n)}) }},
		{"PutBatchTargets", func(n int) error { return d.PutBatchTargets(id(n), pending(80)) }},
		{"PutBatchTargets again", func(n int) error {
			err := d.PutBatchTargets(id(n), pending(1))
			mustBe(t, err, ErrExists)
			return nil
		}},
		{"UpdateBatchTarget", func(n int) error {
			return d.UpdateBatchTarget(id(n), n, int64(n), TargetDone, bytesOf(10+n), nil, nil)
		}},
		{"UpdateBatchTarget, same second", func(n int) error {
			return d.UpdateBatchTarget(id(n), 40+n, int64(n), TargetFailed, nil, bytesOf(n), bytesOf(n))
		}},
		{"FinishBatchTarget", func(n int) error {
			_, err := d.FinishBatchTarget(id(n), 20+n, int64(n), TargetDone, bytesOf(10+n), nil, nil)
			return err
		}},
		{"TouchBatchJob", func(n int) error { return d.TouchBatchJob(id(n), int64(100+n)) }},
		{"SetBatchJobStatus", func(n int) error { return d.SetBatchJobStatus(id(n), JobRunning, id(n), int64(n)) }},
		{"BatchJob", func(n int) error { d.BatchJob(id(n)); return nil }},
		{"PeekBatchJob", func(n int) error { d.PeekBatchJob(id(n)); return nil }},
		{"BatchJobByIDem", func(n int) error { d.BatchJobByIDem(id(n), id(n), int64(n), time.Hour); return nil }},
		{"BatchTargets", func(n int) error { d.BatchTargets(id(n)); return nil }},
		{"BatchTargets of nothing", func(n int) error { d.BatchTargets("nothing-" + id(n)); return nil }},
		{"BatchTargetsPage", func(n int) error { d.BatchTargetsPage(id(n), n, 2+n, int64(20+n)); return nil }},
		{"BatchProgress", func(n int) error { d.BatchProgress(id(n)); return nil }},
		{"SubmitBatch", func(n int) error {
			_, _, err := d.SubmitBatch(BatchJob{ID: "s" + id(n), Caller: id(n), IDemKey: "s" + id(n)}, pending(9), int64(n), time.Hour)
			return err
		}},
		{"SubmitBatch again", func(n int) error {
			_, _, err := d.SubmitBatch(BatchJob{ID: "s" + id(n), Caller: id(n), IDemKey: "s" + id(n)}, pending(9), int64(n), time.Hour)
			return err
		}},
		{"SubmitBatch, all done", func(n int) error {
			targets := pending(1)
			targets[0].Status = TargetDone
			_, _, err := d.SubmitBatch(BatchJob{ID: "d" + id(n), Caller: id(n)}, targets, int64(n), time.Hour)
			return err
		}},
		{"ListBatchJobs", func(n int) error {
			for _, caller := range []string{"", id(n)} {
				for _, after := range []Cursor{{}, {int64(n), id(n)}} {
					if _, _, err := d.ListBatchJobs(caller, after, 1+n); err != nil {
						return err
					}
				}
			}
			return nil
		}},
		{"CancelBatchJob", func(n int) error { return d.CancelBatchJob(id(n), id(n), int64(n)) }},
		{"RequeueInFlight", func(n int) error { _, err := d.RequeueInFlight(int64(n)); return err }},
		{"MarkInFlightFailed", func(n int) error { d.MarkInFlightFailed(id(n), int64(n)); return nil }},
		{"EvictBatchOldest", func(n int) error { d.EvictBatchOldest(d.BatchNbytes() - 1); return nil }},
		{"DeleteBatchJob", func(n int) error { return d.DeleteBatchJob("s" + id(n)) }},
		{"SweepBatch", func(n int) error { d.SweepBatch(int64(n), time.Duration(n)); return nil }},
		{"Put", func(n int) error { _, err := d.Put(ClassFleet, id(n), []byte(id(n)), int64(n)); return err }},
		{"Put again", func(n int) error { _, err := d.Put(ClassFleet, id(n), []byte(id(n+100)), int64(n)); return err }},
		{"Get", func(n int) error { d.Get(ClassFleet, id(n), int64(1000+n)); return nil }},
		{"Delete", func(n int) error { return d.Delete(ClassFleet, id(n)) }},
	}
	for _, tt := range calls {
		t.Run(tt.name, func(t *testing.T) {
			is := is.New(t)
			for n := range 3 { // a call's statements are prepared before it is called for the third time
				compiled = ""
				is.NoErr(tt.call(n))
			}
			is.Equal(compiled, "")
		})
	}
}

// variables counts the values that a query binds, as ? or as ?1, ?2, ….
func variables(query string) int {
	n := 0
	for _, v := range regexp.MustCompile(`\?(\d?)`).FindAllStringSubmatch(query, -1) {
		if numbered, err := strconv.Atoi(v[1]); err == nil {
			n = max(n, numbered)
		} else {
			n++
		}
	}
	return n
}
