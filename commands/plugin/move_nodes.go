package plugin

import (
	"cmp"
	"context"
	_ "embed" // of the manifest
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

const (
	// moveNamespace is the name of all that move-nodes creates, except of its Pods, which have the names of their nodes.
	moveNamespace = "csr-move-nodes"
	// refusedLabel marks a namespace that the policy of the manifest refuses to everybody.
	refusedLabel = "csr-controller-manager.io/refused"
	// runLabel names the run that has made or replaced the policy and its binding last.
	runLabel = "csr-controller-manager.io/run"
	// guardSettles is how long the policy must refuse without a gap. Each API server notices a new policy within about a second.
	guardSettles = 5 * time.Second
	// longestMove bounds the time for one node, whose Pod ends after ten minutes.
	longestMove = 12 * time.Minute
	// longestCleanUp bounds the time until the namespace is gone. After podsEnd, its Pods are removed without their kubelets, which have
	// ten seconds to end them: a kubelet that did not come back would keep the namespace for ever.
	longestCleanUp, podsEnd = 3 * time.Minute, 15 * time.Second
	// servingLate is how long after the end of its Pod a node may lack a serving certificate: the kubelets of some nodes make theirs.
	servingLate = time.Minute
)

//go:embed manifests/move-nodes.yaml
var moveManifest string

// moving moves nodes to the CA that signs.
type moving struct {
	rotation
	selector, image, rollout string
	all, dryRun              bool
	atOnce                   int

	nodes   []string // the plan, in its order
	leftOut []string // with the reasons
	mark    string   // of this run, in its policy
	// policy, binding, guarded, account and pod are the documents of the manifest: guarded is the Namespace, and pod is that of $NODE.
	policy, binding, guarded, account, pod string
	created                                types.UID   // of the namespace
	left                                   chan string // nodes that are not begun
	failed                                 atomic.Bool
	mu                                     sync.Mutex
	underWay                               map[string]string // for what each of these nodes waits
	done                                   int
	failures                               []error
	// replaced are the Machines of nodes that Cluster API replaces, by what it rolls out.
	replaced map[machineOwner][]types.UID
	hint     string // about Machines
}

// moveNodesCommand returns the command that moves nodes. home is the kubeconfig of the home cluster.
func moveNodesCommand(connect connector, home *string) *cobra.Command {
	m := &moving{}
	cmd := &cobra.Command{
		Use:   "move-nodes [NAME]",
		Short: "Give each node certificates of the CA that signs now, and restart its kubelet",
		Long: `move-nodes lists the nodes whose certificates are of the old CA, and asks. Then it runs a Pod on each node, as root, that requests
new certificates with the old ones and restarts the kubelet: first on one node alone, on control-plane nodes last. It stops at the first
failure. You can end it and run it again. Other Pods go on running.`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := cmd.Flags()
	flags.StringVarP(&m.selector, "selector", "l", "", "`label` selector of the nodes")
	flags.BoolVar(&m.all, "all", false, "also nodes that have moved; possible in Completed, too")
	flags.IntVar(&m.atOnce, "max-unavailable", 1, "`number` of nodes at a time, after the first one")
	flags.StringVar(&m.image, "image", "", "`image` by digest: NAME@sha256:… (default that of the manager's Pods)")
	flags.StringVar(&m.rollout, "rollout", "", "have Cluster API replace the Machines of `NAMESPACE/CLUSTER` instead, with their nodes")
	flags.BoolVar(&m.dryRun, "dry-run", false, "only print the plan and the manifest")
	flags.BoolVar(&m.yes, "yes", false, "move the nodes without asking")
	flags.DurationVar(&m.timeout, "timeout", 12*time.Hour, "longest `time` for all nodes; 12 minutes for each")
	cmd.RunE = run(connect, func(cmd *cobra.Command, c *cluster, args []string) error {
		if err := m.reach(cmd, c, *home); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), m.timeout)
		defer cancel()
		if err := m.run(ctx, cmd.InOrStdin(), strings.Join(args, "")); err != nil {
			return fmt.Errorf("rotation move-nodes: %w", err)
		}
		return nil
	})
	return cmd
}

