package explain

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// readRequests reads requests in YAML or JSON, one a document or in lists. The error joins one for each document that
// cannot be read.
func readRequests(in io.Reader) ([]*certificatesv1.CertificateSigningRequest, error) {
	var objs []*certificatesv1.CertificateSigningRequest
	var errs []error
	documents := utilyaml.NewYAMLReader(bufio.NewReader(in))
	for count := 1; ; count++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objs, errors.Join(errs...)
		}
		if err != nil {
			return objs, errors.Join(append(errs, fmt.Errorf("-f: %w", err))...)
		}
		found, err := readDocument(document)
		if err != nil {
			errs = append(errs, fmt.Errorf("-f: document %d: %w", count, err))
		}
		objs = append(objs, found...)
	}
}

func readDocument(document []byte) ([]*certificatesv1.CertificateSigningRequest, error) {
	data, err := yaml.YAMLToJSON(document)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(data, []byte("null")) { // comments only
		return nil, nil
	}
	var list struct {
		metav1.TypeMeta `json:",inline"`
		Items           []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, err
	}
	if list.Kind != "List" && list.Kind != requestKind+"List" {
		list.Items = []json.RawMessage{data}
	}
	var objs []*certificatesv1.CertificateSigningRequest
	var errs []error
	for _, item := range list.Items {
		obj, err := readRequest(item, list.Kind == requestKind+"List")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		objs = append(objs, obj)
	}
	return objs, errors.Join(errs...)
}

const requestKind = "CertificateSigningRequest"

// readRequest reads one object. It must have an apiVersion and a kind, unless its list implies them.
func readRequest(data []byte, known bool) (*certificatesv1.CertificateSigningRequest, error) {
	var kind metav1.TypeMeta
	if err := json.Unmarshal(data, &kind); err != nil {
		return nil, err
	}
	want := metav1.TypeMeta{APIVersion: certificatesv1.SchemeGroupVersion.String(), Kind: requestKind}
	if kind != want && (!known || kind != metav1.TypeMeta{}) {
		return nil, fmt.Errorf("want apiVersion %s and kind %s, found %q and %q",
			want.APIVersion, want.Kind, kind.APIVersion, kind.Kind)
	}
	obj := &certificatesv1.CertificateSigningRequest{}
	if err := json.Unmarshal(data, obj); err != nil {
		return nil, err
	}
	return obj, nil
}
