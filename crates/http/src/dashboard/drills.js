// What was done on purpose: marks on the charts, a strip of phases, the newest events in words.

const SPANS = [120, 300, 600];
const WORDS = 6;

let drills = { now: 0, events: [] };

/** A setting as a word or two. */
function settingText(value) {
  const text = value !== null && typeof value === "object" && !Array.isArray(value) ? JSON.stringify(value) : typed(value);
  return text.length > 60 ? `${text.slice(0, 60)}…` : text;
}

function drillWords({ event, scenario, phase, round, changed, rank }) {
  if (event === "phase") return `phase ${phase} of ${scenario}${round > 1 ? `, round ${round}` : ""}`;
  if (event === "end") return `scenario ${scenario} ended`;
  const set = Object.entries(changed).map(([name, value]) => (value === null ? name : `${name} = ${settingText(value)}`));
  return `${set.join(", ")}${rank === null ? "" : ` on rank ${rank}`}`;
}

/** Where in the last `samples` drills happened: [index of the sample, words]. */
function drillMarks() {
  const now = samples.length ? samples.at(-1).time : 0;
  return drills.events.flatMap((drill) => {
    const then = now - (drills.now - drill.time);
    const index = samples.findIndex(({ time }) => time >= then);
    return index > 0 ? [[index, drillWords(drill)]] : [];
  });
}

/** Phases as blocks, changed settings as ticks: the last two minutes, or up to ten where there is more. */
function drillStrip(width) {
  const oldest = drills.now - drills.events[0].time;
  const span = SPANS.find((seconds) => seconds >= oldest) ?? SPANS.at(-1);
  const from = drills.now - span;
  const x = (time) => width * Math.max(0, time - from) / span;
  const drawn = svg("svg", { viewBox: `0 0 ${width} 44`, role: "img", "aria-label": `Drills of the last ${span / 60} minutes` });
  drawn.append(svg("line", { class: "axis", x1: 0, x2: width, y1: 28.5, y2: 28.5 }));
  const phases = drills.events.filter(({ event }) => event !== "settings");
  phases.forEach((drill, i) => {
    const end = phases[i + 1]?.time ?? drills.now;
    if (drill.event !== "phase" || end < from) return;
    const [left, right] = [x(drill.time), x(end)];
    const block = svg("rect", { class: `phase ${i % 2 ? "odd" : ""}`, x: left, y: 4, width: Math.max(1, right - left - 1), height: 20, rx: 3 });
    block.append(svg("title", {}, drillWords(drill)));
    drawn.append(block);
    if (right - left > 7 * drill.phase.length + 8) drawn.append(svg("text", { class: "on", x: left + 5, y: 18 }, drill.phase));
  });
  for (const drill of drills.events) {
    if (drill.event !== "settings" || drill.time < from) continue;
    const tick = svg("path", { class: "tick", d: `M${x(drill.time)},2v30` });
    tick.append(svg("title", {}, drillWords(drill)));
    drawn.append(tick);
  }
  drawn.append(svg("text", { x: 0, y: 42 }, `${span / 60} min ago`), svg("text", { x: width, y: 42, "text-anchor": "end" }, "now"));
  return drawn;
}

function drawDrills() {
  at("drills").hidden = !drills.events.length;
  if (!drills.events.length) return;
  at("strip").replaceChildren(drillStrip(Math.max(280, at("strip").clientWidth)));
  const newest = drills.events.slice(-WORDS).reverse();
  at("events").replaceChildren(...newest.map((drill) => {
    const line = element("div", `${duration(drills.now - drill.time)} ago: `);
    line.append(element("b", drillWords(drill)));
    return line;
  }));
}
