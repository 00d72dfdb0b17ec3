// One token as lanes on a canvas. Events narrower than a pixel are summed by pixel, and drawn as high as the share of
// the time they take: tens of thousands of kernels stay readable, and an idle GPU looks idle.
(() => {
  const LABEL = 15, AXIS = 24, GAP = 5;
  const HEIGHT = { idle: 16, gpu: 26, range: 18, call: 18 };
  const MIN_SPAN_NS = 200;
  const MAX_RANGES = 5; // as many as there are colours for them
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

  const showTime = (ns) => {
    const size = Math.abs(ns);
    if (size < 0.5) return "0";
    if (size >= 1e6) return `${(ns / 1e6).toLocaleString("en", { maximumFractionDigits: 4 })} ms`;
    return `${(ns / 1e3).toLocaleString("en", { maximumFractionDigits: 3 })} µs`;
  };

  // Starts are stored as distances from the event before: absolute starts and ends are made once.
  const unpack = (lane) => {
    const start = new Float64Array(lane.t.length), end = new Float64Array(lane.t.length);
    let at = 0;
    lane.t.forEach((step, i) => {
      at += step;
      start[i] = at;
      end[i] = at + lane.d[i];
    });
    return { ...lane, start, end };
  };

  const firstEndingAfter = (lane, instant) => {
    let low = 0, high = lane.end.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.end[middle] > instant) high = middle; else low = middle + 1;
    }
    return low;
  };

  class Timeline {
    constructor(figure, timelines) {
      this.canvas = figure.querySelector("canvas");
      this.detail = figure.querySelector(".detail");
      this.legend = figure.querySelector(".legend");
      this.all = timelines.map((one) => ({ ...one, lanes: one.lanes.map(unpack) }));
      this.choice = figure.querySelector(".choice");
      figure.querySelector(".tools").hidden = false;
      this.choice.addEventListener("change", () => this.choose(Number(this.choice.value)));
      for (const button of figure.querySelectorAll("[data-do]")) {
        button.addEventListener("click", () => this.act(button.dataset.do));
      }
      this.listen();
      this.choose(0);
      new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
      document.addEventListener("themechange", () => this.draw());
    }

    choose(number) {
      this.one = this.all[number];
      this.from = 0;
      this.to = this.one.wall;
      this.lane = 0;
      this.event = -1;
      this.layOut();
      this.showLegend();
      this.say();
      this.draw();
    }

    layOut() {
      let y = AXIS;
      this.rows = this.one.lanes.map((lane) => {
        const row = { lane, label: y, top: y + LABEL, height: HEIGHT[lane.kind] };
        y = row.top + row.height + GAP;
        return row;
      });
      this.height = y;
      this.canvas.style.height = `${y}px`;
    }

    showLegend() {
      const used = new Map(), ranges = new Map();
      for (const lane of this.one.lanes) {
        for (const n of new Set(lane.n)) {
          const [text, colour, kind] = this.one.names[n];
          const word = lane.kind === "gpu" ? kind : lane.kind === "call" ? `calls: ${kind}`
            : lane.kind === "idle" ? `idle: ${text}` : `NVTX ${text.replace(/\d+/g, "…")}`;
          (lane.kind === "range" ? ranges : used).set(word, colour);
        }
      }
      // Libraries push hundreds of kinds of range, and colours repeat: a legend of those would say nothing.
      const entries = [...used, ...(ranges.size <= MAX_RANGES ? ranges : [])];
      this.legend.replaceChildren(...entries.map(([word, colour]) => {
        const item = document.createElement("li"), swatch = document.createElement("span");
        swatch.className = `swatch c${colour}`;
        item.append(swatch, word);
        return item;
      }));
    }

    colours() {
      const style = getComputedStyle(document.documentElement);
      const read = (name) => style.getPropertyValue(name).trim();
      const own = [];
      for (let i = 0; ; i++) {
        const colour = read(`--c${i}`);
        if (!colour) break;
        const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
        own.push({ fill: colour, ink: 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#000" : "#fff" });
      }
      return { own, fg: read("--fg"), muted: read("--muted"), line: read("--line"), mark: read("--mark"), bg: read("--bg") };
    }

    draw() {
      const width = this.canvas.clientWidth;
      if (!width) return;
      const scale = window.devicePixelRatio || 1;
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(this.height * scale);
      const ink = this.canvas.getContext("2d");
      ink.setTransform(scale, 0, 0, scale, 0, 0);
      ink.clearRect(0, 0, width, this.height);
      const look = this.colours();
      this.drawAxis(ink, width, look);
      let drawn = 0;
      this.rows.forEach((row, i) => {
        ink.font = `${i === this.lane ? "600 " : ""}12px system-ui, sans-serif`;
        ink.fillStyle = i === this.lane ? look.fg : look.muted;
        ink.textBaseline = "alphabetic";
        ink.fillText(row.lane.label, 0, row.label + 11);
        drawn += this.drawLane(ink, row, width, look);
        ink.fillStyle = look.line;
        ink.fillRect(0, row.top + row.height, width, 1);
      });
      this.drawChosen(ink, width, look);
      this.canvas.dataset.from = Math.round(this.from);
      this.canvas.dataset.to = Math.round(this.to);
      this.canvas.dataset.events = drawn;
    }

    drawAxis(ink, width, look) {
      const span = this.to - this.from;
      const rough = span / Math.max(Math.floor(width / 110), 1);
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
      ink.font = "12px system-ui, sans-serif";
      ink.textBaseline = "alphabetic";
      for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
        const x = (at - this.from) / span * width;
        ink.fillStyle = look.line;
        ink.fillRect(x, 15, 1, this.height - 15);
        ink.fillStyle = look.muted;
        const text = showTime(at);
        ink.fillText(text, clamp(x - ink.measureText(text).width / 2, 0, width - ink.measureText(text).width), 11);
      }
    }

    drawLane(ink, row, width, look) {
      const { lane, top, height } = row;
      const scale = width / (this.to - this.from);
      const columns = Math.ceil(width);
      const thin = new Map(); // colour -> share of each pixel column
      let drawn = 0;
      for (let i = firstEndingAfter(lane, this.from); i < lane.start.length && lane.start[i] < this.to; i++) {
        drawn++;
        const left = clamp((lane.start[i] - this.from) * scale, 0, width);
        const right = clamp((lane.end[i] - this.from) * scale, 0, width);
        const [text, colour] = this.one.names[lane.n[i]];
        if (right - left >= 2) {
          ink.fillStyle = look.own[colour].fill;
          ink.fillRect(left, top, right - left - (right - left > 4 ? 0.7 : 0), height);
          if (right - left > 34 && lane.kind !== "idle" || right - left > 90) {
            this.write(ink, text, left, right, row, look.own[colour].ink);
          }
          continue;
        }
        if (!thin.has(colour)) thin.set(colour, new Float32Array(columns + 1));
        const share = thin.get(colour);
        const first = Math.floor(left);
        const cut = Math.min(right, first + 1);
        share[first] += cut - left;
        if (right > cut) share[Math.min(first + 1, columns)] += right - cut;
      }
      const filled = new Float32Array(columns + 1);
      for (const [colour, share] of [...thin].sort((a, b) => a[0] - b[0])) {
        ink.fillStyle = look.own[colour].fill;
        for (let x = 0; x < columns; x++) {
          if (!share[x]) continue;
          const high = Math.max(Math.min(share[x], 1 - filled[x]), 0) * height;
          ink.fillRect(x, top + height * (1 - filled[x]) - high, 1, Math.max(high, 0.6));
          filled[x] = Math.min(filled[x] + share[x], 1);
        }
      }
      return drawn;
    }

    write(ink, text, left, right, row, colour) {
      ink.save();
      ink.beginPath();
      ink.rect(left, row.top, right - left - 3, row.height);
      ink.clip();
      ink.fillStyle = colour;
      ink.font = "11px system-ui, sans-serif";
      ink.textBaseline = "middle";
      ink.fillText(text, left + 3, row.top + row.height / 2 + 0.5);
      ink.restore();
    }

    drawChosen(ink, width, look) {
      const row = this.rows[this.lane];
      if (!row) return;
      if (document.activeElement === this.canvas) {
        ink.fillStyle = look.mark;
        ink.fillRect(0, row.top, 3, row.height);
      }
      if (this.event < 0) return;
      const scale = width / (this.to - this.from);
      const left = clamp((row.lane.start[this.event] - this.from) * scale, 0, width);
      const right = clamp((row.lane.end[this.event] - this.from) * scale, 0, width);
      if (right <= 0 || left >= width) return;
      ink.strokeStyle = look.fg;
      ink.lineWidth = 2;
      ink.strokeRect(left - 1, row.top - 1, Math.max(right - left, 1) + 2, row.height + 2);
    }

    say() {
      if (this.event < 0) {
        const row = this.rows[this.lane];
        this.detail.textContent = row
          ? `Lane ${this.lane + 1} of ${this.rows.length}: ${row.lane.label}, ${row.lane.start.length.toLocaleString("en")} events. Choose an event: click it, or N and P.`
          : "Nothing was recorded in this span.";
        return;
      }
      const lane = this.rows[this.lane].lane;
      const [text, , kind] = this.one.names[lane.n[this.event]];
      this.detail.textContent = `${text} (${kind}): ${showTime(lane.end[this.event] - lane.start[this.event])}, `
        + `from ${showTime(lane.start[this.event])} on; ${lane.label}`;
    }

    zoom(factor, around) {
      const middle = around ?? (this.from + this.to) / 2;
      const span = clamp((this.to - this.from) * factor, Math.min(MIN_SPAN_NS, this.one.wall), this.one.wall);
      const share = (middle - this.from) / (this.to - this.from);
      this.show(middle - share * span, span);
    }

    show(from, span) {
      this.from = clamp(from, 0, Math.max(this.one.wall - span, 0));
      this.to = this.from + span;
      this.draw();
    }

    act(what) {
      const span = this.to - this.from;
      if (what === "in") this.zoom(0.5);
      if (what === "out") this.zoom(2);
      if (what === "whole") this.show(0, this.one.wall);
      if (what === "left") this.show(this.from - span / 5, span);
      if (what === "right") this.show(this.from + span / 5, span);
    }

    select(event) {
      const lane = this.rows[this.lane].lane;
      if (!lane.start.length) return;
      this.event = clamp(event, 0, lane.start.length - 1);
      const span = this.to - this.from;
      if (lane.end[this.event] < this.from || lane.start[this.event] > this.to) {
        this.from = clamp(lane.start[this.event] - span / 3, 0, Math.max(this.one.wall - span, 0));
        this.to = this.from + span;
      }
      this.say();
      this.draw();
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const lane = this.rows[this.lane]?.lane;
      const actions = {
        ArrowLeft: () => this.act("left"),
        ArrowRight: () => this.act("right"),
        "+": () => this.act("in"),
        "=": () => this.act("in"),
        "-": () => this.act("out"),
        0: () => this.act("whole"),
        Home: () => this.act("whole"),
        ArrowUp: () => this.toLane(this.lane - 1),
        ArrowDown: () => this.toLane(this.lane + 1),
        n: () => lane && this.select(this.event < 0 ? firstEndingAfter(lane, this.from) : this.event + 1),
        p: () => lane && this.select(this.event < 0 ? firstEndingAfter(lane, this.from) : this.event - 1),
        Enter: () => {
          if (this.event < 0) return;
          const length = Math.max(lane.end[this.event] - lane.start[this.event], MIN_SPAN_NS / 4);
          const span = clamp(4 * length, Math.min(MIN_SPAN_NS, this.one.wall), this.one.wall);
          this.show(lane.start[this.event] - 1.5 * length, span);
        },
      };
      const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!action) return;
      event.preventDefault();
      action();
    }

    toLane(number) {
      this.lane = clamp(number, 0, Math.max(this.rows.length - 1, 0));
      this.event = -1;
      this.say();
      this.draw();
    }

    pick(x, y) {
      const at = this.rows.findIndex((row) => y >= row.label && y < row.top + row.height + GAP);
      if (at < 0) return;
      this.lane = at;
      const lane = this.rows[at].lane;
      const perPixel = (this.to - this.from) / this.canvas.clientWidth;
      const instant = this.from + x * perPixel;
      // The event under the pointer, or the nearest one within six pixels, which a finger can hit.
      const after = firstEndingAfter(lane, instant);
      let best = -1, distance = 6 * perPixel;
      for (const i of [after - 1, after]) {
        if (i < 0 || i >= lane.start.length) continue;
        const away = Math.max(lane.start[i] - instant, instant - lane.end[i], 0);
        if (away < distance || away === 0) { best = i; distance = away; }
      }
      this.event = best;
      this.say();
      this.draw();
    }

    listen() {
      const canvas = this.canvas;
      const pointers = new Map();
      let moved = 0;
      const place = (event) => {
        const box = canvas.getBoundingClientRect();
        return { x: event.clientX - box.left, y: event.clientY - box.top };
      };
      canvas.addEventListener("pointerdown", (event) => {
        pointers.set(event.pointerId, place(event));
        canvas.setPointerCapture(event.pointerId);
        if (pointers.size === 1) moved = 0;
        canvas.classList.add("moving");
      });
      canvas.addEventListener("pointermove", (event) => {
        const before = pointers.get(event.pointerId);
        if (!before) return;
        const now = place(event);
        const span = this.to - this.from, width = canvas.clientWidth;
        if (pointers.size === 2) {
          const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
          const factor = Math.max(Math.abs(before.x - other.x), 8) / Math.max(Math.abs(now.x - other.x), 8);
          this.zoom(factor, this.from + other.x / width * span);
        } else {
          this.show(this.from - (now.x - before.x) / width * span, span);
        }
        moved += Math.abs(now.x - before.x);
        pointers.set(event.pointerId, now);
      });
      const release = (event) => {
        if (!pointers.delete(event.pointerId)) return;
        if (!pointers.size) canvas.classList.remove("moving");
        if (event.type === "pointerup" && !pointers.size && moved < 5) {
          const { x, y } = place(event);
          this.pick(x, y);
        }
      };
      canvas.addEventListener("pointerup", release);
      canvas.addEventListener("pointercancel", release);
      canvas.addEventListener("dblclick", (event) => {
        this.zoom(0.25, this.from + place(event).x / canvas.clientWidth * (this.to - this.from));
      });
      canvas.addEventListener("wheel", (event) => {
        const span = this.to - this.from;
        const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
        if (event.ctrlKey || event.metaKey) {
          event.preventDefault();
          this.zoom(2 ** clamp(event.deltaY / 200, -1, 1), this.from + place(event).x / canvas.clientWidth * span);
        } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
          event.preventDefault();
          this.show(this.from + sideways / canvas.clientWidth * span, span);
        }
      }, { passive: false });
      canvas.addEventListener("keydown", (event) => this.key(event));
      canvas.addEventListener("focus", () => this.draw());
      canvas.addEventListener("blur", () => this.draw());
    }
  }

  const data = JSON.parse(document.getElementById("report-data").textContent);
  for (const figure of document.querySelectorAll("figure.timeline")) {
    new Timeline(figure, data.timelines[Number(figure.dataset.capture)]);
  }
})();
