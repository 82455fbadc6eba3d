{{/* What an installation is told beside its address. */}}
{{- define "vllm-sim.notes" -}}
{{- with .Values.vllmRender }}

vllmRender has no effect: tokenising and rendering happen in the server itself.
{{- end }}
{{- if include "vllm-sim.fromLlmd" . }}

image.repository names llm-d's image. The pods get {{ include "vllm-sim.image" . }} in its place
(image.tag and image.digest, which are llm-d's, are not used) and speak llm-d's wire: compat is llm-d.
{{- if not .Values.nameOverride }}
llm-d's chart labels its pods app.kubernetes.io/name: llm-d-inference-sim, this one {{ include "vllm-sim.name" . }}:
selectors elsewhere that name the former (an InferencePool, a ServiceMonitor, a NetworkPolicy) find no
pod. nameOverride: llm-d-inference-sim keeps the label, and the names of the objects.
{{- end }}
An upgrade of a release of llm-d's chart is refused by Kubernetes, as its selectors cannot change and
this chart's hold llm-d.ai/role too: uninstall it first.
{{- end }}
{{- if and .Values.networkPolicy.enabled (not .Values.kserve.enabled) }}

The network policy lets in {{ if .Values.networkPolicy.from }}networkPolicy.from and this release{{ else }}the pods of this namespace{{ end }}.
{{- if or .Values.monitoring.serviceMonitor.enabled .Values.monitoring.podMonitor.enabled }}
Prometheus may scrape from where networkPolicy.monitoring says
({{ toJson .Values.networkPolicy.monitoring }}).
{{- else }}
Nobody else may scrape /metrics: networkPolicy.monitoring acts with a serviceMonitor or podMonitor.
{{- end }}
{{- if and (or .Values.ingress.enabled .Values.gateway.httpRoute.enabled .Values.gateway.inferencePool.enabled) (not .Values.networkPolicy.gateways) }}
Proxies in other namespaces than this one and those of gateway.httpRoute.parentRefs are kept out:
name them in networkPolicy.gateways.
{{- end }}
{{- end }}
{{- end }}
