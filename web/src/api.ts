// What the pages read from `/api/v1`, written by hand.
//
// Every type lists only the members that a page uses; the server may send more at any time. A member that an older or a
// degraded server may leave out is optional. `null` means "not known" and is never to be shown as 0. Every offset is the
// next offset to read.

/** One thing to do from here: why, and the command that does it. */
export interface NextStep {
  why: string;
  curl: string;
}

/** A code of the shared vocabulary and its sentence. */
export interface Reason {
  code: string;
  summary?: string | null;
  problem?: string | null;
}

export interface Health {
  status: string;
  reasons?: Reason[];
}

/** Lags in offsets, measured to the readable end; `unknown_partitions` are those that no sum includes. */
export interface LagTotals {
  position: number | null;
  checkpoint: number | null;
  group: number | null;
  unknown_partitions?: number;
}

export interface GroupCommit {
  status: string;
  error?: string | null;
}

export interface LastCheckpoint {
  id: number;
  kind: string;
  status: string;
  completed_at: string | null;
  age_ms: number | null;
  group_commit?: GroupCommit | null;
}

/** Whether a job takes checkpoints; one that does not has no state. */
export type Checkpointing = 'on' | 'off';

export interface JobItem {
  job: string;
  summary?: string;
  next?: NextStep[];
  state: string;
  health: Health;
  lag?: LagTotals | null;
  lag_age_ms?: number | null;
  checkpointing?: Checkpointing;
  last_checkpoint?: LastCheckpoint | null;
  labels?: Record<string, string>;
}

export interface JobPage {
  items: JobItem[];
  /** Cursor of the next page. */
  next?: string | null;
}

/** `effective` says whether a start would use the mode; `because` says why not. */
export interface StartupMode {
  mode: string;
  effective?: boolean | null;
  because?: string | null;
  timestamp?: string | null;
}

/** A bounded run and how far it has come. */
export interface Bounded {
  stop_at: { mode: string; timestamp?: string | null };
  begun_by?: number | null;
  finished_at?: string | null;
  partitions: number;
  ended_partitions: number;
  remaining: number | null;
  waits_for_log?: { topic: string; partition: number }[] | null;
}

export interface FailedRecord {
  topic: string;
  partition: number;
  offset: number;
}

export interface Failure {
  code: string;
  summary?: string | null;
  record?: FailedRecord | null;
}

/** Crashes that follow each other: which restart it is, when the next one comes, and what the first and newest ended with. */
export interface CrashLoop {
  restart: number;
  of?: number | null;
  next_attempt_at?: string | null;
  first_cause?: Failure | null;
  last_cause?: Failure | null;
}

/** How fast a job may go; `null` where there is no limit. */
export interface Limits {
  records_per_s?: number | null;
  bytes_per_s?: number | null;
  throttled?: boolean | null;
}

/** Shares of the time of the last minute. All but `handover_wait` add up to 1. */
export type StageShares = Partial<Record<string, number>>;

export interface Stages {
  since: string;
  window_ms: number;
  shares: StageShares | null;
}

/** What holds a job back; `kind` is `null` while that is not known. */
export interface Bottleneck {
  kind: string | null;
  subtask?: number | null;
  summary: string;
  hint?: string | null;
  next?: NextStep[];
}

/** One run of a job; `ended_at` and `outcome` are `null` while it runs. */
export interface Attempt {
  attempt: number;
  kind: string;
  started_at: string;
  ended_at: string | null;
  outcome: string | null;
  cause?: Failure | null;
  first_of_loop?: boolean;
  records?: number | null;
  instance?: string;
  epoch?: number | null;
}

export interface AttemptPage {
  items: Attempt[];
  next?: string | null;
}

/** How far event time has come; only of a job that keeps it. `null` where it is not known yet, or the job does not run. */
export interface Watermark {
  timestamp: string | null;
  lag_ms?: number | null;
  idle?: boolean | null;
  held_by?: { topic: string; partition: number } | null;
  idle_partitions?: number | null;
  paused_partitions?: { topic: string; partition: number }[];
  late_records?: number | null;
}

/** One entry of a job's history. */
export interface HistoryEvent {
  id: number;
  at: string;
  kind: string;
  actor: string;
  details?: unknown;
}

export interface EventPage {
  items: HistoryEvent[];
  next?: string | null;
}

export interface JobView extends JobItem {
  desired_state?: string;
  since?: string | null;
  generation?: number;
  running_generation?: number | null;
  startup_mode?: StartupMode | null;
  restart_required?: boolean;
  pending_fields?: string[];
  /** In effect, in Flink's words. */
  commit_mode?: string;
  commit_mode_because?: string;
  owner?: { instance: string; epoch?: number | null } | null;
  failure?: Failure | null;
  parked?: Parked[];
  bad_records?: { skipped: number; dead_lettered: number } | null;
  positions_moved?: number | null;
  discovery?: Discovery | null;
  crash_loop?: CrashLoop | null;
  limits?: Limits | null;
  watermark?: Watermark | null;
  stages?: Stages | null;
  bottleneck?: Bottleneck | null;
  warnings?: Reason[];
  bounded?: Bounded | null;
}

