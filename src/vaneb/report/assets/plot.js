// A canvas with axes.  Everything is drawn in CSS pixels; sharp on any screen and on paper.

const MARGIN = { left: 66, right: 14, top: 10, bottom: 40 };

function picture(height, draw, { hover, label, interact } = {}) {
  const canvas = element("canvas", { role: "img", "aria-label": label || "figure", style: `height:${height}px` });
  const figure = element("figure", {}, canvas);
  let drawn = 0;
  const redraw = () => {
    const width = canvas.clientWidth;
    if (!width) return;
    drawn = width;
    const density = printing ? 3 : Math.max(1, devicePixelRatio || 1);
    canvas.width = Math.round(width * density);
    canvas.height = Math.round(height * density);
    const context = canvas.getContext("2d");
    context.setTransform(density, 0, 0, density, 0, 0);
    context.font = "12px system-ui, sans-serif";
    draw(context, width, height);
  };
  new ResizeObserver(() => { if (canvas.clientWidth !== drawn) redraw(); }).observe(canvas);
  redraws.add(redraw);
  if (hover) {
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      const found = hover(event.clientX - box.left, event.clientY - box.top);
      if (found) tip.show(event.clientX, event.clientY, found[0], found[1]);
      else tip.hide();
    };
    canvas.addEventListener("pointermove", at);
    canvas.addEventListener("pointerdown", at);
    canvas.addEventListener("pointerleave", () => tip.hide());
  }
  if (interact) interact(canvas, redraw);
  return Object.assign(figure, { redraw });
}

function linear([low, high], [from, to]) {
  const factor = (to - from) / (high - low || 1);
  const scale = (value) => from + (value - low) * factor;
  return Object.assign(scale, { invert: (pixel) => low + (pixel - from) / factor, domain: [low, high], range: [from, to], ticks: (count) => niceTicks(low, high, count), say: sayTick });
}

function logarithmic([low, high], [from, to], places = null) {
  const inner = linear([Math.log10(low), Math.log10(high)], [from, to]);
  const powers = () => {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    const step = Math.max(1, Math.ceil((last - first) / 6));
    const found = [];
    for (let p = first; p <= last; p += step) found.push(10 ** p);
    return found.length > 1 ? found : niceTicks(low, high, 4).filter((v) => v > 0);
  };
  return Object.assign((value) => inner(Math.log10(Math.max(value, low * 1e-3))), { domain: [low, high], range: [from, to], ticks: () => places || powers(), say: (v) => (!places && Math.abs(Math.log10(v) % 1) < 1e-9 && (v >= 1e4 || v < 1e-2) ? `1e${Math.round(Math.log10(v))}`.replace("-", "−") : say(v, 3)) });
}

// As many decimals as tell neighbouring ticks apart.
function sayTick(value, ticks) {
  const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : 0;
  if (!step || step < 1e-4 || Math.abs(value) >= 1e5) return say(value, 3);
  return value.toLocaleString("en", { minimumFractionDigits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)), useGrouping: Math.abs(value) >= 1e4 }).replace("-", "−");
}

function niceTicks(low, high, count = 6) {
  const span = high - low || 1;
  const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((s) => s * power).find((s) => s >= rough);
  const ticks = [];
  for (let v = Math.ceil(low / step) * step; v <= high + 1e-9 * span; v += step) ticks.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return ticks;
}

function frame(context, x, y, { xlabel, ylabel, grid = true } = {}) {
  const [left, right] = x.range, [bottom, top] = y.range;
  context.lineWidth = 1;
  context.fillStyle = colour("muted");
  context.strokeStyle = colour("grid");
  context.textAlign = "center";
  context.textBaseline = "top";
  const xs = x.ticks(Math.max(3, Math.round((right - left) / 75)));
  for (const tick of xs) {
    const at = x(tick);
    if (at < left - 0.5 || at > right + 0.5) continue;
    if (grid) line(context, at, top, at, bottom);
    context.fillText(x.say(tick, xs), at, bottom + 6);
  }
  context.textAlign = "right";
  context.textBaseline = "middle";
  const ys = y.ticks(Math.max(2, Math.round((bottom - top) / 34)));
  for (const tick of ys) {
    const at = y(tick);
    if (at < top - 0.5 || at > bottom + 0.5) continue;
    if (grid) line(context, left, at, right, at);
    context.fillText(y.say(tick, ys), left - 7, at);
  }
  context.strokeStyle = colour("line");
  line(context, left, bottom, right, bottom);
  line(context, left, top, left, bottom);
  context.textAlign = "center";
  context.textBaseline = "bottom";
  if (xlabel) context.fillText(fitted(context, xlabel, right - left), (left + right) / 2, bottom + 37);
  if (ylabel) {
    context.save();
    context.translate(11, (top + bottom) / 2);
    context.rotate(-Math.PI / 2);
    context.textBaseline = "middle";
    context.fillText(fitted(context, ylabel, bottom - top), 0, 0);
    context.restore();
  }
}

function fitted(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let short = text;
  while (short.length > 3 && context.measureText(`${short}…`).width > room) short = short.slice(0, -1);
  return `${short}…`;
}

function line(context, x1, y1, x2, y2) {
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}

function disc(context, x, y, radius) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fill();
}

