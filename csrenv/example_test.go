package csrenv_test

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
)

// The example is a suite's set-up, and a client whose certificate went through the loop. must checks returned errors.
func Example() {
	ctx := context.Background()
	testEnv := &envtest.Environment{}
	authority := must(csrenv.Prepare(testEnv)) // before Start, so that the API server trusts the CA
	cfg := must(testEnv.Start())
	defer func() { _ = testEnv.Stop() }()
	env := must(csrenv.Start(ctx, cfg, csrenv.Options{CA: authority}))
	defer func() { _ = env.Stop() }()

	alice := must(client.New(must(env.ConfigFor(ctx, "alice", "developers")), client.Options{}))
	review := &authenticationv1.SelfSubjectReview{}
	if err := alice.Create(ctx, review); err != nil {
		panic(err)
	}
	fmt.Println(review.Status.UserInfo.Username, review.Status.UserInfo.Groups)
	// Output: alice [developers system:authenticated]
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
