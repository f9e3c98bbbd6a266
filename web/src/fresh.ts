// How much the numbers on the screen can be trusted, from nothing but the times of the polls.

/** Pause between the end of one poll and the start of the next. */
export const POLL_MS = 2000;
/** A poll without an answer is given up after this long. */
export const TIMEOUT_MS = 5000;
/** Two polls were missed: the numbers are old. */
export const STALE_MS = 5000;
/** The server is gone rather than late. */
export const LOST_MS = 30000;

export type Freshness = 'loading' | 'live' | 'stale' | 'lost';

/** The freshness of an answer that arrived at `lastOk` (null: none yet), seen at `now`; both in ms of the same clock. */
export function freshness(lastOk: number | null, now: number): Freshness {
  if (lastOk === null) return 'loading';
  const age = now - lastOk;
  if (age > LOST_MS) return 'lost';
  return age > STALE_MS ? 'stale' : 'live';
}

/** A page is as old as its oldest part; a part that never arrived makes the age unknown. */
export function oldest(times: readonly (number | null)[]): number | null {
  let result: number | null = null;
  for (const time of times) {
    if (time === null) return null;
    result = result === null ? time : Math.min(result, time);
  }
  return result;
}
