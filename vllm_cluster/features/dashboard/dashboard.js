function topology(view) {
  const hosts = view.hosts, head = hosts.find(host => host.role === "head"), rest = hosts.filter(host => host !== head);
  // As wide as the window: text keeps its size on a phone.
  const width = at("topology").clientWidth || 800, fit = Math.max(1, Math.floor(width / 110));
  const columns = Math.min(fit, 8, Math.max(1, rest.length)), rows = Math.ceil(rest.length / columns);
  at("topology").setAttribute("viewBox", `0 0 ${width} ${50 + rows * 60}`);
  const good = host => host.state === "running" && host.joined_gpus === host.gpus;
  const box = (host, x, y) => {
    const group = svg("g", {});
    group.append(svg("rect", {x: x - 50, y: y - 18, width: 100, height: 36, rx: 6, class: good(host) ? "good" : "bad"}),
      svg("text", {x, y: y - 3, "text-anchor": "middle"}, host.host.length > 14 ? host.host.slice(0, 13) + "…" : host.host),
      svg("text", {x, y: y + 12, "text-anchor": "middle"}, `${host.joined_gpus ?? "?"}/${host.gpus ?? "?"} GPUs`));
    return group;
  };
  const drawn = [];
  rest.forEach((host, index) => {
    const x = width / columns * (index % columns + .5), y = 90 + Math.floor(index / columns) * 60;
    if (head) drawn.push(svg("line", {x1: width / 2, y1: 38, x2: x, y2: y - 18, class: good(host) && good(head) ? "good" : "bad"}));
    drawn.push(box(host, x, y));
  });
  put("topology", ...(head ? [box(head, width / 2, 20)] : []), ...drawn);
}

function hostCard(host, load) {
  const made = el("div", "", "card"), title = el("strong", host.host);
  made.dataset.host = host.host;
  made.append(title, el("span", ` ${host.address} ${host.role} `, "muted"), el("span", host.state, host.state === "running" ? "good" : "bad"));
  if (host.problem) made.append(el("div", host.problem, "bad"));
  if (!load) return made;
  const share = load.memory_total_bytes ? 100 * load.memory_used_bytes / load.memory_total_bytes : 0;
  made.append(el("div", `${load.ranks} ${load.ranks === 1 ? "rank" : "ranks"}`), bar("CPU", number(load.cpu_percent, " %"), load.cpu_percent),
    bar("memory", `${gib(load.memory_used_bytes)}/${gib(load.memory_total_bytes)} GiB`, share));
  if (load.received_bytes_per_second != null)
    made.append(el("div", `network ${amount(load.received_bytes_per_second / 1e6)} MB/s in, ${amount(load.sent_bytes_per_second / 1e6)} MB/s out`));
  if (load.error) made.append(el("div", load.error, "bad"));
  for (const gpu of load.gpus) made.append(bar(`GPU ${gpu.index}`, gpu.error || `${number(gpu.use_percent, " %")} · ${gib(gpu.memory_used_bytes)}/${gib(gpu.memory_total_bytes)} GiB · ${number(gpu.power_watts, " W")} · ${number(gpu.temperature_celsius, " °C")}`, gpu.use_percent));
  return made;
}

function failures(serve) {
  const made = [];
  for (const [name, found] of [["First failure", serve?.first_failure], ["Last failure", serve?.failure]]) {
    if (!found || (name === "Last failure" && found.summary === serve.first_failure?.summary)) continue;
    made.push(el("h2", `${name}, ${clock(found.time)}`), el("pre", [found.summary, ...found.lines].join("\n"), "card"));
  }
  return made;
}

function draw({view, points, events}) {
  const serve = view.serving, model = view.model || {};
  document.title = at("title").textContent = `${view.cluster} is ${view.up ? "up" : "not up"}`;
  at("title").className = view.up ? "good" : "bad";
  at("phase").textContent = `${serve ? [`${serve.name}: ${serve.phase}`, ...(serve.detail ? [serve.detail] : [])].join(": ") : "no model is served"} · ${clock(view.time)}`;
  const changed = view.changed;
  at("changed").textContent = changed ? `last change ${clock(changed.time)}: ${changed.user}: ${changed.summary}` : "";
  put("problems", ...view.hosts.filter(host => host.problem).map(host => el("div", `${host.host}: ${host.problem}${host.fix ? ` (fix: ${host.fix})` : ""}`, "bad")),
    ...(view.metrics_error ? [el("div", `/metrics: ${view.metrics_error}`, "bad")] : []));
  put("tiles", tile("tokens/s in", amount(model.prompt_tokens_per_second)), tile("tokens/s out", amount(model.generated_tokens_per_second)),
    tile("requests running", number(model.requests_running)), tile("requests waiting", number(model.requests_waiting)),
    tile("KV cache", percent(model.kv_cache_percent)), tile("prefix hits", percent(model.prefix_hit_percent)),
    tile("TTFT median", ms(model.first_token_p50_seconds)), tile("TPOT median", ms(model.next_token_p50_seconds)));
  put("charts", chart("Tokens a second", points, [["prompt_tokens_per_second", "#4a7bd0", "in"], ["generated_tokens_per_second", "#2a8f4a", "out"]], amount),
    chart("Requests", points, [["requests_running", "#4a7bd0", "running"], ["requests_waiting", "#c33", "waiting"]], amount),
    chart("Time to first token", points, [["first_token_p50_seconds", "#4a7bd0", "median"], ["first_token_p95_seconds", "#c33", "95 %"]], ms),
    chart("Time between tokens", points, [["next_token_p50_seconds", "#4a7bd0", "median"], ["next_token_p95_seconds", "#c33", "95 %"]], ms),
    chart("KV cache and GPUs", points, [["kv_cache_percent", "#4a7bd0", "KV cache"], ["gpu_percent", "#2a8f4a", "GPU use"]], percent));
  topology(view);
  put("hosts", ...view.hosts.map(host => hostCard(host, view.loads[host.host])));
  const phases = serve?.phases || [], most = Math.max(1, ...phases.map(([, seconds]) => seconds));
  put("phases", ...phases.map(([name, seconds]) => bar(name, `${seconds} s`, 100 * seconds / most)));
  put("failure", ...failures(serve));
  put("events", ...(events.length ? [...events].reverse().map(event => el("li", `${clock(event.time)} ${event.message}`)) : [el("div", "none yet", "muted")]));
}

let last = null;
addEventListener("resize", () => last && topology(last.view));

async function again() {
  try {
    const answer = await fetch("data", {cache: "no-store"});
    const found = await answer.json();
    if (found.view) draw(last = found);
  } catch (error) {
    at("phase").textContent = `vcluster dashboard has ended (${error.message})`;
  }
  setTimeout(again, 2000);
}
again();
