//! Tests against real services; `scripts/test` starts them.
#![cfg(test)]

mod broker;
