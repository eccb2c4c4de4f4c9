// The steps of a trajectory token by token.
import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import { count, num, plural, useStored, visible } from "./util";
import { promptIds, type PromptPart, type Shown, type Step } from "./types";

type Scale = "none" | "mask" | "logprob" | "mismatch" | "advantage" | "entropy" | "value" | "reference";

interface Coloring {
  key: Scale;
  title: string;
  help: string;
  /** The value of a sampled token; undefined where it is not stored. */
  value: (step: Step, at: number, shown: Shown, index: number) => number | null | undefined;
  /** Whether the sign has its own colour. */
  signed: boolean;
  /** The value with the full colour, instead of the largest one of the trajectory. */
  full?: number;
}

const difference = (a: number | null | undefined, b: number | null | undefined) => (a == null || b == null ? undefined : a - b);

const COLORINGS: Coloring[] = [
  { key: "none", title: "nothing", help: "Plain text", signed: false, value: () => 0 },
  {
    key: "mask", title: "mask", help: "Trained tokens are underlined: the loss has a term for them", signed: false,
    value: (step, at, shown, index) => {
      const mask = step.trained?.loss_mask;
      if (mask?.length) return mask[at] ? 1 : 0;
      return shown.advantages[index] == null ? 0 : 1;
    },
  },
  { key: "logprob", title: "log-probability", help: "Log-probability when it was sampled: darker is less likely", signed: false, full: 3, value: (step, at) => (step.logprobs[at] == null ? undefined : -step.logprobs[at]!) },
  { key: "mismatch", title: "mismatch", help: "Log-probability of the learner minus that of the sampler", signed: true, value: (step, at) => difference(step.trained?.learner_logprobs?.[at], step.logprobs[at]) },
  { key: "advantage", title: "advantage", help: "Blue: made more likely; orange: made less likely", signed: true, value: (step, at, shown, index) => (step.trained?.advantages?.length ? step.trained.advantages[at] : (shown.advantages[index] ?? undefined)) },
  { key: "entropy", title: "entropy", help: "Entropy of the distribution that it was sampled from", signed: false, full: 2, value: (step, at) => step.trained?.entropies?.[at] },
  { key: "value", title: "value", help: "Prediction of the critic", signed: true, value: (step, at) => step.trained?.values?.[at] },
  { key: "reference", title: "log-ratio to reference", help: "Log-probability of the learner minus that of the reference", signed: true, value: (step, at) => difference(step.trained?.learner_logprobs?.[at], step.trained?.reference_logprobs?.[at]) },
];

/** What is stored of a token, as text. */
function facts(step: Step, at: number, shown: Shown, index: number): string {
  const logprob = step.logprobs[at];
  const parts = [`id ${step.response_ids[at]}`];
  if (logprob != null) parts.push(`log-probability ${num(logprob)} (${num(Math.exp(logprob) * 100)}%)`);
  for (const one of COLORINGS.slice(3)) {
    const value = one.value(step, at, shown, index);
    if (value != null) parts.push(`${one.title} ${num(value)}`);
  }
  const trained = step.trained;
  if (trained?.returns?.[at] != null) parts.push(`return ${num(trained.returns[at])}`);
  if (trained?.clipped?.[at]) parts.push("clipped");
  if (trained?.loss_mask?.length) parts.push(trained.loss_mask[at] ? "trained" : "masked");
  return parts.join(", ");
}

const FIRST = 2000;

export function Tokens({ shown, only }: { shown: Shown; only: number | null }) {
  const [color, setColor] = useStored<Scale>("color", "logprob");
  const [numbers, setNumbers] = useStored("numbers", false);
  const [whole, setWhole] = useStored("whole", false);
  const prompts = useMemo(() => promptIds(shown), [shown]);
  const steps = shown.trajectory.steps;
  const stored = (one: Coloring) => steps.some((step, index) => step.response_ids.length > 0 && one.value(step, 0, shown, index) !== undefined);
  const coloring = COLORINGS.find((one) => one.key === color && stored(one)) ?? COLORINGS[0]!;
  const scale = useMemo(() => {
    const sizes = steps.flatMap((step, index) => step.response_ids.map((_, at) => Math.abs(coloring.value(step, at, shown, index) ?? 0)));
    return coloring.full ?? (sizes.reduce((a, b) => Math.max(a, b), 0) || 1);
  }, [shown, coloring]);
  const text = (id: number) => shown.texts[id] ?? `⟨${id}⟩`;
  const join = (ids: number[]) => visible(ids.map(text).join(""));
  return (
    <section aria-label="Tokens" class="tokens">
      <div class="bar">
        <label>
          Colour by{" "}
          <select id="color" value={coloring.key} onChange={(event) => setColor(event.currentTarget.value as Scale)}>
            {COLORINGS.map((one) => <option key={one.key} value={one.key} disabled={!stored(one)}>{one.title}{stored(one) ? "" : " (not stored)"}</option>)}
          </select>
        </label>
        <label><input type="checkbox" checked={numbers} onChange={() => setNumbers(!numbers)} /> Numbers</label>
        <label><input type="checkbox" checked={whole} onChange={() => setWhole(!whole)} /> Whole prompts</label>
        <span class="hint">{coloring.help}{coloring.key !== "none" && coloring.key !== "mask" ? `; full colour at ${num(scale)}` : ""}</span>
      </div>
      {Object.keys(shown.texts).length === 0 && steps.some((step) => step.response_ids.length) && (
        <p class="error">The tokenizer of the run was not found: tokens are shown as numbers.</p>
      )}
      {steps.map((step, index) => (only === null || only === index) && (
        <article key={index} id={`step-${index}`}>
          <h3>Step {index} <span class="dim">{promptFacts(shown, index)}</span></h3>
          {step.server ? (
            <p class="hint">A server was the policy: it has {step.server.usage.prompt_tokens} prompt tokens and {step.server.usage.response_tokens} response tokens, whose ids are not known.</p>
          ) : whole ? (
            <Fold summary={`Exact prompt: ${count(prompts[index]!.length)} tokens`} open><pre class="prompt">{join(prompts[index]!)}</pre></Fold>
          ) : (
            <Changes parts={shown.prompts[index]!} before={index ? prompts[index - 1]!.concat(steps[index - 1]!.response_ids) : []} join={join} />
          )}
          <Reply step={step} index={index} shown={shown} coloring={coloring} scale={scale} numbers={numbers} text={text} />
        </article>
      ))}
    </section>
  );
}

