// The population with its clients: a line, a plane, or space (space.js).
//
// view = {prior: {axes, atoms (m, q), weights, spreads}, own (q, K), mean (q, K), ids, noise (q), describe(k), words: [own, after]}

function priorSection(name, title, lead, view) {
  const holder = element("div");
  const q = view.prior.axes.length, principal = view.prior.dimension > 3 ? q - 3 : -1;
  const kinds = ["One coordinate", "Two", "Three, to rotate"].slice(0, Math.min(q, 3));
  const controls = element("div", { class: "controls" });
  const rebuild = () => {
    const kind = state[`${name}:kind`];
    const selects = ["x", "y", "z"].slice(0, kind + 1).map((axis, i) => choice(`${name}:${axis}${kind}`, kind ? axis : "Show", view.prior.axes, rebuild, principal >= 0 && kind > 0 ? principal + i : kind === 0 ? (view.opens ?? 0) : i));
    const chosen = ["x", "y", "z"].slice(0, kind + 1).map((axis) => state[`${name}:${axis}${kind}`]);
    for (const drawn of holder.querySelectorAll("figure")) redraws.delete(drawn.redraw);
    const figure = [lineView, planeView, spaceView][kind](name, view, chosen);
    const again = () => figure.redraw();
    const boxes = !view.ids.length ? [] : view.single ? [["after", view.words[1]]] : [["own", view.words[0]], ["after", view.words[1]], ["lines", "lines between"]];
    if (!view.prior.spreads) boxes.push(["atoms", "atoms"]);
    if (kind === 1) boxes.push(["contours", "contours"]);
    controls.replaceChildren(...(q > 1 ? [segments(`${name}:kind`, kinds, rebuild, Math.min(q, kinds.length) - 1), ...selects] : []), ...boxes.map(([box, label]) => checkbox(`${name}:${box}`, label, again)));
    holder.replaceChildren(figure, element("figcaption", {}, caption(view, kind, chosen)));
    figure.redraw();
  };
  if (!(`${name}:kind` in state)) state[`${name}:kind`] = view.opens == null ? Math.min(q, 3) - 1 : q === 2 ? 1 : 0;
  const dots = element("div", { class: "legend" }, view.single ? null : key("own")(view.words[0]), key("after")(view.words[1]), view.prior.spreads ? null : key("atom")("atoms, area by weight"));
  queueMicrotask(rebuild);
  return section(title, lead, controls, view.ids.length ? dots : null, holder);
}

function caption(view, kind, chosen) {
  const beyond = (values, k) => chosen.some((i) => { const v = values[i][k], [low, high] = rangeOf(view, i); return v != null && (v < low || v > high); });
  const outside = view.ids.filter((_, k) => beyond(view.own, k) || beyond(view.mean, k)).length;
  const missing = view.ids.filter((_, k) => chosen.some((i) => view.own[i][k] == null)).length;
  const [one, many] = view.noun, parts = [], below = view.ids.length ? ` Below: each ${one}'s own estimate, joined to its personalised one.` : "";
  if (kind === 0) parts.push(view.prior.curves ? `Line: how common each value is expected to be among new ${many}. Band: where that line lies in 90% of the populations that fit the data.` + below : view.prior.spreads ? "Filled: density of the population." + below : `The population is a set of points (stems, by weight). The filled curve is what estimates of a typical ${one} would look like: the points, blurred by the median ${one}'s noise.`);
  if (kind === 1) parts.push(view.prior.spreads ? "Contours hold 50%, 80% and 95% of the population, averaged over those that fit the data." : `Contours hold 50%, 80% and 95% of the estimates of a typical ${one}: the atoms, blurred by the median ${one}'s noise.`);
  if (kind === 2) parts.push("Drag, or use the arrow keys, to rotate.");
  if (outside) parts.push(`${outside.toLocaleString("en")} ${outside === 1 ? `${one} lies` : `${many} lie`} outside the picture.`);
  if (view.ids.length > MOST_LINES && !view.single) parts.push(`Lines join one in ${Math.ceil(view.ids.length / MOST_LINES)} ${many}.`);
  if (missing && !view.single) parts.push(`${missing.toLocaleString("en")} ${missing === 1 ? `${one} has` : `${many} have`} no estimate of their own here.`);
  return parts.join(" ");
}

function rangeOf(view, i) {
  view.ranges = view.ranges || view.prior.ranges || {};
  // Atoms that one client has to itself, and clients that nobody is near, must not squeeze the others.
  const usual = view.usual || [], atoms = view.prior.spreads ? [] : view.prior.atoms.filter((_, j) => view.prior.weights[j] * view.ids.length > 1.5).map((a) => a[i]);
  view.ranges[i] = view.ranges[i] || robustExtent(view.mean[i].filter((_, k) => usual[k] !== false).concat(atoms), view.own[i].slice());
  return view.ranges[i];
}

