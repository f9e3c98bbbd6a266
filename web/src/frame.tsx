// The frame of every page: header, the strip that says how old the numbers are, and the main part that greys with them.

import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { duration, utcTime } from './format';
import { freshness, oldest, type Freshness } from './fresh';
import { now, type Snapshot } from './poll';
import { jobsPath } from './route';
import { nextTheme, theme } from './theme';
import { Word } from './parts';

interface Props {
  title: string;
  crumb?: string;
  snapshots: readonly Snapshot<unknown>[];
  children: ComponentChildren;
}

export function Frame({ title, crumb, snapshots, children }: Props) {
  const main = useRef<HTMLElement>(null);
  const at = oldest(snapshots.map((s) => s.at));
  const state = freshness(at, now.value);

  useEffect(() => {
    document.title = `${title} · handover`;
  }, [title]);

  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>Skip to the content</a>
      <header class="top">
        <div class="wrap">
          <nav aria-label="Breadcrumb">
            <a class="brand" href={jobsPath()}>handover</a>
            <span aria-hidden="true" class="slash">/</span>
            {crumb === undefined ? <span aria-current="page">jobs</span> : (
              <>
                <a href={jobsPath()}>jobs</a>
                <span aria-hidden="true" class="slash">/</span>
                <span aria-current="page" class="crumb">{crumb}</span>
              </>
            )}
          </nav>
          <button type="button" class="theme" onClick={nextTheme}>
            <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true"><path d="M8 2a6 6 0 0 0 0 12z" /><circle cx="8" cy="8" r="6" fill="none" stroke="currentColor" stroke-width="1.4" /></svg>
            <span>theme: {theme.value}</span>
          </button>
        </div>
      </header>
      <Strip state={state} at={at} snapshots={snapshots} />
      <main id="main" ref={main} class="wrap" tabIndex={-1} data-fresh={state}>
        {children}
      </main>
    </>
  );
}

/** Always there and always as high, so that nothing moves when it changes. */
function Strip({ state, at, snapshots }: { state: Freshness; at: number | null; snapshots: readonly Snapshot<unknown>[] }) {
  const fault = snapshots.find((s) => s.fault !== null)?.fault ?? null;
  const age = at === null ? 0 : Math.max(0, now.value - at);
  const server = snapshots.find((s) => s.at === at)?.serverTime ?? null;
  const asOf = server === null ? '' : ` · server time ${utcTime(server)}`;
  const old = state === 'stale' || state === 'lost';
  return (
    <section class="strip" data-fresh={state} aria-label="Age of the numbers">
      <div class="wrap">
        {old ? (
          <Word tone="warn">
            <b>These numbers are {duration(age)} old.</b> {fault === null ? 'Waiting for an answer' : fault.message}
            {server === null ? '' : `; last answer ${utcTime(server)}`}. Trying again.
          </Word>
        ) : (
          <span class="muted">
            {snapshots.length === 0 ? '' : state === 'loading' ? (fault === null ? 'Loading' : 'No answer yet, trying again') : `Updated ${age < 1000 ? 'just now' : `${duration(age)} ago`} · every 2 s${asOf}`}
          </span>
        )}
      </div>
      {/* Only the change is announced, never the ticking age. */}
      <div class="sr" role="status">{old ? 'The server stopped answering; the numbers are old.' : ''}</div>
    </section>
  );
}
