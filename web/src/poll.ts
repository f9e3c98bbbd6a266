// Reads one resource again and again, and remembers when it last answered.

import { signal, type ReadonlySignal } from '@preact/signals';
import { ProblemError, type Answer, type Problem } from './api';
import { POLL_MS, TIMEOUT_MS } from './fresh';

/** The monotonic clock of the page, ms; ages are counted with it, never with the clock of the laptop. */
export const now = signal(0);

export function startClock(): void {
  const tick = (): void => {
    now.value = performance.now();
  };
  tick();
  setInterval(tick, 500);
}

export interface Fault {
  /** What the server said, or null when there was no answer at all. */
  problem: Problem | null;
  message: string;
}

export interface Snapshot<T> {
  /** The last good answer; kept while later polls fail. */
  body: T | null;
  /** When it arrived, on the page's clock. */
  at: number | null;
  /** The server's clock then, ms since the epoch. */
  serverTime: number | null;
  /** What went wrong since. */
  fault: Fault | null;
}

export interface Poll<T> {
  readonly snapshot: ReadonlySignal<Snapshot<T>>;
  stop(): void;
}

/** Poll until stopped: one request at a time, none while the page is hidden. */
export function poll<T>(read: (signal: AbortSignal) => Promise<Answer<T>>): Poll<T> {
  const snapshot = signal<Snapshot<T>>({ body: null, at: null, serverTime: null, fault: null });
  const life = new AbortController();
  void run();
  return { snapshot, stop: () => life.abort() };

  async function run(): Promise<void> {
    while (!life.signal.aborted) {
      await once();
      await pause(POLL_MS, life.signal);
      await visible(life.signal);
    }
  }

  async function once(): Promise<void> {
    const deadline = AbortSignal.timeout(TIMEOUT_MS);
    try {
      const { body, serverTime } = await read(AbortSignal.any([life.signal, deadline]));
      if (life.signal.aborted) return;
      now.value = performance.now();
      snapshot.value = { body, at: now.value, serverTime, fault: null };
    } catch (error) {
      if (life.signal.aborted) return;
      snapshot.value = { ...snapshot.value, fault: faultOf(error, deadline.aborted) };
    }
  }
}

function faultOf(error: unknown, timedOut: boolean): Fault {
  if (error instanceof ProblemError) return { problem: error.problem, message: error.message };
  if (timedOut) return { problem: null, message: `No answer within ${TIMEOUT_MS / 1000} s` };
  if (error instanceof SyntaxError) return { problem: null, message: 'The answer is not JSON' };
  return { problem: null, message: 'The server cannot be reached' };
}

function pause(ms: number, stop: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(done, ms);
    stop.addEventListener('abort', done, { once: true });
    function done(): void {
      clearTimeout(timer);
      stop.removeEventListener('abort', done);
      resolve();
    }
  });
}

function visible(stop: AbortSignal): Promise<void> {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    document.addEventListener('visibilitychange', done);
    stop.addEventListener('abort', done, { once: true });
    function done(): void {
      if (document.hidden && !stop.aborted) return;
      document.removeEventListener('visibilitychange', done);
      stop.removeEventListener('abort', done);
      resolve();
    }
  });
}