/** A partition that is not read, where it stands and why. */
export interface Parked {
  topic: string;
  partition: number;
  offset?: number | null;
  code: string;
  phase?: string | null;
  detail?: string;
  lost?: { side: string; from: number; to: number; offsets: number } | null;
  since?: string;
}

/** How a running job looks for new partitions. */
export interface Discovery {
  looked_at?: string | null;
  topics?: number | null;
  discovered: number;
  failures: number;
  last_error?: string | null;
}

/** Where a group of numbers came from: `status`, how old it is, and why it is missing. */
export interface Source {
  status: string;
  because?: string | null;
  age_ms?: number | null;
  id?: number | null;
  completed_at?: string | null;
  members?: number | null;
  unanswered_partitions?: number | null;
}

export interface Divergence {
  group_behind_checkpoint: number | null;
  cause: string;
  group_note?: string | null;
  group_checkpoint?: number | null;
  last_commit_at?: string | null;
}

export interface PartitionOffsets {
  topic: string;
  partition: number;
  leader?: number | null;
  earliest: number | null;
  last_stable: number | null;
  latest: number | null;
  readable_end: number | null;
  stop_offset?: number | null;
  position: number | null;
  start_reason?: string | null;
  position_id?: number | null;
  checkpointed: number | null;
  group_committed: number | null;
  lag: { position: number | null; checkpoint: number | null; group: number | null };
  divergence?: Divergence | null;
  oldest_unread_age_ms?: number | null;
  /** How far the log's beginning is from unread records; `estimated_ms` only where that was seen. */
  retention?: { offsets_left: number | null; estimated_ms: number | null } | null;
  flags?: string[];
}

export interface OffsetTotals {
  partitions: number;
  unknown_partitions: number;
  position_lag: number | null;
  checkpoint_lag: number | null;
  group_lag: number | null;
  group_behind_checkpoint: number | null;
  group_ahead_of_checkpoint?: number | null;
  oldest_unread_age_ms?: number | null;
}

export interface OffsetsView {
  job: string;
  state: string;
  summary?: string;
  next?: NextStep[];
  observed_at?: string | null;
  isolation?: string;
  group_id?: string | null;
  sources?: Record<string, Source>;
  totals: OffsetTotals;
  partitions: PartitionOffsets[];
}

/** The body of an `application/problem+json` answer. */
export interface Problem {
  status: number;
  title: string;
  code?: string;
  detail?: string;
  hint?: string;
  request_id?: string;
}

/** The server answered, and the answer was not a success. */
export class ProblemError extends Error {
  constructor(readonly problem: Problem) {
    super(problem.detail ?? problem.title);
    this.name = 'ProblemError';
  }
}

/** An answer and the server's clock at that moment (its `Date` header, ms since the epoch), where it sent one. */
export interface Answer<T> {
  body: T;
  serverTime: number | null;
}

const API = '/api/v1';
// A bound on following cursors: a server that keeps handing them out must not keep the page busy for ever.
const MAX_PAGES = 40;

export const paths = {
  jobs: (): string => `${API}/jobs`,
  job: (job: string): string => `${API}/jobs/${encodeURIComponent(job)}`,
  attempts: (job: string): string => `${API}/jobs/${encodeURIComponent(job)}/attempts?limit=10`,
  events: (job: string): string => `${API}/jobs/${encodeURIComponent(job)}/events?limit=20`,
  offsets: (job: string): string => `${API}/jobs/${encodeURIComponent(job)}/offsets`,
};

/** GET one resource. Throws `ProblemError` for an answer other than 2xx, the error of `fetch` when there is none. */
export async function get<T>(path: string, signal: AbortSignal): Promise<Answer<T>> {
  const response = await fetch(path, { signal, headers: { Accept: 'application/json' }, cache: 'no-store' });
  if (!response.ok) throw new ProblemError(await problemOf(response));
  const date = Date.parse(response.headers.get('date') ?? '');
  return { body: (await response.json()) as T, serverTime: Number.isNaN(date) ? null : date };
}

/** All jobs, over as many pages as there are. */
export async function getJobs(signal: AbortSignal): Promise<Answer<JobPage>> {
  const first = await get<JobPage>(paths.jobs(), signal);
  const items = [...first.body.items];
  let next = first.body.next ?? null;
  for (let page = 1; next !== null && page < MAX_PAGES; page += 1) {
    const more: JobPage = (await get<JobPage>(`${paths.jobs()}?after=${encodeURIComponent(next)}`, signal)).body;
    items.push(...more.items);
    next = more.next ?? null;
  }
  return { body: { items, next }, serverTime: first.serverTime };
}

async function problemOf(response: Response): Promise<Problem> {
  const fallback = { status: response.status, title: response.statusText || `HTTP ${response.status}` };
  // A proxy in between answers with HTML: then only the status is known.
  if (!(response.headers.get('content-type') ?? '').includes('json')) return fallback;
  try {
    return { ...fallback, ...((await response.json()) as Partial<Problem>) };
  } catch {
    return fallback;
  }
}
