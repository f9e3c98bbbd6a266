//! How fast a job may read.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::reader::ObjectReader;

/// The largest limit that is taken: above it the numbers of a clock are too coarse to mean anything.
const MOST: u64 = 1_000_000_000_000;

/// How much a job may give to its sink in a second, all its subtasks together. Without a limit it goes as fast as it can.
///
/// A limit holds over a while, not over each millisecond: what a job was kept from for up to a second (a checkpoint, a slow
/// sink) it may catch up on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsSpec {
    /// Records in a second; `null` for no limit.
    #[schema(minimum = 1, maximum = 1_000_000_000_000_i64)]
    pub records_per_s: Option<u64>,
    /// Bytes of keys and values in a second; `null` for no limit.
    #[schema(minimum = 1, maximum = 1_000_000_000_000_i64)]
    pub bytes_per_s: Option<u64>,
}

impl LimitsSpec {
    /// Reads the member of a spec. Faults are left with the reader.
    pub(super) fn read(mut reader: ObjectReader<'_>) -> Self {
        let limits = Self {
            records_per_s: reader.optional("records_per_s"),
            bytes_per_s: reader.optional("bytes_per_s"),
        };
        for (name, limit) in [
            ("records_per_s", limits.records_per_s),
            ("bytes_per_s", limits.bytes_per_s),
        ] {
            if limit.is_some_and(|limit| !(1..=MOST).contains(&limit)) {
                reader.fault(
                    name,
                    format!("must lie between 1 and {MOST}; stop the job to read nothing at all"),
                );
            }
        }
        reader.finish();
        limits
    }

    /// How many milliseconds the limit of records makes so many records take; `None` without one.
    #[must_use]
    pub fn time_for(&self, records: i64) -> Option<i64> {
        let per_s = i64::try_from(self.records_per_s?).unwrap_or(i64::MAX);
        Some(records.max(0).saturating_mul(1_000) / per_s.max(1))
    }

    /// Whether there is any limit.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.records_per_s.is_some() || self.bytes_per_s.is_some()
    }
}

/// For sentences: `1000 records/s and 65536 bytes/s`.
impl std::fmt::Display for LimitsSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.records_per_s, self.bytes_per_s) {
            (Some(records), Some(bytes)) => write!(f, "{records} records/s and {bytes} bytes/s"),
            (Some(records), None) => write!(f, "{records} records/s"),
            (None, Some(bytes)) => write!(f, "{bytes} bytes/s"),
            (None, None) => f.write_str("no limit"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_limit_is_at_least_one() {
        let value = json!({"records_per_s": 0, "bytes_per_s": 65_536, "records": 1});
        let mut errors = Vec::new();
        let limits = LimitsSpec::read(ObjectReader::open(&value, "/limits", &mut errors));
        assert_eq!(limits.bytes_per_s, Some(65_536));
        let pointers: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(pointers, ["/limits/records_per_s", "/limits/records"]);
        assert_eq!(
            LimitsSpec {
                records_per_s: Some(5),
                ..limits
            }
            .to_string(),
            "5 records/s and 65536 bytes/s"
        );
        assert!(!LimitsSpec::default().is_limited());
        let limits = LimitsSpec {
            records_per_s: Some(2_000),
            bytes_per_s: None,
        };
        assert_eq!(limits.time_for(5_000), Some(2_500));
        assert_eq!(LimitsSpec::default().time_for(5_000), None);
    }
}
