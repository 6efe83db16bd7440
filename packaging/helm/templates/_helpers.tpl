{{- define "hansa.name" -}}
{{ .Release.Name }}-{{ .Values.role }}
{{- end -}}

{{- define "hansa.labels" -}}
app.kubernetes.io/name: hansa
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ .Values.role }}
{{- end -}}

{{- define "hansa.check" -}}
{{- if not (has .Values.role (list "coordinator" "silo")) -}}
{{- fail (printf "role is %q: it must be coordinator or silo" .Values.role) -}}
{{- end -}}
{{- if and (eq .Values.role "coordinator") (not .Values.coordinator.federation) -}}
{{- fail "coordinator.federation is empty: give the federation file with --set-file coordinator.federation=federation.yaml" -}}
{{- end -}}
{{- end -}}
