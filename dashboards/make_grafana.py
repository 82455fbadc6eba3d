#!/usr/bin/env python3
"""Writes the Grafana dashboards of this folder: `dashboards/make_grafana.py`."""

import json
import pathlib

WHERE = 'job=~"$job",model_name=~"$model",instance=~"$instance",engine=~"$engine"'
SOURCE = {"type": "prometheus", "uid": "${source}"}


def metric(name, *more):
    return f"vllm:{name}{{{','.join([WHERE, *more])}}}"


def rate(name, by="", *more):
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({metric(name, *more)}[$__rate_interval]))"


def quantile(q, name, by=""):
    groups = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({groups}) (rate({metric(name + '_bucket')}[$__rate_interval])))"


def mean(name):
    return f"{rate(name + '_sum')} / {rate(name + '_count')}"


def annotation(name, color, expr, title, text, tags):
    """Marks on every panel where a series of `expr` has a sample."""
    return {
        "name": name, "enable": True, "iconColor": color, "datasource": SOURCE, "expr": expr, "step": "10s",
        "titleFormat": title, "textFormat": text, "tagKeys": tags, "useValueForTime": False,
    }


# What is done on purpose: both families are there only while and once something is.
SERVER = 'job=~"$job",instance=~"$instance"'
DRILLS = [
    annotation("Drill", "orange", f"vllm_sim_scenario_phase{{{SERVER}}}",
               "{{scenario}}: {{phase}}", "{{instance}}", "scenario,phase"),
    annotation("Injected faults", "red", f"sum by (instance, kind) (increase(vllm_sim_faults_total{{{SERVER}}}[1m])) > 0",
               "{{kind}}", "{{instance}}", "kind"),
]


