package audit

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"
)

// hanging is a file whose writes hang until resume is closed.
type hanging struct {
	resume chan struct{}
	bytes.Buffer
}

func (h *hanging) Write(line []byte) (int, error) {
	<-h.resume
	return h.Buffer.Write(line)
}

// TestAFileThatHangsStopsNothing has a disk that hangs and then works again. Only the first writers wait for it.
func TestAFileThatHangsStopsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file := &hanging{resume: make(chan struct{})}
		log := newLog(file)
		start := time.Now()
		for range 100 {
			log.Write(t.Context(), start, Signed, Record{Serial: "1f"})
		}
		if took := time.Since(start); took != patience {
			t.Errorf("100 records took %s, want %s", took, patience)
		}
		close(file.resume)
		synctest.Wait()
		log.Write(t.Context(), start, Signed, Record{Serial: "2f"})
		if lines := bytes.Count(file.Bytes(), []byte("\n")); lines != 2 || !bytes.Contains(file.Bytes(), []byte(`"2f"`)) {
			t.Errorf("%d records are in the file, want the first and the last: %s", lines, file.Bytes())
		}
	})
}