// run moves the nodes to the CA that signs in the SigningAuthority of that name, or in the only one if name is empty.
func (m *moving) run(ctx context.Context, in io.Reader, name string) error {
	if err := m.permitted(ctx, name); err != nil {
		return err
	}
	text, err := m.plan(ctx)
	if err != nil {
		return err
	}
	if err := m.show(); err != nil || len(m.nodes)+len(m.replaced) == 0 {
		return err
	}
	if m.dryRun {
		_, err := io.WriteString(m.out, text)
		return err
	}
	if !m.yes && !confirmed(in, m.aside, "Move these nodes") {
		return errors.New("you did not confirm it")
	}
	m.start = m.now()
	if len(m.nodes) > 0 {
		if err = m.guard(ctx); err == nil {
			err = m.moveAll(ctx)
		}
		err = errors.Join(err, m.cleanUp(ctx))
	}
	if err == nil {
		err = m.rollOut(ctx)
	}
	return errors.Join(err, m.report(ctx))
}

// permitted finds the SigningAuthority, and returns why its nodes cannot be moved now.
func (m *moving) permitted(ctx context.Context, name string) error {
	objs, err := m.find(ctx, name)
	if err != nil {
		return err
	}
	if m.before, err = only(objs); err != nil {
		return err
	}
	found, err := m.served.CoreV1().Namespaces().Get(ctx, moveNamespace, metav1.GetOptions{})
	now := m.before.Status.Phase
	switch {
	case now != v1alpha1.Prepared && (now != v1alpha1.Completed || !m.all):
		return fmt.Errorf("the phase is %s: nodes move in Prepared, or in Completed with --all", phase(&m.before.Status))
	case m.atOnce < 1:
		return errors.New("--max-unavailable must be 1 or more")
	case err == nil && found.Labels["app.kubernetes.io/name"] != moveNamespace:
		return fmt.Errorf("namespace %s is not of this command: delete it first", moveNamespace)
	}
	return ignoreNotFound(err)
}

// plan finds out which nodes move, and with which image. It returns the manifest for the first one.
func (m *moving) plan(ctx context.Context) (text string, err error) {
	unmoved := m.notMoved(ctx, m.before)
	if len(unmoved.Problems) > 0 {
		return "", errors.New(strings.Join(unmoved.Problems, ", "))
	}
	var controlPlane []string
	err = each(ctx, m.served.CoreV1().Nodes().List, metav1.ListOptions{LabelSelector: m.selector}, func(node *corev1.Node) {
		_, isControlPlane := node.Labels["node-role.kubernetes.io/control-plane"]
		switch why := cannotMove(node); {
		case !m.all && !slices.ContainsFunc(unmoved.Nodes, func(one nodeReport) bool { return one.Node == node.Name }):
		case why != "":
			m.leftOut = append(m.leftOut, node.Name+": "+why)
		case isControlPlane:
			controlPlane = append(controlPlane, node.Name)
		default:
			m.nodes = append(m.nodes, node.Name)
		}
	})
	if err != nil {
		return "", fmt.Errorf("list nodes: %w", err)
	}
	slices.Sort(m.nodes)
	slices.Sort(controlPlane)
	m.nodes = append(m.nodes, controlPlane...)
	if err := m.planRollout(ctx); err != nil || len(m.nodes) == 0 {
		return "", err
	}
	if err := m.findImage(ctx); err != nil {
		return "", err
	}
	m.mark = strconv.FormatInt(m.now().UnixNano(), 10)
	me, err := m.served.self(ctx)
	if err != nil {
		return "", fmt.Errorf("ask who you are: %w", err)
	}
	text = strings.NewReplacer(
		"$OPERATOR", strconv.QuoteToASCII(me.Username), "$RUN", m.mark, "$IMAGE", m.image,
		"$SERVING", strconv.FormatBool(slices.Contains(m.before.Spec.Signers, certificatesv1.KubeletServingSignerName)),
	).Replace(moveManifest)
	for i, into := range []*string{&m.policy, &m.binding, &m.guarded, &m.account, &m.pod} {
		*into = strings.Split(text, "\n---\n")[i]
	}
	return strings.ReplaceAll(text, "$NODE", m.nodes[0]), nil
}

// cannotMove returns why node is left out, and what to do, or nothing.
func cannotMove(node *corev1.Node) string {
	version := node.Status.NodeInfo.KubeletVersion // k3s, RKE2 and k0s run the kubelet themselves
	if node.Labels[corev1.LabelOSStable] == "windows" || strings.Contains(version, "+k3s") || strings.Contains(version, "+rke2") || strings.Contains(version, "+k0s") {
		return "its kubelet is no service of systemd: docs/how-to/distributions.md#move-a-node-to-a-new-ca"
	}
	if !ready(node) {
		return "it is not Ready: run move-nodes again when it is back, or delete its Node if it is gone"
	}
	return ""
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(one corev1.NodeCondition) bool {
		return one.Type == corev1.NodeReady && one.Status == corev1.ConditionTrue
	})
}

