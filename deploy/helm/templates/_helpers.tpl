{{- /* A release that is not called quorumbook puts its name before all others. */ -}}
{{- define "prefix" -}}
{{- if ne .Release.Name "quorumbook" }}{{ .Release.Name }}-{{ end -}}
{{- end -}}

{{- define "image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- /* What the ports of a pod's second bookie and of further ones are called; takes 0, 1, … */ -}}
{{- define "nth" -}}
{{- if . }}-{{ add1 . }}{{ end -}}
{{- end -}}

{{- /* What all objects carry; takes a dict of root and component. */ -}}
{{- define "labels" -}}
app.kubernetes.io/name: quorumbook
{{- if ne .root.Release.Name "quorumbook" }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{- define "metadata" -}}
name: {{ include "prefix" .root }}{{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "labels" (dict "root" .root) | nindent 2 }}
{{- end -}}

{{- /* Of what is there before everything else; a job cannot be changed, so it is made again. */ -}}
{{- define "first" -}}
annotations:
  helm.sh/hook: pre-install,pre-upgrade
  helm.sh/hook-weight: {{ . | quote }}
  helm.sh/hook-delete-policy: before-hook-creation
{{- end -}}

{{- define "pod-security" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "container-security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{- define "pull" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - { name: {{ . }} }
  {{- end }}
{{- end }}
{{- end -}}

{{- /* Where pods go; takes the values of one of bookies, recovery, admin. */ -}}
{{- define "where" -}}
{{- range $name := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $ $name }}
{{ $name }}: {{ toRawJson . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "volumes" -}}
- name: config
  configMap: { name: {{ include "prefix" .root }}quorumbook }
- name: tls
  secret: { secretName: {{ include "prefix" .root }}{{ .tls }}, defaultMode: 0440 }
- name: http
  secret: { secretName: {{ include "prefix" .root }}http-token, defaultMode: 0440 }
{{- end -}}

{{- define "mounts" -}}
- { name: config, mountPath: /etc/quorumbook }
- { name: tls, mountPath: /tls, readOnly: true }
- { name: http, mountPath: /http, readOnly: true }
{{- end -}}

{{- /* Names by which the service of the admin server is asked for. */ -}}
{{- define "admin-names" -}}
{{- $name := printf "%sadmin" (include "prefix" .) -}}
{{- $host := printf "%s.%s.svc" $name .Release.Namespace -}}
{{- concat (list $name $host (printf "%s.%s" $host .Values.clusterDomain)) .Values.admin.names | toRawJson -}}
{{- end -}}

{{- /* What quorumbook.toml says if `config` says nothing. */ -}}
{{- define "config" -}}
metadata:
  uri: {{ .Values.metadata.uri | quote }}
tls:
  enabled: true
  require: true
  client_authentication: true
  ca_file: /tls/ca.crt
  certificate_file: /tls/tls.crt
  key_file: /tls/tls.key
bookie:
  host: 0.0.0.0
  # Who may come in: certificates with one of these roles.
  auth_plugin: certificate-role
  authorized_roles: [cluster, client]
storage:
  journal_directories: [/journal/journal]
  ledger_directories: [/ledgers/ledgers]
http:
  host: 0.0.0.0
  port: 8080
  # Changes over HTTP carry this.
  token_file: /http/token
{{- if .Values.admin.enabled }}
admin:
  host: 0.0.0.0
  port: 8085
  names: {{ include "admin-names" . }}
  certificate_file: /tls/tls.crt
  key_file: /tls/tls.key
  token_file: /tokens/tokens.json
{{- end }}
{{- end -}}

{{- define "environment" -}}
{{- range $name, $value := .Values.environment }}
- { name: {{ $name | quote }}, value: {{ $value | quote }} }
{{- end }}
{{- end -}}
