package inventory

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// refusedRows is about all static sources together: their number is small, and each says by Event what is wrong with it.
var refusedRows = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "csr_approver_static_rows_refused",
	Help: "Mistakes in the rows of static lists of nodes, which are not in use then; a list that can't be read at all is one.",
})

func init() { metrics.Registry.MustRegister(refusedRows) }

// tell reports what is wrong with the newest version, once, or that nothing is any more. uid is the ConfigMap's, if there is
// one; kept is that a last good version stays in use.
func (s *StaticConfigMap) tell(reason string, uid types.UID, problem error, kept bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	message, count := "all rows are in use", 0
	if problem != nil {
		mistakes := rowErrors(problem)
		message, count = "the list is refused, and nothing is known by it: ", len(mistakes)
		if kept {
			message = "the list is refused, and the last good one stays in use: "
		}
		message += inLines(mistakes)
	}
	refusedRows.Add(float64(count - s.refused))
	news := message != s.told && (problem != nil || s.refused > 0)
	s.refused, s.told = count, message
	if !news {
		return
	}
	eventType := corev1.EventTypeNormal
	if problem != nil {
		eventType = corev1.EventTypeWarning
		s.view.log.Error(problem, "Refused static inventory", "lastGoodInUse", kept)
	}
	if s.Reporter != nil {
		obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.name.Namespace, Name: s.name.Name, UID: uid}}
		s.Reporter.Object(obj, eventType, "Load", reason, message)
	}
}

// fail reports a missing right. An API server that is away is noticed elsewhere too, and comes back.
func (s *StaticConfigMap) fail(err error) {
	if apierrors.IsForbidden(err) {
		s.tell("StaticListMissing", "", fmt.Errorf("it can't be read: %w", err), false)
	}
}

// rowErrors are the mistakes that ParseStatic has joined, or the one that err is.
func rowErrors(err error) []error {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		return joined.Unwrap()
	}
	return []error{err}
}

// inLines says what the first few of mistakes are, and in which lines the others.
func inLines(mistakes []error) string {
	const most, room = 5, 120
	var told, lines []string
	for i, err := range mistakes {
		var row *RowError
		switch {
		case i < most:
			told = append(told, csr.ShortenTo(err.Error(), room))
		case errors.As(err, &row):
			lines = append(lines, strconv.Itoa(row.Line))
		}
	}
	text := strings.Join(told, "; ")
	if len(lines) > 0 {
		text += "; and in lines " + strings.Join(slices.Compact(lines), ", ")
	}
	return text
}
