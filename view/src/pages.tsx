// Versions of the script and settings of a run; tables of evaluations.
import { useEffect, useState } from "preact/hooks";
import { get, useJson, type RunEntry } from "./data";
import { lineOf, useMetrics } from "./runs";
import { Failed, href, LongText, num, setParams, useRoute, visible } from "./util";

interface Version {
  from_step: number;
  hash: string;
  script: string;
  overrides: string[];
  r1: string;
  settings: { name: string; was: unknown; is: unknown }[];
  files: { name: string; lines: [string, string][] }[];
  source: string | null;
}

export function ScriptPage({ run }: { run: string }) {
  const { data, error } = useJson<{ versions: Version[]; settings: Record<string, unknown> }>("versions", { run }, run);
  if (error) return <Failed error={error} />;
  if (!data) return <p class="wait">Reading the versions…</p>;
  return (
    <div class="page">
      <h1>Script and settings of {visible(run)}</h1>
      {data.versions.map((version, at) => (
        <section key={at} aria-label={`Version ${at + 1}`}>
          <h2>Version {at + 1} <span class="dim">from step {version.from_step} · {visible(version.script)} {version.hash} · r1 {version.r1}</span></h2>
          {at === 0 && version.overrides.length > 0 && <pre class="prompt">{visible(version.overrides.join("\n"))}</pre>}
          {version.settings.length > 0 && (
            <table class="plain">
              <thead><tr><th scope="col">setting</th><th scope="col">before</th><th scope="col">from step {version.from_step}</th></tr></thead>
              <tbody>{version.settings.map((one) => <tr key={one.name}><th scope="row">{visible(one.name)}</th><td><del>{visible(JSON.stringify(one.was))}</del></td><td><ins>{visible(JSON.stringify(one.is))}</ins></td></tr>)}</tbody>
            </table>
          )}
          {version.files.map((file) => (
            <figure key={file.name} class="diff">
              <figcaption>{visible(file.name)}</figcaption>
              <pre>{file.lines.map(([sign, text], line) => <Line key={line} sign={sign} text={text} />)}</pre>
            </figure>
          ))}
          {at > 0 && !version.settings.length && !version.files.length && <p class="hint">Neither the script nor the settings differ from the version before, or its files are missing.</p>}
          {version.source !== null && <details><summary>Source</summary><pre class="prompt"><LongText text={version.source} first={20_000} /></pre></details>}
        </section>
      ))}
      <details><summary>All settings</summary><pre class="prompt">{visible(JSON.stringify(data.settings, null, 2))}</pre></details>
    </div>
  );
}

function Line({ sign, text }: { sign: string; text: string }) {
  if (sign === "@") return <span class="hunk">{text}{"\n"}</span>;
  const line = `${sign} ${visible(text)}\n`;
  return sign === "+" ? <ins>{line}</ins> : sign === "-" ? <del>{line}</del> : <span>{line}</span>;
}

interface Estimate {
  value: number | null;
  low?: number | null;
  high?: number | null;
}

interface PolicyReport {
  model: string;
  tasks: number;
  samples: number;
  missing: number;
  metrics: Record<string, Estimate>;
  slices: Record<string, Record<string, { tasks: number; metrics: Record<string, Estimate> }>>;
  failures: Record<string, number>;
  truncated: Record<string, number>;
}

interface Evaluations {
  report: (Partial<PolicyReport> & { recipe?: string; n?: number; policies?: PolicyReport[]; comparisons?: { model: string; baseline: string; metrics: Record<string, Estimate & { p?: number }> }[] }) | null;
  steps: number[];
}

interface Evaluated {
  run: string;
  label: string;
  policy: PolicyReport;
}

export function Evaluation() {
  const { data, error } = useJson<{ runs: RunEntry[] }>("runs");
  const { params } = useRoute();
  const [reports, set] = useState<Record<string, Evaluations>>({});
  const runs = data?.runs.filter((run) => run.evaluation) ?? [];
  const key = runs.map((run) => `${run.name}${run.updated}`).join();
  useEffect(() => {
    for (const run of runs) {
      get<Evaluations>("evaluations", { run: run.name }).then((read) => set((old) => ({ ...old, [run.name]: read })), () => undefined);
    }
  }, [key]);
  if (error) return <Failed error={error} />;
  if (!data) return <p class="wait">Reading the evaluations…</p>;
  const all = runs.flatMap((run): Evaluated[] => {
    const report = reports[run.name]?.report;
    if (!report) return [];
    const policies = report.policies ?? (report.metrics ? [report as PolicyReport] : []);
    return policies.map((policy) => ({ run: run.name, label: policies.length > 1 ? `${run.name}: ${policy.model}` : run.name, policy }));
  });
  const hidden = new Set((params.get("without") ?? "").split(",").filter(Boolean));
  const shown = all.filter((one) => !hidden.has(one.label));
  const toggle = (label: string) => {
    const next = new Set(hidden);
    if (!next.delete(label)) next.add(label);
    setParams({ without: [...next].join(",") });
  };
  const training = data.runs.map((run, position) => ({ run, position })).filter(({ run }) => !run.error && run.metrics.names.some((name) => name.startsWith("eval/")));
  return (
    <div class="page">
      <h1>Evaluations</h1>
      <h2>Of <code>r1 eval</code></h2>
      {all.length === 0 && <p>None of the runs is one of <code>r1 eval</code>.</p>}
      <div class="bar">{all.map((one) => <label key={one.label}><input type="checkbox" checked={!hidden.has(one.label)} onChange={() => toggle(one.label)} /> {visible(one.label)}</label>)}</div>
      {shown.length > 0 && <Table shown={shown} />}
      {shown.map((one) => <Slices key={one.label} one={one} />)}
      <h2>During training</h2>
      {training.length === 0 ? <p>No run has evaluations.</p> : <During runs={training} />}
    </div>
  );
}

