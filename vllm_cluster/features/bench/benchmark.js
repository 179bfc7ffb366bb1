
const data = @DATA@;
document.title = at("title").textContent = `Benchmark of ${data.name}`;
at("about").textContent = data.about;
at("flags").textContent = data.flags.join(" ");
table("loads", data.loads);
table("hosts", data.hosts);
const inOrder = across => [...data.points].sort((one, other) => across(one) - across(other));
// Loads double: as far apart as they are many.
const load = point => Math.log2(point.concurrency), levels = inOrder(load);
const byLoad = `${levels[0].concurrency} to ${levels.at(-1).concurrency} requests at once`;
const pair = metric => [[`p50_${metric}_ms`, "var(--line)", "p50"], [`p99_${metric}_ms`, "var(--bad)", "p99"]];
const milliseconds = value => ms(value / 1000), tokens = [["output_throughput", "var(--good)", "tokens/s"]];
const times = [["ttft", "Time to first token"], ["tpot", "Time per output token"], ["itl", "Inter-token latency"], ["e2el", "Whole answer"]];
const latency = point => point.p50_e2el_ms ?? 0, answers = inOrder(latency);
put("charts", chart(`Tokens/s, ${byLoad}`, levels, tokens, amount, load),
  chart(`Tokens/s, whole answers of ${milliseconds(latency(answers[0]))} to ${milliseconds(latency(answers.at(-1)))}`, answers, tokens, amount, latency),
  ...times.map(([metric, name]) => chart(`${name}, ${byLoad}`, levels, pair(metric), milliseconds, load)));
