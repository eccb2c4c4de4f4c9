// One trajectory: conversation, tokens, time, branches, notes.
import { useEffect, useState } from "preact/hooks";
import { isStatic, post, useJson, type Notes, type Row } from "./data";
import { State } from "./state";
import { Tokens } from "./tokens";
import type { Message, Shown, Step, Tool } from "./types";
import { CopyButton, count, duration, Failed, href, LongText, num, plural, quoted, setParams, Status, useRoute, visible } from "./util";

export function contentText(message: Message): string {
  if (typeof message.content === "string") return message.content;
  return message.content.map((part) => (part.type === "text" ? part.text : `[${part.type} ${part.hash}]`)).join("");
}

function pretty(value: unknown): string {
  if (typeof value === "string") return value;
  const fields = value && typeof value === "object" ? Object.values(value) : [];
  // The only text of a call, such as a program, is more legible without JSON's escapes.
  if (fields.length === 1 && typeof fields[0] === "string") return fields[0];
  return JSON.stringify(value, null, 2);
}

/** The steps that the assistant's messages come from, counted from the last one. */
export function stepsOf(messages: Message[], steps: number): Map<number, number> {
  const replies = messages.map((message, at) => (message.role === "assistant" ? at : -1)).filter((at) => at >= 0);
  const more = replies.length - steps;
  return new Map(replies.slice(Math.max(0, more)).map((at, index) => [at, index + Math.max(0, -more)]));
}

export function Conversation({ shown, compact = false, from = 0 }: { shown: Shown; compact?: boolean; from?: number }) {
  const { messages, steps } = shown.trajectory;
  const numbers = stepsOf(messages, steps.length);
  return (
    <section aria-label="Conversation" class="conversation">
      {numbers.size < steps.length && messages.length > 0 && !compact && (
        <p class="hint">The messages at the end. The replies of {plural(steps.length - numbers.size, "earlier step")} are not among them; Tokens has them.</p>
      )}
      {messages.slice(from).map((message, index) => {
        const step = numbers.get(from + index);
        return (
          <article key={index} class={message.role}>
            <header>
              <b>{message.role}</b>
              {message.name && <span> {visible(message.name)}</span>}
              {step !== undefined && <StepFacts shown={shown} step={step} />}
            </header>
            {message.reasoning_content && <details><summary>Reasoning</summary><LongText text={message.reasoning_content} /></details>}
            <LongText text={contentText(message)} first={compact ? 1200 : 4000} />
            {message.tool_calls?.map((call, at) => (
              <div key={at} class="call"><code>{visible(call.name)}</code><pre><LongText text={pretty(call.arguments)} first={2000} /></pre></div>
            ))}
            {step !== undefined && !compact && <Calls tools={steps[step]!.tools} written={(message.tool_calls?.length ?? 0) > 0} />}
          </article>
        );
      })}
      {messages.length === 0 && <p>The trajectory has no messages.</p>}
    </section>
  );
}

function StepFacts({ shown, step }: { shown: Shown; step: number }) {
  const one = shown.trajectory.steps[step]!;
  return (
    <span class="facts">
      <a href={href(["t", shown.run, shown.trajectory.id], { view: "tokens", step: String(step) })}>step {step}</a>
      {` · ${count(one.response_ids.length || one.server?.usage.response_tokens || 0)} tokens`}
      {one.reward ? ` · reward ${num(one.reward)}` : ""}
      {shown.advantages[step] != null ? ` · advantage ${num(shown.advantages[step])}` : ""}
      {one.finish_reason !== "stop" ? ` · ${one.finish_reason}` : ""}
    </span>
  );
}

