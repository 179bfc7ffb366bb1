function topology(view) {
  const hosts = view.hosts, head = hosts.find(host => host.role === "head"), rest = hosts.filter(host => host !== head);
  // As wide as the window: text keeps its size on a phone.
  const width = at("topology").clientWidth || 800, fit = Math.max(1, Math.floor(width / 110));
  const columns = Math.min(fit, 8, Math.max(1, rest.length)), rows = Math.ceil(rest.length / columns);
  at("topology").setAttribute("viewBox", `0 0 ${width} ${50 + rows * 60}`);
  const box = (host, x, y) => {
    const group = svg("g", {});
    group.append(svg("rect", {x: x - 50, y: y - 18, width: 100, height: 36, rx: 6, class: isGood(host) ? "good" : "bad"}),
      svg("text", {x, y: y - 3, "text-anchor": "middle"}, host.host.length > 14 ? host.host.slice(0, 13) + "…" : host.host),
      svg("text", {x, y: y + 12, "text-anchor": "middle"}, `${host.joined_gpus ?? "?"}/${host.gpus ?? "?"} GPUs`));
    return group;
  };
  const drawn = [];
  rest.forEach((host, index) => {
    const x = width / columns * (index % columns + .5), y = 90 + Math.floor(index / columns) * 60;
    if (head) drawn.push(svg("line", {x1: width / 2, y1: 38, x2: x, y2: y - 18, class: isGood(host) && isGood(head) ? "good" : "bad"}));
    drawn.push(box(host, x, y));
  });
  put("topology", ...(head ? [box(head, width / 2, 20)] : []), ...drawn);
}

const mean = values => values.length ? values.reduce((one, other) => one + other) / values.length : null;
const share = (used, total) => total ? 100 * used / total : null;
const sum = (rows, key) => rows.reduce((total, row) => total + (row[key] ?? 0), 0);
// By a name that a host chose: that of each object's own methods is none of its rows.
const of = rows => name => Object.hasOwn(rows, name) ? rows[name] : undefined;
const isGood = host => host.state === "running" && host.joined_gpus === host.gpus;

// One row a host: what is wrong, and how busy it is, without a scroll.
function overview(view) {
  const loadOf = of(view.loads), onGpus = Object.values(view.loads).some(load => load.gpus.length);
  table("overview", view.hosts.map(host => {
    const load = loadOf(host.host), gpus = load?.gpus ?? [], known = gpus.filter(gpu => gpu.use_percent != null);
    const busy = {"GPU use": percent(mean(known.map(gpu => gpu.use_percent))),
      "GPU memory": percent(share(sum(gpus, "memory_used_bytes"), sum(gpus, "memory_total_bytes")))};
    return {"host": host.host, "state": host.state, "GPUs": `${host.joined_gpus ?? "?"}/${host.gpus ?? "?"}`, ...(onGpus ? busy : {}),
      "memory": percent(load ? share(load.memory_used_bytes, load.memory_total_bytes) : null), "CPU": percent(load?.cpu_percent)};
  }));
  view.hosts.forEach((host, place) => at("overview").rows[place + 1].cells[1].className = isGood(host) ? "good" : "bad");
}

// The failure in a line; its whole text is below.
function lastFailure(each) {
  const failed = each.filter(one => one.failure || one.first_failure).map(one => [one, one.failure || one.first_failure]);
  if (!failed.length) return el("div", each.length ? "no failure since this start was asked for" : "", "muted");
  const [one, found] = failed.reduce((before, other) => other[1].time > before[1].time ? other : before);
  const recovered = one.phase === "ready";
  return el("div", `${recovered ? "recovered; the last failure was" : "last failure"} ${clock(found.time)}: ${found.summary}`, recovered ? "muted" : "bad");
}

function hostCard(host, load) {
  const made = el("div", "", "card"), title = el("strong", host.host);
  made.dataset.host = host.host;
  made.append(title, el("span", ` ${host.address} ${host.role} `, "muted"), el("span", host.state, host.state === "running" ? "good" : "bad"));
  if (host.problem) made.append(el("div", host.problem, "bad"));
  if (!load) return made;
  made.append(el("div", `${load.ranks} ${load.ranks === 1 ? "rank" : "ranks"}`), bar("CPU", number(load.cpu_percent, " %"), load.cpu_percent),
    bar("memory", `${gib(load.memory_used_bytes)}/${gib(load.memory_total_bytes)} GiB`, share(load.memory_used_bytes, load.memory_total_bytes)));
  if (load.received_bytes_per_second != null)
    made.append(el("div", `network ${amount(load.received_bytes_per_second / 1e6)} MB/s in, ${amount(load.sent_bytes_per_second / 1e6)} MB/s out`));
  if (load.error) made.append(el("div", load.error, "bad"));
  for (const gpu of load.gpus) made.append(bar(`GPU ${gpu.index}`, gpu.error || `${number(gpu.use_percent, " %")} · ${gib(gpu.memory_used_bytes)}/${gib(gpu.memory_total_bytes)} GiB · ${number(gpu.power_watts, " W")} · ${number(gpu.temperature_celsius, " °C")}`, gpu.use_percent));
  return made;
}

