"use strict";
// Live requests: a bar of phases for each rank, and the newest of them one by one.

const PHASES = [
  ["decode", "decode"], ["prefill", "prefill"], ["waiting_for_remote_kvs", "waiting for remote KV"],
  ["waiting", "queued"], ["preempted", "preempted"],
];

function phaseKey(phase, text) {
  const made = element("span", undefined, { class: "key" });
  made.append(element("i", undefined, { class: `swatch ${phase}` }), text);
  return made;
}

function phaseBar({ rank, phases }, ranks, most) {
  const line = element("div", undefined, { class: "phases" });
  if (ranks > 1) line.append(element("span", `rank ${rank}`, { class: "rank" }));
  const bar = element("div", undefined, { class: "lane" });
  let all = 0;
  for (const [phase, name] of PHASES) {
    all += phases[phase];
    if (phases[phase]) bar.append(element("i", undefined, { class: phase, title: `${name}: ${phases[phase]}`, style: `width:${100 * phases[phase] / most}%` }));
  }
  line.append(bar, element("b", whole(all)));
  return line;
}

/** How much of a request is done: its prompt while that is computed, then its output. */
function requestMeter(request) {
  const { phase, prompt_tokens: prompt, computed_tokens: computed, output_tokens: output, max_tokens: most } = request;
  const share = output || phase === "decode" ? output / Math.max(1, most) : (computed ?? request.cached_tokens) / Math.max(1, prompt);
  const bar = element("span", undefined, { class: "meter" });
  bar.append(element("i", undefined, { class: phase, style: `width:${Math.min(100, 100 * share)}%` }));
  return bar;
}

function drawRequests(live) {
  at("live").hidden = !live;
  if (!live) return;
  const sums = live.ranks.map(({ phases }) => Object.values(phases).reduce((a, b) => a + b, 0));
  const most = Math.max(1, ...sums);
  at("phases").replaceChildren(...live.ranks.map((rank) => phaseBar(rank, live.ranks.length, most)));
  at("phase-keys").replaceChildren(...PHASES.map(([phase, name]) => phaseKey(phase, `${name} ${live.ranks.reduce((sum, { phases }) => sum + phases[phase], 0)}`)));
  at("requests").hidden = !live.requests.length;
  // By phase, and the oldest first: what waits or stalls is together.
  const place = ({ phase }) => PHASES.findIndex(([key]) => key === phase);
  live.requests.sort((a, b) => place(a) - place(b) || b.age_seconds - a.age_seconds);
  rows("requests", live.requests.map((request) => {
    const name = element("span", request.id, { class: "id", title: `${request.id}, ${request.model}` });
    const reused = request.cached_tokens + request.external_tokens;
    const phase = phaseKey(request.phase, PHASES.find(([key]) => key === request.phase)[1]);
    return [
      name, phase, requestMeter(request), `${whole(request.output_tokens)} / ${whole(request.max_tokens)}`, seconds(request.age_seconds),
      `${whole(request.prompt_tokens)}${reused ? ` (${whole(reused)} reused)` : ""}`,
      request.computed_tokens === null ? "–" : whole(request.computed_tokens), String(request.rank),
    ];
  }));
  at("left-out").textContent = live.left_out ? (live.requests.length ? `and ${whole(live.left_out)} older ones` : `${whole(live.left_out)}, shown with the key of --admin-api-key or --api-key`) : "";
}
