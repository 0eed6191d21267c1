package dcache

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// TestQueryPlans asks SQLite how it would run each query that is hot or meets large tables. A plan that scans, or sorts what an index
// has in order, would grow with the file.
func TestQueryPlans(t *testing.T) {
	d := open(t)
	for name, tt := range map[string]struct{ query, plan string }{
		"BatchJob":           {selectJob, "SEARCH batch_job USING INDEX sqlite_autoindex_batch_job_1 (id=?)"},
		"job":                {selectJobRow, "SEARCH batch_job USING INDEX sqlite_autoindex_batch_job_1 (id=?)"},
		"UpdateBatchTarget":  {selectTargetState, "SEARCH t USING INDEX sqlite_autoindex_batch_target_1 (job_id=? AND idx=?) | SEARCH j USING INDEX sqlite_autoindex_batch_job_1 (id=?)"},
		"its write":          {updateTarget, "SEARCH batch_target USING INTEGER PRIMARY KEY (rowid=?)"},
		"its counters":       {updateJobCounters, "SEARCH batch_job USING INTEGER PRIMARY KEY (rowid=?)"},
		"its lease":          {updateJobLease, "SEARCH batch_job USING INTEGER PRIMARY KEY (rowid=?)"},
		"last open target":   {selectOpenFrom, "SEARCH batch_target USING INDEX sqlite_autoindex_batch_target_1 (job_id=? AND idx>?)"},
		"BatchJobByIDem":     {selectIDem, "SEARCH batch_job USING INDEX batch_job_idem (caller=? AND idem_key=?) | USE TEMP B-TREE FOR ORDER BY"},
		"BatchTargets":       {selectTargets, "SEARCH batch_target USING INDEX sqlite_autoindex_batch_target_1 (job_id=?)"},
		"a page's size":      {selectTargetSizes, "SEARCH batch_target USING INDEX sqlite_autoindex_batch_target_1 (job_id=? AND idx>?)"},
		"a page":             {selectTargetRange, "SEARCH batch_target USING INDEX sqlite_autoindex_batch_target_1 (job_id=? AND idx>? AND idx<?)"},
		"BatchProgress":      {countTargets, "SEARCH batch_target USING INDEX sqlite_autoindex_batch_target_1 (job_id=?) | USE TEMP B-TREE FOR GROUP BY"},
		"SweepBatch":         {selectExpired, "SEARCH batch_job USING INDEX batch_job_lease (lease<?)"},
		"EvictBatchOldest":   {selectEvictable, "SCAN batch_job USING INDEX batch_job_evict"},
		"deletion":           {deleteTargets, "SEARCH batch_target USING INDEX sqlite_autoindex_batch_target_1 (job_id=?)"},
		"MarkInFlightFailed": {markFailed, "SCAN batch_job USING INDEX batch_job_live"},
		"RequeueInFlight":    {selectLive, "SCAN batch_job USING INDEX batch_job_live | USE TEMP B-TREE FOR ORDER BY"},
		"live jobs":          {countLive, "SCAN batch_job USING INDEX batch_job_live"},
		"content total":      {sumContent, "SCAN content_body USING COVERING INDEX content_body_nbytes"},
		"list":               {selectNewest, "SEARCH batch_job USING INDEX batch_job_caller_age (caller=?)"},
		"list on":            {selectNewestAfter, "SEARCH batch_job USING INDEX batch_job_caller_age (caller=? AND (created_at,id)<(?,?))"},
		"list all":           {selectNewestOfAll, "SCAN batch_job USING INDEX batch_job_age"},
		"list all on":        {selectNewestOfAllAfter, "SEARCH batch_job USING INDEX batch_job_age ((created_at,id)<(?,?))"},
		"Get":                {selectContent, "SEARCH e USING INDEX sqlite_autoindex_content_entry_1 (class=? AND key=?) | SEARCH b USING INDEX sqlite_autoindex_content_body_1 (digest=?)"},
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
