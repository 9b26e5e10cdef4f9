{{/* There is one manager in a cluster, so its names don't depend on the release's. */}}
{{- define "csr.name" -}}csr-controller-manager{{- end }}

{{- define "csr.labels" -}}
app.kubernetes.io/name: {{ include "csr.name" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* What runs: everything as one, or each controller by itself. */}}
{{- define "csr.parts" -}}
{{- if and .Values.split .Values.controlPlane.enabled -}}
{{- fail "split and controlPlane.enabled: the three Deployments would want the same ports of the same nodes; choose one" -}}
{{- end -}}
{{- if .Values.split -}}
- {name: csr-approver, component: approver}
- {name: csr-signer, component: signer}
- {name: csr-cleaner, component: cleaner}
{{- if and (include "csr.rotation" .) (not (include "csr.dry" (list . "rotation"))) }}
- {name: csr-rotation, component: rotation}
{{- end }}
{{- else -}}
- {name: {{ include "csr.name" . }}}
{{- end -}}
{{- end }}

{{- define "csr.selector" -}}
app.kubernetes.io/name: csr-controller-manager
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/* The ServiceAccount of a controller: takes a list of the root context and the controller's name. */}}
{{- define "csr.subject" -}}
{{- $root := index . 0 -}}
- kind: ServiceAccount
  name: {{ ternary (printf "csr-%s" (index . 1)) (include "csr.name" $root) $root.Values.split }}
  namespace: {{ $root.Release.Namespace }}
{{- end }}

