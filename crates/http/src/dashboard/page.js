// Reads /metrics and the routes below /dashboard once a second, /admin/config every five; keeps two minutes.
// The first two minutes are those that the server has.

const EVERY_MS = 1000;
const KEPT = 120;
const WINDOW = 60;
const TUNABLE = {
  Delays: [
    "time-to-first-token", "time-to-first-token-std-dev", "inter-token-latency", "inter-token-latency-std-dev",
    "prefill-overhead", "prefill-time-per-token", "kv-cache-transfer-latency", "kv-cache-transfer-time-per-token",
    "time-factor-under-load", "latency-factor",
  ],
  Failures: ["health-status", "stream-fault-rate", "stream-faults", "failure-injection-rate"],
};
const FAILURES = ["rate_limit", "invalid_api_key", "context_length", "server_error", "invalid_request", "model_not_found"];
const CARDS = [
  ["running", "Running", whole], ["waiting", "Waiting", whole], ["output", "Output tokens/s", short],
  ["prompt", "Prompt tokens/s", short], ["cache", "KV cache, fullest rank", percent], ["ended", "Requests/s", short],
  ["ttft", "TTFT, median", seconds], ["errors", "HTTP errors now", percent],
];

const at = (id) => document.getElementById(id);
const may = document.body.dataset.control === "true";
const samples = [];
const history = Object.fromEntries(CARDS.map(([key]) => [key, []]));
let held = false;
let config = null;
let latencies = null;
let edited = false;

function whole(x) { return x === null ? "–" : String(Math.round(x)); }
function percent(x) { return x === null ? "–" : `${(100 * x).toFixed(x < 0.1 ? 1 : 0)} %`; }
function short(x) {
  if (x === null) return "–";
  if (x >= 1e6) return `${(x / 1e6).toFixed(1)} M`;
  if (x >= 1e4) return `${(x / 1e3).toFixed(1)} k`;
  return x >= 100 || Number.isInteger(x) ? x.toFixed(0) : x.toFixed(1);
}
function seconds(x) {
  if (x === null) return "–";
  return x < 1 ? `${Number((1000 * x).toPrecision(3))} ms` : `${Number(x.toPrecision(3))} s`;
}

/** The Prometheus text format: name to [{labels, value}]. */
function parse(text) {
  const families = new Map();
  for (const line of text.split("\n")) {
    const found = /^([\w:]+)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, key, value] of (found[2] || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[key] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    }
    const value = found[3] === "+Inf" ? Infinity : Number(found[3]);
    if (!families.has(found[1])) families.set(found[1], []);
    // What this page asks for is nobody's traffic.
    if (found[1] === "http_requests_total" && /^\/(dashboard|admin|metrics)/.test(labels.handler)) continue;
    families.get(found[1]).push({ labels, value });
  }
  return families;
}

function total(families, name, wanted = {}) {
  return (families.get(name) || [])
    .filter(({ labels }) => Object.entries(wanted).every(([key, value]) => labels[key] === value))
    .reduce((sum, { value }) => sum + value, 0);
}

/** Growth of a counter over the last `over` seconds, per second; null without two samples. */
function rate(name, wanted, over = 5) {
  const now = samples.at(-1);
  const then = samples.findLast((sample) => now.time - sample.time >= over) || samples[0];
  if (now === then) return null;
  const grown = total(now.families, name, wanted) - total(then.families, name, wanted);
  return Math.max(0, grown) / (now.time - then.time);
}

/** The sample at the start of the window; the samples that the server kept have no histograms. */
function windowStart(name) {
  const now = samples.at(-1);
  return samples.findLast(({ time, families }) => now.time - time >= WINDOW && families.has(`${name}_bucket`));
}

/** Buckets of a histogram over the window: [upper bound, count in it]. */
function buckets(name) {
  const now = samples.at(-1);
  const then = windowStart(name);
  const upto = new Map();
  for (const [sample, sign] of [[now, 1], [then, -1]]) {
    for (const { labels, value } of (sample && sample.families.get(`${name}_bucket`)) || []) {
      const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
      upto.set(bound, (upto.get(bound) || 0) + sign * value);
    }
  }
  let below = 0;
  return [...upto].sort((a, b) => a[0] - b[0]).map(([bound, count]) => {
    const own = Math.max(0, count - below);
    below = Math.max(below, count);
    return [bound, own];
  });
}

