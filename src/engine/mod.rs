//! How one job runs. (Written with the engine.)

pub mod error;
pub mod job_handle;
pub mod ports;