function inScale(view, i, pixels) {
  const made = linear(rangeOf(view, i), pixels);
  return view.prior.percent && i < view.prior.parameters ? percentTicks(made) : made;
}

function nearest(spots, px, py, reach = 16) {
  let best = reach * reach, found = -1;
  for (let s = 0; s < spots.length; s += 3) {
    const dx = spots[s] - px, dy = spots[s + 1] - py, d = dx * dx + dy * dy;
    if (d < best) { best = d; found = spots[s + 2]; }
  }
  return found;
}

function hoverClient(view, spots) {
  return (px, py) => { const k = nearest(spots(), px, py); return k < 0 ? null : [view.ids[k], view.describe(k)]; };
}

const MOST_LINES = 400;   // of more clients, evenly spaced ones are joined
const opacityFor = (count) => Math.max(0.08, Math.min(0.75, 60 / Math.sqrt(count) / 4));
const atomRadius = (weight, largest, count) => { const most = 4 + 10 / (1 + count / 60); return Math.max(Math.min(2.5, most / 2), Math.sqrt(weight / largest) * most); };

function lineView(name, view, [i]) {
  const { prior } = view, count = view.ids.length;
  let spots = [];
  const draw = (context, width, height) => {
    const x = inScale(view, i, [MARGIN.left, width - MARGIN.right]);
    const split = height - (count ? 150 : MARGIN.bottom + 10);
    const fine = ((x.domain[1] - x.domain[0]) / 200) ** 2, extra = prior.spreads ? fine : view.noise[i] || 11 * fine;
    const curve = prior.curves && prior.curves[i];
    const xs = spaced(x.domain[0], x.domain[1], curve ? curve.mean.length : 400), values = curve ? curve.mean : xs.map(density1(prior, i, extra));
    const top = Math.max(...values, ...(curve ? curve.high.map((v, s) => Math.min(v, 4 * Math.max(...curve.mean))) : []));
    const y = linear([0, top * 1.08], [split, MARGIN.top]);
    frame(context, x, Object.assign(linear([0, 1], [height - MARGIN.bottom, MARGIN.top]), { ticks: () => [] }), { xlabel: prior.axes[i] });
    context.fillStyle = faded("after", 0.16);
    context.strokeStyle = colour("after");
    context.lineWidth = 1.6;
    context.beginPath();
    if (curve) {
      curve.high.forEach((v, s) => context[s ? "lineTo" : "moveTo"](x(xs[s]), Math.max(y(v), MARGIN.top)));
      for (let s = xs.length - 1; s >= 0; s--) context.lineTo(x(xs[s]), y(curve.low[s]));
      context.fill();
      context.beginPath();
    }
    xs.forEach((v, s) => context[s ? "lineTo" : "moveTo"](x(v), y(values[s])));
    context.stroke();
    if (!curve) { context.lineTo(x.range[1], split); context.lineTo(x.range[0], split); context.fill(); }
    const largest = Math.max(...prior.weights);
    if (state[`${name}:atoms`] && !prior.spreads) {
      context.strokeStyle = context.fillStyle = colour("atom");
      context.lineWidth = 1.5;
      prior.atoms.forEach((a, j) => {
        const tall = split - (split - MARGIN.top) * 0.92 * (prior.weights[j] / largest);
        line(context, x(a[i]), split, x(a[i]), tall);
        disc(context, x(a[i]), tall, 3.2);
      });
    }
    const up = split + 24, down = height - MARGIN.bottom - 12;
    context.fillStyle = colour("muted");
    context.textAlign = "left";
    context.textBaseline = "bottom";
    if (count && !view.single) context.fillText("own", 8, up + 6);
    if (count) context.fillText("after", 8, down + 6);
    spots = [];
    clipped(context, x, linear([0, 1], [height, 0]), () => {
      const opacity = opacityFor(count);
      if (state[`${name}:lines`]) {
        context.strokeStyle = faded("muted", opacityFor(Math.min(count, MOST_LINES)) * 0.7);
        context.lineWidth = 1;
        context.beginPath();
        for (let k = 0; k < count; k += Math.ceil(count / MOST_LINES)) if (view.own[i][k] != null) { context.moveTo(x(view.own[i][k]), up); context.lineTo(x(view.mean[i][k]), down); }
        context.stroke();
      }
      for (const [values, at, hue, shown] of [[view.own[i], up, "own", "own"], [view.mean[i], down, "after", "after"]]) {
        if (!state[`${name}:${shown}`]) continue;
        context.fillStyle = faded(hue, Math.max(opacity, 0.25));
        for (let k = 0; k < count; k++) if (values[k] != null) { disc(context, x(values[k]), at, 3); spots.push(x(values[k]), at, k); }
      }
      highlight(context, view, (k) => [x(view.own[i][k]), up, x(view.mean[i][k]), down], view.own[i]);
    });
  };
  return picture(430, draw, { hover: hoverClient(view, () => spots), label: `Population in ${prior.axes[i]}` });
}

