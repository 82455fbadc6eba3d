{{/* A configuration as YAML, one flag a line. JSON on the right: Helm's numbers are floats, and its
YAML would print a million as 1e+06. */}}
{{- define "vllm-sim.lines" -}}
{{- $lines := list -}}
{{- range $flag, $value := . -}}
{{- $lines = append $lines (printf "%s: %s" $flag (toJson $value)) -}}
{{- end -}}
{{- join "\n" $lines -}}
{{- end }}

{{/* Ports of a server container. Arguments: root, port. */}}
{{- define "vllm-sim.containerPorts" -}}
{{- $port := int .port }}
{{- range $rank := until (int (include "vllm-sim.portRanks" .root)) }}
- name: {{ if $rank }}{{ printf "http-%d" $rank }}{{ else }}http{{ end }}
  containerPort: {{ add $port $rank }}
  protocol: TCP
{{- end }}
{{- if .root.Values.grpc.port }}
- name: grpc
  containerPort: {{ int .root.Values.grpc.port }}
  protocol: TCP
{{- end }}
{{- if and .root.Values.kvEvents.enabled (not .root.Values.kvEvents.connectTo) }}
{{- range $rank := until (int .root.Values.dataParallel.size) }}
- name: {{ if $rank }}{{ printf "kv-events-%d" $rank }}{{ else }}kv-events{{ end }}
  containerPort: {{ add (int $.root.Values.kvEvents.port) $rank }}
  protocol: TCP
{{- end }}
{{- end }}
{{- if and .root.Values.kvEvents.enabled .root.Values.kvEvents.replayPort }}
{{- range $rank := until (int .root.Values.dataParallel.size) }}
- name: {{ if $rank }}{{ printf "kv-replay-%d" $rank }}{{ else }}kv-replay{{ end }}
  containerPort: {{ add (int $.root.Values.kvEvents.replayPort) $rank }}
  protocol: TCP
{{- end }}
{{- end }}
{{- end }}

