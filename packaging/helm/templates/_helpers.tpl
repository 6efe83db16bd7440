{{- define "hansa.name" -}}
{{ .Release.Name }}-{{ .Values.role }}
{{- end -}}

{{- define "hansa.labels" -}}
app.kubernetes.io/name: hansa
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ .Values.role }}
{{- end -}}

{{- define "hansa.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "hansa.check" -}}
{{- if not (has .Values.role (list "coordinator" "region" "silo")) -}}
{{- fail (printf "role is %q: it must be coordinator, region or silo" .Values.role) -}}
{{- end -}}
{{- if eq .Values.role "coordinator" -}}
{{- with .Values.coordinator -}}
{{- if and (not .federation) (not .queue) -}}
{{- fail "the coordinator has nothing to run: set coordinator.queue=true for a standing one, or give the federation file of one run with --set-file coordinator.federation=federation.yaml" -}}
{{- end -}}
{{- if and .federation .queue -}}
{{- fail "coordinator.queue and coordinator.federation exclude each other: leave out the file, and submit it to the queue with 'hansa submit'" -}}
{{- end -}}
{{- if and .prune.days (not .queue) -}}
{{- fail "coordinator.prune.days needs coordinator.queue=true: one run is kept as it is" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.role "region") .Values.region.data.claim (not .Values.region.policy) -}}
{{- fail "the region has data and no policy: give one with --set-file region.policy=policy.yaml" -}}
{{- end -}}
{{- end -}}

{{- /* What every pod has: no privileges, no token of the cluster's API, no variables for other Services. */ -}}
{{- define "hansa.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {name: {{ . }}}
  {{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "hansa.user" -}}
runAsNonRoot: true
{{- with .Values.user }}
runAsUser: {{ int . }}
fsGroup: {{ int . }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
{{- end -}}

{{- define "hansa.unprivileged" -}}
{allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}
{{- end -}}

{{- define "hansa.environment" -}}
{{- $values := dict -}}
{{- if ne .Values.role "coordinator" -}}
{{- with (index .Values .Values.role).proxy }}{{ $_ := set $values "HANSA_PROXY" . }}{{ end -}}
{{- end -}}
{{- $values = merge (dict) .Values.env $values -}}
{{- $webhook := and (eq .Values.role "coordinator") .Values.coordinator.webhook.secret -}}
{{- if or $values $webhook }}
env:
  {{- range $name, $value := $values }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
  {{- end }}
  {{- if $webhook }}
  - {name: HANSA_WEBHOOK_URL, valueFrom: {secretKeyRef: {name: {{ $webhook }}, key: url}}}
  - {name: HANSA_WEBHOOK_SECRET, valueFrom: {secretKeyRef: {name: {{ $webhook }}, key: secret}}}
  {{- end }}
{{- end }}
{{- with .Values.envSecrets }}
envFrom:
  {{- range . }}
  - secretRef: {name: {{ . }}}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* The options of a member below a coordinator, which the page of a silo shares: what it may release, and its model. */ -}}
{{- define "hansa.member" -}}
{{- $member := index .Values .Values.role -}}
{{- if or (eq .Values.role "silo") $member.policy }}
- --policy=/etc/hansa/config/policy.yaml
{{- end }}
{{- if .Values.model.claim }}
- --model={{ .Values.model.path }}
{{- end }}
{{- range $name, $text := .Values.plugins }}
- --plugins=/etc/hansa/config/{{ $name }}.py
{{- end }}
{{- end -}}

{{- define "hansa.data" -}}
{{- range .files }}
- --data={{ $.path }}/{{ . }}
{{- else }}
- --data={{ .path }}
{{- end }}
{{- end -}}

{{- define "hansa.arguments" -}}
{{- $node := index .Values .Values.role -}}
{{- if eq .Values.role "silo" }}
- join
- /var/lib/hansa/kit
{{- include "hansa.data" $node.data }}
{{- include "hansa.member" . }}
- --at-once={{ $node.atOnce }}
- --threads={{ $node.threads }}
{{- with $node.processes }}
- --processes={{ . }}
{{- end }}
{{- else }}
- serve
{{- if and (eq .Values.role "coordinator") .Values.coordinator.federation }}
- /etc/hansa/config/federation.yaml
{{- end }}
- --kit=/var/lib/hansa/kit
{{- if and (eq .Values.role "coordinator") .Values.coordinator.queue }}
- --queue=/var/lib/hansa/runs
- --at-once={{ $node.atOnce }}
{{- else }}
- --out=/var/lib/hansa/runs/{{ .Values.role | eq "region" | ternary "region" "run" }}
{{- end }}
- --listen={{ $node.listen }}
{{- with .Values.nats.url }}
- --nats={{ . }}
{{- end }}
{{- if eq .Values.role "region" }}
{{- if $node.data.claim }}
{{- include "hansa.data" $node.data }}
{{- end }}
{{- include "hansa.member" . }}
{{- else }}
{{- if $node.accounts.secret }}
- --accounts=/etc/hansa/accounts/accounts.json
{{- end }}
{{- if $node.tls.secret }}
- --certificate=/etc/hansa/tls/tls.crt
- --key=/etc/hansa/tls/tls.key
{{- end }}
{{- if $node.webhook.secret }}
- --webhook=$(HANSA_WEBHOOK_URL)
{{- end }}
{{- end }}
{{- end }}
{{- if and (ne .Values.role "coordinator") $node.trust }}
- --trust=/etc/hansa/config/trust.pem
{{- end }}
- --health=0.0.0.0:8642
{{- include "hansa.log" . }}
{{- end -}}

{{- define "hansa.log" }}
- --log-level={{ .Values.log.level }}
- --log-format={{ .Values.log.format }}
{{- end -}}

{{- /* Volumes and where they are mounted: a list of [name, path, read-only, source] as YAML. */ -}}
{{- define "hansa.volumes" -}}
- {name: state, path: /var/lib/hansa, source: {persistentVolumeClaim: {claimName: {{ include "hansa.name" . }}}}}
- {name: kit, path: /etc/hansa/kit, readOnly: true, source: {secret: {secretName: {{ .Values.kit.secret }}, defaultMode: 0440}}}
- {name: config, path: /etc/hansa/config, readOnly: true, source: {configMap: {name: {{ include "hansa.name" . }}}}}
{{- if eq .Values.role "coordinator" }}
{{- with .Values.coordinator.accounts.secret }}
- {name: accounts, path: /etc/hansa/accounts, readOnly: true, source: {secret: {secretName: {{ . }}, defaultMode: 0440}}}
{{- end }}
{{- with .Values.coordinator.tls.secret }}
- {name: tls, path: /etc/hansa/tls, readOnly: true, source: {secret: {secretName: {{ . }}, defaultMode: 0440}}}
{{- end }}
{{- else }}
{{- with (index .Values .Values.role).data }}
{{- if .claim }}
- {name: data, path: {{ .path }}, readOnly: true, source: {persistentVolumeClaim: {claimName: {{ .claim }}, readOnly: true}}}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.model }}
{{- if .claim }}
- {name: model, path: {{ .path }}, readOnly: true, source: {persistentVolumeClaim: {claimName: {{ .claim }}, readOnly: true}}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "hansa.mounts" -}}
{{- range include "hansa.volumes" . | fromYamlArray }}
- {name: {{ .name }}, mountPath: {{ .path }}{{ if .readOnly }}, readOnly: true{{ end }}}
{{- end }}
{{- end -}}
