// /ui/jobs/{job}: one job. First what is going on and what to do next, then the numbers that prove it.

import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { Attempts } from './attempts';
import { Events } from './events';
import { get, paths, type AttemptPage, type Bounded, type CrashLoop, type Discovery, type EventPage, type JobView, type Limits, type OffsetsView, type Parked, type Reason, type StartupMode, type Watermark } from './api';
import { count, duration, utc } from './format';
import { Frame } from './frame';
import { Offsets } from './offsets';
import { Age, AsCurl, Next, Num, Sum, Trouble, Word, label } from './parts';
import { hasMoved } from './route';
import { toneOfHealth, toneOfOutcome, toneOfState } from './tone';
import { StagesPanel } from './stages';
import { usePoll } from './use-poll';

export function JobPage({ job }: { job: string }) {
  const view = usePoll(`job ${job}`, (signal) => get<JobView>(paths.job(job), signal));
  const offsets = usePoll(`offsets ${job}`, (signal) => get<OffsetsView>(paths.offsets(job), signal));
  const attempts = usePoll(`attempts ${job}`, (signal) => get<AttemptPage>(paths.attempts(job), signal));
  const events = usePoll(`events ${job}`, (signal) => get<EventPage>(paths.events(job), signal));
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    if (hasMoved()) heading.current?.focus({ preventScroll: true });
  }, []);

  const body = view.body;
  // A job that was deleted is not a stale job: its last numbers would only mislead.
  const gone = view.fault?.problem?.status === 404;
  const title = body === null || gone ? job : `${job} ${body.state}`;
  return (
    <Frame title={title} crumb={job} snapshots={gone ? [] : [view, offsets]}>
      <div class="head">
        <h1 ref={heading} tabIndex={-1}>{job}</h1>
        {body !== null && !gone && (
          <p class="verdict">
            <span data-field="state"><Word tone={toneOfState(body.state)}>{body.state}</Word></span>
            <span data-field="health"><span class="muted">health</span> <Word tone={toneOfHealth(body.health.status)}>{body.health.status}</Word></span>
          </p>
        )}
      </div>
      {view.fault !== null && (body === null || gone) && <Trouble fault={view.fault} path={paths.job(job)} />}
      {body !== null && !gone && <Job view={body} at={view.at} />}
      {!gone && offsets.body !== null && <Offsets view={offsets.body} at={offsets.at} />}
      {!gone && offsets.body === null && offsets.fault !== null && (
        <Trouble fault={offsets.fault} path={paths.offsets(job)} />
      )}
      {!gone && attempts.body !== null && <Attempts page={attempts.body} />}
      {!gone && events.body !== null && <Events page={events.body} />}
      {!gone && (
        <div class="curls">
          <AsCurl path={paths.job(job)} what="This job" />
          <AsCurl path={paths.offsets(job)} what="Its offsets" />
          <AsCurl path={paths.attempts(job)} what="Its attempts" />
          <AsCurl path={paths.events(job)} what="Its events" />
        </div>
      )}
    </Frame>
  );
}

function Job({ view, at }: { view: JobView; at: number | null }) {
  return (
    <div class="answer">
      <section class="panel story" aria-label="What is going on">
        {view.summary !== undefined && <p class="summary">{view.summary}</p>}
        <Reasons view={view} />
        <Next steps={view.next} />
      </section>
      <ParkedPartitions parked={view.parked ?? []} />
      <Facts view={view} at={at} />
      {view.stages !== null && view.stages !== undefined && <StagesPanel stages={view.stages} bottleneck={view.bottleneck ?? null} />}
    </div>
  );
}

function Reasons({ view }: { view: JobView }) {
  const failure = view.failure ?? null;
  const record = failure?.record ?? null;
  // The failure is among what health rests on; it is said once.
  const reasons = (view.health.reasons ?? []).filter((reason) => reason.code !== failure?.code || reason.summary !== failure.summary);
  const warnings = view.warnings ?? [];
  if (failure === null && reasons.length === 0 && warnings.length === 0) return null;
  return (
    <ul class="reasons">
      {failure !== null && (
        <li>
          <Word tone="bad"><a href={`/problems/${failure.code}`}><code>{failure.code}</code></a></Word>
          <span>
            {failure.summary ?? ''}
            {record !== null && <> (topic {record.topic}, partition {record.partition}, offset <Num value={record.offset} />)</>}
          </span>
        </li>
      )}
      {reasons.map((reason) => <ReasonLine key={`r ${reason.code}`} reason={reason} bad={toneOfHealth(view.health.status) === 'bad'} />)}
      {warnings.map((reason) => <ReasonLine key={`w ${reason.code}`} reason={reason} bad={false} />)}
    </ul>
  );
}

