// Where the time of the last minute went, and what holds the job back.

import type { Bottleneck, Stages } from './api';
import { percent, utc } from './format';
import { Next, Word, label } from './parts';

// The order in which a record passes them; the last one is beside the others.
const ORDER = ['fetch_wait', 'decode', 'sink_write', 'sink_flush', 'checkpoint', 'rate_limit', 'alignment', 'idle'];
const BESIDE = 'handover_wait';

export function StagesPanel({ stages, bottleneck }: { stages: Stages; bottleneck: Bottleneck | null }) {
  const shares = stages.shares;
  return (
    <section class="panel stages" aria-labelledby="stages">
      <h2 id="stages">stages</h2>
      {bottleneck !== null && (
        <div class="bottleneck">
          <p>
            <span class="muted">bottleneck</span>{' '}
            <span data-field="bottleneck.kind">
              {bottleneck.kind === null ? <span class="unknown">unknown</span> : (
                <Word tone={bottleneck.kind === 'none' ? 'ok' : 'warn'}>{label(bottleneck.kind)}</Word>
              )}
            </span>
          </p>
          <p>{bottleneck.summary}</p>
          {(bottleneck.hint ?? '') !== '' && <p class="muted">{bottleneck.hint}</p>}
          <Next steps={bottleneck.next} />
        </div>
      )}
      {shares !== null && (
        <table>
          <caption class="muted">shares since {utc(stages.since) ?? stages.since}, mean of the subtasks</caption>
          <tbody>
            {ORDER.map((stage) => <Share key={stage} stage={stage} share={shares[stage]} />)}
            <Share stage={BESIDE} share={shares[BESIDE]} />
          </tbody>
        </table>
      )}
    </section>
  );
}

function Share({ stage, share }: { stage: string; share: number | undefined }) {
  return (
    <tr class={stage === BESIDE ? 'beside' : undefined}>
      <th scope="row">{label(stage)}</th>
      <td class="r num" data-field={`stages.shares.${stage}`}>{share === undefined ? <span class="unknown">unknown</span> : percent(share)}</td>
      <td aria-hidden="true"><span class="bar"><span style={{ width: `${100 * Math.min(1, share ?? 0)}%` }} /></span></td>
    </tr>
  );
}
