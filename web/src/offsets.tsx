// The offsets of one job: per partition the five offsets that decide a restart, as numbers and on one axis.

import { useState } from 'preact/hooks';
import type { OffsetsView, OffsetTotals, PartitionOffsets, Source } from './api';
import { count, duration, utc } from './format';
import { Age, Num, Sum, Word, label } from './parts';
import { decadesFor, endOf, rulerOf, sentence, ticks, untilDeletion, type Span } from './ruler';
import { location, setQuery } from './route';
import { isQuietCause, toneOfFlag, toneOfOutcome } from './tone';

// More rows than this at once make a page slow; the rest comes on demand.
const FIRST_ROWS = 200;
const COLUMNS = 12;
// An on-call engineer has to act before then.
const SOON_MS = 3_600_000;

export function Offsets({ view, at }: { view: OffsetsView; at: number | null }) {
  const [all, setAll] = useState(false);
  const rulers = location.value.query.get('view') !== 'numbers';
  const rows = all ? view.partitions : view.partitions.slice(0, FIRST_ROWS);
  const decades = decadesFor(view.partitions);
  // The readable end is the last stable offset, or the latest for a job that also reads uncommitted records.
  const committed = view.isolation !== 'read_uncommitted';
  return (
    <section class="offsets" aria-labelledby="offsets">
      <div class="head">
        <h2 id="offsets">Offsets</h2>
        <p class="muted">
          {count(view.totals.partitions, 'partition')}
          {view.group_id ? ` · group ${view.group_id}` : ''}
          {view.isolation === undefined ? '' : ` · ${view.isolation}`}
          {' · an offset is the next one to read'}
        </p>
        <button type="button" class="switch" aria-pressed={!rulers} onClick={() => setQuery('view', rulers ? 'numbers' : null)}>numbers only</button>
      </div>
      <Sources view={view} at={at} />
      <div class="panel scroll" role="region" aria-label="Offsets per partition" tabIndex={0}>
        <table class="parts" role="table">
          <caption class="sr">Offsets and lags per partition</caption>
          <thead role="rowgroup">
            <tr role="row">
              <th role="columnheader" scope="col">partition</th>
              <th role="columnheader" scope="col" class="r"><Key mark="earliest" />earliest</th>
              <th role="columnheader" scope="col" class="r"><Key mark="group" />group committed</th>
              <th role="columnheader" scope="col" class="r"><Key mark="checkpoint" />check&shy;pointed</th>
              <th role="columnheader" scope="col" class="r"><Key mark="position" />position</th>
              <th role="columnheader" scope="col" class="r">{committed && <Key mark="end" />}last stable</th>
              <th role="columnheader" scope="col" class="r">{!committed && <Key mark="end" />}latest</th>
              <th role="columnheader" scope="col" class="r sep">position lag</th>
              <th role="columnheader" scope="col" class="r">checkpoint lag</th>
              <th role="columnheader" scope="col" class="r">group lag</th>
              <th role="columnheader" scope="col" class="r sep">group behind checkpoint</th>
              <th role="columnheader" scope="col">flags</th>
            </tr>
          </thead>
          {rulers && rows.some((row) => endOf(row) !== null) && <Axis decades={decades} />}
          {rows.map((row) => <Row key={`${row.topic} ${row.partition}`} row={row} decades={decades} rulers={rulers} />)}
          <Totals totals={view.totals} />
        </table>
      </div>
      {rulers && <Legend />}
      {rows.length < view.partitions.length && (
        <button type="button" class="switch" onClick={() => setAll(true)}>show all {view.partitions.length} partitions</button>
      )}
    </section>
  );
}

function Sources({ view, at }: { view: OffsetsView; at: number | null }) {
  const sources = Object.entries(view.sources ?? {});
  return (
    <dl class="sources">
      {sources.map(([name, source]) => (
        <div key={name} data-source={name}>
          <dt>{label(name)}</dt>
          <dd><SourceText source={source} observed={view.observed_at} at={at} /></dd>
        </div>
      ))}
    </dl>
  );
}