// byDigest matches an image that is named by its digest.
var byDigest = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/-]*@sha256:[0-9a-f]{64}$`)

// findImage finds the image of the manager's Pods, unless the user names one. A node could create a Pod that looks like the manager's,
// and say what it runs, but not a Pod of a ReplicaSet.
func (m *moving) findImage(ctx context.Context) error {
	if m.image == "" {
		var images []string
		namespace := cmp.Or(m.namespace, defaultNamespace)
		options := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=csr-controller-manager"}
		err := each(ctx, m.CoreV1().Pods(namespace).List, options, func(pod *corev1.Pod) {
			owner := metav1.GetControllerOf(pod)
			for _, status := range pod.Status.ContainerStatuses {
				if owner != nil && owner.Kind == "ReplicaSet" && status.Name == "manager" && !slices.Contains(images, status.ImageID) {
					images = append(images, status.ImageID)
				}
			}
		})
		if err != nil {
			return fmt.Errorf("find the image of the manager, or name it with --image: list pods in namespace %s: %w", namespace, err)
		}
		if len(images) != 1 {
			return fmt.Errorf("the manager's Pods in namespace %s run %d images: name one with --image NAME@sha256:…", namespace, len(images))
		}
		m.image = images[0]
	}
	if !byDigest.MatchString(m.image) {
		return fmt.Errorf("the image %q is not named by a digest: name one with --image NAME@sha256:…", m.image)
	}
	return nil
}

// show writes the plan.
func (m *moving) show() error {
	return m.write(m.aside, false, nil, func(p *page) {
		p.title("Move nodes to the CA that signs for SigningAuthority " + m.before.Name)
		p.row("left out", m.leftOut...)
		for owner, machines := range m.replaced {
			p.row("replaced", fmt.Sprintf("%s, %d Machines; new hosts of a control plane need the trust file", owner, len(machines)))
		}
		if len(m.nodes) == 0 {
			p.row("nodes", "none")
			return
		}
		p.row("nodes", m.nodes...)
		p.row("at a time", fmt.Sprintf("one, and when it is back, %d", m.atOnce))
		p.row("image", m.image)
		p.row("on a node", "a Pod with the rights of root requests new certificates with the kubelet's old ones, replaces them and",
			"restarts the kubelet. If it does not come back, it gets the old ones again. Other Pods go on running.")
		if m.hint != "" {
			p.row("instead", m.hint)
		}
	})
}

// The paths of what the command creates.
const (
	policyPath    = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/" + moveNamespace
	bindingPath   = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/" + moveNamespace
	namespacePath = "/api/v1/namespaces"
	inNamespace   = namespacePath + "/" + moveNamespace
)

// apply creates an object, or replaces what a killed run has left of it.
func (m *moving) apply(ctx context.Context, path, document string) error {
	return m.served.authorities.Patch(types.ApplyYAMLPatchType).AbsPath(path).Param("fieldManager", moveNamespace).Param("force", "true").
		Body([]byte(document)).Do(ctx).Error()
}

// create creates an object, and reads it into obj.
func (m *moving) create(ctx context.Context, path, document string, obj runtime.Object) error {
	return m.served.authorities.Post().AbsPath(path).SetHeader("Content-Type", "application/yaml").Body([]byte(document)).Do(ctx).Into(obj)
}

// guard creates the policy, waits until it is in effect, removes the namespace that a killed run has left, and creates it again.
func (m *moving) guard(ctx context.Context) error {
	if err := errors.Join(m.apply(ctx, policyPath, m.policy), m.apply(ctx, bindingPath, m.binding)); err != nil {
		return fmt.Errorf("guard the namespace: %w", err)
	}
	refused := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: moveNamespace, Labels: map[string]string{refusedLabel: m.mark}}}
	last, problem := m.now(), error(nil)
	err := wait.PollUntilContextTimeout(ctx, time.Second/2, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, problem = m.served.CoreV1().Namespaces().Create(ctx, refused, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsInvalid(problem) {
			last = m.now()
		}
		return m.now().Sub(last) >= guardSettles, nil
	})
	if err != nil {
		return fmt.Errorf("the policy %s does not come into effect: %w; %w", moveNamespace, err, problem)
	}
	if err := m.removeNamespace(ctx, ""); err != nil {
		return fmt.Errorf("remove what an earlier run has left: %w", err)
	}
	created := &corev1.Namespace{}
	if err := m.create(ctx, namespacePath, m.guarded, created); err != nil {
		return err
	}
	m.created = created.UID
	err = m.create(ctx, inNamespace+"/serviceaccounts", m.account, &corev1.ServiceAccount{})
	if apierrors.IsAlreadyExists(err) { // any user with the role edit can be faster, and it gives no right
		return nil
	}
	return err
}

// removeNamespace removes the namespace with that UID, or any if uid is empty, and waits until it is gone.
func (m *moving) removeNamespace(ctx context.Context, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, longestCleanUp)
	defer cancel()
	last := ""
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		found, err := m.served.CoreV1().Namespaces().Get(ctx, moveNamespace, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return true, nil
		case err != nil: // it is asked again
		case uid != "" && found.UID != uid:
			return false, errors.New("another run has replaced it")
		case found.DeletionTimestamp == nil:
			options := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(found.UID))}
			err = m.served.authorities.Delete().AbsPath(inNamespace).Body(options).Do(ctx).Error()
		case m.now().Sub(found.DeletionTimestamp.Time) > podsEnd:
			err = m.served.authorities.Delete().AbsPath(inNamespace, "pods").Param("gracePeriodSeconds", "0").Do(ctx).Error()
		}
		if err != nil {
			last = err.Error()
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("namespace %s: %w: %s", moveNamespace, err, oneLine(last))
	}
	return nil
}

// cleanUp removes all that the command has created. The namespace goes first, so that it is never without its guard.
func (m *moving) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longestCleanUp+callTimeout)
	defer cancel()
	_ = m.print(m.aside, "Removes namespace %s and its guard", moveNamespace)
	if err := m.removeNamespace(ctx, m.created); err != nil {
		return fmt.Errorf("it is still there, with its guard, until move-nodes runs again: %w", err)
	}
	var errs []error
	for _, path := range []string{bindingPath, policyPath} {
		errs = append(errs, ignoreNotFound(m.unguard(ctx, path)))
	}
	return errors.Join(errs...)
}

// unguard removes the policy or its binding, unless it is of another run, which began meanwhile and needs it.
func (m *moving) unguard(ctx context.Context, path string) error {
	found := metav1.PartialObjectMetadata{}
	data, err := m.served.authorities.Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(data, &found)
	}
	if err != nil || found.Labels[runLabel] != m.mark {
		return err
	}
	same := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &found.ResourceVersion}}
	return m.served.authorities.Delete().AbsPath(path).Body(same).Do(ctx).Error()
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// moveAll moves the nodes of the plan: the first one alone, and then m.atOnce at a time. After a failure it begins no other one, and
// returns when those under way have ended.
func (m *moving) moveAll(ctx context.Context) error {
	m.left, m.underWay = make(chan string, len(m.nodes)), map[string]string{}
	for _, node := range m.nodes {
		m.left <- node
	}
	close(m.left)
	m.moveNext(ctx, 1)
	var workers sync.WaitGroup
	for range min(m.atOnce, len(m.left)) {
		workers.Go(func() { m.moveNext(ctx, len(m.nodes)) })
	}
	workers.Wait()
	return errors.Join(m.failures...)
}

// moveNext moves at most that many nodes, one after the other, until one fails.
func (m *moving) moveNext(ctx context.Context, most int) {
	for ; most > 0 && !m.failed.Load(); most-- {
		node, more := <-m.left
		if !more {
			return
		}
		m.note(node, "", m.move(ctx, node))
	}
}

// note notes for what node waits, that it has moved, or why not, and prints progress.
func (m *moving) note(node, waits string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.underWay, node)
	switch {
	case err != nil:
		m.failures = append(m.failures, fmt.Errorf("node %s: %w", node, err))
		m.failed.Store(true)
	case waits == "":
		m.done++
	default:
		m.underWay[node] = waits
	}
	text := fmt.Sprintf("%d moved, %d under way, %d left", m.done, len(m.underWay), len(m.left))
	for _, each := range slices.Sorted(maps.Keys(m.underWay)) {
		text += fmt.Sprintf("; %s: %s", each, m.underWay[each])
	}
	_ = m.progress(text)
}

// move runs the Pod on a node, and waits until it has moved.
func (m *moving) move(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, longestMove)
	defer cancel()
	if err := m.annotate(ctx, name, m.before.Status.Signing.KeyID); err != nil {
		return err
	}
	begun := &corev1.Pod{}
	if err := m.create(ctx, inNamespace+"/pods", strings.ReplaceAll(m.pod, "$NODE", name), begun); err != nil {
		return err
	}
	err := m.await(ctx, name, func() (string, error) {
		pod, err := m.served.CoreV1().Pods(moveNamespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && pod.UID != begun.UID:
			return "", errors.New("its Pod was deleted")
		case err != nil:
			return err.Error(), nil
		case pod.Status.Phase == corev1.PodSucceeded:
			return "", nil
		case pod.Status.Phase == corev1.PodFailed:
			return "", errors.New("its Pod says: " + lastWords(pod))
		case pod.Status.Phase == corev1.PodRunning:
			return "its Pod runs", nil
		}
		return strings.TrimSpace("its Pod has not started " + lastWords(pod)), nil
	})
	if err == nil {
		err = m.comesBack(ctx, name)
	}
	if err != nil {
		return err
	}
	return m.annotate(ctx, name, nil)
}

// movingAnnotation has, on a Node, the key ID of the CA to which move-nodes has not finished to move it.
const movingAnnotation = "csr-controller-manager.io/moving-to"

// annotate sets the annotation of a Node to keyID, or removes it if keyID is nil.
func (m *moving) annotate(ctx context.Context, name string, keyID any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{movingAnnotation: keyID}}})
	if err == nil {
		_, err = m.served.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	return err
}

// comesBack waits until a node whose Pod has succeeded is back, and the manager has noted its certificates.
func (m *moving) comesBack(ctx context.Context, name string) error {
	var renewed *metav1.MicroTime // its Lease, when its Pod has ended
	ended := m.now()
	return m.await(ctx, name, func() (string, error) {
		lease, leaseErr := m.served.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, name, metav1.GetOptions{})
		node, nodeErr := m.served.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err := errors.Join(leaseErr, nodeErr); err != nil {
			return err.Error(), nil
		}
		renewed = cmp.Or(renewed, lease.Spec.RenewTime)
		switch {
		case lease.Spec.RenewTime.Equal(renewed):
			return "its Lease is not renewed", nil
		case !ready(node):
			return "it is not Ready", nil
		case m.before.Status.Phase != v1alpha1.Prepared:
			return "", nil
		}
		moved, err := m.moved(ctx, m.before)
		if err != nil {
			return err.Error(), nil
		}
		lacks := lacking(m.before, moved[name])
		if m.now().Sub(ended) > servingLate {
			lacks = slices.DeleteFunc(lacks, func(signer string) bool { return signer == "kubelet-serving" })
		}
		if len(lacks) == 0 || moved["isFull"] != "" { // a full list does not say who has moved
			return "", nil
		}
		return "the manager has not noted its certificate of " + strings.Join(lacks, ", "), nil
	})
}

// await waits until a node waits for nothing more.
func (m *moving) await(ctx context.Context, name string, look func() (waits string, err error)) error {
	last := ""
	err := wait.PollUntilContextCancel(ctx, 2*time.Second, true, func(context.Context) (bool, error) {
		waits, err := look()
		if err != nil || waits == "" {
			return err == nil, err
		}
		last = waits
		m.note(name, waits, nil)
		return false, nil
	})
	if ctx.Err() != nil {
		err = fmt.Errorf("%s: %w", last, err)
	}
	return err
}

// lastWords returns the end of what a Pod, or its kubelet, says about itself.
func lastWords(pod *corev1.Pod) string {
	words := []string{pod.Status.Reason, pod.Status.Message}
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Waiting != nil {
			words = append(words, status.State.Waiting.Reason, status.State.Waiting.Message)
		}
		if status.State.Terminated != nil {
			words = append(words, status.State.Terminated.Reason, status.State.Terminated.Message)
		}
	}
	text := strings.Join(slices.DeleteFunc(words, func(word string) bool { return word == "" }), ": ")
	if last := strings.LastIndex(text, "\ncsr-controller-manager: "); last >= 0 { // the error, after the log
		text = text[last+1:]
	}
	return oneLine(text[max(len(text)-maxMessage, 0):])
}

// report writes which certificates of the retiring CA are left, by kind, and what waits for them.
func (m *moving) report(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	objs, err := m.find(ctx, m.before.Name)
	if err != nil {
		return err
	}
	status := &objs[0].Status
	return m.write(m.out, false, nil, func(p *page) {
		if status.Retiring != nil {
			p.nodes(m.notMoved(ctx, &objs[0]))
		}
		for _, one := range status.Outstanding {
			p.row("valid", fmt.Sprintf("%s, until %s", cmp.Or(one.Signer, "certificates that others have issued from the old CA"), p.moment(one.Until.Time)))
		}
		switch {
		case status.Retiring == nil || len(status.Outstanding) == 0:
			p.line("No certificate of an old CA is known to be valid.")
		case status.Retiring.OutstandingAcceptedAt != nil:
			p.line("Certificates of the old CA are valid. rotation complete does not wait for them, because you ran rotation accept.")
		default:
			p.line("Certificates of the old CA are valid. rotation complete waits for them, unless you run " + m.commandFor("accept") + ".")
		}
	})
}
