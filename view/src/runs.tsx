// The runs and their curves.
import { useEffect, useMemo, useState } from "preact/hooks";
import { Chart, type Curve } from "./chart";
import { get, isStatic, onChange, useJson, type RunEntry } from "./data";
import { duration, Failed, href, num, setParams, useRoute, useStored, visible } from "./util";

// Colours that people with a colour vision deficiency can tell apart (Okabe and Ito), with dashes
// from the eighth run on.
const COLORS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a7f00"];
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];

/** A run keeps its colour: it depends on the position in the list of all runs only. */
export function lineOf(position: number): { color: string; dash: number[] } {
  return { color: COLORS[position % COLORS.length]!, dash: DASHES[Math.floor(position / COLORS.length) % DASHES.length]! };
}

// Shown first, in this order.
const MAIN = [
  "reward/mean",
  "eval/accuracy",
  "eval/reward",
  "rollout/accuracy",
  "sft/loss",
  "eval/loss",
  "policy/entropy",
  "policy/loss",
  "policy/grad_norm",
  "mismatch/max_abs",
  "kl/mean",
  "rollout/response_tokens",
  "rollout/steps",
  "time/step",
];

interface Values {
  epoch: number;
  steps: number[];
  times: (number | null)[];
  tokens: number[];
  /** `"nan"`: a value that is not finite; null: none at that step. */
  series: Record<string, (number | string | null)[]>;
}

/** Values of the metrics of runs, read on as they grow. */
export function useMetrics(runs: string[], names: string[]): Map<string, Values> {
  const [all, set] = useState(new Map<string, Values>());
  const wanted = names.slice().sort().join(",");
  const key = runs.join("|");
  useEffect(() => {
    let current = true;
    const read = async (run: string, before: Values | undefined) => {
      const last = before?.steps[before.steps.length - 1];
      const params = isStatic ? { run } : { run, names: wanted };
      // From the last step on: its line may have been completed since.
      let now = await get<Values>("metrics", last === undefined || isStatic ? params : { ...params, from: last });
      if (before && last !== undefined && !isStatic) {
        const same = now.epoch === before.epoch && Object.keys(now.series).every((name) => name in before.series);
        now = same ? joined(before, now) : await get<Values>("metrics", params);
      }
      if (current) set((old) => new Map(old).set(run, now));
      return now;
    };
    const held = new Map<string, Values>();
    const busy = new Map<string, Promise<void>>();
    const update = (run: string) => {
      const next = (busy.get(run) ?? Promise.resolve()).then(async () => {
        if (current) held.set(run, await read(run, held.get(run)));
      });
      busy.set(run, next.catch(() => undefined));
    };
    runs.forEach(update);
    const stop = onChange((changed) => runs.filter((run) => changed.has(run)).forEach(update));
    return () => {
      current = false;
      stop();
    };
  }, [key, wanted]);
  return all;
}

function joined(before: Values, now: Values): Values {
  const keep = before.steps.findIndex((step) => step >= (now.steps[0] ?? Infinity));
  const cut = keep < 0 ? before.steps.length : keep;
  const add = <T,>(a: T[], b: T[]) => a.slice(0, cut).concat(b);
  const series = Object.fromEntries(
    Object.keys(before.series).map((name) => [name, add(before.series[name]!, now.series[name] ?? now.steps.map(() => null))]),
  );
  const [steps, times, tokens] = [add(before.steps, now.steps), add(before.times, now.times), add(before.tokens, now.tokens)];
  return { epoch: now.epoch, steps, times, tokens, series };
}

export type XAxis = "step" | "tokens" | "time";

function xValues(values: Values, axis: XAxis): (number | null)[] {
  if (axis === "step") return values.steps;
  if (axis === "tokens") return values.tokens;
  const began = values.times.find((time) => time !== null) ?? 0;
  return values.times.map((time) => (time === null ? null : time - began));
}