class Dashboard:
    def __init__(self, uid, title, tags):
        self.uid, self.title, self.tags, self.panels = uid, title, tags, []
        self.x = self.y = self.row_height = 0

    def place(self, width, height):
        if self.x + width > 24:
            self.x, self.y = 0, self.y + self.row_height
            self.row_height = 0
        at = {"x": self.x, "y": self.y, "w": width, "h": height}
        self.x += width
        self.row_height = max(self.row_height, height)
        return at

    def add(self, kind, title, targets, unit="short", width=8, height=8, options=None, help="", **field):
        targets = [
            {"refId": chr(65 + i), "datasource": SOURCE, "expr": expr, "legendFormat": legend, **extra}
            for i, (expr, legend, *rest) in enumerate(targets)
            for extra in [rest[0] if rest else {}]
        ]
        defaults = {"unit": unit, "min": 0, **field}
        if kind == "timeseries":
            defaults["custom"] = {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never", **field.pop("custom", {})}
        self.panels.append(
            {
                "id": len(self.panels) + 1,
                "type": kind,
                "title": title,
                "description": help,
                "datasource": SOURCE,
                "gridPos": self.place(width, height),
                "fieldConfig": {"defaults": defaults, "overrides": []},
                "options": options or {},
                "targets": targets,
            }
        )

    def lines(self, title, targets, unit="short", **more):
        legend = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
        self.add("timeseries", title, targets, unit, options=legend, **more)

    def stat(self, title, expr, unit="short", **more):
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
        self.add("stat", title, [(expr, "")], unit, width=4, height=4, options=options, **more)

    def heatmap(self, title, name, unit="s"):
        expr = f"sum by (le) (increase({metric(name + '_bucket')}[$__rate_interval]))"
        self.add("heatmap", title, [(expr, "{{le}}", {"format": "heatmap"})], unit, width=12,
                 options={"calculate": False, "yAxis": {"unit": unit}, "color": {"mode": "scheme", "scheme": "Blues"}})

    def document(self):
        def variable(name, label, series):
            return {
                "name": name, "label": label, "type": "query", "datasource": SOURCE, "refresh": 2,
                "query": {"query": f"label_values({series}, {dict(job='job', model='model_name', instance='instance', engine='engine')[name]})", "refId": name},
                "multi": True, "includeAll": True, "allValue": ".*",
                "current": {"text": ["All"], "value": ["$__all"]},
            }

        series = "vllm:num_requests_running"
        variables = [{"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}]
        for name, label in [("job", "Job"), ("model", "Model"), ("instance", "Instance"), ("engine", "Engine")]:
            variables.append(variable(name, label, series))
        return {
            "uid": self.uid, "title": self.title, "tags": self.tags, "timezone": "browser",
            "schemaVersion": 39, "version": 1, "editable": True, "graphTooltip": 1,
            "refresh": "10s", "time": {"from": "now-30m", "to": "now"},
            "templating": {"list": variables}, "annotations": {"list": DRILLS},
            "panels": self.panels,
        }


def overview():
    d = Dashboard("vllm-sim-overview", "vLLM: overview", ["vllm", "vllm-sim"])
    d.stat("Servers up", 'count(up{job=~"$job"} == 1)')
    d.stat("Running", f"sum({metric('num_requests_running')})")
    d.stat("Waiting", f"sum({metric('num_requests_waiting')})")
    d.stat("Output tokens/s", rate("generation_tokens_total"))
    d.stat("KV cache, fullest", f"max({metric('kv_cache_usage_perc')})", "percentunit")
    d.stat("5xx share", 'sum(rate(http_requests_total{job=~"$job",instance=~"$instance",status="5xx"}[$__rate_interval])) / sum(rate(http_requests_total{job=~"$job",instance=~"$instance"}[$__rate_interval]))', "percentunit")
    d.lines("Requests", [(f"sum({metric('num_requests_running')})", "running"), (f"sum({metric('num_requests_waiting')})", "waiting")])
    d.lines("Waiting, by reason", [(f"sum by (reason) ({metric('num_requests_waiting_by_reason')})", "{{reason}}")])
    d.lines("Ended requests/s", [(rate("request_success_total", "finished_reason"), "{{finished_reason}}")], "reqps")
    for title, name in [("Time to first token", "time_to_first_token_seconds"), ("Between tokens", "inter_token_latency_seconds"), ("End to end", "e2e_request_latency_seconds")]:
        d.lines(title, [(quantile(q, name), f"p{round(q * 100)}") for q in (0.5, 0.95, 0.99)] + [(mean(name), "mean")], "s")
    d.heatmap("First tokens", "time_to_first_token_seconds")
    d.heatmap("Gaps between tokens", "inter_token_latency_seconds")
    d.lines("Tokens/s", [(rate("prompt_tokens_total"), "prompt"), (rate("generation_tokens_total"), "output"), (rate("prompt_tokens_cached_total"), "prompt, cached")])
    d.lines("Where the time goes (mean)", [(mean(f"request_{part}_time_seconds"), part) for part in ("queue", "prefill", "decode")], "s", custom={"stacking": {"mode": "normal"}})
    d.lines("HTTP requests/s", [('sum by (handler, status) (rate(http_requests_total{job=~"$job",instance=~"$instance"}[$__rate_interval]))', "{{handler}} {{status}}")], "reqps")
    d.lines("Lengths (p95)", [(quantile(0.95, "request_prompt_tokens"), "prompt"), (quantile(0.95, "request_generation_tokens"), "output")])
    d.lines("Tokens of a step", [(mean("iteration_tokens_total"), "mean"), (quantile(0.95, "iteration_tokens_total"), "p95")])
    d.lines("Turned away/s", [('sum by (reason) (rate(vllm:admission_rejections_total{job=~"$job",model_name=~"$model",instance=~"$instance"}[$__rate_interval]))', "{{reason}}")], "reqps")
    return d.document()


def cache():
    d = Dashboard("vllm-sim-cache", "vLLM: cache, adapters, engines", ["vllm", "vllm-sim"])
    d.lines("KV cache used", [(metric("kv_cache_usage_perc"), "{{instance}} engine {{engine}}")], "percentunit", max=1)
    d.lines("Prefix cache hits", [(f"{rate('prefix_cache_hits_total')} / {rate('prefix_cache_queries_total')}", "this server"), (f"{rate('external_prefix_cache_hits_total')} / {rate('external_prefix_cache_queries_total')}", "other servers")], "percentunit", max=1)
    d.lines("Preemptions/s", [(rate("num_preemptions_total", "instance, engine"), "{{instance}} engine {{engine}}")])
    d.lines("Prompt tokens/s, by source", [(rate("prompt_tokens_by_source_total", "source"), "{{source}}")], custom={"stacking": {"mode": "normal"}})
    d.lines("Cached prompt tokens/s, by place", [(rate("prompt_tokens_cached_by_source_total", "source"), "{{source}}")], custom={"stacking": {"mode": "normal"}})
    d.lines("Prompt tokens computed (p95)", [(quantile(0.95, "request_prefill_kv_computed_tokens"), "computed")])
    d.lines("Requests, by engine", [(metric("num_requests_running"), "{{instance}} engine {{engine}} running"), (metric("num_requests_waiting"), "{{instance}} engine {{engine}} waiting")], width=12)
    d.lines("Output tokens/s, by engine", [(rate("generation_tokens_total", "instance, engine"), "{{instance}} engine {{engine}}")], width=12)
    table = {"showHeader": True}
    instant = {"instant": True, "format": "table"}
    d.add("table", "Adapters", [('vllm:lora_requests_info{job=~"$job",instance=~"$instance"}', "", instant)], width=12, options=table)
    d.add("table", "Cache configuration", [('vllm:cache_config_info{job=~"$job",instance=~"$instance"}', "", instant)], width=12, options=table)
    d.lines("Asleep", [(f"sum by (sleep_state) ({metric('engine_sleep_state')})", "{{sleep_state}}")])
    d.lines("CPU of the server", [('rate(process_cpu_seconds_total{job=~"$job",instance=~"$instance"}[$__rate_interval])', "{{instance}}")])
    d.lines("Memory of the server", [('process_resident_memory_bytes{job=~"$job",instance=~"$instance"}', "{{instance}}")], "bytes")
    return d.document()


def main():
    folder = pathlib.Path(__file__).parent / "grafana"
    for name, document in [("overview", overview()), ("cache", cache())]:
        (folder / f"vllm-sim-{name}.json").write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
