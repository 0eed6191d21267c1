package main

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// The key-value peers store fixed-width binary records: no codec stands in their way.

// jobKey, targetKey and resultKey sort a job's rows together, by idx. What a target is and what became of it are two values, so that
// the operation does not have to write the first again.
func jobKey(jobID string) []byte             { return []byte("j" + jobID) }
func targetKey(jobID string, idx int) []byte { return rowKey("t", jobID, idx) }
func resultKey(jobID string, idx int) []byte { return rowKey("r", jobID, idx) }

func rowKey(kind, jobID string, idx int) []byte {
	return binary.BigEndian.AppendUint32([]byte(kind+jobID), uint32(idx))
}

func splitKey(key []byte) (jobID string, idx int) {
	end := len(key) - 4
	return string(key[1:end]), int(binary.BigEndian.Uint32(key[end:]))
}

const jobRecordBytes = 24

func (j JobState) record() []byte {
	b := make([]byte, 0, jobRecordBytes)
	b = binary.BigEndian.AppendUint64(b, uint64(j.Done))
	b = binary.BigEndian.AppendUint64(b, uint64(j.NBytes))
	return binary.BigEndian.AppendUint64(b, uint64(j.Lease))
}

func parseJob(b []byte) (JobState, error) {
	if len(b) != jobRecordBytes {
		return JobState{}, fmt.Errorf("a job's record has %d bytes, not %d", len(b), jobRecordBytes)
	}
	return JobState{
		Done:   int(binary.BigEndian.Uint64(b)),
		NBytes: int64(binary.BigEndian.Uint64(b[8:])),
		Lease:  int64(binary.BigEndian.Uint64(b[16:])),
	}, nil
}

// record is the status, a zero byte, and the result.
func (t TargetState) record() []byte {
	b := make([]byte, 0, len(t.Status)+1+len(t.Result))
	b = append(b, t.Status...)
	b = append(b, 0)
	return append(b, t.Result...)
}

func parseTarget(b []byte) TargetState {
	status, result, _ := strings.Cut(string(b), "\x00")
	return TargetState{Status: status, Result: result}
}

// finish is what an operation does to a job and its total, given the target as it was: nil if it has no result yet.
func (j JobState) finish(old []byte, now int64, result string) (to JobState, grown int64) {
	grown = int64(len(result))
	if old == nil {
		j.Done++
	} else {
		grown -= int64(len(parseTarget(old).Result))
	}
	j.NBytes += grown
	j.Lease = now
	return j, grown
}

// readRecord puts one stored row into a state.
func (s State) readRecord(key, value []byte) error {
	switch key[0] {
	case 'j':
		j, err := parseJob(value)
		s.Jobs[string(key[1:])] = j
		return err
	case 't':
		id, idx := splitKey(key)
		if _, ok := s.Targets[id][idx]; !ok {
			s.Put(id, idx, TargetState{Status: pending})
		}
	case 'r':
		id, idx := splitKey(key)
		s.Put(id, idx, parseTarget(value))
	}
	return nil
}
