// Text of numbers, ages and instants. Pure: the clock is always an argument.

/** The digits of an integer in groups of three from the right, the sign with the first group: -1234 is ['-1', '234']. */
export function digitGroups(value: number): string[] {
  const digits = Math.abs(value).toString();
  const groups: string[] = [];
  for (let end = digits.length; end > 0; end -= 3) groups.unshift(digits.slice(Math.max(0, end - 3), end));
  if (value < 0) groups[0] = `-${groups[0]}`;
  return groups;
}

/** A JSON integer beyond 2^53 may have lost its last digits on the way into a double. */
export function isExact(value: number): boolean {
  return Number.isSafeInteger(value);
}

/** Bare digits for sentences and accessible names, or the word for null. */
export function plain(value: number | null | undefined): string {
  return value === null || value === undefined ? 'unknown' : value.toString();
}

/** A number of things: "1 job", "3 jobs". */
export function count(n: number, noun: string): string {
  return `${n} ${noun}${n === 1 ? '' : 's'}`;
}

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const two = (n: number): string => n.toString().padStart(2, '0');

/** A length of time, two units at most: "850 ms", "14 s", "3 min 05 s", "2 h 07 min", "3 d 04 h". */
export function duration(ms: number): string {
  const t = Math.max(0, ms);
  if (t < SECOND) return `${Math.floor(t)} ms`;
  if (t < MINUTE) return `${Math.floor(t / SECOND)} s`;
  if (t < HOUR) return `${Math.floor(t / MINUTE)} min ${two(Math.floor((t % MINUTE) / SECOND))} s`;
  if (t < DAY) return `${Math.floor(t / HOUR)} h ${two(Math.floor((t % HOUR) / MINUTE))} min`;
  return `${Math.floor(t / DAY)} d ${two(Math.floor((t % DAY) / HOUR))} h`;
}

/** How long ago, in whole seconds: a millisecond count that changes at each look would only flicker. */
export function ago(ms: number): string {
  return ms < SECOND ? 'just now' : `${duration(ms)} ago`;
}

/** An RFC 3339 instant as UTC to the second, "2026-11-29 07:44:50Z"; null when it cannot be read. */
export function utc(instant: string | null | undefined): string | null {
  if (instant === null || instant === undefined) return null;
  const ms = Date.parse(instant);
  return Number.isNaN(ms) ? null : new Date(ms).toISOString().replace('T', ' ').replace(/\.\d+Z$/, 'Z');
}

/** The time of day in UTC, "07:44:50Z". */
export function utcTime(ms: number): string {
  return `${new Date(ms).toISOString().slice(11, 19)}Z`;
}

/** A share of 1: "83 %", "0.4 %", "0 %". */
export function percent(share: number): string {
  const value = share * 100;
  return `${value > 0 && value < 1 ? value.toFixed(1) : Math.round(value)} %`;
}

/** "in-progress" and "group_committed" read as words. */
export function words(code: string): string {
  return code.replace(/[-_]/g, ' ');
}
