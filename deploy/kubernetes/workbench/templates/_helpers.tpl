{{/* Names. A pod's host name is a label of DNS: 63 characters, of which -worker-<index> takes its part. */}}
{{- define "workbench.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "workbench.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "workbench.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "workbench.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "workbench.selector" -}}
app.kubernetes.io/name: {{ include "workbench.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "workbench.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "workbench.selector" . }}
{{- end }}

{{- define "workbench.image" -}}
{{- if .Values.image.digest }}
{{- .Values.image.repository }}@{{ .Values.image.digest }}
{{- else }}
{{- .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}
{{- end }}

{{- define "workbench.secret" -}}
{{- .Values.ssh.existingSecret | default (printf "%s-ssh" (include "workbench.fullname" .)) }}
{{- end }}

{{/* Ranks in each worker: as said, else its GPUs, else 1. */}}
{{- define "workbench.slots" -}}
{{- $gpus := dig "limits" .Values.gpuResource 0 .Values.resources | int }}
{{- .Values.worker.slots | default $gpus | default 1 | int }}
{{- end }}

{{/* The most workers that there may be, and the fewest with which the launcher begins. */}}
{{- define "workbench.most" -}}
{{- ternary .Values.elastic.max .Values.worker.number .Values.elastic.enabled | int }}
{{- end }}

{{- define "workbench.least" -}}
{{- ternary .Values.elastic.min .Values.worker.number .Values.elastic.enabled | int }}
{{- end }}

{{/* The Service that gives a worker an address when it is ready. */}}
{{- define "workbench.workerService" -}}
{{- include "workbench.fullname" . }}-worker
{{- end }}

{{- /*
A worker's name without its index. A Job's template cannot be changed, so a Job's name has a hash of it: after helm upgrade
with another image there is a new Job, and the old one is deleted. How many workers there are is no part of it.
*/}}
{{- define "workbench.worker" -}}
{{- include "workbench.workerService" . }}
{{- if eq .Values.worker.kind "Job" }}-{{ include "workbench.workerTemplate" . | sha256sum | trunc 8 }}{{ end }}
{{- end }}

{{/* A quantity as a number: 2, 500m, 4Gi. */}}
{{- define "workbench.quantity" -}}
{{- $text := toString . }}
{{- $number := regexFind "^[0-9.]+(e[+-]?[0-9]+)?" $text }}
{{- $units := dict "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 }}
{{- printf "%f" (mulf $number (dig (trimPrefix $number $text) 1 $units)) }}
{{- end }}

{{/* The size of a pod's /dev/shm: as said, but not above the memory of its container's limits. */}}
{{- define "workbench.shmSize" -}}
{{- $size := .root.Values.shmSize }}
{{- $memory := dig "limits" "memory" $size .resources }}
{{- if gt (include "workbench.quantity" $size | float64) (include "workbench.quantity" $memory | float64) }}
{{- $memory }}
{{- else }}
{{- $size }}
{{- end }}
{{- end }}

{{/* What all pods have: user, restrictions, and what is writable. Of root, and the resources of the pod's container. */}}
{{- define "workbench.podSpec" -}}
{{- $values := .root.Values }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- if $values.useHostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- if $values.useHostPID }}
hostPID: true
{{- end }}
{{- with $values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ $values.podSecurity.user | int64 }}
  runAsGroup: {{ $values.podSecurity.group | int64 }}
  fsGroup: {{ $values.podSecurity.group | int64 }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
volumes:
  - name: scratch
    emptyDir:
      sizeLimit: {{ $values.scratchSize }}
  - name: shm
    emptyDir:
      medium: Memory
      sizeLimit: {{ include "workbench.shmSize" . }}
  - name: ssh
    secret:
      secretName: {{ include "workbench.secret" .root }}
      defaultMode: 0440
  - name: job
    configMap:
      name: {{ include "workbench.fullname" .root }}-job
      defaultMode: 0555
{{- if $values.files }}
  - name: files
    configMap:
      name: {{ include "workbench.fullname" .root }}-files
      defaultMode: 0444
{{- end }}
{{- with $values.volumes }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}

{{/* Of a container: root, and capabilities that it has in spite of all. A file's capability is an escalation. */}}
{{- define "workbench.security" -}}
allowPrivilegeEscalation: {{ empty .capabilities | ternary "false" "true" }}
privileged: false
readOnlyRootFilesystem: {{ .root.Values.podSecurity.readOnlyRootFilesystem }}
runAsNonRoot: true
capabilities:
  drop: [ALL]
  {{- with .capabilities }}
  add: {{ toJson . }}
  {{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "workbench.mounts" -}}
- {name: scratch, mountPath: /tmp, subPath: tmp}
{{- range tuple ".ssh" ".cache" ".config" ".local" ".ipython" ".jupyter" }}
- {name: scratch, mountPath: /home/workbench/{{ . }}, subPath: {{ trimPrefix "." . }}}
{{- end }}
- {name: shm, mountPath: /dev/shm}
- {name: ssh, mountPath: /etc/workbench/ssh, readOnly: true}
- {name: job, mountPath: /etc/workbench/job, readOnly: true}
{{- if .Values.files }}
- {name: files, mountPath: /etc/workbench/files, readOnly: true}
{{- end }}
{{- with .Values.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "workbench.sshEnv" -}}
{{- if ne (int .Values.ssh.port) 2222 }}
- name: WORKBENCH_SSH_PORT
  value: {{ .Values.ssh.port | quote }}
{{- end }}
{{- end }}

{{/* Where pods go: of worker, launcher or jupyter. */}}
{{- define "workbench.placement" -}}
{{- $found := dict }}
{{- $part := . }}
{{- range tuple "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" "runtimeClassName" "schedulerName" }}
{{- if get $part . }}{{ $_ := set $found . (get $part .) }}{{ end }}
{{- end }}
{{- if $found }}{{ toYaml $found }}{{ end }}
{{- end }}

{{/* Labels and annotations of a pod template: root, part, and the part's values. */}}
{{- define "workbench.podMetadata" -}}
labels:
  {{- include "workbench.selector" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .part }}
  {{- with .values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .values.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
