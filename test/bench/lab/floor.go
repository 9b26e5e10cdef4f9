package lab

import (
	"context"
	"flag"
	"fmt"
	"os"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// FloorCommand is the first argument with which the benchmark runs as the subject Floor.
const FloorCommand = "floor"

// RunFloor runs the subject Floor: a bare informer of client-go, and for each pending request one SubjectAccessReview,
// one approval and one certificate, which is the same for all. It judges nothing, so it shows what Kubernetes and
// client-go alone cost.
func RunFloor(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet(FloorCommand, flag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", "", "")
	certFile := flags.String("cluster-signing-cert-file", "", "the certificate to write")
	flags.String("cluster-signing-key-file", "", "not used")
	if err := flags.Parse(args); err != nil {
		return err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	client, err := newClient(cfg)
	if err != nil {
		return err
	}
	cert, err := os.ReadFile(*certFile)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	queue := make(chan *certificatesv1.CertificateSigningRequest, 1024)
	informer := factory.Certificates().V1().CertificateSigningRequests().Informer()
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(added any) {
			obj := added.(*certificatesv1.CertificateSigningRequest)
			if obj.Spec.SignerName == kubeletSigner && len(obj.Status.Conditions) == 0 {
				queue <- obj
			}
		},
	})
	if err != nil {
		return err
	}
	for range Creators {
		go func() {
			for obj := range queue {
				if err := threeCalls(ctx, client, obj.DeepCopy(), cert); err != nil {
					fmt.Fprintln(os.Stderr, err)
				}
			}
		}()
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	return nil
}

// threeCalls reviews, approves and signs obj.
func threeCalls(
	ctx context.Context, client kubernetes.Interface, obj *certificatesv1.CertificateSigningRequest, cert []byte,
) error {
	extra := map[string]authorizationv1.ExtraValue{}
	for key, value := range obj.Spec.Extra {
		extra[key] = authorizationv1.ExtraValue(value)
	}
	review, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: obj.Spec.Username, UID: obj.Spec.UID, Groups: obj.Spec.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group: certificatesv1.GroupName, Resource: "certificatesigningrequests", Subresource: "nodeclient", Verb: "create",
			},
		},
	}, metav1.CreateOptions{})
	if err != nil || !review.Status.Allowed {
		return err
	}
	obj.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Floor", Message: "no rule",
	}}
	requests := client.CertificatesV1().CertificateSigningRequests()
	obj, err = requests.UpdateApproval(ctx, obj.Name, obj, metav1.UpdateOptions{})
	if err == nil {
		obj.Status.Certificate = cert
		_, err = requests.UpdateStatus(ctx, obj, metav1.UpdateOptions{})
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
