//! The postgres sink against a real PostgreSQL: what the catalogue says about a spec, what becomes of values, and that rows
//! and progress are one.

#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the target behind the sink's back, from tasks of their own"
)]

mod catalogue;
mod postgres;
mod target;
mod values;