{{/* The server. Arguments: root, port, file (of the ConfigMap), resources. */}}
{{- define "vllm-sim.container" -}}
{{- $v := .root.Values }}
{{- $ranked := and (eq $v.dataParallel.mode "pods") (gt (int $v.dataParallel.size) 1) }}
- name: vllm-sim
  image: {{ include "vllm-sim.image" .root }}
  imagePullPolicy: {{ $v.image.pullPolicy }}
  {{- with $v.command }}
  command:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  args:
    {{- if or $v.args $v.command }}
    {{- toYaml $v.args | nindent 4 }}
    {{- else }}
    {{- if $v.existingConfigMap }}
    - --config
    - /etc/vllm-sim/base/config.yaml
    {{- end }}
    - --config
    - /etc/vllm-sim/{{ .file }}
    {{- if $ranked }}
    - --data-parallel-rank=$(DP_RANK)
    {{- end }}
    {{- range $v.extraArgs }}
    - {{ . | quote }}
    {{- end }}
    {{- end }}
  env:
    {{- include "vllm-sim.env" .root | trim | nindent 4 }}
    {{- if $ranked }}
    - name: DP_RANK
      valueFrom:
        fieldRef:
          fieldPath: metadata.labels['apps.kubernetes.io/pod-index']
    {{- end }}
  {{- with $v.extraEnvFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    {{- include "vllm-sim.containerPorts" . | trim | nindent 4 }}
  startupProbe:
    {{- include "vllm-sim.probe" (dict "root" .root "path" "/health" "port" "http" "settings" $v.startupProbe) | trim | nindent 4 }}
  livenessProbe:
    {{- include "vllm-sim.probe" (dict "root" .root "path" "/health" "port" "http" "settings" $v.livenessProbe) | trim | nindent 4 }}
  readinessProbe:
    {{- include "vllm-sim.probe" (dict "root" .root "path" "/health/ready" "port" "http" "settings" $v.readinessProbe) | trim | nindent 4 }}
  {{- with int $v.preStopSleepSeconds }}
  lifecycle:
    preStop:
      sleep:
        seconds: {{ . }}
  {{- end }}
  resources:
    {{- toYaml (.resources | default $v.resources) | nindent 4 }}
  securityContext:
    {{- toYaml $v.securityContext | nindent 4 }}
  volumeMounts:
    - name: config
      mountPath: /etc/vllm-sim
      readOnly: true
    {{- if $v.existingConfigMap }}
    - name: base-config
      mountPath: /etc/vllm-sim/base
      readOnly: true
    {{- end }}
    - name: tmp
      mountPath: /tmp
    {{- if $v.tls.existingSecret }}
    - name: tls
      mountPath: /etc/vllm-sim/tls
      readOnly: true
    {{- end }}
    {{- if $v.dataset.enabled }}
    - name: dataset
      mountPath: {{ dir $v.dataset.path }}
      readOnly: {{ not $v.dataset.download.url }}
    {{- end }}
    {{- if $v.modelVolume.existingClaim }}
    - name: models
      mountPath: {{ $v.modelVolume.mountPath }}
      readOnly: true
    {{- end }}
    {{- if $v.huggingFace.cache }}
    - name: huggingface
      mountPath: /home/nonroot/huggingface
    {{- end }}
    {{- with $v.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* llm-d's routing side-car, as a native side-car. */}}
{{- define "vllm-sim.routingSidecar" -}}
{{- $s := .Values.disaggregation.sidecar }}
- name: routing-proxy
  image: {{ $s.image | default (ternary "ghcr.io/llm-d/llm-d-routing-sidecar:v0.7.1" "ghcr.io/llm-d/llm-d-router-disagg-sidecar:v0.10.0" .Values.llmd.legacyNames) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  args:
    - --port={{ include "vllm-sim.port" . }}
    - --vllm-port={{ int .Values.disaggregation.decodePort }}
    - --kv-connector={{ $s.connector }}
    {{- $ranks := int (include "vllm-sim.portRanks" .) }}
    {{- if gt $ranks 1 }}
    - --data-parallel-size={{ $ranks }}
    {{- end }}
    - --secure-proxy=false
    {{- if include "vllm-sim.tls" . }}
    - --enable-tls=decoder,prefiller
    - --tls-insecure-skip-verify=decoder,prefiller
    {{- end }}
    {{- range $s.extraArgs }}
    - {{ . | quote }}
    {{- end }}
  ports:
    {{- $port := int (include "vllm-sim.port" .) }}
    {{- range $rank := until $ranks }}
    - name: {{ if $rank }}{{ printf "proxy-%d" $rank }}{{ else }}proxy{{ end }}
      containerPort: {{ add $port $rank }}
      protocol: TCP
    {{- end }}
  {{- with $s.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml .Values.securityContext | nindent 4 }}
{{- end }}

{{/* A pod template's `metadata` and `spec`. Arguments: root, role (both, decode, prefill), port,
file, resources. */}}
{{- define "vllm-sim.podTemplate" -}}
{{- $v := .root.Values }}
{{- $decode := eq .role "decode" }}
metadata:
  annotations:
    checksum/config: {{ include (print .root.Template.BasePath "/configmap.yaml") .root | sha256sum }}
    {{- if $v.monitoring.annotations }}
    prometheus.io/scrape: "true"
    prometheus.io/port: {{ .port | quote }}
    prometheus.io/path: /metrics
    {{- if include "vllm-sim.tls" .root }}
    prometheus.io/scheme: https
    {{- end }}
    {{- end }}
    {{- with $v.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  labels:
    {{- include "vllm-sim.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ ternary "server" .role (eq .role "both") }}
    llm-d.ai/role: {{ .role }}
    {{ ternary "llm-d.ai/inferenceServing" "llm-d.ai/inference-serving" $v.llmd.legacyNames }}: "true"
    {{- with $v.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "vllm-sim.serviceAccount" .root }}
  automountServiceAccountToken: {{ $v.serviceAccount.automountToken }}
  # The variables of a Service called vllm-sim would look like flags of the program.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ int $v.terminationGracePeriodSeconds }}
  {{- with $v.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $v.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- if $v.hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- with $v.dnsConfig }}
  dnsConfig:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml $v.podSecurityContext | nindent 4 }}
  {{- $download := and $v.dataset.enabled $v.dataset.download.url }}
  {{- if or $decode $download $v.initContainers }}
  initContainers:
    {{- if $download }}
    {{- include "vllm-sim.download" .root | trim | nindent 4 }}
    {{- end }}
    {{- if $decode }}
    {{- include "vllm-sim.routingSidecar" .root | trim | nindent 4 }}
    {{- end }}
    {{- with $v.initContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    {{- include "vllm-sim.container" . | trim | nindent 4 }}
    {{- with $v.sidecars }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ include "vllm-sim.fullname" .root }}
    {{- if $v.existingConfigMap }}
    - name: base-config
      configMap:
        name: {{ $v.existingConfigMap }}
    {{- end }}
    - name: tmp
      emptyDir:
        sizeLimit: 64Mi
    {{- if $v.tls.existingSecret }}
    - name: tls
      secret:
        secretName: {{ $v.tls.existingSecret }}
        defaultMode: 0440
    {{- end }}
    {{- if $v.dataset.enabled }}
    - name: dataset
      {{- if $v.dataset.existingClaim }}
      persistentVolumeClaim:
        claimName: {{ $v.dataset.existingClaim }}
        readOnly: {{ not $v.dataset.download.url }}
      {{- else }}
      emptyDir:
        sizeLimit: {{ $v.dataset.download.sizeLimit }}
      {{- end }}
    {{- end }}
    {{- if $v.modelVolume.existingClaim }}
    - name: models
      persistentVolumeClaim:
        claimName: {{ $v.modelVolume.existingClaim }}
        readOnly: true
    {{- end }}
    {{- if $v.huggingFace.cache }}
    - name: huggingface
      emptyDir:
        sizeLimit: {{ $v.huggingFace.cacheSizeLimit }}
    {{- end }}
    {{- with $v.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $v.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range . }}
    - {{ toYaml . | nindent 6 | trim }}
      {{- if not .labelSelector }}
      labelSelector:
        matchLabels:
          {{- include "vllm-sim.selectorLabels" $.root | nindent 10 }}
          llm-d.ai/role: {{ $.role }}
      {{- end }}
    {{- end }}
  {{- end }}
{{- end }}

{{/* Fetches the dataset before the server starts; a file that is there and right stays. */}}
{{- define "vllm-sim.download" -}}
{{- $d := .Values.dataset }}
- name: dataset
  image: {{ $d.download.image }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command:
    - sh
    - -ec
    - |
      check() { [ -z "$SHA256" ] || echo "$SHA256  $1" | sha256sum -c -; }
      if [ -s "$FILE" ] && check "$FILE"; then exit 0; fi
      curl --fail --location --retry 5 --retry-all-errors --output "$FILE.part" "$URL"
      check "$FILE.part"
      mv "$FILE.part" "$FILE"
  env:
    - name: URL
      value: {{ $d.download.url | quote }}
    - name: SHA256
      value: {{ $d.download.sha256 | quote }}
    - name: FILE
      value: {{ $d.path | quote }}
  securityContext:
    {{- toYaml .Values.securityContext | nindent 4 }}
  volumeMounts:
    - name: dataset
      mountPath: {{ dir $d.path }}
{{- end }}
