(() => {
  "use strict";
  const tip = document.getElementById("tip");
  const show = (event, text) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - box.width - 6);
    const above = event.clientY - box.height - 12;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = (above < 4 ? event.clientY + 16 : above) + "px";
  };
  const hide = () => { tip.hidden = true; };
  const short = (n) => Number(n.toPrecision(4)).toString();
  /** An axis: the share of a value between its ends, and the value at a share. */
  const scale = (text) => {
    const [low, high] = text.split(" ").map(Number), log = text.endsWith("log");
    return {
      share: (value) => (log ? Math.log(Math.max(low, value) / low) / Math.log(high / low) : (value - low) / (high - low)),
      value: (share) => (log ? low * (high / low) ** share : low + share * (high - low)),
    };
  };
  for (const svg of document.querySelectorAll("svg[data-by]")) {
    const [left, top, right, bottom] = svg.dataset.box.split(" ").map(Number);
    const [across, up] = [svg.dataset.xs, svg.dataset.ys].map(scale);
    const lines = [...svg.querySelectorAll("path")].map((path) => ({
      name: path.dataset.name,
      points: path.dataset.points ? path.dataset.points.split(" ").map((p) => p.split(",").map(Number)) : [],
    }));
    const cursor = svg.querySelector(".cursor");
    const byY = svg.dataset.by === "y";
    const nearest = (points, axis, value) => {
      let low = 0, high = points.length - 1;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (points[middle][axis] < value) low = middle + 1; else high = middle;
      }
      if (low > 0 && value - points[low - 1][axis] < points[low][axis] - value) low -= 1;
      return points[low];
    };
    let share = 0.5;
    const look = (place) => {
      const at = (byY ? up : across).value(share);
      const found = lines.filter((line) => line.points.length)
        .map((line) => ({ name: line.name, point: nearest(line.points, byY ? 1 : 0, at) }));
      if (!found.length) return;
      const first = found[0].point;
      cursor.removeAttribute("hidden");
      const px = left + across.share(first[0]) * (right - left), py = bottom - up.share(first[1]) * (bottom - top);
      const ends = byY ? [left, right, py, py] : [px, px, top, bottom];
      ["x1", "x2", "y1", "y2"].forEach((name, i) => cursor.setAttribute(name, ends[i]));
      const text = byY
        ? found.map((f) => `${short(f.point[1])} % of ${f.name} ≤ ${short(f.point[0])} ${svg.dataset.x}`)
        : [`${short(first[0])} ${svg.dataset.x}`, ...found.map((f) => `${f.name}: ${short(f.point[1])}`)];
      show(place, text.join("\n"));
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * 640, y = (event.clientY - box.top) / box.height * 260;
      share = Math.min(1, Math.max(0, byY ? (bottom - y) / (bottom - top) : (x - left) / (right - left)));
      look(event);
    });
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -0.02, ArrowDown: -0.02, ArrowRight: 0.02, ArrowUp: 0.02 }[event.key];
      if (!step) return;
      event.preventDefault();
      share = Math.min(1, Math.max(0, share + step));
      const box = svg.getBoundingClientRect();
      look({ clientX: box.left + box.width / 2, clientY: box.top + box.height / 2 });
    });
    svg.addEventListener("blur", () => { cursor.setAttribute("hidden", ""); hide(); });
    svg.addEventListener("pointerleave", () => { cursor.setAttribute("hidden", ""); hide(); });
  }
  for (const svg of document.querySelectorAll("svg.heat")) {
    svg.addEventListener("pointermove", (event) => {
      const text = event.target.dataset && event.target.dataset.tip;
      if (text) show(event, text); else hide();
    });
    svg.addEventListener("pointerleave", hide);
  }
  /** A hint below each table that is wider than the page. */
  const hints = () => {
    for (const box of document.querySelectorAll(".wide")) {
      const isWide = box.scrollWidth > box.clientWidth + 1, hint = box.nextElementSibling;
      const has = hint && hint.classList.contains("hint");
      if (isWide && !has) {
        const made = document.createElement("p");
        made.className = "hint";
        made.textContent = "More columns: scroll the table sideways →";
        box.after(made);
      } else if (!isWide && has) hint.remove();
    }
  };
  hints();
  addEventListener("resize", hints);
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((all) => { all.open = true; }));
})();
