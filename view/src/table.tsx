// Tables of trajectories and of groups. The server filters and sorts; rows are loaded as they are
// scrolled to, so that 100,000 of them are shown at once.
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { get, isStatic, useVersion, type Page, type Params, type Row } from "./data";
import { filter as parse } from "./filter";
import { count, duration, Failed, href, num, setParams, Status, useRoute, visible } from "./util";

const HEIGHT = 26;
const PAGE = 200;

interface Column<T> {
  name: string;
  title: string;
  /** Width in pixels; the task takes the rest. */
  width?: number;
  number?: boolean;
  help?: string;
  cell: (row: T) => ComponentChildren;
}

export interface GroupRow {
  step: number;
  group: number;
  task: string;
  count: number;
  mean: number;
  std: number;
  min: number;
  max: number;
  tokens: number;
  steps: number;
  failures: number;
}

function reward(value: number): ComponentChildren {
  return <span class={value > 0 ? "pos" : value < 0 ? "neg" : ""}>{num(value)}</span>;
}

function trajectoryColumns(run: string, parts: string[]): Column<Row>[] {
  const part = (name: string): Column<Row> => ({
    name: `reward_parts.${name}`, title: name, width: 76, number: true, help: `reward part ${name}`, cell: (row) => num(row.reward_parts[name]),
  });
  return [
    { name: "id", title: "id", width: 84, cell: (row) => <a href={href(["t", run, row.id])}>{row.id}</a> },
    { name: "reward", title: "reward", width: 70, number: true, cell: (row) => reward(row.reward) },
    { name: "advantage", title: "advantage", width: 90, number: true, help: "mean advantage of the steps", cell: (row) => num(row.advantage) },
    { name: "status", title: "status", width: 176, cell: (row) => <Status status={row.status} by={row.truncated_by} dropped={row.dropped} /> },
    { name: "steps", title: "steps", width: 56, number: true, cell: (row) => row.steps },
    { name: "tokens", title: "tokens", width: 64, number: true, help: "sampled tokens", cell: (row) => count(row.tokens) },
    { name: "tool_calls", title: "calls", width: 52, number: true, help: "tool calls", cell: (row) => row.tool_calls },
    { name: "seconds", title: "time", width: 70, number: true, cell: (row) => (row.seconds ? duration(row.seconds) : "–") },
    ...parts.map(part),
    { name: "quality", title: "notes", width: 84, cell: (row) => notes(row) },
    { name: "task", title: "task", cell: (row) => visible(row.error ?? row.task) },
  ];
}

function notes(row: Row): ComponentChildren {
  if (!row.notes) return "";
  const { quality, tags, exclude, note } = row.notes;
  const words = [exclude ? "left out" : "", quality ? "★".repeat(quality) : "", tags.join(" "), note ? "✎" : ""];
  return <span title={visible(note)}>{words.filter(Boolean).join(" ")}</span>;
}

function groupColumns(run: string, split: string): Column<GroupRow>[] {
  const at = (row: GroupRow) => href(["group", run, split, row.step, row.group]);
  const number = (name: keyof GroupRow, title: string, help?: string): Column<GroupRow> => ({
    name, title, width: 70, number: true, ...(help ? { help } : {}), cell: (row) => num(row[name] as number),
  });
  return [
    { name: "step", title: "group", width: 96, cell: (row) => <a href={at(row)}>{`${row.step}-${row.group}`}</a> },
    number("count", "samples"),
    { name: "mean", title: "mean", width: 70, number: true, help: "mean reward", cell: (row) => reward(row.mean) },
    number("std", "std", "standard deviation of the rewards"),
    number("min", "min", "smallest reward"),
    number("max", "max", "largest reward"),
    number("tokens", "tokens", "mean sampled tokens"),
    number("steps", "steps", "mean steps"),
    number("failures", "failed"),
    { name: "task", title: "task", cell: (row) => visible(row.task) },
  ];
}

/** All rows of a static copy. */
async function allRows(run: string, split: string): Promise<Page<Row>> {
  const first = await get<Page<Row>>("trajectories", { run, split, offset: 0 });
  for (let offset = first.rows.length; offset < first.total && first.rows.length < first.total; ) {
    const next = await get<Page<Row>>("trajectories", { run, split, offset });
    first.rows = first.rows.concat(next.rows);
    offset += next.rows.length;
    if (!next.rows.length) break;
  }
  return first;
}

function columnOf(row: Row, name: string): number | string | boolean | null {
  if (name.startsWith("reward_parts.")) return row.reward_parts[name.slice(13)] ?? null;
  if (name === "excluded") return row.notes?.exclude ?? false;
  if (name === "quality") return row.notes?.quality ?? null;
  if (name === "tags") return row.notes?.tags.join(" ") || null;
  return (row as unknown as Record<string, number | string | null>)[name] ?? null;
}

