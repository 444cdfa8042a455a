{{- define "sluice.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "sluice.fullname" -}}
{{- $name := include "sluice.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What selects pods; takes (list $ component). It never changes, since a Deployment's selector cannot. */}}
{{- define "sluice.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "sluice.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "sluice.labels" -}}
{{- $root := index . 0 -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: sluice
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "sluice.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "sluice.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "sluice.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "sluice.secret" -}}
{{- .Values.existingSecret | default (printf "%s-trial" (include "sluice.fullname" .)) -}}
{{- end -}}

{{/* "volume" where every pod mounts a claim; a trial has no bucket. */}}
{{- define "sluice.filesKind" -}}
{{- if .Values.trial.enabled -}}volume{{- else -}}{{ .Values.files.kind }}{{- end -}}
{{- end -}}

{{- define "sluice.filesClaim" -}}
{{- .Values.files.existingClaim | default (printf "%s-files" (include "sluice.fullname" .)) -}}
{{- end -}}

{{- define "sluice.publicUrl" -}}
{{- if .Values.publicUrl -}}
{{- .Values.publicUrl -}}
{{- else if .Values.ingress.enabled -}}
{{- printf "%s://%s" (ternary "https" "http" (ne .Values.ingress.tlsSecret "")) .Values.ingress.host -}}
{{- else -}}
{{- include "sluice.internalUrl" . -}}
{{- end -}}
{{- end -}}

{{- define "sluice.internalUrl" -}}
{{- printf "http://%s-edge.%s.svc:%d" (include "sluice.fullname" .) .Release.Namespace (int .Values.service.port) -}}
{{- end -}}

{{/* Numbers come as floats; a large one would print as 1.048576e+06, which no setting takes. */}}
{{- define "sluice.number" -}}
{{- if eq (float64 (int64 .)) (float64 .) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* Seconds from SIGTERM to exit; takes (list $ name role). A worker finishes the platform's call that it is in. */}}
{{- define "sluice.drainSeconds" -}}
{{- $root := index . 0 -}}
{{- $drain := (index . 2).drainSeconds -}}
{{- if eq (index . 1) "delivery" -}}
{{- $drain = max (int $drain) (add 30 (ceil ($root.Values.limits.call_seconds | default 30))) -}}
{{- end -}}
{{- int $drain -}}
{{- end -}}

{{- define "sluice.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ int .Values.podSecurity.user }}
runAsGroup: {{ int .Values.podSecurity.group }}
fsGroup: {{ int .Values.podSecurity.group }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "sluice.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Secrets by reference; takes (list $ names). */}}
{{- define "sluice.secretEnv" -}}
{{- $root := index . 0 -}}
{{- range index . 1 }}
- name: {{ . }}
  valueFrom:
    secretKeyRef:
      name: {{ include "sluice.secret" $root }}
      key: {{ . }}
{{- end }}
{{- end -}}

{{- define "sluice.roleSecrets" -}}
{{- $names := list "SLUICE_SECRET_KEY" "SLUICE_API_KEY" "SLUICE_BUS_URL" "SLUICE_STATE_URL" "SLUICE_RECORDS_URL" -}}
{{- if eq (include "sluice.filesKind" .) "url" -}}
{{- $names = append $names "SLUICE_FILES_URL" -}}
{{- end -}}
{{- include "sluice.secretEnv" (list . (concat $names .Values.extraSecretKeys)) -}}
{{- end -}}

{{/* What may be written to, beside the files. */}}
{{- define "sluice.scratchMounts" -}}
- name: tmp
  mountPath: /tmp
- name: data
  mountPath: /var/lib/sluice
{{- end -}}

{{- define "sluice.scratchVolumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: 1Gi
- name: data
  emptyDir:
    sizeLimit: 64Mi
{{- end -}}

{{- define "sluice.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* What the schema cannot say, because it is about two values at once. */}}
{{- define "sluice.validate" -}}
{{- if and (not .Values.existingSecret) (not .Values.trial.enabled) -}}
{{- fail "existingSecret: name a Secret with the keys that values.yaml lists, or set trial.enabled for a first try" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) -}}
{{- fail "ingress.host: is needed with ingress.enabled" -}}
{{- end -}}
{{- if and .Values.trial.enabled .Values.existingSecret -}}
{{- fail "trial.enabled: is no use with existingSecret, which names servers of your own" -}}
{{- end -}}
{{- range $name := list "delivery" "aggregator" -}}
{{- $role := mergeOverwrite (deepCopy $.Values.defaults) (deepCopy (index $.Values.roles $name)) -}}
{{- $scaled := index $.Values.keda $name -}}
{{- if gt (int $role.replicas) (int $.Values.partitions) -}}
{{- fail (printf "roles.%s.replicas: more than the %d partitions would idle" $name (int $.Values.partitions)) -}}
{{- end -}}
{{- if $.Values.keda.enabled -}}
{{- if gt (int $scaled.maxReplicas) (int $.Values.partitions) -}}
{{- fail (printf "keda.%s.maxReplicas: more than the %d partitions would idle" $name (int $.Values.partitions)) -}}
{{- end -}}
{{- if gt (int $scaled.minReplicas) (int $scaled.maxReplicas) -}}
{{- fail (printf "keda.%s.minReplicas: is above maxReplicas" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if gt (int .Values.hpa.minReplicas) (int .Values.hpa.maxReplicas) -}}
{{- fail "hpa.minReplicas: is above maxReplicas" -}}
{{- end -}}
{{- end -}}