/** As Prometheus' histogram_quantile: linear within the bucket, so that labels say where it is from. */
function quantile(list, q) {
  const all = list.reduce((sum, [, count]) => sum + count, 0);
  if (!all) return null;
  let seen = 0;
  let low = 0;
  for (const [bound, count] of list) {
    if (seen + count >= q * all && count) return bound === Infinity ? low : low + (bound - low) * (q * all - seen) / count;
    seen += count;
    low = bound;
  }
  return low;
}

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function svg(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Fills a table; without rows it has one with the words `none`. */
function rows(id, list, none = "") {
  if (!list.length && none) {
    const [row, cell] = [element("tr"), element("td", none, { colspan: at(id).tHead.rows[0].cells.length, class: "none" })];
    row.append(cell);
    at(id).tBodies[0].replaceChildren(row);
    return;
  }
  at(id).tBodies[0].replaceChildren(...list.map((cells) => {
    const row = element("tr");
    for (const cell of cells) {
      const td = element("td");
      td.append(cell);
      row.append(td);
    }
    return row;
  }));
}

/** How long ago or how long, in the unit that suits. */
function duration(x) {
  if (x < 100) return `${Math.round(x)} s`;
  return x < 6000 ? `${Math.round(x / 60)} min` : `${Math.round(x / 3600)} h`;
}

function spark(values, marks) {
  const first = values.findIndex((value) => value !== null);
  const known = first < 0 ? [] : values.slice(first).map((value) => value ?? 0);
  const top = Math.max(...known, 1e-9);
  const points = known.map((value, i) => `${KEPT - known.length + i + 1},${(32 - 30 * value / top).toFixed(2)}`);
  const drawn = svg("svg", { viewBox: `0 0 ${KEPT} 34`, preserveAspectRatio: "none", "aria-hidden": "true" });
  drawn.append(svg("line", { class: "baseline", x1: 0, x2: KEPT, y1: 33.5, y2: 33.5 }));
  if (points.length > 1) {
    drawn.append(svg("path", { class: "area", d: `M${KEPT - known.length + 1},34L${points.join("L")}L${KEPT},34Z` }));
    drawn.append(svg("path", { class: "spark", d: `M${points.join("L")}` }));
  }
  for (const [index, words] of marks) {
    const x = KEPT - values.length + index + 1;
    const mark = svg("line", { class: "mark", x1: x, x2: x, y1: 0, y2: 34 });
    mark.append(svg("title", {}, words));
    drawn.append(mark);
  }
  return drawn;
}

function drawCards() {
  const marks = drillMarks();
  at("cards").replaceChildren(...CARDS.map(([key, title, format]) => {
    const card = element("div", undefined, { class: "card", id: `card-${key}` });
    card.append(element("h3", title), element("strong", format(history[key].at(-1) ?? null)), spark(history[key], marks));
    return card;
  }));
}

/** Percentiles of the newest single values; without them, of the buckets, and saying so. */
function percentiles(id, list) {
  const exact = latencies && latencies[id];
  const p = exact ? [exact.p50, exact.p95, exact.p99] : [0.5, 0.95, 0.99].map((q) => quantile(list, q));
  return { p, from: exact ? `newest ${whole(exact.count)}` : "from buckets" };
}

/** What to do for a first value. */
function noLatencies(id) {
  if (id !== "ttft") return [element("p", "No gap yet: it takes a request of several tokens.")];
  const body = JSON.stringify({ model: document.title, messages: [{ role: "user", content: "Hello" }] });
  const url = new URL("v1/chat/completions", location.href);
  return [element("p", "No request yet. Send one:"), element("pre", `curl ${url} -H 'Content-Type: application/json' -d '${body}'`)];
}

function drawHistogram(id, list) {
  const first = list.findIndex(([, count]) => count > 0);
  if (first < 0) {
    at(id).replaceChildren(...noLatencies(id));
    return;
  }
  const last = list.findLastIndex(([, count]) => count > 0);
  const shown = list.slice(Math.max(0, first - 2), last + 3);
  const [width, height, foot] = [Math.max(280, at(id).clientWidth), 170, 30];
  const step = width / shown.length;
  const most = Math.max(...shown.map(([, count]) => count));
  const { p: [p50, p95, p99], from } = percentiles(id, list);
  const title = `median ${seconds(p50)}, 95th percentile ${seconds(p95)}, 99th ${seconds(p99)} (${from})`;
  const drawn = svg("svg", { viewBox: `0 16 ${width} ${height + foot}`, role: "img", "aria-label": title });
  shown.forEach(([bound, count], i) => {
    const tall = (height - 22) * count / most;
    const bar = svg("rect", { class: "bar", x: i * step + 1, y: 16 + height - tall, width: Math.max(1, step - 2), height: tall, rx: 2 });
    bar.append(svg("title", {}, `up to ${bound === Infinity ? "any" : seconds(bound)}: ${whole(count)}`));
    drawn.append(bar);
    if (count) drawn.append(svg("text", { x: (i + 0.5) * step, y: 12 + height - tall, "text-anchor": "middle" }, short(count)));
    const label = bound === Infinity ? "more" : seconds(bound);
    drawn.append(svg("text", { x: (i + 0.5) * step, y: 30 + height + (i % 2 ? 12 : 0), "text-anchor": "middle" }, label));
  });
  drawn.append(svg("line", { class: "axis", x1: 0, x2: width, y1: 16.5 + height, y2: 16.5 + height }));
  at(id).replaceChildren(element("p", title, { class: "percentiles" }), drawn);
}

function meter(share) {
  const made = element("span");
  const bar = element("span", undefined, { class: `meter${share > 0.9 ? " full" : ""}` });
  bar.append(element("i", undefined, { style: `width:${Math.min(100, 100 * share)}%` }));
  made.append(bar, percent(share));
  return made;
}

function drawEngines(families) {
  const ranks = [...new Set((families.get("vllm:num_requests_running") || []).map(({ labels }) => labels.engine || "0"))];
  rows("engines", ranks.map((engine) => {
    const of = (name) => total(families, name, ranks.length > 1 ? { engine } : {});
    const asked = of("vllm:prefix_cache_queries_total");
    return [
      engine, whole(of("vllm:num_requests_running")), whole(of("vllm:num_requests_waiting")),
      meter(of("vllm:kv_cache_usage_perc")), asked ? percent(of("vllm:prefix_cache_hits_total") / asked) : "–",
      whole(of("vllm:num_preemptions_total")),
      short(rate("vllm:generation_tokens_total", ranks.length > 1 ? { engine } : {})),
    ];
  }));
}

function drawLora(families) {
  const newest = (families.get("vllm:lora_requests_info") || []).reduce((a, b) => (a && a.value > b.value ? a : b), null);
  if (!newest) {
    at("lora").replaceChildren("No request has used an adapter. To serve one, start with ", element("code", "--enable-lora --lora-modules NAME=PATH"), " and name it as the model.");
    return;
  }
  const facts = [
    ["Running: ", newest.labels.running_lora_adapters], ["Waiting: ", newest.labels.waiting_lora_adapters],
    ["Maximum: ", newest.labels.max_lora],
  ];
  at("lora").replaceChildren(...facts.map(([name, value]) => {
    const line = element("div", name);
    line.append(element("b", (value || "none").replaceAll(",", ", ")));
    return line;
  }));
}

/** What was done to clients, and the scenario that does it. */
function drawFaults(families) {
  const playing = (families.get("vllm_sim_scenario_phase") || [])[0];
  const counts = new Map();
  for (const { labels, value } of families.get("vllm_sim_faults_total") || []) {
    counts.set(labels.kind, (counts.get(labels.kind) || 0) + value);
  }
  const facts = [];
  if (playing) facts.push("Scenario: ", element("b", playing.labels.scenario), ", phase ", element("b", playing.labels.phase));
  else if (!counts.size) facts.push("None. Start a ready scenario below, or see ", element("code", "--failure-injection-rate"), ".");
  at("scenario").replaceChildren(...facts);
  at("faulty").hidden = !counts.size;
  rows("faults", [...counts].map(([kind, count]) => [kind, whole(count), short(rate("vllm_sim_faults_total", { kind }))]));
}

function drawCounts(families) {
  const reasons = new Set((families.get("vllm:request_success_total") || []).map(({ labels }) => labels.finished_reason));
  rows("ended", [...reasons].map((finished_reason) => [
    finished_reason, whole(total(families, "vllm:request_success_total", { finished_reason })),
    short(rate("vllm:request_success_total", { finished_reason })),
  ]), "No request has finished.");
  const routes = families.get("http_requests_total") || [];
  const name = ({ labels }) => `${labels.handler} ${labels.method} ${labels.status}`;
  routes.sort((a, b) => (name(a) < name(b) ? -1 : 1));
  rows("http", routes.map(({ labels, value }) => [
    `${labels.method} ${labels.handler}`, labels.status, whole(value), short(rate("http_requests_total", labels)),
  ]), "No request came.");
}

function note(families) {
  const sum = (name) => total(families, name);
  const usage = (families.get("vllm:kv_cache_usage_perc") || []).map(({ value }) => value);
  const bad = ["4xx", "5xx"].map((status) => rate("http_requests_total", { status })).reduce((a, b) => (a === null ? null : a + b));
  const all = rate("http_requests_total", {});
  const now = {
    running: sum("vllm:num_requests_running"), waiting: sum("vllm:num_requests_waiting"),
    output: rate("vllm:generation_tokens_total", {}), prompt: rate("vllm:prompt_tokens_total", {}),
    cache: usage.length ? Math.max(...usage) : null, ended: rate("vllm:request_success_total", {}),
    // Nothing where nothing was answered: the newest ones may be old.
    ttft: rate("vllm:time_to_first_token_seconds_count", {}) ? percentiles("ttft", buckets("vllm:time_to_first_token_seconds")).p[0] : null,
    errors: all ? bad / all : null,
  };
  for (const [key, list] of Object.entries(history)) {
    list.push(now[key]);
    if (list.length > KEPT) list.shift();
  }
}

function draw(families) {
  const first = (families.get("vllm:num_requests_running") || [])[0];
  if (first) at("model").textContent = document.title = first.labels.model_name;
  const full = windowStart("vllm:time_to_first_token_seconds");
  for (const small of document.querySelectorAll("[data-window]")) small.textContent = full ? `last ${WINDOW} s` : "since start";
  drawCards();
  drawHistogram("ttft", buckets("vllm:time_to_first_token_seconds"));
  drawHistogram("itl", buckets("vllm:inter_token_latency_seconds"));
  drawEngines(families);
  drawLora(families);
  drawFaults(families);
  drawCounts(families);
}

function drawConfig() {
  if (!config) return;
  at("settings").hidden = false;
  at("fields").disabled = !may;
  at("readonly").hidden = may;
  at("about").textContent = `${config["compat"] === "llm-d" ? "llm-d's" : "vLLM's"} API, ${config["scheduler"]} scheduler, imitates vLLM ${config["vllm-version"]}`;
  if (edited || at("form").contains(document.activeElement)) return;
  at("inputs").replaceChildren(...Object.entries(TUNABLE).flatMap(([title, keys]) => {
    const group = element("div", undefined, { class: "inputs" });
    group.append(...keys.filter((key) => key in config).map((key) => {
      const label = element("label", key);
      label.append(element("input", undefined, { name: key, value: typed(config[key]), spellcheck: "false" }));
      return label;
    }));
    return [element("h3", title, { class: "group" }), group];
  }));
  const chosen = config["failure-types"] || [];
  at("types").replaceChildren(...FAILURES.map((type) => {
    const label = element("label");
    const box = element("input", undefined, { type: "checkbox", name: type });
    box.checked = chosen.length === 0 || chosen.includes(type);
    label.append(box, ` ${type}`);
    return label;
  }));
}

/** A setting as it stands in its field: a list with blanks between. */
function typed(value) {
  return Array.isArray(value) ? value.join(" ") : String(value ?? "");
}

/** What a field says, in the form that the setting has. */
function read(text, setting) {
  if (Array.isArray(setting)) return text.split(/[\s,]+/).filter(Boolean);
  return typeof setting === "number" && text && !Number.isNaN(Number(text)) ? Number(text) : text;
}

/** Asks /admin/config, with the key that was typed here. */
async function admin(options = {}) {
  options.headers = operator();
  const answer = await fetch("admin/config", options);
  if (answer.status === 401) at("settings").hidden = at("locked").hidden = false;
  else if (at("key").value) at("locked").hidden = true;
  return answer;
}

async function readConfig() {
  // Without the key every look would be a 401.
  if (!at("locked").hidden && !at("key").value) return;
  const answer = await admin();
  if (!answer.ok) return;
  config = await answer.json();
  drawConfig();
}

async function apply(event) {
  event.preventDefault();
  const update = {};
  for (const input of at("inputs").querySelectorAll("input")) {
    const text = input.value.trim();
    if (text !== typed(config[input.name])) update[input.name] = read(text, config[input.name]);
  }
  const types = [...at("types").querySelectorAll("input:checked")].map((box) => box.name);
  const chosen = types.length === FAILURES.length ? [] : types;
  if (typed(chosen) !== typed(config["failure-types"] ?? [])) update["failure-types"] = chosen;
  if (!types.length) {
    update["failure-types"] = [];
    update["failure-injection-rate"] = 0;
  }
  const answer = await admin({ method: "POST", body: JSON.stringify(update) });
  const body = await answer.json().catch(() => ({}));
  at("said").className = answer.ok ? "good" : "bad";
  at("said").textContent = answer.ok ? "Applied." : body.error?.message || body.message || `Rejected (${answer.status}).`;
  if (answer.ok) {
    config = body;
    edited = false;
    document.activeElement.blur();
    drawConfig();
  }
}

/** The key that was typed here, for those who may see settings. */
function operator() {
  const key = at("key").value;
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/** What a route below /dashboard says; null where there is none. */
async function ask(route) {
  const answer = await fetch(`dashboard/${route}`, { headers: operator() });
  return answer.ok ? answer.json() : null;
}

async function tick() {
  if (!held && !document.hidden) {
    try {
      const answer = await fetch("metrics");
      if (!answer.ok) throw new Error(`/metrics returned ${answer.status}`);
      const families = parse(await answer.text());
      const [exact, live, cache, done, state] = await Promise.all(["latencies", "requests", "cache", "drills", "summary"].map(ask));
      latencies = exact;
      if (done) drills = done;
      samples.push({ time: performance.now() / 1000, families });
      if (samples.length > KEPT) samples.shift();
      note(families);
      draw(families);
      drawRequests(live);
      drawCache(cache);
      drawDrills();
      drawActive(state);
      at("dot").className = "dot live";
      at("trouble").hidden = true;
    } catch (error) {
      at("dot").className = "dot lost";
      at("trouble").hidden = false;
      at("trouble").textContent = `No response: ${error.message}`;
    }
  }
  setTimeout(tick, EVERY_MS);
}

at("form").addEventListener("input", () => { edited = true; at("said").textContent = ""; });
at("form").addEventListener("submit", apply);
at("hold").addEventListener("click", () => {
  held = !held;
  at("hold").setAttribute("aria-pressed", String(held));
  at("hold").textContent = held ? "Resume" : "Pause";
});
at("end-scenario").addEventListener("click", () => sendScenario({ method: "DELETE" }, "Ended."));

/** Saves the trace of the server as a file. */
async function saveTrace() {
  const button = at("trace");
  button.disabled = true;
  try {
    const answer = await fetch("dashboard/trace", { headers: operator() });
    if (answer.status === 401) throw new Error("it needs the key of --admin-api-key or --api-key");
    if (!answer.ok) throw new Error(`/dashboard/trace returned ${answer.status}`);
    const file = URL.createObjectURL(await answer.blob());
    element("a", undefined, { href: file, download: "vllm-sim-trace.json" }).click();
    setTimeout(() => URL.revokeObjectURL(file), 60000);
    button.textContent = "Trace";
  } catch (error) {
    button.textContent = `No trace: ${error.message}`;
  }
  button.disabled = false;
}
at("trace").addEventListener("click", saveTrace);

/** Takes the last two minutes from the server, which keeps them without histograms. */
async function start() {
  try {
    const [past, ready] = await Promise.all(["history", "scenarios"].map(ask));
    for (const [time, text] of past.samples) {
      samples.push({ time: performance.now() / 1000 - (past.now - time), families: parse(text) });
      note(samples.at(-1).families);
    }
    drawScenarios(ready.scenarios);
  } catch {
    // The charts then begin with the page.
  }
  tick();
}

drawCards();
start();
if (document.body.dataset.replicas === "true") watchReplicas();
// Without the route every look would be a 404, which this page would count as an error.
if (document.body.dataset.config === "true") {
  readConfig().catch(() => {});
  at("key").addEventListener("change", () => readConfig().catch(() => {}));
  setInterval(() => { if (!held && !document.hidden) readConfig().catch(() => {}); }, 5000);
}