function ordered<T>(rows: T[], sort: string, column: (row: T, name: string) => number | string | boolean | null): T[] {
  const [name, sign] = sort.startsWith("-") ? [sort.slice(1), -1] : [sort, 1];
  return rows.slice().sort((a, b) => {
    const [x, y] = [column(a, name), column(b, name)];
    if (x === null || y === null) return Number(x === null) - Number(y === null);
    return x < y ? -sign : x > y ? sign : 0;
  });
}

/** A page as the server computes it, of a static copy. */
async function ofCopy<T>(view: string, params: Params): Promise<Page<T>> {
  const all = await allRows(String(params.run), String(params.split));
  const matches = params.where ? parse(String(params.where)) : () => true;
  const rows = all.rows.filter((row) => { const value = matches((name) => columnOf(row, name)); return value !== null && value !== false; });
  let selected: unknown[] = ordered(rows, String(params.sort), columnOf);
  if (view === "groups") {
    const groups = new Map<string, Row[]>();
    for (const row of rows) groups.set(`${row.step}-${row.group}`, [...(groups.get(`${row.step}-${row.group}`) ?? []), row]);
    const of = (members: Row[]): GroupRow => {
      const mean = (value: (row: Row) => number) => members.reduce((sum, row) => sum + value(row), 0) / members.length;
      const rewards = members.map((row) => row.reward);
      const center = mean((row) => row.reward);
      const { step, group, task } = members[0]!;
      return {
        step, group, task, count: members.length, mean: center, std: Math.sqrt(mean((row) => (row.reward - center) ** 2)),
        min: Math.min(...rewards), max: Math.max(...rewards), tokens: mean((row) => row.tokens), steps: mean((row) => row.steps),
        failures: members.filter((row) => !["terminated", "truncated"].includes(row.status)).length,
      };
    };
    const column = (row: GroupRow, name: string) => row[name as keyof GroupRow];
    selected = ordered([...groups.values()].map(of), String(params.sort), column);
  }
  const offset = Number(params.offset);
  return { ...all, matching: selected.length, rows: selected.slice(offset, offset + PAGE) as T[] };
}

function usePages<T>(view: string, params: Params, run: string) {
  const [pages, set] = useState<{ key: string; meta?: Page<T>; rows: Map<number, T>; error?: string }>({ key: "", rows: new Map() });
  const key = JSON.stringify([view, params]);
  const version = useVersion(run);
  const asked = useRef({ of: "", pages: new Set<number>() });
  const load = useCallback(
    (page: number, again = false) => {
      const of = `${key}#${version}`;
      if (asked.current.of !== of) asked.current = { of, pages: new Set() };
      if (asked.current.pages.has(page)) return;
      asked.current.pages.add(page);
      const query = { ...params, offset: page * PAGE, limit: PAGE };
      (isStatic ? ofCopy<T>(view, query) : get<Page<T>>(view, query)).then(
        (meta) =>
          set((old) => {
            // While a run goes on, old rows stay until they are read again.
            const rows = old.key === key ? new Map(old.rows) : new Map<number, T>();
            if (again) for (const at of [...rows.keys()]) if (at >= meta.matching) rows.delete(at);
            meta.rows.forEach((row, at) => rows.set(page * PAGE + at, row));
            return { key, meta, rows };
          }),
        (error: Error) => set({ key, rows: new Map(), error: error.message }),
      );
    },
    [key, version],
  );
  useEffect(() => load(0, true), [load]);
  return { ...pages, current: pages.key === key, load };
}

export function Trajectories({ run }: { run: string }) {
  const { params } = useRoute();
  const split = params.get("split") ?? "train";
  const view = params.get("by") === "group" ? "groups" : "trajectories";
  const where = params.get("where") ?? "";
  const sort = params.get("sort") ?? "-step";
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (input.current && input.current !== document.activeElement) input.current.value = where;
  }, [where]);
  const search = (event: Event) => {
    event.preventDefault();
    setParams({ where: input.current?.value.trim() });
  };
  const query: Params = { run, split, where: where || undefined, sort };
  return (
    <div class="page">
      <h1>Trajectories of {visible(run)}</h1>
      <div class="bar">
        <form onSubmit={search} role="search">
          <label>
            Filter{" "}
            <input id="filter" ref={input} type="search" size={36} defaultValue={where} placeholder='reward < 0 and steps > 3' list="filters" onInput={(event) => event.currentTarget.value || setParams({ where: undefined })} />
          </label>
          <datalist id="filters">
            {['status == "truncated"', "reward < 0 and steps > 3", "reward_parts.format == 0", "tool_calls == 0", "excluded", "quality >= 4"].map((text) => <option key={text} value={text} />)}
          </datalist>
          <button type="submit">Apply</button>
        </form>
        <label>
          Split{" "}
          <select value={split} onChange={(event) => setParams({ split: event.currentTarget.value })}>
            <option value="train">train</option>
            <option value="eval">eval</option>
          </select>
        </label>
        <label>
          Rows{" "}
          <select value={view} onChange={(event) => setParams({ by: event.currentTarget.value === "groups" ? "group" : undefined, sort: undefined })}>
            <option value="trajectories">trajectories</option>
            <option value="groups">groups</option>
          </select>
        </label>
      </div>
      {view === "groups" ? (
        <VirtualTable<GroupRow> key={`g${split}`} view={view} query={query} run={run} columns={() => groupColumns(run, split)} open={(row) => href(["group", run, split, row.step, row.group])} />
      ) : (
        <VirtualTable<Row> key={`t${split}`} view={view} query={query} run={run} columns={(parts) => trajectoryColumns(run, parts)} open={(row) => href(["t", run, row.id])} />
      )}
    </div>
  );
}