function Calls({ tools, written }: { tools: Tool[]; written: boolean }) {
  return (
    <>
      {tools.map((tool, at) => (
        <details key={at} class={`tool ${tool.ok ? "" : "bad"}`}>
          <summary>
            <code>{visible(tool.name)}</code> {tool.ok ? "ok" : (tool.kind ?? "failed").replace("_", " ")}
            {tool.hidden && " · called by the script"}
            {tool.seconds !== null && ` · ${duration(tool.seconds)}`}
            {tool.cached && " · cached"}
            {tool.retries ? ` · ${tool.retries} retries` : ""}
            {tool.reward ? ` · reward ${num(tool.reward)}` : ""}
          </summary>
          {!written && <pre><LongText text={pretty(tool.arguments)} first={2000} /></pre>}
          <pre class="output"><LongText text={tool.output} /></pre>
        </details>
      ))}
    </>
  );
}

/** The largest difference of a token's log-probability between learner and sampler. */
function mismatchOf(steps: Step[]): number {
  let largest = 0;
  for (const { trained, logprobs } of steps) {
    trained?.learner_logprobs?.forEach((learner, at) => {
      largest = Math.max(largest, Math.abs((learner ?? NaN) - (logprobs[at] ?? NaN)) || 0);
    });
  }
  return largest;
}

interface Part {
  label: string;
  kind: "context" | "sampling" | "tool" | "server" | "env";
  seconds: number;
}

/** The parts of a step in their order. What the environment's step took besides its tools is the script, and waiting. */
function partsOf(step: Step, at: number): Part[] {
  const { context, sampling, environment } = step.seconds;
  const tools = step.tools.map((tool): Part => ({ label: `step ${at}: ${tool.name}`, kind: "tool", seconds: tool.seconds ?? 0 }));
  const inTools = tools.reduce((sum, part) => sum + part.seconds, 0);
  return [
    { label: `step ${at}: context`, kind: "context", seconds: context ?? 0 },
    step.server
      ? { label: `step ${at}: server`, kind: "server", seconds: step.server.seconds }
      : { label: `step ${at}: sampling`, kind: "sampling", seconds: sampling ?? 0 },
    ...tools,
    { label: `step ${at}: environment`, kind: "env", seconds: Math.max(0, (environment ?? 0) - inTools) },
  ];
}

const TIMES: [Part["kind"], string][] = [["context", "context"], ["sampling", "sampling"], ["server", "server"], ["tool", "tools"], ["env", "environment and waiting"]];

/** Where the time went: a bar from reset to reward. */
function Times({ shown }: { shown: Shown }) {
  const { steps, seconds } = shown.trajectory;
  const parts = steps.flatMap(partsOf).filter((part) => part.seconds > 0);
  const stored = parts.reduce((sum, part) => sum + part.seconds, 0);
  const total = Math.max(seconds, stored);
  if (!total) return null;
  const rest = total - stored;
  const all = [...parts, { label: "the rest", kind: "rest", seconds: rest }];
  const sums = TIMES.map(([kind, name]) => ({ kind, name, sum: parts.reduce((sum, part) => sum + (part.kind === kind ? part.seconds : 0), 0) }));
  return (
    <section aria-label="Time">
      <h2>Time <span class="dim">{duration(total)}</span></h2>
      <div class="times" aria-hidden="true">
        {all.map((part, at) => <i key={at} class={part.kind} title={`${part.label}: ${duration(part.seconds)}`} style={{ flexGrow: String(part.seconds / total) }} />)}
      </div>
      <ul class="legend">
        {sums.filter(({ sum }) => sum > 0).map(({ kind, name, sum }) => <li key={kind}><i class={kind} aria-hidden="true" /> {name} {duration(sum)}</li>)}
        <li><i class="rest" aria-hidden="true" /> the rest: reset, reward, waiting {duration(rest)}</li>
      </ul>
    </section>
  );
}

