(() => {
  "use strict";
  const tip = document.getElementById("tip");
  for (const figure of document.querySelectorAll("figure.requests")) {
    const workers = JSON.parse(figure.querySelector("script").textContent);
    const canvas = figure.querySelector("canvas"), select = figure.querySelector("select");
    const names = [...figure.querySelectorAll(".legend li")]
      .reduce((all, item) => ({ ...all, [item.className.slice(1)]: item.textContent }), {});
    const LINE = 9, HEAD = 22;
    let requests = [], rows = 0, from = 0, to = 1, last = 1, pulled = null;
    for (const [at, worker] of workers.entries()) select.add(new Option(worker[0], at));
    const end = (request) => {
      let at = request[1];
      for (let i = 3; i < request.length; i += 2) at += request[i];
      return at;
    };
    const length = (us) => us >= 1e6 ? `${Number((us / 1e6).toPrecision(5))} s` : `${Number((us / 1e3).toPrecision(4))} ms`;
    const choose = (at) => {
      // Each request takes the first row that is free by then.
      const free = [];
      requests = workers[at].slice(1).map((request) => {
        const over = end(request);
        let row = free.findIndex((until) => until <= request[1]);
        if (row < 0) row = free.push(0) - 1;
        free[row] = over;
        return { request, row, over };
      });
      rows = free.length;
      last = requests.reduce((most, one) => Math.max(most, one.over), 1);
      [from, to] = [0, last];
    };
    const draw = () => {
      const width = canvas.clientWidth, height = HEAD + rows * LINE + 4, scale = devicePixelRatio || 1;
      canvas.style.height = height + "px";
      canvas.width = width * scale;
      canvas.height = Math.min(height * scale, 16000);
      const pen = canvas.getContext("2d"), style = getComputedStyle(figure);
      const colour = (name) => style.getPropertyValue(name).trim();
      const colours = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "soft"].map((name) => colour("--" + name));
      pen.scale(scale, canvas.height / height);
      pen.fillStyle = colour("--soft");
      pen.strokeStyle = colour("--line");
      pen.font = "12px system-ui,sans-serif";
      const place = (us) => (us - from) / (to - from) * width;
      const rough = (to - from) / Math.max(2, width / 110), power = 10 ** Math.floor(Math.log10(rough));
      const step = power * [1, 2, 5, 10].find((nice) => nice * power >= rough * 0.999);
      for (let us = Math.ceil(from / step) * step; us <= to; us += step) {
        const x = place(us);
        pen.textAlign = x < 20 ? "left" : x > width - 20 ? "right" : "center";
        pen.fillText(us ? length(us) : "0 s", x, 13);
        pen.beginPath();
        pen.moveTo(x, HEAD - 4);
        pen.lineTo(x, height);
        pen.stroke();
      }
      for (const { request, row, over } of requests) {
        if (over < from || request[1] > to) continue;
        let at = request[1];
        for (let i = 2; i < request.length; i += 2) {
          const x = place(at);
          at += request[i + 1];
          pen.fillStyle = colours[request[i]];
          pen.fillRect(x, HEAD + row * LINE, Math.max(0.6, place(at) - x), LINE - 2);
        }
      }
      if (pulled) {
        pen.fillStyle = colour("--soft") + "40";
        pen.fillRect(Math.min(pulled[0], pulled[1]), 0, Math.abs(pulled[1] - pulled[0]), height);
      }
    };
    const look = (a, b) => {
      const span = Math.min(last, Math.max(10, b - a));
      from = Math.min(Math.max(0, a), last - span);
      to = from + span;
      draw();
    };
    const zoom = (factor, at) => look(at - (at - from) * factor, at + (to - at) * factor);
    const inside = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    const time = (x) => from + x / canvas.clientWidth * (to - from);
    figure.querySelector(".bar").addEventListener("click", (event) => {
      const step = (to - from) / 2, middle = from + step;
      const acts = {
        in: () => zoom(0.5, middle), out: () => zoom(2, middle), all: () => look(0, last),
        left: () => look(from - step, to - step), right: () => look(from + step, to + step),
      };
      const act = acts[event.target.dataset.do];
      if (act) act();
    });
    select.addEventListener("change", () => { choose(Number(select.value)); draw(); });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(event.deltaY < 0 ? 0.7 : 1.4, time(inside(event)[0]));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "mouse" || event.button !== 0) return;
      const [x] = inside(event);
      pulled = [x, x];
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => {
      const stretch = pulled;
      pulled = null;
      if (!stretch) return;
      if (Math.abs(stretch[1] - stretch[0]) > 4) look(time(Math.min(...stretch)), time(Math.max(...stretch)));
      else draw();
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = inside(event);
      if (pulled) { pulled[1] = x; draw(); return; }
      const row = Math.floor((y - HEAD) / LINE), at = time(x), near = (to - from) / canvas.clientWidth;
      const found = requests.find((one) => one.row === row && one.request[1] <= at + near && one.over >= at - near);
      tip.hidden = !found;
      if (!found) return;
      const lines = [`request ${found.request[0]}, from ${length(found.request[1])}`];
      for (let i = 2; i < found.request.length; i += 2) lines.push(`${names[found.request[i]]}: ${length(found.request[i + 1])}`);
      tip.textContent = lines.join("\n");
      const box = tip.getBoundingClientRect();
      tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 6)) + "px";
      tip.style.top = Math.max(4, Math.min(event.clientY + 16, innerHeight - box.height - 6)) + "px";
    });
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    addEventListener("resize", draw);
    matchMedia("(prefers-color-scheme:dark)").addEventListener("change", draw);
    choose(0);
    draw();
  }
})();