function ReasonLine({ reason, bad }: { reason: Reason; bad: boolean }) {
  // The runbook page of the code is served by the same binary; only a path of this server becomes a link.
  const problem = reason.problem?.startsWith('/') === true ? reason.problem : null;
  return (
    <li>
      <Word tone={bad ? 'bad' : 'warn'}>
        {problem === null ? <code>{reason.code}</code> : <a href={problem}><code>{reason.code}</code></a>}
      </Word>
      <span>{reason.summary ?? ''}</span>
    </li>
  );
}

function ParkedPartitions({ parked }: { parked: Parked[] }) {
  if (parked.length === 0) return null;
  return (
    <section class="panel" aria-label="Parked partitions">
      <h2>parked partitions ({parked.length})</h2>
      <ul class="reasons">
        {parked.map((at) => (
          <li key={`${at.topic}/${at.partition}`} data-parked={`${at.topic}/${at.partition}`}>
            <Word tone="bad"><a href={`/problems/${at.code}`}><code>{at.code}</code></a></Word>
            <span>
              topic {at.topic}, partition {at.partition}, offset <Num value={at.offset ?? null} />
              {(at.phase ?? '') !== '' && <>, phase {at.phase}</>}
              {at.since !== undefined && <span class="muted">, since {utc(at.since) ?? at.since}</span>}
              <div>{at.detail ?? ''}</div>
              {at.lost !== null && at.lost !== undefined && at.lost.offsets > 0 && (
                <div>lost: offsets <Num value={at.lost.from} /> to <Num value={at.lost.to} /> (<Num value={at.lost.offsets} />)</div>
              )}
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Facts({ view, at }: { view: JobView; at: number | null }) {
  const lag = view.lag ?? null;
  const unknown = lag?.unknown_partitions;
  const checkpoint = view.last_checkpoint ?? null;
  const commit = checkpoint?.group_commit ?? null;
  const off = view.checkpointing === 'off';
  const pending = view.pending_fields ?? [];
  return (
    <section class="panel facts" aria-label="Facts">
      <div class="lags" role="group" aria-label="Lags in offsets">
        <Lag name="position lag"><Sum value={lag?.position} unknown={unknown} /></Lag>
        <Lag name="checkpoint lag">{off ? <span class="muted">off</span> : <Sum value={lag?.checkpoint} unknown={unknown} />}</Lag>
        <Lag name="group lag"><Sum value={lag?.group} unknown={unknown} /></Lag>
      </div>
      <dl>
        <Fact name="last checkpoint">
          {off ? <Word tone="warn">checkpoints off</Word> : checkpoint === null ? <span class="unknown">none yet</span> : (
            <>
              <Word tone={toneOfOutcome(checkpoint.status)}>#{checkpoint.id} {label(checkpoint.status)}</Word>
              <span class="muted"> {checkpoint.kind}</span>
              <div><Age ms={checkpoint.age_ms} at={at} instant={checkpoint.completed_at} /></div>
              <div class="muted">{utc(checkpoint.completed_at)}</div>
            </>
          )}
        </Fact>
        {commit !== null && (
          <Fact name="group commit">
            <Word tone={toneOfOutcome(commit.status)}>{label(commit.status)}</Word>
            {(commit.error ?? '') !== '' && <div>{commit.error}</div>}
          </Fact>
        )}
        {view.commit_mode !== undefined && (
          <Fact name="commit mode">
            {view.commit_mode}
            {(view.commit_mode_because ?? '') !== '' && <div class="muted">{view.commit_mode_because}</div>}
          </Fact>
        )}
        {view.startup_mode !== null && view.startup_mode !== undefined && (
          <Fact name="startup mode"><Startup mode={view.startup_mode} /></Fact>
        )}
        {view.bounded !== null && view.bounded !== undefined && (
          <Fact name="bounded"><BoundedRun run={view.bounded} /></Fact>
        )}
        {view.discovery !== null && view.discovery !== undefined && (
          <Fact name="partition discovery"><Looks discovery={view.discovery} /></Fact>
        )}
        {unknown !== undefined && (
          <Fact name="unknown partitions">{unknown > 0 ? <Word tone="warn">{unknown}, not in the lags</Word> : '0'}</Fact>
        )}
        {view.bad_records !== null && view.bad_records !== undefined && view.bad_records.skipped + view.bad_records.dead_lettered > 0 && (
          <Fact name="bad records">
            <Word tone="warn">skipped {view.bad_records.skipped}, dead lettered {view.bad_records.dead_lettered}</Word>
          </Fact>
        )}
        {(view.positions_moved ?? 0) > 0 && <Fact name="positions moved"><Word tone="warn">{view.positions_moved}</Word></Fact>}
        {view.since !== null && view.since !== undefined && <Fact name={`${view.state} since`}>{utc(view.since) ?? view.since}</Fact>}
        {view.desired_state !== undefined && view.desired_state !== view.state && <Fact name="desired state">{view.desired_state}</Fact>}
        {view.crash_loop !== null && view.crash_loop !== undefined && (
          <Fact name="crash loop"><Crashes crashes={view.crash_loop} /></Fact>
        )}
        {view.limits !== null && view.limits !== undefined && <Held limits={view.limits} />}
        {view.watermark !== null && view.watermark !== undefined && (
          <Fact name="watermark"><EventTime watermark={view.watermark} /></Fact>
        )}
        {view.restart_required === true && (
          <Fact name="restart required">
            <Word tone="warn">{pending.length === 0 ? 'the spec has changed' : pending.join(', ')}</Word>
          </Fact>
        )}
      </dl>
    </section>
  );
}

function Looks({ discovery }: { discovery: Discovery }) {
  const seen = discovery.topics ?? null;
  return (
    <>
      {discovery.failures > 0
        ? <Word tone="warn">{count(discovery.failures, 'look')} failed</Word>
        : <span>{seen === null ? 'no look yet' : count(seen, 'topic')}</span>}
      {discovery.discovered > 0 && <span> · {count(discovery.discovered, 'partition')} found since the start</span>}
      {(discovery.last_error ?? '') !== '' && <div>{discovery.last_error}</div>}
      {(discovery.looked_at ?? '') !== '' && <div class="muted">last look {utc(discovery.looked_at) ?? discovery.looked_at}</div>}
    </>
  );
}

function Crashes({ crashes }: { crashes: CrashLoop }) {
  const next = utc(crashes.next_attempt_at);
  return (
    <>
      <Word tone="warn">restart {crashes.restart}{(crashes.of ?? null) !== null && <> of {crashes.of}</>}</Word>
      {next !== null && <div>next attempt at <span class="whole">{next}</span></div>}
      <div class="muted">first cause: {crashes.first_cause?.summary ?? 'unknown'}</div>
      {crashes.restart > 1 && <div class="muted">last cause: {crashes.last_cause?.summary ?? 'unknown'}</div>}
    </>
  );
}

function Held({ limits }: { limits: Limits }) {
  const records = limits.records_per_s ?? null;
  const bytes = limits.bytes_per_s ?? null;
  if (records === null && bytes === null) return null;
  return (
    <Fact name="limits">
      {records !== null && <div><Num value={records} /> records/s</div>}
      {bytes !== null && <div><Num value={bytes} /> bytes/s</div>}
      {limits.throttled === true && <Word tone="warn">throttled</Word>}
    </Fact>
  );
}

function EventTime({ watermark }: { watermark: Watermark }) {
  const at = utc(watermark.timestamp);
  const lag = watermark.lag_ms ?? null;
  const held = watermark.held_by ?? null;
  const paused = watermark.paused_partitions ?? [];
  const late = watermark.late_records ?? 0;
  return (
    <>
      <span class="whole" data-field="watermark.timestamp">{at ?? <span class="unknown">unknown</span>}</span>
      {lag !== null && <div class="muted">lag {duration(Math.max(lag, 0))}</div>}
      {watermark.idle === true && <div class="muted">idle</div>}
      {held !== null && <div class="muted">held by {held.topic}/{held.partition}</div>}
      {(watermark.idle_partitions ?? 0) > 0 && <div class="muted">idle partitions {watermark.idle_partitions}</div>}
      {paused.length > 0 && <div data-field="watermark.paused_partitions">paused partitions: {paused.map((one) => `${one.topic}/${one.partition}`).join(', ')}</div>}
      {late > 0 && <Word tone="warn">late records {late}</Word>}
    </>
  );
}

function Lag({ name, children }: { name: string; children: ComponentChildren }) {
  return <div><div class="name">{name}</div><div class="value">{children}</div></div>;
}

function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  return <div><dt>{name}</dt><dd>{children}</dd></div>;
}

function BoundedRun({ run }: { run: Bounded }) {
  const at = utc(run.stop_at.timestamp);
  const waits = run.waits_for_log ?? [];
  return (
    <>
      stop at {run.stop_at.mode} {at !== null && <span class="whole">{at}</span>}
      <div data-field="bounded.ended_partitions">{run.ended_partitions} of {count(run.partitions, 'partition')} ended</div>
      <div class="muted">remaining <span data-field="bounded.remaining"><Num value={run.remaining} /></span></div>
      {run.finished_at !== null && run.finished_at !== undefined && <div class="muted">finished at {utc(run.finished_at) ?? run.finished_at}</div>}
      {waits.length > 0 && <Word tone="warn">waits for log: {waits.map((one) => `${one.topic}/${one.partition}`).join(', ')}</Word>}
    </>
  );
}

function Startup({ mode }: { mode: StartupMode }) {
  const at = utc(mode.timestamp);
  return (
    <>
      {mode.mode} {at !== null && <span class="whole">{at}</span>}
      {mode.effective === false && <div class="muted">not effective{(mode.because ?? '') === '' ? '' : `: ${label(mode.because ?? '')}`}</div>}
      {mode.effective === true && <div class="muted">effective{(mode.because ?? '') === '' ? '' : `: ${label(mode.because ?? '')}`}</div>}
    </>
  );
}