function interval(one: Estimate | undefined) {
  if (!one) return <td class="number">–</td>;
  return <td class="number"><b>{num(one.value)}</b>{one.low != null && one.high != null && <small> {num(one.low)} to {num(one.high)}</small>}</td>;
}

function Table({ shown }: { shown: Evaluated[] }) {
  const names = [...new Set(shown.flatMap((one) => Object.keys(one.policy.metrics)))];
  const counts = (values: Record<string, number>) => Object.entries(values).map(([name, value]) => `${value} ${name}`).join(", ") || "0";
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Figures">
      <table class="plain">
        <caption>Estimates with their 95% intervals</caption>
        <thead><tr><th scope="col">metric</th>{shown.map((one) => <th key={one.label} scope="col"><a href={href(["trajectories", one.run], { split: "eval" })}>{visible(one.label)}</a><br /><small>{visible(one.policy.model)}</small></th>)}</tr></thead>
        <tbody>
          <tr><th scope="row">tasks (samples)</th>{shown.map((one) => <td key={one.label} class="number">{one.policy.tasks} ({one.policy.samples})</td>)}</tr>
          {names.map((name) => <tr key={name}><th scope="row">{visible(name)}</th>{shown.map((one) => interval(one.policy.metrics[name]))}</tr>)}
          <tr><th scope="row">failures</th>{shown.map((one) => <td key={one.label} class="number">{counts(one.policy.failures)}</td>)}</tr>
          <tr><th scope="row">truncated</th>{shown.map((one) => <td key={one.label} class="number">{counts(one.policy.truncated)}</td>)}</tr>
        </tbody>
      </table>
    </div>
  );
}

function Slices({ one }: { one: Evaluated }) {
  return (
    <>
      {Object.entries(one.policy.slices ?? {}).map(([column, slices]) => {
        const names = [...new Set(Object.values(slices).flatMap((slice) => Object.keys(slice.metrics)))].slice(0, 8);
        return (
          <div key={column} class="scroll" tabIndex={0} role="region" aria-label={`By ${column}`}>
            <table class="plain">
              <caption>{visible(one.label)} by {visible(column)}</caption>
              <thead><tr><th scope="col">{visible(column)}</th><th scope="col">tasks</th>{names.map((name) => <th key={name} scope="col">{visible(name)}</th>)}</tr></thead>
              <tbody>{Object.entries(slices).map(([value, slice]) => <tr key={value}><th scope="row">{visible(value)}</th><td class="number">{slice.tasks}</td>{names.map((name) => interval(slice.metrics[name]))}</tr>)}</tbody>
            </table>
          </div>
        );
      })}
    </>
  );
}

/** The evaluations of training runs: first, best and last value of each metric. */
function During({ runs: placed }: { runs: { run: RunEntry; position: number }[] }) {
  const runs = placed.map(({ run }) => run);
  const names = [...new Set(runs.flatMap((run) => run.metrics.names.filter((name) => name.startsWith("eval/"))))].sort();
  const metrics = useMetrics(runs.map((run) => run.name), names);
  const cell = (run: RunEntry, name: string) => {
    const values = metrics.get(run.name);
    const points = (values?.series[name] ?? []).map((value, at) => [values!.steps[at], value] as const).filter((one): one is readonly [number, number] => typeof one[1] === "number");
    if (!points.length) return <td key={run.name} class="number">–</td>;
    const [first, last] = [points[0]!, points[points.length - 1]!];
    return <td key={run.name} class="number" title={points.map(([step, value]) => `step ${step}: ${num(value)}`).join("\n")}><small>{num(first[1])} → </small><b>{num(last[1])}</b></td>;
  };
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Evaluations during training">
      <table class="plain">
        <caption>First → last evaluation of each run</caption>
        <thead><tr><th scope="col">metric</th>{placed.map(({ run, position }) => <th key={run.name} scope="col"><a href={href(["trajectories", run.name], { split: "eval" })} style={{ borderBottom: `2px solid ${lineOf(position).color}` }}>{visible(run.name)}</a></th>)}</tr></thead>
        <tbody>{names.map((name) => <tr key={name}><th scope="row">{name.slice(5)}</th>{runs.map((run) => cell(run, name))}</tr>)}</tbody>
      </table>
    </div>
  );
}
