// Three coordinates, turned by hand: an orthographic projection of the points.

function spaceView(name, view, axes) {
  const { prior } = view, count = view.ids.length;
  const ranges = axes.map((i) => rangeOf(view, i));
  const unit = (values, k, c) => { const [low, high] = ranges[c]; return (2 * (values[axes[c]][k] - low)) / (high - low) - 1; };
  state[`${name}:turn`] = state[`${name}:turn`] || [0.6, 0.4];
  const turn = state[`${name}:turn`];
  let spots = [], dragging = false;
  const draw = (context, width, height) => {
    const size = Math.min(width * 0.31, height * 0.32), cx = width / 2, cy = height / 2 - 4;
    const [cosY, sinY, cosX, sinX] = [Math.cos(turn[0]), Math.sin(turn[0]), Math.cos(turn[1]), Math.sin(turn[1])];
    // x to the right, y into the page, z up.
    const project = (x, y, z) => {
      const right = cosY * x + sinY * y, deep = -sinY * x + cosY * y;
      return [cx + size * right, cy - size * (cosX * z + sinX * deep), cosX * deep - sinX * z];
    };
    const inside = (v) => Math.abs(v) <= 1.02;
    const within = (values, k) => axes.every((i, c) => values[i][k] != null && inside(unit(values, k, c)));
    box(context, project, axes.map((i) => prior.axes[i]), ranges);
    const place = (values, k) => project(unit(values, k, 0), unit(values, k, 1), unit(values, k, 2)).slice(0, 2);
    spots = cloud(context, name, view, count, place, (k) => within(view.own, k) && within(view.mean, k), dragging && count > 3000, (k) => within(view.mean, k));
    if (state[`${name}:atoms`] && !prior.spreads) {
      const largest = Math.max(...prior.weights);
      const placed = prior.atoms.map((a, j) => { const c = axes.map((i, n) => (2 * (a[i] - ranges[n][0])) / (ranges[n][1] - ranges[n][0]) - 1); return [...project(...c), prior.weights[j]]; });
      const visible = placed.filter((p, j) => axes.every((i, n) => prior.atoms[j][i] >= ranges[n][0] && prior.atoms[j][i] <= ranges[n][1]));
      visible.sort((a, b) => b[2] - a[2]);
      for (const [px, py, deep, weight] of visible) {
        context.fillStyle = faded("atom", 0.35 - 0.15 * deep);
        disc(context, px, py, atomRadius(weight, largest, prior.weights.length) * (1 - 0.12 * deep));
        context.strokeStyle = faded("atom", 0.75 - 0.15 * deep);
        context.lineWidth = 1;
        context.stroke();
      }
    }
    highlight(context, view, (k) => [...place(view.own, k), ...place(view.mean, k)], view.own[axes[0]]);
  };
  const interact = (canvas, redraw) => {
    canvas.style.touchAction = "pan-y";
    canvas.style.cursor = "grab";
    canvas.tabIndex = 0;
    let waiting = false;
    const later = () => { if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; redraw(); }); } };
    const by = (dx, dy) => { turn[0] += dx; turn[1] = Math.max(-1.5, Math.min(1.5, turn[1] + dy)); later(); };
    canvas.addEventListener("pointerdown", (event) => { dragging = true; canvas.setPointerCapture(event.pointerId); canvas.style.cursor = "grabbing"; });
    canvas.addEventListener("pointermove", (event) => { if (dragging) { tip.hide(); by(event.movementX * 0.008, event.movementY * 0.008); } });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { if (dragging) { dragging = false; canvas.style.cursor = "grab"; redraw(); } });
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] }[event.key];
      if (step) { event.preventDefault(); by(...step); }
    });
  };
  const hover = (px, py) => (dragging ? null : hoverClient(view, () => spots)(px, py));
  return picture(540, draw, { hover, interact, label: `Population in ${axes.map((i) => prior.axes[i]).join(", ")}` });
}

// Text that is moved until the picture holds all of it.
function inside(context, text, x, y) {
  const wide = context.measureText(text).width, room = context.canvas.clientWidth - 2;
  const before = { left: 0, start: 0, center: wide / 2, right: wide, end: wide }[context.textAlign];
  context.fillText(text, Math.max(2 + before, Math.min(x, room - wide + before)), y);
}

function box(context, project, names, ranges) {
  context.strokeStyle = colour("line");
  context.fillStyle = colour("muted");
  context.lineWidth = 1;
  const corner = (bits) => [0, 1, 2].map((c) => ((bits >> c) & 1 ? 1 : -1));
  for (let from = 0; from < 8; from++) for (let c = 0; c < 3; c++) {
    const to = from | (1 << c);
    if (to === from) continue;
    const a = project(...corner(from)), b = project(...corner(to));
    line(context, a[0], a[1], b[0], b[1]);
  }
  context.textBaseline = "middle";
  const centre = project(0, 0, 0);
  names.forEach((name, c) => {
    // The edge along this axis that is furthest out to the bottom is labelled.
    const edges = [0, 1, 2, 3].map((n) => {
      const ends = [-1, 1].map((v) => { const p = [0, 0, 0]; p[c] = v; p[(c + 1) % 3] = n & 1 ? 1 : -1; p[(c + 2) % 3] = n & 2 ? 1 : -1; return project(...p); });
      return ends;
    });
    edges.sort((a, b) => score(b) - score(a));
    function score(e) { const mx = (e[0][0] + e[1][0]) / 2 - centre[0], my = (e[0][1] + e[1][1]) / 2 - centre[1]; return c === 2 ? Math.abs(mx) : my; }
    const [a, b] = edges[0];
    const side = Math.sign((a[0] + b[0]) / 2 - centre[0]) || 1;
    context.textAlign = side > 0 ? "left" : "right";
    const down = c === 2 ? 0 : 12;
    inside(context, fitted(context, name, 150), (a[0] + b[0]) / 2 + 12 * side, (a[1] + b[1]) / 2 + down);
    context.save();
    context.font = "10px system-ui, sans-serif";
    for (const [value, share] of [[ranges[c][0], 0.07], [ranges[c][1], 0.93]]) inside(context, say(value, 2), a[0] + share * (b[0] - a[0]) + 6 * side, a[1] + share * (b[1] - a[1]) + down * 0.7);
    context.restore();
  });
}