{{- define "csr.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}

{{/* The configuration file: what the chart decides, under what config says. */}}
{{- define "csr.config" -}}
{{- $config := dict
  "apiVersion" "config.csr-controller-manager.io/v1alpha1"
  "kind" "ControllerManagerConfiguration"
  "metricsBindAddress" (printf ":%v" .Values.ports.metrics)
  "metricsSecure" true
  "healthProbeBindAddress" (printf ":%v" .Values.ports.probes)
-}}
{{- $signing := .Values.config.signing | default dict -}}
{{- if not (or (hasKey $signing "secret") (hasKey $signing "certFile")) -}}
{{- $_ := set $config "signing" (dict "secret" (printf "%s/csr-signer" .Release.Namespace)) -}}
{{- end -}}
{{- if .Values.hosted.cluster -}}
{{- $_ := set $config "kubeconfig" "/etc/csr-served-cluster/kubeconfig" -}}
{{- $_ := set $config "home" (dict "kubeconfig" "/etc/csr-home/kubeconfig") -}}
{{- end -}}
{{- if .Values.nodeBootstrap.enabled -}}
{{- $_ := set $config "selfCheck" (dict "bootstrapGroups" (list .Values.nodeBootstrap.group)) -}}
{{- end -}}
{{- mergeOverwrite $config (deepCopy .Values.config) | toYaml -}}
{{- end }}

{{/* The names of the Secrets that hold the signing keys. */}}
{{- define "csr.secrets" -}}
{{- $root := . -}}
{{- $signing := (include "csr.config" . | fromYaml).signing | default dict -}}
{{- $names := list -}}
{{- range prepend ($signing.signers | default list) $signing -}}
{{- with .secret -}}
{{- $parts := splitn "/" 2 . -}}
{{- if ne $parts._0 $root.Release.Namespace -}}
{{- fail (printf "config: Secret %s: the chart gives no rights outside of its namespace, %s" . $root.Release.Namespace) -}}
{{- end -}}
{{- $names = append $names $parts._1 -}}
{{- end -}}
{{- end -}}
{{- $names | uniq | toYaml -}}
{{- end }}

{{/* Not empty if a CA is to be made. */}}
{{- define "csr.createCA" -}}
{{- $signing := (include "csr.config" . | fromYaml).signing | default dict -}}
{{- range prepend ($signing.signers | default list) $signing -}}
{{- if .createIfMissing -}}true{{- end -}}
{{- end -}}
{{- end }}

{{/* What the configuration makes the approver look up: the components of config/ whose roles it needs. */}}
{{- define "csr.components" -}}
{{- $approval := .Values.config.approval | default dict -}}
{{- $client := $approval.nodeClient | default dict -}}
{{- $inventory := $approval.inventory | default dict -}}
{{- $names := list -}}
{{- if ($approval.kubeletServing | default dict).enabled -}}
{{- $names = append $names "kubelet-serving" -}}
{{- end -}}
{{- if or $client.inventory $client.requireTokenBinding -}}
{{- $names = append $names "node-identity" -}}
{{- end -}}
{{- if has $client.inventory (list "cluster-api" "openshift") -}}
{{- $elsewhere := $inventory.kubeconfig | default "" | ne "" -}}
{{- range $inventory.sources -}}
{{- if hasKey . "machine" -}}{{- $elsewhere = true -}}{{- end -}}
{{- end -}}
{{- if not $elsewhere -}}
{{- $names = append $names (printf "inventory-%s" $client.inventory) -}}
{{- end -}}
{{- end -}}
{{- if $approval.rules -}}
{{- $names = append $names "approval-rules" -}}
{{- end -}}
{{- $names | toYaml -}}
{{- end }}

{{/* The ConfigMaps of static sources that are asked: namespace → names. */}}
{{- define "csr.lists" -}}
{{- $lists := dict -}}
{{- if include "csr.components" . | fromYamlArray -}}
{{- range ((.Values.config.approval | default dict).inventory | default dict).sources -}}
{{- with (.static | default dict).configMap -}}
{{- $parts := splitn "/" 2 . -}}
{{- $_ := set $lists $parts._0 (append (index $lists $parts._0 | default list) $parts._1 | uniq) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $lists | toYaml -}}
{{- end }}

{{/* Not empty where CAs are rotated. */}}
{{- define "csr.rotation" -}}
{{- if (.Values.config.rotation | default dict).enabled -}}true{{- end -}}
{{- end }}

{{/* The signers that are not Kubernetes' own. */}}
{{- define "csr.custom" -}}
{{- $names := list -}}
{{- range (.Values.config.signing | default dict).signers -}}
{{- if not (hasPrefix "kubernetes.io/" .name) -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end -}}
{{- $names | toYaml -}}
{{- end }}

{{/* The signers with approval rules. */}}
{{- define "csr.ruled" -}}
{{- $names := list -}}
{{- range (.Values.config.approval | default dict).rules -}}
{{- $names = append $names .signerName | uniq -}}
{{- end -}}
{{- $names | toYaml -}}
{{- end }}

{{/* Not empty if a controller is only to say what it would do: takes a list of the root context and the controller's name. */}}
{{- define "csr.dry" -}}
{{- $names := dict
  "approver" (list "*" "approver" "csrapproving" "certificatesigningrequest-approving-controller")
  "signer" (list "*" "signer" "csrsigning" "certificatesigningrequest-signing-controller")
  "cleaner" (list "*" "cleaner" "csrcleaner" "certificatesigningrequest-cleaner-controller")
  "rotation" (list "*" "rotation")
-}}
{{- range (index . 0).Values.config.dryRun -}}
{{- if has . (index $names (index $ 1)) -}}dry{{- end -}}
{{- end -}}
{{- end }}

{{/* The rules of a controller's role, without those to write to requests in a dry run: takes a list of the root context, the
controller's name and the role. */}}
{{- define "csr.rules" -}}
{{- $dry := include "csr.dry" (list (index . 0) (index . 1)) -}}
{{- $rules := list -}}
{{- range (index . 2).rules -}}
{{- if not $dry -}}
{{- $rules = append $rules . -}}
{{- else if not (or (has "signers" .resources) (has "certificatesigningrequests/approval" .resources) (has "certificatesigningrequests/status" .resources)) -}}
{{- $rules = append $rules (set . "verbs" (without .verbs "delete")) -}}
{{- end -}}
{{- end -}}
{{- $rules | toYaml -}}
{{- end }}

{{/* An object of RBAC or of the rotation as hosted.cluster needs it, or nothing: takes a list of the root context and the object.
config/hosted has the same rules. */}}
{{- define "csr.here" -}}
{{- $root := index . 0 -}}
{{- $obj := index . 1 -}}
{{- $cluster := $root.Values.hosted.cluster -}}
{{- $name := $obj.metadata.name -}}
{{- $namespace := $obj.metadata.namespace | default "" -}}
{{- $rbac := regexMatch "Role(Binding)?$" $obj.kind -}}
{{- $shared := or (eq $obj.kind "CustomResourceDefinition") (hasPrefix "ValidatingAdmissionPolicy" $obj.kind) (regexMatch "^csr-(metrics-reader|signing-authorities-.*|rotation-operator)$" $name) -}}
{{- $ours := eq $namespace $root.Release.Namespace -}}
{{- $home := or $shared (not $rbac) (and $ours (not (regexMatch "^csr-(node-block-list|block-list-|inventory-)" $name))) (and (ne $namespace "kube-system") (has $name (list "csr-rotation" "csr-metrics-auth"))) -}}
{{- $served := or (eq $obj.kind "ServiceAccount") (and $rbac (or (not $home) (and (eq $name "csr-rotation") (eq $namespace "")))) -}}
{{- if and $cluster (eq $name "csr-rotation") (not $ours) $obj.rules -}}
{{- $rules := list -}}
{{- range $obj.rules -}}
{{- if eq (eq $cluster "home") (or (has "csr-controller-manager.io" .apiGroups) (has "events.k8s.io" .apiGroups)) -}}
{{- $rules = append $rules . -}}
{{- end -}}
{{- end -}}
{{- if or (eq $cluster "home") (ne $namespace "kube-system") -}}{{- $_ := set $obj "rules" $rules -}}{{- end -}}
{{- end -}}
{{- if and (eq $cluster "home") $rbac (not $shared) (not $ours) -}}{{/* several tenants have such objects */}}
{{- $_ := set $obj.metadata "name" (printf "%s-%s" $name $root.Release.Namespace) -}}
{{- if $obj.roleRef -}}{{- $_ := set $obj.roleRef "name" (printf "%s-%s" $obj.roleRef.name $root.Release.Namespace) -}}{{- end -}}
{{- end -}}
{{- if or (eq $cluster "") (and (eq $cluster "served") $served) (and (eq $cluster "home") $home (or $root.Values.hosted.definitions (not $shared))) -}}
{{- toYaml $obj -}}
{{- end -}}
{{- end }}
