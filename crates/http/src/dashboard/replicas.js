// All replicas in one table: this server, the others of its process, and those of --dashboard-peers.

const seenReplicas = new Map();

/** Tokens per second of a replica since it was last seen at least a second ago. */
function replicaRate(key, tokens) {
  const now = performance.now() / 1000;
  const list = seenReplicas.get(key) || [];
  list.push([now, tokens]);
  while (list.length > 2 && now - list[1][0] >= 5) list.shift();
  seenReplicas.set(key, list);
  const [then, before] = list[0];
  return now - then < 0.5 ? null : Math.max(0, tokens - before) / (now - then);
}

function replicaUrl({ url, port, root_path: root }) {
  if (url) return `${url}/dashboard`;
  return port ? `${location.protocol}//${location.hostname}:${port}${root}/dashboard` : "";
}

/** What is not as at the start: the scenario's phase, faults and changed settings. */
function activeWords(state) {
  const forced = Object.entries(state.in_force).map(([key, value]) => (value === null ? key : `${key} = ${settingText(value)}`));
  const playing = state.scenario ? [`${state.scenario.name}: ${state.scenario.phase}`] : [];
  return [...(state.ready ? [] : ["not ready"]), ...playing, ...forced];
}

function drawActive(state) {
  const words = state ? activeWords(state) : [];
  at("forced").hidden = !words.length;
  at("forced").replaceChildren("Active now: ", element("b", words.join("; ")));
}

function drawReplicas(list) {
  at("fleet").hidden = list.length < 2;
  rows("replicas", list.map((replica, i) => {
    const { state, error, name } = replica;
    const url = replicaUrl(replica);
    const link = i && url ? element("a", name, { href: url }) : element("span", i ? name : `${name} (this one)`);
    const cell = element("span");
    cell.append(element("i", undefined, { class: `dot ${state ? "live" : "lost"}` }), link);
    if (!state) return [cell, "–", "–", "–", "–", "–", "–", element("span", error, { class: "bad" })];
    const pair = (of) => (of ? `${seconds(of.p50)} / ${seconds(of.p99)}` : "–");
    return [
      cell, whole(state.running), whole(state.waiting), meter(state.kv_cache_usage),
      short(replicaRate(url || name, state.generation_tokens)), pair(state.ttft), pair(state.itl),
      element("span", activeWords(state).join("; ") || "none", { class: "wrap" }),
    ];
  }));
}

async function watchReplicas() {
  if (!held && !document.hidden) {
    try {
      drawReplicas((await ask("replicas")).replicas);
    } catch {
      // The next look may go better.
    }
  }
  setTimeout(watchReplicas, EVERY_MS);
}