export function xFormat(axis: XAxis): (x: number) => string {
  if (axis === "step") return (x) => (Number.isInteger(x) ? String(x) : "");
  if (axis === "time") return (x) => (x === 0 ? "0" : duration(x));
  return (x) => (x >= 1e6 ? `${num(x / 1e6)}M` : x >= 1e3 ? `${num(x / 1e3)}k` : String(x));
}

interface Versions {
  versions: { from_step: number }[];
}

/** The steps at which scripts of runs were replaced. */
function useMarks(entries: RunEntry[]): Map<string, number[]> {
  const [marks, set] = useState(new Map<string, number[]>());
  const key = entries.map((run) => `${run.name}:${run.versions}`).join("|");
  useEffect(() => {
    for (const run of entries.filter((run) => run.versions > 1)) {
      get<Versions>("versions", { run: run.name }).then(
        ({ versions }) => set((old) => new Map(old).set(run.name, versions.slice(1).map((one) => one.from_step))),
        () => undefined,
      );
    }
  }, [key]);
  return marks;
}

function curvesOf(name: string, shown: { run: RunEntry; position: number }[], all: Map<string, Values>, axis: XAxis, marks: Map<string, number[]>): Curve[] {
  return shown.flatMap(({ run, position }): Curve[] => {
    const values = all.get(run.name);
    const column = values?.series[name];
    if (!values || !column) return [];
    const xs = xValues(values, axis);
    const kept = column.map((_, at) => at).filter((at) => column[at] !== null && xs[at] !== null);
    if (!kept.length) return [];
    const at = (step: number) => {
      const index = values.steps.findIndex((one) => one >= step);
      return xs[index < 0 ? values.steps.length - 1 : index] ?? null;
    };
    const placed = (marks.get(run.name) ?? []).map((step, index) => ({ x: step ? at(step) : null, label: `v${index + 2}` }));
    return [
      {
        run: run.name,
        ...lineOf(position),
        x: kept.map((index) => xs[index]!),
        y: kept.map((index) => (typeof column[index] === "number" ? (column[index] as number) : null)),
        marks: placed.filter((mark): mark is { x: number; label: string } => mark.x !== null),
      },
    ];
  });
}

function selects(filter: string, name: string): boolean {
  return filter.toLowerCase().split(/\s+/).some((word) => word && name.toLowerCase().includes(word));
}

