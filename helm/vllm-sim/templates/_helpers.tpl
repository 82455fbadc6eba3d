{{- define "vllm-sim.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "vllm-sim.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "vllm-sim.selectorLabels" -}}
app.kubernetes.io/name: {{ include "vllm-sim.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "vllm-sim.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "vllm-sim.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "vllm-sim.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "vllm-sim.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* Whether the values are those of llm-d-inference-sim's chart, which name its image. */}}
{{- define "vllm-sim.fromLlmd" -}}
{{- if hasSuffix "llm-d/llm-d-inference-sim" .Values.image.repository }}true{{ end }}
{{- end }}

{{/* In place of llm-d's image stands the one of this chart. */}}
{{- define "vllm-sim.image" -}}
{{- if include "vllm-sim.fromLlmd" . -}}
ghcr.io/vllm-sim/vllm-sim:{{ .Chart.AppVersion }}
{{- else if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* The keys of a configuration as flag names: maxNumSeqs is max-num-seqs. */}}
{{- define "vllm-sim.flagNames" -}}
{{- $flags := dict -}}
{{- range $key, $value := . -}}
{{- $name := $key | replace "_" "-" -}}
{{- if regexMatch "[A-Z]" $key }}{{ $name = kebabcase $key }}{{ end -}}
{{- $_ := set $flags $name $value -}}
{{- end -}}
{{- toYaml $flags -}}
{{- end }}

{{/* What the chart's own switches say, below what `config` says. */}}
{{- define "vllm-sim.derived" -}}
{{- $v := .Values -}}
{{- $flags := dict -}}
{{- if include "vllm-sim.fromLlmd" . }}{{ $_ := set $flags "compat" "llm-d" }}{{ end -}}
{{- if gt (int $v.dataParallel.size) 1 -}}
  {{- $_ := set $flags "data-parallel-size" (int $v.dataParallel.size) -}}
  {{- if eq $v.dataParallel.mode "onePort" }}{{ $_ := set $flags "cli-mode" "vllm" }}{{ end -}}
{{- end -}}
{{- if $v.kvEvents.enabled -}}
  {{- $endpoint := $v.kvEvents.connectTo | default (printf "tcp://*:%d" (int $v.kvEvents.port)) -}}
  {{- $replay := "" -}}
  {{- if $v.kvEvents.replayPort }}{{ $replay = printf "tcp://*:%d" (int $v.kvEvents.replayPort) }}{{ end -}}
  {{- if eq $v.kvEvents.format "llm-d" -}}
    {{- $_ := set $flags "enable-kvcache" true -}}
    {{- $_ := set $flags "zmq-endpoint" $endpoint -}}
    {{- if $replay }}{{ $_ := set $flags "kv-events-replay-endpoint" $replay }}{{ end -}}
    {{- if $v.kvEvents.topic }}{{ $_ := set $flags "kv-event-topic" $v.kvEvents.topic }}{{ end -}}
  {{- else -}}
    {{- $events := dict "enable_kv_cache_events" true "publisher" "zmq" "endpoint" $endpoint -}}
    {{- if $replay }}{{ $_ := set $events "replay_endpoint" $replay }}{{ end -}}
    {{- if $v.kvEvents.topic }}{{ $_ := set $events "topic" $v.kvEvents.topic }}{{ end -}}
    {{- $_ := set $flags "enable-prefix-caching" true -}}
    {{- $_ := set $flags "kv-events-config" $events -}}
  {{- end -}}
{{- end -}}
{{- if $v.lora.modules -}}
  {{- $_ := set $flags "enable-lora" true -}}
  {{- $_ := set $flags "lora-modules" $v.lora.modules -}}
{{- end -}}
{{- if $v.lora.maxLoras }}{{ $_ := set $flags "max-loras" (int $v.lora.maxLoras) }}{{ end -}}
{{- if $v.tls.existingSecret -}}
  {{- $_ := set $flags "ssl-certfile" "/etc/vllm-sim/tls/tls.crt" -}}
  {{- $_ := set $flags "ssl-keyfile" "/etc/vllm-sim/tls/tls.key" -}}
  {{- $_ := set $flags "enable-ssl-refresh" true -}}
  {{- if $v.tls.clientCertificates -}}
    {{- $_ := set $flags "ssl-ca-certs" "/etc/vllm-sim/tls/ca.crt" -}}
    {{- $_ := set $flags "ssl-cert-reqs" (int $v.tls.clientCertificates) -}}
  {{- end -}}
{{- else if $v.tls.selfSigned -}}
  {{- $_ := set $flags "self-signed-certs" true -}}
{{- end -}}
{{- if $v.disaggregation.enabled -}}
  {{- $_ := set $flags "kv-transfer-config" (dict "kv_connector" "NixlConnector" "kv_role" "kv_both") -}}
{{- end -}}
{{- if $v.grpc.port }}{{ $_ := set $flags "grpc-port" (int $v.grpc.port) }}{{ end -}}
{{- if $v.dataset.enabled -}}
  {{- $_ := set $flags "dataset-path" $v.dataset.path -}}
  {{- if $v.dataset.table }}{{ $_ := set $flags "dataset-table-name" $v.dataset.table }}{{ end -}}
  {{- if $v.dataset.inMemory }}{{ $_ := set $flags "dataset-in-memory" true }}{{ end -}}
{{- end -}}
{{- if not (or $v.existingConfigMap $v.kserve.enabled) }}{{ $_ := set $flags "shutdown-timeout" (include "vllm-sim.drainSeconds" . | int) }}{{ end -}}
{{- if $v.scenario }}{{ $_ := set $flags "scenario" "/etc/vllm-sim/scenario.yaml" }}{{ end -}}
{{- if $v.huggingFace.cache }}{{ $_ := set $flags "hf-home" "/home/nonroot/huggingface" }}{{ end -}}
{{- toYaml $flags -}}
{{- end }}

{{/* Seconds that requests in flight have between SIGTERM and SIGKILL. */}}
{{- define "vllm-sim.drainSeconds" -}}
{{- max 0 (sub (int .Values.terminationGracePeriodSeconds) (add (int .Values.preStopSleepSeconds) 5)) }}
{{- end }}

{{/* The whole configuration: what the chart's switches say, then `config`. */}}
{{- define "vllm-sim.config" -}}
{{- $own := include "vllm-sim.flagNames" .Values.config | fromYaml -}}
{{- $flags := mergeOverwrite (include "vllm-sim.derived" . | fromYaml) $own -}}
{{- if not (hasKey $flags "port") }}{{ $_ := set $flags "port" 8000 }}{{ end -}}
{{- toYaml $flags -}}
{{- end }}

{{/* The port that clients see. */}}
{{- define "vllm-sim.port" -}}
{{- (include "vllm-sim.config" . | fromYaml).port | int -}}
{{- end }}

{{- define "vllm-sim.decodeConfig" -}}
{{- $flags := include "vllm-sim.config" . | fromYaml -}}
{{- $_ := set $flags "port" (int .Values.disaggregation.decodePort) -}}
{{- toYaml $flags -}}
{{- end }}

{{- define "vllm-sim.prefillConfig" -}}
{{- $own := include "vllm-sim.flagNames" .Values.disaggregation.prefill.config | fromYaml -}}
{{- toYaml (mergeOverwrite (include "vllm-sim.config" . | fromYaml) $own) -}}
{{- end }}

{{/* Ranks that have a port of their own in one pod. */}}
{{- define "vllm-sim.portRanks" -}}
{{- if eq .Values.dataParallel.mode "ports" }}{{ int .Values.dataParallel.size }}{{ else }}1{{ end }}
{{- end }}

{{- define "vllm-sim.tls" -}}
{{- if or .Values.tls.selfSigned .Values.tls.existingSecret }}true{{ end }}
{{- end }}

{{- define "vllm-sim.scheme" -}}
{{- if include "vllm-sim.tls" . }}https{{ else }}http{{ end }}
{{- end }}

{{/* A probe. Arguments: root, path, port, settings. A probe cannot show a client certificate. */}}
{{- define "vllm-sim.probe" -}}
{{- if eq (int .root.Values.tls.clientCertificates) 2 }}
tcpSocket:
  port: {{ .port }}
{{- else }}
httpGet:
  path: {{ .path }}
  port: {{ .port }}
  scheme: {{ include "vllm-sim.scheme" .root | upper }}
{{- end }}
{{- with .settings }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "vllm-sim.env" -}}
{{- if .Values.podEnv }}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- end }}
{{- with .Values.apiKey.existingSecret }}
- name: VLLM_API_KEY
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.Values.apiKey.key }}
{{- end }}
{{- with .Values.adminApiKey.existingSecret }}
- name: VLLM_SIM_ADMIN_API_KEY
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.Values.adminApiKey.key }}
{{- end }}
{{- with .Values.huggingFace.existingSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.Values.huggingFace.key }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}
