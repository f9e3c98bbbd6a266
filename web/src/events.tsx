// The newest entries of a job's history: what happened, when, and who did it.

import type { EventPage, HistoryEvent } from './api';
import { utc } from './format';
import { label } from './parts';

export function Events({ page }: { page: EventPage }) {
  if (page.items.length === 0) return null;
  return (
    <section class="attempts events" aria-labelledby="events">
      <h2 id="events">events</h2>
      <div class="panel scroll" role="region" aria-label="Events, newest first" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">at</th>
              <th scope="col">kind</th>
              <th scope="col">actor</th>
              <th scope="col">details</th>
            </tr>
          </thead>
          <tbody>{page.items.map((event) => <Row key={event.id} event={event} />)}</tbody>
        </table>
      </div>
      {(page.next ?? null) !== null && <p class="muted">older ones: see the call below</p>}
    </section>
  );
}

function Row({ event }: { event: HistoryEvent }) {
  return (
    <tr data-event={event.id}>
      <td class="whole">{utc(event.at) ?? event.at}</td>
      <td data-field="kind">{label(event.kind)}</td>
      <td data-field="actor">{event.actor}</td>
      <td>
        <details>
          <summary>{label('details')}</summary>
          <pre>{JSON.stringify(event.details ?? {}, null, 2)}</pre>
        </details>
      </td>
    </tr>
  );
}
