// Who differs: the clients in order with their intervals, and the funnel that chance alone would draw.

const FOREST = 30;   // clients up to which each has a line with its name
const differHue = (way) => (way > 0 ? "atom" : way < 0 ? "good" : "after");

function whoSection(data, chosen) {
  const c = data.clients, [, many] = data.noun;
  if (!("clients:parameter" in state)) state["clients:parameter"] = data.opens;
  const holder = element("div", { class: "grid who" });
  const build = () => {
    for (const drawn of holder.querySelectorAll("figure")) redraws.delete(drawn.redraw);
    const p = state["clients:parameter"], inOrder = c.ids.length <= FOREST ? forest(data, p, chosen) : caterpillar(data, p, chosen);
    const parts = [titled(`${c.parameters[p]}, in order`, inOrder, `Lines are ${percent(data.level)} intervals. Thin: from each ${data.noun[0]}'s own data alone. Thick: personalised.`)];
    if (data.funnels[p]) parts.push(funnelFigure(data, p, chosen));
    holder.replaceChildren(...parts);
    parts.forEach((part) => part.querySelectorAll("figure").forEach((figure) => figure.redraw && figure.redraw()));
  };
  rebuilds.add(build);
  const legend = element("div", { class: "legend" }, key("own")("own estimate"), key("after")("personalised"), key("atom")("above the others"), key("good")("below the others"));
  const select = choice("clients:parameter", "Show", c.parameters, () => rebuilds.forEach((each) => each()), data.opens);
  queueMicrotask(build);
  return section(`Which ${many} differ`, null, c.parameters.length > 1 ? element("div", { class: "controls" }, select) : null, legend, holder);
}

const rebuilds = new Set();   // what follows the quantity that was chosen

function scaleOf(data, p) {
  const c = data.clients, usual = (_, k) => !c.flag[k].includes("unexplained");
  const kept = c.lower[p].filter(usual).concat(c.upper[p].filter(usual));
  return robustExtent(kept, c.own_lower[p].concat(c.own_upper[p], c.own[p]));
}

function valueAxis(data, p, range, pixels) {
  const made = linear(range, pixels);
  return data.clients.percent[p] ? percentTicks(made) : made;
}

function inOrderOf(data, p, rows = null) {
  const mean = data.clients.mean[p];
  return (rows || mean.map((_, k) => k)).slice().sort((a, b) => mean[a] - mean[b] || a - b);
}

function forest(data, p, chosen) {
  const c = data.clients, rows = inOrderOf(data, p).reverse(), tall = 26;
  return picture(tall * rows.length + 52, (context, width, height) => {
    const widest = Math.max(...rows.map((k) => context.measureText(c.ids[k]).width)), room = Math.min(widest + 16, width * 0.36);
    const x = valueAxis(data, p, scaleOf(data, p), [room, width - 12]), y = Object.assign(linear([0, 1], [height - 40, 4]), { ticks: () => [] });
    frame(context, x, y, { xlabel: c.parameters[p] });
    rows.forEach((k, r) => {
      const at = 4 + tall * (r + 0.5);
      context.textAlign = "right"; context.textBaseline = "middle"; context.fillStyle = colour("ink");
      context.fillText(fitted(context, c.ids[k], room - 12), room - 8, at);
      if (chosen() === k) { context.fillStyle = colour("hover"); context.fillRect(room + 1, at - tall / 2, width - 12 - room, tall); }
      clipped(context, x, y, () => {
        if (c.own[p][k] != null) bar(context, x, at - 4, c.own_lower[p][k], c.own_upper[p][k], c.own[p][k], "own", 1.3, 3);
        bar(context, x, at + 4, c.lower[p][k], c.upper[p][k], c.mean[p][k], differHue(c.differs[p][k]), 3, 4.5);
      });
    });
  }, { label: "Clients in order", hover: (px, py) => { const r = Math.floor((py - 4) / tall); return r >= 0 && r < rows.length ? [c.ids[rows[r]], describeClient(data, rows[r])] : null; } });
}

function bar(context, x, at, low, high, middle, hue, width, radius) {
  context.strokeStyle = context.fillStyle = colour(hue);
  context.lineWidth = width;
  if (low != null && high != null) line(context, x(low), at, x(high), at);
  disc(context, x(middle), at, radius);
}

