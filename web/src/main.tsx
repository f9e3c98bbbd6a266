// handover's pages. They use nothing but the public API, and decide nothing: verdicts, sentences and next steps are the
// server's.

import { render } from 'preact';
import { Frame } from './frame';
import { JobPage } from './job';
import { JobsPage } from './jobs';
import { startClock } from './poll';
import { jobsPath, listen, location, parse } from './route';
import { startTheme } from './theme';
import './style.css';

function App() {
  const route = parse(location.value.path);
  if (route.page === 'jobs') return <JobsPage />;
  if (route.page === 'job') return <JobPage key={route.job} job={route.job} />;
  return (
    <Frame title="not found" crumb="not found" snapshots={[]}>
      <div class="head"><h1>There is no page here</h1></div>
      <p>{route.path} is not a page of this server. <a href={jobsPath()}>All jobs</a></p>
    </Frame>
  );
}

startTheme();
startClock();
listen();
const root = document.getElementById('app');
if (root !== null) {
  root.replaceChildren();
  render(<App />, root);
}