interface TableProps<T> {
  view: string;
  query: Params;
  run: string;
  columns: (parts: string[]) => Column<T>[];
  open: (row: T) => string;
}

function VirtualTable<T>({ view, query, run, columns: columnsOf, open }: TableProps<T>) {
  const { meta, rows, error, load, current } = usePages<T>(view, query, run);
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [size, setSize] = useState(600);
  const [selected, select] = useState(0);
  const sort = String(query.sort);
  const columns = useMemo(() => columnsOf(meta?.parts ?? []), [meta?.parts.join(), run, query.split]);
  const matching = meta?.matching ?? 0;
  const first = Math.max(0, Math.floor(top / HEIGHT) - 10);
  const last = Math.min(matching, Math.ceil((top + size) / HEIGHT) + 10);
  useEffect(() => {
    for (let page = Math.floor(first / PAGE); page * PAGE < last; page += 1) load(page);
  }, [first, last, load]);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setSize(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    box.current?.scrollTo({ top: 0 });
    select(0);
  }, [query.where, query.sort]);
  const move = (to: number) => {
    const at = Math.max(0, Math.min(matching - 1, to));
    select(at);
    const element = box.current;
    if (!element) return;
    const [from, end] = [at * HEIGHT, at * HEIGHT + 2 * HEIGHT];
    if (from < element.scrollTop) element.scrollTop = from;
    else if (end > element.scrollTop + element.clientHeight - HEIGHT) element.scrollTop = end - element.clientHeight + HEIGHT;
  };
  const key = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 20, PageUp: -20, Home: -1e9, End: 1e9 };
    const step = steps[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (step) {
      move(selected + step);
      event.preventDefault();
    } else if (event.key === "Enter" && !(event.target instanceof HTMLButtonElement)) {
      const row = rows.get(selected);
      if (row) location.hash = open(row);
    }
  };
  const shown = Array.from({ length: Math.max(0, last - first) }, (_, at) => first + at);
  return (
    <>
      {error && <Failed error={error} />}
      <p class="hint" aria-live="polite">
        {meta && current ? `${count(matching)} ${view}${query.where ? ` of ${count(meta.total)} trajectories match` : ""}. ↑ ↓ move, Enter opens.` : error ? "" : "Reading the trajectories…"}
      </p>
      {meta?.damaged.map((text) => <Failed key={text} error={`A file can't be read: ${text}`} />)}
      <div class={`table ${current ? "" : "old"}`} ref={box} tabIndex={0} role="region" aria-label={view} onScroll={(event) => setTop(event.currentTarget.scrollTop)} onKeyDown={key}>
        <table aria-rowcount={matching + 1} style={{ minWidth: `${columns.reduce((sum, one) => sum + (one.width ?? 280), 0)}px` }}>
          <colgroup>{columns.map((one) => <col key={one.name} style={one.width ? { width: `${one.width}px` } : {}} />)}</colgroup>
          <thead>
            <tr>
              {columns.map((one) => {
                const state = sort === one.name ? "ascending" : sort === `-${one.name}` ? "descending" : "none";
                const next = sort === `-${one.name}` ? one.name : `-${one.name}`;
                return (
                  <th key={one.name} scope="col" aria-sort={state} class={one.number ? "number" : ""}>
                    <button title={one.help ?? one.name} onClick={() => setParams({ sort: next })}>
                      {one.title}{state === "ascending" ? " ▲" : state === "descending" ? " ▼" : ""}
                    </button>
                  </th>
                );
              })}
            </tr>
          </thead>
          <tbody>
            {first > 0 && <tr aria-hidden="true" style={{ height: `${first * HEIGHT}px` }} />}
            {shown.map((at) => {
              const row = rows.get(at);
              return (
                <tr key={at} aria-rowindex={at + 2} aria-current={at === selected ? "true" : undefined} class={at === selected ? "selected" : ""}
                  onClick={(event) => { select(at); if (row && !(event.target as Element).closest("a")) location.hash = open(row); }}>
                  {columns.map((one) => <td key={one.name} class={one.number ? "number" : ""}>{row ? one.cell(row) : one === columns[0] ? "…" : ""}</td>)}
                </tr>
              );
            })}
            {last < matching && <tr aria-hidden="true" style={{ height: `${(matching - last) * HEIGHT}px` }} />}
          </tbody>
        </table>
      </div>
    </>
  );
}