function replicaLine(replica, now, named) {
  const state = [`${named ? `${replica.name} ` : ""}replica ${replica.index}`, replica.phase, ...(replica.detail ? [replica.detail] : [])].join(": ");
  const made = el("div", state, replica.phase === "ready" ? "" : "bad");
  made.dataset.replica = replica.index;
  if (now) made.append(el("span", ` · tokens/s ${amount(now.prompt_tokens_per_second)} in ${amount(now.generated_tokens_per_second)} out · ${number(now.requests_running)} running, ${number(now.requests_waiting)} waiting · KV cache ${percent(now.kv_cache_percent)}`, "muted"));
  return made;
}

const models = replicas => [...new Set(replicas.map(replica => replica.name))];

function served(serve, replicas) {
  if (!replicas.length) return serve ? [serve.name, serve.phase, ...(serve.detail ? [serve.detail] : [])].join(": ") : "no model is served";
  return models(replicas).map(name => {
    const own = replicas.filter(replica => replica.name === name), ready = own.filter(replica => replica.phase === "ready").length;
    if (own.length === 1) return `${name}: ${own[0].phase}`;
    return `${name}: ${ready === own.length ? "ready" : ready ? "degraded" : "not ready"}: ${ready} of ${own.length} replicas`;
  }).join(" · ");
}

function failures(serve, of) {
  const made = [];
  for (const [name, found] of [["First failure", serve?.first_failure], ["Last failure", serve?.failure]]) {
    if (!found || (name === "Last failure" && found.summary === serve.first_failure?.summary)) continue;
    made.push(el("h2", `${name}${of}, ${clock(found.time)}`), el("pre", [found.summary, ...found.lines].join("\n"), "card"));
  }
  return made;
}

function draw({view, points, events}) {
  const serve = view.serving, model = view.model || {}, replicas = view.replicas;
  const each = replicas.length ? replicas : serve ? [serve] : [], named = (replica, words) => replicas.length ? words(replica.index) : "";
  document.title = at("title").textContent = `${view.cluster} is ${view.up ? "up" : "not up"}`;
  at("title").className = view.up ? "good" : "bad";
  at("phase").textContent = `${served(serve, replicas)} · ${clock(view.time)}`;
  const changed = view.changed;
  at("changed").textContent = changed ? `last change ${clock(changed.time)}: ${changed.user}: ${changed.summary}` : "";
  put("last-failure", lastFailure(each));
  overview(view);
  put("problems", ...view.hosts.filter(host => host.problem).map(host => el("div", `${host.host}: ${host.problem}${host.fix ? ` (fix: ${host.fix})` : ""}`, "bad")),
    ...(view.metrics_error ? [el("div", `/metrics: ${view.metrics_error}`, "bad")] : []));
  put("tiles", tile("tokens/s in", amount(model.prompt_tokens_per_second)), tile("tokens/s out", amount(model.generated_tokens_per_second)),
    tile("requests running", number(model.requests_running)), tile("requests waiting", number(model.requests_waiting)),
    tile("KV cache", percent(model.kv_cache_percent)), tile("prefix hits", percent(model.prefix_hit_percent)),
    tile("TTFT median", ms(model.first_token_p50_seconds)), tile("TPOT median", ms(model.next_token_p50_seconds)));
  put("replicas", ...replicas.map(replica => replicaLine(replica, of(view.replica_loads)(replica.index), models(replicas).length > 1)));
  put("charts", chart("Tokens a second", points, [["prompt_tokens_per_second", "var(--line)", "in"], ["generated_tokens_per_second", "var(--good)", "out"]], amount),
    chart("Requests", points, [["requests_running", "var(--line)", "running"], ["requests_waiting", "var(--bad)", "waiting"]], amount),
    chart("Time to first token", points, [["first_token_p50_seconds", "var(--line)", "median"], ["first_token_p95_seconds", "var(--bad)", "95 %"]], ms),
    chart("Time between tokens", points, [["next_token_p50_seconds", "var(--line)", "median"], ["next_token_p95_seconds", "var(--bad)", "95 %"]], ms),
    chart("KV cache and GPUs", points, [["kv_cache_percent", "var(--line)", "KV cache"],
      ...(points.some(point => point.gpu_percent != null) ? [["gpu_percent", "var(--good)", "GPU use"]] : [])], percent));
  topology(view);
  put("hosts", ...view.hosts.map(host => hostCard(host, of(view.loads)(host.host))));
  const phases = each.flatMap(one => one.phases.map(([name, seconds]) => [named(one, index => `${index}: `) + name, seconds]));
  const most = Math.max(1, ...phases.map(([, seconds]) => seconds));
  put("phases", ...phases.map(([name, seconds]) => bar(name, `${seconds} s`, 100 * seconds / most)));
  put("failure", ...each.flatMap(one => failures(one, named(one, index => `, replica ${index}`))));
  put("events", ...(events.length ? [...events].reverse().map(event => el("li", `${clock(event.time)} ${event.message}`)) : [el("li", "none yet", "muted")]));
}

let last = null;
addEventListener("resize", () => last && topology(last.view));

async function again() {
  let found = null;
  try {
    const answer = await fetch("data", {cache: "no-store"});
    found = await answer.json();
  } catch (error) {
    at("phase").textContent = `vcluster dashboard has ended (${error.message})`;
  }
  try {
    if (found?.view) draw(last = found);
  } catch (error) {
    at("phase").textContent = `this page cannot draw what it was given (${error.message})`;
  }
  setTimeout(again, 2000);
}
again();
