//! Integration tests, on real services; `scripts/test` starts them. See docs/testing.md.

#![cfg(test)]

mod broker;
mod service;
mod store;
mod support;
