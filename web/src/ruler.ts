// Geometry of the offset ruler: the offsets that decide a restart, on one axis.
//
// x is 1 - log10(1 + distance behind latest) / decades, so the right edge is the end of the log and one step to the left
// is ten times further behind. All rulers of a table share the number of decades: a vertical line means the same
// distance in each row. The scale grows by whole decades only, so that nothing slides while a lag changes.

import type { PartitionOffsets } from './api';
import { duration, plain } from './format';

export type Offsets = Pick<
  PartitionOffsets,
  'earliest' | 'group_committed' | 'checkpointed' | 'position' | 'readable_end' | 'latest' | 'stop_offset'
>;

/** A stretch of the axis from `from` to `to`, both 0 to 1. */
export interface Span {
  from: number;
  to: number;
}

/** What to draw for one partition; a mark is null when its offset is not known. All x are 0 (left) to 1 (right). */
export interface Ruler {
  earliest: number | null;
  group: number | null;
  checkpoint: number | null;
  position: number | null;
  readableEnd: number | null;
  /** Kept by the broker. */
  kept: Span | null;
  /** Would be read again by a restart from the checkpoint. */
  replay: Span | null;
  /** Not read yet. */
  unread: Span | null;
  /** In open transactions of producers: written, not readable yet. */
  held: Span | null;
  /** Needed by a restart and no longer in the log. */
  gone: Span | null;
}

const MIN_DECADES = 3;

/** The end that distances are measured to; null when neither end is known, and then nothing can be placed. */
export function endOf(offsets: Offsets): number | null {
  const { latest, readable_end: readable } = offsets;
  if (latest === null) return readable;
  return readable === null ? latest : Math.max(latest, readable);
}

/** Decades that hold every known mark of every row, at least three. */
export function decadesFor(rows: readonly Offsets[]): number {
  let farthest = 0;
  for (const row of rows) {
    const end = endOf(row);
    if (end === null) continue;
    for (const offset of [row.earliest, row.group_committed, row.checkpointed, row.position]) {
      if (offset !== null) farthest = Math.max(farthest, end - offset);
    }
  }
  return Math.max(MIN_DECADES, Math.ceil(Math.log10(1 + farthest)));
}

/** Place of an offset that is `distance` behind the end; what lies beyond the end is drawn at the end. */
export function place(distance: number, decades: number): number {
  if (distance <= 0) return 1;
  return Math.max(0, 1 - Math.log10(1 + distance) / decades);
}

/** The ruler of one partition, or null when the end of its log is not known. */
export function rulerOf(offsets: Offsets, decades: number): Ruler | null {
  const end = endOf(offsets);
  if (end === null) return null;
  const at = (offset: number | null): number | null => (offset === null ? null : place(end - offset, decades));

  const earliest = at(offsets.earliest);
  const checkpoint = at(offsets.checkpointed);
  const position = at(offsets.position);
  const readableEnd = at(offsets.readable_end);
  // A stopped job has no position: what it has not read begins at its checkpoint.
  const readFrom = position ?? checkpoint;
  const isGone =
    offsets.checkpointed !== null && offsets.earliest !== null && offsets.checkpointed < offsets.earliest;

  return {
    earliest,
    group: at(offsets.group_committed),
    checkpoint,
    position,
    readableEnd,
    kept: earliest === null ? null : { from: earliest, to: 1 },
    replay: span(checkpoint, position),
    // What lies behind the end of a bounded run is not unread.
    unread: span(readFrom, readableEnd === null ? null : Math.min(readableEnd, at(offsets.stop_offset ?? null) ?? 1)),
    held: span(readableEnd, 1),
    gone: isGone ? span(checkpoint, earliest) : null,
  };
}

function span(from: number | null, to: number | null): Span | null {
  return from !== null && to !== null && from < to ? { from, to } : null;
}

/** Axis marks: every power of ten inside the axis, and the end itself. */
export function ticks(decades: number): { x: number; label: string }[] {
  const result = [];
  for (let power = decades; power >= 1; power -= 1) {
    result.push({ x: place(10 ** power - 1, decades), label: `10${superscript(power)}` });
  }
  result.push({ x: 1, label: '0' });
  return result;
}

function superscript(n: number): string {
  return [...n.toString()].map((digit) => '⁰¹²³⁴⁵⁶⁷⁸⁹'[Number(digit)]).join('');
}

/** The ruler in one sentence, for those who do not see it. */
export function sentence(row: Offsets & Pick<PartitionOffsets, 'topic' | 'partition' | 'lag' | 'retention'>): string {
  const marks = [
    `earliest ${plain(row.earliest)}`,
    `group committed ${plain(row.group_committed)}`,
    `checkpointed ${plain(row.checkpointed)}`,
    `position ${plain(row.position)}`,
    `readable end ${plain(row.readable_end)}`,
    `latest ${plain(row.latest)}`,
    `lag of the checkpoint ${plain(row.lag.checkpoint)}`,
  ];
  if (row.checkpointed !== null && row.earliest !== null && row.checkpointed < row.earliest) {
    marks.push(`${row.earliest - row.checkpointed} offsets after the checkpoint are no longer in the log`);
  }
  const until = untilDeletion(row);
  if (until !== null) marks.push(until);
  return `${row.topic} partition ${row.partition}: ${marks.join('; ')}`;
}

/** When unread records begin to be deleted, as far as the server can tell; null where it cannot, or where it is so already. */
export function untilDeletion({ retention }: Pick<PartitionOffsets, 'retention'>): string | null {
  const left = retention?.estimated_ms ?? null;
  if (left === null || (retention?.offsets_left ?? 0) < 0) return null;
  return left < 1000 ? 'unread is being deleted' : `unread deleted in about ${duration(left)}`;
}