function caterpillar(data, p, chosen) {
  const c = data.clients, rows = inOrderOf(data, p);
  let spots = [];
  return picture(340, (context, width, height) => {
    const x = linear([-0.5, rows.length - 0.5], [MARGIN.left, width - MARGIN.right]), y = valueAxis(data, p, scaleOf(data, p), [height - MARGIN.bottom, MARGIN.top]);
    frame(context, Object.assign(x, { ticks: () => [] }), y, { xlabel: `${rows.length.toLocaleString("en")} ${data.noun[1]}, lowest to highest`, ylabel: c.parameters[p] });
    const each = (x.range[1] - x.range[0]) / rows.length, dot = Math.max(0.7, Math.min(3, each * 0.4));
    const hues = huesFor(1);
    spots = [];
    // One path for each colour: twenty thousand strokes would be felt.
    const strokes = (hue, opacity, width_, of, keep) => {
      context.strokeStyle = faded(hue, opacity);
      context.lineWidth = width_;
      context.beginPath();
      rows.forEach((k, r) => { if (keep(k)) { context.moveTo(x(r), y(of(k)[0])); context.lineTo(x(r), y(of(k)[1])); } });
      context.stroke();
    };
    clipped(context, x, y, () => {
      strokes("own", Math.max(0.05, Math.min(0.55, each / 5)), Math.max(0.5, Math.min(1.3, each * 0.3)), (k) => [c.own_lower[p][k], c.own_upper[p][k]], (k) => c.own_lower[p][k] != null && c.own_upper[p][k] != null);
      for (const way of [0, 1, -1]) {
        const hue = differHue(way), mine = (k) => Math.sign(c.differs[p][k]) === way;
        strokes(hue, Math.max(0.12, Math.min(0.8, each / 4)), Math.max(0.6, Math.min(3.5, each * 0.5)), (k) => [c.lower[p][k], c.upper[p][k]], mine);
      }
      context.fillStyle = faded("own", Math.max(0.1, Math.min(1, each / 3)));
      rows.forEach((k, r) => { if (c.own[p][k] != null) { context.fillRect(x(r) - dot * 0.8, y(c.own[p][k]) - dot * 0.8, 1.6 * dot, 1.6 * dot); spots.push(x(r), y(c.own[p][k]), k); } });
      rows.forEach((k, r) => { context.fillStyle = hues[differHue(c.differs[p][k])]; context.fillRect(x(r) - dot, y(c.mean[p][k]) - dot, 2 * dot, 2 * dot); spots.push(x(r), y(c.mean[p][k]), k); });
      const r = rows.indexOf(chosen());
      if (r >= 0) { context.strokeStyle = colour("ink"); context.lineWidth = 1.5; line(context, x(r), y.range[0], x(r), y.range[1]); }
    });
  }, { label: "Caterpillar plot", hover: (px, py) => { const k = nearest(spots, px, py, 14); return k < 0 ? null : [c.ids[k], describeClient(data, k)]; } });
}

// Looked up once for each picture, not for each client.
function huesFor(opacity) {
  return Object.fromEntries(["atom", "good", "after"].map((name) => [name, faded(name, opacity)]));
}

function funnelFigure(data, p, chosen) {
  const c = data.clients, f = data.funnels[p], count = f.clients.length;
  let spots = [];
  const small = f.x.slice().sort((a, b) => a - b)[Math.floor(count * 0.03)];
  const figure = picture(340, (context, width, height) => {
    const hues = huesFor(count > 3000 ? 0.4 : 0.8);
    const wide = Math.max(...f.x) / Math.max(Math.min(...f.x), 1e-300) > 30;
    const own = f.clients.map((k) => c.own[p][k]);
    const limits = (values) => values.filter((_, i) => f.limits.x[i] >= small);
    const range = robustExtent([f.target, ...own], limits(f.limits.lower[0]).concat(limits(f.limits.upper[0])));
    const span = wide ? [Math.min(...f.x) / 1.15, Math.max(...f.x) * 1.15] : [Math.max(0, Math.min(...f.x) * 0.9), Math.max(...f.x) * 1.05];
    const box = [MARGIN.left, width - MARGIN.right], x = wide ? logarithmic(span, box) : linear(span, box), y = valueAxis(data, p, range, [height - MARGIN.bottom, MARGIN.top]);
    frame(context, x, y, { xlabel: f.label, ylabel: `own ${c.parameters[p]}` });
    spots = [];
    clipped(context, x, y, () => {
      context.strokeStyle = colour("line");
      line(context, x.range[0], y(f.target), x.range[1], y(f.target));
      const dot = count > 3000 ? 1.2 : count > 300 ? 2 : 3.4;
      f.clients.forEach((k, i) => {
        context.fillStyle = hues[differHue(c.differs[p][k])];
        if (count > 3000) context.fillRect(x(f.x[i]) - dot, y(own[i]) - dot, 2 * dot, 2 * dot); else disc(context, x(f.x[i]), y(own[i]), dot);
        spots.push(x(f.x[i]), y(own[i]), k);
        if (k === chosen()) { context.strokeStyle = colour("ink"); context.lineWidth = 2; context.beginPath(); context.arc(x(f.x[i]), y(own[i]), dot + 3, 0, 7); context.stroke(); }
      });
      [[0, []], [1, [5, 4]]].forEach(([level, dash]) => {
        context.strokeStyle = faded("ink", 0.75);
        context.lineWidth = 1.2;
        context.setLineDash(dash);
        for (const side of [f.limits.lower[level], f.limits.upper[level]]) {
          context.beginPath();
          side.forEach((limit, i) => context[i ? "lineTo" : "moveTo"](x(f.limits.x[i]), y(limit)));
          context.stroke();
        }
      });
      context.setLineDash([]);
    });
  }, { label: "Funnel plot", hover: (px, py) => { const k = nearest(spots, px, py, 14); return k < 0 ? null : [c.ids[k], describeClient(data, k)]; } });
  return titled("Funnel plot", figure, `Own estimates around ${inUnit(c.percent[p], f.target)}, the average of all. If all were alike, chance would leave 5% outside the solid limits and 0.2% outside the dashed ones. Here, ${f.outside[0].toLocaleString("en")} of ${count.toLocaleString("en")} lie outside the solid limits, ${f.outside[1].toLocaleString("en")} outside the dashed ones.`);
}
