//! Integration tests, on real services. See docs/testing.md.

#![cfg(test)]

mod store;
mod support;