function SourceText({ source, observed, at }: { source: Source; observed: string | null | undefined; at: number | null }) {
  // A checkpoint has an instant instead of an age; both instants are the server's, so their distance is an age too.
  const since = source.completed_at && observed ? Date.parse(observed) - Date.parse(source.completed_at) : NaN;
  const age = source.age_ms ?? (Number.isNaN(since) ? null : since);
  return (
    <>
      <Word tone={toneOfOutcome(source.status)}>{label(source.status)}</Word>
      {(source.because ?? '') !== '' && <span class="muted"> {label(source.because ?? '')}</span>}
      {source.id !== null && source.id !== undefined && <span class="muted"> #{source.id}</span>}
      {age !== null && <span class="muted"> <Age ms={age} at={at} instant={source.completed_at} /></span>}
      {source.members !== null && source.members !== undefined && <span class="muted"> · {count(source.members, 'member')}</span>}
      {(source.unanswered_partitions ?? 0) > 0 && <span> · {count(source.unanswered_partitions ?? 0, 'partition')} unanswered</span>}
    </>
  );
}

function Row({ row, decades, rulers }: { row: PartitionOffsets; decades: number; rulers: boolean }) {
  const flags = row.flags ?? [];
  return (
    <tbody role="rowgroup" data-topic={row.topic} data-partition={row.partition}>
      <tr role="row" class="nums">
        <th role="rowheader" scope="rowgroup" rowSpan={rulers ? 2 : 1}>
          <span class="topic">{row.topic}</span> <span class="part">{row.partition}</span>
          {row.leader !== undefined && <div class="muted leader">leader {row.leader ?? 'unknown'}</div>}
        </th>
        <td role="cell" class="r" data-label="earliest">
          <span data-field="earliest"><Num value={row.earliest} /></span>
          <Deletion row={row} />
        </td>
        <Cell field="group_committed" value={row.group_committed} />
        <Cell field="checkpointed" value={row.checkpointed} />
        <td role="cell" class="r" data-label="position" data-field="position">
          <Num value={row.position} />
          {row.stop_offset !== null && row.stop_offset !== undefined && (
            <div class="muted">stop offset <span data-field="stop_offset"><Num value={row.stop_offset} /></span></div>
          )}
        </td>
        <Cell field="last_stable" value={row.last_stable} />
        <Cell field="latest" value={row.latest} />
        <Cell field="lag.position" value={row.lag.position} name="position lag" sep />
        <Cell field="lag.checkpoint" value={row.lag.checkpoint} name="checkpoint lag" />
        <Cell field="lag.group" value={row.lag.group} name="group lag" />
        <td role="cell" class="r sep" data-label="group behind checkpoint"><Divergence row={row} /></td>
        <td role="cell" class="flags" data-label="flags">
          {flags.length === 0 ? <span class="muted">none</span> : flags.map((flag) => <Word key={flag} tone={toneOfFlag(flag)}>{label(flag)}</Word>)}
          {(row.start_reason ?? '') !== '' && (
            <div class="muted leader" data-field="start_reason" title={row.position_id ? `decided by checkpoint ${row.position_id}` : ''}>began: {label(row.start_reason ?? '')}</div>
          )}
        </td>
      </tr>
      {rulers && (
        <tr role="row" class="ruler-row">
          <td role="cell" colSpan={COLUMNS - 1}><Ruler row={row} decades={decades} /></td>
        </tr>
      )}
    </tbody>
  );
}

function Cell({ field, value, name, sep }: { field: string; value: number | null; name?: string; sep?: boolean }) {
  return (
    <td role="cell" class={sep === true ? 'r sep' : 'r'} data-label={name ?? label(field)} data-field={field}>
      <Num value={value} />
    </td>
  );
}

/** When the log's beginning arrives at unread records; nothing where the server cannot tell. */
function Deletion({ row }: { row: PartitionOffsets }) {
  const text = untilDeletion(row);
  if (text === null) return null;
  const soon = (row.retention?.estimated_ms ?? 0) < SOON_MS;
  return <div class={soon ? 'cause loud' : 'cause muted'} data-field="retention.estimated_ms" title="when the log's beginning reaches the checkpointed position, at the speeds seen lately">{text}</div>;
}

function Divergence({ row }: { row: PartitionOffsets }) {
  const divergence = row.divergence ?? null;
  if (divergence === null) return <span class="unknown">unknown</span>;
  const note = [
    divergence.group_note ? `note ${divergence.group_note}` : '',
    divergence.last_commit_at ? `last commit ${utc(divergence.last_commit_at) ?? divergence.last_commit_at}` : '',
  ].filter((part) => part !== '').join(', ');
  return (
    <span title={note}>
      <span data-field="divergence"><Num value={divergence.group_behind_checkpoint} /></span>
      {divergence.cause !== 'none' && (
        <div class={isQuietCause(divergence.cause) ? 'cause muted' : 'cause loud'} data-field="cause">{label(divergence.cause)}</div>
      )}
    </span>
  );
}

function Totals({ totals }: { totals: OffsetTotals }) {
  const unknown = totals.unknown_partitions;
  return (
    <tfoot role="rowgroup">
      <tr role="row" class="nums">
        <th role="rowheader" scope="row">all {totals.partitions}</th>
        <td role="cell" colSpan={6} class="muted wide">
          {unknown > 0 ? <Word tone="warn">{count(unknown, 'partition')} unknown, not in the sums</Word> : 'no partition unknown'}
          {totals.oldest_unread_age_ms !== undefined && (
            <> · oldest unread {totals.oldest_unread_age_ms === null ? 'unknown' : totals.oldest_unread_age_ms === 0 ? 'none' : duration(totals.oldest_unread_age_ms)}</>
          )}
        </td>
        <td role="cell" class="r sep" data-label="position lag"><Sum value={totals.position_lag} unknown={unknown} /></td>
        <td role="cell" class="r" data-label="checkpoint lag"><Sum value={totals.checkpoint_lag} unknown={unknown} /></td>
        <td role="cell" class="r" data-label="group lag"><Sum value={totals.group_lag} unknown={unknown} /></td>
        <td role="cell" class="r sep" data-label="group behind checkpoint">
          <Num value={totals.group_behind_checkpoint} />
          {(totals.group_ahead_of_checkpoint ?? 0) > 0 && <div class="muted">ahead <Num value={totals.group_ahead_of_checkpoint} /></div>}
        </td>
        <td role="cell" class="none" />
      </tr>
    </tfoot>
  );
}

type MarkName = 'earliest' | 'group' | 'checkpoint' | 'position' | 'end' | 'lost';

// Three lanes, because on a log axis the marks of a job that keeps up fall on each other: the group above the line, the
// checkpoint below it, the position on it. Shape and lane carry the meaning; colour repeats it.
const MARKS: Record<MarkName, string> = {
  earliest: 'M0 11v14M0 18h5',
  group: 'M-5.5 2.5h11L0 11z',
  checkpoint: 'M0 25l5.5 8.5h-11z',
  position: 'M0 13a5 5 0 1 0 0 10a5 5 0 0 0 0-10z',
  end: 'M0 4v28',
  lost: 'M-5 13L5 23M5 13L-5 23',
};
const HEIGHT = 36;
const LINE = 18;

/** A mark in the head of its column: the legend of the rulers. */
function Key({ mark }: { mark: MarkName }) {
  const box = { earliest: '-3 10 9 16', group: '-7 0 14 14', checkpoint: '-7 22 14 14', position: '-7 11 14 14', end: '-3 4 6 28', lost: '-6 12 12 12' }[mark];
  return <svg class="key" viewBox={box} width="11" height="11" aria-hidden="true"><path class={`mark ${mark}`} d={MARKS[mark]} /></svg>;
}

/** The stretches of the rulers; their marks are explained in the heads of the columns. */
function Legend() {
  return (
    <ul class="legend" aria-hidden="true">
      <li><svg width="22" height="10"><rect class="replay" width="22" height="8" y="1" /></svg>read again after a restart</li>
      <li><svg width="22" height="10"><rect class="unread" width="22" height="8" y="1" /></svg>not read yet</li>
      <li><svg width="22" height="10"><rect class="held" width="21" height="7" x=".5" y="1.5" /></svg>in open transactions, not readable yet</li>
      <li><svg viewBox="-6 12 12 12" width="11" height="11"><path class="mark lost" d={MARKS.lost} /></svg>the log no longer reaches back to the checkpoint</li>
    </ul>
  );
}

const percent = (x: number): string => `${(x * 100).toFixed(3)}%`;

function Mark({ name, x }: { name: MarkName; x: number | null }) {
  if (x === null) return null;
  // A nested svg takes a percentage for its place, which a transform does not: the picture needs no width from a script.
  return <svg x={percent(x)} overflow="visible"><path class={`mark ${name}`} d={MARKS[name]} /></svg>;
}

function Bar({ span, kind }: { span: Span | null; kind: string }) {
  if (span === null) return null;
  return <rect class={kind} x={percent(span.from)} width={percent(span.to - span.from)} y={LINE - 4} height="8" />;
}

function Ruler({ row, decades }: { row: PartitionOffsets; decades: number }) {
  const ruler = rulerOf(row, decades);
  if (ruler === null) {
    return (
      <svg class="ruler" height={HEIGHT} width="100%" role="img" aria-label={sentence(row)}>
        <line class="stub" x1="0" x2="100%" y1={LINE} y2={LINE} />
        <text class="stub-text" x="50%" y={LINE - 5} text-anchor="middle">end of the log unknown, nothing can be placed</text>
      </svg>
    );
  }
  return (
    <svg class="ruler" height={HEIGHT} width="100%" role="img" aria-label={sentence(row)}>
      {ticks(decades).map((tick) => <line key={tick.label} class="grid" x1={percent(tick.x)} x2={percent(tick.x)} y1="0" y2={HEIGHT} />)}
      <line class="deleted" x1="0" x2={percent(ruler.earliest ?? 1)} y1={LINE} y2={LINE} />
      {ruler.kept !== null && <line class="kept" x1={percent(ruler.kept.from)} x2={percent(ruler.kept.to)} y1={LINE} y2={LINE} />}
      <Bar kind="unread" span={ruler.unread} />
      <Bar kind="replay" span={ruler.replay} />
      <Bar kind="held" span={ruler.held} />
      <Bar kind="gone" span={ruler.gone} />
      <Mark name="end" x={ruler.readableEnd} />
      <Mark name="earliest" x={ruler.earliest} />
      <Mark name="group" x={ruler.group} />
      <Mark name="checkpoint" x={ruler.checkpoint} />
      <Mark name="position" x={ruler.position} />
      {ruler.gone !== null && <Mark name="lost" x={ruler.checkpoint} />}
    </svg>
  );
}

/** The axis shared by all rulers. The words stand in the cell, the powers of ten in the picture. */
function Axis({ decades }: { decades: number }) {
  return (
    <tbody role="rowgroup" class="axis">
      <tr role="row">
        <td role="cell" class="axis-name">behind latest</td>
        <td role="cell" colSpan={COLUMNS - 1}>
          <svg class="ruler" height="18" width="100%" role="img" aria-label={`Logarithmic axis from 10 to the power of ${decades} offsets behind latest on the left to 0 on the right`}>
            {ticks(decades).map((tick, index) => (
              <text key={tick.label} class={index % 2 === 1 && tick.x < 1 ? 'tick odd' : 'tick'} x={percent(tick.x)} y="13" text-anchor="middle">{tick.label}</text>
            ))}
          </svg>
        </td>
      </tr>
    </tbody>
  );
}
