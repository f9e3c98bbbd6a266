//! Which subtask of a job reads a partition.

/// The subtask that owns a partition, by the rule of Flink's `KafkaTopicPartitionAssigner`.
///
/// The topic's hash decides where the round-robin over subtasks begins, so the partitions of one topic spread evenly and
/// many one-partition topics do not all fall on subtask 0. Java's arithmetic is reproduced exactly: a 32-bit wrapping hash
/// over UTF-16 code units, times 31, sign bit cleared.
///
/// # Panics
/// Never for a `parallelism` of at least 1 (which the job spec guarantees).
#[must_use]
pub fn owner(topic: &str, partition: i32, parallelism: u32) -> u32 {
    let start = (java_hash(topic).wrapping_mul(31).cast_unsigned() & 0x7fff_ffff) % parallelism;
    let partition = partition.cast_unsigned() % parallelism;
    // Both are below `parallelism`, so 64 bits cannot overflow.
    let owner = (u64::from(start) + u64::from(partition)) % u64::from(parallelism);
    u32::try_from(owner).unwrap_or(0)
}

/// `String.hashCode` of Java.
fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0_i32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_javas() {
        assert_eq!(java_hash("orders"), -1_008_770_331);
        assert_eq!(java_hash(""), 0);
    }

    #[test]
    fn the_first_partition_falls_where_flink_puts_it() {
        let parallelisms = [1, 2, 3, 4, 5, 8];
        let vectors: [(&str, [u32; 6]); 5] = [
            ("orders", [0, 1, 0, 3, 4, 3]),
            ("payments", [0, 1, 0, 3, 1, 3]),
            ("test-topic", [0, 0, 0, 0, 1, 4]),
            ("主题", [0, 1, 0, 3, 1, 3]),
            ("\u{1F600}x", [0, 1, 1, 3, 4, 3]),
        ];
        for (topic, expected) in vectors {
            for (parallelism, start) in parallelisms.into_iter().zip(expected) {
                assert_eq!(
                    owner(topic, 0, parallelism),
                    start,
                    "{topic} on {parallelism} subtasks"
                );
            }
        }
    }

    #[test]
    fn every_partition_has_one_owner_and_a_topic_spreads_evenly() {
        for parallelism in 1..10 {
            let mut owned = vec![0_u32; parallelism as usize];
            for partition in 0..i32::try_from(parallelism * 7).unwrap() {
                owned[owner("orders", partition, parallelism) as usize] += 1;
            }
            assert!(owned.iter().all(|count| *count == 7), "{owned:?}");
        }
    }
}