export function Runs() {
  const { data, error } = useJson<{ runs: RunEntry[]; now: number }>("runs");
  const { params } = useRoute();
  const [axis, setAxis] = useStored<XAxis>("axis", "step");
  const [weight, setWeight] = useStored("smoothing", 0);
  const [open, setOpen] = useStored<string[]>("groups", []);
  const filter = params.get("metrics") ?? "";
  const entries = data?.runs.filter((run) => !run.error) ?? [];
  // Without a choice the runs with curves that changed last are shown.
  const chosen = params.get("runs")?.split(",");
  const recent = entries.filter((run) => run.metrics.names.length).sort((a, b) => b.updated - a.updated).slice(0, 4);
  const visibleRuns = chosen ?? recent.map((run) => run.name);
  const shown = entries.map((run, position) => ({ run, position })).filter(({ run }) => visibleRuns.includes(run.name));
  const names = [...new Set(shown.flatMap(({ run }) => run.metrics.names))].sort();
  const groups = useMemo(() => {
    if (filter.trim()) return [{ title: `Metrics with “${filter}”`, key: "", names: names.filter((name) => selects(filter, name)) }];
    const main = { title: "Main", key: "", names: MAIN.filter((name) => names.includes(name)) };
    const prefixes = [...new Set(names.map((name) => name.split("/")[0]!))];
    return [main, ...prefixes.map((prefix) => ({ title: prefix, key: prefix, names: names.filter((name) => name.startsWith(`${prefix}/`)) }))];
  }, [filter, names.join()]);
  const drawn = groups.filter((group) => !group.key || open.includes(group.key)).flatMap((group) => group.names);
  const metrics = useMetrics(shown.map(({ run }) => run.name), [...new Set(drawn)]);
  const marks = useMarks(shown.map(({ run }) => run));
  if (error) return <Failed error={error} />;
  if (!data) return <p class="wait">Reading the runs…</p>;
  const toggle = (name: string) => {
    const next = visibleRuns.includes(name) ? visibleRuns.filter((one) => one !== name) : [...visibleRuns, name];
    setParams({ runs: next.length ? next.join(",") : "-" });
  };
  return (
    <div class="runs">
      <aside aria-label="Runs">
        <h1>Runs</h1>
        {data.runs.length === 0 && <p>There are no runs yet. <code>r1 run SCRIPT</code> makes one.</p>}
        <ul class="runlist">
          {data.runs.map((run, position) => (
            <RunItem key={run.name} run={run} now={data.now} {...lineOf(position)} shown={visibleRuns.includes(run.name)} toggle={() => toggle(run.name)} />
          ))}
        </ul>
      </aside>
      <section aria-label="Curves">
        <div class="bar">
          <label>
            Metrics{" "}
            <input id="filter" type="search" placeholder="reward eval/" value={filter} onInput={(event) => setParams({ metrics: event.currentTarget.value })} />
          </label>
          <label>
            Smoothing{" "}
            <input type="range" min="0" max="0.99" step="0.01" value={weight} onInput={(event) => setWeight(Number(event.currentTarget.value))} />
            <output>{weight.toFixed(2)}</output>
          </label>
          <label>
            Axis{" "}
            <select value={axis} onChange={(event) => setAxis(event.currentTarget.value as XAxis)}>
              <option value="step">step</option>
              <option value="tokens">sampled tokens</option>
              <option value="time">time</option>
            </select>
          </label>
          <span class="hint">Drag to zoom, double-click to zoom out</span>
        </div>
        {groups.map((group) => (
          <details key={group.key} class="metrics" open={!group.key || open.includes(group.key)}
            onToggle={(event) => {
              const now = event.currentTarget.open;
              if (group.key && now !== open.includes(group.key)) setOpen(now ? [...open, group.key] : open.filter((key) => key !== group.key));
            }}>
            <summary>{group.title} <span class="dim">{group.names.length}</span></summary>
            <div class="charts">
              {(!group.key || open.includes(group.key)) &&
                group.names.map((name) => (
                  <Chart key={name} title={name} curves={curvesOf(name, shown, metrics, axis, marks)} xLabel={axis} xFormat={xFormat(axis)}
                    weight={weight} height={170} onMark={(run) => (location.hash = href(["script", run]))} />
                ))}
            </div>
          </details>
        ))}
        {shown.length === 0 && <p>Choose a run.</p>}
      </section>
    </div>
  );
}

function RunItem({ run, now, color, dash, shown, toggle }: { run: RunEntry; now: number; color: string; dash: number[]; shown: boolean; toggle: () => void }) {
  if (run.error) {
    return (
      <li>
        <b>{run.name}</b>
        <Failed error={run.error} />
      </li>
    );
  }
  const { step, values } = run.metrics;
  const age = now - run.updated;
  const total = run.total && !run.evaluation ? `/${run.total}` : "";
  const main = Object.entries(values)[0];
  return (
    <li class={shown ? "on" : ""}>
      <label>
        <input type="checkbox" checked={shown} disabled={!run.metrics.names.length} onChange={toggle} />
        <svg width="18" height="8" aria-hidden="true">
          <line x1="0" x2="18" y1="4" y2="4" stroke={color} stroke-width="3" stroke-dasharray={dash.join(" ")} />
        </svg>
        <b>{visible(run.name)}</b>
      </label>
      <div class="facts">
        {run.evaluation ? "evaluation" : run.algorithm}
        {step !== null && ` · step ${step}${total}`}
        {main && ` · ${main[0]} ${num(main[1])}`}
        {` · ${age < 60 ? "active" : `${duration(age)} ago`}`}
      </div>
      <nav aria-label={run.name}>
        <a href={href(["trajectories", run.name])}>trajectories</a>
        <a href={href(["script", run.name])}>{run.versions > 1 ? `${run.versions} versions` : "settings"}</a>
        {run.evaluation && <a href={href(["evals"])}>report</a>}
      </nav>
    </li>
  );
}
