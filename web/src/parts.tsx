// The small parts that every page is made of: numbers, ages, words with a shape, commands to copy, problems.

import type { ComponentChildren } from 'preact';
import { useRef, useState } from 'preact/hooks';
import type { NextStep } from './api';
import { curlGet } from './curl';
import { ago, count, digitGroups, isExact, utc, words } from './format';
import { now, type Fault } from './poll';
import type { Tone } from './tone';

/** An exact integer. The gaps between the groups are margins, so copying a number yields bare digits. */
export function Num({ value }: { value: number | null | undefined }) {
  if (value === null || value === undefined) return <span class="unknown">unknown</span>;
  if (!isExact(value)) {
    return (
      <span class="num" title="beyond 2^53: the last digits may be rounded">
        ≈{value.toString()}
      </span>
    );
  }
  return (
    <span class="num">
      {digitGroups(value).map((group, index) => (index === 0 ? group : <i key={index}>{group}</i>))}
    </span>
  );
}

/** A sum of lags. A lag is never below 0, so a sum without the unknown partitions is a lower bound, and says so. */
export function Sum({ value, unknown }: { value: number | null | undefined; unknown?: number | undefined }) {
  const partial = value !== null && value !== undefined && (unknown ?? 0) > 0;
  return (
    <span class="whole">
      {partial && <span class="bound" title={`without ${count(unknown ?? 0, 'unknown partition')}`}>≥ </span>}
      <Num value={value} />
    </span>
  );
}

/** An age that the server gave with an answer, growing since the answer arrived at `at`. */
export function Age({ ms, at, instant }: { ms: number | null | undefined; at: number | null; instant?: string | null | undefined }) {
  const absolute = utc(instant);
  if (ms === null || ms === undefined || at === null) return absolute === null ? <span class="unknown">unknown</span> : <time dateTime={instant ?? ''}>{absolute}</time>;
  const text = ago(ms + Math.max(0, now.value - at));
  return absolute === null ? <span>{text}</span> : (
    <time dateTime={instant ?? ''} title={absolute}>{text}</time>
  );
}

const SHAPES: Record<Tone, string> = {
  run: 'M5 3.2v9.6l7.6-4.8z',
  ok: 'M6.4 12.3 2.6 8.5l1.3-1.3 2.5 2.5 5.7-5.8 1.3 1.3z',
  warn: 'M8 1.8 15 14H1zM7.2 6v4h1.6V6zm0 5.2v1.5h1.6v-1.5z',
  bad: 'M5 1.5h6L14.5 5v6L11 14.5H5L1.5 11V5zM5.2 6.3 6.9 8 5.2 9.7l1.1 1.1L8 9.1l1.7 1.7 1.1-1.1L9.1 8l1.7-1.7-1.1-1.1L8 6.9 6.3 5.2z',
  busy: 'M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zm0 1.6v8.8a4.4 4.4 0 0 1 0-8.8z',
  off: 'M3.5 3.5h9v9h-9zM5 5v6h6V5z',
  ask: 'M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM7.2 10.7h1.6v1.5H7.2zM8 4C6.5 4 5.4 4.9 5.3 6.3h1.5c.1-.6.5-1 1.2-1 .6 0 1.1.4 1.1 1 0 .5-.3.8-.8 1.1-.8.5-1.1.9-1.1 1.9v.4h1.5v-.3c0-.5.2-.7.8-1.1.7-.4 1.2-1.1 1.2-2C10.7 4.9 9.6 4 8 4z',
};

/** A word of the API with the shape of its kind; colour only repeats the shape. */
export function Word({ tone, children }: { tone: Tone; children: ComponentChildren }) {
  return (
    <span class={`word ${tone}`}>
      <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">
        <path fill-rule="evenodd" d={SHAPES[tone]} />
      </svg>
      <span>{children}</span>
    </span>
  );
}

export const label = (code: string): string => words(code);

/**
 * A command and a button that copies it. The clipboard exists only in secure contexts (https, localhost): elsewhere the
 * text is selected and the button says which keys to press.
 */
export function Command({ text }: { text: string }) {
  const code = useRef<HTMLElement>(null);
  const [done, setDone] = useState<'' | 'copied' | 'press Ctrl+C'>('');

  async function copy(): Promise<void> {
    try {
      await navigator.clipboard.writeText(text);
      setDone('copied');
    } catch {
      if (code.current !== null) getSelection()?.selectAllChildren(code.current);
      setDone('press Ctrl+C');
    }
  }

  return (
    <div class="command">
      <code ref={code}>{text}</code>
      <button type="button" class="copy" onClick={() => void copy()} onBlur={() => setDone('')} aria-label={done === '' ? `Copy: ${text}` : done}>
        {done === '' ? 'copy' : done}
      </button>
    </div>
  );
}

/** What the server proposes to do from here. */
export function Next({ steps }: { steps: readonly NextStep[] | undefined }) {
  if (steps === undefined || steps.length === 0) return null;
  return (
    <ol class="next">
      {steps.map((step, index) => (
        <li key={index}>
          <p>{step.why}</p>
          <Command text={step.curl} />
        </li>
      ))}
    </ol>
  );
}

/** The GET behind a view, folded away. */
export function AsCurl({ path, what }: { path: string; what: string }) {
  return (
    <details class="as-curl">
      <summary>{what} as curl</summary>
      <Command text={curlGet(window.location.origin, path)} />
    </details>
  );
}

/** An answer that is not a success, or none, in place of what it should have been. */
export function Trouble({ fault, path }: { fault: Fault; path: string }) {
  const { problem } = fault;
  return (
    <section class="panel trouble" role="alert">
      <h2>
        <Word tone="bad">{problem === null ? fault.message : problem.title}</Word>
      </h2>
      {problem?.detail !== undefined && <p>{problem.detail}</p>}
      {problem?.hint !== undefined && <p>{problem.hint}</p>}
      <p class="muted">
        {problem === null ? null : <>HTTP {problem.status}{problem.code === undefined ? '' : ` · ${problem.code}`}{problem.request_id === undefined ? '' : ` · request ${problem.request_id}`} · </>}
        This page keeps trying every 2 s.
      </p>
      <Command text={curlGet(window.location.origin, path)} />
    </section>
  );
}
