{{- define "answerd.name" -}}{{ .Release.Name | trunc 53 | trimSuffix "-" }}{{- end -}}

{{- define "answerd.selector" -}}
app.kubernetes.io/name: answerd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "answerd.labels" -}}
{{ include "answerd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "answerd.natsSelector" -}}
app.kubernetes.io/name: nats
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "answerd.natsLabels" -}}
{{ include "answerd.natsSelector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "answerd.secret" -}}{{ .Values.existingSecret | default (include "answerd.name" .) }}{{- end -}}

{{- /* A setting as text. Numbers of values are floating-point, and toString writes 1e+07 for 10000000. */ -}}
{{- define "answerd.text" -}}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end -}}

{{- /*
Settings that values can change, as YAML. SHUTDOWN_DELAY: a Service removes a pod some seconds after the pod was
told to end. ALLOWED_HOSTS: the Service's names, and those that kubectl port-forward is asked by.
*/ -}}
{{- define "answerd.settings" -}}
{{- $name := include "answerd.name" . -}}
{{- $hosts := printf "%[1]s,%[1]s.%[2]s,%[1]s.%[2]s.svc,%[1]s.%[2]s.svc.cluster.local,localhost,127.0.0.1" $name .Release.Namespace -}}
{{- $settings := dict "SHUTDOWN_DELAY" "5s" -}}
{{- range $key, $value := .Values.settings }}{{ $_ := set $settings $key (include "answerd.text" $value) }}{{ end -}}
{{- with get $settings "ALLOWED_HOSTS" }}{{ $hosts = printf "%s,%s" $hosts . }}{{ end -}}
{{- $_ := set $settings "ALLOWED_HOSTS" $hosts -}}
{{- if .Values.nats.enabled }}{{ $_ := set $settings "EVENTS_URL" (printf "nats://%s-nats:4222" $name) }}{{ end -}}
{{- toYaml $settings -}}
{{- end -}}

{{- /* Where probes ask. With TLS_CERT_FILE the port has https and no http; Kubernetes does not check the certificate. */ -}}
{{- define "answerd.probePort" -}}port: http{{ if .Values.settings.TLS_CERT_FILE }}, scheme: HTTPS{{ end }}{{- end -}}
