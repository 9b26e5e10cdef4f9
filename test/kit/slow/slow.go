// Package slow slows the answers of an API server.
package slow

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Answer is how long an API server takes for an answer: less than an admission webhook may take.
const Answer = 25 * time.Second

// Client is a client whose calls reach the API server after Wait. A call whose context has no timeout, or ends before,
// fails.
type Client struct {
	client.Client
	Wait func()
	// Cached means that Get and List read from a cache.
	Cached bool
}

// New returns a Client that answers c's calls after the time Answer, which passes at once in a synctest bubble.
func New(c client.Client) Client { return Client{Client: c, Wait: func() { time.Sleep(Answer) }} }

func (c Client) after(ctx context.Context, call func() error) error {
	if _, bounded := ctx.Deadline(); !bounded {
		return errors.New("the call has no timeout")
	}
	if c.Wait(); ctx.Err() != nil {
		return ctx.Err()
	}
	return call()
}

// Get implements client.Client.
func (c Client) Get(ctx context.Context, key client.ObjectKey, obj client.Object, o ...client.GetOption) error {
	if c.Cached {
		return c.Client.Get(ctx, key, obj, o...)
	}
	return c.after(ctx, func() error { return c.Client.Get(ctx, key, obj, o...) })
}

// List implements client.Client.
func (c Client) List(ctx context.Context, list client.ObjectList, o ...client.ListOption) error {
	if c.Cached {
		return c.Client.List(ctx, list, o...)
	}
	return c.after(ctx, func() error { return c.Client.List(ctx, list, o...) })
}

// Create implements client.Client.
func (c Client) Create(ctx context.Context, obj client.Object, o ...client.CreateOption) error {
	return c.after(ctx, func() error { return c.Client.Create(ctx, obj, o...) })
}

// Update implements client.Client.
func (c Client) Update(ctx context.Context, obj client.Object, o ...client.UpdateOption) error {
	return c.after(ctx, func() error { return c.Client.Update(ctx, obj, o...) })
}

// Patch implements client.Client.
func (c Client) Patch(ctx context.Context, obj client.Object, patch client.Patch, o ...client.PatchOption) error {
	return c.after(ctx, func() error { return c.Client.Patch(ctx, obj, patch, o...) })
}

// Apply implements client.Client.
func (c Client) Apply(ctx context.Context, obj runtime.ApplyConfiguration, o ...client.ApplyOption) error {
	return c.after(ctx, func() error { return c.Client.Apply(ctx, obj, o...) })
}

// Status implements client.Client.
func (c Client) Status() client.SubResourceWriter { return subResource{nil, c.Client.Status(), c} }

// SubResource implements client.Client.
func (c Client) SubResource(name string) client.SubResourceClient {
	return subResource{nil, c.Client.SubResource(name), c}
}

// subResource updates a subresource.
type subResource struct {
	client.SubResourceReader // which nothing calls
	client.SubResourceWriter
	slow Client
}

// Update implements client.SubResourceWriter.
func (s subResource) Update(ctx context.Context, obj client.Object, o ...client.SubResourceUpdateOption) error {
	return s.slow.after(ctx, func() error { return s.SubResourceWriter.Update(ctx, obj, o...) })
}
