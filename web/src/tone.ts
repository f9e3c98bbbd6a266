// Which shape and colour a word of the API gets. The word itself is always shown; the judgement is the server's.

export type Tone = 'run' | 'ok' | 'warn' | 'bad' | 'busy' | 'off' | 'ask';

const STATES: Record<string, Tone> = {
  running: 'run',
  starting: 'busy',
  stopping: 'busy',
  'backing-off': 'warn',
  failed: 'bad',
  stopped: 'off',
  finished: 'ok',
};

const HEALTH: Record<string, Tone> = {
  ok: 'ok',
  behind: 'warn',
  held: 'warn',
  waiting: 'warn',
  'at-risk': 'warn',
  stalled: 'bad',
  blocked: 'bad',
  stopped: 'off',
  unknown: 'ask',
};

const OUTCOMES: Record<string, Tone> = {
  ok: 'ok',
  completed: 'ok',
  finished: 'ok',
  pending: 'busy',
  'in-progress': 'busy',
  absent: 'off',
  off: 'off',
  skipped: 'off',
  stopped: 'off',
  'server-stopped': 'off',
  outage: 'warn',
  'owner-lost': 'warn',
  crashed: 'bad',
  none: 'off',
  timeout: 'warn',
  stale: 'warn',
  uncertain: 'warn',
  failed: 'bad',
  error: 'bad',
  unreachable: 'bad',
};

// A word that a newer server made up is shown as it is, with a question mark rather than a guess.
const of = (table: Record<string, Tone>, word: string): Tone => (Object.hasOwn(table, word) ? table[word]! : 'ask');

export const toneOfState = (state: string): Tone => of(STATES, state);
export const toneOfHealth = (status: string): Tone => of(HEALTH, status);
export const toneOfOutcome = (status: string): Tone => of(OUTCOMES, status);

/** Flags and causes that mean something may be lost or repeated by surprise. */
const GRAVE = new Set(['below-earliest', 'beyond-latest', 'topic-recreated', 'partition-gone', 'no-leader', 'retention-risk']);
export const toneOfFlag = (flag: string): Tone => (GRAVE.has(flag) ? 'bad' : 'warn');

const QUIET_CAUSES = new Set(['none', 'commit-pending', 'commit-off', 'after-reset', 'no-checkpoint']);
export const isQuietCause = (cause: string): boolean => QUIET_CAUSES.has(cause);