/** The trajectories of the group; branches below the trajectory that they come from. */
function Group({ shown }: { shown: Shown }) {
  const { group, run, split, summary } = shown;
  const below = (parent: string | undefined): Row[] => group.filter((row) => (group.some((other) => other.id === row.parent) ? row.parent : undefined) === parent);
  const tree = (parent: string | undefined) => {
    const rows = below(parent);
    if (!rows.length) return null;
    return (
      <ul>
        {rows.map((row) => (
          <li key={row.id}>
            <a href={href(["t", run, row.id])} aria-current={row.id === summary.id ? "page" : undefined}>{row.id}</a>{" "}
            <span class={row.reward > 0 ? "pos" : row.reward < 0 ? "neg" : ""}>{num(row.reward)}</span>
            <span class="dim"> {plural(row.steps, "step")}{row.forked_at !== null && `, branches after ${row.forked_at}`}</span>
            {tree(row.id)}
          </li>
        ))}
      </ul>
    );
  };
  return (
    <section aria-label="Group" class="tree">
      <h2>Group <a class="dim" href={href(["group", run, split, summary.step, summary.group])}>side by side</a></h2>
      {tree(undefined)}
    </section>
  );
}

function Curation({ shown }: { shown: Shown }) {
  const empty: Notes = { id: shown.trajectory.id, tags: [], note: "", quality: null, exclude: false };
  const [notes, set] = useState<Notes>(shown.summary.notes ?? empty);
  const [tags, setTags] = useState(notes.tags.join(" "));
  const [state, setState] = useState("");
  const save = async (next: Notes) => {
    set(next);
    setState("Saving…");
    try {
      await post("curation", { run: shown.run }, next);
      setState("Saved");
    } catch (error) {
      setState(`Not saved: ${(error as Error).message}`);
    }
  };
  return (
    <section aria-label="Notes" class="notes">
      <h2>Notes <span class="dim" role="status">{state}</span></h2>
      <fieldset disabled={isStatic}>
        <div role="radiogroup" aria-label="Quality" class="quality">
          Quality{" "}
          {[1, 2, 3, 4, 5].map((value) => (
            <button key={value} type="button" role="radio" aria-checked={notes.quality === value} onClick={() => save({ ...notes, quality: notes.quality === value ? null : value })}>{value}</button>
          ))}
        </div>
        <label>
          Tags <input value={tags} placeholder="words" onInput={(event) => setTags(event.currentTarget.value)} onChange={() => save({ ...notes, tags: tags.split(/[\s,]+/).filter(Boolean) })} />
        </label>
        <label>
          Note <textarea rows={3} value={notes.note} onInput={(event) => set({ ...notes, note: event.currentTarget.value })} onChange={(event) => save({ ...notes, note: event.currentTarget.value })} />
        </label>
        <label>
          <input type="checkbox" checked={notes.exclude} onChange={() => save({ ...notes, exclude: !notes.exclude })} /> Leave out of exports
        </label>
      </fieldset>
      {isStatic && <p class="hint">A copy can't be changed.</p>}
    </section>
  );
}

export function TrajectoryPage({ run, id }: { run: string; id: string }) {
  const { data: shown, error } = useJson<Shown>("trajectory", { run, id }, run);
  const { params } = useRoute();
  const step = params.get("step");
  const view = params.get("view") ?? "conversation";
  const number = step === null ? null : Number(step);
  useEffect(() => {
    if (shown && number !== null) document.getElementById(`step-${number}`)?.scrollIntoView();
  }, [shown?.trajectory.id, number, view]);
  if (error) return <Failed error={error} />;
  if (!shown) return <p class="wait">Reading the trajectory…</p>;
  const { summary, trajectory, group } = shown;
  const mismatch = mismatchOf(trajectory.steps);
  const place = group.findIndex((row) => row.id === id);
  const near = (by: number) => group[place + by];
  const at = number ?? Math.max(0, trajectory.steps.length - 1);
  const tabs: [string, string][] = [["conversation", "Conversation"], ["tokens", "Tokens"], ["state", "State"], ["task", "Task and record"]];
  return (
    <div class="page trajectory">
      <header>
        <p class="crumbs"><a href={href(["trajectories", run])}>{visible(run)}</a> / step {summary.step} / <a href={href(["group", run, shown.split, summary.step, summary.group])}>group {summary.group}</a></p>
        <h1>
          {id}
          <span class="pager">
            {near(-1) && <a id="previous" href={href(["t", run, near(-1)!.id], { view })} aria-label="Previous trajectory of the group">←</a>}
            {near(1) && <a id="next" href={href(["t", run, near(1)!.id], { view })} aria-label="Next trajectory of the group">→</a>}
          </span>
        </h1>
        <dl class="figures">
          <div><dt>status</dt><dd><Status status={summary.status} by={summary.truncated_by} dropped={summary.dropped} /></dd></div>
          <div><dt>reward</dt><dd class={summary.reward > 0 ? "pos" : summary.reward < 0 ? "neg" : ""}>{num(summary.reward)}</dd></div>
          {Object.entries(trajectory.reward_parts).map(([name, value]) => <div key={name}><dt>{visible(name)}</dt><dd>{num(value)}</dd></div>)}
          <div><dt>advantage</dt><dd>{num(summary.advantage)}</dd></div>
          <div><dt>steps</dt><dd>{summary.steps}</dd></div>
          <div><dt>tokens</dt><dd>{count(summary.tokens)}</dd></div>
          {mismatch > 0 && <div><dt>mismatch</dt><dd>{num(mismatch)}</dd></div>}
          <div><dt>weights</dt><dd>v{summary.policy_version}</dd></div>
        </dl>
        <p class="bar">
          <CopyButton text={`r1 replay ${quoted(shown.path)} ${id}`}>Copy r1 replay</CopyButton>
          <CopyButton text={`r1 repl --replay ${quoted(`${shown.path}:${id}:${at + 1}`)}`}>Copy r1 repl at step {at}</CopyButton>
          <a href={href(["script", run])}>script {trajectory.script_hash.slice(0, 12)}</a>
        </p>
      </header>
      {trajectory.error && (
        <section class="error" role="alert">
          <b>{visible(trajectory.error.message)}</b>
          <pre>{visible([trajectory.error.place, trajectory.error.line, trajectory.error.hint && `hint: ${trajectory.error.hint}`, ...(trajectory.error.traceback ?? [])].filter(Boolean).join("\n"))}</pre>
        </section>
      )}
      <div class="split">
        <div>
          <div role="tablist" class="tabs" aria-label="Parts">
            {tabs.map(([name, title]) => (
              <button key={name} role="tab" id={`tab-${name}`} aria-selected={view === name} aria-controls="part" onClick={() => setParams({ view: name === "conversation" ? undefined : name, step: undefined })}>{title}</button>
            ))}
            {view === "tokens" && number !== null && <button onClick={() => setParams({ step: undefined })}>All steps</button>}
          </div>
          <div id="part" role="tabpanel" aria-labelledby={`tab-${view}`}>
            {view === "tokens" ? <Tokens shown={shown} only={number} /> : view === "state" ? <State shown={shown} /> : view === "task" ? <Record shown={shown} /> : <Conversation shown={shown} />}
          </div>
        </div>
        <aside aria-label="About the trajectory">
          <Group shown={shown} />
          <Times shown={shown} />
          <Curation key={id} shown={shown} />
        </aside>
      </div>
    </div>
  );
}

/** The task, and what the script asked for outside of its virtual machine. */
function Record({ shown }: { shown: Shown }) {
  const { task, record, steps } = shown.trajectory;
  return (
    <section aria-label="Task and record">
      <h3>Task <span class="dim">row {shown.summary.task_index} of the dataset</span></h3>
      <pre class="prompt"><LongText text={JSON.stringify(task, null, 2)} /></pre>
      {steps.some((step) => step.privileged) && (
        <>
          <h3>Privileged state for the critic</h3>
          {steps.map((step, at) => step.privileged && <pre key={at} class="prompt">step {at}: <LongText text={step.privileged} /></pre>)}
        </>
      )}
      <h3>External calls <span class="dim">{record.length}</span></h3>
      {record.map((call, at) => (
        <details key={at}>
          <summary>step {call.step}, {visible(call.at)}: <code>{visible(call.kind)}</code></summary>
          <pre class="prompt"><LongText text={pretty(call.request)} first={2000} /></pre>
          <pre class="output"><LongText text={JSON.stringify(call.answer ?? null, null, 2)} first={2000} /></pre>
        </details>
      ))}
    </section>
  );
}
