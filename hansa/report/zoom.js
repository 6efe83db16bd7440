// Charts with `data-chart` ({log, series: [[label, [[x, y], …]], …]}): drag to enlarge, double-click to reset, hover for values.
"use strict";
for (const svg of document.querySelectorAll("svg.zoom")) {
  const data = JSON.parse(svg.dataset.chart), points = data.series.flatMap(s => s[1]);
  const box = svg.viewBox.baseVal, left = 46, right = box.width - 10, top = 26, bottom = box.height - 30;
  const all = [Math.min(...points.map(p => p[0])), Math.max(...points.map(p => p[0]))];
  const scale = v => data.log ? Math.log10(v) : v;
  const before = svg.innerHTML;
  let shown = all, low, high, start = null, band = null, note = null;

  const number = v => !v ? "0" : Math.abs(v) >= 1e6 ? (v / 1e6).toPrecision(3) + "M"
    : Math.abs(v) >= 100 ? Math.round(v).toLocaleString("en") : String(Number(v.toPrecision(3)));
  const make = (name, attributes) => {
    const one = document.createElementNS("http" + "://www.w3.org/2000/svg", name);
    for (const key in attributes) one.setAttribute(key, attributes[key]);
    return svg.appendChild(one);
  };
  const inside = event => {
    const at = svg.createSVGPoint(); at.x = event.clientX; at.y = event.clientY;
    return at.matrixTransform(svg.getScreenCTM().inverse());
  };
  const value = x => shown[0] + (x - left) / (right - left) * (shown[1] - shown[0]);
  const place = p => [left + (p[0] - shown[0]) / ((shown[1] - shown[0]) || 1) * (right - left),
    bottom - (scale(p[1]) - low) / ((high - low) || 1) * (bottom - top)];

  function draw(range) {
    shown = range;
    const seen = points.filter(p => p[0] >= shown[0] && p[0] <= shown[1]).map(p => scale(p[1]));
    low = Math.min(...seen); high = Math.max(...seen);
    if (range === all) { svg.innerHTML = before; return; }
    svg.innerHTML = before;
    svg.querySelectorAll("line.grid, text.tick.y, polyline, circle.dot").forEach(one => one.remove());
    for (let i = 0; i <= 4; i++) {
      const v = low + (high - low) * i / 4, y = bottom - (bottom - top) * i / 4;
      make("line", {class: "grid", x1: left, x2: right, y1: y, y2: y});
      make("text", {class: "tick y", x: left - 5, y: y + 3, "text-anchor": "end"}).textContent = number(data.log ? 10 ** v : v);
    }
    svg.querySelectorAll("text.tick.x").forEach((one, i) => { one.textContent = number(shown[i]); });
    data.series.forEach(([label, values], i) => {
      const some = values.filter(p => p[0] >= shown[0] && p[0] <= shown[1]).map(place);
      if (some.length) make("polyline", {class: "s" + i % 8, points: some.map(p => p.join(",")).join(" ")});
      for (const [x, y] of some) make("circle", {class: "dot s" + i % 8, cx: x, cy: y, r: 2.2});
    });
  }

  svg.addEventListener("pointerdown", event => {
    start = Math.max(left, Math.min(right, inside(event).x));
    band = make("rect", {class: "chosen", x: start, y: top, width: 0, height: bottom - top});
  });
  svg.addEventListener("pointermove", event => {
    const x = Math.max(left, Math.min(right, inside(event).x));
    if (start !== null) {
      band.setAttribute("x", Math.min(start, x)); band.setAttribute("width", Math.abs(x - start));
      return;
    }
    if (note) note.remove();
    const at = inside(event);
    let best = null, nearest = Infinity;
    const ranges = shown === all ? svg.querySelectorAll("polyline, circle.dot") : null;
    data.series.forEach(([label, values], i) => {
      const old = ranges && ranges[i] && ranges[i].points;
      values.forEach((p, j) => {
        if (p[0] < shown[0] || p[0] > shown[1]) return;
        const [px, py] = old && old[j] ? [old[j].x, old[j].y] : shown === all ? [NaN, NaN] : place(p);
        const distance = Math.hypot(px - at.x, py - at.y);
        if (distance < nearest) { nearest = distance; best = [label, p]; }
      });
    });
    note = make("text", {class: "value", x: right, y: top - 2, "text-anchor": "end"});
    note.textContent = best && nearest < 40 ? `${best[0]}: ${number(best[1][1])} at ${number(best[1][0])}` : "";
  });
  const end = event => {
    if (start === null) return;
    const x = Math.max(left, Math.min(right, inside(event).x)), from = value(Math.min(start, x)), to = value(Math.max(start, x));
    const wide = Math.abs(x - start) > 6;
    start = null; band.remove();
    if (wide && points.some(p => p[0] >= from && p[0] <= to)) draw([from, to]);
  };
  svg.addEventListener("pointerup", end);
  svg.addEventListener("pointerleave", event => { end(event); if (note) note.remove(); });
  svg.addEventListener("dblclick", () => draw(all));
}
