// Ready scenarios, each with its phases as a picture.

/** What a phase changes, in words; empty for a calm phase. */
function phaseChanges({ set, actions }) {
  return [...Object.entries(set).map(([name, value]) => `${name} = ${settingText(value)}`), ...actions].join(", ");
}

function phaseLength({ seconds, requests }) {
  if (seconds !== null) return duration(seconds);
  return requests === null ? "until ended" : `${requests} requests`;
}

/** Phases as blocks as wide as they are long, the calm ones pale. */
function scenarioPicture({ name, phases, repeat }) {
  const [width, gap] = [300, 2];
  const lengths = phases.map(({ seconds, requests }) => seconds ?? requests ?? 1);
  const all = lengths.reduce((sum, length) => sum + length, 0);
  const words = phases.map((phase) => `${phase.name} (${phaseLength(phase)})`).join(", ");
  const drawn = svg("svg", { viewBox: `0 0 ${width} 40`, role: "img", "aria-label": `${name}: ${words}` });
  // Short phases stay wide enough to be seen.
  const widths = lengths.map((length) => Math.max(14, width * length / all));
  const scale = width / widths.reduce((sum, wide) => sum + wide, 0);
  let left = 0;
  phases.forEach((phase, i) => {
    const wide = widths[i] * scale;
    const changes = phaseChanges(phase);
    const block = svg("rect", { class: changes ? "phase" : "calm", x: left, y: 0, width: Math.max(1, wide - gap), height: 22, rx: 3 });
    block.append(svg("title", {}, `${phase.name}, ${phaseLength(phase)}: ${changes || "no change"}`));
    drawn.append(block);
    if (wide > 6 * phase.name.length + 8) drawn.append(svg("text", { class: "on", x: left + 4, y: 15 }, phase.name));
    left += wide;
  });
  const rounds = repeat === 0 ? "for ever" : repeat > 1 ? `${repeat} times` : "";
  const unit = phases.every(({ seconds }) => seconds !== null) ? duration(all) : `${all} requests`;
  drawn.append(svg("text", { x: 0, y: 36 }, "0"), svg("text", { x: width, y: 36, "text-anchor": "end" }, [unit, rounds].filter(Boolean).join(", ")));
  return drawn;
}

async function sendScenario(options, said) {
  const answer = await fetch("admin/scenario", { headers: operator(), ...options });
  const body = await answer.json().catch(() => ({}));
  at("scenario-said").className = answer.ok ? "good" : "bad";
  at("scenario-said").textContent = answer.ok ? said : body.error?.message || body.message || `Rejected (${answer.status}).`;
}

function drawScenarios(list) {
  at("ready").hidden = !list.length;
  at("scenario-hint").hidden = may;
  at("end-scenario").hidden = !may;
  at("scenarios").replaceChildren(...list.map((scenario) => {
    const made = element("article");
    const head = element("h3", scenario.name);
    if (may) {
      const start = element("button", "Start", { type: "button", "aria-label": `Start ${scenario.name}` });
      start.addEventListener("click", () => sendScenario({ method: "POST", body: scenario.text }, `Started ${scenario.name}.`));
      head.append(start);
    }
    made.append(head, element("p", scenario.about), scenarioPicture(scenario));
    return made;
  }));
}
