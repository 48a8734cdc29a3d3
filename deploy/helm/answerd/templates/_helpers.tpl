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
