//! Sinks against the real systems they write to.

#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the target behind the sink's back, from tasks of their own"
)]

mod catalogue;
mod postgres;
mod target;
mod values;