function planeView(name, view, [i, k]) {
  const { prior } = view, count = view.ids.length;
  let spots = [], grid = null;
  const draw = (context, width, height) => {
    const x = inScale(view, i, [MARGIN.left, width - MARGIN.right]), y = inScale(view, k, [height - MARGIN.bottom, MARGIN.top]);
    frame(context, x, y, { xlabel: prior.axes[i], ylabel: prior.axes[k] });
    clipped(context, x, y, () => {
      if (state[`${name}:contours`]) {
        const side = 90, xs = spaced(...x.domain, side), ys = spaced(...y.domain, side);
        const blur = [i, k].map((c, axis) => { const span = [x, y][axis].domain; const fine = ((span[1] - span[0]) / 150) ** 2; return prior.spreads ? fine : view.noise[c] || 14 * fine; });
        grid = grid || density2(prior, i, k, blur, xs, ys);
        massLevels(grid, [0.5, 0.8, 0.95]).forEach((level, n) => {
          context.strokeStyle = faded("after", 0.75 - 0.2 * n);
          context.lineWidth = 1.4;
          context.beginPath();
          const to = (u, low, high) => low + ((high - low) * u) / (side - 1);
          contour(grid, side, side, level, (x1, y1, x2, y2) => { context.moveTo(x(to(x1, ...x.domain)), y(to(y1, ...y.domain))); context.lineTo(x(to(x2, ...x.domain)), y(to(y2, ...y.domain))); });
          context.stroke();
        });
      }
      spots = cloud(context, name, view, count, (values, c) => [x(values[i][c]), y(values[k][c])], (c) => view.own[i][c] != null && view.own[k][c] != null);
      if (state[`${name}:atoms`] && !prior.spreads) {
        const largest = Math.max(...prior.weights);
        prior.atoms.forEach((a, j) => { context.fillStyle = faded("atom", 0.35); disc(context, x(a[i]), y(a[k]), atomRadius(prior.weights[j], largest, prior.weights.length)); context.strokeStyle = colour("atom"); context.lineWidth = 1; context.stroke(); });
      }
      highlight(context, view, (c) => [x(view.own[i][c]), y(view.own[k][c]), x(view.mean[i][c]), y(view.mean[k][c])], view.own[i]);
    });
  };
  return picture(470, draw, { hover: hoverClient(view, () => spots), label: `Population in ${prior.axes[i]} and ${prior.axes[k]}` });
}

// Clients before and after; place(values, k) gives pixels.  Returns what can be hovered.
function cloud(context, name, view, count, place, hasOwn, skipLines = false, hasMean = () => true) {
  const spots = [], opacity = opacityFor(count), size = count > 3000 ? 1.4 : count > 400 ? 2 : 3;
  if (state[`${name}:lines`] && !skipLines) {
    context.strokeStyle = faded("muted", opacityFor(Math.min(count, MOST_LINES)) * 0.6);
    context.lineWidth = 0.8;
    context.beginPath();
    for (let k = 0; k < count; k += Math.ceil(count / MOST_LINES)) if (hasOwn(k)) { context.moveTo(...place(view.own, k)); context.lineTo(...place(view.mean, k)); }
    context.stroke();
  }
  for (const [values, hue] of [[view.own, "own"], [view.mean, "after"]]) {
    if (!state[`${name}:${hue}`]) continue;
    context.fillStyle = faded(hue, Math.max(opacity, hue === "after" ? 0.5 : 0.3));
    for (let k = 0; k < count; k++) {
      if (!(hue === "own" ? hasOwn : hasMean)(k)) continue;
      const [px, py] = place(values, k);
      if (count > 3000) context.fillRect(px - size, py - size, 2 * size, 2 * size);
      else disc(context, px, py, size);
      spots.push(px, py, k);
    }
  }
  return spots;
}

// The client that was chosen in the table.
function highlight(context, view, place, own) {
  const k = view.chosen ? view.chosen() : -1;
  if (k < 0) return;
  const [x1, y1, x2, y2] = place(k);
  context.strokeStyle = context.fillStyle = colour("ink");
  context.lineWidth = 2;
  if (own[k] != null) { line(context, x1, y1, x2, y2); context.beginPath(); context.arc(x1, y1, 5, 0, 7); context.stroke(); }
  disc(context, x2, y2, 5);
}
