//! Writes rows to a table of PostgreSQL.

pub mod catalogue;
pub mod mapping;