function promptFacts(shown: Shown, index: number): string {
  const sum = (of: (part: PromptPart) => number) => shown.prompts[index]!.reduce((all, part) => all + of(part), 0);
  const [kept, dropped, added] = [sum((part) => ("keep" in part ? part.keep : 0)), sum((part) => ("drop" in part ? part.drop : 0)), sum((part) => ("add" in part ? part.add.length : 0))];
  const step = shown.trajectory.steps[index]!;
  const left = dropped ? `, ${count(dropped)} left out` : "";
  return `prompt ${count(shown.prompt_tokens[index]!)} tokens: ${count(kept)} kept${left}, ${count(added)} new · reply ${count(step.response_ids.length)} · ${step.finish_reason}${step.new_row ? " · starts a training row" : ""}`;
}

function Fold({ summary, open, children }: { summary: string; open?: boolean; children: ComponentChildren }) {
  const [is, set] = useState(Boolean(open));
  return (
    <details open={is} onToggle={(event) => set(event.currentTarget.open)}>
      <summary>{summary}</summary>
      {is && children}
    </details>
  );
}

/** The prompt as changes: what was kept is folded, what was left out is struck through. */
function Changes({ parts, before, join }: { parts: PromptPart[]; before: number[]; join: (ids: number[]) => string }) {
  let from = 0;
  return (
    <div class="changes">
      {parts.map((part, at) => {
        if ("add" in part) return <ins key={at} aria-label="new">{join(part.add)}</ins>;
        const size = "keep" in part ? part.keep : part.drop;
        const ids = before.slice(from, from + size);
        from += size;
        if ("keep" in part) return <Fold key={at} summary={`${plural(size, "token")} as before`}><pre class="prompt">{join(ids)}</pre></Fold>;
        return (
          <Fold key={at} summary={`${plural(size, "token")} left out by the context policy`} open={size < 200}>
            <del>{join(ids)}</del>
          </Fold>
        );
      })}
    </div>
  );
}

interface ReplyProps {
  step: Step;
  index: number;
  shown: Shown;
  coloring: Coloring;
  scale: number;
  numbers: boolean;
  text: (id: number) => string;
}

function Reply({ step, index, shown, coloring, scale, numbers, text }: ReplyProps) {
  const [limit, setLimit] = useState(FIRST);
  const [at, setAt] = useState<number | null>(null);
  if (!step.response_ids.length) return <pre class="reply">{visible(step.text)}</pre>;
  const move = (event: KeyboardEvent) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    setAt((old) => Math.max(0, Math.min(step.response_ids.length - 1, (old ?? -1) + by)));
  };
  const pick = (event: Event) => {
    const token = (event.target as HTMLElement).closest<HTMLElement>("[data-at]");
    if (token) setAt(Number(token.dataset.at));
  };
  return (
    <>
      <div class={`reply ${numbers ? "numbers" : ""}`} tabIndex={0} role="group" aria-label={`Reply of step ${index}: ← and → read its tokens`} onKeyDown={move} onMouseOver={pick} onClick={pick}>
        {step.response_ids.slice(0, limit).map((id, token) => {
          const value = coloring.value(step, token, shown, index);
          const isMask = coloring.key === "mask";
          const share = value == null || isMask || coloring.key === "none" ? 0 : Math.min(1, Math.abs(value) / scale);
          const sign = coloring.signed && (value ?? 0) > 0 ? "--plus" : "--minus";
          const name = `tok${isMask && value ? " trained" : ""}${token === at ? " at" : ""}${step.trained?.clipped?.[token] ? " clipped" : ""}`;
          const style = share ? { backgroundColor: `color-mix(in srgb, var(${sign}) ${Math.round(share * 75)}%, transparent)` } : {};
          return (
            <span key={token} data-at={token} class={name} style={style}>
              {visible(text(id)).replace(/\n/g, "↵\n")}
              {numbers && value != null && coloring.key !== "none" && <small>{num(coloring.key === "logprob" ? -value : value)}</small>}
            </span>
          );
        })}
      </div>
      {step.response_ids.length > limit && <button class="more" onClick={() => setLimit(limit + 10_000)}>Show more of {count(step.response_ids.length - limit)} further tokens</button>}
      <p class="readout" aria-live="polite">
        {at === null ? <span class="dim">Point at a token, or use ← and →</span> : <><code>{JSON.stringify(visible(text(step.response_ids[at]!)))}</code> {facts(step, at, shown, index)}</>}
      </p>
    </>
  );
}
