package apiuse

import (
	"io"
	"sync/atomic"
	"time"
)

// stream is the answer to a watch.
type stream struct {
	io.ReadCloser
	limit  time.Duration
	timer  *time.Timer
	silent atomic.Bool
	end    func()
}

// Read ends as if the connection had been lost when nothing has come for too long.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if n > 0 && err == nil {
		s.timer.Reset(s.limit)
	}
	if err != nil {
		s.end()
		if s.silent.Load() {
			err = io.ErrUnexpectedEOF
		}
	}
	return n, err
}

// closing calls end when it is closed.
type closing struct {
	io.ReadCloser
	end func()
}

// Close implements io.Closer.
func (c *closing) Close() error {
	defer c.end()
	return c.ReadCloser.Close()
}

// Close ends the watch.
func (s *stream) Close() error {
	s.end()
	return s.ReadCloser.Close()
}
