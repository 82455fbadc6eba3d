{{/* The endpoint picker's pods have a name of their own: neither Service nor pool selects them. */}}
{{- define "vllm-sim.pickerSelector" -}}
app.kubernetes.io/name: {{ include "vllm-sim.name" . }}-epp
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "vllm-sim.pickerLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "vllm-sim.pickerSelector" . }}
app.kubernetes.io/component: endpoint-picker
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What llm-d's picker does unless told otherwise: its own chart's scorers, by role with disaggregation. */}}
{{- define "vllm-sim.pickerConfig" -}}
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: queue-scorer
  - type: kv-cache-utilization-scorer
  - type: prefix-cache-scorer
  - type: lora-affinity-scorer
  - type: max-score-picker
  - type: metrics-data-source
    parameters:
      scheme: {{ include "vllm-sim.scheme" . }}
      path: /metrics
      insecureSkipVerify: true
  - type: core-metrics-extractor
  {{- if .Values.disaggregation.enabled }}
  - type: prefill-filter
  - type: decode-filter
  - type: prefix-based-pd-decider
    parameters:
      nonCachedTokens: 16
  - type: disagg-profile-handler
    parameters:
      deciders:
        prefill: prefix-based-pd-decider
  {{- end }}
schedulingProfiles:
  {{- range $profile := ternary (list "prefill" "decode") (list "default") .Values.disaggregation.enabled }}
  - name: {{ $profile }}
    plugins:
      {{- if ne $profile "default" }}
      - pluginRef: {{ $profile }}-filter
      {{- end }}
      - pluginRef: queue-scorer
        weight: 2
      - pluginRef: kv-cache-utilization-scorer
        weight: 2
      - pluginRef: prefix-cache-scorer
        weight: 3
      - pluginRef: lora-affinity-scorer
        weight: 1
      - pluginRef: max-score-picker
  {{- end }}
{{- end }}
