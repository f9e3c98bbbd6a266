// The newest runs of a job: why each began, how it ended and with what.

import type { Attempt, AttemptPage } from './api';
import { duration, utc } from './format';
import { Num, Word, label } from './parts';
import { toneOfOutcome } from './tone';

export function Attempts({ page }: { page: AttemptPage }) {
  if (page.items.length === 0) return null;
  return (
    <section class="attempts" aria-labelledby="attempts">
      <h2 id="attempts">attempts</h2>
      <div class="panel scroll" role="region" aria-label="Attempts, newest first" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">attempt</th>
              <th scope="col">kind</th>
              <th scope="col">started at</th>
              <th scope="col">ended at</th>
              <th scope="col">outcome</th>
              <th scope="col">records</th>
              <th scope="col">cause</th>
            </tr>
          </thead>
          <tbody>{page.items.map((attempt) => <Row key={attempt.attempt} attempt={attempt} />)}</tbody>
        </table>
      </div>
      {(page.next ?? null) !== null && <p class="muted">older ones: see the call below</p>}
    </section>
  );
}

function Row({ attempt }: { attempt: Attempt }) {
  const lasted = attempt.ended_at === null ? null : Date.parse(attempt.ended_at) - Date.parse(attempt.started_at);
  return (
    <tr>
      <td data-field="attempt"><Num value={attempt.attempt} /></td>
      <td data-field="kind">{label(attempt.kind)}</td>
      <td class="whole">{utc(attempt.started_at) ?? attempt.started_at}</td>
      <td class="whole">
        {attempt.ended_at === null ? <Word tone="run">running</Word> : (utc(attempt.ended_at) ?? attempt.ended_at)}
        {lasted !== null && <div class="muted">after {duration(lasted)}</div>}
      </td>
      <td>
        <span data-field="outcome">
          {attempt.outcome === null ? '' : <Word tone={toneOfOutcome(attempt.outcome)}>{label(attempt.outcome)}</Word>}
        </span>
        {attempt.first_of_loop === true && <div class="muted">first of loop</div>}
      </td>
      <td><Num value={attempt.records} /></td>
      <td>{attempt.cause?.summary ?? ''}</td>
    </tr>
  );
}
