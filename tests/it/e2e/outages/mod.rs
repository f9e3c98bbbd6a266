//! Connections that break at the worst moment, sessions that are ended, a process that sleeps past its lease.

mod sink_connections;
mod store_connections;
mod takeover;