// Marks by which lines are told apart without colour.
function mark(context, i, x, y, size = 4) {
  const kind = i % 4;
  context.beginPath();
  if (kind === 0) context.arc(x, y, size, 0, 2 * Math.PI);
  else if (kind === 1) context.rect(x - size * 0.9, y - size * 0.9, 1.8 * size, 1.8 * size);
  else if (kind === 2) { context.moveTo(x, y - size * 1.25); context.lineTo(x + size * 1.15, y + size * 0.8); context.lineTo(x - size * 1.15, y + size * 0.8); context.closePath(); }
  else { context.moveTo(x, y - size * 1.3); context.lineTo(x + size * 1.3, y); context.lineTo(x, y + size * 1.3); context.lineTo(x - size * 1.3, y); context.closePath(); }
  context.fill();
}

function clipped(context, x, y, draw) {
  context.save();
  context.beginPath();
  context.rect(Math.min(...x.range), Math.min(...y.range), Math.abs(x.range[1] - x.range[0]), Math.abs(y.range[1] - y.range[0]));
  context.clip();
  draw();
  context.restore();
}

// Colours of the style sheet are written with six digits.
function faded(name, opacity) {
  const hex = colour(name);
  return `rgba(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",")},${opacity})`;
}

function extent(values, margin = 0.05) {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (value != null && Number.isFinite(value)) { if (value < low) low = value; if (value > high) high = value; }
  if (low > high) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * margin;
  return [low - room, high + room];
}

// All of some values, and those of the others that have not run away: up to four interquartile ranges from the middle half.
function robustExtent(kept, others) {
  const sorted = others.filter((v) => v != null).sort((a, b) => a - b);
  const at = (share) => sorted[Math.round(share * (sorted.length - 1))];
  const reach = sorted.length ? 4 * (at(0.75) - at(0.25)) : 0;
  return extent(kept.concat(sorted.filter((v) => v >= at(0.25) - reach && v <= at(0.75) + reach)), 0.06);
}

function percentTicks(scale) {
  return Object.assign(scale, { say: (value, ticks) => `${sayTick(100 * value, ticks.map((t) => 100 * t))}%` });
}

// Lines with error bars: series = [{name, points: [[x, y, error?, note?]], index, dashed}]
function lineChart({ series, xlabel, ylabel, height = 270, logX = false, logY = false, places = null, domainX = null, domainY = null, label, unit = "", whole = false }) {
  let spots = [];
  const draw = (context, width, h) => {
    const shown = series.filter((s) => s.points.length && state[`hidden:${s.name}`] !== true);
    const all = shown.flatMap((s) => s.points);
    const xs = all.map((p) => p[0]), ys = all.flatMap((p) => [p[1] - (p[2] || 0), p[1] + (p[2] || 0)]);
    const rx = domainX || (logX ? [Math.min(...xs) / 1.25, Math.max(...xs) * 1.25] : extent(xs, 0.04));
    const ry = domainY || (logY ? [Math.min(...all.map((p) => p[1]).filter((v) => v > 0)) / 1.5, Math.max(...ys) * 1.5] : extent(ys, 0.08));
    const bx = [MARGIN.left, width - MARGIN.right], by = [h - MARGIN.bottom, MARGIN.top];
    const x = logX ? logarithmic(rx, bx, places) : linear(rx, bx), y = logY ? logarithmic(ry, by) : linear(ry, by);
    if (places && !logX) x.ticks = () => places;
    if (whole) x.ticks = (count) => niceTicks(...x.domain, count).filter(Number.isInteger);
    frame(context, x, y, { xlabel, ylabel });
    spots = [];
    clipped(context, x, y, () => {
      for (const s of shown) {
        context.strokeStyle = context.fillStyle = seriesColour(s.index);
        context.lineWidth = 2;
        context.setLineDash(s.dashed ? [5, 4] : []);
        context.beginPath();
        s.points.forEach((p, i) => context[i ? "lineTo" : "moveTo"](x(p[0]), y(p[1])));
        context.stroke();
        context.setLineDash([]);
        context.lineWidth = 1.2;
        for (const p of s.points) {
          if (p[2]) line(context, x(p[0]), y(p[1] - p[2]), x(p[0]), y(p[1] + p[2]));
          mark(context, s.index, x(p[0]), y(p[1]), s.points.length > 40 ? 2 : 3.6);
          spots.push([x(p[0]), y(p[1]), s.name, `${say(p[1])}${unit}${p[2] ? ` ± ${say(p[2], 2)}` : ""}`, p[3]]);
        }
      }
    });
  };
  const hover = (px, py) => {
    const near = spots.map((s) => [(s[0] - px) ** 2 + (s[1] - py) ** 2, s]).sort((a, b) => a[0] - b[0])[0];
    return near && near[0] < 400 ? [near[1][2], [near[1][3], near[1][4]].filter(Boolean)] : null;
  };
  return picture(height, draw, { hover, label });
}

// Names that switch lines on and off.
function seriesLegend(series) {
  return element("div", { class: "legend" }, ...series.map((s) => {
    const button = element("button", { type: "button", "aria-pressed": String(state[`hidden:${s.name}`] !== true), onclick: () => {
      state[`hidden:${s.name}`] = state[`hidden:${s.name}`] !== true;
      button.setAttribute("aria-pressed", String(!state[`hidden:${s.name}`]));
      redrawAll();
    } }, element("canvas", { width: 26, height: 24, style: "width:13px;height:12px" }), s.name);
    const paint = () => {
      const context = button.firstChild.getContext("2d");
      context.setTransform(2, 0, 0, 2, 0, 0);
      context.clearRect(0, 0, 13, 12);
      context.fillStyle = seriesColour(s.index);
      mark(context, s.index, 6.5, 6, 4.2);
    };
    redraws.add(paint);
    paint();
    return button;
  }));
}
