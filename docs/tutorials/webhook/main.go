// Command webhook is the webhook of the tutorial webhook-certificate.md: a server that answers every AdmissionReview with yes. It gets
// its certificate from the API server, and client-go renews the certificate before it expires.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/certificate"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "`file` to reach the API server with; empty in a Pod")
	listen := flag.String("listen", "127.0.0.1:8443", "`address` of the server")
	name := flag.String("name", "", "DNS `name` of the Service")
	signer := flag.String("signer", "example.com/serving", "`signerName` of the requests")
	dir := flag.String("dir", ".", "`folder` for the key and the certificate")
	flag.Parse()
	if err := serve(*kubeconfig, *listen, *name, *signer, *dir); err != nil {
		log.Fatalln("webhook:", err)
	}
}

// serve serves until it fails. It refuses connections until the certificate is there.
func serve(kubeconfig, listen, name, signer, dir string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	store, err := certificate.NewFileStore("webhook", dir, dir, "", "")
	if err != nil {
		return err
	}
	manager, err := certificate.NewManager(&certificate.Config{
		ClientsetFn:      func(*tls.Certificate) (kubernetes.Interface, error) { return kubernetes.NewForConfig(config) },
		GetTemplate:      func() *x509.CertificateRequest { return &x509.CertificateRequest{DNSNames: []string{name}} },
		SignerName:       signer,
		GetUsages:        usages,
		CertificateStore: store,
	})
	if err != nil {
		return err
	}
	manager.Start()
	defer manager.Stop()
	server := &http.Server{
		Addr: listen, Handler: http.HandlerFunc(review), ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12,
			// Each connection gets the certificate of that moment.
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				if current := manager.Current(); current != nil {
					return current, nil
				}
				return nil, errors.New("no certificate yet")
			},
		},
	}
	return server.ListenAndServeTLS("", "")
}

// usages returns the usages of a server certificate. client-go makes ECDSA keys, which need no key encipherment.
func usages(any) []certificatesv1.KeyUsage {
	return []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
}

// review admits every object.
func review(w http.ResponseWriter, r *http.Request) {
	asked := admissionv1.AdmissionReview{}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.Request == nil {
		http.Error(w, "want an AdmissionReview", http.StatusBadRequest)
		return
	}
	asked.Response = &admissionv1.AdmissionResponse{UID: asked.Request.UID, Allowed: true}
	asked.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(asked)
}
