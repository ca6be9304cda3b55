"use strict";

// Draws the curves of a run as SVG. Every chart shows the same steps and has the same cursor.
const Charts = (() => {
  const LEFT = 58, RIGHT = 18, TOP = 20, BOTTOM = 26;
  const NEAR = 7; // Pixels within which the pointer is on a mark.
  const THIN = "\u202f";

  // Creates an SVG element inside another one. Text is set as text, never as markup.
  function add(parent, name, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  const count = (value) => String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, THIN);

  function figure(value) {
    const size = Math.abs(value);
    if (value === 0) return "0";
    if (size < 0.001) return value.toExponential(1);
    if (size < 9.9995) return value.toFixed(3);
    if (size < 99.995) return value.toFixed(2);
    if (size < 9999.5) return value.toFixed(0);
    return size < 99999.5 && value > 0 ? count(value) : value.toExponential(1);
  }

  // Returns about `wanted` multiples of 1, 2 or 5 × 10ⁿ from `low` to `high`, and the distance between them.
  function roundValues(low, high, wanted) {
    const span = high - low;
    if (!(span > 0)) return { values: [low], step: 1 };
    const power = 10 ** Math.floor(Math.log10(span / wanted));
    const off = (factor) => Math.abs(span / (factor * power) - wanted);
    const step = [1, 2, 5, 10].reduce((best, factor) => (off(factor) < off(best) ? factor : best)) * power;
    const values = [];
    const first = Math.ceil(low / step - 1e-9);
    for (let place = 0; place < 60 && (first + place) * step <= high + step * 1e-9; place += 1) values.push((first + place) * step);
    return { values, step };
  }

  function logValues(low, high, wanted) {
    const decades = Math.log10(high / low);
    const factors = decades * 3 > wanted * 1.3 ? [1] : [1, 2, 5];
    const stride = Math.max(1, Math.round(decades / wanted));
    const values = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += stride) {
      values.push(...factors.map((factor) => factor * 10 ** power));
    }
    return values.filter((value) => value >= low && value <= high);
  }

  // `most` is the largest tick of the axis: small values are powers of ten on the whole axis, or nowhere.
  function tickText(value, step, most) {
    const size = Math.abs(value);
    if (Math.abs(value) < most * 1e-9) return "0";
    if (most < 1e-2 || size < 1e-4 || size >= 1e6) return String(Number(value.toPrecision(3)).toExponential()).replace("e+", "e").replaceAll("-", "\u2212");
    if (!step) return String(Number(value.toPrecision(3)));
    const decimals = Math.min(9, Math.max(0, -Math.floor(Math.log10(step * 1.0001))));
    return value.toFixed(decimals).replace("-", "\u2212");
  }

  // Smooths as TensorBoard does: the weight applies to the past, with bias correction. A column of n steps counts n
  // times; skipped steps do not change the average.
  function smooth(means, weight, each) {
    const kept = weight ** each;
    let sum = 0, norm = 0;
    return means.map((mean) => {
      if (mean === null) return null;
      sum = kept * sum + (1 - kept) * mean;
      norm = kept * norm + (1 - kept);
      return sum / norm;
    });
  }

  // Returns the top of the range, and the largest value if that is a spike far above its neighbours.
  function rangeTop(low, highs) {
    let high = -Infinity, usual = -Infinity;
    highs.forEach((value, place) => {
      high = Math.max(high, value);
      const near = highs.slice(Math.max(0, place - 3), place + 4).sort((a, b) => a - b);
      usual = Math.max(usual, highs.length >= 30 ? near[near.length >> 1] : value);
    });
    const span = usual - low;
    return span > 0 && high > usual + span * 0.75 ? [usual + span * 0.15, high] : [high, null];
  }

  // One chart. `shared` holds what all charts have in common: the window, the cursor, smoothing and scale.
  class Chart {
    constructor(data, chart, shared, first) {
      Object.assign(this, { data, chart, shared, first });
      this.svg = add(shared.place(chart, first), "svg", { tabindex: 0, role: "img", "aria-label": chart.title });
      this.readout = this.svg.parentNode.querySelector("output");
      this.stepOf = (column) => data.first + (data.columns > 1 ? (column * (data.last - data.first)) / (data.columns - 1) : 0);
      this.svg.addEventListener("pointermove", (event) => this.point(event));
      this.svg.addEventListener("pointerdown", (event) => this.press(event));
      this.svg.addEventListener("pointerup", (event) => this.release(event));
      this.svg.addEventListener("pointerleave", () => this.from === undefined && shared.setCursor(null));
      this.svg.addEventListener("dblclick", () => shared.setWindow(null));
      this.svg.addEventListener("keydown", (event) => this.type(event));
    }

    get log() {
      const wanted = this.shared.scale === "auto" ? this.chart.log : this.shared.scale === "log";
      return wanted && this.low > 0;
    }

    x(step) {
      const { start, end } = this.shared;
      return LEFT + ((step - start) / (end - start || 1)) * this.width;
    }

    shows(x) {
      return x >= LEFT - 1 && x <= LEFT + this.width + 1;
    }

    step(x) {
      const { start, end } = this.shared;
      return start + ((x - LEFT) / this.width) * (end - start);
    }

    y(value) {
      const on = this.log ? Math.log : Number;
      const share = (on(Math.max(value, this.log ? Number.MIN_VALUE : -Infinity)) - on(this.bottom)) / (on(this.top) - on(this.bottom));
      // Far outside, the line leaves the chart at its own angle.
      return TOP + (1 - Math.min(20, Math.max(-20, share))) * this.height;
    }

    // Merges the visible columns that share a pixel, and one more on either side.
    bins() {
      const { chart, data } = this;
      const line = smooth(chart.mean, chart.noisy ? this.shared.weight : 0, chart.each);
      const skipped = new Set(data.skipped);
      const parts = [[]];
      chart.mean.forEach((mean, column) => {
        const x = this.x(this.stepOf(column));
        if (x < LEFT - this.width || x > LEFT + 2 * this.width) return;
        const part = parts[parts.length - 1];
        if (mean === null) {
          if (skipped.has(column) && part.length) parts.push([]);
          return;
        }
        const low = chart.low ? chart.low[column] : mean, high = chart.high ? chart.high[column] : mean;
        const last = part[part.length - 1];
        if (last && Math.floor(last.x) === Math.floor(x)) {
          Object.assign(last, { low: Math.min(last.low, low), high: Math.max(last.high, high), line: (last.line * last.n + line[column]) / (last.n + 1), n: last.n + 1 });
        } else {
          part.push({ x, low, high, line: line[column], n: 1 });
        }
      });
      return parts.filter((part) => part.length);
    }

    // Sets the range of values from what is visible.
    measure(parts, evals) {
      const visible = parts.flat().filter((bin) => this.shows(bin.x));
      const values = evals.filter((dot) => this.shows(this.x(dot.step))).map((dot) => dot.value);
      this.low = Math.min(...visible.map((bin) => bin.low), ...values);
      const tops = [visible.map((bin) => bin.high), values].filter((list) => list.length).map((list) => rangeTop(this.low, list));
      if (!tops.length) return false;
      // A smoothed line follows later than its values, so it may be higher than those that are visible.
      const high = Math.max(...tops.map(([top]) => top), ...visible.map((bin) => bin.line ?? -Infinity));
      this.cut = Math.max(...tops.map(([, cut]) => cut ?? -Infinity));
      this.cut = this.cut > high ? this.cut : null;
      if (high - this.low <= Math.abs(high) * 1e-6) {
        const air = Math.abs(high) * 0.1 || 1e-3;
        [this.bottom, this.top] = this.log ? [this.low / 1.5, high * 1.5] : [this.low - air, high + air];
      } else if (this.log) {
        const air = (high / this.low) ** 0.04;
        [this.bottom, this.top] = [this.low / air, high * air];
      } else {
        const air = (high - this.low) * 0.06;
        [this.bottom, this.top] = [this.low >= 0 ? Math.max(0, this.low - air) : this.low - air, high + air];
      }
      return true;
    }

    draw() {
      const { svg, chart, data } = this;
      const box = svg.getBoundingClientRect();
      this.width = Math.max(40, box.width - LEFT - RIGHT);
      this.height = Math.max(40, box.height - TOP - BOTTOM);
      svg.replaceChildren();
      const evals = chart.evals ? chart.evals.steps.map((step, place) => ({ step, value: chart.evals.values[place] })) : [];
      this.evals = evals;
      const parts = this.bins();
      if (!this.measure(parts, evals)) {
        add(svg, "text", { class: "empty", x: LEFT, y: TOP + 20 }, "no value in these steps");
        return;
      }
      this.axes();
      const id = `clip-${Chart.ids++}`;
      add(add(svg, "clipPath", { id }), "rect", { x: LEFT, y: TOP - 2, width: this.width, height: this.height + 4 });
      this.marks();
      const inside = add(svg, "g", { "clip-path": `url(#${id})` });
      const path = (points) => points.map(([x, y], place) => `${place ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
      for (const part of parts) {
        const upper = part.map((bin) => [bin.x, this.y(bin.high)]);
        const lower = part.map((bin) => [bin.x, this.y(bin.low)]).reverse();
        if (chart.noisy) add(inside, "path", { class: "band", d: `${path(upper.concat(lower))}Z` });
        add(inside, "path", { class: "line", d: path(part.map((bin) => [bin.x, this.y(bin.line)])) });
      }
      if (evals.length) {
        add(inside, "path", { class: "eval", d: path(evals.map((dot) => [this.x(dot.step), this.y(dot.value)])) });
        this.evaluations(evals);
      }
      if (this.first) this.checkpoints();
      if (chart.skips) this.skips();
      this.best();
      this.cursor = add(svg, "g", { class: "cursor" });
      this.drawCursor();
    }

    axes() {
      const { svg } = this;
      const { start, end } = this.shared;
      const rows = Math.max(2, Math.round(this.height / 46));
      const linear = roundValues(this.bottom, this.top, rows);
      const logs = this.log ? logValues(this.bottom, this.top, rows) : [];
      const [values, distance] = logs.length > 1 ? [logs, 0] : [linear.values, linear.step];
      const most = Math.max(...values.map(Math.abs));
      const ticks = values.map((value) => [value, tickText(value, distance, most)]);
      for (const [value, text] of ticks) {
        const y = this.y(value).toFixed(1);
        add(svg, "path", { class: "grid", d: `M${LEFT} ${y}h${this.width}` });
        add(svg, "text", { class: "tick", x: LEFT - 8, y: Number(y) + 4, "text-anchor": "end" }, text);
      }
      const floor = TOP + this.height;
      add(svg, "path", { class: "axis", d: `M${LEFT} ${floor}h${this.width}` });
      for (const step of roundValues(start, end, Math.max(2, this.width / 120)).values.filter(Number.isInteger)) {
        const x = this.x(step);
        add(svg, "path", { class: "axis", d: `M${x.toFixed(1)} ${floor}v4` });
        add(svg, "text", { class: "tick", x, y: floor + 18, "text-anchor": x > LEFT + this.width - 20 ? "end" : "middle" }, count(step));
      }
      if (this.cut !== null) {
        add(svg, "text", { class: "cut", x: LEFT + this.width, y: TOP - 7, "text-anchor": "end" }, `spike up to ${figure(this.cut)} not shown`);
      }
    }

    // Draws where a worker began or failed: shifts, restarts, faults; names them above the first chart.
    marks() {
      let free = LEFT;
      for (const mark of this.data.marks) {
        const x = this.x(mark.step);
        if (!this.shows(x)) continue;
        const classes = `mark ${mark.kind}${mark.fault ? " fault" : ""}`;
        add(this.svg, "path", { class: classes, d: `M${x.toFixed(1)} ${TOP - 4}V${TOP + this.height}` });
        const length = 6.4 * mark.label.length;
        const right = this.cut === null ? this.width : this.width - 170;
        if (this.first && x >= free && x + length < LEFT + right) {
          add(this.svg, "text", { class: `${classes} name`, x: x + 4, y: TOP - 7 }, mark.label);
          free = x + length + 14;
        }
      }
    }

    // Draws evaluations as diamonds; where they are dense, only some.
    evaluations(evals) {
      let free = Infinity;
      for (const dot of evals.toReversed()) {
        const x = this.x(dot.step), y = this.y(dot.value);
        if (x > free || !this.shows(x) || y < TOP - 2 || y > TOP + this.height + 2) continue;
        free = x - 12;
        add(this.svg, "path", { class: "evaluation", d: `M${x.toFixed(1)} ${(y - 4.5).toFixed(1)}l4.5 4.5l-4.5 4.5l-4.5 -4.5Z` });
      }
    }

    checkpoints() {
      for (const step of this.data.checkpoints.filter((step) => this.shows(this.x(step)))) {
        add(this.svg, "circle", { class: "checkpoint", cx: this.x(step).toFixed(1), cy: TOP + this.height, r: 3 });
      }
    }

    skips() {
      let free = -Infinity;
      for (const column of this.data.skipped) {
        const x = this.x(this.stepOf(column));
        if (x < Math.max(free, LEFT) || x > LEFT + this.width) continue;
        free = x + 3;
        add(this.svg, "path", { class: "skip", d: `M${(x - 3.5).toFixed(1)} ${TOP - 3}h7l-3.5 6Z` });
      }
    }

    best() {
      const { best } = this.chart;
      const x = best ? this.x(best.step) : -1, y = best ? this.y(best.value) : -1;
      if (!best || !this.shows(x) || y < TOP - 2 || y > TOP + this.height + 2) return;
      add(this.svg, "circle", { class: "best", cx: x.toFixed(1), cy: y.toFixed(1), r: 4.5 });
      if (this.height < 150) return;
      const right = x > LEFT + this.width / 2;
      // A loss falls, so the room is above it.
      const above = y - 24 > TOP;
      const at = { class: "best name", x: right ? x + 4 : x - 4, y: above ? y - 11 : y + 20, "text-anchor": right ? "end" : "start" };
      add(this.svg, "text", at, `best ${figure(best.value)} at ${count(best.step)}`);
    }

    // Returns what is known at a step: the column, and the nearest evaluation at or before it.
    at(step) {
      const { data, chart } = this;
      const span = data.last - data.first;
      const wanted = span > 0 ? Math.round(((step - data.first) / span) * (data.columns - 1)) : 0;
      let column = null;
      for (let off = 0; off < Math.max(2, data.columns / 50) && column === null; off += 1) {
        column = [wanted - off, wanted + off].find((place) => (chart.mean[place] ?? null) !== null) ?? null;
      }
      const evals = (this.evals || []).filter((dot) => dot.step <= step + 0.5);
      return { column, evaluation: evals.length ? evals[evals.length - 1] : null };
    }

    describe(step) {
      const { chart } = this;
      const { column, evaluation } = this.at(step);
      const words = [];
      if (column !== null) {
        words.push(figure(chart.mean[column]));
        const low = chart.low && chart.low[column], high = chart.high && chart.high[column];
        if (chart.low && low !== high) words.push(`${figure(low)} to ${figure(high)}`);
      }
      if (evaluation) words.push(`${column === null ? "" : "evaluation "}${figure(evaluation.value)} at ${count(evaluation.step)}`);
      return words;
    }

    drawCursor() {
      if (!this.cursor) return;
      this.cursor.replaceChildren();
      const { cursor } = this.shared;
      this.readout.textContent = cursor === null ? this.newest() : [`step ${count(cursor)}`, ...this.describe(cursor)].join(" · ");
      const x = cursor === null ? -1 : this.x(cursor);
      if (x >= LEFT && x <= LEFT + this.width) {
        add(this.cursor, "path", { d: `M${x.toFixed(1)} ${TOP}v${this.height}` });
        const { column } = this.at(cursor);
        const y = column === null ? -1 : this.y(this.chart.mean[column]);
        if (y >= TOP && y <= TOP + this.height) {
          add(this.cursor, "circle", { cx: this.x(this.stepOf(column)).toFixed(1), cy: y.toFixed(1), r: 3.5 });
        }
      }
      if (this.from !== undefined && this.to !== undefined) {
        const [left, right] = [this.from, this.to].sort((a, b) => a - b);
        add(this.cursor, "rect", { class: "selection", x: left, y: TOP, width: right - left, height: this.height });
      }
    }

    newest() {
      const { mean } = this.chart;
      const column = mean.findLastIndex((value) => value !== null);
      // The mean of many steps is not the newest loss.
      if (this.chart.low) return "";
      if (column >= 0) return figure(mean[column]);
      const last = (this.evals || []).at(-1);
      return last ? `${figure(last.value)} at ${count(last.step)}` : "";
    }

    inside(event) {
      const x = event.clientX - this.svg.getBoundingClientRect().left;
      return Math.min(LEFT + this.width, Math.max(LEFT, x));
    }

    point(event) {
      const x = this.inside(event);
      if (this.from !== undefined) this.to = x;
      const { first, last } = this.data;
      this.shared.setCursor(Math.round(Math.min(last, Math.max(first, this.step(x)))));
      const near = this.data.marks.filter((mark) => Math.abs(this.x(mark.step) - x) < NEAR);
      this.shared.tell(event, this.chart.title, this.describe(this.shared.cursor), near);
    }

    press(event) {
      if (event.button !== 0) return;
      this.svg.setPointerCapture(event.pointerId);
      this.from = this.inside(event);
    }

    release(event) {
      const [from, to] = [this.from, this.inside(event)];
      this.from = this.to = undefined;
      if (from === undefined || Math.abs(to - from) < 6) return this.drawCursor();
      this.shared.setWindow([this.step(Math.min(from, to)), this.step(Math.max(from, to))]);
    }

    type(event) {
      const { shared, data } = this;
      const span = shared.end - shared.start;
      const middle = shared.cursor ?? (shared.start + shared.end) / 2;
      const move = (share) => shared.setCursor(Math.round(Math.min(data.last, Math.max(data.first, middle + span * share))));
      const zoom = (factor) => {
        const share = (middle - shared.start) / (span || 1);
        shared.setWindow([middle - span * factor * share, middle + span * factor * (1 - share)]);
      };
      const keys = { ArrowLeft: () => move(-0.01), ArrowRight: () => move(0.01), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => shared.setWindow(null), Escape: () => shared.setCursor(null) };
      if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    }
  }
  Chart.ids = 0;

  return { Chart, count };
})();
