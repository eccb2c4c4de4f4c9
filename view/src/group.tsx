// The trajectories of a group side by side.
import { useEffect, useState } from "preact/hooks";
import { get, useJson, type Page, type Row } from "./data";
import { Conversation, contentText } from "./trajectory";
import type { Shown } from "./types";
import { Failed, href, LongText, num, plural, Status, visible } from "./util";

/** Trajectories that are read at first. */
const AT_ONCE = 6;

export function GroupPage({ run, split, step, group }: { run: string; split: string; step: string; group: string }) {
  const { data, error } = useJson<Page<Row>>("trajectories", { run, split, step, where: `group == ${group}`, sort: "sample" }, run);
  const [limit, setLimit] = useState(AT_ONCE);
  // A copy has the rows of all groups.
  const rows = data?.rows.filter((row) => String(row.step) === step && String(row.group) === group) ?? [];
  const ids = rows.slice(0, limit).map((row) => row.id);
  const [all, set] = useState<Record<string, Shown>>({});
  const [failed, fail] = useState("");
  useEffect(() => {
    let current = true;
    for (const id of ids.filter((id) => !all[id])) {
      get<Shown>("trajectory", { run, id }).then(
        (shown) => current && set((old) => ({ ...old, [id]: shown })),
        (error: Error) => current && fail(error.message),
      );
    }
    return () => void (current = false);
  }, [ids.join()]);
  if (error) return <Failed error={error} />;
  if (!data) return <p class="wait">Reading the group…</p>;
  const read = ids.map((id) => all[id]).filter((shown): shown is Shown => shown !== undefined);
  const shared = sharedMessages(read);
  const first = read[0];
  return (
    <div class="page">
      <p class="crumbs"><a href={href(["trajectories", run], { by: "group", split: split === "train" ? undefined : split })}>{visible(run)}</a> / step {step}</p>
      <h1>Group {step}-{group} <span class="dim">{rows.length} trajectories</span></h1>
      {failed && <Failed error={failed} />}
      {first && shared > 0 && (
        <details class="shared">
          <summary>{shared === 1 ? "First message, which all have" : `First ${shared} messages, which all have`}</summary>
          {first.trajectory.messages.slice(0, shared).map((message, at) => <article key={at}><b>{message.role}</b> <LongText text={contentText(message)} /></article>)}
        </details>
      )}
      <div class="columns" tabIndex={0} role="group" aria-label="Trajectories side by side">
        {rows.slice(0, limit).map((row) => (
          <section key={row.id} aria-label={row.id}>
            <header>
              <h2><a href={href(["t", run, row.id])}>{row.id}</a> <b class={row.reward > 0 ? "pos" : row.reward < 0 ? "neg" : ""}>{num(row.reward)}</b></h2>
              <p class="facts"><Status status={row.status} by={row.truncated_by} dropped={row.dropped} /> · advantage {num(row.advantage)} · {plural(row.steps, "step")} · {plural(row.tokens, "token")}{row.parent && ` · branches from ${row.parent} after ${row.forked_at}`}</p>
            </header>
            {all[row.id] ? <Conversation shown={all[row.id]!} compact from={shared} /> : <p class="wait">Reading…</p>}
          </section>
        ))}
        {rows.length > limit && <button class="more" onClick={() => setLimit(limit + AT_ONCE)}>{rows.length - limit} more</button>}
      </div>
    </div>
  );
}

/** The number of first messages that all trajectories have. */
function sharedMessages(all: Shown[]): number {
  if (all.length < 2) return 0;
  const lists = all.map((shown) => shown.trajectory.messages.map((message) => JSON.stringify(message)));
  let shared = 0;
  while (lists.every((list) => shared < list.length && list[shared] === lists[0]![shared])) shared += 1;
  return shared;
}
