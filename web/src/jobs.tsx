// /ui/: all jobs, one row each, and the sentence that says what is going on with it.

import { useEffect, useRef } from 'preact/hooks';
import { getJobs, paths, type JobItem, type LastCheckpoint } from './api';
import { count } from './format';
import { Frame } from './frame';
import { Age, AsCurl, Next, Sum, Trouble, Word, label } from './parts';
import { usePoll } from './use-poll';
import { hasMoved, jobPath } from './route';
import { toneOfHealth, toneOfOutcome, toneOfState } from './tone';
import { tally } from './tally';

export function JobsPage() {
  const { body, at, fault, ...rest } = usePoll('jobs', getJobs);
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    if (hasMoved()) heading.current?.focus({ preventScroll: true });
  }, []);

  return (
    <Frame title="jobs" snapshots={[{ body, at, fault, ...rest }]}>
      <div class="head">
        <h1 ref={heading} tabIndex={-1}>Jobs</h1>
        {body !== null && <p class="tally">{tally(body.items)}</p>}
      </div>
      {body === null && fault !== null && <Trouble fault={fault} path={paths.jobs()} />}
      {body !== null && body.items.length === 0 && <Empty />}
      {body !== null && body.items.length > 0 && <Table items={body.items} at={at} />}
      {body !== null && (body.next ?? null) !== null && (
        <p class="muted">Only the first {body.items.length} jobs are shown; the API has more.</p>
      )}
      <AsCurl path={paths.jobs()} what="This list" />
    </Frame>
  );
}

function Table({ items, at }: { items: readonly JobItem[]; at: number | null }) {
  return (
    <div class="panel scroll" role="region" aria-label="Jobs" tabIndex={0}>
      <table class="jobs" role="table">
        <caption class="sr">{count(items.length, 'job')} with state, health, lags in offsets and last checkpoint</caption>
        <thead role="rowgroup">
          <tr role="row">
            <th role="columnheader" scope="col">job</th>
            <th role="columnheader" scope="col">state</th>
            <th role="columnheader" scope="col">health</th>
            <th role="columnheader" scope="col" class="r">position lag</th>
            <th role="columnheader" scope="col" class="r">checkpoint lag</th>
            <th role="columnheader" scope="col" class="r">group lag</th>
            <th role="columnheader" scope="col">last checkpoint</th>
          </tr>
        </thead>
        {items.map((item) => <Row key={item.job} item={item} at={at} />)}
      </table>
    </div>
  );
}

function Row({ item, at }: { item: JobItem; at: number | null }) {
  const lag = item.lag ?? null;
  const unknown = lag?.unknown_partitions;
  const health = toneOfHealth(item.health.status);
  return (
    <tbody role="rowgroup" data-job={item.job} class={`job ${health}`}>
      <tr role="row">
        <th role="rowheader" scope="rowgroup" rowSpan={2}>
          <a href={jobPath(item.job)}>{item.job}</a>
        </th>
        <td role="cell" data-label="state" data-field="state"><Word tone={toneOfState(item.state)}>{item.state}</Word></td>
        <td role="cell" data-label="health" data-field="health"><Word tone={health}>{item.health.status}</Word></td>
        <td role="cell" data-label="position lag" class="r"><Sum value={lag?.position} unknown={unknown} /></td>
        <td role="cell" data-label="checkpoint lag" class="r">{item.checkpointing === 'off' ? <span class="muted">off</span> : <Sum value={lag?.checkpoint} unknown={unknown} />}</td>
        <td role="cell" data-label="group lag" class="r"><Sum value={lag?.group} unknown={unknown} /></td>
        <td role="cell" data-label="last checkpoint"><Checkpoint checkpoint={item.last_checkpoint} off={item.checkpointing === 'off'} at={at} /></td>
      </tr>
      <tr role="row" class="say">
        <td role="cell" colSpan={6}>
          {item.summary ?? ''}
          {(unknown ?? 0) > 0 && <span class="bound"> {count(unknown ?? 0, 'unknown partition')}.</span>}
        </td>
      </tr>
    </tbody>
  );
}

function Checkpoint({ checkpoint, off, at }: { checkpoint: LastCheckpoint | null | undefined; off: boolean; at: number | null }) {
  if (off) return <Word tone="warn">checkpoints off</Word>;
  if (checkpoint === null || checkpoint === undefined) return <span class="unknown">none yet</span>;
  return (
    <>
      {checkpoint.status !== 'completed' && <><Word tone={toneOfOutcome(checkpoint.status)}>{label(checkpoint.status)}</Word> </>}
      <Age ms={checkpoint.age_ms} at={at} instant={checkpoint.completed_at} />
      {checkpoint.status === 'completed' && <span class="muted"> #{checkpoint.id}</span>}
    </>
  );
}

function Empty() {
  const origin = window.location.origin;
  return (
    <section class="panel empty">
      <h2>No jobs yet</h2>
      <p>A job consumes topics of Kafka and hands the records to a sink. Jobs are created by the API:</p>
      <Next
        steps={[
          { why: 'The document that describes a job, with examples.', curl: `curl -sS ${origin}/openapi.json` },
          {
            why: 'Create one: put its document, here from a file spec.json.',
            curl: `curl -sS --fail-with-body -X PUT ${origin}/api/v1/jobs/my-job/spec -H 'Content-Type: application/json' -d @spec.json`,
          },
        ]}
      />
    </section>
  );
}
