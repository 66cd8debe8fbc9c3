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

{{/* A worker's name without its index, and the Service that gives it an address when it is ready. */}}
{{- define "workbench.worker" -}}
{{- include "workbench.fullname" . }}-worker
{{- end }}

{{/* What all pods have: user, restrictions, and what is writable. */}}
{{- define "workbench.podSpec" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- if .Values.useHostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- if .Values.useHostPID }}
hostPID: true
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .Values.podSecurity.user | int64 }}
  runAsGroup: {{ .Values.podSecurity.group | int64 }}
  fsGroup: {{ .Values.podSecurity.group | int64 }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
volumes:
  - name: scratch
    emptyDir:
      sizeLimit: {{ .Values.scratchSize }}
  - name: shm
    emptyDir:
      medium: Memory
      sizeLimit: {{ .Values.shmSize }}
  - name: ssh
    secret:
      secretName: {{ include "workbench.secret" . }}
      defaultMode: 0440
  - name: job
    configMap:
      name: {{ include "workbench.fullname" . }}-job
      defaultMode: 0555
{{- if .Values.files }}
  - name: files
    configMap:
      name: {{ include "workbench.fullname" . }}-files
      defaultMode: 0444
{{- end }}
{{- with .Values.volumes }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}

{{- define "workbench.security" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: {{ .Values.podSecurity.readOnlyRootFilesystem }}
runAsNonRoot: true
capabilities:
  drop: [ALL]
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
{{- range tuple "nodeSelector" "tolerations" "affinity" "priorityClassName" }}
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
