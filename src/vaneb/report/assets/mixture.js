// The population G = sum_j w_j N(a_j, S_j) in one or two coordinates, and contours.

// Density at x of coordinate i; extra is a variance added to every component's.
function density1(prior, i, extra) {
  const parts = prior.weights.map((w, j) => {
    const sd = Math.sqrt((prior.spreads ? prior.spreads[j][i][i] : 0) + extra);
    return [prior.atoms[j][i], sd, w / (sd * Math.sqrt(2 * Math.PI))];
  });
  return (x) => {
    let sum = 0;
    for (const [at, sd, factor] of parts) {
      const z = (x - at) / sd;
      if (z * z < 80) sum += factor * Math.exp(-0.5 * z * z);
    }
    return sum;
  };
}

// Values on a grid of side x side points, row by row.
function density2(prior, i, k, extra, xs, ys) {
  const values = new Float64Array(xs.length * ys.length);
  for (let j = 0; j < prior.weights.length; j++) {
    const g = prior.spreads && prior.spreads[j];
    const a = (g ? g[i][i] : 0) + extra[0], b = g ? g[i][k] : 0, c = (g ? g[k][k] : 0) + extra[1];
    const det = Math.max(a * c - b * b, 1e-12 * a * c), weight = prior.weights[j] / (2 * Math.PI * Math.sqrt(det));
    for (let r = 0; r < ys.length; r++) {
      const dy = ys[r] - prior.atoms[j][k];
      if ((dy * dy) / c > 60) continue;
      for (let q = 0; q < xs.length; q++) {
        const dx = xs[q] - prior.atoms[j][i];
        const z = (c * dx * dx - 2 * b * dx * dy + a * dy * dy) / det;
        if (z < 60) values[r * xs.length + q] += weight * Math.exp(-0.5 * z);
      }
    }
  }
  return values;
}

// Levels above which the given shares of all mass lie.
function massLevels(values, shares) {
  const sorted = Float64Array.from(values).sort().reverse();
  const total = sorted.reduce((sum, v) => sum + v, 0);
  const levels = [];
  let sum = 0, at = 0;
  for (const share of shares) {
    while (at < sorted.length && sum < share * total) sum += sorted[at++];
    levels.push(sorted[Math.max(0, at - 1)]);
  }
  return levels;
}

// Marching squares: calls segment(x1, y1, x2, y2) in grid units.
function contour(values, nx, ny, level, segment) {
  const cross = (a, b) => (level - a) / (b - a || 1);
  for (let r = 0; r + 1 < ny; r++) {
    for (let q = 0; q + 1 < nx; q++) {
      const a = values[r * nx + q], b = values[r * nx + q + 1], c = values[(r + 1) * nx + q + 1], d = values[(r + 1) * nx + q];
      const code = (a > level) | ((b > level) << 1) | ((c > level) << 2) | ((d > level) << 3);
      if (code === 0 || code === 15) continue;
      const bottom = [q + cross(a, b), r], right = [q + 1, r + cross(b, c)], top = [q + cross(d, c), r + 1], left = [q, r + cross(a, d)];
      const pairs = {
        1: [[left, bottom]], 2: [[bottom, right]], 3: [[left, right]], 4: [[right, top]], 5: [[left, top], [bottom, right]], 6: [[bottom, top]], 7: [[left, top]],
        8: [[top, left]], 9: [[top, bottom]], 10: [[left, bottom], [top, right]], 11: [[top, right]], 12: [[right, left]], 13: [[right, bottom]], 14: [[bottom, left]],
      }[code];
      for (const [from, to] of pairs) segment(from[0], from[1], to[0], to[1]);
    }
  }
}

function spaced(low, high, count) {
  return Array.from({ length: count }, (_, i) => low + ((high - low) * i) / (count - 1));
}
