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
  for (const svg of document.querySelectorAll("svg[data-by]")) {
    const [left, top, right, bottom, xMax, yMax] = svg.dataset.box.split(" ").map(Number);
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
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * 640;
      const y = (event.clientY - box.top) / box.height * 260;
      const at = byY
        ? Math.min(1, Math.max(0, (bottom - y) / (bottom - top))) * yMax
        : Math.min(1, Math.max(0, (x - left) / (right - left))) * xMax;
      const axis = byY ? 1 : 0;
      const found = lines.filter((line) => line.points.length)
        .map((line) => ({ name: line.name, point: nearest(line.points, axis, at) }));
      if (!found.length) return;
      const first = found[0].point;
      cursor.removeAttribute("hidden");
      const px = left + first[0] / xMax * (right - left), py = bottom - first[1] / yMax * (bottom - top);
      const ends = byY ? [left, right, py, py] : [px, px, top, bottom];
      ["x1", "x2", "y1", "y2"].forEach((name, i) => cursor.setAttribute(name, ends[i]));
      const text = byY
        ? found.map((f) => `${short(f.point[1])} % of ${f.name} ≤ ${short(f.point[0])} ${svg.dataset.x}`)
        : [`${short(first[0])} ${svg.dataset.x}`, ...found.map((f) => `${f.name}: ${short(f.point[1])}`)];
      show(event, text.join("\n"));
    });
    svg.addEventListener("pointerleave", () => { cursor.setAttribute("hidden", ""); hide(); });
  }
  for (const svg of document.querySelectorAll("svg.heat")) {
    svg.addEventListener("pointermove", (event) => {
      const text = event.target.dataset && event.target.dataset.tip;
      if (text) show(event, text); else hide();
    });
    svg.addEventListener("pointerleave", hide);
  }
})();
