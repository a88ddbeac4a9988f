"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const NOW = "#2f7de1", BEFORE = "#9aa3ad";
  const SHARE_COLOURS = {
    data_wait: "#d9822b", transfer: "#8e5bd0", launch_gaps: "#d64550", kernels: "#2f9e62", collectives: "#1aa3a3",
    sync_waits: "#c9408f", optimizer: "#2f7de1", allocator: "#8a6d3b", other: "#9aa3ad",
  };
  const SCALES = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
  const scaleOf = (seconds) => SCALES.find(([size]) => seconds >= size) || SCALES[3];

  function chart(box, title, description, config) {
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    caption.textContent = title;
    const holder = document.createElement("div");
    const canvas = document.createElement("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${title}: ${description}`);
    holder.append(canvas);
    figure.append(caption, holder);
    box.append(figure);
    const ink = style("--ink"), line = style("--line");
    const options = config.options || {};
    for (const axis of Object.values(options.scales || {})) {
      axis.ticks = { color: ink, maxTicksLimit: 7, ...axis.ticks };
      axis.grid = { color: line };
      if (axis.title) axis.title = { display: true, color: ink, ...axis.title };
    }
    options.plugins = { legend: { labels: { color: ink, boxWidth: 14 }, ...(options.legend || {}) } };
    Object.assign(options, { responsive: true, maintainAspectRatio: false, animation: false });
    new Chart(canvas, { ...config, options });
  }

  function histogram(values, low, width, bins) {
    const counts = new Array(bins).fill(0);
    for (const value of values) counts[Math.min(Math.floor((value - low) / width), bins - 1)] += 1;
    return counts.map((count) => (100 * count) / values.length);
  }

  function drawDistribution(box, reading) {
    const both = reading.steps.concat(reading.stepsBefore).sort((a, b) => a - b);
    if (reading.steps.length < 2) return;
    // The slowest steps would squeeze all others into one column, so they share the last column.
    const low = both[0], high = Math.max(both[Math.floor(0.98 * (both.length - 1))], low * 1.0001);
    const bins = 24, width = (high - low) / bins || 1e-12;
    const [size, unit] = scaleOf(high);
    // Enough digits to distinguish neighbouring columns.
    const digits = Math.min(Math.max(Math.ceil(Math.log10(high / width)), 3), 8);
    const labels = Array.from({ length: bins }, (_, i) => ((low + (i + 0.5) * width) / size).toPrecision(digits));
    const sets = [{ label: "this run", data: histogram(reading.steps, low, width, bins), backgroundColor: NOW }];
    if (reading.stepsBefore.length) {
      sets.push({ label: "baseline", data: histogram(reading.stepsBefore, low, width, bins), backgroundColor: BEFORE });
    }
    chart(box, reading.modelled ? "Step times (predicted)" : "Step times", `${reading.steps.length} steps`, {
      type: "bar",
      data: { labels, datasets: sets.map((set) => ({ ...set, categoryPercentage: 1, barPercentage: 0.95 })) },
      options: { scales: { x: { title: { text: unit } }, y: { title: { text: "% of steps" } } } },
    });
  }

  function drawOverTime(box, reading) {
    const sets = [], scales = { x: { type: "linear", title: { text: "s" }, max: reading.seconds } };
    const points = (values, factor) =>
      values.map((value, i) => ({ x: (reading.seconds * (i + 0.5)) / values.length, y: value * factor }));
    if (reading.utilization.length) {
      sets.push({ label: "utilization", data: points(reading.utilization, 100), borderColor: NOW, yAxisID: "y" });
      scales.y = { min: 0, max: 100, title: { text: "utilization, %" } };
    }
    if (reading.memory.length) {
      const id = sets.length ? "memory" : "y";
      sets.push({ label: "memory", data: points(reading.memory, 1 / 2 ** 20), borderColor: "#d9822b", yAxisID: id });
      scales[id] = { position: sets.length > 1 ? "right" : "left", beginAtZero: true, title: { text: `${reading.memoryOf}, MiB` } };
    }
    if (!sets.length) return;
    chart(box, reading.modelled ? "Over time (modelled)" : "Over time", sets.map((set) => set.label).join(" and "), {
      type: "line",
      data: { datasets: sets.map((set) => ({ ...set, pointRadius: 0, borderWidth: 1.5, stepped: true })) },
      options: { scales },
    });
  }

  function drawShares(box, reading) {
    const names = Object.keys(data.shares).filter((name) => (reading.shares[name] || 0) + (reading.sharesBefore[name] || 0) > 0.001);
    if (!names.length) return;
    const hasBefore = Object.keys(reading.sharesBefore).length > 0;
    const texts = names.map((name) => `${data.shares[name]} ${(100 * (reading.shares[name] || 0)).toFixed(1)} %`);
    chart(box, reading.modelled ? "Where the step's time would go (predicted)" : "Where the step's time went", texts.join(", "), {
      type: "bar",
      data: {
        labels: hasBefore ? ["this run", "baseline"] : ["this run"],
        datasets: names.map((name) => ({
          label: data.shares[name], backgroundColor: SHARE_COLOURS[name],
          data: [reading.shares, ...(hasBefore ? [reading.sharesBefore] : [])].map((shares) => 100 * (shares[name] || 0)),
        })),
      },
      options: { indexAxis: "y", legend: { position: "bottom" },
        scales: { x: { stacked: true, max: 100, title: { text: "% of the step" } }, y: { stacked: true } } },
    });
  }

  function drawPair(box, reading) {
    if (!reading.pair) return;
    const [size, unit] = scaleOf(Math.max(reading.pair.with, reading.pair.without));
    chart(box, `With against without: ${reading.pair.speedup}${reading.modelled ? " (predicted)" : ""}`, `${reading.pair.with} s against ${reading.pair.without} s`, {
      type: "bar",
      data: { labels: ["without", "with"], datasets: [{ label: "step time",
        data: [reading.pair.without / size, reading.pair.with / size], backgroundColor: [BEFORE, NOW] }] },
      options: { indexAxis: "y", legend: { display: false }, scales: { x: { beginAtZero: true, title: { text: unit } }, y: {} } },
    });
  }

  function drawEnvironment(box, rows) {
    if (!rows.length) return;
    const table = document.createElement("table");
    const hasBefore = rows.some((row) => row[2]);
    for (const row of [["environment", "this run", hasBefore ? "baseline" : ""], ...rows]) {
      const line = table.insertRow();
      row.slice(0, hasBefore ? 3 : 2).forEach((text, i) => {
        const cell = document.createElement(i ? "td" : "th");
        cell.textContent = text;
        line.append(cell);
      });
      if (hasBefore && row[0] !== "environment" && row[1] !== row[2]) line.className = "differs";
    }
    const summary = document.createElement("summary"), count = table.querySelectorAll(".differs").length;
    summary.textContent = !hasBefore ? "Environment" : `Environment: ${count} difference${count === 1 ? "" : "s"} to the baseline's`;
    box.append(summary, table);
  }

  function fill(details) {
    if (details.dataset.filled) return;
    details.dataset.filled = "yes";
    for (const box of details.querySelectorAll(".charts")) {
      const reading = data.tests[box.dataset.test].readings[box.dataset.reading];
      for (const draw of [drawShares, drawDistribution, drawOverTime, drawPair]) draw(box, reading);
    }
    for (const box of details.querySelectorAll(".environment")) drawEnvironment(box, data.tests[box.dataset.test].environment);
  }

  const all = [...document.querySelectorAll("#tests > details")];
  if (all.length === 1) all[0].open = true;
  // A chart is drawn when its test is open and in view: a page with sixty tests opens as fast as one with one.
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting && entry.target.open) fill(entry.target);
  }, { rootMargin: "300px" });
  for (const details of all) {
    observer.observe(details);
    details.addEventListener("toggle", () => { if (details.open) fill(details); });
  }
  function openTarget() {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") { target.open = true; fill(target); target.scrollIntoView(); target.firstElementChild.focus(); }
  }
  addEventListener("hashchange", openTarget);
  openTarget();
  addEventListener("beforeprint", () => all.forEach((details) => { details.open = true; fill(details); }));

  const table = document.getElementById("overview"), body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const keyOf = (cell, kind) => {
    if (kind !== "number") return cell.textContent.trim();
    return cell.dataset.value === "" ? NaN : Number(cell.dataset.value);
  };
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const isUp = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((other) => other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
    const rows = [...body.rows].map((row) => [keyOf(row.cells[column], head.dataset.kind), row]);
    rows.sort(([a], [b]) => {
      if (head.dataset.kind !== "number") return isUp ? a.localeCompare(b) : b.localeCompare(a);
      if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
      return isUp ? a - b : b - a;
    });
    body.append(...rows.map(([, row]) => row));
  }));

  const filter = document.getElementById("filter"), verdict = document.getElementById("verdict");
  for (const word of new Set([...body.rows].map((row) => row.dataset.verdict))) verdict.add(new Option(word, word));
  function apply() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (element) => (!verdict.value || element.dataset.verdict === verdict.value)
      && words.every((word) => element.textContent.toLowerCase().includes(word));
    let shown = 0;
    for (const row of body.rows) { row.hidden = !fits(row); shown += !row.hidden; }
    for (const details of all) details.hidden = !fits(details);
    document.getElementById("shown").textContent = `${shown} of ${body.rows.length} readings`;
  }
  filter.addEventListener("input", apply);
  verdict.addEventListener("change", apply);
  addEventListener("keydown", (event) => {
    if (event.key === "/" && !/INPUT|SELECT/.test(document.activeElement.tagName)) { event.preventDefault(); filter.focus(); }
  });
  apply();
  document.documentElement.dataset.ready = "yes";
})();
